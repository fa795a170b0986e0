//! How many threads make the request of a row after drafts, write its edited row, draw drafts from it, and
//! accept the drafts of a request. None of these is measured yet.

use gumball_spec::Kind;

use super::{TileBlocks, WARP};
use crate::abi::dtype::Dtype;
use crate::abi::{
    BEGIN_DRAFTS_THREADS, COPY_DRAFTS_THREADS, DRAFT_RACE_THREADS, DraftCopy, DraftLinks, DraftRace,
    DraftStep, EDIT_ROWS_THREADS, END_DRAFTS_THREADS, PARENTS_OF_LINKS_THREADS, SHORTEN_THREADS,
    ShortenRequests,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::launch::Launch;
use crate::programs::kernels::{
    BEGIN_DRAFTS, COPY_DRAFTS, DRAFT_RACE, END_DRAFTS, PARENTS_OF_LINKS, SHORTEN_REQUESTS,
};
use crate::requests::step_features::StepFeatures;

/// The threads that make the request of a row that copies no lists: a warp each for its state, its request
/// and its parameters.
const THREADS_WITHOUT_LISTS: u32 = 96;

/// Of `edit_rows`: blocks per multiprocessor before a warp takes several tiles, and the most tiles that a
/// warp takes.
const EDIT_BLOCKS_PER_SM: usize = 4;
const MAX_EDIT_TILES_PER_WARP: usize = 8;

/// Returns the launch of `begin_drafts`: a block makes the request of a row. If rows may have edits or read
/// their histories, it may copy lists with thousands of entries. The kernel before writes none of the tables
/// but the states of slots.
pub(crate) fn begin_drafts(rows: usize, needs: StepFeatures) -> Launch<DraftStep> {
    let has_lists = needs.edits || needs.history;
    let threads = if has_lists { BEGIN_DRAFTS_THREADS } else { THREADS_WITHOUT_LISTS };
    Launch::dependent(BEGIN_DRAFTS.kernel(), Grid::new(rows as u32, threads))
}

/// Returns the launch of `end_drafts`, after the rows are finished: a block accepts the drafts of a request.
pub(crate) fn end_drafts(requests: usize) -> Launch<DraftStep> {
    Launch::dependent(END_DRAFTS.kernel(), Grid::new(requests as u32, END_DRAFTS_THREADS))
}

/// Returns the launch of `draft_race`, which follows the survey of the rows, that began after their requests
/// were made: a block draws the drafts of a row.
pub(crate) fn draft_race(
    limits: &DeviceLimits,
    rows: usize,
    (kind, dtype): (Kind, Dtype),
) -> Launch<DraftRace> {
    let threads = limits.threads_per_row.min(DRAFT_RACE_THREADS as usize);
    Launch::dependent(DRAFT_RACE.of(kind, dtype), Grid::new(rows as u32, threads as u32))
}

/// Returns the launch of `shorten_requests`: a block has a request.
pub(crate) fn shorten_requests(requests: usize) -> Launch<ShortenRequests> {
    Launch::new(SHORTEN_REQUESTS.kernel(), Grid::new(requests as u32, SHORTEN_THREADS))
}

/// Returns the launch of `copy_drafts`: a thread copies a draft, of which there is one at least.
pub(crate) fn copy_drafts(drafts: usize) -> Launch<DraftCopy> {
    let blocks = drafts.div_ceil(COPY_DRAFTS_THREADS as usize);
    Launch::new(COPY_DRAFTS.kernel(), Grid::new(blocks as u32, COPY_DRAFTS_THREADS))
}

/// Returns the launch of `parents_of_links`: a block has the rows of a request.
pub(crate) fn parents_of_links(requests: usize) -> Launch<DraftLinks> {
    Launch::new(PARENTS_OF_LINKS.kernel(), Grid::new(requests as u32, PARENTS_OF_LINKS_THREADS))
}

/// Returns the blocks of `edit_rows`: a warp takes one tile while the device holds all tiles at once.
pub(crate) fn edit_rows(limits: &DeviceLimits, rows: usize, tiles: usize) -> TileBlocks {
    let warps = EDIT_ROWS_THREADS as usize / WARP;
    let at_once = limits.multiprocessors * EDIT_BLOCKS_PER_SM * warps;
    TileBlocks::new(tiles, warps, (rows * tiles).div_ceil(at_once).clamp(1, MAX_EDIT_TILES_PER_WARP))
}
