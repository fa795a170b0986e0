//! Work in order on the host: assigned, enqueued and fetched, it gives what direct calls give.

use allocation_counter::measure;
use gumball_engine::{Batch, Drafts, Error, Masks, Outputs, Pool, PoolConfig, Rows, Slot, VerifyMode, Work};

use crate::cases::{KINDS, VOCAB, back_to, params, pool, row, rows};

/// Returns a pool with a request of each kind.
fn admitted() -> (Pool, Vec<Slot>) {
    let mut pool = pool(1);
    let slots = (0..KINDS).map(|kind| pool.admit(params(kind, 3), &[1, 2, 1]).unwrap()).collect();
    (pool, slots)
}

#[test]
fn work_that_does_not_suit_the_assignment_is_refused_before_anything_changes() {
    let (mut queued, slots) = admitted();
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
    queued.step(two, &Batch::of(slots), &mut out).unwrap();
    assert!(matches!(queued.fetch(&mut out), Err(Error::Conflict { parameter: "fetch", .. })));
    assert!(matches!(queued.enqueue(&[Work::step(two)]), Err(Error::Conflict { parameter: "work", .. })));
}

#[test]
fn kept_sets_are_kept_for_the_fetch() {
    let mut pool = Pool::new(PoolConfig { kept: true, ..PoolConfig::new(VOCAB) }).unwrap();
    let mut out = Outputs::new();
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
    let (mut pool, slots) = admitted();
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
