//! Rows of logits like those of models, and flat ones, in one buffer of the device that batches are cut from.

use std::error::Error;
use std::sync::Arc;

use gumball_cuda::{Buffer, Dtype, Machine, Rows};
use half::bf16;

/// How many bytes the batches of a graph have together, at least: several times the second-level cache.
const COLD_BYTES: usize = 400 << 20;
/// How many tokens of a model-like row stand out.
const PEAKS: usize = 20;
/// Distinct rows; the buffer repeats them.
const DISTINCT: usize = 64;

/// What rows are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// A bell of deviation 2 and twenty peaks raised by 6 to 14.
    Model,
    /// The bell without the peaks: a nucleus of 0.9 has a third of the vocabulary.
    Bell,
    /// A bell of deviation 0.001: nearly every token is in the nucleus.
    Flat,
}

impl Like {
    pub const ALL: [Like; 3] = [Like::Model, Like::Bell, Like::Flat];

    pub fn name(self) -> &'static str {
        match self {
            Like::Model => "model",
            Like::Bell => "bell",
            Like::Flat => "flat",
        }
    }

    fn row(self, vocab: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let sum = |state: &mut u64| {
            (0..3).map(|_| word(state)).flat_map(|w| (0..4).map(move |i| w >> (16 * i) & 0xFFFF)).sum::<u64>()
        };
        let deviation = if self == Like::Flat { 0.001 } else { 2.0 };
        let bell = |sum: u64| (sum as f32 - 393_210.0) / 65_536.0 * deviation;
        let mut row: Vec<f32> = (0..vocab).map(|_| bell(sum(&mut state))).collect();
        for _ in 0..if self == Like::Model { PEAKS } else { 0 } {
            let id = (word(&mut state) % vocab as u64) as usize;
            row[id] += 6.0 + 8.0 * ((word(&mut state) >> 40) as f32 / 16_777_216.0);
        }
        row
    }
}

/// The next word of a generator (SplitMix64).
pub fn word(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Rows in the device's memory, enough for cold batches of any of some sizes.
pub struct Pool {
    buffer: Buffer,
    dtype: Dtype,
    vocab: usize,
}

impl Pool {
    pub fn new(
        machine: &Arc<dyn Machine>,
        like: Like,
        vocab: usize,
        dtype: Dtype,
        sizes: &[usize],
    ) -> Result<Self, Box<dyn Error>> {
        let row_bytes = vocab * dtype.bytes();
        let rows = sizes.iter().map(|size| size * cold(row_bytes * size)).max().unwrap_or(0);
        let distinct = (0..DISTINCT as u64).flat_map(|seed| like.row(vocab, seed)).collect::<Vec<f32>>();
        let mut buffer = Buffer::zeroed(machine, rows * row_bytes)?;
        if dtype == Dtype::F32 {
            fill(&mut buffer, &distinct)?;
        } else {
            fill(&mut buffer, &distinct.into_iter().map(bf16::from_f32).collect::<Vec<_>>())?;
        }
        Ok(Self { buffer, dtype, vocab })
    }

    /// Returns batches of so many rows, each of other rows of the memory.
    pub fn batches(&self, rows: usize) -> gumball_spec::Result<Vec<Rows<'_>>> {
        let batch = |start| Rows::of(&self.buffer, self.dtype, start, rows, self.vocab, self.vocab);
        let elements = rows * self.vocab;
        (0..cold(elements * self.dtype.bytes())).map(|index| batch(index * elements)).collect()
    }
}

/// Returns how many batches of so many bytes are cold together; at least two.
pub fn cold(bytes: usize) -> usize {
    COLD_BYTES.div_ceil(bytes).max(2)
}

/// Fills a buffer with values, over and over.
fn fill<T: bytemuck::Pod>(buffer: &mut Buffer, values: &[T]) -> gumball_cuda::Result<()> {
    let (bytes, room) = (size_of_val(values), buffer.bytes());
    (0..room).step_by(bytes).try_for_each(|start| {
        let count = bytes.min(room - start) / size_of::<T>();
        buffer.write(start, &values[..count])
    })
}
