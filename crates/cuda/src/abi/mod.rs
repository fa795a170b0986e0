//! What host and device share, written once: structs, constants and flags (`step`, `operators`), of which
//! `header` makes the kernels' headers; the table of kernels (`kernels`); and the sources that the compilers
//! read (`sources`).
//!
//! Depends on no other room.

pub(crate) mod dtype;
mod header;
pub(crate) mod kernels;
#[cfg(feature = "emulator")]
pub(crate) mod launch;
mod operators;
pub(crate) mod sources;
mod step;

pub(crate) use operators::*;
pub use step::Slot;
pub(crate) use step::*;
