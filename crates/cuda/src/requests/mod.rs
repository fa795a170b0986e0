//! Requests: parameters in the form that kernels read, and the requests of a workspace's slots in device
//! memory.
//!
//! Depends on `abi`, `driver` and `memory`.

pub(crate) mod edit_params;
pub(crate) mod filter_params;
mod history_budget;
mod logprob_params;
pub(crate) mod prepared;
mod request_buffers;
pub(crate) mod request_table;
pub(crate) mod step_features;
pub(crate) mod step_variant;
