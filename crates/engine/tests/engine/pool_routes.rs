//! The route `probabilities` of a pool on a device yields what it yields on the host.

use gumball_bench_protocol::skipped::or_skip;
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMasks, DeviceMatrix, Dtype, DynamicTemperature, Error, FilterOrder,
    LogprobMode, LogprobsParams, Masks, Mirostat, Outputs, PADDING, Place, Pool, PoolConfig, Route, Rows,
    SamplingParams, Scored, Slot, Status, Widths, Work, bf16,
};

use crate::cases::{VOCAB, rows};

const WIDTHS: Widths = Widths { top_n: 3, ids: 2 };

fn device() -> Option<Device> {
    or_skip(Device::emulated())
}

fn config(device: &Device) -> PoolConfig {
    let route = Route::Probabilities;
    let place = Place::device(device.clone(), 16);
    PoolConfig { slots: 16, place, widths: WIDTHS, kept: true, route, ..PoolConfig::new(VOCAB) }
}

/// Returns requests that edit nothing, with filters and logprobs of many kinds.
fn requests() -> Vec<SamplingParams> {
    let base = |seed| SamplingParams { seed: Some(seed), temperature: 0.7, ..Default::default() };
    let logprobs = |mode: LogprobMode| Some(LogprobsParams { mode: mode.into(), top_n: 3, ids: vec![5, 77] });
    vec![
        base(1),
        SamplingParams { temperature: 0.0, logprobs: logprobs(LogprobMode::Tempered), ..base(2) },
        SamplingParams { temperature: 1e-31, top_p: 0.5, ..base(3) },
        SamplingParams { min_p: 0.05, logprobs: logprobs(LogprobMode::Processed), ..base(4) },
        SamplingParams { top_k: 20, top_p: 0.8, temperature: 1.3, ..base(5) },
        SamplingParams { top_k: 20, top_p: 0.8, order: FilterOrder::Joint, ..base(6) },
        SamplingParams { top_p: 0.95, logprobs: logprobs(LogprobMode::Tempered), ..base(7) },
        SamplingParams { typical_p: 0.9, eta_cutoff: 0.01, ..base(8) },
        SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.05, ..base(9) },
        SamplingParams { mirostat: Some(Mirostat { tau: 3.0, eta: 0.2, mu: None }), ..base(10) },
    ]
}

fn both(device: &Device) -> (Pool, Pool, Vec<Slot>) {
    let mut host = PoolConfig {
        slots: 16,
        place: Place::threads(1),
        widths: WIDTHS,
        kept: true,
        ..PoolConfig::new(VOCAB)
    };
    host.route = Route::Probabilities.to_owned();
    let (mut host, mut on_device) = (Pool::new(host).unwrap(), Pool::new(config(device)).unwrap());
    let slots = requests().into_iter().map(|params| {
        let slot = host.admit(params.clone(), &[1, 2]).unwrap();
        assert_eq!(on_device.admit(params, &[1, 2]).unwrap(), slot);
        slot
    });
    let slots = slots.collect();
    (host, on_device, slots)
}

fn same(wanted: &Outputs, seen: &Outputs) {
    assert_eq!(wanted.tokens(), seen.tokens());
    assert_eq!(wanted.words(), seen.words());
    let sorted = |outputs: &Outputs, row| {
        let mut ids = outputs.kept(row).to_vec();
        ids.sort_unstable();
        ids
    };
    (0..wanted.tokens().len())
        .for_each(|row| assert_eq!(sorted(wanted, row), sorted(seen, row), "row {row}"));
}

#[test]
fn steps_from_logits_of_the_host_are_those_of_the_hosts_route() {
    let Some(device) = device() else { return };
    let (mut host, mut on_device, slots) = both(&device);
    let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
    for step in 0..4 {
        let mut order = slots.clone();
        order.rotate_left(step);
        order.insert(3, PADDING);
        let mut data = rows((0..order.len() as u64).map(|row| row + 20 * step as u64));
        // A request's own row shows what it holds; padding reads nothing.
        (data[5], data[VOCAB + 9], data[3 * VOCAB + 1]) = (f32::NAN, f32::INFINITY, f32::NAN);
        data[2 * VOCAB + 9] = f32::INFINITY;
        data[4 * VOCAB..5 * VOCAB].fill(f32::NEG_INFINITY);
        let forced = [None, Some(7)].into_iter().chain([None; 9]).collect::<Vec<_>>();
        let options = Batch { forced: &forced, ..Default::default() };
        let logits = Rows::logits(&data, order.len(), VOCAB).unwrap();
        host.step(logits, &Batch { slots: &order, ..options }, &mut wanted).unwrap();
        on_device.step(logits, &Batch { slots: &order, ..options }, &mut seen).unwrap();
        same(&wanted, &seen);
        assert!(seen.status(0).contains(Status::NAN) && seen.status(2).contains(Status::INF));
        assert!(seen.status(1).contains(Status::FORCED));
        assert!(seen.status(4).contains(Status::EMPTY) && seen.status(3) == Status::default());
    }
    for slot in slots {
        assert_eq!(host.sequence(slot).unwrap().state(), on_device.sequence(slot).unwrap().state());
    }
}

