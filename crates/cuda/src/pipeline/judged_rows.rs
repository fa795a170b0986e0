//! Rows of probabilities behind drafts, and the judgement of the drafts by them (rules S5 to S7).
//!
//! The rows are written under their edits, then turned into probabilities where they lie, by the kernels of the operators.
//! `judge_requests` says which tokens are emitted, and the step over the rows then emits them like forced ones.

use std::sync::Arc;

use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Kind, Result};

use crate::abi::dtype::Dtype;
use crate::abi::{self, DraftStep, RowCut};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::{judge, survey, tuning, written_rows};
use crate::memory::buffer::Buffer;
use crate::requests::step_features::{Edits, StepFeatures, Variant};

/// Names the memory in errors.
const PROBABILITIES: &str = "memory for the probabilities of rows behind drafts";

/// Rows begin at multiples of 16 bytes.
const ALIGNED_ELEMENTS: usize = 4;

/// The memory: for each row its probabilities, 4 bytes an id, and 40 bytes more.
#[derive(Debug)]
pub(crate) struct JudgedRows {
    /// `[rows, stride]` of f32.
    probabilities: Buffer,
    /// Elements from the start of a row to the start of the next.
    stride: usize,
    cuts: Buffer,
    slots: Buffer,
    forced: Buffer,
}

/// The rows of a step as it reads them, and the drafts there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trees<'a> {
    /// The step over the rows, with its drafts.
    pub drafts: &'a DraftStep,
    pub requests: usize,
    pub row_type: (Kind, Dtype),
    /// The drafter's rows of probabilities and their stride; 0 if it has none.
    pub draft_probs: [u64; 2],
    /// The address of the tokens that the caller forces.
    pub caller_forced: u64,
}

impl JudgedRows {
    /// Allocates the memory of `rows` rows.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the device has not enough memory.
    pub fn new(runtime: &Arc<dyn Runtime>, rows: usize, vocab: usize) -> Result<Self> {
        let alloc = |bytes: usize| Buffer::sized(runtime, PROBABILITIES, &[rows, bytes]);
        let stride = vocab.next_multiple_of(ALIGNED_ELEMENTS);
        Ok(Self {
            probabilities: alloc(stride * size_of::<f32>())?,
            stride,
            cuts: alloc(size_of::<RowCut>())?,
            slots: alloc(size_of::<i32>())?,
            forced: alloc(size_of::<i32>())?,
        })
    }

    /// Returns the address of the rows' slots: -1 for a row that is not judged.
    pub fn slots(&self) -> u64 {
        self.slots.address()
    }

    /// Returns the address of the tokens that the rows emit.
    pub fn forced(&self) -> u64 {
        self.forced.address()
    }

    /// Enqueues the judgement of the drafts of a step, whose rows need `needs`.
    ///
    /// # Safety
    /// As for [`Runtime::launch`]. The kernels before have made the rows' requests, and stamped the edits that depend on
    /// histories.
    pub unsafe fn judge(
        &self,
        runtime: &dyn Runtime,
        limits: &DeviceLimits,
        trees: &Trees<'_>,
        judgement: Judgement,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        let (kind, dtype) = trees.row_type;
        let step = abi::Step { slots: self.slots(), ..trees.drafts.step };
        let rows = (self.probabilities.address(), self.stride as u64);
        // SAFETY: the rows have memory for each row of the workspace. The caller guarantees the rest.
        unsafe { judge::edit_rows(runtime, limits, (kind, dtype), rows, &step) }?;

        // The edited rows have no other edits, and the kernels that write rows need a list or a search for any filters.
        let needs = StepFeatures { edits: Edits::None, variant: Variant::Candidates, ..needs };
        let row_type = (kind, Dtype::F32);
        let launch = tuning::survey(limits, (step.rows as usize, step.tiles as usize), row_type, needs);
        let edited = abi::Step {
            logits: rows.0,
            stride: rows.1,
            row_indices: 0,
            masks: 0,
            mask_present: 0,
            shared_records: 0,
            ..step
        };
        let edited = edited.with_blocks_per_row(launch.blocks.blocks_per_row as u32);
        // SAFETY: the scratch memory is that of the step, which surveys its rows again afterwards. The caller guarantees the
        // rest.
        unsafe { survey::enqueue(runtime, &launch, &edited) }?;
        let types = (kind, Dtype::F32, Dtype::F32);
        let cuts = abi::FindCut { step: edited, cuts: self.cuts.address(), mask_only: 0, reserved: 0 };
        // SAFETY: there is a cut for each row of the workspace. The rows are written where they were read from, as `write_rows`
        // allows. The caller guarantees the rest.
        unsafe { written_rows::write(runtime, limits, types, needs, &cuts, rows) }?;

        let (rule, single, acc) = judge::rule_of(judgement);
        let argument = abi::JudgeRequests {
            drafts: *trees.drafts,
            target_probs: rows.0,
            draft_probs: trees.draft_probs[0],
            target_stride: rows.1,
            draft_stride: trees.draft_probs[1],
            caller_forced: trees.caller_forced,
            forced: self.forced(),
            threshold_acc: acc,
            threshold_single: single,
            rule,
        };
        // SAFETY: a request with drafts has two rows at least, whose scratch memory the kernel takes. The caller guarantees the
        // rest.
        unsafe { judge::requests(runtime, limits, trees.requests, &argument) }
    }
}
