//! Work that is enqueued: steps one by one, or a graph of steps, copies of drafts and calls that take tokens away, captured once and
//! replayed with one call; positions advance on the device.
//!
//! A replay reads what the workspace holds at that time. Between replays, requests may be admitted, released
//! and assigned to rows while the shape stays. A graph does not borrow its workspace; the workspace's
//! [`Workspace::replay`] launches it.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::Slot;
use crate::driver::runtime::CapturedLaunches;
use crate::pipeline::copied_drafts::DraftCopyLaunch;
use crate::pipeline::exchange::firsts;
use crate::pipeline::rank_rows::{Exchange, ExchangeLayout, RankRows};
use crate::pipeline::shorten::ShortenLaunch;
use crate::pipeline::step::Step;
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
    /// Checks that the assignments still suit what was fixed for them, behind at most `tokens` tokens more.
    fn check(&self, workspace: &Workspace, tokens: u64) -> Result<()> {
        match self {
            Work::Step(step) => step.check(workspace, tokens),
            Work::CopyDrafts(copy) => copy.check(workspace),
            Work::Shorten(shorten) => shorten.check(workspace),
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

/// Captured work of a workspace. The logits and all other buffers that it reads and writes live as long as `'b`.
#[derive(Debug)]
pub struct Graph<'b> {
    workspace: u64,
    /// The captured launches, by the features that they support. Freed before the work, which has what carries their messages.
    launches: Vec<(StepFeatures, Box<dyn CapturedLaunches>)>,
    work: Vec<Work<'b>>,
    /// How many of the steps advance requests.
    advancing: u64,
    memory: PhantomData<&'b ()>,
}

impl<'b> Graph<'b> {
    /// Returns how many steps one replay runs, verifications included, but no drafts.
    #[must_use]
    pub fn steps(&self) -> usize {
        steps_of(&self.work).filter(|step| step.of.is_none()).count()
    }

    /// Returns what a replay runs, in this order.
    #[must_use]
    pub fn work(&self) -> &[Work<'b>] {
        &self.work
    }

    /// Checks that rows are spread over ranks as they were when the graph was captured, for a replay.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if the layout, the order of the rows, or the number of rows that a rank owns is another.
    pub fn check_spread(&self, windows: &Windows, spread: &RankRows<'_>) -> Result<()> {
        let is_gather = spread.layout == ExchangeLayout::Gather;
        let is_same = |exchange: &Exchange| {
            exchange.layout == spread.layout
                // Where each rank has all rows, it does not matter whose they are.
                && (is_gather || exchange.first_rows == firsts(spread.first_rows))
                && exchange.results.first_requests == firsts(spread.first_requests)
                && exchange.results.batch_rows == windows.batch_rows()
        };
        let mut steps = steps_of(&self.work).filter(|step| step.of.is_none());
        if steps.all(|step| step.exchange.as_ref().is_some_and(is_same)) {
            return Ok(());
        }
        let reason = "a graph over ranks was captured with another layout, or other numbers of rows of ranks";
        Err(Error::Conflict { parameter: "assignment", other: "graph", reason })
    }

    /// Returns the most tokens that a replay appends to the history of a row.
    fn tokens(&self, workspace: &Workspace) -> u64 {
        self.advancing.saturating_mul(workspace.rows().tokens_per_step())
    }
}

/// Returns the steps of some work, those of drafts included.
fn steps_of<'a, 'b>(work: &'a [Work<'b>]) -> impl Iterator<Item = &'a Step<'b>> {
    work.iter().filter_map(|work| match work {
        Work::Step(step) => Some(&**step),
        _ => None,
    })
}