#[test]
fn enqueued_captured_and_half_precision_steps_are_those_of_the_hosts_route() {
    let Some(device) = device() else { return };
    let (mut host, mut on_device, slots) = both(&device);
    let rounded: Vec<bf16> = rows(0..3).into_iter().map(bf16::from_f32).collect();
    let buffer = DeviceBuffer::of(device.runtime(), &rounded).unwrap();
    let input = Work::step(DeviceMatrix::of(&buffer, Dtype::Bf16, 0, 3, VOCAB, VOCAB).unwrap());
    let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
    on_device.assign(&Batch::of(&slots[..3])).unwrap();
    let graph = on_device.capture(&[input, input]).unwrap();
    for three in [[slots[3], slots[4], slots[0]], [slots[9], PADDING, slots[6]]] {
        on_device.assign(&Batch::of(&three)).unwrap();
        on_device.replay(&graph).unwrap();
        on_device.enqueue(&[input]).unwrap();
        let mut view = on_device.on_device().unwrap();
        let variant = view.needed_variant();
        view.record(&[input], variant).unwrap();
        on_device.fetch(&mut seen).unwrap();
        for _ in 0..4 {
            let logits = Rows::logits(&rounded, 3, VOCAB).unwrap();
            host.step(logits, &Batch::of(&three), &mut wanted).unwrap();
        }
        same(&wanted, &seen);
    }
    // The slot of a sequence that ends is padding at once.
    host.release(slots[9]).unwrap();
    on_device.release(slots[9]).unwrap();
    on_device.replay(&graph).unwrap();
    on_device.fetch(&mut seen).unwrap();
    for _ in 0..2 {
        let logits = Rows::logits(&rounded, 3, VOCAB).unwrap();
        host.step(logits, &Batch::of(&[PADDING, PADDING, slots[6]]), &mut wanted).unwrap();
    }
    same(&wanted, &seen);
}

#[test]
fn what_the_softmax_cannot_take_into_account_is_refused() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(&device)).unwrap();
    let plain = SamplingParams::default;
    let refused = [
        (
            "dynamic_temperature",
            SamplingParams {
                dynamic_temperature: Some(DynamicTemperature { min: 0.5, max: 1.5, exponent: 1.0 }),
                ..plain()
            },
        ),
        ("repetition_penalty", SamplingParams { repetition_penalty: 1.1, ..plain() }),
        ("presence_penalty", SamplingParams { presence_penalty: 0.5, ..plain() }),
        ("no_repeat_ngram", SamplingParams { no_repeat_ngram: 2, ..plain() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(3, 1.0)], ..plain() }),
        ("allowed_ids", SamplingParams { allowed_ids: Some(vec![1, 2]), ..plain() }),
        ("banned_ids", SamplingParams { banned_ids: vec![3], ..plain() }),
        ("bad_words", SamplingParams { bad_words: vec![vec![3, 4]], ..plain() }),
        ("min_tokens", SamplingParams { min_tokens: 2, stop_ids: vec![3], ..plain() }),
        ("top_n_sigma", SamplingParams { top_n_sigma: 1.0, ..plain() }),
        ("logprobs.mode", SamplingParams { logprobs: Some(LogprobsParams::default()), ..plain() }),
    ];
    for (name, params) in refused {
        let error = pool.admit(params, &[]).unwrap_err();
        assert!(
            matches!(error, Error::Conflict { parameter, other: "route", .. } if parameter == name),
            "{name}: {error}"
        );
    }
    assert!(pool.is_empty());

    let slot = pool.admit(plain(), &[]).unwrap();
    let (data, words) = (rows(0..1), vec![u32::MAX; VOCAB.div_ceil(32)]);
    let conflict = |error: Error, name: &str| {
        assert!(matches!(error, Error::Conflict { parameter, .. } if parameter == name), "{error}");
    };
    let masks = Masks::new(&words, 1, words.len(), words.len()).unwrap();
    let options = Batch { masks, ..Batch::default() };
    conflict(pool.assign(&Batch { slots: &[slot], ..options }).unwrap_err(), "masks");
    let options = Batch { row_indices: &[0], ..Batch::default() };
    conflict(pool.assign(&Batch { slots: &[slot], ..options }).unwrap_err(), "row_indices");
    let out = &mut Outputs::new();
    let probs = Rows::probabilities(&data, 1, VOCAB).unwrap();
    conflict(pool.step(probs, &Batch::of(&[slot]), out).unwrap_err(), "kind");
    let scored = Scored { params: &plain(), ids: &[1, 2], prompt_len: 2, start: 1, chunk_rows: None };
    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    conflict(pool.score(logits, &Batch::default(), &scored, out).unwrap_err(), "score");
    pool.assign(&Batch::of(&[slot])).unwrap();
    let (buffer, mask) = (
        DeviceBuffer::of(device.runtime(), &data).unwrap(),
        DeviceBuffer::of(device.runtime(), &words).unwrap(),
    );
    let logits = DeviceMatrix::of(&buffer, Dtype::F32, 0, 1, VOCAB, VOCAB).unwrap();
    let masks = DeviceMasks::of(&mask, 1, words.len(), words.len()).unwrap();
    let masked = Work::Step(logits.into(), masks.into());
    conflict(pool.enqueue(&[masked]).unwrap_err(), "masks");
    assert!(pool.capture(&[masked]).is_err());
    assert_eq!(pool.sequence(slot).unwrap().position(), 0);
    pool.enqueue(&[Work::step(logits)]).unwrap();
    assert_eq!(pool.sequence(slot).unwrap().position(), 1);
}
