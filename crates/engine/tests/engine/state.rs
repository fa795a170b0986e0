//! History, position and mirostat's limit after each step are what the definition is then asked with.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cases::{KINDS, VOCAB, back_to, params, pool, row, rows, step};
use gumball_engine::{
    Batch, HostMasks, Masks, Outputs, RowHook, Rows, Sampler, SamplingParams, State, Status, StepOptions,
};

#[test]
fn shortening_takes_a_slot_back_to_where_it_was() {
    let mut pool = pool(1);
    let slots: Vec<_> = (0..KINDS).map(|kind| pool.admit(params(kind, 4), &[8, 9]).unwrap()).collect();
    let first: Vec<_> = (0..4).map(|i| step(&mut pool, &rows(vec![i; KINDS]), &slots)).collect();
    back_to(&mut pool, &slots, 1);
    for (i, before) in first.iter().enumerate().skip(1) {
        let again = step(&mut pool, &rows(vec![i as u64; KINDS]), &slots);
        assert_eq!(again.words(), before.words());
    }
}

#[test]
fn a_sampler_that_starts_over_repeats_itself() {
    let mut sampler = Sampler::new(params(4, 4), VOCAB).unwrap().with_prompt(&[8]);
    let run = |sampler: &mut Sampler| [0, 1, 2].map(|i| sampler.sample(&row(i)).unwrap().id);
    let first = run(&mut sampler);
    sampler.reset(&[8]);
    assert_eq!(run(&mut sampler), first);
    sampler.shorten(3).unwrap();
    assert_eq!(run(&mut sampler), first);
}

#[test]
fn forced_tokens_are_emitted_and_appended_and_leave_mirostats_limit() {
    let mut pool = pool(1);
    let slots = [pool.admit(params(4, 4), &[]).unwrap(), pool.admit(params(7, 4), &[]).unwrap()];
    let mut data = rows([0, 1]);
    data[VOCAB..].fill(f32::NEG_INFINITY);
    let logits = Rows::logits(&data, 2, VOCAB).unwrap();
    // 10 is banned in the second request, and its row is empty.
    let options = Batch { forced: &[Some(6), Some(10)], ..Default::default() };
    let mut out = Outputs::new();
    pool.step(logits, &Batch { slots: &slots, ..options }, &mut out).unwrap();
    assert_eq!(out.tokens(), [6, 10]);
    // The second request asks for logprobs, so that its row is read.
    let both = Status(Status::FORCED.0 | Status::EMPTY.0);
    assert_eq!((out.status(0), out.status(1)), (Status::FORCED, both));
    let [first, second] = slots.map(|slot| pool.sequence(slot).unwrap().clone());
    assert_eq!((first.history().output(), first.mu()), (&[6][..], 6.0));
    assert_eq!(second.history().output(), [10]);
}

