//! Steps of requests: a workspace holds the memory, a step turns rows into tokens, a graph replays steps.
//!
//! Depends on every folder.

pub(crate) mod assignment;
pub(crate) mod copied_drafts;
pub(crate) mod draft_rows;
mod exchange;
pub(crate) mod gathered_rows;
pub(crate) mod graph;
pub(crate) mod head;
pub(crate) mod head_clusters;
pub(crate) mod head_screen;
pub(crate) mod judged_rows;
pub(crate) mod known_tokens;
mod launch_step;
mod mail;
mod messages;
pub(crate) mod outputs;
mod packed_sets;
mod probability_rows;
pub(crate) mod proposals;
pub(crate) mod rank_rows;
pub(crate) mod results;
pub(crate) mod row_batch;
mod row_lists;
mod scratch;
mod shared_rows;
pub(crate) mod shorten;
pub(crate) mod step;
pub(crate) mod windows;
pub(crate) mod workspace;
