//! How many threads make the request of a row behind drafts, and accept the drafts of a request. Neither is measured yet.

use crate::abi::{BEGIN_DRAFTS_THREADS, END_DRAFTS_THREADS};
use crate::driver::runtime::Grid;

/// Returns the grid of `begin_drafts`: a block makes the request of a row.
pub(crate) fn begin_drafts(rows: usize) -> Grid {
    Grid::new(rows as u32, BEGIN_DRAFTS_THREADS)
}

/// Returns the grid of `end_drafts`: a block accepts the drafts of a request.
pub(crate) fn end_drafts(requests: usize) -> Grid {
    Grid::new(requests as u32, END_DRAFTS_THREADS)
}
