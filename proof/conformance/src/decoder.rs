//! A pool of the host, of a device or of a rank whose rows lie in one table, for tests of many tokens.
//!
//! A device reads the rows where the table lies, by their indices, so that a million tokens take it seconds.

use gumball_engine::dist::{LogitsLayout, PlannerConfig, Threads, Transport, VocabSplit};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Drafts, Dtype, Outputs, Place, Pool, PoolConfig, Ranks,
    Result, Rows, Slot,
};

/// Rows of logits.
#[derive(Clone, Debug)]
pub struct Table {
    /// `[rows, vocab]`.
    pub rows: Vec<f32>,
    /// The vocabulary.
    pub vocab: usize,
}

/// Where a pool computes.
#[derive(Debug)]
pub enum On<'a> {
    /// On the host.
    Host,
    /// On a device.
    Device(&'a Device),
    /// On the host, as one of several ranks, each of which has a part of all rows.
    Rank(Threads, LogitsLayout),
}

/// From where a pool reads the rows of a call.
#[derive(Debug)]
enum Source {
    /// The table itself, by the numbers of its rows.
    Table,
    /// A copy of the table on the pool's device, by the same numbers.
    Device(DeviceBuffer),
    /// Copies of the call's rows, as ranks take no numbers of rows.
    Copies(Vec<f32>),
}

/// A pool, and the table of rows that its requests read.
#[derive(Debug)]
pub struct Decoder {
    /// The pool.
    pub pool: Pool,
    table: Table,
    source: Source,
}

impl Decoder {
    /// Makes a pool with `slots` slots; each request has at most `drafts` drafts. `kept`: whether it tells
    /// kept sets.
    ///
    /// # Errors
    /// The errors of [`Pool::new`] and [`Pool::over`].
    pub fn new(on: On<'_>, mut table: Table, (slots, drafts): (usize, usize), kept: bool) -> Result<Self> {
        let mut config = PoolConfig { slots, kept, ..PoolConfig::new(table.vocab) };
        let (pool, source) = match on {
            On::Host => (Pool::new(config)?, Source::Table),
            On::Device(device) => {
                // Histories are moved several times.
                let (rows, history_growth) = (slots * (drafts + 1), 64);
                config.place =
                    Place::Device { device: device.clone(), rows, history_growth, keep_histories: false };
                let there = DeviceBuffer::of(device.runtime(), &table.rows)?;
                (Pool::new(config)?, Source::Device(there))
            }
            On::Rank(transport, layout) => {
                let split = VocabSplit::even(table.vocab, transport.world())?;
                let ids = split.ids(transport.rank());
                let parts = table.rows.chunks(table.vocab).flat_map(|row| &row[ids.clone()]);
                table = Table { rows: parts.copied().collect(), vocab: ids.len() };
                let planner = PlannerConfig { layouts: vec![layout], ..PlannerConfig::new(split) };
                config.place = Place::threads(1);
                let pool = Pool::over(config, Ranks::new(planner, Box::new(transport)))?;
                (pool, Source::Copies(Vec::new()))
            }
        };
        Ok(Self { pool, table, source })
    }

    /// Takes a step in which each slot reads a row of the table.
    ///
    /// # Errors
    /// The errors of [`Pool::step`].
    pub fn step(&mut self, lines: &[u32], slots: &[Slot], out: &mut Outputs) -> Result<()> {
        let Self { pool, table, source } = self;
        let (rows, row_indices) = source.rows(table, lines, None)?;
        pool.step(rows, &Batch { row_indices, ..Batch::of(slots) }, out)
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
        let Self { pool, table, source } = self;
        let first = batch.counts.iter().map(|count| *count as usize + 1).sum();
        let (rows, row_indices) = source.rows(table, lines, lines.is_empty().then_some(first))?;
        pool.verify(rows, &Batch { row_indices, ..*batch }, drafts, out)
    }
}

impl Source {
    /// Returns the first rows of a table, all of them without a number, and the lines; or copies of these
    /// lines, in their order.
    fn rows<'a>(
        &'a mut self,
        table: &'a Table,
        lines: &'a [u32],
        first: Option<usize>,
    ) -> Result<(Rows<'a>, &'a [u32])> {
        let vocab = table.vocab;
        let count = first.unwrap_or(table.rows.len() / vocab);
        let rows = match self {
            Self::Copies(copied) if first.is_none() => {
                copied.clear();
                lines.iter().for_each(|line| copied.extend(&table.rows[*line as usize * vocab..][..vocab]));
                return Ok((Rows::logits(copied.as_slice(), lines.len(), vocab)?, &[]));
            }
            Self::Device(buffer) => DeviceMatrix::of(buffer, Dtype::F32, 0, count, vocab, vocab)?.into(),
            Self::Table | Self::Copies(_) => Rows::logits(&table.rows[..count * vocab], count, vocab)?,
        };
        Ok((rows, lines))
    }
}
