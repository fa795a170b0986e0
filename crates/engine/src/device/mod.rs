//! Devices: where a pool keeps its requests and takes its steps, if not on the host.
//!
//! A [`DevicePool`] has the verbs of a [`Pool`](crate::Pool). Its parameters, states and outputs lie in the device's
//! memory at addresses that stay, so a step is a few launches: it neither allocates nor waits, and can be captured.

mod input;
mod operators;
mod pool;
mod route;
mod score;
mod sequences;
mod step;

use std::sync::Arc;

use gumball_cuda::{Cache, Gpu, Runtime};
use gumball_spec::{Error, Result};

pub use gumball_cuda::{
    DeviceSlice, Graph as DeviceGraph, MaskRows as DeviceMasks, Rows as DeviceLogits, RowsOut as DeviceRows,
};
pub use input::{DeviceInput, DeviceOptions};
pub use operators::{DeviceDraws, DeviceOperators, DevicePerRow, DeviceRowParams};
pub use pool::{DevicePool, DevicePoolConfig};
pub use route::DeviceRoute;

/// A device that is open. Its kernels are compiled, or found in the user's cache, when something is made that launches them.
#[derive(Clone, Debug)]
pub struct Device {
    machine: Arc<dyn Runtime>,
}

impl Device {
    /// Opens a CUDA device by its number, in its primary context and on a stream of its own, with the user's cache of
    /// compiled kernels.
    ///
    /// For a stream of the host program (torch's, say), open a [`Gpu`], take
    /// [`Gpu::on_raw_stream`](gumball_cuda::Gpu::on_raw_stream), and make the device of that.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the driver, NVRTC or the device is missing or too old; it
    ///   says which, and what to do.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Ok(Self::from(Gpu::new(ordinal, &Cache::user())?))
    }

    /// Opens a device by its name: `cuda` or `cuda:N`, and where it is built in `emulated`.
    ///
    /// # Errors
    /// - [`Error::Unknown`] if there is no such name.
    /// - [`Error::Unavailable`] if it is not there, as in [`Device::cuda`].
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
        let unknown =
            || Error::Unknown { parameter: "device", name: name.to_owned(), known: known().to_owned() };
        Self::cuda(ordinal.ok_or_else(unknown)?)
    }

    /// Returns the device that the host emulates: every result the same, and slow.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if there is no C++ compiler, or the processor has no fma.
    #[cfg(feature = "emulator")]
    pub fn emulated() -> Result<Self> {
        Ok(Self::new(Arc::new(gumball_cuda::Emulator::new(&Cache::user())?)))
    }

    /// Takes any machine that runs the kernels.
    #[must_use]
    pub fn new(machine: Arc<dyn Runtime>) -> Self {
        Self { machine }
    }

    /// Returns the machine: for memory of its own, and if it is a GPU for its stream and context.
    #[must_use]
    pub fn machine(&self) -> &Arc<dyn Runtime> {
        &self.machine
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.machine.name()
    }
}

impl From<Gpu> for Device {
    fn from(gpu: Gpu) -> Self {
        Self::new(Arc::new(gpu))
    }
}
