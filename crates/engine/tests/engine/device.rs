//! A pool on a device, which the host emulates here, does what a pool of the host does.

use gumball_engine::unstable::StepVariant;
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMasks, DeviceMatrix, DeviceSlice, Drafts, Dry, Dtype, IntType, Masks,
    Outputs, PADDING, Pool, Rows, SamplingParams, Slot, VerifyMode, Work,
};

use crate::cases::{KINDS, VOCAB, config, device, on_device, params, pool, rows};

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
    let (mut host, mut there) = (pool(1), Pool::new(config(on_device(device, false))).unwrap());
    let slots = requests().into_iter().map(|params| {
        let slot = host.admit(params.clone(), &[1, 2, 1]).unwrap();
        assert_eq!(there.admit(params, &[1, 2, 1]).unwrap(), slot);
        slot
    });
    let slots = slots.collect();
    (host, there, slots)
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
    let mut keeping = Pool::new(config(on_device(&device, true))).unwrap();
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
    // The state that was read back goes on.
    let logits = Rows::logits(&data[0], slots.len(), VOCAB).unwrap();
    let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
    host.step(logits, &Batch::of(&slots), &mut wanted).unwrap();
    keeping.step(logits, &Batch::of(&slots), &mut seen).unwrap();
    assert_eq!(seen.words(), wanted.words());
    // Mirostat's limits between the tokens that were read back at once are lost.
    let mirostat =
        *slots.iter().find(|slot| host.sequence(**slot).unwrap().params().mirostat.is_some()).unwrap();
    keeping.shorten(&[mirostat], &[1]).unwrap();
    let error = keeping.shorten(&[mirostat], &[1]).unwrap_err().to_string();
    assert_eq!(error, format!("counts is 1 of slot {mirostat}, but must be in 0..=0, its output tokens"));
}

#[test]
fn a_graph_is_held_to_the_shape_and_the_mode_it_was_captured_for() {
    let Some(device) = device() else { return };
    let (_, mut pool, slots) = both(&device);
    let buffer = upload(&device, &rows(0..3));
    let says = |done: gumball_engine::Result<()>, text: &str| {
        let error = done.unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    };
    // The second one has edits.
    let pair = [slots[0], slots[4]];
    let two = Batch::of(&pair);
    pool.assign(&two).unwrap();
    let graph = pool.capture(&[Work::step(lines(&buffer, 2))]).unwrap();
    pool.assign(&Batch::of(&slots[..1])).unwrap();
    says(pool.replay(&graph), "slots has length 1, but must have 2 rows");
    pool.assign(&Batch { row_indices: &[0, 1], ..two }).unwrap();
    says(pool.replay(&graph), "assignment cannot be combined with step");
    let graph = pool.capture(&[Work::step(lines(&buffer, 2))]).unwrap();
    pool.assign(&Batch { row_indices: &[0, 2], ..two }).unwrap();
    says(pool.replay(&graph), "row_indices is 2, but must be a row of the logits, in 0..2");

    let ids = DeviceBuffer::of(device.runtime(), &[7i32]).unwrap();
    let drafts = Drafts::chain(DeviceSlice::of(&ids, IntType::I32));
    let verify = [Work::verify(lines(&buffer, 3), drafts)];
    let drafted = Batch { counts: &[1, 0], ..two };
    pool.assign(&drafted).unwrap();
    let graph = pool.capture(&verify).unwrap();
    pool.assign(&two).unwrap();
    says(pool.replay(&graph), "slots has length 2, but must have 3 rows");
    pool.assign(&Batch::of(&slots[..3])).unwrap();
    says(pool.replay(&graph), "assignment cannot be combined with step");
    for mode in [VerifyMode::Greedy, VerifyMode::Rejection] {
        pool.assign(&Batch { mode, ..drafted }).unwrap();
        says(
            pool.replay(&graph),
            &format!("mode is {mode:?}, but must be Coupled, for which the step was fixed"),
        );
        let step = [Work::step(lines(&buffer, 3))];
        says(pool.enqueue(&step), "assignment cannot be combined with step: a step of drafts needs");
        let variant = StepVariant::NoFilter;
        says(
            pool.on_device().unwrap().record(&verify, variant).map(drop),
            "variant is no_filter, but must be ",
        );
    }
    says(pool.assign(&Batch::of(&[PADDING; 201])), "slots has length 201, but must have at most 200");
    for slot in &slots {
        assert_eq!(pool.sequence(*slot).unwrap().position(), 3, "nothing was launched");
    }
    let logits = Rows::logits(&[0.0; 3 * VOCAB], 3, VOCAB).unwrap();
    pool.step(logits, &Batch::of(&slots[..3]), &mut Outputs::new()).unwrap();
    says(pool.replay(&graph), "work cannot be combined with assignment");
}

#[test]
fn masks_and_a_drafters_rows_may_lie_on_the_device() {
    let Some(device) = device() else { return };
    let (mut host, mut there, slots) = both(&device);
    let (slots, data) = (&slots[..2], rows(0..3));
    let words: Vec<u32> = (0..60).map(|word| 0x5555_0F0F_u32.rotate_left(word)).collect();
    let masks = Masks::new(&words, 2, 25, 30).unwrap();
    let logits = Rows::logits(&data[..2 * VOCAB], 2, VOCAB).unwrap();
    let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
    host.step(logits, &Batch { masks, ..Batch::of(slots) }, &mut wanted).unwrap();
    let (buffer, words) = (upload(&device, &data), DeviceBuffer::of(device.runtime(), &words).unwrap());
    let masks = DeviceMasks::of(&words, 2, 25, 30).unwrap();
    there.assign(&Batch::of(slots)).unwrap();
    there.enqueue(&[Work::Step(lines(&buffer, 2).into(), masks.into())]).unwrap();
    there.fetch(&mut seen).unwrap();
    assert_eq!(seen.words(), wanted.words());

    // Drafts of the host beside rows there.
    let logits = Rows::logits(&data, 3, VOCAB).unwrap();
    let q: Vec<f32> = data.iter().map(|z| z.exp()).collect();
    let (given, buffered) = (gumball_engine::Matrix::new(&q, 3, VOCAB).unwrap(), upload(&device, &q));
    let drafts = Drafts { probs: Some(given), ..Drafts::chain(&[7]) };
    let batch = Batch { counts: &[1, 0], mode: VerifyMode::Rejection, ..Batch::of(slots) };
    host.verify(logits, &batch, &drafts, &mut wanted).unwrap();
    there.assign(&batch).unwrap();
    let beside = Drafts { probs: Some(lines(&buffered, 3).into()), ..drafts };
    there.enqueue(&[Work::verify(lines(&buffer, 3), beside)]).unwrap();
    there.fetch(&mut seen).unwrap();
    assert_eq!(seen.words(), wanted.words());
}

#[test]
fn a_device_is_opened_by_its_name() {
    for name in ["cpu", "cuda:", "cuda:x", "cuda1", ""] {
        let error = Device::open(name).unwrap_err().to_string();
        assert!(
            error.contains("is not known") && error.ends_with("known are: cuda, cuda:N, emulated"),
            "{error}"
        );
    }
    if let Err(error) = Device::open("cuda:999") {
        assert!(error.to_string().starts_with("no CUDA: "), "{error}");
    }
}
