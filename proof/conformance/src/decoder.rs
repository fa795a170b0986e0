//! A pool of the host or of a device whose rows lie in one table, for tests of many tokens.
//!
//! A device reads the rows where the table lies, by their indices, so that a million tokens take it seconds.

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, DevicePool, DevicePoolConfig, Drafts, Dtype, Outputs, Pool,
    PoolConfig, Result, Rows, SamplingParams, Slot,
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
pub enum Decoder {
    /// A pool of the host.
    Host(Box<Pool>, Table),
    /// A pool of a device, the table there, and its shape: rows and vocabulary.
    Device(Box<DevicePool>, DeviceBuffer, [usize; 2]),
}

/// Returns the rows of a table in the device's memory.
fn table_of(buffer: &DeviceBuffer, [lines, vocab]: [usize; 2]) -> Result<Rows<'_>> {
    Ok(DeviceMatrix::of(buffer, Dtype::F32, 0, lines, vocab, vocab)?.into())
}

impl Decoder {
    /// Makes a pool with `slots` slots, on the device if there is one and otherwise on the host; each request has at most `drafts` drafts.
    ///
    /// # Errors
    /// Those of [`Pool::new`] and [`DevicePool::new`].
    pub fn new(device: Option<&Device>, table: Table, (slots, drafts): (usize, usize)) -> Result<Self> {
        let vocab = table.vocab;
        let Some(device) = device else {
            let pool = Pool::new(PoolConfig { slots, ..PoolConfig::new(vocab) })?;
            return Ok(Self::Host(Box::new(pool), table));
        };
        // Histories are moved several times.
        let (rows, history_growth) = (slots * (drafts + 1), 64);
        let config = DevicePoolConfig { slots, rows, history_growth, ..DevicePoolConfig::new(vocab) };
        let buffer = DeviceBuffer::of(device.runtime(), &table.rows)?;
        let pool = DevicePool::new(device.clone(), config)?;
        Ok(Self::Device(Box::new(pool), buffer, [table.rows.len() / vocab, vocab]))
    }

    /// Admits a request.
    ///
    /// # Errors
    /// Those of [`Pool::admit`].
    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        match self {
            Self::Host(pool, _) => pool.admit(params, prompt),
            Self::Device(pool, ..) => pool.admit(params, prompt),
        }
    }

    /// Releases a request.
    ///
    /// # Errors
    /// Those of [`Pool::release`].
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        match self {
            Self::Host(pool, _) => pool.release(slot),
            Self::Device(pool, ..) => pool.release(slot),
        }
    }

    /// Returns the output of a request.
    ///
    /// # Errors
    /// Those of [`Pool::sequence`].
    pub fn output(&mut self, slot: Slot) -> Result<Vec<u32>> {
        Ok(match self {
            Self::Host(pool, _) => pool.sequence(slot)?,
            Self::Device(pool, ..) => pool.sequence(slot)?,
        }
        .history()
        .output()
        .to_vec())
    }

    /// Takes a step in which each slot reads a row of the table; returns the tokens.
    ///
    /// # Errors
    /// Those of [`Pool::step`].
    pub fn step(&mut self, lines: &[u32], slots: &[Slot]) -> Result<Vec<i32>> {
        let mut out = Outputs::new();
        let batch = Batch { row_indices: lines, ..Batch::of(slots) };
        match self {
            Self::Host(pool, table) => {
                let rows = Rows::logits(&table.rows[..], table.rows.len() / table.vocab, table.vocab)?;
                pool.step(rows, &batch, &mut out)?;
            }
            Self::Device(pool, buffer, shape) => pool.step(table_of(buffer, *shape)?, &batch, &mut out)?,
        }
        Ok(out.tokens().to_vec())
    }

    /// Verifies drafts whose rows are rows of the table: the named lines, or the first ones if none is named.
    ///
    /// # Errors
    /// Those of [`Pool::verify`].
    pub fn verify(
        &mut self,
        lines: &[u32],
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let batch = &Batch { row_indices: lines, ..*batch };
        let first = batch.counts.iter().map(|count| *count as usize + 1).sum();
        match self {
            Self::Host(pool, table) => {
                let count = if lines.is_empty() { first } else { table.rows.len() / table.vocab };
                let rows = Rows::logits(&table.rows[..count * table.vocab], count, table.vocab)?;
                pool.verify(rows, batch, drafts, out)
            }
            Self::Device(pool, buffer, [count, vocab]) => {
                let count = if lines.is_empty() { first } else { *count };
                pool.verify(table_of(buffer, [count, *vocab])?, batch, drafts, out)
            }
        }
    }
}
