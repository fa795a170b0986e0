//! The driver: a device's memory, copies and launches, and the compiled kernels, behind [`runtime::Runtime`].
//!
//! Depends on `abi`.

pub(crate) mod cache;
mod capture;
#[cfg(feature = "emulator")]
pub(crate) mod emulator;
pub(crate) mod gpu;
mod host_streams;
pub(crate) mod limits;
mod modules;
pub(crate) mod nvrtc;
mod private_files;
pub(crate) mod probe;
pub(crate) mod runtime;
mod streams;
pub(crate) mod thread_state;
mod transfer;
