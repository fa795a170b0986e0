//! How many threads find the edits of a row that match the end of its history.

use crate::abi::Step;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::launch::Launch;
use crate::programs::kernels::HISTORY_EDITS;

/// Returns the launch of `history_edits`, before the survey: a block handles a row. `drafted`: the kernel
/// before makes the requests of the rows.
pub(crate) fn history_edits(limits: &DeviceLimits, rows: usize, drafted: bool) -> Launch<Step> {
    let grid = Grid::new(rows as u32, limits.threads_per_row as u32);
    Launch::new(HISTORY_EDITS.kernel(), grid).dependent_if(drafted)
}
