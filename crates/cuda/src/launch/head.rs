//! The launches of a head's kernels, which make a step's rows of logits from hidden states.

use gumball_spec::Kind;

use crate::abi::dtype::Dtype;
use crate::abi::{self, head_flags};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning::{self, QueueShape};
use crate::programs::kernels::{
    FAST_LOGITS, HEAD_BOUNDS, HEAD_CONTENDERS, HEAD_LOGITS, HEAD_PROBES, HEAD_RACE, HEAD_STATES,
    LISTED_LOGITS, PROBED_LOGITS,
};

/// Where the centroids of a clustered head lie, and the type of their elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Centroids {
    pub address: u64,
    pub dtype: Dtype,
    /// [`head_flags::ALIGNED`] or nothing.
    pub flags: u32,
}

/// Returns [`head_flags::ALIGNED`] if rows of `width` elements that follow each other from `address` on all
/// begin at multiples of 16 bytes.
pub(crate) fn aligned_flag(address: u64, width: usize, dtype: Dtype) -> u32 {
    let is_aligned = address.is_multiple_of(16) && (width * dtype.bytes()).is_multiple_of(16);
    if is_aligned { head_flags::ALIGNED } else { 0 }
}

/// Enqueues the kernels of a head over a step's rows, before the step's survey. `weights` and `hidden` are
/// the types of their elements; `centroids` are those of a clustered head.
///
/// # Safety
/// As for [`Runtime::launch`]. The kernels before make the rows' requests.
pub(crate) unsafe fn enqueue(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    (weights, hidden): (Dtype, Dtype),
    head: &abi::HeadStep,
    centroids: Option<&Centroids>,
) -> Result<()> {
    let (rows, vocab, tiles) = (head.step.rows as usize, head.step.vocab as usize, head.step.tiles as usize);
    let is_screened = head.flags & head_flags::SCREENED != 0;
    let is_fast = head.flags & (head_flags::FAST_BF16 | head_flags::FAST_F16) != 0;
    let with_shape = |head: &abi::HeadStep, shape: QueueShape| abi::HeadStep {
        queue_ids: shape.ids,
        queue_stages: shape.stages,
        ..*head
    };
    let (states, listed) = (HEAD_STATES.of(Kind::Logits, hidden), LISTED_LOGITS.of(Kind::Logits, weights));
    // SAFETY: the grids are those that the kernels expect, and the first one is launched when all before it
    // is complete. The caller guarantees what `head` points to.
    unsafe { runtime.launch(states, tuning::head_states(rows), bytemuck::bytes_of(head)) }?;
    let then = |kernel, grid, argument: &abi::HeadStep| {
        // SAFETY: as above. Each block waits for the kernel before it before it reads anything but weights,
        // which nobody writes.
        unsafe { runtime.launch_dependent(kernel, grid, bytemuck::bytes_of(argument)) }
    };
    if let Some(fast) = FAST_LOGITS.of_short(weights).filter(|_| is_fast) {
        let (shape, grid) = tuning::fast_logits(limits, (rows, vocab));
        return then(fast, grid, &with_shape(head, shape));
    }
    if let Some(centroids) = centroids {
        // Scores are the logits of a head whose weights are the centroids.
        let step = abi::Step { vocab: head.clusters, ..head.step };
        let scores = abi::HeadStep {
            step,
            weights: centroids.address,
            bias: 0,
            logits: head.scores,
            logit_scale: 1.0,
            softcap: 0.0,
            flags: centroids.flags,
            ..*head
        };
        let (size, shape, grid) =
            tuning::head_logits(limits, (rows, head.clusters as usize), centroids.dtype.bytes());
        then(HEAD_LOGITS.sized(size, Kind::Logits, centroids.dtype), grid, &with_shape(&scores, shape))?;
        then(HEAD_PROBES.kernel(), tuning::head_probes(rows), head)?;
        let listed = head.most_contenders as usize;
        let (shape, grid) = tuning::probed_logits(limits, listed, weights.bytes());
        return then(PROBED_LOGITS.of(Kind::Logits, weights), grid, &with_shape(head, shape));
    }
    if is_screened {
        let (shape, grid) = tuning::head_bounds(limits, vocab);
        then(HEAD_BOUNDS.kernel(), grid, &with_shape(head, shape))?;
        then(HEAD_RACE.kernel(), tuning::head_race(rows, tiles), head)?;
        then(HEAD_CONTENDERS.kernel(), tuning::head_contenders(limits, rows), head)?;
        then(listed, tuning::listed_logits(limits), head)?;
    }
    let (size, shape, grid) = tuning::head_logits(limits, (rows, vocab), weights.bytes());
    then(HEAD_LOGITS.sized(size, Kind::Logits, weights), grid, &with_shape(head, shape))
}