#[test]
fn hooks_and_masks_reach_their_row_alone() {
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let mut pool = pool(2);
    let slots = [0; 3].map(|_| pool.admit(greedy.clone(), &[]).unwrap());
    let data = rows([0, 0, 0]);
    let logits = Rows::logits(&data, 3, VOCAB).unwrap();
    let calls = AtomicUsize::new(0);
    let hook = |z: &mut [f32]| {
        calls.fetch_add(1, Ordering::Relaxed);
        z[17] = 1e6;
    };
    let hooks: [Option<RowHook<'_>>; 3] = [None, Some(&hook), None];
    let words = [0, 0, 1 << 5];
    let masks =
        Masks::Host(HostMasks::new(&words, 3, 1, 1).unwrap().with_present(&[false, false, true]).unwrap());
    let options = Batch { masks, hooks: &hooks, ..Default::default() };
    let mut out = Outputs::new();
    pool.step(logits, &Batch { slots: &slots, ..options }, &mut out).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(out.tokens()[1..], [17, 5]);

    let mut sampler = Sampler::new(greedy, VOCAB).unwrap();
    assert_eq!(sampler.sample(&row(0)).unwrap().id, Some(out.tokens()[0] as u32));
    let mut hook = |z: &mut [f32]| z[17] = 1e6;
    let options = StepOptions { hook: Some(&mut hook), ..Default::default() };
    assert_eq!(sampler.sample_with(&row(0), options).unwrap().id, Some(17));
    let options = StepOptions { mask: Some(&[1 << 5]), ..Default::default() };
    assert_eq!(sampler.sample_with(&row(0), options).unwrap().id, Some(5));
}

#[test]
fn slots_are_reused_and_start_afresh() {
    let mut pool = pool(1);
    let slots: Vec<_> = (0..16).map(|_| pool.admit(params(0, 1), &[1, 2, 3]).unwrap()).collect();
    assert_eq!((pool.len(), pool.capacity()), (16, 16));
    pool.release(slots[3]).unwrap();
    pool.push(slots[4], 12).unwrap();
    assert_eq!(pool.sequence(slots[4]).unwrap().history().output(), [12]);
    let again = pool.admit(params(4, 1), &[]).unwrap();
    assert_eq!((again, pool.sequence(again).unwrap().position()), (slots[3], 0));
}

#[test]
fn a_sequence_goes_on_in_another_pool_as_if_it_had_stayed() {
    let (mut here, mut there) = (pool(1), pool(2));
    let slots: Vec<_> = (0..KINDS).map(|kind| here.admit(params(kind, 4), &[8, 9]).unwrap()).collect();
    let forked = here.fork(slots[4], 7).unwrap();
    let slots = [&slots[..], &[forked]].concat();
    let kinds = |i: usize| if i == KINDS { 4 } else { i };
    for i in 0..3 {
        step(&mut here, &rows(vec![i; slots.len()]), &slots);
    }
    let moved: Vec<_> = slots
        .iter()
        .enumerate()
        .map(|(i, slot)| there.resume(params(kinds(i), 99), here.sequence(*slot).unwrap().state()).unwrap())
        .collect();
    let mut sampler = Sampler::new(params(4, 99), VOCAB).unwrap();
    sampler = sampler.with_state(here.sequence(slots[4]).unwrap().state()).unwrap();
    for i in 3..6 {
        let stayed = step(&mut here, &rows(vec![i; slots.len()]), &slots);
        let gone = step(&mut there, &rows(vec![i; moved.len()]), &moved);
        assert_eq!(gone.words(), stayed.words());
        assert_eq!(sampler.sample(&row(i)).unwrap().id, Some(stayed.tokens()[4] as u32));
    }
    for (slot, moved) in slots.iter().zip(&moved) {
        assert_eq!(here.sequence(*slot).unwrap().state(), there.sequence(*moved).unwrap().state());
        back_to(&mut here, &[*slot], 4);
        back_to(&mut there, &[*moved], 4);
        assert_eq!(here.sequence(*slot).unwrap().state(), there.sequence(*moved).unwrap().state());
    }
    // Mirostat's limit before the state is not known.
    let error = there.sequence(moved[4]).unwrap().tokens_behind(2).unwrap_err();
    assert_eq!(error.to_string(), "output_len is 2, but must be in 3..=4");
    let error = there.shorten(&[moved[4]], &[2]).unwrap_err().to_string();
    assert_eq!(error, format!("counts is 2 of slot {}, but must be in 0..=1, its output tokens", moved[4]));
    back_to(&mut there, &moved[..1], 0);
}

#[test]
fn a_state_may_hold_the_end_of_a_history_and_bears_no_impossible_limit() {
    let mut pool = pool(1);
    let state = State { output: &[5, 6], position: u32::MAX, ..State::new(&[], &[], 0) };
    let slot = pool.resume(params(0, 1), state).unwrap();
    assert_eq!(pool.sequence(slot).unwrap().state(), state);
    step(&mut pool, &row(0), &[slot]);
    assert_eq!(pool.sequence(slot).unwrap().position(), 0);
    for mu in [f32::NAN, f32::INFINITY] {
        let error = pool.resume(params(4, 1), State { mu, ..state }).unwrap_err();
        assert!(error.to_string().starts_with("mu is "), "{error}");
    }
    assert_eq!(pool.len(), 1);
}
