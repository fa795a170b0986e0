//! Steps: every layout, and layouts that change from step to step.

use std::ops::Range;

use gumball_engine::dist::LogitsLayout::{self, Gather, Replicated, Survey, Swap};
use gumball_engine::dist::{Costs, PlannerConfig, StepKind};
use gumball_engine::{Batch, HostMasks, Kind, Masks, Outputs, PADDING, RowHook, Slot};

use crate::batch::{Numbers, Requests, on_ranks, part, planned, state};
use crate::cases::Dice;

/// The options of the rows of a step.
pub struct Extras {
    masks: Option<Vec<u32>>,
    present: Vec<bool>,
    forced: Vec<Option<u32>>,
    hooked: Vec<bool>,
}

impl Extras {
    pub fn new(dice: &mut Dice, batch: &Requests, rows: usize, hooks: bool) -> Self {
        let words = batch.vocab.div_ceil(32);
        let masks = dice.one_in(3).then(|| (0..rows).flat_map(|_| mask(dice, words)).collect());
        let is_hooked = hooks && batch.kind == Kind::Logits && dice.one_in(4);
        Self {
            masks,
            present: (0..rows).map(|_| !dice.one_in(3)).collect(),
            forced: (0..rows).map(|_| dice.one_in(9).then(|| dice.below(batch.vocab) as u32)).collect(),
            hooked: (0..rows).map(|_| is_hooked && dice.one_in(2)).collect(),
        }
    }

    pub fn with<T>(&self, batch: &Requests, work: impl FnOnce(&Batch<'_>) -> T) -> T {
        let (rows, words) = (self.present.len(), batch.vocab.div_ceil(32));
        let masks = self.masks.as_ref().map_or(Masks::None, |masks| {
            Masks::Host(
                HostMasks::new(masks, rows, words, words).unwrap().with_present(&self.present).unwrap(),
            )
        });
        let hook: RowHook<'_> = &|z: &mut [f32]| {
            z.reverse();
            z[0] += 1.0;
        };
        let hooks: Vec<Option<RowHook<'_>>> = self.hooked.iter().map(|on| on.then_some(hook)).collect();
        let hooks = if self.hooked.contains(&true) { &hooks[..] } else { &[] };
        work(&Batch { masks, forced: &self.forced, hooks, ..Batch::default() })
    }
}

/// Returns a bitmask: of most ids, of ids of one word, which one rank has or two, or of none.
fn mask(dice: &mut Dice, words: usize) -> Vec<u32> {
    let (kind, only) = (dice.below(6), dice.below(words));
    let word = |word: usize, bits: u32| match kind {
        0 => 0,
        1 if word != only => 0,
        _ => bits,
    };
    (0..words).map(|at| word(at, dice.word() | dice.word())).collect()
}

/// Takes steps with random batches under random layouts of `layouts`, and holds all ranks to one process.
fn steps_equal_one_process(seeds: Range<u64>, layouts: &[LogitsLayout]) {
    for seed in seeds {
        let mut dice = Dice(seed, 0);
        let world = 1 + seed as usize % 8;
        let batch = Requests::new(&mut dice, world, 7);
        equal_one_process(seed, &mut dice, world, &batch, layouts);
    }
}

/// Takes three steps with a batch.
fn equal_one_process(seed: u64, dice: &mut Dice, world: usize, batch: &Requests, layouts: &[LogitsLayout]) {
    let (mut pool, slots) = batch.pool();
    let mut steps = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..3 {
        let layout = dice.pick(layouts);
        // Probabilities are not surveyed.
        let layout = if batch.kind == Kind::Probabilities && layout == Survey { Gather } else { layout };
        let whole = batch.rows(dice, slots.len());
        let extras = Extras::new(dice, batch, slots.len(), layout != Survey);
        let slots: Vec<Slot> =
            slots.iter().map(|slot| if dice.one_in(8) { PADDING } else { *slot }).collect();
        let values: Vec<f32> = whole.iter().flatten().copied().collect();
        let numbers = Numbers::new(batch.dtype, &values);
        let mut out = Outputs::new();
        extras.with(batch, |options| {
            let logits = numbers.logits(slots.len(), batch.vocab, batch.kind);
            pool.step(logits, &Batch { slots: &slots, ..*options }, &mut out).unwrap();
        });
        let states: Vec<_> = slots.iter().map(|slot| pool.sequence(*slot).ok().map(state)).collect();
        expected.push((out, states));
        steps.push((layout, whole, extras, slots));
    }
    on_ranks(world, |rank| {
        let own = gumball_engine::dist::Transport::rank(&rank);
        let (mut pool, _) = batch.dist_pool(rank);
        for (step, (layout, whole, extras, slots)) in steps.iter().enumerate() {
            let plan = planned(&pool, slots, *layout, 0);
            let rows: Vec<usize> = plan.shares.of(own).collect();
            let part = part(*layout, &batch.split, own, batch.dtype, whole, &rows);
            let mut out = Outputs::new();
            extras.with(batch, |options| {
                let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
                pool.step(logits, &Batch { slots, plan: Some(plan), ..*options }, &mut out).unwrap();
            });
            let (want, states) = &expected[step];
            let told = || format!("seed {seed}, rank {own} of {world}, step {step}, {layout:?}, {batch:?}");
            assert_eq!(out.tokens(), want.tokens(), "{}", told());
            assert_eq!(out.words(), want.words(), "{}", told());
            for (row, slot) in slots.iter().enumerate() {
                assert_eq!(out.kept(row), want.kept(row), "{}", told());
                assert_eq!(pool.sequence(*slot).ok().map(state), states[row], "{}", told());
            }
        }
        assert_eq!(pool.ranks().unwrap().planner.served().values().sum::<u64>(), 3);
    });
}

