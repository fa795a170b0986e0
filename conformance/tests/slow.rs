//! What takes minutes: long vocabularies against the oracle. `cargo test -p gumball-conformance --test slow -- --ignored`

use std::time::Instant;

use gumball_conformance::bytes::Bytes;
use gumball_conformance::fuzz::large_sample_matches_oracle;
use gumball_conformance::generate;
use gumball_conformance::rows::{Words, bell};
use gumball_engine::{
    BatchOptions, Drafts, Draws, Logits, LogitsMut, NONE, Operators, Outputs, Pool, PoolConfig, RowParams,
    SamplingParams, Slot, Verification, VerifyMode,
};

#[test]
#[ignore = "takes minutes"]
fn long_vocabularies_match_the_oracle() {
    for seed in 0..1000 {
        let mut words = Words(seed);
        let data: Vec<u8> = (0..400).map(|_| words.word() as u8).collect();
        large_sample_matches_oracle(&data);
    }
}

/// Five million outputs of one row, or of the first of 99 and 989, have its probabilities.
#[test]
#[ignore = "takes minutes"]
fn five_million_draws_of_one_row_have_its_direction() {
    const DRAWS: usize = 5_000_000;
    let operators = Operators::new(None, None).unwrap();
    for (rows, vocab) in [(1, 111), (989, 111), (99, 32_000), (1, 128_256)] {
        let logits: Vec<f32> = (0..rows).flat_map(|row| bell(vocab, 1.0, row as u64)).collect();
        let mut probabilities = vec![0.0; rows * vocab];
        let out = LogitsMut::new(&mut probabilities, rows, vocab).unwrap();
        operators.softmax((Logits::new(&logits, rows, vocab).unwrap(), out), 1.0.into(), None).unwrap();
        for (what, params) in [
            ("plain", SamplingParams::default()),
            ("top_k", SamplingParams { top_k: vocab as i64 / 4, ..Default::default() }),
            ("top_p", SamplingParams { top_p: 0.5, ..Default::default() }),
        ] {
            let indices: Vec<u32> = (0..DRAWS).map(|i| (i % rows) as u32).collect();
            let matrix = Logits::probabilities(&probabilities, rows, vocab).unwrap();
            let params = RowParams::new(&params);
            let mut kept = vec![0.0; rows * vocab];
            let out = LogitsMut::new(&mut kept, rows, vocab).unwrap();
            operators.probabilities((matrix, out), &params, None).unwrap();
            let mut tokens = vec![0; DRAWS];
            let start = Instant::now();
            let (indices, draws) = (Some((&indices).into()), Draws::new(7, 1));
            operators.sample(matrix, indices, &params, &draws, (&mut tokens).into(), None).unwrap();
            let seconds = start.elapsed().as_secs_f64();

            let mut counts = vec![0.0f64; vocab];
            tokens.iter().step_by(rows).for_each(|token| counts[*token as usize] += 1.0);
            let p: Vec<f64> = kept[..vocab].iter().map(|p| f64::from(*p)).collect();
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let cosine = dot(&counts, &p) / (dot(&counts, &counts) * dot(&p, &p)).sqrt();
            println!("{rows} x {vocab}, {what}: {seconds:.1} s, cosine {cosine:.5}");
            assert!(counts.iter().zip(&p).all(|(count, p)| *p > 0.0 || *count == 0.0), "outside the cut");
            // Draws of one row scatter around their expectation: with n of them over a vocabulary as flat as this
            // one, the cosine is about 1 / sqrt(1 + vocab / n).
            let of_a_row = (DRAWS / rows) as f64;
            let expected = 1.0 / (1.0 + vocab as f64 / of_a_row).sqrt();
            assert!(cosine > expected - 0.002, "{cosine}, expected about {expected}");
            assert!(rows > 1 || cosine > 0.98, "{cosine}");
        }
    }
}

const VOCAB: usize = 300;

/// A model: one of a few rows, by the last ids.
struct Model(Vec<Vec<f32>>);

impl Model {
    fn new(seed: u64) -> Self {
        let row = |near: u64| {
            let mut row = bell(VOCAB, 1.5, 100 * seed + near);
            (0..3).for_each(|peak| row[(near as usize * 41 + peak * 7) % VOCAB] += 6.0);
            row
        };
        Self((0..13).map(row).collect())
    }

    fn row(&self, history: &[u32]) -> &[f32] {
        let hash = history.iter().rev().take(2).fold(5u64, |hash, id| hash * 31 + u64::from(*id));
        &self.0[hash as usize % self.0.len()]
    }
}

