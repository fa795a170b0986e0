//! Tokens are taken away on an emulated device without the host, and what follows is what follows them on the host.

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, DeviceSlice, Drafts, Dtype, Error, IntType, Outputs, PADDING,
    Pool, PoolConfig, Rows, SamplingParams, Slot, VerifyMode, Work,
};

use crate::cases::{KINDS, VOCAB, params, rows};
use crate::device_verify::{Both, config, device, place};
use crate::verify::{MIROSTAT, Random, model};

/// Returns what was taken away of each of `requests`, by the device's word.
fn taken(pool: &mut Pool, requests: usize) -> Vec<u32> {
    let buffer = pool.on_device().unwrap().taken_address();
    assert_ne!(buffer, 0);
    let mut out = vec![0; requests];
    pool.on_device().unwrap().read_taken(&mut out).unwrap();
    out
}

fn column(buffer: &DeviceBuffer) -> DeviceSlice<'_> {
    DeviceSlice::of(buffer, IntType::I64)
}

#[test]
fn what_was_accepted_is_shortened_where_it_is_and_decoding_goes_on() {
    let Some(device) = device() else { return };
    for keeps in [true, false] {
        let mut both = Both::new(&device);
        both.device = Pool::new(PoolConfig { place: place(&device, keeps), ..config(&device) }).unwrap();
        let slots: Vec<Slot> = (0..KINDS).map(|kind| both.admit(params(kind, 6), &[3, 7, 3])).collect();
        let mut random = Random(11);
        for turn in 0..8 {
            // Chains of the tokens that will come, of which the last is another one.
            let mut data = Vec::new();
            let (mut counts, mut ids) = (Vec::new(), Vec::new());
            for (kind, slot) in slots.iter().enumerate() {
                let mut history = both.host.sequence(*slot).unwrap().history().ids().to_vec();
                let copy = both.host.fork(*slot, 0).unwrap();
                let count = if kind == MIROSTAT { 0 } else { random.below(4) };
                data.extend(model(&history));
                for draft in 0..count {
                    let next = crate::cases::step(&mut both.host, &model(&history), &[copy]).tokens()[0];
                    let next = if draft == 3 { 1 } else { next as u32 };
                    history.push(next);
                    ids.push(next as i32);
                    data.extend(model(&history));
                }
                both.host.release(copy).unwrap();
                counts.push(count as u32);
            }
            let (counts, drafts) = (&counts, Drafts::chain(&ids));
            let logits = Rows::logits(&data, data.len() / VOCAB, VOCAB).unwrap();
            let (mode, none) = (VerifyMode::Coupled, Batch::default());
            both.host
                .verify(logits, &Batch { slots: &slots, counts, mode, ..none }, &drafts, &mut both.wanted)
                .unwrap();
            // On the device the verification and the shortening follow one another, and the host looks behind both.
            let uploaded = DeviceBuffer::of(device.runtime(), &data).unwrap();
            let rows_there =
                DeviceMatrix::of(&uploaded, Dtype::F32, 0, data.len() / VOCAB, VOCAB, VOCAB).unwrap();
            both.device.assign(&Batch { slots: &slots, counts, mode, ..none }).unwrap();
            both.device.enqueue(&[Work::verify(rows_there, drafts)]).unwrap();
            let gone: Vec<usize> = (0..slots.len())
                .map(|request| random.below(both.wanted.request(request).tokens.len() + 1))
                .collect();
            let signed: Vec<i64> = gone.iter().map(|count| *count as i64).collect();
            let there = DeviceBuffer::of(device.runtime(), &signed).unwrap();
            if turn % 2 == 0 {
                both.device.enqueue(&[Work::Shorten(column(&there).into())]).unwrap();
            } else {
                let counts: Vec<i32> = gone.iter().map(|count| *count as i32).collect();
                both.device.enqueue(&[Work::Shorten((&counts).into())]).unwrap();
            }
            both.host.shorten(&slots, &gone).unwrap();
            assert_eq!(
                taken(&mut both.device, slots.len()),
                gone.iter().map(|count| *count as u32).collect::<Vec<_>>()
            );
            match turn % 3 {
                // The outputs are still those of the verification.
                0 => {
                    both.device.fetch(&mut both.seen).unwrap();
                    both.agree(&slots);
                }
                1 => {
                    both.device.fetch(&mut both.seen).unwrap();
                    both.step(&slots);
                }
                // A step whose outputs come before anybody asks for the sequences.
                _ if keeps => {
                    let data: Vec<f32> = slots
                        .iter()
                        .flat_map(|slot| model(both.host.sequence(*slot).unwrap().history().ids()))
                        .collect();
                    let uploaded = DeviceBuffer::of(device.runtime(), &data).unwrap();
                    let there =
                        DeviceMatrix::of(&uploaded, Dtype::F32, 0, slots.len(), VOCAB, VOCAB).unwrap();
                    both.device.assign(&Batch::of(&slots)).unwrap();
                    both.device.enqueue(&[Work::step(there)]).unwrap();
                    let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
                    let logits = Rows::logits(&data, slots.len(), VOCAB).unwrap();
                    both.host.step(logits, &Batch { slots: &slots, ..none }, &mut wanted).unwrap();
                    both.device.fetch(&mut seen).unwrap();
                    assert_eq!(seen.words(), wanted.words());
                }
                _ => {}
            }
            for slot in &slots {
                let state = both.host.sequence(*slot).unwrap().state();
                assert_eq!(both.device.sequence(*slot).unwrap().state(), state, "turn {turn}");
            }
        }
        both.step(&slots);
    }
}

