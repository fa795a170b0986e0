//! A pool on a device, which the host emulates here, does what a pool of the host does.

use gumball_bench_protocol::skipped::or_skip;
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMasks, DeviceMatrix, DeviceRoute, Dry, Dtype, Error, HostMatrix,
    Masks, NONE, Outputs, PADDING, Place, Pool, PoolConfig, Route, RowHook, Rows, Sampler, SamplingParams,
    Scored, Slot, Widths, Work,
};

use crate::cases::{KINDS, VOCAB, params, pool, row, rows};

/// Returns the emulated device, or says why there is none.
fn device() -> Option<Device> {
    or_skip(Device::emulated())
}

/// Returns a small pool with room for what the requests ask, and for few tokens, so that histories are moved.
fn device_pool(device: &Device) -> Pool {
    Pool::new(config(device)).unwrap()
}

fn place(device: &Device, keep_histories: bool) -> Place {
    Place::Device { device: device.clone(), rows: 16, history_growth: 2, keep_histories }
}

fn config(device: &Device) -> PoolConfig {
    let widths = Widths { top_n: 3, ids: 2 };
    PoolConfig { slots: 16, place: place(device, false), widths, kept: true, ..PoolConfig::new(VOCAB) }
}

/// Returns requests of all kinds.
fn requests() -> Vec<SamplingParams> {
    let base = |seed| SamplingParams { seed: Some(seed), ..Default::default() };
    let mut requests = vec![
        base(1),
        SamplingParams { temperature: 0.0, ..base(2) },
        SamplingParams { temperature: 0.7, min_p: 0.05, ..base(3) },
    ];
    requests.extend((0..KINDS).map(|kind| params(kind, kind as u64)));
    requests
}

/// Admits the same requests to both pools.
fn both(device: &Device) -> (Pool, Pool, Vec<Slot>) {
    let (mut host, mut on_device) = (pool(1), device_pool(device));
    let slots = requests().into_iter().map(|params| {
        let slot = host.admit(params.clone(), &[1, 2, 1]).unwrap();
        assert_eq!(on_device.admit(params, &[1, 2, 1]).unwrap(), slot);
        slot
    });
    let slots = slots.collect();
    (host, on_device, slots)
}

/// Holds the outputs and the states of both pools to each other.
fn agree(host: &mut Pool, on_device: &mut Pool, slots: &[Slot], wanted: &Outputs, seen: &Outputs) {
    assert_eq!(seen.layout(), wanted.layout());
    assert_eq!(seen.words(), wanted.words());
    for slot in slots.iter().filter(|slot| **slot != PADDING) {
        assert_eq!(on_device.sequence(*slot).unwrap().state(), host.sequence(*slot).unwrap().state());
    }
}

/// Rows in the memory of the device, as a model would leave them.
fn upload(device: &Device, data: &[f32]) -> DeviceBuffer {
    DeviceBuffer::of(device.runtime(), data).unwrap()
}

fn lines<'b>(buffer: &'b DeviceBuffer, count: usize) -> DeviceMatrix<'b> {
    DeviceMatrix::of(buffer, Dtype::F32, 0, count, VOCAB, VOCAB).unwrap()
}