/// Admits requests of all kinds of parameters.
fn requests(seed: u64, count: usize) -> (Pool, Vec<Slot>) {
    let mut words = Words(seed);
    let mut pool = Pool::new(PoolConfig { slots: count, ..PoolConfig::new(VOCAB) }).unwrap();
    let admit = |_| {
        let data: Vec<u8> = (0..300).map(|_| words.word() as u8).collect();
        let params = generate::params(&mut Bytes(&data), VOCAB);
        let params = SamplingParams { logprobs: None, seed: Some(words.word()), ..params };
        pool.admit(params, &[words.below(VOCAB) as u32]).unwrap()
    };
    let slots = (0..count).map(admit).collect();
    (pool, slots)
}

/// A million tokens of requests with any parameters, in batches that change, some with drafts of any drafter and some
/// without, are those of decoding step by step.
#[test]
#[ignore = "takes minutes"]
fn a_million_tokens_with_drafts_are_those_without() {
    const REQUESTS: usize = 64;
    const STEPS: usize = 300;
    let (mut tokens, mut accepted, mut seed) = (0, 0, 0);
    while tokens < 1_000_000 {
        seed += 1;
        let model = Model::new(seed);
        let (mut pool, slots) = requests(seed, REQUESTS);
        let mut out = Outputs::new();
        for _ in 0..STEPS {
            let row = |slot: &Slot| model.row(pool.sequence(*slot).unwrap().history().ids());
            let data: Vec<f32> = slots.iter().flat_map(row).copied().collect();
            let logits = Logits::new(&data, REQUESTS, VOCAB).unwrap();
            pool.step(logits, &slots, &BatchOptions::default(), &mut out).unwrap();
        }
        let plain: Vec<Vec<u32>> =
            slots.iter().map(|slot| pool.sequence(*slot).unwrap().history().output().to_vec()).collect();

        let (mut pool, slots) = requests(seed, REQUESTS);
        let (mut words, mut out) = (Words(!seed), Verification::new());
        let mut open: Vec<usize> = (0..REQUESTS).collect();
        while !open.is_empty() {
            let batch: Vec<usize> = open.iter().copied().filter(|_| words.below(5) > 0).rev().collect();
            let (mut counts, mut ids, mut parents, mut data) = (vec![], vec![], vec![], vec![]);
            for request in &batch {
                let sequence = pool.sequence(slots[*request]).unwrap();
                let history = sequence.history();
                let coming = plain[*request].get(history.output().len()..).unwrap_or(&[]);
                let most =
                    if sequence.params().mirostat.is_some() { 0 } else { [0, 1, 4, 12][words.below(4)] };
                // Perfect, fair and hostile.
                let odds = [1, 3, usize::MAX][(seed as usize + request) % 3];
                let mut paths = vec![history.ids().to_vec()];
                data.extend_from_slice(model.row(&paths[0]));
                for node in 0..most {
                    let parent = if words.below(4) > 0 { node } else { words.below(node + 1) };
                    let depth = paths[parent].len() - paths[0].len();
                    let right = coming.get(depth).filter(|_| odds < usize::MAX && words.below(odds) == 0);
                    let draft = right.map_or(words.below(VOCAB + 2) as i32 - 1, |id| *id as i32);
                    let path = [&paths[parent][..], &[draft as u32]].concat();
                    data.extend_from_slice(model.row(&path));
                    paths.push(path);
                    ids.push(draft);
                    parents.push(parent as i32 - 1);
                }
                counts.push(most as u32);
            }
            let drafts = Drafts { counts: &counts, ids: &ids, parents: Some(&parents), probs: None };
            let logits = Logits::new(&data, data.len() / VOCAB, VOCAB).unwrap();
            let rows: Vec<Slot> = batch.iter().map(|request| slots[*request]).collect();
            let none = BatchOptions::default();
            pool.verify(logits, &rows, &drafts, VerifyMode::Coupled, &none, &mut out).unwrap();
            accepted += out.accepted().iter().map(|accepted| *accepted as usize).sum::<usize>();
            for (place, request) in batch.iter().enumerate() {
                let output = pool.sequence(slots[*request]).unwrap().history().output();
                let ended = out.tokens(place).last() == Some(&NONE);
                let common = output.len().min(plain[*request].len());
                assert_eq!(output[..common], plain[*request][..common], "seed {seed}, request {request}");
                assert!(
                    !ended || output.len() == plain[*request].len(),
                    "seed {seed}, request {request} ends"
                );
                if ended || output.len() >= plain[*request].len() {
                    open.retain(|other| other != request);
                    tokens += output.len();
                }
            }
        }
    }
    println!("{tokens} tokens, of which {accepted} were drafts");
    assert!(accepted > tokens / 4);
}
