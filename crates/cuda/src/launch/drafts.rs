//! The launches of the kernels that begin and end a step over the rows of drafts, of the one that reads links
//! between these, of the one that draws drafts, of the one that copies these, and of the one that takes
//! emitted tokens away again.

use gumball_spec::Kind;

use crate::abi::dtype::Dtype;
use crate::abi::{DraftCopy, DraftLinks, DraftRace, DraftStep, ShortenRequests};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::{
    BEGIN_DRAFTS, COPY_DRAFTS, DRAFT_RACE, END_DRAFTS, PARENTS_OF_LINKS, SHORTEN_REQUESTS,
};
use crate::requests::step_features::StepFeatures;

/// Enqueues `begin_drafts`, which makes the requests of the step's rows.
///
/// # Safety
/// As for [`Runtime::launch`]. No kernel writes the tables that `drafts` names but the states of slots.
pub(crate) unsafe fn begin(runtime: &dyn Runtime, needs: StepFeatures, drafts: &DraftStep) -> Result<()> {
    let grid = tuning::begin_drafts(drafts.step.rows as usize, needs);
    // SAFETY: the grid is the one that drafts.cu expects, and each of its blocks waits before it reads what
    // kernels write, and before it writes. The caller guarantees what `drafts` points to.
    unsafe { runtime.launch_dependent(BEGIN_DRAFTS.kernel(), grid, bytemuck::bytes_of(drafts)) }
}

/// Enqueues `parents_of_links`, which makes the parents of drafts of `requests` requests.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn link(runtime: &dyn Runtime, requests: usize, links: &DraftLinks) -> Result<()> {
    let grid = tuning::parents_of_links(requests);
    // SAFETY: the grid is the one that parents_of_links.cu expects. The caller guarantees what `links` points
    // to.
    unsafe { runtime.launch(PARENTS_OF_LINKS.kernel(), grid, bytemuck::bytes_of(links)) }
}

/// Enqueues `end_drafts`, which accepts the drafts of `requests` requests and advances these by the emitted
/// tokens.
///
/// # Safety
/// As for [`Runtime::launch`]. The kernel before is the one that finishes the step's rows.
pub(crate) unsafe fn end(runtime: &dyn Runtime, requests: usize, drafts: &DraftStep) -> Result<()> {
    let grid = tuning::end_drafts(requests);
    // SAFETY: the grid is the one that drafts.cu expects, and each of its blocks waits before it reads what
    // the step writes, and before it writes. The caller guarantees what `drafts` points to.
    unsafe { runtime.launch_dependent(END_DRAFTS.kernel(), grid, bytemuck::bytes_of(drafts)) }
}

/// Enqueues `draft_race`, which draws drafts from rows of a kind and a type.
///
/// # Safety
/// As for [`Runtime::launch`]. The kernel before is the survey of the rows, and it began after their requests
/// were made.
pub(crate) unsafe fn race(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    (kind, dtype): (Kind, Dtype),
    drafts: &DraftRace,
) -> Result<()> {
    let grid = tuning::draft_race(limits, drafts.step.rows as usize);
    // SAFETY: the grid is the one that draft_race.cu expects, and each of its blocks waits before it reads
    // anything. The caller guarantees what `drafts` points to.
    unsafe { runtime.launch_dependent(DRAFT_RACE.of(kind, dtype), grid, bytemuck::bytes_of(drafts)) }
}

/// Enqueues `shorten_requests`, which takes the last tokens of `requests` requests away.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn shorten(
    runtime: &dyn Runtime,
    requests: usize,
    argument: &ShortenRequests,
) -> Result<()> {
    let grid = tuning::shorten_requests(requests);
    // SAFETY: the grid is the one that shorten_requests.cu expects. The caller guarantees what the argument
    // points to.
    unsafe { runtime.launch(SHORTEN_REQUESTS.kernel(), grid, bytemuck::bytes_of(argument)) }
}

/// Enqueues `copy_drafts`, which copies the drafts of a batch into columns of a matrix. There is a draft at
/// least.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn copy(runtime: &dyn Runtime, argument: &DraftCopy) -> Result<()> {
    let grid = tuning::copy_drafts(argument.rows as usize * argument.siblings as usize);
    // SAFETY: the grid is the one that copy_drafts.cu expects. The caller guarantees what the argument points
    // to.
    unsafe { runtime.launch(COPY_DRAFTS.kernel(), grid, bytemuck::bytes_of(argument)) }
}
