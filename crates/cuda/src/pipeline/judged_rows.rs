//! Rows of probabilities after drafts, and the judgement of the drafts by them (rules S5 to S7).
//!
//! Of logits whose requests have no filters and no edits the survey of the step sums the weights, and
//! `judge_requests` computes the probabilities that it reads. Otherwise the kernels of the operators write
//! them, by a cut. Only rows with edits, or that stand in another order, are written under their edits first,
//! then turned into probabilities where they lie. `judge_requests` says which tokens are emitted, and the
//! step over the rows then emits them like forced ones.

use std::mem::offset_of;
use std::sync::Arc;

use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Kind, Result};

use crate::abi::dtype::Dtype;
use crate::abi::{self, DraftStep, Params, RowCut, TileSum, judge_targets};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::{judge, survey, tuning, written_rows};
use crate::memory::buffer::Buffer;
use crate::memory::rows::Rows;
use crate::operators::softmax::{Softmax, Temperatures};
use crate::requests::step_features::{StepFeatures, Variant};

/// Names the memory in errors.
const PROBABILITIES: &str = "memory for the probabilities of rows behind drafts";

/// Rows begin at multiples of 32 bytes: 16 of them for each tile hold a record, all of them two sums.
const ALIGNED_ELEMENTS: usize = 8;

