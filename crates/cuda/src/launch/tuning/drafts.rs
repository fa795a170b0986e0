//! How many threads make the request of a row after drafts, write its edited row, draw drafts from it, and
//! accept the drafts of a request. None of these is measured yet.

use super::{TileBlocks, WARP};
use crate::abi::{
    BEGIN_DRAFTS_THREADS, COPY_DRAFTS_THREADS, DRAFT_RACE_THREADS, EDIT_ROWS_THREADS, END_DRAFTS_THREADS,
    PARENTS_OF_LINKS_THREADS, SHORTEN_THREADS,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::requests::step_features::StepFeatures;

/// The threads that make the request of a row that copies no lists: a warp each for its state, its request
/// and its parameters.
const THREADS_WITHOUT_LISTS: u32 = 96;

/// Of `edit_rows`: blocks per multiprocessor before a warp takes several tiles, and the most tiles that a
/// warp takes.
const EDIT_BLOCKS_PER_SM: usize = 4;
const MAX_EDIT_TILES_PER_WARP: usize = 8;

/// Returns the grid of `begin_drafts`: a block makes the request of a row. If rows may have edits or read
/// their histories, it may copy lists with thousands of entries.
pub(crate) fn begin_drafts(rows: usize, needs: StepFeatures) -> Grid {
    let has_lists = needs.edits || needs.history;
    let threads = if has_lists { BEGIN_DRAFTS_THREADS } else { THREADS_WITHOUT_LISTS };
    Grid::new(rows as u32, threads)
}

/// Returns the grid of `end_drafts`: a block accepts the drafts of a request.
pub(crate) fn end_drafts(requests: usize) -> Grid {
    Grid::new(requests as u32, END_DRAFTS_THREADS)
}

/// Returns the grid of `draft_race`: a block draws the drafts of a row.
pub(crate) fn draft_race(limits: &DeviceLimits, rows: usize) -> Grid {
    Grid::new(rows as u32, limits.threads_per_row.min(DRAFT_RACE_THREADS as usize) as u32)
}

/// Returns the grid of `shorten_requests`: a block has a request.
pub(crate) fn shorten_requests(requests: usize) -> Grid {
    Grid::new(requests as u32, SHORTEN_THREADS)
}

/// Returns the grid of `copy_drafts`: a thread copies a draft.
pub(crate) fn copy_drafts(drafts: usize) -> Grid {
    Grid::new(drafts.div_ceil(COPY_DRAFTS_THREADS as usize) as u32, COPY_DRAFTS_THREADS)
}

/// Returns the grid of `parents_of_links`: a block has the rows of a request.
pub(crate) fn parents_of_links(requests: usize) -> Grid {
    Grid::new(requests as u32, PARENTS_OF_LINKS_THREADS)
}

/// Returns the blocks of `edit_rows`: a warp takes one tile while the device holds all tiles at once.
pub(crate) fn edit_rows(limits: &DeviceLimits, rows: usize, tiles: usize) -> TileBlocks {
    let warps = EDIT_ROWS_THREADS as usize / WARP;
    let at_once = limits.multiprocessors * EDIT_BLOCKS_PER_SM * warps;
    TileBlocks::new(tiles, warps, (rows * tiles).div_ceil(at_once).clamp(1, MAX_EDIT_TILES_PER_WARP))
}
