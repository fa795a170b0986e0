//! Names that may change in any minor version, without a deprecation.
//!
//! All other names of this crate keep the promise of `docs/releases.md`. What stands here serves programs
//! that build on the inside of the engine: bindings for a language, a route of one's own, graphs that another
//! program captures, drafts that never leave a device. A method whose signature has one of these types may
//! change with it.

// The stages of a route, what they take and return, and rows that are written.
pub use crate::stages::Stages;
pub use gumball_cpu::{Chosen, Draw, Entry, Prepared, RowMut, Task};
pub use gumball_spec::verify::draft::DraftWords;

// A pool in the memory of a device, for programs that capture and draft there.
pub use crate::device::DraftBatch;
#[cfg(feature = "cuda")]
pub use crate::device::{
    AssignedShape, CudaThreadState, DeviceGraph, DeviceOutputs, DraftBatchLimits, Gpu, OnDevice, Recorded,
    StepVariant,
};

// The table of parameters, and the texts of errors, for bindings.
pub use gumball_spec::error::{has_key, quoted, shown, shown_of};
pub use gumball_spec::near::{advice, meant, nearest};
pub use gumball_spec::{Field, Parameter, Parameters};

// Reading and replacing files so that nobody else's file is followed or left half written.
pub use gumball_cpu::{files, private_files};

// All names of the crate of ranks.
pub use gumball_dist as dist;
// All names of the crate of heads.
#[cfg(feature = "heads")]
pub use gumball_head as head;