/// Takes a step of rows that lie on the device.
fn step(pool: &mut Pool, device: &Device, slots: &[Slot]) {
    let data = rows(0..slots.len() as u64);
    let uploaded = DeviceBuffer::of(device.runtime(), &data).unwrap();
    let there = DeviceMatrix::of(&uploaded, Dtype::F32, 0, slots.len(), VOCAB, VOCAB).unwrap();
    pool.assign(&Batch::of(slots)).unwrap();
    pool.enqueue(&[Work::step(there)]).unwrap();
}

#[test]
fn counts_that_cannot_be_take_nothing_away_and_lost_tokens_are_named() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(&device)).unwrap();
    let plain = || SamplingParams { seed: Some(2), ..Default::default() };
    let slots = [
        pool.admit(plain(), &[1, 2]).unwrap(),
        PADDING,
        pool.admit(params(MIROSTAT, 1), &[1]).unwrap(),
        pool.admit(params(7, 1), &[1]).unwrap(),
    ];
    for _ in 0..3 {
        step(&mut pool, &device, &slots);
        pool.fetch(&mut Outputs::new()).unwrap();
    }
    let outputs = |pool: &mut Pool| {
        [0, 2, 3].map(|place: usize| pool.sequence(slots[place]).unwrap().history().output().to_vec())
    };
    let before = outputs(&mut pool);
    for (counts, gone) in
        [([4, 9, 2, -1], [0; 4]), ([1i64 << 33, -5, -1, 4], [0; 4]), ([3, 1, 1, 2], [3, 0, 1, 2])]
    {
        let there = DeviceBuffer::of(device.runtime(), &counts).unwrap();
        pool.enqueue(&[Work::Shorten(column(&there).into())]).unwrap();
        assert_eq!(taken(&mut pool, 4), gone);
        let left = outputs(&mut pool);
        for (place, gone) in [gone[0], gone[2], gone[3]].into_iter().enumerate() {
            assert_eq!(left[place], before[place][..3 - gone as usize]);
        }
    }
    // The limit before the token before is not known.
    let there = DeviceBuffer::of(device.runtime(), &[0i64, 0, 1, 0]).unwrap();
    pool.enqueue(&[Work::Shorten(column(&there).into())]).unwrap();
    assert_eq!(taken(&mut pool, 4), [0; 4]);
    // A device that keeps no history cannot say what came behind.
    step(&mut pool, &device, &slots);
    step(&mut pool, &device, &slots);
    pool.enqueue(&[Work::Shorten(column(&there).into())]).unwrap();
    let error = pool.sequence(slots[0]).unwrap_err();
    assert!(matches!(error, Error::Unavailable { resource: "history", .. }), "{error}");
    assert_eq!(pool.sequence(slots[3]).unwrap().history().output().len(), 3);

    let short = DeviceBuffer::of(device.runtime(), &[0i64; 3]).unwrap();
    let error = pool.enqueue(&[Work::Shorten(column(&short).into())]).unwrap_err().to_string();
    assert_eq!(error, "counts has length 3, but must have one per slot, 4");
    let error = pool.enqueue(&[Work::Shorten(DeviceSlice::of(&there, IntType::U64).into())]).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { parameter: "counts", .. }), "{error}");
    assert!(pool.enqueue(&[Work::Shorten((&[1; 3]).into())]).is_err());
}
