//! Softmax: rows of logits to rows of probabilities, at a temperature, by the kernels of `softmax.cu`.
//!
//! A row that fits into the shared memory of a cluster is read once and written once. Other rows are read
//! twice, in groups small enough that the second read hits the L2 cache. Both ways return the same bits: the
//! oracle's probabilities without edits and filters.

use std::sync::Arc;

use gumball_spec::{Error, Kind, Result, TILE};

use crate::abi::dtype::Dtype;
use crate::abi::kernels::{KernelModule, SOFTMAX_CLUSTER, SOFTMAX_REDUCE, SOFTMAX_WRITE};
use crate::abi::{
    self, CLUSTER_STATIC_SMEM_BYTES, MAX_CLUSTER_BLOCKS, MAX_ROWS_IN_FLIGHT, MAX_WORKER_WARPS, TWO_PASS_WARPS,
};
use crate::driver::runtime::{Grid, Runtime};
use crate::memory::buffer::Buffer;
use crate::memory::rows::{Rows, RowsOut};
use crate::memory::slices::DeviceSlice;

/// Blocks per SM before a warp takes several tiles, and the most tiles that a warp takes; for rows read
/// twice.
const BLOCKS_OF_TWICE: usize = 4;
const MOST_PER_WARP: usize = 6;
/// Up to this number of tiles per SM, rows are read twice even if they fit a cluster: that is faster for few
/// rows.
const TILES_OF_TWICE: usize = 160;
/// The most tiles that one launch reads twice: their logits and probabilities fit the L2 cache.
const TILES_AT_A_TIME: usize = 20 << 10;

/// The numbers of blocks that a cluster may have, which share a row.
const BLOCKS: [usize; 7] = [1, 2, 3, 4, 6, 8, MAX_CLUSTER_BLOCKS];
/// The most pairs of tiles for which a warp has slots in shared memory.
const MOST_SLOTS: usize = 32;

/// The temperature of rows. At 0, or anything below 2^-100, the first token of the order has probability 1.
#[derive(Clone, Copy, Debug)]
pub enum Temperature<'b> {
    /// One temperature for all rows, in 0..=2^100.
    All(f32),
    /// One f32 per row, or a single one for all rows. The host does not read them. The kernel treats NaN and
    /// negative numbers as 0, and numbers above 2^100 as 2^100.
    PerRow(DeviceSlice<'b>),
}

/// The softmax on a device. It holds 320 KiB of scratch memory, whatever the shapes of its calls are.
#[derive(Debug)]
pub struct Softmax {
    runtime: Arc<dyn Runtime>,
    /// The tiles' sums of weights, which the kernel of the first read writes and that of the second reads.
    told: Buffer,
    /// Whether rows are read twice, if a test fixed that.
    twice: Option<bool>,
}

/// How kernels read the rows: a pure function of the device, the number of rows, the vocabulary and the
/// types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    OnChip(Shape),
    /// Each launch reads `rows` rows twice, and each of its blocks takes `share` tiles.
    Twice {
        rows: usize,
        share: usize,
    },
}

/// The launch of a softmax by clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    clusters: usize,
    /// The number of blocks per row, and the most tiles that a block takes of a row.
    blocks: usize,
    share: usize,
    /// The number of warps in a block that work on tiles, and the pairs of tiles for which each has slots.
    warps: usize,
    slots: usize,
    /// How many pairs beyond a row's own a warp has weighed when it writes that row.
    ahead: usize,
    /// Dynamic shared memory per block, in bytes.
    room: usize,
}

impl Shape {
    /// Returns the cluster launch with `blocks` blocks per row, or `None` if a row does not fit their shared
    /// memory.
    fn new(runtime: &dyn Runtime, rows: usize, vocab: usize, dtype: Dtype, blocks: usize) -> Option<Self> {
        let clusters = rows.min(runtime.clusters(blocks as u32) as usize);
        let pairs = vocab.div_ceil(2 * TILE).div_ceil(blocks);
        let per_warp = pairs.div_ceil(MAX_WORKER_WARPS);
        let warps = pairs.div_ceil(per_warp);
        // A slot holds a pair of tiles and an mbarrier. If rows do not begin at multiples of 16 bytes, up to
        // 16 bytes before the pair are copied with it.
        let slot_bytes = 2 * TILE * dtype.bytes() + 16 + size_of::<u64>();
        let share = 2 * pairs;
        let records = MAX_ROWS_IN_FLIGHT * share * size_of::<abi::TileSum>();
        let room = runtime.shared_memory_per_block().checked_sub(CLUSTER_STATIC_SMEM_BYTES + records)?;
        let slots = (room / slot_bytes / warps).min(6 * per_warp).min(MOST_SLOTS);
        if clusters == 0 || slots < per_warp {
            return None;
        }
        let ahead = (slots - per_warp).min((MAX_ROWS_IN_FLIGHT - 2) * per_warp);
        let room = records + warps * slots * slot_bytes;
        Some(Self { clusters, blocks, share, warps, slots, ahead, room })
    }

