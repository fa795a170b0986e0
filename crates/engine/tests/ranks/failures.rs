//! What goes wrong between ranks: mistakes, ranks that differ, end or are late.

use std::time::Duration;

use gumball_engine::dist::LogitsLayout::{self, Gather, Replicated, Survey, Swap};
use gumball_engine::dist::{PlannerConfig, StepKind, VocabSplit, threads};
use gumball_engine::{
    Batch, Error, Masks, Outputs, Place, Pool, PoolConfig, Ranks, RanksError, Rows, SamplingParams, Slot,
};

use crate::batch::with_patience;

const VOCAB: usize = 600;

fn pool(rank: gumball_engine::dist::Threads, layouts: &[LogitsLayout]) -> (Pool, Slot) {
    let world = gumball_engine::dist::Transport::world(&rank);
    let planner = PlannerConfig {
        layouts: layouts.to_vec(),
        ..PlannerConfig::new(VocabSplit::even(VOCAB, world).unwrap())
    };
    let config = PoolConfig { place: Place::threads(1), ..PoolConfig::new(VOCAB) };
    let mut pool = Pool::over(config, Ranks::new(planner, Box::new(rank))).unwrap();
    let params = SamplingParams { seed: Some(5), top_p: 0.9, ..Default::default() };
    let slot = pool.admit(params, &[1, 2]).unwrap();
    (pool, slot)
}

/// Takes a step of one row.
fn step(pool: &mut Pool, slot: Slot, layout: LogitsLayout) -> Result<(), Error> {
    step_with(pool, slot, layout, &Batch::default())
}

fn step_with(pool: &mut Pool, slot: Slot, layout: LogitsLayout, options: &Batch<'_>) -> Result<(), Error> {
    let shape = pool.shape(&[slot], 0, StepKind::Decode)?;
    let plan = pool.ranks().unwrap().planner.plan_as(layout, &shape);
    let ids = pool.ranks().unwrap().planner.split().ids(pool.ranks().unwrap().group.rank());
    let columns = if layout == Replicated { 0..VOCAB } else { ids };
    let row: Vec<f32> = columns.map(|id| (id * 37 % 101) as f32 * 0.2).collect();
    let rows =
        if layout == Replicated { plan.shares.of(pool.ranks().unwrap().group.rank()).count() } else { 1 };
    let logits = Rows::logits(&row, rows, row.len())?;
    pool.step(logits, &Batch { slots: &[slot], plan: Some(plan), ..*options }, &mut Outputs::new())
}

#[test]
fn a_mistake_is_an_error_before_anything_is_sent() {
    with_patience(2, Duration::from_secs(20), |rank| {
        let (mut pool, slot) = pool(rank, &[Swap]);
        let said = |error: Error| error.to_string();
        assert_eq!(
            said(step(&mut pool, slot, Replicated).unwrap_err()),
            "layout is replicated, but must be one that was configured: gather, swap"
        );
        let params = SamplingParams::default();
        assert_eq!(
            said(pool.admit(params, &[]).unwrap_err()),
            "seed is absent, but must be given, so that all ranks have the same"
        );
        let shape = pool.shape(&[slot], 0, StepKind::Decode).unwrap();
        let plan = pool.plan(&shape).unwrap();
        let row = [0.0f32; 299];
        let mut out = Outputs::new();
        let logits = Rows::logits(&row, 1, 299).unwrap();
        let error =
            pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&[slot]) }, &mut out).unwrap_err();
        assert_eq!(
            said(error),
            "logits has length 299, but must have 300 elements in a row, this rank's ids, or 300 with padding"
        );
        let row = [0.0f32; 300];
        let logits = Rows::logits(&row, 1, 300).unwrap();
        let error =
            pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&[slot, slot]) }, &mut out).unwrap_err();
        assert_eq!(said(error), "slots has length 2, but must have 1, as many as were planned for");
        // Nothing was sent, so the group goes on.
        step(&mut pool, slot, Swap).unwrap();
        assert_eq!(pool.sequence(slot).unwrap().position(), 3);
    });
}

#[test]
fn pools_that_differ_are_told_so_at_start() {
    let errors = with_patience(3, Duration::from_secs(20), |rank| {
        let slots = if gumball_engine::dist::Transport::rank(&rank) == 2 { 7 } else { 8 };
        let config = PoolConfig { slots, place: Place::threads(1), ..PoolConfig::new(VOCAB) };
        let planner = PlannerConfig::new(VocabSplit::even(VOCAB, 3).unwrap());
        Pool::over(config, Ranks::new(planner, Box::new(rank))).unwrap_err().to_string()
    });
    let first = "rank 2 disagrees on slots: it has 7, this rank 8";
    assert_eq!(errors, [first, first, "rank 0 disagrees on slots: it has 8, this rank 7"]);
}

