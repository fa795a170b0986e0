//! The state that CUDA keeps for each host thread. The host program finds it as it was before a call.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUcontext, CUstreamCaptureMode};

/// Whether the driver's library was found. The search takes a while.
static DRIVER_FOUND: AtomicBool = AtomicBool::new(false);

/// Returns whether there is a CUDA driver.
pub(crate) fn driver_is_present() -> bool {
    if !DRIVER_FOUND.load(Ordering::Relaxed) {
        // SAFETY: this loads the driver's library and runs its initialisers, which have no preconditions.
        DRIVER_FOUND.store(unsafe { sys::is_culib_present() }, Ordering::Relaxed);
    }
    DRIVER_FOUND.load(Ordering::Relaxed)
}

/// The calling thread's current context and capture mode, restored when dropped.
///
/// torch, for example, may be working on another device than a pool's, or on none yet, and may be capturing a
/// stream. Until the value is dropped, the thread may allocate and free memory, and wait for events, although
/// another stream is under capture; captured graphs contain nothing of that.
#[derive(Debug)]
pub struct CudaThreadState {
    context: CUcontext,
    /// Restored after the context, when the fields are dropped.
    _mode: RelaxedCapture,
}

impl CudaThreadState {
    /// Saves the state of the calling thread; `None` if there is no CUDA driver.
    #[must_use]
    pub fn save() -> Option<Self> {
        driver_is_present().then(|| Self { context: current_context(), _mode: RelaxedCapture::begin() })
    }
}

impl Drop for CudaThreadState {
    fn drop(&mut self) {
        if current_context() != self.context {
            // SAFETY: `self.context` was the thread's current context when this was made, and its owner keeps
            // it alive. If the call fails, so does the host program's next one, which reports it.
            let _ = unsafe { result::ctx::set_current(self.context) };
        }
    }
}

/// Returns the current context of the calling thread, null if it has none.
fn current_context() -> CUcontext {
    result::ctx::get_current().ok().flatten().unwrap_or(std::ptr::null_mut())
}

/// Lets the calling thread allocate memory while a stream is under capture; the captured graph does not
/// contain the allocation. The thread's former mode returns when this is dropped.
#[derive(Debug)]
pub(crate) struct RelaxedCapture(Option<CUstreamCaptureMode>);

impl RelaxedCapture {
    /// Begins.
    ///
    /// # Panics
    /// If there is no driver.
    pub fn begin() -> Self {
        Self(exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(mode) = self.0 {
            exchange(mode);
        }
    }
}

/// Sets the capture mode of the calling thread and returns the former one; `None` if the driver refuses.
fn exchange(mut mode: CUstreamCaptureMode) -> Option<CUstreamCaptureMode> {
    // SAFETY: the function has no preconditions; `mode` is a live value, which receives the former mode.
    let status = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    status.result().is_ok().then_some(mode)
}
