//! Softmax: rows of logits to rows of probabilities, at a temperature, by the kernels of `softmax.cu`.
//!
//! A row that fits on the chips of a cluster of blocks is read once and written once. Others are read twice, so few at a
//! time that the second read finds them in the second-level cache. What comes out is the same, bit for bit: the oracle's
//! probabilities without edits and filters.

use std::sync::Arc;

use gumball_spec::{Error, Result, TILE};

use crate::abi;
use crate::kernel_table::{ByDtype, by_dtype};
use crate::program::KernelModule;
use crate::rows::{DeviceSlice, Dtype, Rows, RowsOut};
use crate::runtime::{Buffer, Grid, Kernel, Runtime};

/// The kernels of rows that stay on chip, by the type of the logits: to that type, and to f32.
const ON_CHIP: [ByDtype; 2] = [
    by_dtype!("softmax_cluster_", ""),
    ByDtype([
        Kernel::named("softmax_cluster_f32"),
        Kernel::named("softmax_cluster_bf16_f32"),
        Kernel::named("softmax_cluster_f16_f32"),
    ]),
];

/// The kernels of those that are read twice.
const WEIGH: ByDtype = by_dtype!("softmax_reduce_", "");
const WRITE: [ByDtype; 2] = [
    by_dtype!("softmax_write_", ""),
    ByDtype([
        Kernel::named("softmax_write_f32"),
        Kernel::named("softmax_write_bf16_f32"),
        Kernel::named("softmax_write_f16_f32"),
    ]),
];

/// How many warps a block has where rows are read twice.
const TWICE_WARPS: usize = 8;
/// How many blocks of them a multiprocessor has, before warps take several tiles; and how many they take at most.
const BLOCKS_OF_TWICE: usize = 4;
const MOST_PER_WARP: usize = 6;
/// How many tiles a multiprocessor has at most where rows are read twice though they could stay on chip: for few this is faster.
const TILES_OF_TWICE: usize = 160;
/// How many tiles are read twice in one go at most: what they are, and what they become, fits the second-level cache.
const TILES_AT_A_TIME: usize = 20 << 10;

/// How many blocks a row can be cut into that stays on chip.
const BLOCKS: [usize; 7] = [1, 2, 3, 4, 6, 8, 16];
/// How many warps of such a block work at tiles at most, how many rows it has under way, and how many bytes of shared memory it
/// takes for itself, rounded up.
const MOST_WARPS: usize = 19;
/// How many pairs of tiles a warp has room for at most.
const MOST_SLOTS: usize = 32;
const MOST_ROWS: usize = 4;
const BESIDE: usize = 1536;

/// The temperature of rows: 0, or anything below 2^-100, gives the first token of the order probability 1.
#[derive(Clone, Copy, Debug)]
pub enum Temperature<'b> {
    /// That of all rows, in 0..=2^100.
    All(f32),
    /// Each row's own, f32, or one for all. Nobody sees them before the machine does: one that is NaN or less than 0 counts as 0, one above 2^100
    /// as 2^100.
    PerRow(DeviceSlice<'b>),
}

/// The softmax on a machine, with what room it needs: some hundred kilobytes, whatever it is asked.
#[derive(Debug)]
pub struct Softmax {
    machine: Arc<dyn Runtime>,
    /// What the first of two reads tells the second.
    told: Buffer,
    /// Whether rows are read twice, if that is fixed.
    twice: Option<bool>,
}

/// How rows are gone through: a pure function of the machine, the number of rows, their width and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    OnChip(Shape),
    /// Read twice, so many rows at a time, in blocks of so many tiles.
    Twice {
        rows: usize,
        share: usize,
    },
}

/// How rows are gone through on chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    clusters: usize,
    /// Into how many blocks a row is cut, and how many tiles each has at most.
    blocks: usize,
    share: usize,
    /// How many warps of a block work at tiles, and how many pairs of tiles each of them has room for.
    warps: usize,
    slots: usize,
    /// How many pairs of tiles a warp has weighed, besides those of a row, when it writes that.
    ahead: usize,
    /// Bytes of shared memory a block.
    room: usize,
}

impl Shape {
    /// Returns the shape of rows whose blocks are so many, if they stay on chip then.
    fn new(machine: &dyn Runtime, rows: usize, vocab: usize, dtype: Dtype, blocks: usize) -> Option<Self> {
        let clusters = rows.min(machine.clusters(blocks as u32) as usize);
        let pairs = vocab.div_ceil(2 * TILE).div_ceil(blocks);
        let per_warp = pairs.div_ceil(MOST_WARPS);
        let warps = pairs.div_ceil(per_warp);
        // A pair on chip, with what lies before it where rows do not begin on 16 bytes, and what says that it is there.
        let slot_bytes = 2 * TILE * dtype.bytes() + 16 + size_of::<u64>();
        let share = 2 * pairs;
        let records = MOST_ROWS * share * size_of::<abi::TileSum>();
        let room = machine.shared_memory_per_block().checked_sub(BESIDE + records)?;
        let slots = (room / slot_bytes / warps).min(6 * per_warp).min(MOST_SLOTS);
        if clusters == 0 || slots < per_warp {
            return None;
        }
        let ahead = (slots - per_warp).min((MOST_ROWS - 2) * per_warp);
        let room = records + warps * slots * slot_bytes;
        Some(Self { clusters, blocks, share, warps, slots, ahead, room })
    }

