//! The driver: a device's memory, copies and launches, and the compiled kernels, behind [`runtime::Runtime`].
//!
//! Depends on `abi`.

pub(crate) mod cache;
mod capture;
pub(crate) mod device_limits;
#[cfg(feature = "emulator")]
pub(crate) mod emulator;
pub(crate) mod gpu;
mod host_streams;
mod loaded_kernels;
pub(crate) mod nvrtc;
mod private_files;
pub(crate) mod probe;
pub(crate) mod runtime;
mod streams;
pub(crate) mod thread_state;
mod transfer;
