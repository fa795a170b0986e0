//! Graphs: steps, and what drafts for them, captured once and replayed with one call; positions advance on the device.
//!
//! A replay reads what the workspace holds at that time. Between replays, requests may be admitted, released
//! and assigned to rows while the shape stays. A graph does not borrow its workspace; the workspace's
//! [`Workspace::replay`] launches it.

use std::marker::PhantomData;

use gumball_spec::{Kind, Result};

use crate::abi::Slot;
use crate::driver::runtime::CapturedLaunches;
use crate::pipeline::assignment::Shape;
use crate::pipeline::copied_drafts::DraftCopyLaunch;
use crate::pipeline::drafts::DraftLaunch;
use crate::pipeline::shorten::ShortenLaunch;
use crate::pipeline::step::Step;
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::StepFeatures;

/// What a graph runs at one point.
#[derive(Clone, Debug)]
pub enum Work<'b> {
    /// A step, or a verification of drafts.
    Step(Box<Step<'b>>),
    /// Drafts of a batch.
    Drafts(Box<DraftLaunch<'b>>),
    /// A copy of drafts.
    CopyDrafts(DraftCopyLaunch<'b>),
    /// Taking emitted tokens away.
    Shorten(ShortenLaunch<'b>),
}

/// Captured work of a workspace. The logits and all other buffers that it reads and writes live as long as `'b`.
#[derive(Debug)]
pub struct Graph<'b> {
    workspace: u64,
    work: Vec<Work<'b>>,
    /// How many of the steps advance requests.
    advancing: u64,
    /// The shape of the assignment, if any step needs it.
    shape: Option<Shape>,
    /// [`Kind::Probabilities`] if any step reads rows of probabilities.
    kind: Kind,
    /// The smallest number of logits rows that any of the steps has.
    logits_rows: usize,
    /// The captured launches, by the features that they support.
    launches: Vec<(StepFeatures, Box<dyn CapturedLaunches>)>,
    memory: PhantomData<&'b ()>,
}

impl<'b> Graph<'b> {
    /// Returns how many steps one replay runs, verifications included.
    #[must_use]
    pub fn steps(&self) -> usize {
        steps_of(&self.work).count()
    }

    /// Returns what a replay runs, in this order.
    #[must_use]
    pub fn work(&self) -> &[Work<'b>] {
        &self.work
    }
}

fn steps_of<'a, 'b>(work: &'a [Work<'b>]) -> impl Iterator<Item = &'a Step<'b>> {
    work.iter().filter_map(|work| match work {
        Work::Step(step) => Some(&**step),
        _ => None,
    })
}

impl Workspace {
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
    /// - Those of [`Workspace::enqueue`], [`Workspace::enqueue_drafts`], [`Workspace::enqueue_copied_drafts`] and
    ///   [`Workspace::enqueue_shorten`].
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If another workspace made a step.
    pub fn capture_work<'b>(&self, work: Vec<Work<'b>>) -> Result<Graph<'b>> {
        let steps = || steps_of(&work);
        steps().try_for_each(|step| self.rows().check(step.shape, step.logits_rows))?;
        self.check_drafting(&work, 0)?;
        let launch = |needs| work.iter().try_for_each(|work| self.launch_work(work, needs));
        self.runtime.load(&mut || StepFeatures::all().try_for_each(launch))?;
        let capture = |needs| Ok((needs, self.runtime.capture(&mut || launch(needs))?));
        let launches = StepFeatures::all().map(capture).collect::<crate::Result<Vec<_>>>()?;
        let advancing = steps().map(Step::advances).sum();
        let logits_rows = steps().map(|step| step.logits_rows).min().unwrap_or(usize::MAX);
        let probabilities = steps().any(|step| step.kind == Kind::Probabilities);
        let shape = steps().next().map(|step| step.shape);
        Ok(Graph {
            workspace: self.id,
            advancing,
            shape,
            kind: if probabilities { Kind::Probabilities } else { Kind::Logits },
            logits_rows,
            launches,
            work,
            memory: PhantomData,
        })
    }

    /// Checks that batches of drafts, and the requests of which tokens are taken away, suit what was fixed for them, behind at most
    /// `steps` steps of the assigned rows.
    fn check_drafting(&self, work: &[Work<'_>], steps: u64) -> Result<()> {
        let tokens = steps.saturating_mul(self.rows().tokens_per_step());
        work.iter().try_for_each(|work| match work {
            Work::Step(_) => Ok(()),
            Work::Drafts(drafts) => self.check_drafts(drafts, tokens),
            Work::CopyDrafts(copy) => self.check_copied_drafts(copy),
            Work::Shorten(shorten) => self.check_shorten(shorten),
        })
    }

    fn launch_work(&self, work: &Work<'_>, needs: StepFeatures) -> crate::Result<()> {
        match work {
            Work::Step(step) => self.enqueue_kernels(step, needs),
            Work::Drafts(drafts) => self.launch_drafts(drafts, needs),
            Work::CopyDrafts(copy) => self.launch_copied_drafts(copy),
            Work::Shorten(shorten) => self.launch_shorten(shorten),
        }
    }

    /// Returns the slots of batches of drafts in a graph whose histories lack room for the paths that a replay may read: each with the
    /// number of ids that it needs.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if a batch was removed.
    pub fn lacking_paths(&self, graph: &Graph<'_>) -> Result<Vec<(Slot, u64)>> {
        let tokens = graph.advancing.saturating_mul(self.rows().tokens_per_step());
        let mut lacking = Vec::new();
        for work in &graph.work {
            let Work::Drafts(drafts) = work else { continue };
            let rows = self.batch(Some(drafts.batch))?.lacking(&self.requests, tokens);
            lacking.extend(rows.map(|(slot, count)| (slot, tokens.saturating_add(count.into()))));
        }
        Ok(lacking)
    }

    /// Enqueues the captured work on the workspace's stream, and returns without waiting. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`Workspace::enqueue`] and of [`Workspace::enqueue_drafts`]. Each row's history must have capacity for the tokens of all
    /// captured steps, and for paths behind them.
    ///
    /// # Panics
    /// If another workspace captured the graph.
    pub fn replay(&self, graph: &Graph<'_>) -> Result<()> {
        assert_eq!(graph.workspace, self.id, "a graph goes to the workspace that captured it");
        let rows = self.rows();
        if let Some(shape) = graph.shape {
            rows.check(shape, graph.logits_rows)?;
            rows.check_kind(graph.kind)?;
        }
        self.check_drafting(&graph.work, graph.advancing)?;
        let mut needs = if graph.shape.is_some() { rows.needs() } else { StepFeatures::NONE };
        for work in &graph.work {
            if let Work::Drafts(drafts) = work {
                needs = needs.union(self.batch(Some(drafts.batch))?.needs());
            }
        }
        self.requests.spend(graph.advancing.saturating_mul(rows.tokens_per_step()))?;
        let mut captured = graph.launches.iter();
        let launches = captured.find_map(|(features, launches)| (*features == needs).then_some(launches));
        let launches = launches.expect("a graph has launches for all features that rows can need");
        // SAFETY: `enqueue_kernels` made the launches. Their buffers belong to this workspace, which is
        // alive. The creator of `Rows` guarantees the logits for the graph's lifetime.
        unsafe { launches.replay() }?;
        self.requests.counters.count(needs.variant, rows.needed_variant(), graph.steps() as u64);
        Ok(())
    }
}
