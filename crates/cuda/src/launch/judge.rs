//! The launch that judges the drafts of a step by probabilities, and judgements as kernels take them.

use gumball_spec::filter::fraction_to_u32;
use gumball_spec::verify::by_probabilities::Judgement;

use crate::abi::dtype::Dtype;
use crate::abi::{JudgeRequests, judge_rules, judge_targets};
use crate::driver::device_limits::DeviceLimits;
use crate::launch::{Launch, tuning};
use crate::programs::kernels::JUDGE_REQUESTS;

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
