//! Pools of any place: one, or one for each of several ranks that are threads.
//!
//! A rank has a part of every row. Rows are surveyed where they are, unless somebody must see them whole:
//! then they are swapped.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use gumball_engine::dist::{
    LogitsLayout, Needs, Ownership, Plan, PlannerConfig, StepKind, StepShape, TransportKind, VocabSplit,
    threads,
};
use gumball_engine::{
    Batch, Kind, Matrix, Outputs, Pool, PoolConfig, Proposals, Ranks, Row, Rows, Scored, Sequence, Slot,
};
use gumball_spec::{Error, Result};

use super::heads::Heads;
#[cfg(feature = "cuda")]
use super::on_device::OnDevice;
use super::work::Work;
use crate::case::{self, Dtype};

/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// How rows are spread over ranks.
#[derive(Debug)]
struct Over {
    split: VocabSplit,
    /// The layouts that steps take in turn, where they can, how many steps there were, and the layout of the
    /// last one.
    layouts: Vec<LogitsLayout>,
    turn: usize,
    layout: LogitsLayout,
}

impl Over {
    /// Takes the next layout; for rows that are to be seen whole, and in pools that take none, a survey is
    /// none.
    fn turn(&mut self, pool: &Pool, is_whole: bool) {
        self.turn += 1;
        let planner = pool.ranks().expect("it has ranks").planner;
        self.layout = match self.layouts[self.turn % self.layouts.len()] {
            layout @ LogitsLayout::Survey if is_whole || planner.check(layout).is_err() => LogitsLayout::Swap,
            layout => layout,
        };
    }

    /// Plans work; of slots that are not admitted, so that the call itself refuses them.
    fn plan(&self, pool: &Pool, work: &Work<'_>) -> Result<Plan> {
        let kind = if work.drafts.is_some() { work.batch.mode.step_kind() } else { StepKind::Decode };
        let slots = work.batch.slots;
        let shape = pool.shape(slots, 0, kind).or_else(|_| pool.shape(&[], 0, kind))?;
        let planner = pool.ranks().expect("it has ranks").planner;
        Ok(planner.plan_as(self.layout, &StepShape { requests: slots.len(), ..shape }))
    }

    /// Returns which rows a rank has a part of, and which ids of them.
    fn place(&self, work: &Work<'_>, count: usize, rank: usize, plan: &Plan) -> (Vec<usize>, Range<usize>) {
        if plan.layout != LogitsLayout::Replicated {
            return ((0..count).collect(), self.split.ids(rank));
        }
        let counts = work.counts();
        let first_row = |request: usize| counts[..request].iter().sum::<usize>();
        let own = plan.shares.of(rank).flat_map(|request| first_row(request)..first_row(request + 1));
        (own.collect(), 0..work.all_rows().width())
    }
}

/// A copy of a part of rows. Columns without a number hold NaN.
struct Part {
    numbers: case::Logits,
    rows: usize,
    kind: Kind,
    columns: usize,
}

impl Part {
    fn of(
        read: &[Row<'_>],
        work: &Work<'_>,
        rows: impl Iterator<Item = usize>,
        ids: Range<usize>,
        padding: usize,
    ) -> Self {
        let (rows, columns): (Vec<usize>, _) = (rows.collect(), ids.len() + padding);
        let row = |row| {
            let of: Row<'_> = read[row];
            ids.clone().map(move |id| of.logit(id)).chain(std::iter::repeat_n(f32::NAN, padding))
        };
        let numbers: Vec<f32> = rows.iter().copied().flat_map(row).collect();
        let numbers = case::Logits::new(work.dtype, &numbers);
        Self { numbers, rows: rows.len(), kind: work.kind(), columns }
    }

    fn rows(&self) -> Result<Rows<'_>> {
        Ok(Rows::of(Matrix::new(self.numbers.row(), self.rows, self.columns)?, self.kind))
    }
}

/// How the work of direct calls comes to a pool on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Feed {
    /// From the memory of the host.
    #[default]
    Host,
    /// From the device's own.
    Device,
    /// From the device's own, and captured in a graph that is replayed.
    Graph,
}

