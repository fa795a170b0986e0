//! A GPU as a [`Runtime`]: its context, its streams, and the kernels compiled for it.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::{
    CudaContext, CudaStream, DriverError, result,
    sys::{self, CUdevice_attribute_enum as Attribute},
};

use crate::abi::dtype::Dtype;
use crate::driver::arch::{Arch, HOPPER};
use crate::driver::cache::Cache;
use crate::driver::capture::{Captured, capture};
use crate::driver::context_state::ContextState;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::loaded_kernels::{LoadedKernel, LoadedKernels, configuration, in_clusters};
use crate::driver::nccl::{Communicator, Nccl};
use crate::driver::nvrtc::Nvrtc;
use crate::driver::peer_memory::MemoryHandle;
use crate::driver::probe;
use crate::driver::runtime::{CapturedLaunches, Grid, GroupId, Meeting, Message, Messenger, Runtime};
use crate::driver::streams::{Stream, Streams, elapsed_ms, is_capturing};
use crate::driver::thread_state::{CudaThreadState, RelaxedCapture};
use crate::driver::transfer::DownloadBuffer;
use crate::error::{Error, Result, failed};
use crate::programs::kernels::{Kernel, Program};

thread_local! {
    /// The kernels that the thread would launch, while [`Runtime::load`] runs its function.
    static LAUNCHES: RefCell<Option<Vec<Kernel>>> = const { RefCell::new(None) };
}

/// A GPU whose launches and copies are enqueued in order on the stream in use: first one of its own, later
/// any that the host program names.
pub struct Gpu {
    pub(crate) device: Arc<OpenDevice>,
    /// The first stream, on which graphs are captured while a default stream is in use.
    own: Arc<Stream>,
    streams: Arc<Mutex<Streams>>,
    /// Whether launches take clusters, if the device has them.
    has_clusters: bool,
}

/// An open device, which several [`Gpu`]s with streams of their own share.
pub(crate) struct OpenDevice {
    pub context: Arc<CudaContext>,
    pub state: Arc<ContextState>,
    kernels: LoadedKernels,
    /// Fills new memory with zeros, and is never under capture.
    fill: Arc<CudaStream>,
    arch: Arch,
    /// Why a folder that came with the program does not serve the device.
    notice: Option<String>,
    /// What launches are fitted to, except for the clusters, which `kernels` counts.
    limits: DeviceLimits,
    name: String,
}

impl Gpu {
    /// Opens a device in its primary context, which it shares with the host program's CUDA libraries, with a
    /// stream of its own.
    ///
    /// `ordinal` is the driver's number of the device, from 0. The first launch of a kernel loads it: reads
    /// it from the folders of `cache`, or compiles it. NVRTC is needed only if no carried folder of `cache`
    /// has the device's kernels.
    ///
    /// # Errors
    /// - [`Error::Missing`] if there is no driver, or no NVRTC where it is needed.
    /// - [`Error::Kernels`] if the folder that `GUMBALL_KERNELS` names has not the device's kernels.
    /// - [`Error::TooOld`] if one of them is older than 12.0.
    /// - [`Error::Device`] if there is no such device, or it is older than sm_80.
    /// - [`Error::Call`] if the driver has no stream or no page-locked memory to give.
    pub fn new(ordinal: usize, cache: &Cache) -> Result<Self> {
        probe::driver_version()?;
        let device = |error: DriverError| Error::Device { ordinal, reason: error.to_string() };
        let context = CudaContext::new(ordinal).map_err(device)?;
        let (major, minor) = context.compute_capability().map_err(device)?;
        let arch = Arch { major, minor };
        if arch < Arch::OLDEST {
            let reason = format!("it is {arch}, but the kernels need {} or newer", Arch::OLDEST);
            return Err(Error::Device { ordinal, reason });
        }
        let name = context.name().map_err(device)?;
        let attribute = |of| context.attribute(of).map_err(device);
        let count = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        let block = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        if !cache.carries(arch)? {
            Nvrtc::load()?;
        }
        let kernels = LoadedKernels::new(Arc::clone(&context), cache.clone(), arch, (shared, block));
        let device = OpenDevice {
            fill: context.new_stream().map_err(failed("cuStreamCreate"))?,
            kernels,
            notice: cache.notice(arch),
            arch,
            limits: DeviceLimits {
                warpgroups_multiply: arch == HOPPER,
                dynamic_smem_per_block: usize::try_from(block).unwrap_or(0),
                shared_memory_per_block: if arch < HOPPER { 0 } else { usize::try_from(block).unwrap_or(0) },
                ..DeviceLimits::new(usize::try_from(count).unwrap_or(1))
            },
            name,
            context,
            state: Arc::default(),
        };
        Self::on_own_stream(Arc::new(device), true)
    }

