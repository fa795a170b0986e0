//! The launch of the kernel that finishes a step's rows.

use gumball_spec::Kind;

use crate::abi;
use crate::abi::dtype::Dtype;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::{
    FINISH_CANDIDATES, FINISH_CANDIDATES_KEPT, FINISH_CANDIDATES_LOGPROB, FINISH_GENERAL, FINISH_SIMPLE,
    FINISH_SURVEY_DRAW,
};
use crate::requests::step_features::{StepFeatures, Variant};

/// Enqueues the kernel that finishes rows of a kind and a type, which need `needs`. `is_next`: the kernel
/// before is the survey of the rows; otherwise the judgement of drafts lies between them.
///
/// # Safety
/// As for [`Runtime::launch`]. The survey of the rows was enqueued before.
pub(crate) unsafe fn enqueue(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    (kind, dtype): (Kind, Dtype),
    needs: StepFeatures,
    step: &abi::Step,
    is_next: bool,
) -> Result<()> {
    let kernels = match needs.variant {
        Variant::SurveyDraw => FINISH_SURVEY_DRAW,
        Variant::Simple => FINISH_SIMPLE,
        Variant::Candidates => FINISH_CANDIDATES,
        Variant::CandidatesLogprob => FINISH_CANDIDATES_LOGPROB,
        Variant::CandidatesKept => FINISH_CANDIDATES_KEPT,
        Variant::General => FINISH_GENERAL,
    };
    let grid = tuning::finish(limits, step.rows as usize, step.tiles as usize, needs);
    let (kernel, argument) = (kernels.of(kind, dtype), bytemuck::bytes_of(step));
    if !is_next {
        // SAFETY: the grid is the one that the kernel expects. The caller guarantees what `step` points to.
        return unsafe { runtime.launch(kernel, grid, argument) };
    }
    // SAFETY: as above, and each block waits for the survey.
    unsafe { runtime.launch_dependent(kernel, grid, argument) }
}
