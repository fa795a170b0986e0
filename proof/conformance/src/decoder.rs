//! A pool of the host or of a device whose rows lie in one table, for tests of many tokens.
//!
//! A device reads the rows where the table lies, by their indices, so that a million tokens take it seconds.

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Drafts, Dtype, Outputs, Place, Pool, PoolConfig, Result, Rows,
    Slot,
};

/// Rows of logits.
#[derive(Clone, Debug)]
pub struct Table {
    /// `[rows, vocab]`.
    pub rows: Vec<f32>,
    /// The vocabulary.
    pub vocab: usize,
}

/// A pool, and the table of rows that its requests read.
#[derive(Debug)]
pub struct Decoder {
    /// The pool.
    pub pool: Pool,
    table: Table,
    /// The table in the memory of the pool's device.
    there: Option<DeviceBuffer>,
}

impl Decoder {
    /// Makes a pool with `slots` slots, on the device if there is one and otherwise on the host; each request
    /// has at most `drafts` drafts. `kept`: whether it tells kept sets.
    ///
    /// # Errors
    /// The errors of [`Pool::new`].
    pub fn new(
        device: Option<&Device>,
        table: Table,
        (slots, drafts): (usize, usize),
        kept: bool,
    ) -> Result<Self> {
        let vocab = table.vocab;
        let (mut place, mut there) = (Place::host(), None);
        if let Some(device) = device {
            // Histories are moved several times.
            let (rows, history_growth) = (slots * (drafts + 1), 64);
            place = Place::Device { device: device.clone(), rows, history_growth, keep_histories: false };
            there = Some(DeviceBuffer::of(device.runtime(), &table.rows)?);
        }
        let pool = Pool::new(PoolConfig { slots, place, kept, ..PoolConfig::new(vocab) })?;
        Ok(Self { pool, table, there })
    }

    /// Takes a step in which each slot reads a row of the table.
    ///
    /// # Errors
    /// The errors of [`Pool::step`].
    pub fn step(&mut self, lines: &[u32], slots: &[Slot], out: &mut Outputs) -> Result<()> {
        let batch = Batch { row_indices: lines, ..Batch::of(slots) };
        let rows = rows_of(&self.table, self.there.as_ref(), None)?;
        self.pool.step(rows, &batch, out)
    }

    /// Verifies drafts whose rows are rows of the table: the named lines, or the first ones if none is named.
    ///
    /// # Errors
    /// The errors of [`Pool::verify`].
    pub fn verify(
        &mut self,
        lines: &[u32],
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let batch = &Batch { row_indices: lines, ..*batch };
        let first = batch.counts.iter().map(|count| *count as usize + 1).sum();
        let rows = rows_of(&self.table, self.there.as_ref(), lines.is_empty().then_some(first))?;
        self.pool.verify(rows, batch, drafts, out)
    }
}

/// Returns the first rows of a table, all of them without a number, from the memory of a device if it is
/// there.
fn rows_of<'a>(table: &'a Table, there: Option<&'a DeviceBuffer>, first: Option<usize>) -> Result<Rows<'a>> {
    let vocab = table.vocab;
    let count = first.unwrap_or(table.rows.len() / vocab);
    match there {
        None => Rows::logits(&table.rows[..count * vocab], count, vocab),
        Some(buffer) => Ok(DeviceMatrix::of(buffer, Dtype::F32, 0, count, vocab, vocab)?.into()),
    }
}