/// The memory: for each row its probabilities, 4 bytes an id, and 40 bytes more; and that of a softmax.
#[derive(Debug)]
pub(crate) struct JudgedRows {
    /// `[rows, stride]` of f32.
    probabilities: Buffer,
    /// Elements from the start of a row to the start of the next.
    stride: usize,
    cuts: Buffer,
    slots: Buffer,
    forced: Buffer,
    softmax: Softmax,
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
            softmax: Softmax::new(Arc::clone(runtime))?,
        })
    }

    /// Returns the address of the rows' slots: -1 for a row that is not judged.
    pub fn slots(&self) -> u64 {
        self.slots.address()
    }

    /// Returns the first `count` rows of probabilities, in the device's memory.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn rows(&self, count: usize, vocab: usize) -> Rows<'_> {
        Rows::of(&self.probabilities, Dtype::F32, 0, count, vocab, self.stride)
            .expect("allocated: f32, in rows")
    }

    /// Waits for what was enqueued before, and reads a row.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the device fails, or failed before.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn read(&self, row: usize, probs: &mut [f32]) -> Result<()> {
        Ok(self.probabilities.read(row * self.stride * size_of::<f32>(), probs)?)
    }

    /// Returns the address of the tokens that the rows emit.
    pub fn forced(&self) -> u64 {
        self.forced.address()
    }

    /// Enqueues the kernels that write the probabilities of the rows of a step, which need `needs`, and the
    /// judgement of its drafts by them.
    ///
    /// # Safety
    /// As for [`Runtime::launch`]. The kernels before have made the rows' requests, and stamped the edits
    /// that depend on histories.
    pub unsafe fn judge(
        &self,
        runtime: &dyn Runtime,
        limits: &DeviceLimits,
        trees: &Trees<'_>,
        judgement: Judgement,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        let step = abi::Step { slots: self.slots(), ..trees.drafts.step };
        // SAFETY: the caller guarantees what the function requires.
        unsafe { self.write(runtime, limits, trees.row_type, &step, needs) }?;
        let argument = abi::JudgeRequests {
            target_rows: self.probabilities.address(),
            target_stride: self.stride as u64,
            target: judge_targets::PROBABILITIES,
            records: step.records,
            tile_sums: step.logprob_sums,
            scratch_stride: u64::from(step.tiles),
            ..self.judgement(trees, judgement)
        };
        // SAFETY: a request with drafts has two rows at least, whose scratch memory the kernel takes. The
        // caller guarantees the rest.
        unsafe { judge::requests(runtime, limits, trees.requests, &argument) }
    }

    /// Enqueues the judgement of the drafts of a step by its rows of logits.
    ///
    /// # Safety
    /// As for [`Runtime::launch`]. The kernel before is the survey of the step, which sums its rows' weights
    /// at their own temperature.
    pub unsafe fn judge_logits(
        &self,
        runtime: &dyn Runtime,
        limits: &DeviceLimits,
        trees: &Trees<'_>,
        judgement: Judgement,
    ) -> crate::Result<()> {
        let (step, row_bytes) = (&trees.drafts.step, self.stride * size_of::<f32>());
        let argument = abi::JudgeRequests {
            target_rows: step.logits,
            target_stride: step.stride,
            target: judge::target_of(trees.row_type.1),
            // The survey's records and sums are read after the judgement, but no probabilities are written.
            records: self.probabilities.address(),
            tile_sums: self.probabilities.address() + row_bytes as u64,
            scratch_stride: (row_bytes / size_of::<TileSum>()) as u64,
            ..self.judgement(trees, judgement)
        };
        // SAFETY: a request with drafts has two rows at least, so the memory of its rows has a row of records
        // and one of sums, each of which suffices. The caller guarantees the rest.
        unsafe { judge::requests(runtime, limits, trees.requests, &argument) }
    }

    /// Returns the argument of a judgement, without rows of the target's and scratch memory.
    fn judgement(&self, trees: &Trees<'_>, judgement: Judgement) -> abi::JudgeRequests {
        let (rule, threshold_single, threshold_acc) = judge::rule_of(judgement);
        abi::JudgeRequests {
            drafts: *trees.drafts,
            draft_probs: trees.draft_probs[0],
            draft_stride: trees.draft_probs[1],
            caller_forced: trees.caller_forced,
            forced: self.forced(),
            threshold_acc,
            threshold_single,
            rule,
            ..abi::JudgeRequests::default()
        }
    }

    /// Enqueues the kernels that write the probabilities of the rows of a step, which need `needs`. Rows
    /// without a slot may keep what they have.
    ///
    /// # Safety
    /// As for [`JudgedRows::judge`].
    pub unsafe fn write(
        &self,
        runtime: &dyn Runtime,
        limits: &DeviceLimits,
        (kind, dtype): (Kind, Dtype),
        step: &abi::Step,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        if needs.edits || step.row_indices != 0 {
            // SAFETY: the caller guarantees what the function requires.
            unsafe { self.write_edited(runtime, limits, (kind, dtype), step, needs) }
        } else if kind == Kind::Logits && needs.variant == Variant::SurveyDraw {
            // SAFETY: the caller guarantees what the function requires.
            unsafe { self.write_softmax(dtype, step) }
        } else {
            // SAFETY: the caller guarantees what the function requires.
            unsafe { self.write_from(runtime, limits, (kind, dtype), step, needs) }
        }
    }

    /// Writes the rows under their edits, then turns them into probabilities where they lie.
    ///
    /// # Safety
    /// As for [`JudgedRows::judge`].
    unsafe fn write_edited(
        &self,
        runtime: &dyn Runtime,
        limits: &DeviceLimits,
        row_type: (Kind, Dtype),
        step: &abi::Step,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        let (address, stride) = (self.probabilities.address(), self.stride as u64);
        // SAFETY: the rows have memory for each row of the workspace. The caller guarantees the rest.
        unsafe { judge::edit_rows(runtime, limits, row_type, (address, stride), step) }?;
        // The edited rows have no other edits, and each lies where its number says.
        let edited =
            abi::Step { logits: address, stride, row_indices: 0, masks: 0, mask_present: 0, ..*step };
        // SAFETY: the rows are written where they were read from, as `write_rows` allows. The caller
        // guarantees the rest.
        unsafe { self.write_from(runtime, limits, (row_type.0, Dtype::F32), &edited, needs) }
    }

    /// Writes the probabilities of rows without edits: the survey fills the rows with zeros, unless they are
    /// read there, and what is kept is written into them.
    ///
    /// # Safety
    /// As for [`JudgedRows::judge`].
    unsafe fn write_from(
        &self,
        runtime: &dyn Runtime,
        limits: &DeviceLimits,
        (kind, dtype): (Kind, Dtype),
        step: &abi::Step,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        // The kernels that write rows need a list or a search for any filters.
        let needs = StepFeatures { edits: false, variant: Variant::Candidates, ..needs };
        let launch = tuning::survey(limits, (step.rows as usize, step.tiles as usize), (kind, dtype), needs);
        let (address, stride) = (self.probabilities.address(), self.stride as u64);
        let element = size_of::<f32>() as u32;
        let step = abi::Step {
            shared_records: 0,
            prefill_out: if step.logits == address { 0 } else { address },
            prefill_stride_bytes: stride * u64::from(element),
            prefill_element_bytes: element,
            prefill_word: 0,
            ..*step
        };
        let step = step.with_blocks_per_row(launch.blocks.blocks_per_row as u32);
        // SAFETY: the scratch memory is that of the step, which surveys its rows again afterwards. The caller
        // guarantees the rest.
        unsafe { survey::enqueue(runtime, &launch, &step) }?;
        let types = (kind, dtype, Dtype::F32);
        let cuts = abi::FindCut { step, cuts: self.cuts.address(), mask_only: 0, reserved: 0 };
        // SAFETY: there is a cut for each row of the workspace. The rows have the shape of those that are
        // read, and are these or were filled before. The caller guarantees the rest.
        unsafe { written_rows::write(runtime, limits, types, needs, &cuts, (address, stride)) }
    }

    /// Writes the probabilities of logits without edits and filters. Rows that are not judged are written as
    /// well.
    ///
    /// # Safety
    /// As for [`JudgedRows::judge`].
    unsafe fn write_softmax(&self, dtype: Dtype, step: &abi::Step) -> crate::Result<()> {
        let (rows, vocab, stride) = (step.rows as usize, step.vocab as usize, step.stride as usize);
        // SAFETY: the step was fixed for such rows, whose creator guarantees their memory.
        let from = unsafe { Rows::new(step.logits, dtype, rows, vocab, stride) };
        // SAFETY: the memory has as many rows.
        let out = unsafe { Rows::new(self.probabilities.address(), Dtype::F32, rows, vocab, self.stride) };
        let (from, out) = (from.expect("checked: a step's rows"), out.expect("allocated: f32, in rows"));
        let temperatures = Temperatures {
            address: step.params + offset_of!(Params, effective_temperature) as u64,
            stride: (size_of::<Params>() / size_of::<f32>()) as u32,
            of_all: 0.0,
        };
        self.softmax.enqueue_at(&from, &out, temperatures, 0)
    }
}
