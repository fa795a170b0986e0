//! Work that is enqueued: steps one by one, or a graph of steps, copies of drafts and calls that take tokens
//! away, captured once and replayed with one call; positions advance on the device.
//!
//! A replay reads what the workspace holds at that time. Between replays, requests may be admitted, released
//! and assigned to rows while the shape stays. A graph does not borrow its workspace; the workspace's
//! [`Workspace::replay`] launches it.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::Slot;
use crate::driver::runtime::CapturedLaunches;
use crate::pipeline::assignment::DraftBatchId;
use crate::pipeline::copied_drafts::DraftCopyLaunch;
use crate::pipeline::exchange::firsts;
use crate::pipeline::rank_rows::{Exchange, ExchangeLayout, RankRows};
use crate::pipeline::shorten::ShortenLaunch;
use crate::pipeline::step::{Step, StepTerms};
use crate::pipeline::windows::Windows;
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::StepFeatures;
use crate::requests::step_variant::StepVariant;

/// What a graph runs at one point.
#[derive(Clone, Debug)]
pub enum Work<'b> {
    /// A step, a verification of drafts, or drafts of a batch.
    Step(Box<Step<'b>>),
    /// A copy of drafts.
    CopyDrafts(DraftCopyLaunch<'b>),
    /// Taking emitted tokens away.
    Shorten(ShortenLaunch<'b>),
}

impl Work<'_> {
    /// Returns what replays of a graph that holds the work must know of it.
    #[must_use]
    pub fn terms(&self) -> WorkTerms {
        match self {
            Work::Step(step) => WorkTerms::Step(Box::new(step.terms().clone())),
            Work::CopyDrafts(copy) => WorkTerms::CopyDrafts(copy.batch, copy.argument.rows as usize),
            Work::Shorten(shorten) => WorkTerms::Shorten(shorten.requests),
        }
    }

    fn launch(&self, workspace: &Workspace, needs: StepFeatures) -> crate::Result<()> {
        match self {
            Work::Step(step) => step.launch(workspace, needs),
            Work::CopyDrafts(copy) => copy.launch(workspace),
            Work::Shorten(shorten) => shorten.launch(workspace),
        }
    }
}

/// What work was fixed for.
#[derive(Clone, Debug)]
pub enum WorkTerms {
    /// A step, a verification of drafts, or drafts of a batch.
    Step(Box<StepTerms>),
    /// A copy of drafts: the batch, and its number of rows.
    CopyDrafts(DraftBatchId, usize),
    /// Taking emitted tokens away of this number of requests.
    Shorten(usize),
}

impl WorkTerms {
    /// Checks that the assignments still suit what was fixed for them, after at most `tokens` tokens more.
    fn check(&self, workspace: &Workspace, tokens: u64) -> Result<()> {
        let (assigned, fixed, of) = match self {
            Self::Step(step) => return step.check(workspace, tokens).map(drop),
            Self::CopyDrafts(batch, rows) => {
                let assigned = workspace.batch(Some(*batch))?.shape.rows;
                (assigned, *rows, "rows, for which the copy of drafts was fixed")
            }
            Self::Shorten(requests) => {
                (workspace.rows().requests(), *requests, "requests, of which tokens are taken away")
            }
        };
        if assigned == fixed {
            Ok(())
        } else {
            Err(Error::length("slots", assigned, format!("{fixed} {of}")))
        }
    }
}

/// What replays of a graph must know of its work, in the order in which it runs. [`Workspace::before_replay`]
/// takes that of graphs of the host program.
#[derive(Clone, Debug)]
pub struct Recorded {
    workspace: u64,
    work: Vec<WorkTerms>,
}

impl Recorded {
    /// Returns how many steps one replay runs, verifications included, but no drafts.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.all_steps().filter(|step| step.of.is_none()).count()
    }

    /// Returns what a replay runs, in this order.
    #[must_use]
    pub fn work(&self) -> &[WorkTerms] {
        &self.work
    }

    /// Returns the steps, those of drafts included.
    fn all_steps(&self) -> impl Iterator<Item = &StepTerms> {
        self.work.iter().filter_map(|work| match work {
            WorkTerms::Step(step) => Some(&**step),
            _ => None,
        })
    }

    /// Checks that rows are spread over ranks as they were at the capture, for a replay.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if the layout, the order of the rows, or the number of rows that a rank owns is
    ///   another.
    pub fn check_spread(&self, windows: &Windows, spread: &RankRows<'_>) -> Result<()> {
        let is_gather = spread.layout == ExchangeLayout::Gather;
        let is_same = |exchange: &Exchange| {
            exchange.layout == spread.layout
                // Where each rank has all rows, it does not matter whose they are.
                && (is_gather || exchange.first_rows == firsts(spread.first_rows))
                && exchange.results.first_requests == firsts(spread.first_requests)
                && exchange.results.batch_rows == windows.batch_rows()
        };
        let mut steps = self.all_steps().filter(|step| step.of.is_none());
        if steps.all(|step| step.exchange.as_ref().is_some_and(is_same)) {
            return Ok(());
        }
        let reason = "a graph over ranks was captured with another layout, or other numbers of rows of ranks";
        Err(Error::Conflict { parameter: "assignment", other: "graph", reason })
    }
}

