//! Graphs: steps captured once and replayed with one call, positions advancing on the device.
//!
//! A graph reads what its workspace holds at the time of a replay: requests may be admitted, released and assigned to
//! rows in between, as long as the shape stays. It holds no borrow of the workspace, so it is replayed through it.

use std::fmt;
use std::marker::PhantomData;

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use gumball_spec::{Kind, Result};

use crate::error::{self, Error};
use crate::gpu::Gpu;
use crate::runtime::CapturedLaunches;
use crate::step::Step;
use crate::variant::StepFeatures;
use crate::workspace::{Shape, Workspace};

/// Steps of a workspace that were captured; their logits live as long as `'b`.
#[derive(Debug)]
pub struct Graph<'b> {
    workspace: u64,
    steps: usize,
    /// By how many tokens they can move a request on.
    moves: u64,
    shape: Shape,
    /// Whether any of them is on rows of probabilities.
    kind: Kind,
    /// How few lines the logits of a step have.
    lines: usize,
    /// With what rows may need.
    recordings: Vec<(StepFeatures, Box<dyn CapturedLaunches>)>,
    memory: PhantomData<&'b ()>,
}

impl Graph<'_> {
    /// Returns how many steps a replay takes.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps
    }
}

impl Workspace {
    /// Captures steps, to be replayed in this order, for whatever rows may need. Nothing runs yet.
    ///
    /// # Errors
    /// - Those of [`Workspace::enqueue`].
    /// - [`gumball_spec::Error::Unavailable`] if the machine fails.
    ///
    /// # Panics
    /// If a step was fixed by another workspace.
    pub fn capture<'b>(&self, steps: &[Step<'b>]) -> Result<Graph<'b>> {
        steps.iter().try_for_each(|step| self.check(step.shape, step.lines))?;
        let record = |needs: StepFeatures| {
            let mut launch = || steps.iter().try_for_each(|step| self.enqueue_kernels(step, needs));
            Ok((needs, self.machine.record(&mut launch)?))
        };
        let recordings = StepFeatures::all().map(record).collect::<crate::Result<Vec<_>>>()?;
        let moves = steps.iter().map(Step::moves).sum();
        let lines = steps.iter().map(|step| step.lines).min().unwrap_or(usize::MAX);
        let probabilities = steps.iter().any(|step| step.kind == Kind::Probabilities);
        Ok(Graph {
            workspace: self.id,
            steps: steps.len(),
            moves,
            shape: self.assigned.shape,
            kind: if probabilities { Kind::Probabilities } else { Kind::Logits },
            lines,
            recordings,
            memory: PhantomData,
        })
    }

    /// Enqueues the captured steps on the machine's stream. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// Those of [`Workspace::enqueue`]; the histories must have room for as many tokens as there are steps.
    ///
    /// # Panics
    /// If the graph was captured by another workspace.
    pub fn replay(&self, graph: &Graph<'_>) -> Result<()> {
        assert_eq!(graph.workspace, self.id, "a graph goes to the workspace that captured it");
        self.check(graph.shape, graph.lines)?;
        self.check_kind(graph.kind)?;
        self.spend(graph.moves)?;
        let needs = self.needs();
        let recording = graph.recordings.iter().find_map(|(serves, it)| (*serves == needs).then_some(it));
        let recording = recording.expect("there is one for all that rows may need");
        // SAFETY: the launches are those of `enqueue_kernels`, whose buffers are this workspace's and live; for the logits
        // whoever made `Rows` vouches, for as long as the graph's lifetime.
        unsafe { recording.replay() }?;
        self.served.count(needs.variant, graph.steps as u64);
        Ok(())
    }
}

/// A graph of the driver.
struct Captured(CudaGraph);

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").finish_non_exhaustive()
    }
}

impl CapturedLaunches for Captured {
    unsafe fn replay(&self) -> error::Result<()> {
        self.0.launch().map_err(|error| Error::call("cuGraphLaunch", error))
    }
}

impl Gpu {
    /// Captures what a function launches.
    pub(crate) fn captured(
        &self,
        launch: &mut dyn FnMut() -> error::Result<()>,
    ) -> error::Result<Box<dyn CapturedLaunches>> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let begun = self.stream().begin_capture(mode);
        begun.map_err(|error| Error::call("cuStreamBeginCapture", error))?;
        let launched = launch();
        let ended = self.stream().end_capture(CUgraphInstantiate_flags(0));
        launched?;
        let graph = ended.map_err(|error| Error::call("cuStreamEndCapture", error))?;
        let graph = graph.ok_or_else(|| Error::call("cuStreamEndCapture", "nothing was captured"))?;
        Ok(Box::new(Captured(graph)))
    }

    /// Returns how long the device takes for what a function enqueues, in microseconds, by its own clock.
    ///
    /// # Errors
    /// - [`Error::Call`] with what the driver says, and the function's own.
    pub fn elapsed_us<E: From<Error>>(
        &self,
        enqueue: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<f32, E> {
        let failed = |error| Error::call("timing by events", error);
        let event = || self.stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(failed);
        let began = event()?;
        enqueue()?;
        let ended = event()?;
        ended.synchronize().map_err(failed)?;
        Ok(1000.0 * began.elapsed_ms(&ended).map_err(failed)?)
    }
}
