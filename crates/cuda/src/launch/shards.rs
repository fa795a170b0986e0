//! The launches of the kernels that survey and finish rows of which each device of a group has a part.

use gumball_spec::Kind;

use crate::abi::dtype::Dtype;
use crate::abi::{ShardStep, Step, flags};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::{FINISH_EDITED_SHARDS, FINISH_SHARD_LISTS, FINISH_SHARDS, Size};
use crate::requests::step_features::{StepFeatures, Variant};

/// Enqueues the survey of this rank's parts of rows, if it has some. It begins at once behind `begin_drafts`,
/// if rows are `drafted`, and behind `history_edits`, and waits for these before it reads requests.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn survey_shards(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    row_type: (Kind, Dtype),
    needs: StepFeatures,
    argument: &ShardStep,
    drafted: bool,
) -> Result<()> {
    let (rows, tiles) = (argument.step.rows as usize, argument.step.tiles as usize);
    if tiles == 0 {
        return Ok(());
    }
    let survey = tuning::survey_shards(limits, (rows, tiles), row_type, needs.edits);
    let step = argument.step.with_blocks_per_row(survey.blocks.blocks_per_row as u32);
    // A row after drafts has its own number as a slot, and begin_drafts gives padding parameters too, but no
    // lists.
    let known_slots = if drafted && !needs.edits { flags::SLOT_IS_ROW } else { 0 };
    let argument = ShardStep { step: Step { flags: step.flags | known_slots, ..step }, ..*argument };
    let (grid, argument) = (survey.blocks.grid(rows), bytemuck::bytes_of(&argument));
    if drafted || needs.history {
        // SAFETY: the grid is the one that shards.cu expects, and each block waits before it reads what the
        // kernel before writes. The caller guarantees what the argument points to.
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
    let (rows, tiles) = (argument.step.rows as usize, argument.step.tiles as usize);
    let size = if rows <= limits.multiprocessors { Size::Few } else { Size::Many };
    let kernel = match needs {
        StepFeatures { edits: true, .. } => FINISH_EDITED_SHARDS.sized(size, kind, dtype),
        StepFeatures { variant: Variant::SurveyDraw | Variant::Simple, .. } => FINISH_SHARDS.of(kind, dtype),
        _ => FINISH_SHARD_LISTS.sized(size, kind, dtype),
    };
    let grid = tuning::finish_shards(limits, rows, tiles, needs);
    let argument = bytemuck::bytes_of(argument);
    if tiles == 0 {
        // The kernel before may still advance the requests, which this one reads before it waits.
        // SAFETY: the grid is one that shards.cu expects. The caller guarantees what the argument points to.
        return unsafe { runtime.launch(kernel, grid, argument) };
    }
    // SAFETY: as above, and each block waits for the survey.
    unsafe { runtime.launch_dependent(kernel, grid, argument) }
}