/// The pools of a place.
#[derive(Debug)]
pub struct Pools {
    all: Vec<Pool>,
    over: Option<Over>,
    heads: Option<Heads>,
    /// How the work of direct calls comes to a pool of one process on a device.
    pub feed: Feed,
}

impl Pools {
    /// Makes a pool.
    ///
    /// # Errors
    /// The errors of [`Pool::new`].
    pub fn new(config: PoolConfig) -> Result<Self> {
        Ok(Self { all: vec![Pool::new(config)?], over: None, heads: None, feed: Feed::Host })
    }

    /// Makes a pool whose rows come from hidden states.
    ///
    /// # Errors
    /// The errors of [`Pool::new`].
    pub fn from_heads(config: PoolConfig) -> Result<Self> {
        let mut pools = Self::new(config)?;
        pools.heads = Some(Heads::default());
        Ok(pools)
    }

    /// Makes the pools of all ranks of a split, which take layouts in turn, of rows that come `from_heads` or
    /// not. `config`: a rank's, whose device may be its own; `devices`: how rows travel between
    /// devices; `ownership`: which rank has which request.
    ///
    /// # Errors
    /// The errors of [`Pool::over`].
    pub fn over_ranks(
        split: VocabSplit,
        config: impl Fn() -> Result<PoolConfig> + Sync,
        (devices, ownership, layouts): (TransportKind, Ownership, &[LogitsLayout]),
        from_heads: bool,
    ) -> Result<Self> {
        let all = LogitsLayout::ALL.to_vec();
        let planner = PlannerConfig { layouts: all, ownership, ..PlannerConfig::new(split.clone()) };
        let join = |transport| {
            let ranks = Ranks { devices, ..Ranks::new(planner.clone(), Box::new(transport)) };
            Pool::over(config()?, ranks)
        };
        let join = &join;
        let pools: Vec<Result<Pool>> = std::thread::scope(|scope| {
            let ranks =
                threads(split.world(), PATIENCE).into_iter().map(|rank| scope.spawn(move || join(rank)));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        let all = pools.into_iter().map(of_caller).collect::<Result<_>>()?;
        let over = Over { split, layouts: layouts.to_vec(), turn: 0, layout: layouts[0] };
        let heads = from_heads.then(Heads::default);
        Ok(Self { all, over: Some(over), heads, feed: Feed::Host })
    }

    /// Returns whether the caller's edits of a row are for it, as they are on the host.
    #[must_use]
    pub fn hooks(&self) -> bool {
        self.all[0].level().is_some()
    }

    /// Lets calls take a head whose hidden states are the rows of calls, in turn, beside their logits; a pool
    /// of the host without heads takes the logits.
    pub fn with_heads<T>(&mut self, heads: Heads, work: impl FnOnce(&mut Self) -> T) -> T {
        let takes = self.heads.is_some() || !self.hooks();
        let own = takes.then(|| self.heads.replace(heads)).flatten();
        let done = work(self);
        self.heads = own;
        done
    }

    /// Does the same on all ranks, at once: ranks on devices may wait for each other.
    ///
    /// # Errors
    /// The pool's.
    pub fn each<T: PartialEq + Debug + Send>(
        &mut self,
        work: impl Fn(&mut Pool) -> Result<T> + Sync,
    ) -> Result<T> {
        let mut results = each_at_once(&mut self.all, |_, pool| work(pool)).into_iter();
        let first = results.next().expect("a pool");
        results.for_each(|other| assert_eq!(other, first, "all ranks come to the same"));
        of_caller(first)
    }

    /// Returns the state of a slot.
    ///
    /// # Errors
    /// The errors of [`Pool::sequence`].
    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        self.each(|pool| pool.sequence(slot).map(|sequence| format!("{:?}", sequence.state())))?;
        self.all[0].sequence(slot)
    }

    /// Takes a step or verifies drafts, by a direct call.
    ///
    /// # Errors
    /// The pool's.
    pub fn call(&mut self, work: &Work<'_>, out: &mut Outputs) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let ([pool], Feed::Device | Feed::Graph, None) = (&mut self.all[..], self.feed, &self.heads) {
            let there = OnDevice::of(pool.device().expect("it is on one"), work, pool.vocab())?;
            return self.call_there(there.work()?, &work.batch, out);
        }
        let all = self.with_parts(work, |pool, work| {
            let mut out = out.clone();
            match &work.drafts {
                None => pool.step(work.rows, &work.batch, &mut out),
                Some(drafts) => pool.verify(work.rows, &work.batch, drafts, &mut out),
            }?;
            Ok(out)
        })?;
        *out = same(all);
        Ok(())
    }

