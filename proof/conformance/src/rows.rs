//! Rows of logits made from integers alone, so that every machine makes the same ones: the rows that the
//! bench measures too.

pub use gumball_bench_protocol::Words;
pub use gumball_bench_protocol::generated::{bell, grid, hundredth, model_like, scattered};
