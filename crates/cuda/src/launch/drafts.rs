//! The launches of the kernels that begin and end a step over the rows of drafts.

use crate::abi::DraftStep;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::{BEGIN_DRAFTS, END_DRAFTS};
use crate::requests::step_features::Edits;

/// Enqueues `begin_drafts`, which makes the requests of the step's rows, of which some may have `edits`.
///
/// # Safety
/// As for [`Runtime::launch`]. No kernel writes the tables that `drafts` names but the states of slots.
pub(crate) unsafe fn begin(runtime: &dyn Runtime, edits: Edits, drafts: &DraftStep) -> Result<()> {
    let grid = tuning::begin_drafts(drafts.step.rows as usize, edits);
    // SAFETY: the grid is the one that drafts.cu expects, and each of its blocks waits before it reads what kernels write, and before
    // it writes. The caller guarantees what `drafts` points to.
    unsafe { runtime.launch_dependent(BEGIN_DRAFTS.kernel(), grid, bytemuck::bytes_of(drafts)) }
}

/// Enqueues `end_drafts`, which accepts the drafts of `requests` requests and advances these by the emitted tokens.
///
/// # Safety
/// As for [`Runtime::launch`]. The kernel before is the one that finishes the step's rows.
pub(crate) unsafe fn end(runtime: &dyn Runtime, requests: usize, drafts: &DraftStep) -> Result<()> {
    let grid = tuning::end_drafts(requests);
    // SAFETY: the grid is the one that drafts.cu expects, and each of its blocks waits before it reads what the step
    // writes, and before it writes. The caller guarantees what `drafts` points to.
    unsafe { runtime.launch_dependent(END_DRAFTS.kernel(), grid, bytemuck::bytes_of(drafts)) }
}