    /// Returns the number of tiles that a block takes of all rows together.
    fn tiles(&self, rows: usize) -> usize {
        rows.div_ceil(self.clusters) * self.share
    }

    /// Returns a relative estimate of a block's time for all rows. If warps cannot weigh a whole row ahead,
    /// they sometimes wait for other blocks.
    fn cost(&self, rows: usize) -> usize {
        let waits = self.ahead < (self.share / 2).div_ceil(self.warps);
        self.tiles(rows) * if waits { 103 } else { 100 }
    }
}

/// Chooses how kernels read the rows.
fn path(runtime: &dyn Runtime, rows: usize, vocab: usize, dtype: Dtype, twice: Option<bool>) -> Path {
    let tiles = vocab.div_ceil(TILE);
    let multiprocessors = runtime.multiprocessors() as usize;
    let twice = twice.unwrap_or(rows * tiles <= TILES_OF_TWICE * multiprocessors);
    if !twice {
        let shapes = BLOCKS.iter().filter_map(|blocks| Shape::new(runtime, rows, vocab, dtype, *blocks));
        if let Some(shape) = shapes.min_by_key(|shape| (shape.cost(rows), shape.blocks)) {
            return Path::OnChip(shape);
        }
    }
    let rows = rows.min((TILES_AT_A_TIME / tiles).max(1));
    // Each block also sums its row's tile masses, which is overhead: so as few blocks as keep all SMs busy.
    let per_warp = (rows * tiles).div_ceil(multiprocessors * BLOCKS_OF_TWICE * TWO_PASS_WARPS);
    Path::Twice { rows, share: TWO_PASS_WARPS * per_warp.clamp(1, MOST_PER_WARP) }
}

impl Softmax {
    /// Prepares the kernels and allocates the scratch memory.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device has not enough memory, or the kernels cannot be compiled.
    pub fn new(runtime: Arc<dyn Runtime>) -> Result<Self> {
        runtime.prepare(KernelModule::Softmax)?;
        let told = Buffer::zeroed(&runtime, TILES_AT_A_TIME * size_of::<abi::TileSum>())?;
        Ok(Self { runtime, told, twice: None })
    }

    /// Returns a softmax that reads all rows twice, as on devices without bulk copies into shared memory. For
    /// tests.
    #[must_use]
    pub fn reading_twice(self) -> Self {
        Self { twice: Some(true), ..self }
    }

    /// Returns a softmax that reads every row once if it fits a cluster. For tests.
    #[must_use]
    pub fn reading_once(self) -> Self {
        Self { twice: Some(false), ..self }
    }

