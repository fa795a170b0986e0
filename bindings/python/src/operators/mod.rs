//! Operators over arrays, without requests: `python/gumball/operators.py` gives them their public names.
//!
//! A call reads its arguments (`input`, `columns`, `params`) and runs an operator of the engine (`write`,
//! `sample`, `chains`; `run`): the host's if the rows lie there, otherwise those of the rows' device and
//! stream, which `by_stream` keeps.

mod by_stream;
mod chains;
mod columns;
mod input;
mod params;
mod run;
mod sample;
mod write;

pub use chains::verify_chains;
pub use input::{emulate, row_count};
pub use sample::sample_rows;
pub use write::write_rows;
