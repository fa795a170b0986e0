//! Work in order on the host: assigned, enqueued and fetched, it gives what direct calls give.

use allocation_counter::measure;
use gumball_engine::{
    Batch, Drafts, Error, Masks, Outputs, PADDING, Pool, PoolConfig, Rows, Slot, VerifyMode, Work,
};

use crate::cases::{KINDS, VOCAB, back_to, params, pool, row, rows};

/// Returns two equal pools with a request of each kind.
fn two() -> (Pool, Pool, Vec<Slot>) {
    let [mut direct, mut queued] = [pool(1), pool(1)];
    let admit = |pool: &mut Pool, kind| pool.admit(params(kind, 3), &[1, 2, 1]).unwrap();
    let slots: Vec<Slot> = (0..KINDS).map(|kind| admit(&mut direct, kind)).collect();
    assert_eq!((0..KINDS).map(|kind| admit(&mut queued, kind)).collect::<Vec<_>>(), slots);
    (direct, queued, slots)
}

/// Checks that both pools and both outputs are alike.
fn agree(direct: &mut Pool, queued: &mut Pool, slots: &[Slot], wanted: &Outputs) {
    let mut seen = Outputs::new();
    queued.fetch(&mut seen).unwrap();
    assert_eq!((seen.words(), seen.accepted()), (wanted.words(), wanted.accepted()));
    for request in 0..slots.len() {
        assert_eq!(seen.request(request).rows, wanted.request(request).rows);
    }
    for slot in slots.iter().filter(|slot| **slot != PADDING) {
        assert_eq!(queued.sequence(*slot).unwrap().state(), direct.sequence(*slot).unwrap().state());
    }
}

#[test]
fn steps_and_verifications_in_order_equal_direct_calls() {
    let (mut direct, mut queued, mut slots) = two();
    let count = slots.len();
    let words = [0xFFFF_FFF7; 28].repeat(count);
    let masks = Masks::new(&words, count, 28, 28).unwrap();
    let (forced, row_indices) = (vec![Some(8); count], vec![1; count]);
    let plain = Batch::default();
    let options =
        [plain, Batch { masks, ..plain }, Batch { forced: &forced, row_indices: &row_indices, ..plain }];
    let (data, mut out) = (rows(0..count as u64), Outputs::new());
    let logits = Rows::logits(&data, count, VOCAB).unwrap();
    for options in options {
        let batch = Batch { slots: &slots, ..options };
        queued.assign(&batch).unwrap();
        for _ in 0..2 {
            direct.step(logits, &batch, &mut out).unwrap();
            queued.enqueue(&[Work::step(logits)]).unwrap();
            agree(&mut direct, &mut queued, &slots, &out);
        }
    }
    // A request that ends leaves padding.
    queued.assign(&Batch::of(&slots)).unwrap();
    direct.release(slots[1]).unwrap();
    queued.release(slots[1]).unwrap();
    slots[1] = PADDING;
    direct.step(logits, &Batch::of(&slots), &mut out).unwrap();
    queued.enqueue(&[Work::step(logits)]).unwrap();
    agree(&mut direct, &mut queued, &slots, &out);

    // Several pieces at once; counts that cannot be take nothing away.
    let slots = [slots[0], PADDING, slots[2]];
    let (counts, data) = ([2, 0, 1], rows(0..6));
    let (logits, drafts) = (Rows::logits(&data, 6, VOCAB).unwrap(), Drafts::chain(&[5, 9, 5]));
    let batch = Batch { slots: &slots, counts: &counts, mode: VerifyMode::Coupled, ..plain };
    queued.assign(&batch).unwrap();
    let verify = Work::verify(logits, drafts);
    queued.enqueue(&[verify, Work::Shorten((&[1, 3, 99]).into()), verify]).unwrap();
    direct.verify(logits, &batch, &drafts, &mut out).unwrap();
    direct.shorten(&slots[..1], &[1]).unwrap();
    direct.verify(logits, &batch, &drafts, &mut out).unwrap();
    agree(&mut direct, &mut queued, &slots, &out);
}