#[test]
fn gathered_and_swapped_rows_are_sampled_as_by_one_process() {
    steps_equal_one_process(0..160, &[Gather, Swap]);
}

#[test]
fn surveyed_rows_are_sampled_as_by_one_process() {
    steps_equal_one_process(2000..2200, &[Survey]);
}

#[test]
fn long_rows_are_surveyed_as_by_one_process() {
    for seed in 4000..4024 {
        let mut dice = Dice(seed, 0);
        let world = 2 + seed as usize % 3;
        let vocab = dice.pick(&[9000, 20_000, 32_000, 40_123]);
        let batch = Requests::of_vocab(&mut dice, world, 3, vocab);
        equal_one_process(seed, &mut dice, world, &batch, &[Survey]);
    }
}

#[test]
fn a_layout_may_change_from_step_to_step() {
    steps_equal_one_process(3000..3040, &LogitsLayout::ALL);
}

#[test]
fn replicated_rows_are_sampled_as_by_one_process() {
    steps_equal_one_process(1000..1040, &[Replicated]);
}

#[test]
fn a_batch_that_shrinks_and_grows_across_a_threshold_changes_layout_and_no_token() {
    let mut dice = Dice(5000, 0);
    let mut batch = Requests::of_vocab(&mut dice, 3, 8, 700);
    while batch.requests.len() < 8 {
        batch = Requests::of_vocab(&mut dice, 3, 8, 700);
    }
    let whole: Vec<_> = (0..6).map(|_| batch.rows(&mut dice, 8)).collect();
    // The first of the requests alone, then all, and so on.
    let counts = [2, 8, 3, 8, 8, 2];
    let options = Batch::default();
    let (mut pool, slots) = batch.pool();
    for (rows, count) in whole.iter().zip(counts) {
        let numbers = Numbers::new(batch.dtype, &rows[..count].concat());
        let logits = numbers.logits(count, batch.vocab, batch.kind);
        pool.step(logits, &Batch { slots: &slots[..count], ..options }, &mut Outputs::new()).unwrap();
    }
    let states: Vec<_> = slots.iter().map(|slot| state(pool.sequence(*slot).unwrap())).collect();
    on_ranks(3, |rank| {
        let own = gumball_engine::dist::Transport::rank(&rank);
        // To read a row costs what its bytes are; of 3 requests a rank reads two fewer where they are
        // swapped, and of 8 five.
        let costs = Costs {
            link_ns_per_mb: 0,
            read_ns_per_mb: 1_000_000,
            gather_ns: 0,
            swap_ns: 3 * 4 * batch.vocab as u64,
            ..Costs::HOST
        };
        let planner = PlannerConfig { layouts: vec![Swap], costs: Some(costs), ..batch.planner() };
        let (mut dist, _) = batch.try_dist_pool(Box::new(rank), planner).unwrap();
        for (rows, count) in whole.iter().zip(counts) {
            let shape = dist.shape(&slots[..count], 0, StepKind::Decode).unwrap();
            let plan = dist.plan(&shape).unwrap();
            let part = part(plan.layout, &batch.split, own, batch.dtype, &rows[..count], &[]);
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            dist.step(
                logits,
                &Batch { slots: &slots[..count], plan: Some(plan), ..options },
                &mut Outputs::new(),
            )
            .unwrap();
        }
        let served: Vec<_> =
            dist.ranks().unwrap().planner.served().iter().map(|(key, steps)| (*key, *steps)).collect();
        assert_eq!(served, [((Gather, 2), 2), ((Gather, 3), 1), ((Swap, 8), 3)]);
        for (slot, wanted) in slots.iter().zip(&states) {
            assert_eq!(state(dist.sequence(*slot).unwrap()), *wanted);
        }
    });
}
