//! How many threads make the request of a row behind drafts, and accept the drafts of a request. Neither is measured yet.

use crate::abi::{BEGIN_DRAFTS_THREADS, END_DRAFTS_THREADS};
use crate::driver::runtime::Grid;
use crate::requests::step_features::Edits;

/// The threads that make the request of a row that copies no lists.
const THREADS_WITHOUT_LISTS: u32 = 128;

/// Returns the grid of `begin_drafts`: a block makes the request of a row. If rows may have edits, it may copy lists
/// with thousands of entries.
pub(crate) fn begin_drafts(rows: usize, edits: Edits) -> Grid {
    let threads = if edits == Edits::None { THREADS_WITHOUT_LISTS } else { BEGIN_DRAFTS_THREADS };
    Grid::new(rows as u32, threads)
}

/// Returns the grid of `end_drafts`: a block accepts the drafts of a request.
pub(crate) fn end_drafts(requests: usize) -> Grid {
    Grid::new(requests as u32, END_DRAFTS_THREADS)
}
