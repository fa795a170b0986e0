//! The token depends on no other row, slot, stride, order of rows, thread count, type of batch or level.

use gumball_engine::{
    Batch, HostMasks, HostMatrix, Level, Masks, Outputs, PADDING, Place, Pool, PoolConfig, Rows, Sampler,
    StepOptions, Widths,
};
use proptest::prelude::*;

use crate::cases::{KINDS, VOCAB, params, row};

const STEPS: usize = 3;

#[derive(Clone, Debug)]
struct Request {
    kind: usize,
    seed: u64,
    prompt: Vec<u32>,
    masked: bool,
}

#[derive(Clone, Debug)]
struct Arrangement {
    requests: Vec<Request>,
    /// Where each row of the batch comes from: a request, or padding.
    places: Vec<Option<usize>>,
    stride: usize,
    threads: usize,
    /// Slots that are taken by others first.
    taken: usize,
    level: Level,
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let prompt = prop::collection::vec(0..VOCAB as u32, 0..6);
    let request = (0..KINDS, any::<u64>(), prompt, any::<bool>());
    let request = request.prop_map(|(kind, seed, prompt, masked)| Request { kind, seed, prompt, masked });
    prop::collection::vec(request, 1..6)
}

fn batches() -> impl Strategy<Value = Arrangement> {
    requests().prop_flat_map(|requests| {
        let mut places: Vec<_> = (0..requests.len()).map(Some).collect();
        places.resize(requests.len() + 2, None);
        let levels: Vec<_> = Level::available().collect();
        (
            Just(requests),
            Just(places).prop_shuffle(),
            VOCAB..VOCAB + 70,
            1..4usize,
            0..5usize,
            prop::sample::select(levels),
        )
            .prop_map(|(requests, places, stride, threads, taken, level)| Arrangement {
                requests,
                places,
                stride,
                threads,
                taken,
                level,
            })
    })
}

fn mask() -> Vec<u32> {
    // Shorter than the vocabulary: ids from 800 on are forbidden.
    (0..25u32).map(|word| 0x5DB6_DB6D_u32.rotate_left(word)).collect()
}

fn row_of(request: usize, step: usize) -> Vec<f32> {
    row((request * STEPS + step) as u64)
}

/// Returns the tokens and logprobs of a request that is decoded alone.
fn alone(number: usize, request: &Request) -> Vec<(Option<u32>, u32, u32)> {
    let params = params(request.kind, request.seed);
    let mut sampler = Sampler::new(params, VOCAB).unwrap().with_prompt(&request.prompt);
    let mask = request.masked.then(mask);
    (0..STEPS)
        .map(|step| {
            let options = StepOptions { mask: mask.as_deref(), ..Default::default() };
            let token = sampler.sample_with(&row_of(number, step), options).unwrap();
            let logprob = token.logprob.unwrap();
            (token.id, logprob.logprob.to_bits(), logprob.rank)
        })
        .collect()
}

/// Returns the same of all requests of a batch.
fn together(batch: &Arrangement) -> Vec<Vec<(Option<u32>, u32, u32)>> {
    let mut pool = Pool::new(PoolConfig {
        slots: 12,
        place: Place::Host { threads: Some(batch.threads), level: Some(batch.level) },
        widths: Widths { top_n: 5, ids: 2 },
        ..PoolConfig::new(VOCAB)
    })
    .unwrap();
    for _ in 0..batch.taken {
        pool.admit(params(0, 1), &[]).unwrap();
    }
    let slots: Vec<_> = batch
        .requests
        .iter()
        .map(|request| pool.admit(params(request.kind, request.seed), &request.prompt).unwrap())
        .collect();
    let slot_of_row: Vec<_> =
        batch.places.iter().map(|place| place.map_or(PADDING, |place| slots[place])).collect();

    let rows = batch.places.len();
    // What lies between the lines of masks is not read.
    let words = [mask(), vec![0; 2]].concat().repeat(rows);
    let masked: Vec<_> =
        batch.places.iter().map(|place| place.is_some_and(|place| batch.requests[place].masked)).collect();
    let masks = Masks::Host(HostMasks::new(&words, rows, 25, 27).unwrap().with_present(&masked).unwrap());
    let options = Batch { masks, ..Default::default() };

    let mut tokens = vec![Vec::new(); batch.requests.len()];
    let mut out = Outputs::new();
    for step in 0..STEPS {
        let mut data = vec![f32::NAN; rows * batch.stride];
        for (place, line) in batch.places.iter().zip(data.chunks_mut(batch.stride)) {
            line[..VOCAB].copy_from_slice(&row_of(place.unwrap_or(99), step));
        }
        let logits = Rows::Logits(HostMatrix::strided(&data, rows, VOCAB, batch.stride).unwrap().into());
        pool.step(logits, &Batch { slots: &slot_of_row, ..options }, &mut out).unwrap();
        for (row, place) in batch.places.iter().enumerate() {
            match place {
                Some(place) => tokens[*place].push((
                    u32::try_from(out.tokens()[row]).ok(),
                    out.logprobs()[row].to_bits(),
                    out.ranks()[row],
                )),
                None => assert_eq!((out.tokens()[row], out.statuses()[row]), (-1, 0)),
            }
        }
    }
    tokens
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_request_gets_the_same_tokens_in_any_batch(batch in batches()) {
        let alone: Vec<_> = batch.requests.iter().enumerate().map(|(i, r)| alone(i, r)).collect();
        prop_assert_eq!(together(&batch), alone);
    }
}

#[test]
fn any_number_of_threads_writes_the_same_words() {
    let data: Vec<f32> = (0..40).flat_map(row).collect();
    let logits = Rows::logits(&data, 40, VOCAB).unwrap();
    let run = |threads| {
        let mut pool = Pool::new(PoolConfig {
            slots: 40,
            place: Place::Host { threads, level: None },
            widths: Widths { top_n: 3, ids: 2 },
            kept: true,
            ..PoolConfig::new(VOCAB)
        })
        .unwrap();
        let slots: Vec<_> = (0..40).map(|i| pool.admit(params(i % KINDS, i as u64), &[]).unwrap()).collect();
        let mut out = Outputs::new();
        pool.step(logits, &Batch::of(&slots), &mut out).unwrap();
        let kept: Vec<_> = (0..40).map(|row| out.kept(row).to_vec()).collect();
        (out.words().to_vec(), kept)
    };
    let one = run(Some(1));
    assert_eq!(run(None), one);
    assert_eq!(run(Some(3)), one);
}
