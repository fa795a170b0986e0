//! Softmax: rows of logits to rows of probabilities, at a temperature, by the kernels of `softmax.cu`.
//!
//! A row that fits into the shared memory of a cluster is read once and written once. Other rows are read
//! twice, in groups small enough that the second read hits the L2 cache. Both ways return the same bits: the
//! oracle's probabilities without edits and filters.

use std::sync::Arc;

use gumball_spec::{Error, Kind, Result, TILE};

use super::params::{Numbers, PerRow};
use super::{check_column, check_out};
use crate::abi;
use crate::abi::dtype::Dtype;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::Launch;
use crate::launch::tuning::{self, Clusters};
use crate::memory::buffer::Buffer;
use crate::memory::columns::{DeviceSlice, FLOATS, WORDS};
use crate::memory::rows::{Rows, RowsOut};
use crate::programs::kernels::{SOFTMAX_CLUSTER, SOFTMAX_REDUCE, SOFTMAX_WRITE};

/// The softmax on a device. It holds 320 KiB of scratch memory, whatever the shapes of its calls are.
#[derive(Debug)]
pub struct Softmax {
    runtime: Arc<dyn Runtime>,
    /// What launches are fitted to.
    device: DeviceLimits,
    /// The tiles' sums of weights, which the kernel of the first read writes and that of the second reads.
    tile_sums: Buffer,
    /// Whether rows are read twice, if a test fixed that.
    two_pass: Option<bool>,
}

/// The temperatures of rows, as kernels read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Temperatures {
    /// The address of the first row's temperature, an f32; 0: all rows have `of_all`.
    pub address: u64,
    /// The distance from one row's temperature to the next row's, in units of 4 bytes; 0: the first is of all
    /// rows.
    pub stride: u32,
    pub of_all: f32,
}

