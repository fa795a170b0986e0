//! Rows of logits like those of models, and flat ones, in one device buffer that holds all batches.

use std::error::Error;
use std::sync::Arc;

use gumball_bench_protocol::generated::{bell, model_like};
use gumball_cuda::{Buffer, Dtype, Rows, Runtime};
use half::bf16;

/// The least number of bytes in all batches of a graph together: several times the L2 cache.
const COLD_BYTES: usize = 400 << 20;
/// The number of distinct rows; the buffer repeats them.
const DISTINCT: usize = 64;

/// Kinds of generated rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// A bell-shaped distribution of deviation 2, with twenty peaks raised by 6 to 14.
    Model,
    /// The bell without the peaks: a nucleus of 0.9 has a third of the vocabulary.
    Bell,
    /// A bell-shaped distribution of deviation 0.001: nearly every token is in the nucleus.
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
        match self {
            Like::Model => model_like(vocab, seed),
            Like::Bell => bell(vocab, 2.0, seed),
            Like::Flat => bell(vocab, 0.001, seed),
        }
    }
}

/// Rows in device memory, enough for batches of each size that do not fit the cache.
pub struct Pool {
    buffer: Buffer,
    dtype: Dtype,
    vocab: usize,
}

impl Pool {
    pub fn new(
        runtime: &Arc<dyn Runtime>,
        like: Like,
        vocab: usize,
        dtype: Dtype,
        sizes: &[usize],
    ) -> Result<Self, Box<dyn Error>> {
        let row_bytes = vocab * dtype.bytes();
        let rows = sizes.iter().map(|size| size * cold(row_bytes * size)).max().unwrap_or(0);
        let distinct = (0..DISTINCT as u64).flat_map(|seed| like.row(vocab, seed)).collect::<Vec<f32>>();
        let mut buffer = Buffer::zeroed(runtime, rows * row_bytes)?;
        if dtype == Dtype::F32 {
            fill(&mut buffer, &distinct)?;
        } else {
            fill(&mut buffer, &distinct.into_iter().map(bf16::from_f32).collect::<Vec<_>>())?;
        }
        Ok(Self { buffer, dtype, vocab })
    }

    /// Returns batches of `rows` rows, each from another part of the memory.
    pub fn batches(&self, rows: usize) -> gumball_spec::Result<Vec<Rows<'_>>> {
        let batch = |start| Rows::of(&self.buffer, self.dtype, start, rows, self.vocab, self.vocab);
        let elements = rows * self.vocab;
        (0..cold(elements * self.dtype.bytes())).map(|index| batch(index * elements)).collect()
    }
}

/// Returns the number of batches of `bytes` bytes that together exceed the cache; at least two.
pub fn cold(bytes: usize) -> usize {
    COLD_BYTES.div_ceil(bytes).max(2)
}

/// Fills a buffer with values, repeated until its end.
fn fill<T: bytemuck::Pod>(buffer: &mut Buffer, values: &[T]) -> gumball_cuda::Result<()> {
    let (bytes, capacity) = (size_of_val(values), buffer.bytes());
    (0..capacity).step_by(bytes).try_for_each(|start| {
        let count = bytes.min(capacity - start) / size_of::<T>();
        buffer.write(start, &values[..count])
    })
}
