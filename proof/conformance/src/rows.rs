//! Rows of logits made from integers alone, so that every machine makes the same ones: the rows that the
//! bench measures too.

use gumball_spec::TILE;

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

/// Returns a row of few distinct values, or of many that hardly differ, so that no threshold parts its first
/// tokens from the others: flat, with some tokens above, as two heaps, with ties at the end of a top-k, or
/// saturated.
#[must_use]
pub fn few_values(vocab: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    let noise = [0.0, 1e-6, 1e-3, 1e-3, 3e-3, 0.01, 0.1][words.below(7)];
    let base = [0.0, 0.0, 8.0 * words.fraction(), -30.0, 300.0][words.below(5)];
    let up = [0.01, 0.1, 0.1 + 0.1 * words.fraction(), 0.5, 3.0, 12.0, 24.0][words.below(7)];
    let tiles = vocab.div_ceil(TILE);
    // Four tokens have a word, for the sake of long rows.
    let fraction = |word: u64, quarter: usize| (word >> (16 * quarter) & 0xFFFF) as f32 / 65_536.0 - 0.5;
    let quads = (0..vocab.div_ceil(4)).map(|_| words.word());
    let mut row: Vec<f32> =
        quads.flat_map(|word| (0..4).map(move |quarter| 2.0 * noise * fraction(word, quarter))).collect();
    row.truncate(vocab);
    match words.below(8) {
        0 => {}
        1 => above(&mut row, [1, 2, 3, 16, 100, 250][words.below(6)], up, &mut words),
        2 => {
            let every = [2, 20][words.below(2)];
            row.iter_mut().filter(|_| words.below(every) == 0).for_each(|z| *z += up);
        }
        // One token of each tile, or all, in a heap; pairs above it in some tiles.
        3 | 4 => {
            let alone = words.below(2) == 0;
            let below = |id: usize| if alone && !id.is_multiple_of(TILE) { 1.0 } else { 0.0 };
            row.iter_mut().enumerate().for_each(|(id, z)| *z -= below(id));
            for _ in 0..words.below(320) {
                let tile = TILE * words.below(tiles);
                let both = [3, 77].map(|offset| (tile + offset).min(vocab - 1));
                both.into_iter().for_each(|id| row[id] = up + 1e-3 * words.fraction());
            }
            let low = TILE * words.below(tiles);
            row[low..].iter_mut().take(TILE).for_each(|z| *z = -9.0);
            row[words.below(vocab)] += 24.0;
        }
        5 | 6 => above(&mut row, 1 + words.below(400), up, &mut words),
        _ => {
            let most = noise * (2.0 * words.fraction() - 1.0);
            row.iter_mut().for_each(|z| *z = z.min(most));
        }
    }
    row.iter_mut().for_each(|z| *z += base);
    row
}

/// Sets as many tokens to one value.
fn above(row: &mut [f32], count: usize, value: f32, words: &mut Words) {
    (0..count).for_each(|_| row[words.below(row.len())] = value);
}