    /// Takes a step or verifies drafts, all of which lie on the device of the pool: in a graph, or at once.
    ///
    /// # Errors
    /// The pool's.
    #[cfg(feature = "cuda")]
    pub fn call_there(
        &mut self,
        work: gumball_engine::Work<'_>,
        batch: &Batch<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let pool = &mut self.all[0];
        match work {
            _ if self.feed == Feed::Graph => {
                pool.assign(batch)?;
                let graph = pool.capture(&[work])?;
                pool.replay(&graph)?;
                pool.fetch(out)
            }
            gumball_engine::Work::Step(rows, _) => pool.step(rows, batch, out),
            gumball_engine::Work::Verify(rows, _, drafts) => pool.verify(rows, batch, &drafts, out),
            _ => unreachable!("{work:?} has no outputs"),
        }
    }

    /// Draws drafts after paths.
    ///
    /// # Errors
    /// The pool's.
    pub fn draft(&mut self, work: &Work<'_>, paths: &[i32], out: &mut Proposals) -> Result<()> {
        let mut all = self.with_host_parts(work, |pool, work| {
            let mut out = out.clone();
            pool.draft(work.rows, &work.batch, paths, &mut out)?;
            Ok(out)
        })?;
        *out = all.swap_remove(0);
        Ok(())
    }

    /// Scores given tokens, of hidden states by chunks of rows.
    ///
    /// # Errors
    /// The pool's.
    pub fn score(&mut self, work: &Work<'_>, scored: &Scored<'_>, out: &mut Outputs) -> Result<()> {
        let all = self.with_host_parts(work, |pool, work| {
            let in_chunks = pool.ranks().is_none() && matches!(work.rows, Rows::Hidden(..));
            let chunk_rows = in_chunks.then_some(2);
            let mut out = out.clone();
            pool.score(work.rows, &work.batch, &Scored { chunk_rows, ..*scored }, &mut out)?;
            Ok(out)
        })?;
        *out = same(all);
        Ok(())
    }

    /// Assigns slots and options to the rows of work that [`Pools::enqueue_assigned`] enqueues.
    ///
    /// # Errors
    /// The pool's.
    pub fn assign(&mut self, work: &Work<'_>) -> Result<()> {
        self.with_parts(work, |pool, work| pool.assign(&work.batch)).map(drop)
    }

    /// Assigns and enqueues work, whose outcome `fetch` reads; drafts are the host's.
    ///
    /// # Errors
    /// The pool's.
    pub fn enqueue(&mut self, work: &Work<'_>) -> Result<()> {
        let enqueued = self.with_parts(work, |pool, work| {
            pool.assign(&work.batch)?;
            in_place(pool, work, true, |pool, work| pool.enqueue(&[work]))
        });
        enqueued.map(drop)
    }

