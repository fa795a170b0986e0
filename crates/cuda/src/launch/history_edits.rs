//! The launch of `history_edits`, the kernel that finds edits which match the end of a history.

use crate::abi;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::HISTORY_EDITS;

/// Enqueues `history_edits` over a step's rows, before the step's survey.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn enqueue(runtime: &dyn Runtime, limits: &DeviceLimits, step: &abi::Step) -> Result<()> {
    let grid = tuning::history_edits(limits, step.rows as usize);
    // SAFETY: the grid is the one that history_edits.cu expects. The caller guarantees what `step` points to.
    unsafe { runtime.launch(HISTORY_EDITS.kernel(), grid, bytemuck::bytes_of(step)) }
}

/// Enqueues `history_edits` as a dependent launch: it may begin while the kernel launched last still makes
/// the requests of the rows.
///
/// # Safety
/// As for [`enqueue`].
pub(crate) unsafe fn enqueue_dependent(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    step: &abi::Step,
) -> Result<()> {
    let grid = tuning::history_edits(limits, step.rows as usize);
    // SAFETY: the grid is the one that history_edits.cu expects, and each of its blocks waits before it reads
    // anything. The caller guarantees what `step` points to.
    unsafe { runtime.launch_dependent(HISTORY_EDITS.kernel(), grid, bytemuck::bytes_of(step)) }
}