impl Workspace {
    /// Enqueues a step on the workspace's stream and returns without waiting. Allocates nothing. The first
    /// launch of a kernel loads it, or compiles it, and that takes a while.
    ///
    /// Returns true if the step runs now. Returns false if the host program is capturing the stream: then the
    /// step becomes part of its graph, with the kernels of its [`StepVariant`], or of [`StepVariant::Full`] if
    /// it has none. Call [`Workspace::reserve_replays`] before replays of that graph.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if the step has a variant that does not serve an assigned row.
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::Conflict`] if the assignment's shape has changed since the step was
    ///   fixed.
    /// - [`gumball_spec::Error::OutOfRange`] if the assignment names a row that the logits do not have, or a path is longer than the rows
    ///   of paths; and if the batch of drafts was removed.
    /// - [`gumball_spec::Error::OutOfRange`] if the history of a row's request may have no capacity for another token, or for the path in
    ///   front of a row.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`] if the rows hold probabilities, and a row's
    ///   request has parameters defined for logits only.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails, or a kernel cannot be compiled.
    ///
    /// # Panics
    /// If another workspace fixed the step.
    pub fn enqueue(&self, step: &Step<'_>) -> Result<bool> {
        step.check(self, 0)?;
        let rows = self.batch(step.of)?;
        rows.check_kind(step.kind)?;
        step.variant.map_or(Ok(()), |variant| rows.check_variant(variant))?;
        let features = |variant: StepVariant| rows.with_own_needs(variant.features());
        if self.runtime.is_capturing()? {
            // The step does not run yet, and the host program may replay it for other requests.
            let variant = step.variant.unwrap_or(StepVariant::Full);
            rows.captured.note(step.kind, variant);
            step.launch(self, features(variant))?;
            return Ok(false);
        }
        self.requests.spend(step.advances() * rows.tokens_per_step())?;
        let needs = step.variant.map_or_else(|| rows.needs(), features);
        step.launch(self, needs)?;
        if step.of.is_none() {
            self.requests.counters.count(needs.variant, step.variant.unwrap_or(rows.needed_variant()), 1);
        }
        Ok(true)
    }

    /// Announces that the host program will replay graphs of its own that run `steps` steps of this workspace
    /// in total, for the current assignment. All of them were captured under `variant`.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if the variant does not serve an assigned row.
    /// - [`gumball_spec::Error::OutOfRange`] if the history of a row's request may have no capacity for `steps` tokens.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`] if a step on rows of probabilities was ever
    ///   captured. They concern requests of rows whose parameters are defined for logits only.
    ///
    /// The first and the last concern the rows of batches of drafts as well, with the variants that those were captured with.
    pub fn reserve_replays(&self, steps: u64, variant: StepVariant) -> Result<()> {
        let rows = self.rows();
        rows.check_kind(rows.captured.kind())?;
        rows.check_variant(variant)?;
        for batch in self.batches_of_drafts() {
            batch.check_kind(batch.captured.kind())?;
            batch.captured.variant().map_or(Ok(()), |variant| batch.check_variant(variant))?;
        }
        self.requests.spend(steps.saturating_mul(rows.tokens_per_step()))?;
        self.requests.counters.count(rows.with_own_needs(variant.features()).variant, variant, steps);
        Ok(())
    }

    /// Captures steps in the order in which a replay runs them. See [`Workspace::capture_work`].
    ///
    /// # Errors
    /// Those of [`Workspace::capture_work`].
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
    /// - Those of [`Workspace::enqueue`], [`DraftCopyLaunch::enqueue`] and [`ShortenLaunch::enqueue`] that concern assignments.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If another workspace made a step.
    pub fn capture_work<'b>(&self, work: Vec<Work<'b>>) -> Result<Graph<'b>> {
        work.iter().try_for_each(|work| work.check(self, 0))?;
        let launch = |needs| work.iter().try_for_each(|work| work.launch(self, needs));
        self.runtime.load(&mut || StepFeatures::all().try_for_each(launch))?;
        let capture = |needs| Ok((needs, self.runtime.capture(&mut || launch(needs))?));
        let launches = StepFeatures::all().map(capture).collect::<crate::Result<Vec<_>>>()?;
        let advancing = steps_of(&work).map(Step::advances).sum();
        Ok(Graph { workspace: self.id, advancing, launches, work, memory: PhantomData })
    }

    /// Returns the slots of batches of drafts in a graph whose histories lack room for the paths that a replay may read: each with the
    /// number of ids that it needs.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if a batch was removed.
    pub fn lacking_paths(&self, graph: &Graph<'_>) -> Result<Vec<(Slot, u64)>> {
        let (tokens, mut lacking) = (graph.tokens(self), Vec::new());
        for step in steps_of(&graph.work).filter(|step| step.of.is_some()) {
            let rows = self.batch(step.of)?.lacking(&self.requests, tokens);
            lacking.extend(rows.map(|(slot, count)| (slot, tokens.saturating_add(count.into()))));
        }
        Ok(lacking)
    }

    /// Enqueues the captured work on the workspace's stream, and returns without waiting. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`Workspace::enqueue`]. Each row's history must have capacity for the tokens of all captured steps, and for paths behind
    /// them.
    ///
    /// # Panics
    /// If another workspace captured the graph.
    pub fn replay(&self, graph: &Graph<'_>) -> Result<()> {
        assert_eq!(graph.workspace, self.id, "a graph goes to the workspace that captured it");
        let tokens = graph.tokens(self);
        graph.work.iter().try_for_each(|work| work.check(self, tokens))?;
        let mut needs = StepFeatures::NONE;
        for step in steps_of(&graph.work) {
            let rows = self.batch(step.of)?;
            rows.check_kind(step.kind)?;
            needs = needs.union(rows.needs());
        }
        self.requests.spend(tokens)?;
        let mut captured = graph.launches.iter();
        let launches = captured.find_map(|(features, launches)| (*features == needs).then_some(launches));
        let launches = launches.expect("a graph has launches for all features that rows can need");
        // SAFETY: `Work::launch` made the launches. Their buffers belong to this workspace, which is
        // alive. The creator of `Rows` guarantees the logits for the graph's lifetime.
        unsafe { launches.replay() }?;
        self.requests.counters.count(needs.variant, self.rows().needed_variant(), graph.steps() as u64);
        Ok(())
    }
}
