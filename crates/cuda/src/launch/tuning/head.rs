//! How many blocks compute and bound the logits of hidden states.

use super::WARP;
use crate::abi::{
    HEAD_CONTENDERS_THREADS, HEAD_COPY_WARPS, HEAD_FEW_IDS, HEAD_FEW_STATES, HEAD_MANY_IDS, HEAD_MANY_STATES,
    HEAD_MANY_THREADS, HEAD_MOST_STAGES, HEAD_PROBES_BLOCKS, HEAD_PROBES_THREADS, HEAD_PRODUCT_WARPS,
    HEAD_QUEUE_THREADS, HEAD_RACE_THREADS, HEAD_STAGE_BYTES, HEAD_STATES_THREADS, HEAD_STATIC_SMEM,
    HEAD_WARP_IDS, LIST_PROBED_THREADS, LISTED_BYTES, LISTED_LOGITS_THREADS, LISTED_STRIDE, MATRIX_ALIGNMENT,
    MATRIX_GROUP_COLUMNS, MATRIX_GROUP_IDS, MATRIX_WARP_COLUMNS, PROBED_IDS,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::programs::kernels::Size;

/// Blocks of a multiprocessor for the logits of contenders.
const LISTED_BLOCKS: usize = 3;

/// Blocks of a multiprocessor for the race, all at once.
const RACE_BLOCKS: usize = 4;

/// Returns the grid of `head_states`: a block has a row.
pub(crate) fn head_states(rows: usize) -> Grid {
    Grid::new(rows as u32, HEAD_STATES_THREADS)
}

/// How a kernel with a queue of stages shares the ids and a block's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueShape {
    /// The most ids that a block has at a time.
    pub ids: u32,
    pub stages: u32,
}

/// The stages that keep a multiprocessor's copies going, if they fit.
const ENOUGH_STAGES: u32 = 3;

/// The multiplying warps of a block: at most `most` groups of `warps` warps, with `ids` ids a group.
#[derive(Clone, Copy)]
struct Multipliers {
    most: u32,
    warps: u32,
    ids: u32,
}

impl Multipliers {
    const fn warps(most: u32, ids: u32) -> Self {
        Self { most, warps: 1, ids }
    }
}

/// The bytes of a stage: of each id, of all hidden states, and what its address is a multiple of.
#[derive(Clone, Copy)]
struct StageBytes {
    id: u32,
    states: u32,
    alignment: u32,
}

impl StageBytes {
    const fn of_states(states: u32) -> Self {
        Self { id: HEAD_STAGE_BYTES, states, alignment: 0 }
    }
}

/// Returns the shape and grid of a kernel with a queue of stages. A block takes as many ids at a time as
/// leave room for enough stages: hidden states are copied once for each set of ids. Where its share is less
/// it has no more warps than that, and more stages.
fn queue(
    limits: &DeviceLimits,
    vocab: usize,
    bytes: StageBytes,
    multipliers: Multipliers,
) -> (QueueShape, Grid) {
    let of = |groups: u32| {
        let ids = groups * multipliers.ids;
        let stage = ids * bytes.id + bytes.states;
        let reserved = HEAD_STATIC_SMEM + bytes.alignment;
        let smem = (limits.dynamic_smem_per_block as u32).saturating_sub(reserved);
        let stages = (smem / stage).clamp(1, HEAD_MOST_STAGES);
        (QueueShape { ids, stages }, stages * stage + bytes.alignment)
    };
    let mut groups = multipliers.most;
    while groups > 1 && of(groups).0.stages < ENOUGH_STAGES {
        groups -= 1;
    }
    let blocks = limits.multiprocessors.min(vocab.div_ceil(HEAD_WARP_IDS as usize)) as u32;
    // As IdSets in block/stage_queue.cuh divides the ids.
    let most = of(groups).0.ids;
    let sets = (vocab as u32).div_ceil(blocks * most) * blocks;
    let share = (vocab as u32).div_ceil(sets).next_multiple_of(HEAD_WARP_IDS.min(multipliers.ids));
    let groups = share.div_ceil(multipliers.ids);
    let (shape, smem) = of(groups);
    let warps = HEAD_COPY_WARPS + groups * multipliers.warps;
    (shape, Grid::new(blocks, warps * WARP as u32).with_dynamic_smem(smem))
}

/// Returns size, shape and grid of `head_logits`, for weights of `element_bytes`.
pub(crate) fn head_logits(
    limits: &DeviceLimits,
    (rows, vocab): (usize, usize),
    element_bytes: usize,
) -> (Size, QueueShape, Grid) {
    let state_bytes = state_bytes(element_bytes);
    let (size, states, threads, ids) = match rows > HEAD_FEW_STATES as usize {
        true => (Size::Many, HEAD_MANY_STATES, HEAD_MANY_THREADS, HEAD_MANY_IDS),
        false => (Size::Few, HEAD_FEW_STATES, HEAD_QUEUE_THREADS, HEAD_FEW_IDS),
    };
    let warps = threads / WARP as u32 - HEAD_COPY_WARPS;
    let bytes = StageBytes::of_states(states * state_bytes);
    let (shape, grid) = queue(limits, vocab, bytes, Multipliers::warps(warps, ids * HEAD_WARP_IDS));
    (size, shape, grid)
}

