//! Streams of the host program: a GPU works on the one that the program names, in order with its work there.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstream;

use crate::driver::gpu::Gpu;
use crate::driver::streams::{handle, is_capturing};
use crate::error::{Result, failed};

impl Gpu {
    /// Sends later work to a stream of the host program, torch's current one for example, after the work that
    /// was enqueued before. This holds for all objects that were made with this GPU.
    ///
    /// Launches and copies are then in stream order with the work of the host program, so neither side has to
    /// wait. If the stream is under capture, launches go to the captured graph.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the driver fails, or has no page-locked memory to give.
    ///
    /// # Safety
    /// `stream` is the handle of a stream (`CUstream`, `cudaStream_t`; 0 is the default stream) of the
    /// device's primary context. It outlives this value and all objects made with it.
    pub unsafe fn use_stream(&self, stream: usize) -> Result<()> {
        // SAFETY: the caller guarantees that the stream is of this context and lives long enough.
        self.device.state.call(|| self.streams().switch(stream, || unsafe { self.borrowed(stream) }))
    }

    /// Makes later work of this GPU wait for the work that is already on a stream of the host program.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the driver fails.
    ///
    /// # Safety
    /// `stream` is the handle of a live stream of the device's primary context.
    pub unsafe fn order_after(&self, stream: usize) -> Result<()> {
        // SAFETY: the caller guarantees that the stream is a live one of this context.
        let earlier = unsafe { self.borrowed(stream) };
        let streams = self.streams();
        let current = &streams.current().cuda;
        if handle(current) == stream {
            return Ok(());
        }
        self.device.state.call(|| streams.wait(current, &earlier))
    }

    /// Makes later work on a stream of the host program wait for the work that this GPU has enqueued, unless
    /// the stream is under capture.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the driver fails.
    ///
    /// # Safety
    /// `stream` is the handle of a live stream of the device's primary context.
    pub unsafe fn order_before(&self, stream: usize) -> Result<()> {
        // SAFETY: the caller guarantees that the stream is a live one of this context.
        let later = unsafe { self.borrowed(stream) };
        let streams = self.streams();
        self.device.state.call(|| {
            if handle(streams.last_work_stream()) == stream || is_capturing(&later)? {
                return Ok(());
            }
            streams.wait(&later, streams.last_work_stream())
        })
    }

    /// Returns the handle of the stream in use.
    #[must_use]
    pub fn stream(&self) -> usize {
        handle(&self.current().cuda)
    }

    /// Waits until the stream in use has done its work.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the driver fails, or work that was enqueued before has
    ///   failed.
    pub fn synchronize(&self) -> Result<()> {
        self.wait(|stream| stream.cuda.synchronize().map_err(failed("cuStreamSynchronize")))
    }

    /// Returns a stream of the host program by its handle. Dropping the value does not destroy the stream.
    ///
    /// # Safety
    /// `stream` is the handle of a stream of this context, which outlives the returned value.
    pub(crate) unsafe fn borrowed(&self, stream: usize) -> Arc<CudaStream> {
        // SAFETY: the caller guarantees that the stream is of this context and lives long enough.
        unsafe { self.device.context.wrap_borrowed_stream(stream as CUstream) }
    }
}
