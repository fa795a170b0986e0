//! The variants of steps on a device: which one the assigned rows need, which ones are refused, and the
//! counts of the steps that each has served.

use gumball_bench_protocol::skipped::or_skip;
use gumball_engine::unstable::StepVariant;
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Dtype, Error, NONE, Outputs, PADDING, Place, Pool, PoolConfig,
    Rows, SamplingParams, Slot, Work,
};

use crate::cases::{VOCAB, rows};

fn device() -> Option<Device> {
    or_skip(Device::emulated())
}

/// Returns requests, each with the variant that it needs.
fn requests() -> [(SamplingParams, StepVariant); 6] {
    let base = |seed| SamplingParams { seed: Some(seed), ..Default::default() };
    [
        (base(1), StepVariant::NoFilter),
        (SamplingParams { min_p: 0.05, ..base(2) }, StepVariant::MinP),
        (SamplingParams { top_k: 5, ..base(3) }, StepVariant::TopK),
        (SamplingParams { top_p: 0.9, ..base(4) }, StepVariant::TopP),
        (SamplingParams { repetition_penalty: 1.3, ..base(5) }, StepVariant::Edits),
        (SamplingParams { no_repeat_ngram: 2, ..base(6) }, StepVariant::Full),
    ]
}

fn admitted(device: &Device) -> (Pool, Pool, Vec<Slot>) {
    let mut host =
        Pool::new(PoolConfig { slots: 8, place: Place::threads(1), ..PoolConfig::new(VOCAB) }).unwrap();
    let config = PoolConfig { slots: 8, place: Place::device(device.clone(), 8), ..PoolConfig::new(VOCAB) };
    let mut on_device = Pool::new(config).unwrap();
    let slots = requests().map(|(params, _)| {
        assert_eq!(host.admit(params.clone(), &[3, 1]), on_device.admit(params.clone(), &[3, 1]));
        on_device.len() as Slot - 1
    });
    (host, on_device, slots.to_vec())
}

fn upload(device: &Device, count: usize) -> DeviceBuffer {
    DeviceBuffer::of(device.runtime(), &rows(0..count as u64)).unwrap()
}

fn lines(buffer: &DeviceBuffer, count: usize) -> Rows<'_> {
    DeviceMatrix::of(buffer, Dtype::F32, 0, count, VOCAB, VOCAB).unwrap().into()
}

fn counts(pool: &mut Pool) -> Vec<u64> {
    pool.on_device().unwrap().variants().iter().map(|(_, steps)| *steps).collect()
}

#[test]
fn a_step_needs_the_largest_variant_of_its_rows() {
    let Some(device) = device() else { return };
    let (_, mut pool, slots) = admitted(&device);
    assert_eq!(pool.on_device().unwrap().needed_variant(), StepVariant::NoFilter);
    let mut most = StepVariant::NoFilter;
    for (count, (_, needed)) in (1..).zip(requests()) {
        pool.assign(&Batch::of(&slots[..count])).unwrap();
        most = most.max(needed);
        assert_eq!(pool.on_device().unwrap().needed_variant(), most);
    }
    // A slot that is released is padding at once, and padding needs nothing.
    pool.release(slots[5]).unwrap();
    assert_eq!(pool.on_device().unwrap().needed_variant(), StepVariant::Edits);
    pool.assign(&Batch::of(&[PADDING, slots[1]])).unwrap();
    assert_eq!(pool.on_device().unwrap().needed_variant(), StepVariant::MinP);
}

#[test]
fn a_variant_that_does_not_serve_a_row_is_refused_before_anything_changes() {
    let Some(device) = device() else { return };
    let (_, mut pool, slots) = admitted(&device);
    let buffer = upload(&device, 2);
    let step = [Work::step(lines(&buffer, 2))];
    let recorded = |pool: &mut Pool, variant| pool.on_device().unwrap().record(&step, variant);
    for variant in [StepVariant::NoFilter, StepVariant::TopKTopP] {
        let message = format!(
            "variant is {variant}, but must be top_p or edits or full, for the request of row 1 in slot {}",
            slots[3]
        );
        pool.assign(&Batch::of(&[PADDING; 2])).unwrap();
        let before = recorded(&mut pool, variant).unwrap();
        pool.assign(&Batch::of(&[slots[0], slots[3]])).unwrap();
        for error in [
            pool.on_device().unwrap().before_replay(&[&before]).unwrap_err(),
            recorded(&mut pool, variant).unwrap_err(),
        ] {
            assert!(matches!(&error, Error::OutOfRange { parameter: "variant", .. }));
            assert_eq!(error.to_string(), message);
        }
    }
    assert_eq!(counts(&mut pool), [1, 0, 0, 1, 0, 0, 0], "those over padding");
    assert!(slots.iter().all(|slot| pool.sequence(*slot).unwrap().history().output().is_empty()));
}

#[test]
fn each_variant_that_serves_the_rows_draws_their_tokens() {
    let Some(device) = device() else { return };
    for (row, (_, needed)) in requests().into_iter().enumerate() {
        for variant in StepVariant::ALL.into_iter().filter(|variant| *variant >= needed) {
            let (mut host, mut pool, slots) = admitted(&device);
            let buffer = upload(&device, 2);
            // A warm-up before a capture steps over padding.
            pool.assign(&Batch::of(&[PADDING; 2])).unwrap();
            pool.on_device().unwrap().record(&[Work::step(lines(&buffer, 2))], variant).unwrap();
            let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
            pool.fetch(&mut seen).unwrap();
            assert_eq!(seen.tokens(), [NONE; 2]);
            let two = [slots[row], if row == 0 { PADDING } else { slots[0] }];
            pool.assign(&Batch::of(&two)).unwrap();
            for _ in 0..3 {
                let data = rows(0..2);
                let logits = Rows::logits(&data, 2, VOCAB).unwrap();
                host.step(logits, &Batch::of(&two), &mut wanted).unwrap();
                pool.on_device().unwrap().record(&[Work::step(lines(&buffer, 2))], variant).unwrap();
                pool.fetch(&mut seen).unwrap();
                assert_eq!(seen.words(), wanted.words(), "{variant}, request {row}");
            }
            assert_eq!(counts(&mut pool).iter().sum::<u64>(), 4);
            assert_eq!(counts(&mut pool)[variant as usize], 4);
        }
    }
}

#[test]
fn steps_count_under_the_variant_that_served_them() {
    let Some(device) = device() else { return };
    let (_, mut pool, slots) = admitted(&device);
    let buffer = upload(&device, 1);
    pool.assign(&Batch::of(&[slots[2]])).unwrap();
    pool.enqueue(&[Work::step(lines(&buffer, 1))]).unwrap();
    let graph = pool.capture(&[Work::step(lines(&buffer, 1)); 2]).unwrap();
    pool.replay(&graph).unwrap();
    let mut there = pool.on_device().unwrap();
    let recorded = there.record(&[Work::step(lines(&buffer, 1))], StepVariant::Edits).unwrap();
    there.before_replay(&[&recorded; 4]).unwrap();
    assert_eq!(pool.on_device().unwrap().variants()[2], (StepVariant::TopK, 3));
    assert_eq!(counts(&mut pool), [0, 0, 3, 0, 0, 5, 0]);
}
