//! What keeps kernels from running, as data: a machine that lacks something, or a call that failed.

use cudarc::driver::DriverError;

/// Why there is no CUDA here, or what it refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library is not on this machine.
    #[error("{library} is missing: {remedy}")]
    Missing {
        /// The library.
        library: &'static str,
        /// How to get it.
        remedy: String,
    },
    /// A library is older than what is needed.
    #[error("{library} is version {found}, but {needed} is needed")]
    TooOld {
        /// The library.
        library: &'static str,
        /// The version found.
        found: String,
        /// What is needed, and for what.
        needed: String,
    },
    /// A device is not there, or cannot run the kernels.
    #[error("no CUDA device {ordinal}: {reason}")]
    Device {
        /// The number of the device.
        ordinal: usize,
        /// Why not.
        reason: String,
    },
    /// A kernel did not compile, which is a mistake of ours or of the compiler.
    #[error("{program} does not compile for {target}:\n{log}")]
    Compile {
        /// The program.
        program: &'static str,
        /// What it was compiled for.
        target: String,
        /// What the compiler said.
        log: String,
    },
    /// A call to a library failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The call.
        call: &'static str,
        /// What the library said.
        reason: String,
    },
}

/// A result whose error is the machine's.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for gumball_spec::Error {
    fn from(error: Error) -> Self {
        gumball_spec::Error::Unavailable { resource: "CUDA", reason: error.to_string() }
    }
}

impl Error {
    /// Makes an [`Error::Call`].
    pub(crate) fn call(call: &'static str, reason: impl ToString) -> Self {
        Self::Call { call, reason: reason.to_string() }
    }
}

/// Makes an [`Error::Call`] of the driver's error.
pub(crate) fn failed(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| Error::call(call, error)
}
