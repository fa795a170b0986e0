//! The launches of a head's kernels, which make a step's rows of logits from hidden states.

use gumball_spec::Kind;

use crate::abi::dtype::Dtype;
use crate::abi::{self, SCREENED_STATES, head_flags};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::Launch;
use crate::launch::tuning::{self, QueueShape};
use crate::programs::kernels::{
    FAST_LOGITS, FAST_PROBED, Family, HEAD_BOUNDS, HEAD_CONTENDERS, HEAD_LOGITS, HEAD_PROBES, HEAD_RACE,
    HEAD_STATES, LIST_PROBED, LISTED_LOGITS, PROBED_LOGITS,
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
    let states = Launch::new(HEAD_STATES.of(Kind::Logits, hidden), tuning::head_states(rows));
    // SAFETY: the caller guarantees what `head` points to.
    unsafe { states.enqueue(runtime, head) }?;
    // Before it waits, a block reads weights, codes and centroids, which no kernel writes.
    let then = |kernel, grid, argument: &abi::HeadStep| {
        // SAFETY: as above.
        unsafe { Launch::dependent(kernel, grid).enqueue(runtime, argument) }
    };
    let exact = |weights: Dtype, head: &abi::HeadStep| {
        let (size, shape, grid) =
            tuning::head_logits(limits, (rows, head.step.vocab as usize), weights.bytes());
        then(HEAD_LOGITS.sized(size, Kind::Logits, weights), grid, &with_shape(head, shape))
    };
    let fast = |family: Family, head: &abi::HeadStep| {
        let kernel = family.of_short(weights).expect("no head with weights of f32 is fast");
        let aligned = head.flags & head_flags::ALIGNED != 0;
        let (shape, grid) = tuning::matrix_product(limits, (rows, head.step.vocab as usize), aligned);
        then(kernel, grid, &with_shape(head, shape))
    };
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
        if is_fast {
            fast(FAST_LOGITS, &scores)?;
        } else {
            exact(centroids.dtype, &scores)?;
        }
        then(HEAD_PROBES.kernel(), tuning::head_probes(rows), head)?;
        if head.listed_ids != 0 {
            then(LIST_PROBED.kernel(), tuning::list_probed(tiles), head)?;
        }
        if is_fast {
            return fast(FAST_PROBED, head);
        }
        let listed = head.most_contenders as usize;
        let (shape, grid) = tuning::probed_logits(limits, listed, weights.bytes());
        return then(PROBED_LOGITS.of(Kind::Logits, weights), grid, &with_shape(head, shape));
    }
    if is_fast {
        return fast(FAST_LOGITS, head);
    }
    for first in (0..rows).step_by(SCREENED_STATES).filter(|_| is_screened) {
        let group = screened_rows(head, first);
        let count = group.step.rows as usize;
        let (shape, grid) = tuning::matrix_product(limits, (2 * count, vocab), true);
        then(HEAD_BOUNDS.kernel(), grid, &with_shape(&group, shape))?;
        then(HEAD_RACE.kernel(), tuning::head_race(limits, count, tiles), &group)?;
        then(HEAD_CONTENDERS.kernel(), tuning::head_contenders(limits, count), &group)?;
        then(LISTED_LOGITS.of(Kind::Logits, weights), tuning::listed_logits(limits), &group)?;
    }
    exact(weights, head)
}

/// Returns the argument of a screen's kernels for the rows from `first` on, as many as they take at once. All
/// groups of rows share the memory for bounds and lists. `hidden` and the step's columns still begin with the
/// first row of the step: these kernels read none of them.
fn screened_rows(head: &abi::HeadStep, first: usize) -> abi::HeadStep {
    let rows = (head.step.rows as usize - first).min(SCREENED_STATES) as u32;
    let from = |address: u64, row_bytes: usize| address + (first * row_bytes) as u64;
    abi::HeadStep {
        step: abi::Step { rows, ..head.step },
        states: from(head.states, head.padded_width as usize * size_of::<f32>()),
        head_rows: from(head.head_rows, size_of::<abi::HeadRow>()),
        logits: from(head.logits, head.step.vocab as usize * size_of::<f32>()),
        digits: from(head.digits, 2 * tuning::column_bytes(head.codes_width as usize)),
        ..*head
    }
}
