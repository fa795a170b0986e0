//! Streams: a GPU that follows the stream on which the host program works.
//!
//! An engine's pool has one runtime. `Streams` is that runtime: it passes each operation to the same device
//! on the stream that `follow` named last. When the stream changes, an event makes the new stream wait for
//! the pool's earlier work. A pool's work therefore has one order, across all streams of the host program. A
//! stream under capture does not wait: nothing runs there, and the order counts when the graph is replayed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUstreamCaptureMode};
use cudarc::driver::{CudaEvent, CudaStream, DriverError, result};
use gumball_engine::cuda::{self, CapturedLaunches, Gpu, Grid, Kernel, KernelModule, Runtime};
use pyo3::prelude::*;

use crate::errors::{passes, wrong_type};

/// Handles of default streams, which cannot be captured: null, the legacy default stream, the per-thread one.
const DEFAULT_STREAMS: [usize; 3] = [0, 1, 2];

/// The device on the stream that the host program uses.
#[derive(Debug)]
pub struct Streams {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The device on a stream of its own, which records graphs when the stream in use is a default stream.
    own: Arc<Gpu>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// The device on each stream that was in use; a short list.
    gpus: Vec<Arc<Gpu>>,
    current: Arc<Gpu>,
    /// The stream that carries the pool's last uncaptured work; all later work must wait for it.
    behind: Arc<Gpu>,
    /// An event for one stream to wait for another. A wait takes the event's record of that moment, so one
    /// event serves all.
    mark: CudaEvent,
}

fn handle(gpu: &Gpu) -> usize {
    gpu.stream().cu_stream() as usize
}

fn failed(error: DriverError) -> cuda::Error {
    cuda::Error::Call { call: "ordering streams", reason: error.to_string() }
}

impl Known {
    /// Makes later work on the stream `later` wait for the work already on the stream `earlier`.
    fn order(&self, later: &CudaStream, earlier: &CudaStream) -> cuda::Result<()> {
        self.mark.record(earlier).map_err(failed)?;
        later.wait(&self.mark).map_err(failed)
    }
}

impl Streams {
    /// Takes a device; its own stream is in use first.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: Gpu) -> cuda::Result<Self> {
        let mark = gpu.context().new_event(None).map_err(failed)?;
        let own = Arc::new(gpu);
        let known = Known { gpus: vec![own.clone()], current: own.clone(), behind: own.clone(), mark };
        Ok(Self { shared: Arc::new(Shared { own, known: Mutex::new(known) }) })
    }

    /// Uses a stream from now on.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `stream` is a stream of the device's primary context. It lives as long as this value and everything
    /// made with it.
    pub unsafe fn follow(&self, stream: usize) -> cuda::Result<()> {
        let mut known = self.shared.known();
        if handle(&known.current) != stream {
            let found = known.gpus.iter().find(|gpu| handle(gpu) == stream).cloned();
            let gpu = match found {
                Some(gpu) => gpu,
                None => {
                    let _relaxed = Relaxed::new();
                    // SAFETY: the caller ensures that `stream` belongs to the device's primary context and
                    // lives long enough.
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

    /// Makes later work of the host program on a stream wait for the work enqueued here.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `stream` is a live stream of the device's primary context.
    pub unsafe fn lead(&self, stream: usize) -> cuda::Result<()> {
        let known = self.shared.known();
        if handle(&known.behind) == stream {
            return Ok(());
        }
        // SAFETY: the caller ensures that `stream` is a live stream of this context; the wrapper does not own
        // it.
        let later = unsafe { self.shared.own.context().wrap_borrowed_stream(stream as sys::CUstream) };
        let capturing = later.capture_status().map_err(failed)?;
        if capturing != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Ok(());
        }
        known.order(&later, known.behind.stream())
    }

    /// Makes later work enqueued here wait for the work on a stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `stream` is a live stream of the device's primary context.
    pub unsafe fn wait_for(&self, stream: usize) -> cuda::Result<()> {
        let known = self.shared.known();
        if handle(&known.current) == stream {
            return Ok(());
        }
        // SAFETY: the caller ensures that `stream` is a live stream of this context; the wrapper does not own
        // it.
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

/// Reads a stream's handle from an int, or from an object of torch, CuPy or cuda.core that holds one.
pub fn stream_handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = stream.py();
    let mut handle = known(py, stream.extract::<usize>())?;
    for name in ["cuda_stream", "ptr", "handle"] {
        if handle.is_none() {
            handle = known(py, stream.getattr(name).and_then(|held| held.extract()))?;
        }
    }
    let handle = handle.ok_or_else(|| wrong_type("stream", "the handle of a CUDA stream, an int", stream))?;
    // The legacy default stream has two handles, 0 and 1.
    Ok(if handle == 1 { 0 } else { handle })
}

/// Returns what was read, or `None` if reading failed. Exceptions for which [`passes`] holds stay errors.
fn known<T>(py: Python<'_>, found: PyResult<T>) -> PyResult<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if passes(py, &error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Allows the thread to allocate memory while a stream is under capture; the captured graph does not contain
/// the allocation.
#[derive(Debug)]
pub struct Relaxed(Option<CUstreamCaptureMode>);

impl Relaxed {
    /// Begins, if there is a device.
    pub fn new() -> Self {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: there is a device, so the driver is loaded; `mode` is a live value, which receives the
        // former mode.
        let status = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        Self(status.result().is_ok().then_some(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(mut mode) = self.0 {
            // SAFETY: `new` succeeded, so the driver is loaded; `mode` is a live value.
            let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}

/// Keeps the calling thread's current context for the host program and restores it when dropped. torch, for
/// example, may be working on another device than the pool's, or on none yet.
#[derive(Debug)]
pub struct Current(sys::CUcontext);

impl Current {
    /// Keeps the current context; `None` if there is no driver. Each call looks for the driver, which takes a
    /// while.
    pub fn if_there() -> Option<Self> {
        // SAFETY: this loads the driver's library and runs its initialisers, which have no preconditions.
        unsafe { sys::is_culib_present() }.then(|| Self(current()))
    }

    /// Keeps the current context around work on a device, whose driver is loaded.
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
            // SAFETY: `self.0` was the thread's current context when this was made, and its owner keeps it.
            // The next call of the host program reports a failure.
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
        // SAFETY: the caller ensures that `address` came from this device and is unused; every stream here is
        // of this device.
        unsafe { self.gpu().free(address, bytes) }
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> cuda::Result<()> {
        // SAFETY: the caller ensures that `address..address + bytes.len()` lies in memory from this device's
        // `alloc`.
        unsafe { self.gpu().write(address, bytes) }
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> cuda::Result<()> {
        // SAFETY: the caller ensures that `address..address + bytes.len()` lies in memory from this device's
        // `alloc`.
        unsafe { self.gpu().read(address, bytes) }
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> cuda::Result<()> {
        // SAFETY: the caller ensures that grid and argument are the kernel's, and that what the argument
        // points to stays valid.
        unsafe { self.gpu().launch(kernel, grid, argument) }
    }

    unsafe fn launch_dependent(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> cuda::Result<()> {
        // SAFETY: the caller ensures that grid and argument are the kernel's, and that its blocks wait before
        // they use memory.
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

/// Captured launches that run in the order of the stream in use when they are replayed.
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
        // SAFETY: the caller ensures that what each launch points to is still valid, and stays so until it is
        // done.
        unsafe { self.recording.replay() }?;
        if elsewhere { self.shared.known().order(current.stream(), self.recorder.stream()) } else { Ok(()) }
    }
}
