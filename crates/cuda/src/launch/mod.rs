//! Launches of a step's kernels, and the tuning of all launches.
//!
//! Depends on `abi`, `programs`, `driver` and `requests`.

pub(crate) mod drafts;
pub(crate) mod exchange;
pub(crate) mod finish;
pub(crate) mod head;
pub(crate) mod history_edits;
pub(crate) mod judge;
pub(crate) mod kept;
pub(crate) mod shards;
pub(crate) mod survey;
pub(crate) mod tuning;
pub(crate) mod written_rows;
