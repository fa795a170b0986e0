//! Why kernels cannot run, as data: something that this system lacks, or a call that failed.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// Why CUDA is not available, or which of its calls failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This system lacks a library, or what the emulator needs.
    #[error("{library} is missing: {remedy}")]
    Missing {
        /// What is missing.
        library: &'static str,
        /// How to get it.
        remedy: String,
    },
    /// A library is too old.
    #[error("{library} is version {found}, but {needed} is needed")]
    TooOld {
        /// The library.
        library: &'static str,
        /// The version of the library.
        found: String,
        /// The version that is needed, and why.
        needed: String,
    },
    /// A device does not exist, or cannot run the kernels.
    #[error("no CUDA device {ordinal}: {reason}")]
    Device {
        /// The driver's number of the device, from 0.
        ordinal: usize,
        /// Why the device cannot be used.
        reason: String,
    },
    /// A program did not compile, because of a defect of the program or of the compiler.
    #[error("{program} does not compile for {target}:\n{log}")]
    Compile {
        /// The program's name.
        program: String,
        /// The architecture, or `the host`.
        target: String,
        /// The compiler's messages.
        log: String,
    },
    /// The folder of compiled kernels that `GUMBALL_KERNELS` names cannot serve a device.
    #[error("GUMBALL_KERNELS names {folder}, which cannot be used: {reason}")]
    Kernels {
        /// The folder.
        folder: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The device's context is lost: a kernel read or wrote where it must not, or the device failed. In this
    /// process the device serves nothing any more.
    #[error(
        "the CUDA context is lost, so that a new process must begin: {call} failed: {reason}; launched since the last \
         wait that succeeded: {launched}"
    )]
    Lost {
        /// The first function that failed.
        call: &'static str,
        /// The error that it returned.
        reason: String,
        /// The names of our kernels that may have caused it.
        launched: String,
    },
    /// A call to a library or to the system failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The function, or what was attempted.
        call: &'static str,
        /// The error that it returned.
        reason: String,
    },
}

/// A result whose error comes from CUDA, or from the emulator.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for gumball_spec::Error {
    fn from(error: Error) -> Self {
        let reason = error.to_string();
        match error {
            Error::Lost { .. } => gumball_spec::Error::DeviceLost { reason },
            _ => gumball_spec::Error::Unavailable { resource: "CUDA", reason },
        }
    }
}

impl Error {
    /// Makes an [`Error::Call`].
    pub(crate) fn call(call: &'static str, reason: impl ToString) -> Self {
        Self::Call { call, reason: reason.to_string() }
    }
}

/// Returns a function that turns the driver's error into an [`Error::Call`] of `call`, or an [`Error::Lost`].
pub(crate) fn failed(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| {
        let reason = error.to_string();
        match ends_context(error.0) {
            true => Error::Lost { call, reason, launched: String::new() },
            false => Error::Call { call, reason },
        }
    }
}

/// Whether a context in which the driver reports an error is lost with all that it holds.
fn ends_context(error: CUresult) -> bool {
    matches!(
        error,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
    )
}
