//! The launches of the kernels that exchange rows and results between devices.

use crate::abi::{DigestDrafts, SendResults, SendRows};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::{DIGEST_DRAFTS, SEND_RESULTS, SEND_ROWS};

/// Enqueues `digest_drafts` over the drafts of `requests` requests, before all other kernels of the step.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn digest_drafts(
    runtime: &dyn Runtime,
    requests: usize,
    argument: &DigestDrafts,
) -> Result<()> {
    let grid = tuning::digest_drafts(requests, argument);
    // SAFETY: the grid is one that exchange.cu expects, and each of its blocks waits for the kernel before.
    // The caller guarantees what the argument points to.
    unsafe { runtime.launch_dependent(DIGEST_DRAFTS.kernel(), grid, bytemuck::bytes_of(argument)) }
}

/// Enqueues `send_rows`, before the kernels of the step. It begins by waiting for the kernel before it,
/// whichever that is.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn send_rows(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    argument: &SendRows,
) -> Result<()> {
    let grid = tuning::send_rows(limits, argument);
    // SAFETY: the grid is one that exchange.cu expects, and each of its blocks waits for the kernel before.
    // The caller guarantees what the argument points to.
    unsafe { runtime.launch_dependent(SEND_ROWS.kernel(), grid, bytemuck::bytes_of(argument)) }
}

/// Enqueues `send_rows` after messages: it begins once these have travelled.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn place_rows(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    argument: &SendRows,
) -> Result<()> {
    let grid = tuning::send_rows(limits, argument);
    // SAFETY: the grid is one that exchange.cu expects. The caller guarantees what the argument points to.
    unsafe { runtime.launch(SEND_ROWS.kernel(), grid, bytemuck::bytes_of(argument)) }
}

/// Enqueues `send_results` after messages: it begins once these have travelled.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn collect_results(runtime: &dyn Runtime, argument: &SendResults) -> Result<()> {
    let grid = tuning::send_results(argument);
    // SAFETY: as above.
    unsafe { runtime.launch(SEND_RESULTS.kernel(), grid, bytemuck::bytes_of(argument)) }
}

/// Enqueues `send_results`, after the kernels of the step.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn send_results(runtime: &dyn Runtime, argument: &SendResults) -> Result<()> {
    let grid = tuning::send_results(argument);
    // SAFETY: as above.
    unsafe { runtime.launch_dependent(SEND_RESULTS.kernel(), grid, bytemuck::bytes_of(argument)) }
}
