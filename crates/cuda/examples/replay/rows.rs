//! Families of rows of logits, and one device buffer that holds all batches.

use std::cell::RefCell;
use std::error::Error;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io, thread};

use gumball_bench_protocol::Words;
use gumball_bench_protocol::generated::{bell, grid, hundredth, model_like, ties, two_heaps, zipf};
use gumball_cuda::{Buffer, Dtype, Rows, Runtime};
use half::{bf16, f16};

/// The least number of bytes in all batches of a graph together: several times the L2 cache.
pub const COLD_BYTES: usize = 400 << 20;
/// The least number of batches, however large they are.
const FEWEST_BATCHES: usize = 4;
/// The number of distinct rows; the buffer repeats them. A prime, so that every row meets every request of a
/// mixture.
pub const DISTINCT: usize = 61;

/// A family of generated rows.
#[derive(Clone, Copy, Debug)]
pub struct Like {
    pub name: &'static str,
    row: fn(usize, u64) -> Vec<f32>,
}

/// The families, by name.
pub const LIKES: [Like; 18] = [
    // A bell-shaped distribution of deviation 2, with twenty peaks raised by 6 to 14.
    Like { name: "model", row: model_like },
    // What the former is at temperatures of 0.5 and 2.
    Like { name: "model-t0.5", row: |vocab, seed| scaled(model_like(vocab, seed), 2.0) },
    Like { name: "model-t2", row: |vocab, seed| scaled(model_like(vocab, seed), 0.5) },
    // A bell without peaks: with deviation 2, a nucleus of 0.9 has a third of the vocabulary.
    Like { name: "bell-1", row: |vocab, seed| bell(vocab, 1.0, seed) },
    Like { name: "bell", row: |vocab, seed| bell(vocab, 2.0, seed) },
    Like { name: "bell-4", row: |vocab, seed| bell(vocab, 4.0, seed) },
    // Logits that fall by the logarithm of the rank.
    Like { name: "zipf-0.8", row: |vocab, seed| zipf(vocab, 0.8, seed) },
    Like { name: "zipf-1", row: |vocab, seed| zipf(vocab, 1.0, seed) },
    Like { name: "zipf-1.5", row: |vocab, seed| zipf(vocab, 1.5, seed) },
    Like { name: "zipf-2.5", row: |vocab, seed| zipf(vocab, 2.5, seed) },
    // Some hundred and some thousand tokens at two levels above a bell.
    Like { name: "heaps", row: two_heaps },
    // One token in a hundred stands 5.5 above all others; each level is a bell of deviation 0.4.
    Like { name: "hundredth", row: hundredth },
    // A bell rounded to eighths: cuts fall on ties, as in rows that were bf16.
    Like { name: "ties", row: ties },
    // A bell of deviation 0.001: nearly every token is in the nucleus.
    Like { name: "flat", row: |vocab, seed| bell(vocab, 0.001, seed) },
    Like { name: "equal", row: |vocab, seed| grid(vocab, 0.0, 1, seed) },
    // Recorded from a model, and what they are at temperatures of 0.5 and 2.
    Like { name: "real", row: real },
    Like { name: "real-t0.5", row: |vocab, seed| scaled(real(vocab, seed), 2.0) },
    Like { name: "real-t2", row: |vocab, seed| scaled(real(vocab, seed), 0.5) },
];

/// The recorded rows of the conformance tests, bf16, and their vocabulary.
static RECORDED: &[u8] = include_bytes!("../../../../proof/conformance/rows/smollm2.bf16");
const RECORDED_VOCAB: usize = 49_152;

/// Returns a recorded row, moved along the ids by another distance for each seed. Ids beyond the recorded
/// vocabulary take logits of the row's lower half at random, as rare tokens would have.
fn real(vocab: usize, seed: u64) -> Vec<f32> {
    let rows = RECORDED.len() / (2 * RECORDED_VOCAB);
    let bytes = RECORDED.chunks_exact(2 * RECORDED_VOCAB).nth(seed as usize % rows).unwrap_or_default();
    let logits = bytes.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32());
    let mut row: Vec<f32> = logits.clone().take(vocab).collect();
    let mut lower: Vec<f32> = logits.collect();
    lower.sort_by(f32::total_cmp);
    lower.truncate(RECORDED_VOCAB / 2);
    let mut words = Words(seed);
    row.resize_with(vocab, || lower[words.below(lower.len())]);
    row.rotate_right(977 * seed as usize % vocab);
    row
}

