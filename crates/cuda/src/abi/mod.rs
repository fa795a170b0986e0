//! What host and device share, written once: structs, constants and flags (`step`, `drafts`, `operators`), of which
//! `header` makes the kernels' headers.
//!
//! Depends on no other folder.

mod drafts;
pub(crate) mod dtype;
pub(crate) mod header;
#[cfg(feature = "emulator")]
pub(crate) mod launch;
mod operators;
mod step;

pub(crate) use drafts::*;
pub(crate) use operators::*;
pub use step::Slot;
pub(crate) use step::*;