    /// Returns the device's architecture.
    #[must_use]
    pub fn arch(&self) -> Arch {
        self.device.arch
    }

    /// Returns why kernels are compiled though the program brings a folder of compiled ones; `None` if they
    /// are not, or if there is no such folder.
    #[must_use]
    pub fn notice(&self) -> Option<&str> {
        self.device.notice.as_deref()
    }

    /// Returns this device, with its loaded kernels, on another stream of its own.
    ///
    /// # Errors
    /// - [`Error::Call`] if the driver has no stream or no page-locked memory to give.
    pub fn on_new_stream(&self) -> Result<Self> {
        Self::on_own_stream(Arc::clone(&self.device), self.has_clusters)
    }

    /// Returns this device as one without clusters of blocks: steps and operators made on it take a block per
    /// row. For tests, and for tools that do not follow clusters.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn without_clusters(self) -> Self {
        Self { has_clusters: false, ..self }
    }

    /// Returns this device, with its loaded kernels, on a stream of the host program. See
    /// [`Gpu::use_stream`].
    ///
    /// # Errors
    /// - [`Error::Call`] if the driver has no page-locked memory to give.
    ///
    /// # Safety
    /// The conditions of [`Gpu::use_stream`].
    pub unsafe fn on_stream(&self, stream: usize) -> Result<Self> {
        // SAFETY: the caller guarantees that the stream is of this context and lives long enough.
        let stream = unsafe { self.borrowed(stream) };
        Self::on(Arc::clone(&self.device), stream, self.has_clusters)
    }

    fn on_own_stream(device: Arc<OpenDevice>, has_clusters: bool) -> Result<Self> {
        let stream = device.context.new_stream().map_err(failed("cuStreamCreate"))?;
        Self::on(device, stream, has_clusters)
    }

    fn on(device: Arc<OpenDevice>, stream: Arc<CudaStream>, has_clusters: bool) -> Result<Self> {
        let own = Stream::new(stream)?;
        let streams = Arc::new(Mutex::new(Streams::new(Arc::clone(&own))?));
        Ok(Self { device, own, streams, has_clusters })
    }

    /// Returns the registers and the bytes of local memory that a thread of a kernel has. Loads the kernel if
    /// needed.
    ///
    /// # Errors
    /// The errors of [`Runtime::load`], and [`Error::Call`] if the driver fails.
    pub fn resources(&self, kernel: Kernel) -> Result<(i32, i32)> {
        let function = &self.device.kernels.loaded(kernel)?.function;
        let registers = function.num_regs().map_err(failed("cuFuncGetAttribute"))?;
        Ok((registers, function.local_size_bytes().map_err(failed("cuFuncGetAttribute"))?))
    }

    /// Returns the time that the device takes for the work that `enqueue` enqueues, in microseconds, measured
    /// by CUDA events.
    ///
    /// # Errors
    /// - [`Error::Call`] with the driver's message.
    /// - The errors of `enqueue`.
    pub fn elapsed_us<E: From<Error>>(
        &self,
        enqueue: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<f32, E> {
        Ok(1000.0 * elapsed_ms(&self.current().cuda, enqueue)?)
    }

    /// Returns the streams, for as long as the caller keeps the lock.
    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stream in use.
    pub(crate) fn current(&self) -> Arc<Stream> {
        Arc::clone(self.streams().current())
    }

    fn bind(&self) -> Result<()> {
        self.device.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }

    /// Makes a call with the device's context current, unless that is lost.
    fn in_context<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.device.state.in_context(&self.device.context, call)
    }

    /// Makes a call that waits for the stream in use.
    pub(crate) fn wait<T>(&self, call: impl FnOnce(&Stream) -> Result<T>) -> Result<T> {
        let waited = self.in_context(|| call(&self.current()));
        waited.inspect(|_| self.device.state.succeeded())
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenDevice { name, arch, .. } = &*self.device;
        f.debug_struct("Gpu").field("name", name).field("arch", arch).finish_non_exhaustive()
    }
}

/// Calls `meanwhile` again and again until the work of a stream is complete, or has failed. The stream's
/// context is current.
fn await_stream(stream: &CudaStream, meanwhile: &mut dyn FnMut()) -> Result<()> {
    loop {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => meanwhile(),
            status => return status.result().map_err(failed("cuStreamQuery")),
        }
    }
}

impl Runtime for Gpu {
    fn name(&self) -> String {
        format!("{} ({})", self.device.name, self.device.arch)
    }

