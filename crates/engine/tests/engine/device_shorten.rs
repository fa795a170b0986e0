//! Tokens are taken away on an emulated device without the host.

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, DeviceSlice, Drafts, Dtype, Error, IntType, Outputs, PADDING,
    Pool, Rows, SamplingParams, Slot, Work,
};

use crate::cases::{VOCAB, config, device, on_device, params, pools, rows};
use crate::verify::MIROSTAT;

/// Returns what was taken away of each of `requests`, by the device's word.
fn taken(pool: &mut Pool, requests: usize) -> Vec<u32> {
    let buffer = pool.on_device().unwrap().outputs().taken;
    assert_ne!(buffer, 0);
    let mut out = vec![0; requests];
    pool.on_device().unwrap().read_taken(&mut out).unwrap();
    out
}

fn column(buffer: &DeviceBuffer) -> DeviceSlice<'_> {
    DeviceSlice::of(buffer, IntType::I64)
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
    let mut pool = Pool::new(config(on_device(&device, false))).unwrap();
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
    // A device that keeps no history cannot say which tokens came after.
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

#[test]
fn ids_are_counted_however_many_were_taken_away() {
    let params = SamplingParams { repetition_penalty: 1.2, temperature: 0.0, ..Default::default() };
    for mut pool in pools() {
        let slots = [pool.admit(params.clone(), &[7]).unwrap()];
        // The first row's token stays, so that its penalty decides all later rows, whose tokens are taken
        // away.
        for id in 0..200 {
            let mut row = vec![0.0; VOCAB];
            row[4 * id + 1] = 8.0;
            row[3] = 9.0;
            pool.assign(&Batch { counts: &[0], ..Batch::of(&slots) }).unwrap();
            let rows = Rows::logits(&row, 1, VOCAB).unwrap();
            let taken = [i32::from(id != 0)];
            let work = [Work::verify(rows, Drafts::default()), Work::Shorten((&taken).into())];
            pool.enqueue(&work).unwrap();
            let mut out = Outputs::new();
            pool.fetch(&mut out).unwrap();
            let wanted = if id == 0 { 3 } else { 4 * id as i32 + 1 };
            assert_eq!(out.tokens(), [wanted], "{id}");
        }
    }
}
