//! The launches that judge the drafts of a step by probabilities: of the kernel that writes edited rows, and
//! of the judgement.

use gumball_spec::Kind;
use gumball_spec::filter::fraction_to_u32;
use gumball_spec::verify::by_probabilities::Judgement;

use crate::abi::dtype::Dtype;
use crate::abi::{self, JudgeRequests, judge_rules, judge_targets};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::{Launch, tuning};
use crate::programs::kernels::{EDIT_ROWS, JUDGE_REQUESTS};

/// Returns a judgement as kernels take it: the code of its rule, `threshold_single`, and `threshold_acc` in
/// units of 2^-32.
pub(crate) fn rule_of(judgement: Judgement) -> (u32, f32, u64) {
    match judgement {
        Judgement::Rejection => (judge_rules::REJECTION, 0.0, 0),
        Judgement::Block => (judge_rules::BLOCK, 0.0, 0),
        Judgement::Threshold { single, acc } => (judge_rules::THRESHOLD, single, fraction_to_u32(acc)),
    }
}

/// Returns what kernels judge by, given rows of logits of a type.
pub(crate) fn target_of(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => judge_targets::F32,
        Dtype::Bf16 => judge_targets::BF16,
        Dtype::F16 => judge_targets::F16,
    }
}

/// Enqueues `edit_rows`, which writes the rows of a step under their edits to `(out, stride)`.
///
/// # Safety
/// As for [`Runtime::launch`]. `out` has memory for all rows of the step.
pub(crate) unsafe fn edit_rows(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    (kind, dtype): (Kind, Dtype),
    (out, out_stride): (u64, u64),
    step: &abi::Step,
) -> Result<()> {
    let (rows, tiles) = (step.rows as usize, step.tiles as usize);
    let blocks = tuning::edit_rows(limits, rows, tiles);
    let argument = abi::EditRows {
        step: *step,
        out,
        out_stride,
        blocks_per_row: blocks.blocks_per_row as u32,
        tiles_per_block: blocks.tiles_per_block as u32,
    };
    let launch = Launch::new(EDIT_ROWS.of(kind, dtype), blocks.grid(rows));
    // SAFETY: the caller guarantees what the argument points to.
    unsafe { launch.enqueue(runtime, &argument) }
}

/// Returns the launch of `judge_requests` for the drafts of `requests` requests. By rows of logits the kernel
/// before is their survey.
pub(crate) fn requests(
    limits: &DeviceLimits,
    requests: usize,
    argument: &JudgeRequests,
) -> Launch<JudgeRequests> {
    let by_logits = argument.target != judge_targets::PROBABILITIES;
    let reads_rows = !by_logits || argument.draft_probs != 0;
    let grid = tuning::judge_drafts(limits, requests, argument.drafts.step.tiles as usize, reads_rows);
    Launch::new(JUDGE_REQUESTS.kernel(), grid).dependent_if(by_logits)
}
