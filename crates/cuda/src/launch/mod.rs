//! Launches of a step's kernels: which kernel, and on which grid.
//!
//! Depends on `abi`, `driver`, `memory` and `requests`.

pub(crate) mod survey;
pub(crate) mod work_sharing;