impl Softmax {
    /// Allocates the scratch memory.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn new(runtime: Arc<dyn Runtime>) -> Result<Self> {
        let tile_sums = Buffer::zeroed(&runtime, tuning::MAX_TILES_PER_LAUNCH * size_of::<abi::TileSum>())?;
        Ok(Self { device: runtime.limits(), runtime, tile_sums, two_pass: None })
    }

    /// Returns a softmax that reads all rows twice, as on devices without bulk copies into shared memory. For
    /// tests.
    #[must_use]
    pub fn reading_twice(self) -> Self {
        Self { two_pass: Some(true), ..self }
    }

    /// Returns a softmax that reads every row once if it fits a cluster. For tests.
    #[must_use]
    pub fn reading_once(self) -> Self {
        Self { two_pass: Some(false), ..self }
    }

    /// Enqueues the softmax of each row on the device's stream, and returns without waiting. Allocates
    /// nothing and can be captured.
    ///
    /// NaN counts as -inf and +inf as `f32::MAX`. The probabilities of a row with only -inf are all 0.
    ///
    /// # Shapes and units
    /// `temperature`: in 0..=2^100. At 0, and below 2^-100, the first token of the order has probability 1.
    /// In a column of f32, which the host does not read, NaN and negative numbers count as 0, and numbers
    /// above 2^100 as 2^100. `from`: the logits; `None`: those of `to`, which are replaced. `to`: as many
    /// rows and as wide, of f32 or of the type of the logits, to which each probability is rounded once.
    /// `statuses`: one word per row, which receives the row's [`gumball_spec::Status`] bits.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the temperature of all rows is outside 0..=2^100.
    /// - [`Error::OutOfRange`] if `to` has another width, or a type that is neither f32 nor that of the
    ///   logits.
    /// - [`Error::Length`] if `to`, the temperatures or the statuses have another number of rows.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn enqueue(
        &self,
        from: Option<&Rows<'_>>,
        to: &RowsOut<'_>,
        temperature: PerRow<'_, f32>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        from.map_or(Ok(()), |from| check_out(from, to))?;
        self.enqueue_checked(from.unwrap_or(to.rows()), to.rows(), temperature, statuses)
    }

    /// Enqueues the softmax of rows to `out`, whose shape and type are already checked. Both may be the same
    /// memory.
    pub(crate) fn enqueue_checked(
        &self,
        logits: &Rows<'_>,
        out: &Rows<'_>,
        temperature: PerRow<'_, f32>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let rows = logits.rows;
        let temperatures = match temperature {
            PerRow::All(of_all) => Temperatures { address: 0, stride: 0, of_all: check_temperature(of_all)? },
            PerRow::Rows(each) => {
                let column = Numbers::of("temperatures", &each, FLOATS, (rows, "rows"))?;
                Temperatures { address: column.from(0), stride: u32::from(column.per_row), of_all: 0.0 }
            }
        };
        check_column("statuses", statuses, WORDS, rows)?;
        Ok(self.enqueue_at(logits, out, temperatures, statuses.map_or(0, |statuses| statuses.address))?)
    }

    /// Enqueues the softmax of rows to `out`, of checked shapes and types, at temperatures that lie anywhere.
    /// `statuses`: the address of a word for each row, or 0.
    pub(crate) fn enqueue_at(
        &self,
        logits: &Rows<'_>,
        out: &Rows<'_>,
        temperatures: Temperatures,
        statuses: u64,
    ) -> crate::Result<()> {
        let Rows { rows, vocab, dtype, .. } = *logits;
        let all = abi::SoftmaxArgs {
            logits: logits.address,
            out: out.address,
            stride: logits.stride as u64,
            out_stride: out.stride as u64,
            temperatures: temperatures.address,
            statuses,
            tile_sums: self.tile_sums.address(),
            vocab: vocab as u32,
            tiles: vocab.div_ceil(TILE) as u32,
            temperature: temperatures.of_all,
            temperature_stride: temperatures.stride,
            ..abi::SoftmaxArgs::default()
        };
        if rows == 0 {
            return Ok(());
        }
        let way = tuning::softmax(&self.device, rows, vocab.div_ceil(TILE), dtype, self.two_pass);
        let rows_per_launch = match way {
            tuning::Softmax::SinglePass(_) => rows,
            tuning::Softmax::TwoPass { rows, .. } => rows,
        };
        for from in (0..rows).step_by(rows_per_launch) {
            let argument = abi::SoftmaxArgs {
                rows: rows_per_launch.min(rows - from) as u32,
                ..at(&all, from, (dtype, out.dtype))
            };
            // SAFETY: the creators of the rows, temperatures and statuses guarantee their memory.
            // `tile_sums` has one element per tile of `rows_per_launch` rows that are read twice.
            unsafe { self.launch(way, (dtype, out.dtype), &argument) }?;
        }
        Ok(())
    }

    /// Launches the kernels for the rows of `argument`.
    ///
    /// # Safety
    /// As for [`Runtime::launch`].
    unsafe fn launch(
        &self,
        way: tuning::Softmax,
        (from, to): (Dtype, Dtype),
        argument: &abi::SoftmaxArgs,
    ) -> crate::Result<()> {
        let runtime = &*self.runtime;
        match way {
            tuning::Softmax::SinglePass(clusters) => {
                let Clusters { blocks_per_row, tiles_per_block, pairs_in_smem, pairs_ahead, .. } = clusters;
                let launch = Launch::new(SOFTMAX_CLUSTER.to(Kind::Logits, from, to), clusters.grid());
                let argument = abi::SoftmaxArgs {
                    blocks_per_row: blocks_per_row as u32,
                    tiles_per_block: tiles_per_block as u32,
                    pairs_in_smem: pairs_in_smem as u32,
                    pairs_ahead: pairs_ahead as u32,
                    ..*argument
                };
                // SAFETY: the caller guarantees it.
                unsafe { launch.enqueue(runtime, &argument) }
            }
            tuning::Softmax::TwoPass { blocks, .. } => {
                let argument = abi::SoftmaxArgs {
                    blocks_per_row: blocks.blocks_per_row as u32,
                    tiles_per_block: blocks.tiles_per_block as u32,
                    ..*argument
                };
                let grid = blocks.grid(argument.rows as usize);
                let reduce = Launch::new(SOFTMAX_REDUCE.of(Kind::Logits, from), grid);
                let write = Launch::dependent(SOFTMAX_WRITE.to(Kind::Logits, from, to), grid);
                // SAFETY: the caller guarantees it.
                unsafe { reduce.enqueue(runtime, &argument) }?;
                // SAFETY: as above.
                unsafe { write.enqueue(runtime, &argument) }
            }
        }
    }
}

/// Returns the argument for the rows from index `from` on.
fn at(all: &abi::SoftmaxArgs, from: usize, (from_type, to_type): (Dtype, Dtype)) -> abi::SoftmaxArgs {
    let words = |address: u64, stride: u32| match address {
        0 => 0,
        _ => address + from as u64 * u64::from(stride) * size_of::<u32>() as u64,
    };
    abi::SoftmaxArgs {
        logits: all.logits + from as u64 * all.stride * from_type.bytes() as u64,
        out: all.out + from as u64 * all.out_stride * to_type.bytes() as u64,
        temperatures: words(all.temperatures, all.temperature_stride),
        statuses: words(all.statuses, 1),
        ..*all
    }
}

pub(super) fn check_temperature(temperature: f32) -> Result<f32> {
    let max = f32::from_bits((127 + 100) << 23);
    if (0.0..=max).contains(&temperature) {
        return Ok(temperature);
    }
    Err(Error::out_of_range("temperature", temperature, "in 0..=2^100"))
}
