//! Rows of logits made from integers alone, so that every machine makes the same ones: the rows that the
//! bench measures too.

pub use gumball_bench_protocol::Words;
pub use gumball_bench_protocol::generated::{bell, grid, hundredth, model_like, scattered};

/// Returns a row most of whose tokens have one value: a dozen are above it, and every fifth tile is below.
#[must_use]
pub fn heap(vocab: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    let mut row: Vec<f32> = (0..vocab).map(|id| if id / 256 % 5 == 4 { -0.5 } else { 0.25 }).collect();
    (0..12).for_each(|_| row[words.below(vocab)] += words.fraction());
    row
}
