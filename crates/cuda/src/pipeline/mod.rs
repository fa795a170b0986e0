//! Steps of requests: a workspace holds the memory, a step turns rows into tokens, a graph replays steps.
//!
//! Depends on every room but `operators`.

pub(crate) mod graph;
pub(crate) mod outputs;
pub(crate) mod score;
mod shared_rows;
pub(crate) mod step;
pub(crate) mod workspace;