/// Captured work of a workspace. The logits and all other buffers that it reads and writes live as long as
/// `'b`.
#[derive(Debug)]
pub struct Graph<'b> {
    /// The captured launches, by the features that they support. Freed before what was recorded, which has
    /// what carries their messages.
    launches: Vec<(StepFeatures, Box<dyn CapturedLaunches>)>,
    recorded: Recorded,
    memory: PhantomData<&'b ()>,
}

impl Graph<'_> {
    /// Returns how many steps one replay runs, verifications included, but no drafts.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.recorded.steps()
    }

    /// Returns what a replay runs.
    #[must_use]
    pub fn recorded(&self) -> &Recorded {
        &self.recorded
    }
}

impl Workspace {
    /// Enqueues a step on the workspace's stream and returns without waiting. Allocates nothing. The first
    /// launch of a kernel loads it, or compiles it, and that takes a while.
    ///
    /// Returns true if the step runs now. Returns false if the host program is capturing the stream: then the
    /// step becomes part of its graph, with the kernels of its [`StepVariant`]. Call
    /// [`Workspace::before_replay`] before replays of that graph.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if the step has a variant that does not serve an assigned row.
    /// - [`gumball_spec::Error::Conflict`] if it has none, and the host program is capturing the stream.
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::Conflict`] if the assignment's shape has
    ///   changed since the step was fixed.
    /// - [`gumball_spec::Error::OutOfRange`] if the assignment names a row that the logits do not have, or a
    ///   path is longer than the rows of paths; and if the batch of drafts was removed.
    /// - [`gumball_spec::Error::OutOfRange`] if the history of a row's request may have no capacity for
    ///   another token, or for the path in front of a row.
    /// - The errors of [`gumball_spec::SamplingParams::check_kind`] if the rows hold probabilities, and a
    ///   row's request has parameters defined for logits only.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails, or a kernel cannot be compiled.
    ///
    /// # Panics
    /// If another workspace fixed the step.
    pub fn enqueue(&self, step: &Step<'_>) -> Result<bool> {
        let terms = step.terms();
        let rows = terms.check(self, 0)?;
        terms.check_requests(rows)?;
        let needs =
            terms.variant.map_or_else(|| rows.needs(), |variant| rows.with_own_needs(variant.features()));
        if self.runtime.is_capturing()? {
            // The step does not run yet, and the host program may replay it for other requests.
            terms.variant.ok_or_else(unrecorded)?;
            step.launch(self, needs)?;
            return Ok(false);
        }
        self.requests.history_budget.spend(u64::from(terms.advances) * rows.tokens_per_step())?;
        step.launch(self, needs)?;
        self.count(terms, needs);
        Ok(true)
    }

    /// Enqueues work, as [`Workspace::enqueue`] does a step; `is_recorded`: whether its replays will be
    /// announced.
    ///
    /// # Errors
    /// The errors of [`Workspace::enqueue`].
    ///
    /// # Panics
    /// If another workspace fixed it.
    pub fn enqueue_work(&self, work: &Work<'_>, is_recorded: bool) -> Result<bool> {
        if let Work::Step(step) = work {
            return self.enqueue(step);
        }
        work.terms().check(self, 0)?;
        let is_capturing = self.runtime.is_capturing()?;
        if is_capturing && !is_recorded {
            return Err(unrecorded());
        }
        if let Work::Shorten(_) = work {
            self.requests.note_shortened(self.rows().assigned());
        }
        work.launch(self, StepFeatures::NONE)?;
        Ok(!is_capturing)
    }

    /// Counts a step that runs with kernels that support `needs`.
    fn count(&self, step: &StepTerms, needs: StepFeatures) {
        if step.of.is_none() {
            let served = step.variant.unwrap_or(self.rows().needed_variant());
            self.requests.count(needs.variant, served);
        }
    }

    /// Returns what replays must know of work that was fixed here and captured.
    #[must_use]
    pub fn recorded(&self, work: Vec<WorkTerms>) -> Recorded {
        Recorded { workspace: self.id, work }
    }

    /// Announces that the host program will replay graphs of its own, for the current assignments: once for
    /// each element.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if the variant of a step does not serve a row that is assigned
    ///   to it, or another workspace recorded the work.
    /// - The errors of [`Workspace::replay`] that concern assignments. Nothing has changed then.
    pub fn before_replay(&self, recorded: &[&Recorded]) -> Result<()> {
        self.announce(recorded).map(drop)
    }

    /// Checks recorded work against the assignments and counts it; returns the features that all rows need
    /// together.
    fn announce(&self, recorded: &[&Recorded]) -> Result<StepFeatures> {
        if recorded.iter().any(|recorded| recorded.workspace != self.id) {
            let allowed = "what this pool has recorded";
            return Err(Error::out_of_range("recorded", "that of another pool", allowed));
        }
        let tokens = self.tokens_of(recorded);
        let steps = || recorded.iter().flat_map(|recorded| recorded.all_steps());
        recorded.iter().flat_map(|recorded| &recorded.work).try_for_each(|work| work.check(self, tokens))?;
        let all = steps().try_fold(StepFeatures::NONE, |all, step| {
            let rows = self.batch(step.of)?;
            step.check_requests(rows)?;
            Ok::<_, Error>(all.union(rows.needs()))
        })?;
        self.requests.history_budget.spend(tokens)?;
        if recorded
            .iter()
            .flat_map(|recorded| &recorded.work)
            .any(|work| matches!(work, WorkTerms::Shorten(_)))
        {
            self.requests.note_shortened(self.rows().assigned());
        }
        let named = |variant: StepVariant| self.rows().with_own_needs(variant.features());
        steps().for_each(|step| self.count(step, step.variant.map_or(all, named)));
        Ok(all)
    }

    /// Returns the most tokens that replays append to the history of a row.
    fn tokens_of(&self, recorded: &[&Recorded]) -> u64 {
        let steps = recorded.iter().flat_map(|recorded| recorded.all_steps());
        let advancing = steps.filter(|step| step.advances).count() as u64;
        advancing.saturating_mul(self.rows().tokens_per_step())
    }

    /// Captures steps in the order in which a replay runs them. See [`Workspace::capture_work`].
    ///
    /// # Errors
    /// The errors of [`Workspace::capture_work`].
    ///
    /// # Panics
    /// If another workspace made a step.
    pub fn capture<'b>(&self, steps: &[Step<'b>]) -> Result<Graph<'b>> {
        self.capture_work(steps.iter().cloned().map(|step| Work::Step(Box::new(step))).collect())
    }

    /// Captures work in the order in which a replay runs it. Nothing runs during capture.
    ///
    /// The graph holds the launches for every combination of features, and a replay picks the one that its
    /// rows need.
    ///
    /// # Errors
    /// - The errors of [`Workspace::enqueue_work`] that concern assignments.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If another workspace made a step.
    pub fn capture_work<'b>(&self, work: Vec<Work<'b>>) -> Result<Graph<'b>> {
        let mut recorded = self.recorded(work.iter().map(Work::terms).collect());
        for work in &mut recorded.work {
            if let WorkTerms::Step(step) = work {
                step.variant = None;
            }
            work.check(self, 0)?;
        }
        let launch = |needs| work.iter().try_for_each(|work| work.launch(self, needs));
        self.runtime.load(&mut || StepFeatures::all().try_for_each(launch))?;
        let capture = |needs| Ok((needs, self.runtime.capture(&mut || launch(needs))?));
        let launches = StepFeatures::all().map(capture).collect::<crate::Result<Vec<_>>>()?;
        Ok(Graph { launches, recorded, memory: PhantomData })
    }

    /// Returns the slots of batches of drafts whose histories lack room for the paths that replays may read:
    /// each with the number of ids that it needs.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if a batch was removed.
    pub fn lacking_paths(&self, recorded: &[&Recorded]) -> Result<Vec<(Slot, u64)>> {
        let (tokens, mut lacking) = (self.tokens_of(recorded), Vec::new());
        let steps = recorded.iter().flat_map(|recorded| recorded.all_steps());
        for step in steps.filter(|step| step.of.is_some()) {
            let rows = self.batch(step.of)?.lacking(&self.requests, tokens);
            lacking.extend(rows.map(|(slot, count)| (slot, tokens.saturating_add(count.into()))));
        }
        Ok(lacking)
    }

    /// Enqueues the captured work on the workspace's stream, and returns without waiting. Allocates nothing.
    ///
    /// # Errors
    /// The errors of [`Workspace::enqueue`]. Each row's history must have capacity for the tokens of all
    /// captured steps, and for paths after them.
    ///
    /// # Panics
    /// If another workspace captured the graph.
    pub fn replay(&self, graph: &Graph<'_>) -> Result<()> {
        assert_eq!(graph.recorded.workspace, self.id, "a graph goes to the workspace that captured it");
        let needs = self.announce(&[&graph.recorded])?;
        let mut captured = graph.launches.iter();
        let launches = captured.find_map(|(features, launches)| (*features == needs).then_some(launches));
        let launches = launches.expect("a graph has launches for all features that rows can need");
        // SAFETY: `Work::launch` made the launches. Their buffers belong to this workspace, which is
        // alive. The creator of `Rows` guarantees the logits for the graph's lifetime.
        unsafe { launches.replay() }?;
        Ok(())
    }
}

/// The error of work that is enqueued while the host program captures a graph, whose replays would not be
/// told what they run.
fn unrecorded() -> Error {
    let reason = "record the work, so that its replays can be announced";
    Error::Conflict { parameter: "work", other: "the capture of a graph", reason }
}