    /// Enqueues rows for the last assignment, which `work` repeats with padding in place of requests that
    /// have ended.
    ///
    /// # Errors
    /// The pool's.
    pub fn enqueue_assigned(&mut self, work: &Work<'_>) -> Result<()> {
        // Ranks without rows of hidden states get rows on their devices, and drafts where the other ranks
        // have them.
        let has_host_drafts = self.heads.is_some();
        let enqueue = |pool: &mut Pool, work: &Work<'_>| {
            in_place(pool, work, has_host_drafts, |pool, work| pool.enqueue(&[work]))
        };
        self.with_parts_of_layout(work, true, enqueue).map(drop)
    }

    /// Captures work in a graph, and replays it for the slots of each turn. On the host, and from hidden
    /// states, it is enqueued that often.
    ///
    /// # Errors
    /// The pool's, of the first turn that is refused.
    pub fn replay(&mut self, work: &Work<'_>, turns: &[Vec<Slot>]) -> Result<()> {
        #[cfg(feature = "cuda")]
        if !self.hooks() && self.heads.is_none() {
            let replayed = self.with_parts(work, |pool, work| {
                let assign = |pool: &mut Pool, slots| pool.assign(&Batch { slots, ..work.batch });
                assign(pool, &turns[0])?;
                in_place(pool, work, false, |pool, work| {
                    let graph = pool.capture(&[work])?;
                    turns.iter().try_for_each(|slots| {
                        assign(pool, slots)?;
                        pool.replay(&graph)
                    })
                })
            });
            return replayed.map(drop);
        }
        turns
            .iter()
            .try_for_each(|slots| self.enqueue(&Work { batch: Batch { slots, ..work.batch }, ..*work }))
    }

    /// Takes output tokens of the assigned sequences away: a count above the number of output tokens takes
    /// none.
    ///
    /// # Errors
    /// The pool's.
    pub fn enqueue_shorten(&mut self, counts: &[u32]) -> Result<()> {
        let counts: Vec<i32> = counts.iter().map(|count| *count as i32).collect();
        let shorten = |_, pool: &mut Pool| pool.enqueue(&[gumball_engine::Work::Shorten((&counts).into())]);
        let lacking = |error| match error {
            Error::Conflict { parameter: "ownership", .. } => {
                Error::Unavailable { resource: "counts in another order", reason: error.to_string() }
            }
            error => error,
        };
        at_once(&mut self.all, shorten).map(drop).map_err(lacking)
    }

    /// Reads the outcome of the last step or verification that was enqueued.
    ///
    /// # Errors
    /// The pool's.
    pub fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        let all = at_once(&mut self.all, |_, pool| {
            let mut out = out.clone();
            pool.fetch(&mut out)?;
            Ok(out)
        })?;
        *out = same(all);
        Ok(())
    }

    /// Does something with the work as the pool takes it: on each rank at once with its part of the rows, or
    /// with the hidden states of a head.
    fn with_parts<T: Send>(
        &mut self,
        work: &Work<'_>,
        then: impl Fn(&mut Pool, &Work<'_>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        self.with_parts_of_layout(work, false, then)
    }

    /// Does so, but that a device gets logits in place of hidden states, and each rank a part of all rows.
    fn with_host_parts<T: Send>(
        &mut self,
        work: &Work<'_>,
        then: impl Fn(&mut Pool, &Work<'_>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let is_host = self.hooks();
        let Some(over) = &mut self.over else {
            return if is_host {
                self.with_parts(work, then)
            } else {
                Ok(vec![then(&mut self.all[0], work)?])
            };
        };
        let layout = std::mem::replace(&mut over.layout, LogitsLayout::Gather);
        let heads = self.heads.take_if(|_| !is_host);
        let done = self.with_parts_of_layout(work, true, then);
        self.heads = self.heads.take().or(heads);
        self.over.as_mut().expect("it has ranks").layout = layout;
        done
    }

    fn with_parts_of_layout<T: Send>(
        &mut self,
        work: &Work<'_>,
        is_assigned: bool,
        then: impl Fn(&mut Pool, &Work<'_>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let pool = &mut self.all[0];
        if self.over.is_none() && self.heads.is_none() {
            return Ok(vec![then(pool, work)?]);
        }
        let (read, batch) = (&work.read()?[..], Batch { row_indices: &[], ..work.batch });
        let heads = self.heads.as_ref();
        let states = heads.and_then(|heads| heads.states_of(read, work, pool.vocab()));
        if let (Some(heads), None) = (heads, &self.over) {
            let done = match &states {
                Some(head) => {
                    heads.with_states(pool, head, |pool, rows| then(pool, &Work { rows, batch, ..*work }))
                }
                None => {
                    let own = Part::of(read, work, 0..read.len(), 0..work.all_rows().width(), 0);
                    then(pool, &Work { rows: own.rows()?, batch, ..*work })
                }
            };
            return Ok(vec![done?]);
        }
        let over = self.over.as_mut().expect("it has ranks");
        if !is_assigned {
            let is_hooked = batch.hooks.iter().any(Option::is_some);
            let is_judged = work.drafts.is_some() && batch.mode.step_kind() == StepKind::Judge;
            let needs = self.all[0].shape(batch.slots, 0, StepKind::Decode).map(|shape| shape.needs);
            let is_whole =
                work.kind() == Kind::Probabilities || is_hooked || is_judged || needs == Ok(Needs::Whole);
            over.turn(&self.all[0], is_whole);
        }
        let over = &*over;
        at_once(&mut self.all, |rank, pool| {
            let plan = over.plan(pool, work)?;
            let (rows, ids) = over.place(work, read.len(), rank, &plan);
            let batch = Batch { plan: Some(plan), ..batch };
            if let (Some(heads), Some(states)) = (heads, &states)
                && !rows.is_empty()
                && !ids.is_empty()
            {
                let part = states.part(&rows, ids);
                return heads
                    .with_states(pool, &part, |pool, rows| then(pool, &Work { rows, batch, ..*work }));
            }
            // A rank without ids has padding alone. Heads make f32.
            let padding = if ids.is_empty() { over.split.width() } else { 0 };
            let dtype = if states.is_some() { Dtype::F32 } else { work.dtype };
            let work = &Work { dtype, ..*work };
            let part = Part::of(read, work, rows.into_iter(), ids, padding);
            then(pool, &Work { rows: part.rows()?, batch, ..*work })
        })
    }
}

impl Drop for Pools {
    /// Ends all ranks at once: pools on devices wait for each other.
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            let ranks = self.all.drain(1..);
            ranks.for_each(|pool| drop(scope.spawn(move || drop(pool))));
            self.all.clear();
        });
    }
}