fn scaled(row: Vec<f32>, factor: f32) -> Vec<f32> {
    row.into_iter().map(|logit| factor * logit).collect()
}

impl Like {
    /// Returns `count` distinct rows, one after the other. All cores make them.
    pub fn rows(self, vocab: usize, count: usize) -> Vec<f32> {
        let mut rows = vec![0.0; count * vocab];
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let part = count.div_ceil(threads);
        thread::scope(|scope| {
            for (index, rows) in rows.chunks_mut(part * vocab).enumerate() {
                scope.spawn(move || {
                    for (row, seed) in rows.chunks_mut(vocab).zip((index * part) as u64..) {
                        row.copy_from_slice(&(self.row)(vocab, seed));
                    }
                });
            }
        });
        rows
    }

    /// Writes rows of this family to a file that is named after family and vocabulary.
    pub fn write(self, folder: &Path, vocab: usize, rows: &[f32]) -> io::Result<()> {
        fs::write(folder.join(format!("{}-{vocab}.f32", self.name)), bytemuck::cast_slice(rows))
    }
}

/// Rows in device memory, enough for batches of each size that do not fit the cache.
pub struct Pool {
    buffer: RefCell<Buffer>,
    dtype: Dtype,
    vocab: usize,
    cold_bytes: usize,
}

impl Pool {
    /// Allocates rows for batches of each of `sizes`, of which those of a size have at least `cold_bytes`
    /// bytes together. They are zeros until they are filled.
    pub fn new(
        runtime: &Arc<dyn Runtime>,
        vocab: usize,
        dtype: Dtype,
        sizes: &[usize],
        cold_bytes: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let row_bytes = vocab * dtype.bytes();
        let rows = sizes.iter().map(|size| size * cold(cold_bytes, row_bytes * size)).max().unwrap_or(0);
        Ok(Self { buffer: Buffer::zeroed(runtime, rows * row_bytes)?.into(), dtype, vocab, cold_bytes })
    }

    /// Writes `rows` into the memory, repeated until its end, after the work that was enqueued before.
    pub fn fill(&self, rows: &[f32]) -> gumball_cuda::Result<()> {
        let buffer = &mut self.buffer.borrow_mut();
        match self.dtype {
            Dtype::F32 => fill(buffer, rows),
            Dtype::Bf16 => fill(buffer, &rows.iter().map(|logit| bf16::from_f32(*logit)).collect::<Vec<_>>()),
            Dtype::F16 => fill(buffer, &rows.iter().map(|logit| f16::from_f32(*logit)).collect::<Vec<_>>()),
        }
    }

    /// Returns batches of `rows` rows, each from another part of the memory.
    pub fn batches(&self, rows: usize) -> gumball_spec::Result<Vec<Rows<'_>>> {
        let bytes = rows * self.vocab * self.dtype.bytes();
        let address = self.buffer.borrow().address();
        let batch = |index| {
            let address = address + (index * bytes) as u64;
            // SAFETY: the batch lies in the buffer, which has room for as many batches of any of its sizes
            // and lives as long as the pool. `fill`, the only writer, writes in stream order.
            unsafe { Rows::new(address, self.dtype, rows, self.vocab, self.vocab) }
        };
        (0..cold(self.cold_bytes, bytes)).map(batch).collect()
    }
}

/// Returns the number of batches of `bytes` bytes that together have at least `cold_bytes`.
pub fn cold(cold_bytes: usize, bytes: usize) -> usize {
    cold_bytes.div_ceil(bytes).max(FEWEST_BATCHES)
}

/// Fills a buffer with values, repeated until its end.
fn fill<T: bytemuck::Pod>(buffer: &mut Buffer, values: &[T]) -> gumball_cuda::Result<()> {
    let (bytes, capacity) = (size_of_val(values), buffer.bytes());
    (0..capacity).step_by(bytes).try_for_each(|start| {
        let count = bytes.min(capacity - start) / size_of::<T>();
        buffer.write(start, &values[..count])
    })
}
