//! Rows of probabilities after drafts, and the judgement of the drafts by them (rules S5 to S7).
//!
//! `judge_requests` computes the probabilities that it reads from logits: of rows without filters by the sums
//! of the survey of the step, of others by the cuts that `find_cut` finds after it. Rows with edits, or that
//! stand in another order, are written under their edits first and surveyed there; rows of probabilities are
//! written as their filters leave them. `judge_requests` says which tokens are emitted, and the step over the
//! rows then emits them like forced ones.

use std::mem::offset_of;
use std::sync::Arc;

use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Kind, Result, TILE};

use crate::abi::dtype::Dtype;
use crate::abi::{self, DraftStep, Params, RowCut, TileRecord, TileSum, judge_targets};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::{Launch, tuning, written_rows};
use crate::memory::buffer::Buffer;
use crate::memory::rows::Rows;
use crate::operators::judge::rule_of;
use crate::operators::softmax::{Softmax, Temperatures};
use crate::programs::kernels::EDIT_ROWS;
use crate::requests::step_features::{StepFeatures, Variant};

/// Names the memory in errors.
const PROBABILITIES: &str = "memory for the probabilities of rows behind drafts";

/// Rows begin at multiples of 32 bytes.
const ALIGNED_ELEMENTS: usize = 8;

