//! The launch of the kernel that makes the records of a step's rows.

use crate::abi;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning::Survey;

/// Enqueues the survey of a step's rows.
///
/// # Safety
/// As for [`Runtime::launch`]. `step` must have the survey's number of blocks per row.
pub(crate) unsafe fn enqueue(runtime: &dyn Runtime, survey: &Survey, step: &abi::Step) -> Result<()> {
    let grid = survey.blocks.grid(step.rows as usize);
    // SAFETY: the grid is the one that the kernel expects. The caller guarantees what `step` points to.
    unsafe { runtime.launch(survey.kernel, grid, bytemuck::bytes_of(step)) }
}

/// Enqueues the survey of a step's rows as a dependent launch: it may begin while the kernel launched last
/// still makes the requests of the rows or stamps their edits.
///
/// # Safety
/// As for [`enqueue`]. The kernel launched last makes no logits, bitmasks and row indices, and lets this one
/// begin once those before it are complete.
pub(crate) unsafe fn enqueue_dependent(
    runtime: &dyn Runtime,
    survey: &Survey,
    step: &abi::Step,
) -> Result<()> {
    let grid = survey.blocks.grid(step.rows as usize);
    // SAFETY: the caller guarantees what [`enqueue`] requires. Each block of survey_draw.cu, survey.cu and
    // survey_edited.cu waits before it reads what the last kernel makes.
    unsafe { runtime.launch_dependent(survey.kernel, grid, bytemuck::bytes_of(step)) }
}
