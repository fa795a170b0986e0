//! Launches of a step's kernels, and the tuning of all launches.
//!
//! Depends on `abi`, `driver` and `requests`.

pub(crate) mod edit;
pub(crate) mod finish;
pub(crate) mod survey;
pub(crate) mod tuning;
