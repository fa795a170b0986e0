//! Streams: a GPU whose work goes to the stream that the host program works on at the time.
//!
//! An engine's pool keeps one machine. This one is that machine, and passes everything on to the same device on the stream
//! that was named last. What follows on another stream is put behind what came before by an event, so that a pool's work
//! has one order, whatever streams the host program moves through. A stream under capture is left out of that: nothing runs
//! there, and the order counts when the graph is replayed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUstreamCaptureMode};
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result};
use gumball_engine::cuda::{self, CapturedLaunches, Gpu, Grid, Kernel, KernelModule, Runtime};
use pyo3::prelude::*;

use crate::errors::{passes, wrong_type};

/// Handles of default streams, which cannot be captured: none given, the legacy one, the thread's.
const DEFAULT_STREAMS: [usize; 3] = [0, 1, 2];

/// The device on the stream in use.
#[derive(Debug)]
pub struct Streams {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The device on a stream of its own, on which graphs are recorded where the one in use cannot be.
    own: Arc<Gpu>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// Each stream that was in use; few.
    gpus: Vec<Arc<Gpu>>,
    current: Arc<Gpu>,
    /// The one behind whose work all that follows belongs.
    behind: Arc<Gpu>,
    /// Marks a place on one stream for another to wait for. A wait goes by the mark as it is at the time, so one is enough.
    mark: CudaEvent,
}

fn handle(gpu: &Gpu) -> usize {
    gpu.stream().cu_stream() as usize
}

fn failed(error: DriverError) -> cuda::Error {
    cuda::Error::Call { call: "ordering streams", reason: error.to_string() }
}

impl Known {
    /// Puts what is enqueued on one stream from now on behind what lies on another.
    fn order(&self, later: &CudaStream, earlier: &CudaStream) -> cuda::Result<()> {
        self.mark.record(earlier).map_err(failed)?;
        later.wait(&self.mark).map_err(failed)
    }
}

impl Streams {
    /// Takes a device; its own stream is in use first.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: Gpu) -> cuda::Result<Self> {
        let mark = gpu.context().new_event(None).map_err(failed)?;
        let own = Arc::new(gpu);
        let known = Known { gpus: vec![own.clone()], current: own.clone(), behind: own.clone(), mark };
        Ok(Self { shared: Arc::new(Shared { own, known: Mutex::new(known) }) })
    }

    /// Uses a stream from now on.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// It is a stream of the device's primary context, and lives as long as this value and all that was made with it.
    pub unsafe fn follow(&self, stream: usize) -> cuda::Result<()> {
        let mut known = self.shared.known();
        if handle(&known.current) != stream {
            let found = known.gpus.iter().find(|gpu| handle(gpu) == stream).cloned();
            let gpu = match found {
                Some(gpu) => gpu,
                None => {
                    let _relaxed = Relaxed::new();
                    // SAFETY: as the caller vouches.
                    let gpu = Arc::new(unsafe { self.shared.own.on_raw_stream(stream) }?);
                    known.gpus.push(gpu.clone());
                    gpu
                }
            };
            known.current = gpu;
        }
        if handle(&known.behind) != stream && !known.current.is_capturing()? {
            known.order(known.current.stream(), known.behind.stream())?;
            known.behind = known.current.clone();
        }
        Ok(())
    }

    /// Puts what the host program enqueues on a stream from now on behind what was enqueued here.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// It is a stream of the device's primary context.
    pub unsafe fn lead(&self, stream: usize) -> cuda::Result<()> {
        let known = self.shared.known();
        if handle(&known.behind) == stream {
            return Ok(());
        }
        // SAFETY: as the caller vouches; the wrapper does not own the stream.
        let later = unsafe { self.shared.own.context().wrap_borrowed_stream(stream as sys::CUstream) };
        let capturing = later.capture_status().map_err(failed)?;
        if capturing != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Ok(());
        }
        known.order(&later, known.behind.stream())
    }

    /// Puts what is enqueued here from now on behind what lies on a stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// It is a stream of the device's primary context.
    pub unsafe fn wait_for(&self, stream: usize) -> cuda::Result<()> {
        let known = self.shared.known();
        if handle(&known.current) == stream {
            return Ok(());
        }
        // SAFETY: as the caller vouches; the wrapper does not own the stream.
        let earlier = unsafe { self.shared.own.context().wrap_borrowed_stream(stream as sys::CUstream) };
        known.order(known.current.stream(), &earlier)
    }

    /// Returns the handle of the stream in use.
    pub fn current(&self) -> usize {
        handle(&self.shared.known().current)
    }

    fn gpu(&self) -> Arc<Gpu> {
        self.shared.known().current.clone()
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a stream: its handle, or an object of torch, CuPy or cuda.core that holds one.
pub fn stream_handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = stream.py();
    let mut handle = known(py, stream.extract::<usize>())?;
    for name in ["cuda_stream", "ptr", "handle"] {
        if handle.is_none() {
            handle = known(py, stream.getattr(name).and_then(|held| held.extract()))?;
        }
    }
    let handle = handle.ok_or_else(|| wrong_type("stream", "the handle of a CUDA stream, an int", stream))?;
    // The default stream goes by two names.
    Ok(if handle == 1 { 0 } else { handle })
}

