//! A mask fails closed: what it has no word for is forbidden, and one that is no bitmask is refused.

use gumball_engine::{
    BatchOptions, Logits, Masks, NONE, Outputs, Sampler, SamplingParams, Scored, Slot, Status, StepOptions,
};

use crate::cases::{VOCAB, pool, row, rows};

/// Masks of no words.
fn nothing(rows: usize) -> BatchOptions<'static> {
    BatchOptions { masks: Masks::new(&[], rows, 0, 0).unwrap(), ..Default::default() }
}

/// Checks that no row had a token.
fn is_empty(out: &Outputs, rows: usize) {
    assert_eq!(out.tokens(), vec![NONE; rows]);
    assert!((0..rows).all(|row| out.status(row).contains(Status::EMPTY)));
}

#[test]
fn a_mask_of_no_words_forbids_every_token() {
    let mut sampler = Sampler::new(SamplingParams::default(), VOCAB).unwrap();
    let none = StepOptions { mask: Some(&[]), ..Default::default() };
    assert_eq!(sampler.sample_with(&row(1), none).unwrap().id, None);

    let mut pool = pool(1);
    let slots: Vec<Slot> = (0..3).map(|_| pool.admit(SamplingParams::default(), &[]).unwrap()).collect();
    let (data, mut out) = (rows(0..3), Outputs::new());
    let logits = Logits::new(&data, 3, VOCAB).unwrap();
    pool.step(logits, &slots, &nothing(3), &mut out).unwrap();
    is_empty(&out, 3);
    let params = SamplingParams::default();
    let scored = Scored { params: &params, ids: &[1, 2, 3, 4], prompt_len: 1, start: 1 };
    pool.score(logits, scored, &nothing(3), &mut out).unwrap();
    assert_eq!(out.logprobs(), [f32::NEG_INFINITY; 3].map(|_| out.logprobs()[0]));
    assert!((0..3).all(|row| out.status(row).contains(Status::EMPTY)));
}

#[test]
fn a_mask_with_more_words_than_the_vocabulary_is_refused() {
    let mut sampler = Sampler::new(SamplingParams::default(), VOCAB).unwrap();
    let wide = StepOptions { mask: Some(&[u32::MAX; VOCAB]), ..Default::default() };
    let error = sampler.sample_with(&row(1), wide).unwrap_err();
    assert_eq!(error.to_string(), "mask's words is 900, but must be at most 29, a bit for each of 900 ids");
}

#[cfg(feature = "emulator")]
#[test]
fn a_mask_of_no_words_forbids_every_token_on_a_device() {
    use gumball_engine::cuda::Buffer;
    use gumball_engine::{
        Device, DeviceInput, DeviceLogits, DeviceMasks, DeviceOptions, DevicePool, DevicePoolConfig,
    };

    let Ok(device) = Device::emulated().inspect_err(|error| println!("skipped: {error}")) else { return };
    let config = DevicePoolConfig { slots: 3, rows: 3, ..DevicePoolConfig::new(VOCAB) };
    let mut pool = DevicePool::new(device.clone(), config).unwrap();
    let slots: Vec<Slot> = (0..3).map(|_| pool.admit(SamplingParams::default(), &[]).unwrap()).collect();
    let (data, mut out) = (rows(0..3), Outputs::new());
    let logits = Logits::new(&data, 3, VOCAB).unwrap();
    pool.step(logits, &slots, &nothing(3), &mut out).unwrap();
    is_empty(&out, 3);
    let params = SamplingParams::default();
    let scored = Scored { params: &params, ids: &[1, 2, 3, 4], prompt_len: 1, start: 1 };
    pool.score(logits, scored, &nothing(3), &mut out).unwrap();
    assert!((0..3).all(|row| out.status(row).contains(Status::EMPTY)));

    // Masks that lie on the device, and have no words to lie anywhere.
    let (memory, words) = (
        Buffer::of(device.machine(), &data).unwrap(),
        Buffer::of(device.machine(), &[u32::MAX; 90]).unwrap(),
    );
    let input = |width| DeviceInput {
        logits: DeviceLogits::of(&memory, gumball_engine::cuda::Dtype::F32, 0, 3, VOCAB, VOCAB).unwrap(),
        masks: Some(DeviceMasks::of(&words, 3, width, width).unwrap()),
    };
    pool.assign(&slots, &DeviceOptions::default()).unwrap();
    pool.enqueue_assigned(input(0)).unwrap();
    pool.fetch(&mut out).unwrap();
    is_empty(&out, 3);
    let error = pool.enqueue_assigned(input(30)).unwrap_err();
    assert_eq!(error.to_string(), "masks.width is 30, but must be at most 29, a bit for each of 900 ids");
}
