//! A pool on every rank of a group, for logits of which each rank has a part.
//!
//! All ranks hold all sequences and make the same calls. What comes out is the same everywhere, and what one process with the
//! whole logits would have got.

pub(crate) mod alike;
mod step;
mod survey;
mod verify;

use std::sync::Mutex;

use gumball_cpu::{Shard, Workspace};
use gumball_dist::{
    Group, LogitsLayout, Needs, Plan, Planner, PlannerConfig, StepDigest, StepKind, StepPart, StepShape,
    Transport,
};
use gumball_spec::{Error, Kind, Result, SamplingParams};

use self::alike::{Requests, add_batch, digest_of};
use crate::batch::Batch;
use crate::config::PoolConfig;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::pool::Pool;
use crate::sequence::Sequence;
use crate::slot::{PADDING, Slot};
use crate::state::State;

/// A pool whose logits are spread over ranks: each rank has one, and all make the same calls in the same turn.
///
/// A caller's mistake is found before anything is sent; as all ranks make the same calls, all find it. After any other error of a
/// step the group is broken: no sequence was changed on this rank by that step, but other ranks may have completed it. To go on,
/// make new pools of a new group, and [resume](DistPool::resume) from the states of one rank.
#[derive(Debug)]
pub struct DistPool {
    pool: Pool,
    planner: Planner,
    group: Group,
    requests: Requests,
    /// What comes out of this rank's share of the rows.
    share: Outputs,
    /// The stages that rows are surveyed by, and their parts.
    workspace: Workspace,
    idle: Mutex<Vec<Workspace>>,
    shards: Vec<Shard>,
}

impl DistPool {
    /// Makes an empty pool on each rank of a transport, once all ranks have come.
    ///
    /// # Errors
    /// - Those of [`Pool::new`] and [`Planner::new`].
    /// - [`Error::Length`] if the split is not of the pool's vocabulary.
    /// - Those of [`Group::join`]: ranks must agree on the pool's vocabulary, slots, widths and route, and on all of `planner`.
    pub fn new(config: PoolConfig, planner: PlannerConfig, transport: Box<dyn Transport>) -> Result<Self> {
        if planner.split.vocab() != config.vocab {
            let allowed = format!("{} ids, the vocabulary of the pool", config.vocab);
            return Err(Error::length("split", planner.split.vocab(), allowed));
        }
        let parameters = [
            ("slots", config.slots.to_string()),
            ("widths", format!("{:?}", config.widths)),
            ("route", config.route.to_string()),
        ];
        let (pool, planner) = (Pool::new(config)?, Planner::new(planner)?);
        let Some(level) = pool.level() else {
            let reason = "its place is a device; take a DeviceDistPool".to_owned();
            return Err(Error::Unavailable { resource: "pool of the host", reason });
        };
        let group = Group::join(transport, planner.config(), &parameters)?;
        let (workspace, shards) = (Workspace::new(level)?, Vec::new());
        Ok(Self {
            pool,
            planner,
            group,
            requests: Requests::default(),
            share: Outputs::new(),
            workspace,
            idle: Mutex::default(),
            shards,
        })
    }

    /// Returns this rank's copy of the pool, which all ranks have alike.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns what decides the layouts of steps, and counts them.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Returns the ranks, and what they exchanged.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Begins to count what is exchanged from nothing.
    pub fn reset_traffic(&mut self) {
        self.group.reset_traffic();
    }

