//! The launch of the kernel that finds edits which match the end of a history.

use crate::abi;
use crate::abi::kernels::EDIT;
use crate::driver::limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;

/// Enqueues the kernel that finds edits which depend on the ends of histories. It must precede the survey of
/// the step.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn enqueue(runtime: &dyn Runtime, limits: &DeviceLimits, step: &abi::Step) -> Result<()> {
    let grid = tuning::edit(limits, step.rows as usize);
    // SAFETY: the grid is the one that edit.cu expects. The caller guarantees what `step` points to.
    unsafe { runtime.launch(EDIT.kernel(), grid, bytemuck::bytes_of(step)) }
}
