//! The launches of the kernels that survey and finish rows of which each device of a group has a part.

use gumball_spec::Kind;

use crate::abi::dtype::Dtype;
use crate::abi::{ShardStep, Step, flags};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::{FINISH_SHARD_LISTS, FINISH_SHARDS};
use crate::requests::step_features::{StepFeatures, Variant};

/// Enqueues the survey of this rank's parts of rows, if it has some. It begins at once behind `begin_drafts`, if rows are `drafted`, and
/// waits for it before it reads requests.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn survey_shards(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    row_type: (Kind, Dtype),
    argument: &ShardStep,
    drafted: bool,
) -> Result<()> {
    let (rows, tiles) = (argument.step.rows as usize, argument.step.tiles as usize);
    if tiles == 0 {
        return Ok(());
    }
    let survey = tuning::survey_shards(limits, (rows, tiles), row_type);
    let step = argument.step.with_blocks_per_row(survey.blocks.blocks_per_row as u32);
    // A row after drafts has its own number as a slot, and begin_drafts gives padding parameters too.
    let known_slots = if drafted { flags::SLOT_IS_ROW } else { 0 };
    let argument = ShardStep { step: Step { flags: step.flags | known_slots, ..step }, ..*argument };
    let (grid, argument) = (survey.blocks.grid(rows), bytemuck::bytes_of(&argument));
    if drafted {
        // SAFETY: the grid is the one that shards.cu expects, and each block waits before it reads what the kernel before writes. The
        // caller guarantees what the argument points to.
        return unsafe { runtime.launch_dependent(survey.kernel, grid, argument) };
    }
    // SAFETY: as above.
    unsafe { runtime.launch(survey.kernel, grid, argument) }
}

/// Enqueues the kernel that finishes rows of which each rank has a part.
///
/// # Safety
/// As for [`Runtime::launch`]. The kernel before is [`survey_shards`], if this rank has a part.
pub(crate) unsafe fn finish_shards(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    (kind, dtype): (Kind, Dtype),
    needs: StepFeatures,
    argument: &ShardStep,
) -> Result<()> {
    let kernels = if needs.variant >= Variant::Candidates { FINISH_SHARD_LISTS } else { FINISH_SHARDS };
    let (rows, tiles) = (argument.step.rows as usize, argument.step.tiles as usize);
    let grid = tuning::finish_shards(limits, rows, tiles, needs);
    let (kernel, argument) = (kernels.of(kind, dtype), bytemuck::bytes_of(argument));
    if tiles == 0 {
        // The kernel before may still advance the requests, which this one reads before it waits.
        // SAFETY: the grid is one that shards.cu expects. The caller guarantees what the argument points to.
        return unsafe { runtime.launch(kernel, grid, argument) };
    }
    // SAFETY: as above, and each block waits for the survey.
    unsafe { runtime.launch_dependent(kernel, grid, argument) }
}