    fn limits(&self) -> DeviceLimits {
        match self.has_clusters {
            true => DeviceLimits { clusters: self.device.kernels.clusters(), ..self.device.limits },
            false => self.device.limits,
        }
    }

    fn load(&self, launch: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let outer = LAUNCHES.replace(Some(Vec::new()));
        let launched = launch();
        let kernels = LAUNCHES.replace(outer).unwrap_or_default();
        launched?;
        self.device.kernels.load(&kernels)
    }

    fn load_for_pools(&self, dtypes: &[Dtype]) -> Result<()> {
        self.device.kernels.load_programs(Program::of_pools(dtypes))
    }

    fn is_compiling(&self) -> bool {
        self.device.kernels.is_compiling()
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        self.in_context(|| {
            // The host program may be capturing a stream.
            let _relaxed = RelaxedCapture::begin();
            // SAFETY: the context is current, and the memory is filled before anybody reads it.
            let address = unsafe { result::malloc_sync(bytes) }.map_err(failed("cuMemAlloc"))?;
            let fill = &self.device.fill;
            // SAFETY: the memory was just allocated with `bytes` bytes; the stream is alive.
            let filled = unsafe { result::memset_d8_async(address, 0, bytes, fill.cu_stream()) };
            filled.map_err(failed("cuMemsetD8Async"))?;
            // The stream in use does not wait for `fill`, and under capture it could not.
            fill.synchronize().map_err(failed("cuStreamSynchronize"))?;
            Ok(address)
        })
    }

    unsafe fn free(&self, address: u64, _bytes: usize) {
        let _state = CudaThreadState::save();
        // A failure leaks the memory; the driver reports its cause at the next call that returns an error.
        let _ = self.bind();
        // SAFETY: the caller guarantees that the address came from `alloc` and is used no more; the call
        // waits for the device, and so for every stream.
        let _ = unsafe { result::free_sync(address) };
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.in_context(|| {
            let stream = self.current();
            let mut upload = stream.upload.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the caller guarantees that the range lies in memory of this device, whose context is
            // current.
            unsafe { upload.write(address, bytes) }
        })
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.wait(|stream| {
            if bytes.len() <= DownloadBuffer::BYTES {
                let mut download = stream.download.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: the caller guarantees that the range lies in memory of this device, whose context
                // is current.
                return unsafe { download.read(address, bytes, &mut || Ok(())) };
            }
            // SAFETY: the caller guarantees that the range lies in memory of this device; `bytes` lives until
            // the copy is complete, because the synchronisation below waits for it.
            let copied = unsafe { result::memcpy_dtoh_async(bytes, address, stream.cuda.cu_stream()) };
            copied.map_err(failed("cuMemcpyDtoHAsync"))?;
            stream.cuda.synchronize().map_err(failed("cuStreamSynchronize"))
        })
    }

    unsafe fn read_meanwhile(
        &self,
        address: u64,
        bytes: &mut [u8],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        self.wait(|stream| {
            let mut wait = || await_stream(&stream.cuda, meanwhile);
            if bytes.len() > DownloadBuffer::BYTES {
                // A copy to memory that is not page-locked waits for the stream itself.
                wait()?;
                // SAFETY: the caller guarantees the conditions of `read`.
                return unsafe { self.read(address, bytes) };
            }
            let mut download = stream.download.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the caller guarantees that the range lies in memory of this device, whose context is
            // current.
            unsafe { download.read(address, bytes, &mut wait) }
        })
    }

    unsafe fn write_at_once(&self, address: u64, word: u32) -> Result<()> {
        self.in_context(|| {
            // The host program may be capturing a stream.
            let _relaxed = RelaxedCapture::begin();
            let fill = &self.device.fill;
            let words = [word];
            // A copy needs no multiprocessor, all of which kernels that wait may occupy. SAFETY: the caller
            // guarantees that the word lies in memory of this device, and that kernels expect it to change.
            // The source lives until the synchronisation below.
            let copied = unsafe { result::memcpy_htod_async(address, &words, fill.cu_stream()) };
            copied.map_err(failed("cuMemcpyHtoDAsync"))?;
            fill.synchronize().map_err(failed("cuStreamSynchronize"))
        })
    }

    fn export(&self, address: u64, bytes: usize) -> Result<MemoryHandle> {
        self.in_context(|| Ok(MemoryHandle::of_gpu(address, bytes, self.device.context.ordinal())))
    }

    fn map(&self, handle: &MemoryHandle, bytes: usize) -> Result<u64> {
        self.in_context(|| {
            let _relaxed = RelaxedCapture::begin();
            handle.map_to_gpu(bytes, &self.device.context)
        })
    }