/// Lends work to a pool as it takes it in order: on a device with the rows there, except for hidden states,
/// which the pool copies.
fn in_place<T>(
    pool: &mut Pool,
    work: &Work<'_>,
    #[cfg_attr(not(feature = "cuda"), expect(unused, reason = "drafts are the host's"))]
    has_host_drafts: bool,
    then: impl FnOnce(&mut Pool, gumball_engine::Work<'_>) -> Result<T>,
) -> Result<T> {
    #[cfg(feature = "cuda")]
    if let (Some(device), Rows::Logits(_) | Rows::Probabilities(_)) = (pool.device(), work.rows) {
        let there = OnDevice::of(device, work, pool.vocab())?;
        let work = if has_host_drafts { there.work_with_host_drafts() } else { there.work() };
        return then(pool, work?);
    }
    then(pool, work.of_engine())
}

/// Does the same on all ranks at once, by their numbers.
fn at_once<T: Send>(
    pools: &mut [Pool],
    work: impl Fn(usize, &mut Pool) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    each_at_once(pools, work).into_iter().map(of_caller).collect()
}

/// Calls `work` for all ranks at once, and returns the result of each rank.
fn each_at_once<T: Send>(
    pools: &mut [Pool],
    work: impl Fn(usize, &mut Pool) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    if let [pool] = pools {
        return vec![work(0, pool)];
    }
    let work = &work;
    std::thread::scope(|scope| {
        let ranks = pools.iter_mut().enumerate();
        let ranks: Vec<_> = ranks.map(|(rank, pool)| scope.spawn(move || work(rank, pool))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

/// Returns what one process would have; a group that breaks is no case of a rule.
fn of_caller<T>(result: Result<T>) -> Result<T> {
    result.inspect_err(|error| assert_eq!(error.of_ranks(), None, "a group broke"))
}

/// Returns what all ranks computed, which is the same on all.
fn same(mut all: Vec<Outputs>) -> Outputs {
    all.iter().for_each(|other| assert_eq!(other.words(), all[0].words(), "all ranks come to the same"));
    all.swap_remove(0)
}
