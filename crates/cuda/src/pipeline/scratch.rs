//! Memory through which the kernels of a step hand intermediate results on. Nobody reads it after the step.

use std::sync::Arc;

use gumball_spec::{Result, TILE};

use crate::abi::{self, RowRace, TileRecord, TileSum};
use crate::driver::runtime::Runtime;
use crate::memory::buffer::{Buffer, ROWS};
use crate::pipeline::shared_rows::SharedRows;

/// Memory for the kernels of one step at a time.
#[derive(Debug)]
pub(crate) struct Scratch {
    vocab: usize,
    records: Buffer,
    filter_sums: Buffer,
    logprob_sums: Buffer,
    words: Buffer,
    races: Buffer,
    pub shared_rows: SharedRows,
}

impl Scratch {
    /// Allocates memory for steps of at most `rows` rows.
    pub fn new(runtime: &Arc<dyn Runtime>, rows: usize, vocab: usize) -> Result<Self> {
        let tiles = vocab.div_ceil(TILE);
        let alloc = |bytes_per_row: usize| Buffer::sized(runtime, ROWS, &[rows, bytes_per_row]);
        Ok(Self {
            // The largest buffer comes first, so that a far too large workspace fails before it has allocated
            // much.
            words: alloc(abi::Step::scratch_words(tiles) * size_of::<u64>())?,
            records: alloc(tiles * size_of::<TileRecord>())?,
            filter_sums: alloc(tiles * size_of::<u64>())?,
            logprob_sums: alloc(tiles * size_of::<TileSum>())?,
            races: Buffer::zeroed(runtime, rows * size_of::<RowRace>())?,
            shared_rows: SharedRows::new(runtime, rows, vocab)?,
            vocab,
        })
    }

    /// Returns the argument of a step's kernels with this memory, and nothing else but the vocabulary.
    pub fn step(&self) -> abi::Step {
        let tiles = self.vocab.div_ceil(TILE);
        abi::Step {
            vocab: self.vocab as u32,
            tiles: tiles as u32,
            records: self.records.address(),
            filter_sums: self.filter_sums.address(),
            logprob_sums: self.logprob_sums.address(),
            scratch: self.words.address(),
            scratch_words: abi::Step::scratch_words(tiles) as u64,
            races: self.races.address(),
            ..abi::Step::default()
        }
    }
}
