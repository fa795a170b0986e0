//! What runs kernels: the trait [`runtime::Runtime`], the GPU and the emulator that implement it, and the
//! compiler, the cache and the streams that the GPU needs.
//!
//! Depends on `abi` and `programs`.

pub(crate) mod ahead;
pub(crate) mod arch;
pub(crate) mod cache;
mod capture;
mod context_state;
pub(crate) mod device_limits;
#[cfg(feature = "emulator")]
pub(crate) mod emulator;
mod entry;
pub(crate) mod gpu;
mod host_streams;
mod loaded_kernels;
#[cfg(feature = "emulator")]
mod mailbox;
mod named;
mod nccl;
pub(crate) mod nvrtc;
pub(crate) mod peer_links;
pub(crate) mod peer_memory;
pub(crate) mod probe;
pub(crate) mod runtime;
mod streams;
#[cfg(feature = "testing")]
pub(crate) mod tap;
pub(crate) mod thread_state;
mod transfer;