    /// Admits a request, as [`Pool::admit`] does. It must have a seed: ranks that each took one would draw different tokens.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no seed.
    /// - Those of [`Pool::admit`].
    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        if params.seed.is_none() {
            return Err(Error::out_of_range("seed", "absent", "given, so that all ranks have the same"));
        }
        let digest = digest_of(&params);
        let slot = self.pool.admit(params, prompt)?;
        self.requests.place(slot, digest, prompt);
        Ok(slot)
    }

    /// Takes up a sequence, as [`Pool::resume`] does.
    ///
    /// # Errors
    /// Those of [`Pool::resume`].
    pub fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        let digest = digest_of(&params);
        let slot = self.pool.resume(params, state)?;
        self.requests.place(slot, digest, self.pool.sequence(slot)?.history().ids());
        Ok(slot)
    }

    /// Copies a sequence, as [`Pool::fork`] does.
    ///
    /// # Errors
    /// Those of [`Pool::fork`].
    pub fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        let fork = self.pool.fork(slot, draw)?;
        self.requests.copy(slot, fork);
        Ok(fork)
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// Those of [`Pool::release`].
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        self.pool.release(slot)
    }

    /// Appends a token that was chosen elsewhere, as [`Pool::push`] does.
    ///
    /// # Errors
    /// Those of [`Pool::push`].
    pub fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        self.pool.push(slot, id)?;
        self.requests.note(slot, id.into());
        Ok(())
    }

    /// Takes tokens away, as [`Pool::shorten`] does.
    ///
    /// # Errors
    /// Those of [`Pool::shorten`].
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.pool.shorten(slots, counts)
    }

    /// Returns the state of a slot.
    ///
    /// # Errors
    /// Those of [`Pool::sequence`].
    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        self.pool.sequence(slot)
    }

    /// Returns the shape of a step of these slots, for [`DistPool::plan`]: what their requests need, without a graph.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vacant slot.
    pub fn shape(&self, slots: &[Slot], drafts: usize, kind: StepKind) -> Result<StepShape> {
        let mut needs = Needs::default();
        for slot in slots.iter().filter(|slot| **slot != PADDING) {
            needs = needs.max(Needs::of(self.pool.slots.sequence(*slot)?.params(), self.pool.vocab()));
        }
        let (data_parallel, captured) = (false, None);
        Ok(StepShape { requests: slots.len(), drafts, kind, needs, data_parallel, captured })
    }

    /// Decides the layout of a step, before its logits exist: as [`Planner::plan`] does.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn plan(&self, shape: &StepShape) -> Result<Plan> {
        self.planner.plan(shape)
    }

    /// Returns the plan of a batch, or decides for it as [`DistPool::plan`] does. `drafts`: the most of a request.
    fn planned(&self, batch: &Batch<'_>, drafts: usize, kind: StepKind) -> Result<Plan> {
        batch.plan.map_or_else(|| self.plan(&self.shape(batch.slots, drafts, kind)?), Ok)
    }

    /// Lets what comes out of this rank's share collect kept sets if `out` does.
    fn prepare_share(&mut self, out: &Outputs) {
        if self.share.collects_kept() != out.collects_kept() {
            self.share = if out.collects_kept() { Outputs::with_kept() } else { Outputs::new() };
        }
    }

    /// Checks a plan and the shape of the logits that came with it; `starts` are the first rows of requests, and the end.
    fn check_plan(&self, plan: &Plan, logits: Logits<'_>, starts: &[usize]) -> Result<()> {
        self.planner.check(plan.layout)?;
        let requests = starts.len() - 1;
        if plan.shares.requests() != requests {
            let allowed = format!("{}, as many as were planned for", plan.shares.requests());
            return Err(Error::length("slots", requests, allowed));
        }
        let (split, rank) = (self.planner.split(), self.group.rank());
        let (rows, columns) = match plan.layout {
            LogitsLayout::Replicated => {
                let rows = plan.shares.of(rank).map(|request| starts[request + 1] - starts[request]).sum();
                (rows, vec![split.vocab()])
            }
            _ => (starts[requests], vec![split.ids(rank).len(), split.width()]),
        };
        // A batch of nothing may have any width.
        if rows > 0 && !columns.contains(&logits.vocab()) {
            let allowed = match plan.layout {
                LogitsLayout::Replicated => format!("{} elements in a row, the vocabulary", columns[0]),
                _ => format!(
                    "{} elements in a row, this rank's ids, or {} with padding",
                    columns[0], columns[1]
                ),
            };
            return Err(Error::length("logits", logits.vocab(), allowed));
        }
        if logits.rows() != rows {
            return Err(Error::length("logits", logits.rows(), format!("{rows} rows")));
        }
        Ok(())
    }

    /// Begins a step for the group: ranks that were given another step, or have other sequences, get an error. `rows`: their number;
    /// `shape` and `drafts`: the mode and the drafts of a verification.
    fn begin(
        &mut self,
        plan: &Plan,
        logits: Logits<'_>,
        (batch, rows): (&Batch<'_>, usize),
        (shape, drafts): (&[u64], impl Iterator<Item = u64>),
    ) {
        let kind = match logits.data() {
            gumball_spec::Row::F32(_) => 0,
            gumball_spec::Row::Bf16(_) => 1,
            gumball_spec::Row::F16(_) => 2,
        };
        let mut digest = StepDigest::default();
        digest.extend(StepPart::Shape, [plan.layout as u64, kind, (logits.kind() == Kind::Logits).into()]);
        digest.extend(StepPart::Shape, shape.iter().copied());
        for slot in batch.slots {
            digest.add(StepPart::Slots, *slot as u64);
            let Ok(sequence) = self.pool.slots.sequence(*slot) else { continue };
            self.requests.add(&mut digest, *slot, sequence);
            let last = sequence.history().ids().last().map_or(0, |id| u64::from(*id) + 1);
            digest.extend(StepPart::Positions, [sequence.position().into(), last]);
        }
        add_batch(&mut digest, batch, rows);
        digest.extend(StepPart::Drafts, drafts);
        self.group.begin(digest);
    }
}

/// Refuses a plan that no verification takes.
pub(crate) fn refuse_survey(plan: &Plan) -> Result<()> {
    if plan.layout == LogitsLayout::Survey {
        let reason = "rows of drafts are not surveyed where they are; take gather or swap";
        return Err(Error::Conflict { parameter: "layout", other: "drafts", reason });
    }
    Ok(())
}

/// The error of a message that ends too early, or says what no rank says.
fn corrupt(group: &mut Group, rank: usize) -> Error {
    group.corrupt(rank, "outputs that are none")
}
