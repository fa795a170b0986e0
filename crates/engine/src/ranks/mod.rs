//! Rows that are spread over the ranks of a group, of whose logits each rank has a part.
//!
//! All ranks hold all sequences and make the same calls. The outputs are the same everywhere, and equal
//! the outputs that one process with the whole logits would have got.

pub(crate) mod alike;
mod on_host;
mod step;
mod survey;
mod verify;
mod whole;

use std::sync::Mutex;

use gumball_cpu::{Shard, Workspace};
use gumball_dist::{Costs, Group, LogitsLayout, Plan, Planner, StepDigest, StepKind, Transport, WholeRows};
use gumball_spec::{Error, Result, Row, memory};

use self::alike::{Alike, For, Shape};
use crate::assignment::Assignment;
use crate::batch::{Batch, Checked};
use crate::config::{PoolConfig, Ranks};
use crate::host::Host;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::slots::Slots;
use crate::verify_mode::VerifyMode;

/// What ranks on the host and on devices have in common.
#[derive(Debug)]
pub(crate) struct Common {
    pub planner: Planner,
    pub group: Group,
    pub alike: Alike,
}

impl Common {
    /// Joins the group. `parameters`: what ranks must agree on besides the planner.
    pub fn join(
        planner: Planner,
        transport: Box<dyn Transport>,
        parameters: &[(&'static str, String)],
    ) -> Result<Self> {
        let group = Group::join(transport, planner.config(), parameters)?;
        Ok(Self { planner, group, alike: Alike::default() })
    }

    /// Returns the plan of a batch, or decides for it. `drafts`: the most of a request; `on_device`: whether
    /// rows lie on devices.
    pub fn planned(
        &self,
        slots: &Slots,
        batch: &Batch<'_>,
        drafts: usize,
        kind: StepKind,
        on_device: bool,
    ) -> Result<Plan> {
        let shape = || slots.shape(batch, drafts, kind, on_device);
        batch.plan.map_or_else(|| self.planner.plan(&shape()?), Ok)
    }

    /// Returns the error of a step, which names the values in which the ranks differ.
    pub fn explain(&mut self, slots: &Slots, error: Error) -> Error {
        let Self { group, alike, .. } = self;
        group.explain(error, |part| alike.tell(slots, part))
    }
}

/// The host as the place of rows that are spread over ranks.
#[derive(Debug)]
pub(crate) struct HostRanks {
    host: Host,
    common: Common,
    /// That of the assigned batch.
    plan: Option<Plan>,
    /// Memory for the rows that exchanges put together.
    whole: WholeRows,
    /// The outputs of this rank's share of the rows.
    share: Outputs,
    /// The logits of hidden states.
    logits: Vec<f32>,
    /// The stages that rows are surveyed by, and their parts.
    workspace: Workspace,
    idle: Mutex<Vec<Workspace>>,
    shards: Vec<Shard>,
}

impl HostRanks {
    pub fn new(host: Host, config: &PoolConfig, ranks: Ranks) -> Result<Self> {
        let Ranks { mut planner, transport, .. } = ranks;
        let is_far = transport.name() == "torch";
        planner.costs.get_or_insert(if is_far { Costs::NETWORK } else { Costs::HOST });
        let common = Common::join(Planner::new(planner)?, transport, &config.terms())?;
        let (workspace, shards) = (Workspace::new(host.workers.level())?, Vec::new());
        let (mut share, idle) = (Outputs::new(), Mutex::default());
        share.collect_kept(config.kept);
        let (whole, logits) = (WholeRows::default(), Vec::new());
        Ok(Self { host, common, plan: None, whole, share, logits, workspace, idle, shards })
    }

    /// Works with rows that are given, or with all logits that a head makes of hidden states; work that only
    /// checks reads no logits, and none are `made`.
    fn with_logits(
        &mut self,
        rows: Rows<'_>,
        made: bool,
        work: impl FnOnce(&mut Self, Rows<'_>) -> Result<()>,
    ) -> Result<()> {
        let Rows::Hidden(head, states) = rows else { return work(self, rows) };
        if head.is_approximate() {
            let reason = "clusters are chosen among all, and a rank has some; take an exact head";
            return Err(Error::Conflict { parameter: "clusters", other: "ranks", reason });
        }
        let states = head.states(states)?;
        let mut logits = std::mem::take(&mut self.logits);
        let count = memory::product(MEMORY, &[states.rows(), head.vocab()])?;
        memory::reserve(MEMORY, &mut logits, count)?;
        logits.resize(count.max(logits.len()), 0.0);
        let done = if made { head.logits(states, &mut logits[..count]) } else { Ok(()) };
        let done = done
            .and_then(|()| Rows::logits(&logits[..count], states.rows(), head.vocab()))
            .and_then(|rows| work(self, rows));
        self.logits = logits;
        done
    }

    /// Checks a plan and the shape of the logits that came with it; `starts` are the first rows of requests,
    /// and the end.
    fn check_plan(&self, plan: &Plan, logits: Logits<'_>, starts: &[usize]) -> Result<()> {
        self.common.planner.check(plan.layout)?;
        let requests = starts.len() - 1;
        if plan.shares.requests() != requests {
            let allowed = format!("{}, as many as were planned for", plan.shares.requests());
            return Err(Error::length("slots", requests, allowed));
        }
        let (split, rank) = (self.common.planner.split(), self.common.group.rank());
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

    /// Begins a step for the group: ranks that were given another step, or have other
    /// sequences, get an error. Returns its digest, for a caller who begins it again with more.
    fn begin(
        &mut self,
        slots: &Slots,
        plan: &Plan,
        logits: Logits<'_>,
        batch: &Checked<'_>,
        work: For,
    ) -> StepDigest {
        let dtype = match logits.data() {
            Row::F32(_) => "f32",
            Row::Bf16(_) => "bf16",
            Row::F16(_) => "f16",
        };
        let shape = Shape { layout: plan.layout, rows: Some((dtype, logits.kind())), work };
        let digest = self.common.alike.begin(slots, shape, batch, Assignment::of(batch, false, Vec::new()));
        self.common.group.begin(digest);
        digest
    }
}

/// Returns a batch of drafts or scores without its plan: each rank has a part of all rows, as under `Gather`.
pub(crate) fn gathered<'a>(batch: &Batch<'a>) -> Result<Batch<'a>> {
    match batch.plan {
        Some(plan) if plan.layout != LogitsLayout::Gather => {
            let reason = "each rank has a part of all rows that are drafted from or scored, as under gather";
            Err(Error::Conflict { parameter: "plan", other: "drafts and scores", reason })
        }
        _ => Ok(Batch { plan: None, ..*batch }),
    }
}

/// Names, in errors, the memory of rows of logits.
const MEMORY: &str = "memory for logits";

/// Refuses a plan that no verification of a mode takes.
pub(crate) fn refuse_survey(plan: &Plan, mode: VerifyMode) -> Result<()> {
    if plan.layout == LogitsLayout::Survey && mode.judgement().is_some() {
        let reason = "drafts are judged by probabilities of whole rows, which are not surveyed where they are; plan for judge, or take gather or swap";
        return Err(Error::Conflict { parameter: "layout", other: "drafts", reason });
    }
    Ok(())
}

/// The error of a message that ends too early, or says what no rank says.
fn corrupt(group: &mut Group, rank: usize) -> Error {
    group.corrupt(rank, "outputs that are none")
}
