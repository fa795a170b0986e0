//! Devices: a pool whose requests lie in a GPU's memory and whose steps run there.
//!
//! Its parameters, states and outputs keep their addresses in the device's memory. A step is therefore a few
//! launches: it allocates nothing, waits for nothing and can be captured.

mod assign;
mod assigned;
mod at_device;
mod backend;
mod catch_up;
mod copied_head;
mod copy_up;
mod draft;
mod draft_batch;
mod enqueue;
mod head;
mod on_gpu;
mod probabilities;
mod ranks;
mod score;
mod step;
mod uploads;
mod verify;
mod view;
mod work;

use std::path::Path;
use std::sync::Arc;

use gumball_cuda::{Cache, Runtime};
use gumball_spec::{Error, Result};

pub use assign::AssignedShape;
pub(crate) use backend::DeviceBackend;
pub use draft_batch::DraftBatch;
pub use gumball_cuda::{
    Buffer as DeviceBuffer, ColumnType, CudaThreadState, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice,
    DraftBatchLimits, DraftTreeRows, Dtype, Gpu, Graph as DeviceGraph, IntType, MaskRows as DeviceMasks,
    ProgramCommunicator, Recorded, Rows as DeviceMatrix, RowsOut as DeviceRows, StepVariant,
};
pub use head::DeviceHead;
pub use view::{DeviceOutputs, OnDevice};

/// An open device. The first launch of a kernel loads it from a folder of compiled kernels or the user's
/// cache, or compiles it.
#[derive(Clone, Debug)]
pub struct Device {
    runtime: Arc<dyn Runtime>,
}

impl Device {
    /// Opens a CUDA device by its ordinal, with the user's cache of compiled kernels and the folder that
    /// `GUMBALL_KERNELS` names. The device works in its primary context, on a stream of its own.
    ///
    /// To work on a stream of the host program (torch's, say), call [`Gpu::use_stream`] of [`Device::gpu`].
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the driver, NVRTC or the device is missing or too old. The error says
    ///   which, and what to do. NVRTC is not needed if a folder has the device's kernels.
    /// - [`Error::Unavailable`] if `GUMBALL_KERNELS` names a folder that has not the device's kernels.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Ok(Self::from(Gpu::new(ordinal, &Cache::user())?))
    }

    /// Opens a CUDA device like [`Device::cuda`], with a folder of compiled kernels that the program brings.
    /// The folder need not exist, nor have this device's kernels; [`Gpu::notice`] says why it is not used. It
    /// is trusted as the program is.
    ///
    /// # Errors
    /// The errors of [`Device::cuda`].
    pub fn cuda_with_kernels(ordinal: usize, folder: &Path) -> Result<Self> {
        Ok(Self::from(Gpu::new(ordinal, &Cache::user().with_carried(folder))?))
    }

    /// Opens a device by its name: `cuda` or `cuda:N`; with the feature `emulator` also `emulated`.
    ///
    /// # Errors
    /// - [`Error::Unknown`] if no device has this name.
    /// - [`Error::Unavailable`] if the device cannot be opened; see [`Device::cuda`].
    pub fn open(name: &str) -> Result<Self> {
        #[cfg(feature = "emulator")]
        if name == "emulated" {
            return Self::emulated();
        }
        let ordinal = match name.strip_prefix("cuda") {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix(':').and_then(|ordinal| ordinal.parse().ok()),
            None => None,
        };
        let known = || if cfg!(feature = "emulator") { "cuda, cuda:N, emulated" } else { "cuda, cuda:N" };
        let unknown = || Error::unknown("device", name, known());
        Self::cuda(ordinal.ok_or_else(unknown)?)
    }

    /// Returns a device that the host emulates, slowly. Its results equal a GPU's, bit for bit.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the system has no C++ compiler, or the processor no fma instruction.
    #[cfg(feature = "emulator")]
    pub fn emulated() -> Result<Self> {
        Ok(Self::new(Arc::new(gumball_cuda::Emulator::new(&Cache::user())?)))
    }

    /// Makes a device of any runtime that runs the kernels.
    #[must_use]
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime }
    }

    /// Returns the runtime, which allocates memory: see [`DeviceBuffer`].
    #[must_use]
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// Returns the GPU, for its streams; `None` if the device is emulated.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.runtime.gpu()
    }

    /// Returns the device's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.runtime.name()
    }
}

impl From<Gpu> for Device {
    fn from(gpu: Gpu) -> Self {
        Self::new(Arc::new(gpu))
    }
}
