//! The launches of a head's kernels, which make a step's rows of logits from hidden states.

use gumball_spec::Kind;

use crate::abi::dtype::Dtype;
use crate::abi::{self, head_flags};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::{
    FAST_LOGITS, HEAD_BOUNDS, HEAD_CONTENDERS, HEAD_LOGITS, HEAD_RACE, HEAD_STATES, LISTED_LOGITS,
};

/// Enqueues the kernels of a head over a step's rows, before the step's survey. `weights` and `hidden` are the types of their elements.
///
/// # Safety
/// As for [`Runtime::launch`]. The kernels before make the rows' requests.
pub(crate) unsafe fn enqueue(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    (weights, hidden): (Dtype, Dtype),
    head: &abi::HeadStep,
) -> Result<()> {
    let (rows, vocab, tiles) = (head.step.rows as usize, head.step.vocab as usize, head.step.tiles as usize);
    let is_screened = head.flags & head_flags::SCREENED != 0;
    let is_fast = head.flags & (head_flags::FAST_BF16 | head_flags::FAST_F16) != 0;
    let (shape, of_queue) =
        if is_fast { tuning::fast_logits(limits, (rows, vocab)) } else { tuning::head_bounds(limits, vocab) };
    let head = &abi::HeadStep { queue_ids: shape.ids, queue_stages: shape.stages, ..*head };
    let argument = bytemuck::bytes_of(head);
    let (states, listed) = (HEAD_STATES.of(Kind::Logits, hidden), LISTED_LOGITS.of(Kind::Logits, weights));
    let (size, of_whole) = tuning::head_logits(limits, (rows, vocab), weights.bytes(), is_screened);
    let whole = HEAD_LOGITS.sized(size, Kind::Logits, weights);
    // SAFETY: the grids are those that the kernels expect, and the first one is launched when all before it is complete. The caller
    // guarantees what `head` points to.
    unsafe { runtime.launch(states, tuning::head_states(rows), argument) }?;
    let then = |kernel, grid| {
        // SAFETY: as above. Each block waits for the kernel before it before it reads anything but weights, which nobody writes.
        unsafe { runtime.launch_dependent(kernel, grid, argument) }
    };
    if let Some(fast) = FAST_LOGITS.of_short(weights).filter(|_| is_fast) {
        return then(fast, of_queue);
    }
    if is_screened {
        then(HEAD_BOUNDS.kernel(), of_queue)?;
        then(HEAD_RACE.kernel(), tuning::head_race(rows, tiles))?;
        then(HEAD_CONTENDERS.kernel(), tuning::head_contenders(limits, rows))?;
        then(listed, tuning::listed_logits(limits))?;
    }
    then(whole, of_whole)
}
