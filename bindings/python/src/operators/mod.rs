//! Operators over arrays, without requests: `python/gumball/operators.py` gives them their public names.
//!
//! A call reads its arguments (`input`, `columns`, `params`) and runs an operator of the engine (`write`,
//! `sample`, `selected`, `draft_trees`; `run`): the host's if the rows lie there, otherwise the operators of the rows' device and
//! stream, which `by_stream` keeps.

mod by_stream;
mod columns;
mod draft_trees;
mod input;
mod params;
mod run;
mod sample;
mod selected;
mod write;

pub use draft_trees::judge;
pub use input::{check_writable, emulate, row_count};
pub use sample::{sample_from_pools, sample_rows};
pub use selected::token_logprobs;
pub use write::write_rows;