#[test]
fn a_captured_step_serves_requests_that_come_and_go() {
    let Some(device) = device() else { return };
    let (mut host, mut on_device, slots) = both(&device);
    let three = [slots[0], slots[1], slots[2]];
    let data = [rows(0..3), rows(3..6)];
    let buffers = [upload(&device, &data[0]), upload(&device, &data[1])];
    let inputs = [0, 1].map(|i| Work::step(lines(&buffers[i], 3)));

    on_device.assign(&Batch::of(&three)).unwrap();
    let graph = on_device.capture(&inputs).unwrap();
    assert_eq!(graph.steps(), 2);
    let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
    let mut replay = |host: &mut Pool, on_device: &mut Pool, slots: &[Slot]| {
        on_device.assign(&Batch::of(slots)).unwrap();
        on_device.replay(&graph).unwrap();
        on_device.fetch(&mut seen).unwrap();
        for data in &data {
            let logits = Rows::logits(data, 3, VOCAB).unwrap();
            host.step(logits, &Batch::of(slots), &mut wanted).unwrap();
        }
        assert_eq!(seen.words(), wanted.words());
    };
    replay(&mut host, &mut on_device, &three);
    replay(&mut host, &mut on_device, &[slots[2], PADDING, slots[0]]);

    // A slot that is released is padding at once, and serves the next request without another capture.
    host.release(slots[0]).unwrap();
    on_device.release(slots[0]).unwrap();
    on_device.replay(&graph).unwrap();
    on_device.fetch(&mut Outputs::new()).unwrap();
    for data in &data {
        let logits = Rows::logits(data, 3, VOCAB).unwrap();
        let slots = [slots[2], PADDING, PADDING];
        host.step(logits, &Batch::of(&slots), &mut Outputs::new()).unwrap();
    }
    // It asks for more than those for whom the graph was captured.
    let dry = Dry { multiplier: 0.8, ..Default::default() };
    let next = SamplingParams { seed: Some(99), presence_penalty: 0.5, dry, ..Default::default() };
    let slot = host.admit(next.clone(), &[5]).unwrap();
    assert_eq!(on_device.admit(next, &[5]).unwrap(), slot);
    replay(&mut host, &mut on_device, &[slot, slots[1], slots[2]]);
}