/// Returns the shape and grid of `probed_logits`, for lists of `listed` ids and weights of `element_bytes`.
pub(crate) fn probed_logits(
    limits: &DeviceLimits,
    listed: usize,
    element_bytes: usize,
) -> (QueueShape, Grid) {
    let warp_ids = PROBED_IDS / HEAD_PRODUCT_WARPS;
    let bytes = StageBytes::of_states(state_bytes(element_bytes));
    queue(limits, listed, bytes, Multipliers::warps(HEAD_PRODUCT_WARPS, warp_ids))
}

/// The bytes of a hidden state's elements in a stage, which are f32.
fn state_bytes(element_bytes: usize) -> u32 {
    HEAD_STAGE_BYTES / element_bytes as u32 * size_of::<f32>() as u32
}

/// Returns the shape and grid of `fast_logits` or `head_bounds`, which multiply rows, each of which begins at
/// a multiple of 16 bytes if they are `aligned`, by `columns` columns.
pub(crate) fn matrix_product(
    limits: &DeviceLimits,
    (columns, vocab): (usize, usize),
    aligned: bool,
) -> (QueueShape, Grid) {
    let most = if aligned { matrix_columns(limits) } else { MATRIX_WARP_COLUMNS };
    let at_once = columns.next_power_of_two().clamp(8, most) as u32;
    if !limits.warpgroups_multiply {
        let bytes = StageBytes::of_states(at_once * HEAD_STAGE_BYTES);
        return queue(limits, vocab, bytes, Multipliers::warps(HEAD_PRODUCT_WARPS, HEAD_WARP_IDS));
    }
    // Of many columns at once two whole pieces would leave too few stages.
    let id = HEAD_STAGE_BYTES / if at_once > MATRIX_WARP_COLUMNS as u32 { 2 } else { 1 };
    let warps = MATRIX_GROUP_IDS / HEAD_WARP_IDS;
    let groups = Multipliers { most: HEAD_PRODUCT_WARPS / warps, warps, ids: MATRIX_GROUP_IDS };
    queue(limits, vocab, StageBytes { id, states: at_once * id, alignment: MATRIX_ALIGNMENT }, groups)
}

/// Returns how many bytes a column of `bytes` bytes takes in memory: whole stages.
pub(crate) fn column_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(HEAD_STAGE_BYTES as usize)
}

/// Returns how many columns tensor cores multiply in one pass over the rows, at most.
pub(crate) fn matrix_columns(limits: &DeviceLimits) -> usize {
    if limits.warpgroups_multiply { MATRIX_GROUP_COLUMNS } else { MATRIX_WARP_COLUMNS }
}

/// Returns the grid of `listed_logits`.
pub(crate) fn listed_logits(limits: &DeviceLimits) -> Grid {
    let halves = 2 * LISTED_LOGITS_THREADS / WARP as u32;
    let blocks = (LISTED_BLOCKS * limits.multiprocessors) as u32;
    // A hidden state has f32 elements for weights of 2 bytes at least.
    let of_state = LISTED_BYTES / 2 * size_of::<f32>() as u32;
    Grid::new(blocks, LISTED_LOGITS_THREADS).with_dynamic_smem(halves * LISTED_STRIDE + of_state)
}

/// Returns the grid of `head_probes`.
pub(crate) fn head_probes(rows: usize) -> Grid {
    Grid::new(rows as u32 * HEAD_PROBES_BLOCKS, HEAD_PROBES_THREADS)
}

/// Returns the grid of `list_probed`, of which a warp has a tile of ids.
pub(crate) fn list_probed(tiles: usize) -> Grid {
    Grid::new(tiles.div_ceil(LIST_PROBED_THREADS as usize / WARP) as u32, LIST_PROBED_THREADS)
}

/// Returns the grid of `head_race`, whose warps share the tiles of all rows.
pub(crate) fn head_race(limits: &DeviceLimits, rows: usize, tiles: usize) -> Grid {
    let warps = HEAD_RACE_THREADS as usize / WARP;
    let blocks = (rows * tiles).div_ceil(warps).min(RACE_BLOCKS * limits.multiprocessors);
    Grid::new(blocks as u32, HEAD_RACE_THREADS)
}

/// Returns the grid of `head_contenders`: a block has a row.
pub(crate) fn head_contenders(limits: &DeviceLimits, rows: usize) -> Grid {
    Grid::new(rows as u32, (2 * limits.threads_per_row).min(HEAD_CONTENDERS_THREADS as usize) as u32)
}
