//! Graphs: steps that are captured once and replayed with one call; positions advance on the device.
//!
//! A replay reads what the workspace holds at that time. Between replays, requests may be admitted, released
//! and assigned to rows while the shape stays. A graph does not borrow its workspace; the workspace's
//! [`Workspace::replay`] launches it.

use std::marker::PhantomData;

use gumball_spec::{Kind, Result};

use crate::driver::runtime::CapturedLaunches;
use crate::pipeline::assignment::Shape;
use crate::pipeline::step::Step;
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::StepFeatures;

/// Captured steps of a workspace; their logits live as long as `'b`.
#[derive(Debug)]
pub struct Graph<'b> {
    workspace: u64,
    steps: usize,
    /// How many of them advance requests.
    advancing: u64,
    shape: Shape,
    /// [`Kind::Probabilities`] if any step reads rows of probabilities.
    kind: Kind,
    /// The smallest number of logits rows that any of the steps has.
    logits_rows: usize,
    /// The captured launches, by the features that they support.
    launches: Vec<(StepFeatures, Box<dyn CapturedLaunches>)>,
    memory: PhantomData<&'b ()>,
}

impl Graph<'_> {
    /// Returns how many steps one replay runs.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps
    }
}

impl Workspace {
    /// Captures steps in the order in which a replay runs them. Nothing runs during capture.
    ///
    /// The graph holds the launches for every combination of features, and a replay picks the one that its
    /// rows need.
    ///
    /// # Errors
    /// - Those of [`Workspace::enqueue`].
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If another workspace made a step.
    pub fn capture<'b>(&self, steps: &[Step<'b>]) -> Result<Graph<'b>> {
        steps.iter().try_for_each(|step| self.check(step.shape, step.logits_rows))?;
        let launch = |needs| steps.iter().try_for_each(|step| self.enqueue_kernels(step, needs));
        self.runtime.load(&mut || StepFeatures::all().try_for_each(launch))?;
        let capture = |needs| Ok((needs, self.runtime.capture(&mut || launch(needs))?));
        let launches = StepFeatures::all().map(capture).collect::<crate::Result<Vec<_>>>()?;
        let advancing = steps.iter().map(Step::advances).sum();
        let logits_rows = steps.iter().map(|step| step.logits_rows).min().unwrap_or(usize::MAX);
        let probabilities = steps.iter().any(|step| step.kind == Kind::Probabilities);
        Ok(Graph {
            workspace: self.id,
            steps: steps.len(),
            advancing,
            shape: self.assigned.shape,
            kind: if probabilities { Kind::Probabilities } else { Kind::Logits },
            logits_rows,
            launches,
            memory: PhantomData,
        })
    }

    /// Enqueues the captured steps on the workspace's stream, and returns without waiting. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`Workspace::enqueue`]. Each row's history must have capacity for the tokens of all captured
    /// steps.
    ///
    /// # Panics
    /// If another workspace captured the graph.
    pub fn replay(&self, graph: &Graph<'_>) -> Result<()> {
        assert_eq!(graph.workspace, self.id, "a graph goes to the workspace that captured it");
        self.check(graph.shape, graph.logits_rows)?;
        self.check_kind(graph.kind)?;
        self.spend(graph.advancing)?;
        let needs = self.needs();
        let mut captured = graph.launches.iter();
        let launches = captured.find_map(|(features, launches)| (*features == needs).then_some(launches));
        let launches = launches.expect("a graph has launches for all features that rows can need");
        // SAFETY: `enqueue_kernels` made the launches. Their buffers belong to this workspace, which is
        // alive. The creator of `Rows` guarantees the logits for the graph's lifetime.
        unsafe { launches.replay() }?;
        self.counters.count(needs.variant, self.needed_variant(), graph.steps as u64);
        Ok(())
    }
}
