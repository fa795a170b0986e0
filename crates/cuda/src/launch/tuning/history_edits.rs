//! How many threads find the edits of a row that match the end of its history.

use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;

/// Returns the grid of `history_edits`: a block handles a row.
pub(crate) fn history_edits(limits: &DeviceLimits, rows: usize) -> Grid {
    Grid::new(rows as u32, limits.threads_per_row as u32)
}