#[test]
fn tokens_that_were_not_fetched_are_read_back_where_they_are_kept() {
    let Some(device) = device() else { return };
    let (mut host, mut sparing, slots) = both(&device);
    let mut keeping = Pool::new(PoolConfig { place: place(&device, true), ..config(&device) }).unwrap();
    for slot in &slots {
        let sequence = host.sequence(*slot).unwrap();
        assert_eq!(keeping.resume(sequence.params().clone(), sequence.state()).unwrap(), *slot);
    }
    let data: Vec<_> = (0..5).map(|step| rows(slots.iter().map(|slot| step + *slot as u64))).collect();
    let buffers: Vec<_> = data.iter().map(|data| upload(&device, data)).collect();
    let inputs: Vec<_> = buffers.iter().map(|buffer| Work::step(lines(buffer, slots.len()))).collect();
    for pool in [&mut sparing, &mut keeping] {
        pool.assign(&Batch::of(&slots)).unwrap();
        // More steps than there is room for.
        let graph = pool.capture(&inputs).unwrap();
        pool.replay(&graph).unwrap();
    }
    for data in &data {
        let logits = Rows::logits(data, slots.len(), VOCAB).unwrap();
        host.step(logits, &Batch::of(&slots), &mut Outputs::new()).unwrap();
    }
    let mut lost = 0;
    for slot in &slots {
        let wanted = host.sequence(*slot).unwrap().state();
        assert_eq!(keeping.sequence(*slot).unwrap().state(), wanted);
        match sparing.sequence(*slot) {
            Ok(sequence) => assert_eq!(sequence.state(), wanted),
            Err(error) => {
                assert!(error.to_string().starts_with("no history: 5 tokens of slot"), "{error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0 && lost < slots.len(), "{lost} of {}", slots.len());
    // What was read back goes on.
    let logits = Rows::logits(&data[0], slots.len(), VOCAB).unwrap();
    let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
    host.step(logits, &Batch::of(&slots), &mut wanted).unwrap();
    keeping.step(logits, &Batch::of(&slots), &mut seen).unwrap();
    agree(&mut host, &mut keeping, &slots, &wanted, &seen);
    // Mirostat's limits between the tokens that were read back at once are lost.
    let mirostat =
        *slots.iter().find(|slot| host.sequence(**slot).unwrap().params().mirostat.is_some()).unwrap();
    keeping.shorten(&[mirostat], &[1]).unwrap();
    let error = keeping.shorten(&[mirostat], &[1]).unwrap_err().to_string();
    assert_eq!(error, format!("counts is 1 of slot {mirostat}, but must be in 0..=0, its output tokens"));
}

#[test]
fn a_graph_is_held_to_the_shape_it_was_captured_for() {
    let Some(device) = device() else { return };
    let (_, mut pool, slots) = both(&device);
    let buffer = upload(&device, &rows(0..2));
    pool.assign(&Batch::of(&slots[..2])).unwrap();
    let graph = pool.capture(&[Work::step(lines(&buffer, 2))]).unwrap();
    let says = |error: Error, text: &str| assert!(error.to_string().starts_with(text), "{error}");
    pool.assign(&Batch::of(&slots[..1])).unwrap();
    says(pool.replay(&graph).unwrap_err(), "slots has length 1, but must have 2 rows");
    pool.assign(&Batch { row_indices: &[0, 1], ..Batch::of(&slots[..2]) }).unwrap();
    says(pool.replay(&graph).unwrap_err(), "assignment cannot be combined with step");
    let graph = pool.capture(&[Work::step(lines(&buffer, 2))]).unwrap();
    pool.assign(&Batch { row_indices: &[0, 2], ..Batch::of(&slots[..2]) }).unwrap();
    says(pool.replay(&graph).unwrap_err(), "row_indices is 2, but must be a row of the logits, in 0..2");
    for slot in &slots[..2] {
        assert_eq!(pool.sequence(*slot).unwrap().position(), 3, "nothing was launched");
    }
}

#[test]
fn masks_come_from_the_host_or_lie_on_the_device() {
    let Some(device) = device() else { return };
    let (mut host, mut on_device, slots) = both(&device);
    let slots = &slots[..2];
    let data = rows(0..2);
    let words: Vec<u32> = (0..60).map(|word| 0x5555_0F0F_u32.rotate_left(word)).collect();
    let masks = Masks::new(&words, 2, 25, 30).unwrap();
    let logits = Rows::logits(&data, 2, VOCAB).unwrap();
    let options = Batch { masks, ..Default::default() };
    let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
    host.step(logits, &Batch { slots, ..options }, &mut wanted).unwrap();
    on_device.step(logits, &Batch { slots, ..options }, &mut seen).unwrap();
    let allowed = |id: i32, row: usize| words[row * 30 + id as usize / 32] >> (id % 32) & 1 == 1;
    assert!((0..2).all(|row| seen.tokens()[row] != NONE && allowed(seen.tokens()[row], row)));
    agree(&mut host, &mut on_device, slots, &wanted, &seen);

    let (buffer, words) = (upload(&device, &data), DeviceBuffer::of(device.runtime(), &words).unwrap());
    let masks = DeviceMasks::of(&words, 2, 25, 30).unwrap();
    on_device.assign(&Batch::of(slots)).unwrap();
    on_device.enqueue(&[Work::Step(lines(&buffer, 2).into(), masks.into())]).unwrap();
    on_device.fetch(&mut seen).unwrap();
    host.step(logits, &Batch { slots, ..options }, &mut wanted).unwrap();
    agree(&mut host, &mut on_device, slots, &wanted, &seen);
}

#[test]
fn mistakes_are_the_same_errors_as_on_the_host_and_change_nothing() {
    let Some(device) = device() else { return };
    let (mut host, mut on_device, slots) = both(&device);
    let (a, b) = (slots[0], slots[1]);
    let data = rows(0..2);
    let logits = Rows::logits(&data, 2, VOCAB).unwrap();
    let short = Rows::Logits(HostMatrix::strided(&data, 2, VOCAB - 1, VOCAB).unwrap().into());
    let none = Batch::default();
    let words = [u32::MAX; 90];
    let masks = Batch { masks: Masks::new(&words, 3, 29, 29).unwrap(), ..none };
    let forced = Batch { forced: &[None, Some(900)], ..none };
    let cases: [(Rows<'_>, &[Slot], Batch<'_>); 7] = [
        (short, &[a, b], none),
        (logits, &[a], none),
        (logits, &[a, a], none),
        (logits, &[a, -2], none),
        (logits, &[15, b], none),
        (logits, &[a, b], masks),
        (logits, &[a, b], forced),
    ];
    for (logits, slots, options) in cases {
        let wanted = host.step(logits, &Batch { slots, ..options }, &mut Outputs::new()).unwrap_err();
        assert_eq!(
            on_device.step(logits, &Batch { slots, ..options }, &mut Outputs::new()).unwrap_err(),
            wanted
        );
    }
    let hook = |_: &mut [f32]| {};
    let hooks: [Option<RowHook<'_>>; 2] = [None, Some(&hook)];
    let options = Batch { hooks: &hooks, ..none };
    let error =
        on_device.step(logits, &Batch { slots: &[a, b], ..options }, &mut Outputs::new()).unwrap_err();
    assert!(error.to_string().starts_with("no hooks on a device: row 1 has one"), "{error}");
    let many: Vec<Slot> = vec![PADDING; 17];
    let error = on_device.assign(&Batch::of(&many)).unwrap_err();
    assert_eq!(error.to_string(), "slots has length 17, but must have at most 16, the pool's rows");
    assert!(on_device.release(15).is_err() && on_device.sequence(-1).is_err());
    for slot in [a, b] {
        assert_eq!(on_device.sequence(slot).unwrap().position(), 3);
    }
}

#[test]
fn a_sampler_draws_through_a_device_as_through_the_host() {
    let Some(device) = device() else { return };
    let routes = [Route::Race, Route::Device(DeviceRoute::new("emulated", device))];
    for params in requests() {
        let [mut host, mut through] = routes.clone().map(|route| {
            Sampler::new(params.clone(), VOCAB).unwrap().with_route(route).unwrap().with_prompt(&[1, 2, 1])
        });
        for step in 0..4 {
            let z = row(step);
            assert_eq!(through.sample(&z).unwrap(), host.sample(&z).unwrap());
            assert_eq!(through.logprobs(), host.logprobs());
        }
        assert_eq!(through.sequence().state(), host.sequence().state());
        assert!(through.sample(&[0.0f32; 3]).unwrap_err().to_string().starts_with("logits has length 3"));
    }
}

#[test]
fn a_device_is_opened_by_its_name() {
    for name in ["cpu", "cuda:", "cuda:x", "cuda1", ""] {
        let error = Device::open(name).unwrap_err().to_string();
        assert!(error.contains("is not known; known are: cuda, cuda:N, emulated"), "{error}");
    }
    if let Err(error) = Device::open("cuda:999") {
        assert!(error.to_string().starts_with("no CUDA: "), "{error}");
    }
}

#[test]
fn a_full_pool_says_so_and_an_empty_step_is_none() {
    let Some(device) = device() else { return };
    let config = PoolConfig { slots: 1, place: Place::device(device.clone(), 1), ..PoolConfig::new(VOCAB) };
    let mut pool = Pool::new(config).unwrap();
    let slot = pool.admit(SamplingParams::default(), &[]).unwrap();
    let error = pool.admit(SamplingParams::default(), &[]).unwrap_err();
    assert_eq!(error.to_string(), "slots is 2, but must be at most 1, all taken; release one first");
    let error = pool.fetch(&mut Outputs::with_kept()).unwrap_err();
    assert!(error.to_string().contains("the pool was made to keep none"), "{error}");
    let mut out = Outputs::new();
    pool.step(Rows::logits(&[0.0f32; 0], 0, VOCAB).unwrap(), &Batch::of(&[]), &mut out).unwrap();
    assert_eq!(out.tokens().len(), 0);
    pool.release(slot).unwrap();
    assert!(pool.is_empty() && pool.admit(SamplingParams::default(), &[]).unwrap() == slot);
}

#[test]
fn scores_on_a_device_are_those_of_the_host() {
    let Some(device) = device() else { return };
    let mut on_device = device_pool(&device);
    let mut host = pool(1);
    const ROWS: usize = 7;
    let data = rows((0..ROWS as u64).map(|i| i % 3));
    let lines = [6, 0, 0, 3, 1, 1, 2];
    let ids = [5, 6, 5, 6, 5, 900, 6, 7, 6, 5, 6, 5, 6];
    for params in requests() {
        let before = on_device.len();
        for (start, prompt_len, select) in [(0, 0, false), (1, 4, true), (6, 3, false), (6, 13, true)] {
            // Id 900 is in a history only.
            let rows = ROWS.min(if start < 6 { 5 - start } else { 7 });
            let logits = Rows::logits(&data, ROWS, VOCAB).unwrap();
            let scored = Scored { params: &params, ids: &ids, prompt_len, start, chunk_rows: None };
            let (mut wanted, mut seen) = (Outputs::with_kept(), Outputs::with_kept());
            let row_indices = if select || rows < ROWS { &lines[..rows] } else { &[] };
            let options = Batch { row_indices, ..Batch::default() };
            let result = host.score(logits, &options, &scored, &mut wanted);
            let on_device = on_device.score(logits, &options, &scored, &mut seen);
            assert_eq!(
                on_device.map_err(|error| error.to_string()),
                result.map_err(|error| error.to_string())
            );
            assert_eq!((seen.layout(), seen.words()), (wanted.layout(), wanted.words()), "{params:?}");
            for row in 0..wanted.layout().rows {
                let mut kept = wanted.kept(row).to_vec();
                kept.sort_unstable();
                assert_eq!(seen.kept(row), kept, "row {row} of {params:?}");
            }
        }
        assert_eq!(on_device.len(), before, "no slot is touched");
    }

    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    let scored = Scored {
        params: &SamplingParams::default(),
        ids: &[1, 900],
        prompt_len: 2,
        start: 1,
        chunk_rows: None,
    };
    let error = on_device.score(logits, &Batch::default(), &scored, &mut Outputs::new()).unwrap_err();
    assert_eq!(error.to_string(), "ids is 900, but must be an id in 0..900");
}

#[test]
fn rows_of_probabilities_are_stepped_as_on_the_host() {
    let Some(device) = device() else { return };
    let (mut pool, mut host) = (device_pool(&device), pool(1));
    let values: Vec<f32> = (0..VOCAB).map(|id| ((id * 37 % 101) as f32 - 20.0) * 1e-3).collect();
    // Min-p compares logits by y (F2) and probabilities by a product (P1a).
    for (top_p, min_p) in [(0.9, 0.0), (1.0, 0.9), (0.9, 0.9)] {
        let params =
            SamplingParams { top_p, min_p, banned_ids: vec![3], seed: Some(7), ..SamplingParams::default() };
        let slots = (pool.admit(params.clone(), &[1]).unwrap(), host.admit(params, &[1]).unwrap());
        let (mut seen, mut wanted) = (Outputs::new(), Outputs::new());
        // A sequence may change from one kind to the other.
        for step in 0..6 {
            let rows = match step % 3 {
                2 => Rows::logits(&values, 1, VOCAB),
                _ => Rows::probabilities(&values, 1, VOCAB),
            };
            let rows = rows.unwrap();
            pool.step(rows, &Batch::of(&[slots.0]), &mut seen).unwrap();
            host.step(rows, &Batch::of(&[slots.1]), &mut wanted).unwrap();
            assert_eq!((seen.tokens(), seen.words()), (wanted.tokens(), wanted.words()), "step {step}");
        }
    }
}

#[test]
fn what_speaks_of_logits_is_refused_beside_probabilities_on_a_device() {
    let Some(device) = device() else { return };
    let mut pool = device_pool(&device);
    let plain = pool.admit(SamplingParams::default(), &[]).unwrap();
    let warm = SamplingParams { temperature: 0.5, ..SamplingParams::default() };
    let warm = pool.admit(warm, &[]).unwrap();
    let data = [0.5f32; 2 * VOCAB];
    let rows = Rows::probabilities(&data, 2, VOCAB).unwrap();
    let error = pool.step(rows, &Batch::of(&[plain, warm]), &mut Outputs::new()).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { parameter: "temperature", .. }), "{error}");
    assert_eq!(pool.sequence(plain).unwrap().position(), 0);
    pool.step(rows, &Batch { row_indices: &[0], ..Batch::of(&[plain]) }, &mut Outputs::new()).unwrap();
    assert_eq!(pool.sequence(plain).unwrap().position(), 1);
}