    /// Enqueues the softmax of `logits` to `out` on the device's stream, and returns without waiting.
    /// Allocates nothing and can be captured.
    ///
    /// NaN counts as -inf and +inf as `f32::MAX`. The probabilities of a row with only -inf are all 0.
    ///
    /// # Shapes and units
    /// `out`: as many rows as `logits` and as wide, of f32 or of the type of `logits`. `statuses`: one word
    /// per row, which receives the row's [`gumball_spec::Status`] bits.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the temperature of all rows is outside 0..=2^100.
    /// - [`Error::OutOfRange`] if `out` has another width, or a type that is neither f32 nor that of
    ///   `logits`.
    /// - [`Error::Length`] if `out`, the temperatures or the statuses have another number of rows.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn enqueue(
        &self,
        logits: &Rows<'_>,
        out: &RowsOut<'_>,
        temperature: Temperature<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let to = out.rows();
        if to.vocab != logits.vocab {
            let allowed = format!("{}, as the logits have", logits.vocab);
            return Err(Error::out_of_range("out.vocab", to.vocab, allowed));
        }
        if to.dtype != Dtype::F32 && to.dtype != logits.dtype {
            let allowed = format!("f32 or {}, as the logits are", logits.dtype.name());
            return Err(Error::out_of_range("out.dtype", to.dtype.name(), allowed));
        }
        check_rows("out", to.rows, logits.rows)?;
        self.enqueue_checked(logits, to, temperature, statuses)
    }

    /// Enqueues the softmax of rows in place: each probability is rounded once to the type of the rows.
    ///
    /// # Errors
    /// Those of [`Softmax::enqueue`].
    pub fn enqueue_in_place(
        &self,
        rows: &RowsOut<'_>,
        temperature: Temperature<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        self.enqueue_checked(rows.rows(), rows.rows(), temperature, statuses)
    }

    /// Enqueues the softmax of rows to `out`, whose shape and type are already checked. Both may be the same
    /// memory.
    pub(crate) fn enqueue_checked(
        &self,
        logits: &Rows<'_>,
        out: &Rows<'_>,
        temperature: Temperature<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let Rows { rows, vocab, dtype, .. } = *logits;
        let (of_all, temperatures) = match temperature {
            Temperature::All(of_all) => (check_temperature(of_all)?, 0),
            Temperature::PerRow(each) => {
                if each.rows != 1 {
                    check_rows("temperatures", each.rows, rows)?;
                }
                (0.0, each.address)
            }
        };
        let temperature_stride =
            u32::from(matches!(temperature, Temperature::PerRow(each) if each.rows == rows));
        statuses.map_or(Ok(()), |statuses| check_rows("statuses", statuses.rows, rows))?;
        let all = abi::SoftmaxArgs {
            logits: logits.address,
            out: out.address,
            stride: logits.stride as u64,
            out_stride: out.stride as u64,
            temperatures,
            statuses: statuses.map_or(0, |statuses| statuses.address),
            tile_sums: self.told.address(),
            rows: 0,
            vocab: vocab as u32,
            tiles: vocab.div_ceil(TILE) as u32,
            blocks_per_row: 0,
            tiles_per_block: 0,
            pairs_in_smem: 0,
            pairs_ahead: 0,
            temperature: of_all,
            temperature_stride,
            reserved: 0,
        };
        if rows == 0 {
            return Ok(());
        }
        let path = path(&*self.runtime, rows, vocab, dtype, self.twice);
        let at_a_time = match path {
            Path::OnChip(_) => rows,
            Path::Twice { rows, .. } => rows,
        };
        for from in (0..rows).step_by(at_a_time) {
            let asked = abi::SoftmaxArgs {
                rows: at_a_time.min(rows - from) as u32,
                ..at(&all, from, (dtype, out.dtype))
            };
            // SAFETY: the creators of the rows, temperatures and statuses guarantee their memory. `told` has
            // one element per tile of `at_a_time` rows that are read twice.
            unsafe { self.launch(path, asked, (dtype, out.dtype)) }?;
        }
        Ok(())
    }

    /// Launches the kernels for the rows of `asked`.
    ///
    /// # Safety
    /// As for [`Runtime::launch`].
    unsafe fn launch(
        &self,
        path: Path,
        asked: abi::SoftmaxArgs,
        (from, to): (Dtype, Dtype),
    ) -> crate::Result<()> {
        let runtime = &*self.runtime;
        match path {
            Path::OnChip(Shape { clusters, blocks, share, warps, slots, ahead, room }) => {
                let asked = abi::SoftmaxArgs {
                    blocks_per_row: blocks as u32,
                    tiles_per_block: share as u32,
                    pairs_in_smem: slots as u32,
                    pairs_ahead: ahead as u32,
                    ..asked
                };
                let grid = Grid::new((clusters * blocks) as u32, 32 * (warps as u32 + 1));
                let grid = grid.clustered(blocks as u32, room as u32);
                let kernel = SOFTMAX_CLUSTER.to(Kind::Logits, from, to);
                // SAFETY: the grid is the one that softmax.cu expects, with shared memory for its tiles. The
                // caller guarantees the rest.
                unsafe { runtime.launch(kernel, grid, bytemuck::bytes_of(&asked)) }
            }
            Path::Twice { share, .. } => {
                let blocks_per_row = asked.tiles.div_ceil(share as u32);
                let asked = abi::SoftmaxArgs { blocks_per_row, tiles_per_block: share as u32, ..asked };
                let grid = Grid::new(asked.rows * blocks_per_row, 32 * TWO_PASS_WARPS as u32);
                let reduce = SOFTMAX_REDUCE.of(Kind::Logits, from);
                let write = SOFTMAX_WRITE.to(Kind::Logits, from, to);
                // SAFETY: the grid is the one that softmax.cu expects. The caller guarantees the rest.
                unsafe { runtime.launch(reduce, grid, bytemuck::bytes_of(&asked)) }?;
                // SAFETY: softmax.cu expects this grid, and the caller guarantees the rest. The kernel waits
                // before it reads the first kernel's sums, and before it writes.
                unsafe { runtime.launch_dependent(write, grid, bytemuck::bytes_of(&asked)) }
            }
        }
    }
}

/// Returns the argument for the rows from index `from` on.
fn at(all: &abi::SoftmaxArgs, from: usize, (from_type, to_type): (Dtype, Dtype)) -> abi::SoftmaxArgs {
    let word = |address: u64| if address == 0 { 0 } else { address + (from * size_of::<u32>()) as u64 };
    abi::SoftmaxArgs {
        logits: all.logits + from as u64 * all.stride * from_type.bytes() as u64,
        out: all.out + from as u64 * all.out_stride * to_type.bytes() as u64,
        temperatures: if all.temperature_stride == 0 { all.temperatures } else { word(all.temperatures) },
        statuses: word(all.statuses),
        ..*all
    }
}

fn check_rows(parameter: &'static str, rows: usize, wanted: usize) -> Result<()> {
    if rows == wanted {
        return Ok(());
    }
    Err(Error::length(parameter, rows, format!("one for each of {wanted} rows")))
}

fn check_temperature(temperature: f32) -> Result<f32> {
    let most = f32::from_bits((127 + 100) << 23);
    if (0.0..=most).contains(&temperature) {
        return Ok(temperature);
    }
    Err(Error::out_of_range("temperature", temperature, "in 0..=2^100"))
}
