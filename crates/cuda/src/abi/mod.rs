//! What host and device share: the structs that cross between them, the kernels' names and their sources.
//!
//! Depends on no other room.

pub(crate) mod dtype;
pub(crate) mod kernel_table;
pub(crate) mod program;
mod structs;

pub use structs::*;
