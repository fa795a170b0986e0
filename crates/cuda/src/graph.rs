//! Graphs: steps captured once and replayed with one call, positions advancing on the device.

use std::fmt;
use std::marker::PhantomData;

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::step::Step;

/// Steps that were captured. What they read and write outlives `'w`.
pub struct Graph<'w> {
    graph: CudaGraph,
    steps: PhantomData<&'w ()>,
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}

impl Gpu {
    /// Captures steps, to be replayed in this order. The steps' workspaces must be of this device.
    ///
    /// # Errors
    /// - [`Error::Call`] with what the driver says.
    pub fn capture<'w>(&self, steps: &[Step<'w>]) -> Result<Graph<'w>> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let begun = self.stream().begin_capture(mode);
        begun.map_err(|error| Error::call("cuStreamBeginCapture", error))?;
        let enqueued: Result<()> = steps.iter().try_for_each(Step::enqueue_kernels);
        let ended = self.stream().end_capture(CUgraphInstantiate_flags(0));
        enqueued?;
        let graph = ended.map_err(|error| Error::call("cuStreamEndCapture", error))?;
        let graph = graph.ok_or_else(|| Error::call("cuStreamEndCapture", "nothing was captured"))?;
        Ok(Graph { graph, steps: PhantomData })
    }
}

impl Gpu {
    /// Returns how long the device takes for what a function enqueues, in microseconds, by its own clock.
    ///
    /// # Errors
    /// - [`Error::Call`] with what the driver says, and the function's own.
    pub fn elapsed_us(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<f32> {
        let failed = |error| Error::call("timing by events", error);
        let event = || self.stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(failed);
        let began = event()?;
        enqueue()?;
        let ended = event()?;
        ended.synchronize().map_err(failed)?;
        Ok(1000.0 * began.elapsed_ms(&ended).map_err(failed)?)
    }
}

impl Graph<'_> {
    /// Enqueues the captured steps on the device's stream. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// - [`Error::Call`] with what the driver says.
    pub fn replay(&self) -> Result<()> {
        self.graph.launch().map_err(|error| Error::call("cuGraphLaunch", error))
    }
}
