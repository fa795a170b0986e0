//! Launches that the CUDA driver captures in a graph, and their replays.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream, result};

use crate::driver::context_state::ContextState;
use crate::driver::runtime::CapturedLaunches;
use crate::driver::streams::Streams;
use crate::error::{Error, Result, failed};
use crate::programs::kernels::Kernel;

/// A graph of the driver, which is launched on the stream that its GPU uses at that time.
pub(crate) struct Captured {
    pub graph: CudaGraph,
    pub streams: Arc<Mutex<Streams>>,
    /// The kernels that the graph launches.
    pub kernels: Vec<Kernel>,
    pub state: Arc<ContextState>,
}

// SAFETY: any thread may launch or free a driver's graph, one thread at a time, which owning it ensures: it
// is not `Sync`.
unsafe impl Send for Captured {}

/// Captures what `launch` enqueues on a stream.
pub(crate) fn capture(stream: &Arc<CudaStream>, launch: &mut dyn FnMut() -> Result<()>) -> Result<CudaGraph> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).map_err(failed("cuStreamBeginCapture"))?;
    let launched = launch();
    let ended = stream.end_capture(CUgraphInstantiate_flags(0));
    launched?;
    let graph = ended.map_err(failed("cuStreamEndCapture"))?;
    graph.ok_or_else(|| Error::call("cuStreamEndCapture", "nothing was captured"))
}

impl CapturedLaunches for Captured {
    unsafe fn replay(&self) -> Result<()> {
        let current = Arc::clone(self.streams.lock().unwrap_or_else(PoisonError::into_inner).current());
        let stream = &current.cuda;
        self.kernels.iter().for_each(|kernel| self.state.launches(*kernel));
        self.state.in_context(stream.context(), || {
            // SAFETY: the graph and the stream are alive and of one context, which is current. The caller
            // guarantees what each launch points to.
            let launched = unsafe { result::graph::launch(self.graph.cu_graph_exec(), stream.cu_stream()) };
            launched.map_err(failed("cuGraphLaunch"))
        })
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").finish_non_exhaustive()
    }
}
