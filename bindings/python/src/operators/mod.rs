//! Operators over arrays, without requests; `python/gumball/operators.py` says what holds of all of them.
//!
//! A call reads its arguments (`input`, `columns`, `params`) and runs an operator of the engine (`write`,
//! `draws`, `radius`, `selected`, `given_logprobs`, `packed`, `draft_trees`; `run`): the host's if the rows
//! lie there, otherwise the operators of the rows' device and stream, which `by_stream` keeps.

mod by_stream;
mod columns;
mod draft_trees;
mod draws;
mod given_logprobs;
mod input;
mod packed;
mod params;
mod radius;
mod run;
mod selected;
mod write;

pub use draft_trees::judge;
pub use draws::{sample, sample_from_pools};
pub use given_logprobs::{logprobs_gradient, logprobs_of};
pub use input::{check_writable, emulate, row_count};
pub use packed::pack_kept;
pub use radius::radii;
pub use selected::selected_logprobs;
pub use write::{mask_logits, probabilities, softmax};