/// The memory: for each row its probabilities or edited logits, 4 bytes an id, 32 bytes for each 256 ids, and
/// 40 bytes more; and the memory of a softmax.
#[derive(Debug)]
pub(crate) struct JudgedRows {
    runtime: Arc<dyn Runtime>,
    /// What launches are fitted to.
    limits: DeviceLimits,
    /// `[rows, stride]` of f32: probabilities, or logits under their edits.
    probabilities: Buffer,
    /// Elements from the start of a row to the start of the next.
    stride: usize,
    cuts: Buffer,
    /// Of each row its slot, -1 if it is not judged, and the token that it emits.
    pub slots: Buffer,
    pub forced: Buffer,
    /// Records of all rows, then sums.
    scratch: Buffer,
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
    pub fn new(runtime: &Arc<dyn Runtime>, rows: usize, vocab: usize) -> Result<Self> {
        let alloc = |bytes: usize| Buffer::sized(runtime, PROBABILITIES, &[rows, bytes]);
        let stride = vocab.next_multiple_of(ALIGNED_ELEMENTS);
        Ok(Self {
            probabilities: alloc(stride * size_of::<f32>())?,
            stride,
            cuts: alloc(size_of::<RowCut>())?,
            slots: alloc(size_of::<i32>())?,
            forced: alloc(size_of::<i32>())?,
            scratch: alloc(vocab.div_ceil(TILE) * (size_of::<TileRecord>() + size_of::<TileSum>()))?,
            softmax: Softmax::new(Arc::clone(runtime))?,
            limits: runtime.limits(),
            runtime: Arc::clone(runtime),
        })
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
    /// # Panics
    /// If there is no such row.
    pub fn read(&self, row: usize, probs: &mut [f32]) -> Result<()> {
        Ok(self.probabilities.read(row * self.stride * size_of::<f32>(), probs)?)
    }

    /// Enqueues the kernels that make the rows which the drafts of a step are judged by, and the judgement:
    /// of probabilities, or of logits under their edits. The rows need `needs`.
    ///
    /// # Safety
    /// As for [`Runtime::launch`]. The kernels before have made the rows' requests, and stamped the edits
    /// that depend on histories.
    pub unsafe fn judge(
        &self,
        trees: &Trees<'_>,
        judgement: Judgement,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        let step = abi::Step { slots: self.slots.address(), ..trees.drafts.step };
        if trees.row_type.0 == Kind::Logits {
            // The survey sums no weights.
            let needs = StepFeatures { edits: false, variant: Variant::Candidates, ..needs };
            // SAFETY: the caller guarantees what the function requires.
            let edited = unsafe { self.edit(trees.row_type, &step) }?;
            let trees = &Trees { row_type: (Kind::Logits, Dtype::F32), ..*trees };
            // SAFETY: as above. The scratch memory is the step's, which surveys its rows again afterwards.
            let edited = unsafe { self.survey_again(trees.row_type, &edited, needs) }?;
            // SAFETY: as above.
            return unsafe { self.judge_surveyed(trees, judgement, (&edited, needs)) };
        }
        // SAFETY: the caller guarantees what the function requires.
        unsafe { self.write(trees.row_type, &step, needs) }?;
        let argument = abi::JudgeRequests {
            target_rows: self.probabilities.address(),
            target_stride: self.stride as u64,
            target: judge_targets::PROBABILITIES,
            ..self.judgement(trees, judgement)
        };
        // SAFETY: a request with drafts has two rows at least, whose scratch memory the kernel takes. The
        // caller guarantees the rest.
        unsafe {
            tuning::judge_requests(&self.limits, trees.requests, &argument).enqueue(&*self.runtime, &argument)
        }
    }

    /// Enqueues the judgement of the drafts of a step by the rows of `step`: logits without edits, which need
    /// `needs`.
    ///
    /// # Safety
    /// As for [`Runtime::launch`]. The kernel before is the rows' survey, which sums the weights at their own
    /// temperature if the rows have no filters.
    pub unsafe fn judge_surveyed(
        &self,
        trees: &Trees<'_>,
        judgement: Judgement,
        (step, needs): (&abi::Step, StepFeatures),
    ) -> crate::Result<()> {
        let step_of_judged = abi::Step { slots: self.slots.address(), ..*step };
        let cuts =
            abi::FindCut { step: step_of_judged, cuts: self.cuts.address(), ..abi::FindCut::default() };
        let has_filters = needs.variant != Variant::SurveyDraw;
        if has_filters {
            let launch = written_rows::find_cuts(&self.limits, trees.row_type, needs, step);
            // SAFETY: there is a cut for each row of the workspace. The caller guarantees the rest.
            unsafe { launch.enqueue(&*self.runtime, &cuts) }?;
        }
        let argument = abi::JudgeRequests {
            target_rows: step.logits,
            target_stride: step.stride,
            target: match trees.row_type.1 {
                Dtype::F32 => judge_targets::F32,
                Dtype::Bf16 => judge_targets::BF16,
                Dtype::F16 => judge_targets::F16,
            },
            cuts: if has_filters { cuts.cuts } else { 0 },
            ..self.judgement(trees, judgement)
        };
        // SAFETY: as in `judge`.
        unsafe {
            tuning::judge_requests(&self.limits, trees.requests, &argument).enqueue(&*self.runtime, &argument)
        }
    }

    /// Returns the argument of a judgement, without rows of the target's.
    fn judgement(&self, trees: &Trees<'_>, judgement: Judgement) -> abi::JudgeRequests {
        let (rule, threshold_single, threshold_acc) = rule_of(judgement);
        abi::JudgeRequests {
            drafts: *trees.drafts,
            draft_probs: trees.draft_probs[0],
            draft_stride: trees.draft_probs[1],
            caller_forced: trees.caller_forced,
            forced: self.forced.address(),
            records: self.scratch.address(),
            tile_sums: self.scratch.address() + (self.scratch.bytes() / 2) as u64,
            scratch_stride: u64::from(trees.drafts.step.tiles),
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
        (kind, dtype): (Kind, Dtype),
        step: &abi::Step,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        if needs.edits || step.row_indices != 0 {
            // SAFETY: the caller guarantees what the function requires.
            let edited = unsafe { self.edit((kind, dtype), step) }?;
            // SAFETY: as above. The rows are written where they were read from, as `write_rows` allows.
            unsafe { self.write_from((kind, Dtype::F32), &edited, needs) }
        } else if kind == Kind::Logits && needs.variant == Variant::SurveyDraw {
            // SAFETY: the caller guarantees what the function requires.
            unsafe { self.write_softmax(dtype, step) }
        } else {
            // SAFETY: the caller guarantees what the function requires.
            unsafe { self.write_from((kind, dtype), step, needs) }
        }
    }

    /// Writes the rows of a step under their edits. Returns a step over the rows that were written, which has
    /// no edits.
    ///
    /// # Safety
    /// As for [`JudgedRows::judge`].
    unsafe fn edit(&self, (kind, dtype): (Kind, Dtype), step: &abi::Step) -> crate::Result<abi::Step> {
        let (logits, stride) = (self.probabilities.address(), self.stride as u64);
        let (rows, tiles) = (step.rows as usize, step.tiles as usize);
        let blocks = tuning::edit_rows(&self.limits, rows, tiles);
        let argument = abi::EditRows {
            step: *step,
            out: logits,
            out_stride: stride,
            blocks_per_row: blocks.blocks_per_row as u32,
            tiles_per_block: blocks.tiles_per_block as u32,
        };
        let launch = Launch::new(EDIT_ROWS.of(kind, dtype), blocks.grid(rows));
        // SAFETY: the rows have memory for each row of the workspace. The caller guarantees the rest.
        unsafe { launch.enqueue(&*self.runtime, &argument) }?;
        Ok(abi::Step {
            logits,
            stride,
            row_indices: 0,
            masks: 0,
            mask_present: 0,
            shared_records: 0,
            prefill_out: 0,
            ..*step
        })
    }

    /// Writes the probabilities of rows without edits: the survey fills the rows with zeros, unless they are
    /// read there, and what is kept is written into them.
    ///
    /// # Safety
    /// As for [`JudgedRows::judge`].
    unsafe fn write_from(
        &self,
        (kind, dtype): (Kind, Dtype),
        step: &abi::Step,
        needs: StepFeatures,
    ) -> crate::Result<()> {
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
        // SAFETY: as in `judge`.
        let step = unsafe { self.survey_again((kind, dtype), &step, needs) }?;
        let types = (kind, dtype, Dtype::F32);
        let cuts = abi::FindCut { step, cuts: self.cuts.address(), mask_only: 0, reserved: 0 };
        // SAFETY: there is a cut for each row of the workspace. The rows have the shape of those that are
        // read, and are these or were filled before. The caller guarantees the rest.
        unsafe { written_rows::write(&*self.runtime, &self.limits, types, needs, &cuts, (address, stride)) }
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

    /// Enqueues a survey of rows without edits for `find_cut`, and returns the step with its grid.
    ///
    /// # Safety
    /// As for [`Runtime::launch`]. The step's scratch memory is free.
    unsafe fn survey_again(
        &self,
        row_type: (Kind, Dtype),
        step: &abi::Step,
        needs: StepFeatures,
    ) -> crate::Result<abi::Step> {
        // `find_cut` needs a list or a search for any filters.
        let needs = StepFeatures { edits: false, variant: Variant::Candidates, ..needs };
        let survey = tuning::survey(&self.limits, (step.rows as usize, step.tiles as usize), row_type, needs);
        let (step, launch) = survey.over(step, false);
        // SAFETY: the caller guarantees what the argument points to.
        unsafe { launch.enqueue(&*self.runtime, &step) }?;
        Ok(step)
    }
}
