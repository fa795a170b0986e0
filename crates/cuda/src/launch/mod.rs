//! Launches of a step's kernels: which kernel, and on which grid.
//!
//! Depends on `abi`, `driver` and `requests`.

pub(crate) mod edit;
pub(crate) mod finish;
pub(crate) mod survey;
pub(crate) mod work_sharing;