    unsafe fn unmap(&self, handle: &MemoryHandle, address: u64) {
        let _state = CudaThreadState::save();
        if self.bind().is_ok() && self.current().cuda.synchronize().is_ok() {
            // SAFETY: the context is current, and the work of its stream is complete; the caller guarantees
            // the rest.
            unsafe { handle.unmap_from_gpu(address) };
        }
    }

    fn new_group(&self, is_maker: bool) -> Result<GroupId> {
        let nccl = Nccl::load()?;
        if is_maker { nccl.new_id() } else { Ok([0; _]) }
    }

    fn join_group(
        &self,
        by: &Meeting,
        place: (usize, usize),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Arc<dyn Messenger>> {
        let context = &self.device.context;
        let communicator = Nccl::load()?.join(context, by, place, goes_on)?;
        let (streams, state) = (Arc::clone(&self.streams), Arc::clone(&self.device.state));
        Ok(Arc::new(ByNccl { communicator, streams, state }))
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8], is_dependent: bool) -> Result<()> {
        if LAUNCHES
            .with_borrow_mut(|launches| launches.as_mut().map(|launches| launches.push(kernel)))
            .is_some()
        {
            return Ok(());
        }
        self.device.state.launches(kernel);
        self.in_context(|| {
            let stream = self.current();
            let LoadedKernel { function, exclusive_smem_bytes } = self.device.kernels.loaded(kernel)?;
            let early_launch = sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            };
            let mut attributes = [early_launch, in_clusters(grid.cluster)];
            // Attribute 0 is for early launches, attribute 1 for clusters: the range leaves out an attribute
            // that the launch does not need.
            let first = usize::from(!is_dependent || self.device.arch < HOPPER);
            let attributes = &mut attributes[first..1 + usize::from(grid.cluster > 0)];
            let mut arguments = [argument.as_ptr().cast::<c_void>().cast_mut()];
            let smem = if grid.one_block_per_sm { *exclusive_smem_bytes } else { grid.dynamic_smem_bytes };
            let shape = (grid.blocks, grid.threads, smem);
            let config = configuration(shape, stream.cuda.cu_stream(), attributes);
            // SAFETY: the function's module lives as long as this device, and the function takes one
            // argument. The call copies the argument, and the configuration with its attributes. The caller
            // guarantees the argument's type and all that it points to.
            let launched = unsafe {
                sys::cuLaunchKernelEx(
                    &raw const config,
                    function.cu_function(),
                    arguments.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            launched.result().map_err(failed("cuLaunchKernelEx"))
        })
    }

    fn is_capturing(&self) -> Result<bool> {
        self.in_context(|| is_capturing(&self.current().cuda))
    }

    fn capture(&self, launch: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn CapturedLaunches>> {
        let current = self.current();
        let captured = if current.is_default() { &self.own } else { &current };
        self.streams().set_current(captured);
        let OpenDevice { state, .. } = &*self.device;
        let (graph, kernels) = state.captured(|| self.in_context(|| capture(&captured.cuda, launch)));
        self.streams().set_current(&current);
        let (streams, state) = (Arc::clone(&self.streams), Arc::clone(state));
        Ok(Box::new(Captured { graph: graph?, streams, kernels, state }))
    }
}

/// Messages of a GPU, on the stream that it uses at the time.
#[derive(Debug)]
struct ByNccl {
    communicator: Communicator,
    streams: Arc<Mutex<Streams>>,
    state: Arc<ContextState>,
}

impl Messenger for ByNccl {
    unsafe fn exchange(&self, send: &[Message], receive: &[Message]) -> Result<()> {
        if LAUNCHES.with_borrow(Option::is_some) {
            return Ok(());
        }
        let current = Arc::clone(self.streams.lock().unwrap_or_else(PoisonError::into_inner).current());
        let stream = &current.cuda;
        self.state.in_context(stream.context(), || {
            // SAFETY: the caller guarantees the messages; the context is current.
            unsafe { self.communicator.exchange(stream, send, receive) }
        })
    }

    fn failure(&self) -> Option<String> {
        self.communicator.failure()
    }

    fn is_pending(&self) -> bool {
        self.communicator.is_pending()
    }

    fn abort(&self) {
        self.communicator.end();
    }

    fn has_ended(&self, patience: Duration) -> bool {
        self.communicator.has_ended(patience)
    }
}

impl dyn Runtime {
    /// Returns the runtime as a GPU, for its streams; `None` if it is not a GPU.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        (self as &dyn Any).downcast_ref()
    }
}