    /// Returns how many tiles a block has of all rows.
    fn tiles(&self, rows: usize) -> usize {
        rows.div_ceil(self.clusters) * self.share
    }

    /// Returns about how long a block takes for all rows: where its warps cannot be a row ahead they wait for other blocks now and then.
    fn cost(&self, rows: usize) -> usize {
        let waits = self.ahead < (self.share / 2).div_ceil(self.warps);
        self.tiles(rows) * if waits { 103 } else { 100 }
    }
}

/// Returns the path of rows.
fn path(machine: &dyn Runtime, rows: usize, vocab: usize, dtype: Dtype, twice: Option<bool>) -> Path {
    let tiles = vocab.div_ceil(TILE);
    let multiprocessors = machine.multiprocessors() as usize;
    let twice = twice.unwrap_or(rows * tiles <= TILES_OF_TWICE * multiprocessors);
    if !twice {
        let shapes = BLOCKS.iter().filter_map(|blocks| Shape::new(machine, rows, vocab, dtype, *blocks));
        if let Some(shape) = shapes.min_by_key(|shape| (shape.cost(rows), shape.blocks)) {
            return Path::OnChip(shape);
        }
    }
    let rows = rows.min((TILES_AT_A_TIME / tiles).max(1));
    // What a block adds up of its row is work for nothing: the fewer blocks the better, once all multiprocessors have some.
    let per_warp = (rows * tiles).div_ceil(multiprocessors * BLOCKS_OF_TWICE * TWICE_WARPS);
    Path::Twice { rows, share: TWICE_WARPS * per_warp.clamp(1, MOST_PER_WARP) }
}

impl Softmax {
    /// Takes the room on a machine.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if there is not enough memory, or the kernels cannot be compiled.
    pub fn new(machine: Arc<dyn Runtime>) -> Result<Self> {
        machine.prepare(KernelModule::Softmax)?;
        let told = Buffer::zeroed(&machine, TILES_AT_A_TIME * size_of::<abi::TileSum>())?;
        Ok(Self { machine, told, twice: None })
    }

    /// Returns the same that reads all rows twice: as on machines where no copies fly into shared memory. For tests.
    #[must_use]
    pub fn reading_twice(self) -> Self {
        Self { twice: Some(true), ..self }
    }

    /// Returns the same that reads rows once wherever they can lie on chip. For tests.
    #[must_use]
    pub fn reading_once(self) -> Self {
        Self { twice: Some(false), ..self }
    }

    /// Enqueues the softmax of rows to other rows, of f32 or of the logits' own type, on the machine's stream.
    ///
    /// Allocates nothing and waits for nothing; it can be captured. In a row NaN counts as -inf and +inf as `f32::MAX`; a row of
    /// nothing but -inf becomes all 0. `statuses` takes the [`gumball_spec::Status`] bits of each row.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the temperature of all rows is, or `out` has another width or type.
    /// - [`Error::Length`] if `out`, the temperatures or the statuses are not those of as many rows.
    /// - [`Error::Unavailable`] if the machine fails.
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

    /// Enqueues the softmax of rows in their own place: each probability rounded once to their type.
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

    /// Enqueues the softmax of rows to others that are known to fit, or to themselves.
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
        let to = usize::from(out.dtype != dtype);
        if rows == 0 {
            return Ok(());
        }
        let path = path(&*self.machine, rows, vocab, dtype, self.twice);
        let at_a_time = match path {
            Path::OnChip(_) => rows,
            Path::Twice { rows, .. } => rows,
        };
        for from in (0..rows).step_by(at_a_time) {
            let asked = abi::SoftmaxArgs {
                rows: at_a_time.min(rows - from) as u32,
                ..at(&all, from, (dtype, out.dtype))
            };
            // SAFETY: the rows, and what there is of each, lie in memory that whoever made them vouches for, or in this room, which
            // has a place for each tile of as many rows; the layout is held to the kernels' in tests/abi.rs.
            unsafe { self.launch(path, asked, dtype, to) }?;
        }
        Ok(())
    }

    /// Launches the kernels for some rows.
    ///
    /// # Safety
    /// As for [`Runtime::launch`].
    unsafe fn launch(
        &self,
        path: Path,
        asked: abi::SoftmaxArgs,
        dtype: Dtype,
        to: usize,
    ) -> crate::Result<()> {
        let machine = &*self.machine;
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
                // SAFETY: the grid is softmax.cu's, with room for its tiles; for the rest the caller vouches.
                unsafe { machine.launch(ON_CHIP[to].of(dtype), grid, bytemuck::bytes_of(&asked)) }
            }
            Path::Twice { share, .. } => {
                let blocks_per_row = asked.tiles.div_ceil(share as u32);
                let asked = abi::SoftmaxArgs { blocks_per_row, tiles_per_block: share as u32, ..asked };
                let grid = Grid::new(asked.rows * blocks_per_row, 32 * TWICE_WARPS as u32);
                // SAFETY: the grid is softmax.cu's; for the rest the caller vouches.
                unsafe { machine.launch(WEIGH.of(dtype), grid, bytemuck::bytes_of(&asked)) }?;
                // SAFETY: the same; the kernel waits before it reads what the first one told, or writes.
                unsafe { machine.launch_dependent(WRITE[to].of(dtype), grid, bytemuck::bytes_of(&asked)) }
            }
        }
    }
}

/// Returns what is asked of the rows from one on.
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
