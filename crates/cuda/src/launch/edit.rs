//! The launch of the kernel that finds edits which match the end of a history.

use crate::abi;
use crate::abi::kernel_table::Kernel;
use crate::driver::runtime::{Grid, Runtime};
use crate::error::Result;

const EDIT: Kernel = Kernel::named("edit");

/// Enqueues the kernel that finds edits which depend on the ends of histories. It must precede the survey of
/// the step.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn enqueue(runtime: &dyn Runtime, step: &abi::Step) -> Result<()> {
    let grid = Grid::new(step.rows, runtime.threads_per_row());
    // SAFETY: the grid is the one that edit.cu expects. The caller guarantees what `step` points to.
    // tests/abi.rs checks that its layout equals the kernels'.
    unsafe { runtime.launch(EDIT, grid, bytemuck::bytes_of(step)) }
}
