//! What host and device share, written once: structs, constants and flags (`step`, `drafts`, `operators`,
//! `selected`, `given`, `kept`, `exchange`, `head`), of which `header` makes the kernels' headers.
//!
//! Depends on no other folder.

mod drafts;
pub(crate) mod dtype;
mod exchange;
mod given;
mod head;
pub(crate) mod header;
mod kept;
#[cfg(feature = "emulator")]
pub(crate) mod launch;
mod operators;
mod selected;
mod step;

pub(crate) use drafts::*;
pub(crate) use exchange::*;
pub(crate) use given::*;
pub(crate) use head::*;
pub(crate) use kept::*;
pub(crate) use operators::*;
pub(crate) use selected::*;
pub use step::Slot;
pub(crate) use step::*;