/// Each thing in which the ranks differ, its name in errors, and what these say that each rank has, up to digests.
const DIFFERENCES: [(&str, &str, [&str; 2]); 9] = [
    ("slots", "the slots of the step", ["slot 0 in request 0", "slot 1 in request 0"]),
    (
        "draw",
        "the seed or draw index of a request",
        ["seed 5, draw 0 in request 0", "seed 5, draw 1 in request 0"],
    ),
    ("position", "the output or position of a request", ["length 1, digest ", "length 0, digest "]),
    ("output", "the output or position of a request", ["length 0, digest ", "length 1, digest "]),
    ("prompt", "the prompt of a request", ["length 2, digest ", "length 2, digest "]),
    ("length", "the prompt of a request", ["length 2, digest ", "length 3, digest "]),
    ("parameters", "the parameters of a request", ["top_p: 0.8 in request 0", "top_p: 0.9 in request 0"]),
    ("masks", "the masks of the step", ["a mask of digest ", "a mask of digest "]),
    ("forced", "the forced tokens of the step", ["token 0 in row 0", "token 1 in row 0"]),
];

#[test]
fn a_rank_with_another_request_or_step_is_told_what_differs_and_nothing_is_drawn() {
    let layouts = [Gather, Swap, Survey, Replicated].into_iter();
    for (layout, (differs, name, told)) in layouts.flat_map(|it| DIFFERENCES.map(|differs| (it, differs))) {
        with_patience(2, Duration::from_secs(20), |rank| {
            let (mut pool, mut slot) = pool(rank, &LogitsLayout::ALL);
            let own = pool.ranks().unwrap().group.rank();
            let mut options = Batch::default();
            let (masks, forced) = ([u32::MAX - own as u32; VOCAB.div_ceil(32)], [Some(own as u32)]);
            match differs {
                "slots" => {
                    let other = pool.fork(slot, 0).unwrap();
                    slot = [slot, other][own];
                }
                "draw" => slot = pool.fork(slot, own as u32).unwrap(),
                "position" => {
                    pool.push(slot, 9).unwrap();
                    pool.shorten(&[slot], &[own]).unwrap();
                }
                "output" if own == 1 => pool.push(slot, 9).unwrap(),
                "prompt" | "length" | "parameters" => {
                    pool.release(slot).unwrap();
                    let top_p = if differs == "parameters" && own == 1 { 0.9 } else { 0.8 };
                    let params = SamplingParams { seed: Some(5), top_p, ..Default::default() };
                    // The ranks' prompts have one length, and one last id.
                    let first = if differs == "prompt" { own as u32 } else { 1 };
                    let prompt = if differs == "length" { &[1, 2, 3][..2 + own] } else { &[first, 2] };
                    slot = pool.admit(params, prompt).unwrap();
                }
                "masks" => options.masks = Masks::new(&masks, 1, masks.len(), masks.len()).unwrap(),
                "forced" => options.forced = &forced,
                _ => {}
            }
            let before = pool.sequence(slot).unwrap().position();
            let error = step_with(&mut pool, slot, layout, &options).unwrap_err();
            let Some(RanksError::Disagree { what, ours, theirs, .. }) = error.of_ranks() else {
                panic!("{layout:?}, {differs}: {error}")
            };
            assert_eq!(*what, name, "{layout:?}, {differs}: {error}");
            let is_told = ours.starts_with(told[own]) && theirs.starts_with(told[1 - own]);
            assert!(is_told && ours != theirs, "{layout:?}, {differs}: {error}");
            assert_eq!(pool.sequence(slot).unwrap().position(), before);
            let again = step(&mut pool, slot, layout).unwrap_err();
            assert!(matches!(again.of_ranks(), Some(RanksError::Broken(_))));
        });
    }
}

#[test]
fn ranks_go_on_in_a_new_group_from_the_states_of_one() {
    let mut ranks = threads(1, Duration::from_secs(20));
    let (mut alone, slot) = pool(ranks.pop().unwrap(), &LogitsLayout::ALL);
    (0..4).for_each(|_| step(&mut alone, slot, Gather).unwrap());
    let want = alone.sequence(slot).unwrap().history().ids().to_vec();
    let patience = Duration::from_millis(100);
    let left = with_patience(2, patience, |rank| {
        let (mut pool, slot) = pool(rank, &LogitsLayout::ALL);
        step(&mut pool, slot, Swap).unwrap();
        step(&mut pool, slot, Swap).unwrap();
        if pool.ranks().unwrap().group.rank() == 0 {
            return None;
        }
        step(&mut pool, slot, Swap).unwrap_err();
        Some(pool.sequence(slot).unwrap().history().ids().to_vec())
    });
    let left = left[1].clone().unwrap();
    with_patience(2, Duration::from_secs(20), |rank| {
        let (mut pool, first) = pool(rank, &LogitsLayout::ALL);
        pool.release(first).unwrap();
        let params = SamplingParams { seed: Some(5), top_p: 0.9, ..Default::default() };
        let slot = pool.admit(params, &left[..2]).unwrap();
        left[2..].iter().for_each(|id| pool.push(slot, *id).unwrap());
        (0..2).for_each(|_| step(&mut pool, slot, Swap).unwrap());
        assert_eq!(pool.sequence(slot).unwrap().history().ids(), want);
    });
}