#[test]
fn work_that_does_not_suit_the_assignment_is_refused_before_anything_changes() {
    let (_, mut queued, slots) = two();
    let (data, slots) = (rows(0..2), &slots[..2]);
    let [two, one] = [2, 1].map(|rows| Rows::logits(&data, rows, VOCAB).unwrap());
    let says = |pool: &mut Pool, work: &[Work<'_>], text: &str| {
        let error = pool.enqueue(work).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
        assert!(slots.iter().all(|slot| pool.sequence(*slot).unwrap().history().output().is_empty()));
    };
    says(&mut queued, &[Work::step(two)], "work cannot be combined with assignment");
    queued.assign(&Batch::of(slots)).unwrap();
    says(&mut queued, &[Work::step(one)], "slots has length 2");
    says(&mut queued, &[Work::step(two), Work::step(one)], "slots has length 2");
    says(
        &mut queued,
        &[Work::step(two), Work::verify(two, Drafts::default())],
        "assignment cannot be combined with step",
    );
    says(&mut queued, &[Work::step(two), Work::Shorten((&[1]).into())], "counts has length 1");
    let masks = Masks::new(&[1; 2], 2, 1, 1).unwrap();
    says(&mut queued, &[Work::Step(two, masks)], "masks cannot be combined with work");
    queued.assign(&Batch { counts: &[0, 0], ..Batch::of(slots) }).unwrap();
    says(&mut queued, &[Work::step(two)], "assignment cannot be combined with step");
    for batch in [
        Batch { counts: &[65, 0], ..Batch::of(slots) },
        Batch { forced: &[Some(VOCAB as u32); 2], ..Batch::of(slots) },
        Batch { mode: VerifyMode::Greedy, ..Batch::of(slots) },
        Batch { hooks: &[Some(&|_| ()), None], ..Batch::of(slots) },
        Batch::of(&[7, 7]),
    ] {
        queued.assign(&batch).unwrap_err();
    }

    // The outputs of a direct call are the caller's.
    queued.enqueue(&[Work::verify(two, Drafts::default())]).unwrap();
    let mut out = Outputs::new();
    queued.fetch(&mut out).unwrap();
    let error = queued.fetch(&mut Outputs::with_kept()).unwrap_err().to_string();
    assert!(error.contains("PoolConfig::kept"), "{error}");
    queued.step(two, &Batch::of(slots), &mut out).unwrap();
    assert!(matches!(queued.fetch(&mut out), Err(Error::Conflict { parameter: "fetch", .. })));
    assert!(matches!(queued.enqueue(&[Work::step(two)]), Err(Error::Conflict { parameter: "work", .. })));
}

#[test]
fn kept_sets_are_kept_for_the_fetch() {
    let mut pool = Pool::new(PoolConfig { kept: true, ..PoolConfig::new(VOCAB) }).unwrap();
    let mut out = Outputs::with_kept();
    pool.fetch(&mut out).unwrap();
    assert!(out.tokens().is_empty());
    let params = gumball_engine::SamplingParams { top_k: 3, ..Default::default() };
    let slot = pool.admit(params, &[]).unwrap();
    pool.assign(&Batch::of(&[slot])).unwrap();
    pool.enqueue(&[Work::step(Rows::logits(&row(0), 1, VOCAB).unwrap())]).unwrap();
    pool.fetch(&mut out).unwrap();
    assert_eq!(out.kept(0).len(), 3);
}

#[test]
fn work_in_order_allocates_nothing_after_warm_up() {
    let (_, mut pool, slots) = two();
    let data: Vec<_> = (0..12).map(|turn| rows(vec![turn % 3; KINDS])).collect();
    let words = [0xFFFF_FFF7; 28].repeat(KINDS);
    let batch = Batch { masks: Masks::new(&words, KINDS, 28, 28).unwrap(), ..Batch::of(&slots) };
    let mut out = Outputs::new();
    let mut run = |pool: &mut Pool| {
        for data in &data {
            pool.assign(&batch).unwrap();
            pool.enqueue(&[Work::step(Rows::logits(data, KINDS, VOCAB).unwrap())]).unwrap();
            pool.fetch(&mut out).unwrap();
        }
    };
    run(&mut pool);
    back_to(&mut pool, &slots, 0);
    assert_eq!(measure(|| run(&mut pool)).count_total, 0);
}
