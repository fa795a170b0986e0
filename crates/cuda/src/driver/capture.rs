//! Captures launches on a stream as a graph of the CUDA driver.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};

use crate::driver::runtime::CapturedLaunches;
use crate::error::{Error, Result};

/// A graph of the CUDA driver.
struct Captured(CudaGraph);

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").finish_non_exhaustive()
    }
}

impl CapturedLaunches for Captured {
    unsafe fn replay(&self) -> Result<()> {
        self.0.launch().map_err(|error| Error::call("cuGraphLaunch", error))
    }
}

/// Captures what `launch` enqueues on a stream as a graph.
pub(crate) fn capture(
    stream: &Arc<CudaStream>,
    launch: &mut dyn FnMut() -> Result<()>,
) -> Result<Box<dyn CapturedLaunches>> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).map_err(|error| Error::call("cuStreamBeginCapture", error))?;
    let launched = launch();
    let ended = stream.end_capture(CUgraphInstantiate_flags(0));
    launched?;
    let graph = ended.map_err(|error| Error::call("cuStreamEndCapture", error))?;
    let graph = graph.ok_or_else(|| Error::call("cuStreamEndCapture", "nothing was captured"))?;
    Ok(Box::new(Captured(graph)))
}