/// Returns what was read, or none where it could not be read; what passes on passes on.
fn known<T>(py: Python<'_>, found: PyResult<T>) -> PyResult<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if passes(py, &error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// While it lives, the thread may take memory although some stream is under capture: the host program's graph has no part in
/// that memory.
#[derive(Debug)]
pub struct Relaxed(Option<CUstreamCaptureMode>);

impl Relaxed {
    /// Begins, where there is a device.
    pub fn new() -> Self {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver is loaded, since there is a device; the pointer is to a live value, which gets the former mode.
        let status = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        Self(status.result().is_ok().then_some(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.0 {
            // SAFETY: as in `new`.
            let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}

/// Which device is the current one of the calling thread, for the host program: torch, say, may be at work on another than
/// the pool's, or on none yet. It is again when this ends.
#[derive(Debug)]
pub struct Current(sys::CUcontext);

impl Current {
    /// Takes note of it; `None` where there is no driver. That is looked for each time, which takes a while.
    pub fn if_there() -> Option<Self> {
        // SAFETY: this loads the driver's library and runs its initialisers, which ask nothing of us.
        unsafe { sys::is_culib_present() }.then(|| Self(current()))
    }

    /// Takes note of it for work on a device, whose driver is there.
    pub fn for_device(_: &impl Runtime) -> Self {
        Self(current())
    }
}

/// Returns the current context of the calling thread, null if it has none.
fn current() -> sys::CUcontext {
    result::ctx::get_current().ok().flatten().unwrap_or(std::ptr::null_mut())
}

impl Drop for Current {
    fn drop(&mut self) {
        if current() != self.0 {
            // SAFETY: it was current when this was made, by whoever owns it. A failure shows at the next call.
            let _ = unsafe { result::ctx::set_current(self.0) };
        }
    }
}

impl Runtime for Streams {
    fn name(&self) -> String {
        Runtime::name(&*self.shared.own)
    }

    fn multiprocessors(&self) -> u32 {
        self.shared.own.multiprocessors()
    }

    fn threads_per_row(&self) -> u32 {
        self.shared.own.threads_per_row()
    }

    fn shared_memory_per_block(&self) -> usize {
        self.shared.own.shared_memory_per_block()
    }

    fn clusters(&self, blocks: u32) -> u32 {
        self.shared.own.clusters(blocks)
    }

    fn prepare(&self, group: KernelModule) -> cuda::Result<()> {
        self.shared.own.prepare(group)
    }

    fn alloc(&self, bytes: usize) -> cuda::Result<u64> {
        self.gpu().alloc(bytes)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        let _current = Current::for_device(self);
        // SAFETY: as the caller vouches; all streams are of the device that the memory came from.
        unsafe { self.gpu().free(address, bytes) }
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> cuda::Result<()> {
        // SAFETY: the same.
        unsafe { self.gpu().write(address, bytes) }
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> cuda::Result<()> {
        // SAFETY: the same.
        unsafe { self.gpu().read(address, bytes) }
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> cuda::Result<()> {
        // SAFETY: the same.
        unsafe { self.gpu().launch(kernel, grid, argument) }
    }

    unsafe fn launch_dependent(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> cuda::Result<()> {
        // SAFETY: the same.
        unsafe { self.gpu().launch_dependent(kernel, grid, argument) }
    }

    fn is_capturing(&self) -> cuda::Result<bool> {
        self.gpu().is_capturing()
    }

    fn record(
        &self,
        launch: &mut dyn FnMut() -> cuda::Result<()>,
    ) -> cuda::Result<Box<dyn CapturedLaunches>> {
        let current = self.gpu();
        let recorder = if DEFAULT_STREAMS.contains(&handle(&current)) {
            self.shared.own.clone()
        } else {
            current.clone()
        };
        self.shared.known().current = recorder.clone();
        let recording = recorder.record(launch);
        self.shared.known().current = current;
        Ok(Box::new(Recorded { shared: self.shared.clone(), recorder, recording: recording? }))
    }
}

/// A recording that is replayed in its place among the work of the stream in use.
#[derive(Debug)]
struct Recorded {
    shared: Arc<Shared>,
    recorder: Arc<Gpu>,
    recording: Box<dyn CapturedLaunches>,
}

impl CapturedLaunches for Recorded {
    unsafe fn replay(&self) -> cuda::Result<()> {
        let current = self.shared.known().current.clone();
        let elsewhere = handle(&current) != handle(&self.recorder);
        if elsewhere {
            self.shared.known().order(self.recorder.stream(), current.stream())?;
        }
        // SAFETY: as the caller vouches.
        unsafe { self.recording.replay() }?;
        if elsewhere { self.shared.known().order(current.stream(), self.recorder.stream()) } else { Ok(()) }
    }
}
