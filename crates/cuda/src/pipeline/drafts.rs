//! Drafting: the batches of a workspace, and the kernels that draw drafts from their rows (rule S8).

use std::marker::PhantomData;

use gumball_spec::{Error, Kind, Result};

use crate::abi::dtype::{Dtype, IntType};
use crate::abi::{self, draft_flags, flags};
use crate::launch::{drafts, finish, history_edits, survey, tuning};
use crate::memory::int_matrix::DeviceIntMatrix;
use crate::memory::rows::{MaskRows, Rows};
use crate::pipeline::assignment::Shape;
use crate::pipeline::draft_rows::DraftPaths;
use crate::pipeline::proposals::Proposals;
use crate::pipeline::row_batch::{DraftBatchId, RowBatch};
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::{Edits, StepFeatures};
use crate::requests::step_variant::StepVariant;

/// Drafts of a batch whose launches are fixed, for what was assigned to it; its rows and paths live as long as `'b`.
#[derive(Clone, Debug)]
pub struct DraftLaunch<'b> {
    pub(crate) batch: DraftBatchId,
    shape: Shape,
    logits_rows: usize,
    kind: Kind,
    dtype: Dtype,
    step: abi::Step,
    paths: DraftPaths,
    /// How many ids a row of the paths has.
    path_width: usize,
    memory: PhantomData<&'b ()>,
}

impl Workspace {
    /// Fixes the launches that draw drafts from rows of a draft model, for what is assigned to a batch.
    ///
    /// Row r stands behind the first drafts of row r of `paths`, as many as were assigned to it. Behind a path with an id outside the
    /// vocabulary there are no drafts.
    ///
    /// # Errors
    /// - Those of [`Workspace::step_masked`], for the rows of the batch.
    /// - [`Error::Length`] if `paths` has too few rows or columns, or there are none and a row has a path; [`Error::OutOfRange`] if its
    ///   ids have no sign, or its rows lie 2^32 ids or more apart.
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    pub fn drafts<'b>(
        &self,
        id: DraftBatchId,
        rows: &Rows<'b>,
        masks: Option<&MaskRows<'b>>,
        paths: Option<&DeviceIntMatrix<'b>>,
    ) -> Result<DraftLaunch<'b>> {
        let batch = self.batch(Some(id))?;
        Ok(DraftLaunch {
            batch: id,
            shape: batch.shape(),
            logits_rows: rows.rows,
            kind: rows.kind,
            dtype: rows.dtype,
            step: self.draft_step_over(batch, rows, masks)?,
            paths: path_addresses(paths, batch.shape().rows, batch.longest_path())?,
            path_width: paths.map_or(0, |paths| paths.width),
            memory: PhantomData,
        })
    }

    /// Checks that what is assigned to a batch still suits its fixed launches, which run behind at most `tokens` tokens that the
    /// requests have not emitted yet.
    pub(crate) fn check_drafts(&self, fixed: &DraftLaunch<'_>, tokens: u64) -> Result<()> {
        let batch = self.batch(Some(fixed.batch))?;
        batch.check(fixed.shape, fixed.logits_rows)?;
        if batch.longest_path() > fixed.path_width {
            let allowed = format!("at most {}, the ids in a row of the paths", fixed.path_width);
            return Err(Error::out_of_range("counts", batch.longest_path(), allowed));
        }
        batch.check_kind(fixed.kind)?;
        batch.check_room(&self.requests, tokens)
    }

    /// Draws drafts from rows of a draft model, for what is assigned to a batch; returns whether that runs now, as
    /// [`Workspace::enqueue`] does. It launches kernels, and neither allocates nor waits. The requests are as they are when the
    /// kernels run.
    ///
    /// # Errors
    /// - [`Error::Conflict`] or [`Error::OutOfRange`] if the batch's assignment has changed since the launches were fixed, so that they do
    ///   not suit it; and if it was removed.
    /// - Those of [`Workspace::enqueue`], for the rows of the batch.
    pub fn enqueue_drafts(&self, fixed: &DraftLaunch<'_>, variant: Option<StepVariant>) -> Result<bool> {
        self.check_drafts(fixed, 0)?;
        let batch = self.batch(Some(fixed.batch))?;
        variant.map_or(Ok(()), |variant| batch.check_variant(variant))?;
        let capturing = self.runtime.is_capturing()?;
        let captured = variant.unwrap_or(StepVariant::Full);
        let needs = match variant {
            None if !capturing => batch.needs(),
            _ => captured.features(),
        };
        self.launch_drafts(fixed, needs)?;
        if capturing {
            batch.captured.note(fixed.kind, captured);
        }
        Ok(!capturing)
    }

    /// Returns the step over the rows of a batch, as the kernels behind `begin_drafts` take it.
    fn draft_step_over(
        &self,
        batch: &RowBatch,
        rows: &Rows<'_>,
        masks: Option<&MaskRows<'_>>,
    ) -> Result<abi::Step> {
        let shape = batch.shape();
        if rows.vocab != self.limits.vocab {
            let allowed = format!("{} elements in a row, the vocabulary", self.limits.vocab);
            return Err(Error::length("logits", rows.vocab, allowed));
        }
        if !shape.row_indices && rows.rows != shape.rows {
            return Err(Error::length("logits", rows.rows, format!("one per slot, {}", shape.rows)));
        }
        batch.check(shape, rows.rows)?;
        let step = abi::Step {
            logits: rows.address,
            stride: rows.stride as u64,
            ..self.argument(batch, 0..shape.rows)
        };
        self.with_masks(step, masks, shape.rows)
    }

    /// Launches the kernels that support `needs`, which must include the features of the batch's rows. The workspace must still have
    /// the batch.
    pub(crate) fn launch_drafts(&self, fixed: &DraftLaunch<'_>, needs: StepFeatures) -> crate::Result<()> {
        let DraftLaunch { step, paths, kind, dtype, .. } = fixed;
        if step.rows == 0 {
            return Ok(());
        }
        let batch = self.batch(Some(fixed.batch)).expect("the caller looked for it");
        let probs = batch.proposals().and_then(Proposals::written);
        let (runtime, row_type) = (&*self.runtime, (*kind, *dtype));
        let needs = if step.masks == 0 { needs } else { needs.union(StepFeatures::MASKS) };
        let begun = batch.proposed(step, paths, &self.requests);
        // SAFETY: the buffers belong to this workspace, and `assign` wrote what lies there. `path_addresses` compared the paths with
        // the rows; their creator guarantees their memory.
        unsafe { drafts::begin(runtime, needs.edits, &begun) }?;
        if needs.edits == Edits::HistoryDependent {
            // SAFETY: the conditions of the survey's launch below hold here too, and the rows' lists belong to this workspace.
            unsafe { history_edits::enqueue_dependent(runtime, &self.device, step) }?;
        }
        if let Some(probs) = probs {
            // SAFETY: the conditions of `drafts::begin` hold here too, and the kernels before have made the rows' requests and
            // stamped their edits.
            unsafe { probs.write(runtime, &self.device, row_type, step, needs) }?;
        }
        // The survey does not score tokens: `draft_race` cannot read such records.
        let needs = needs.union(StepFeatures::SIMPLE);
        let launch = tuning::survey(&self.device, (step.rows as usize, step.tiles as usize), row_type, needs);
        let known_slots = if probs.is_none() && needs.edits == Edits::None { flags::SLOT_IS_ROW } else { 0 };
        let step = abi::Step { flags: step.flags | known_slots, ..*step };
        let step = step.with_blocks_per_row(launch.blocks.blocks_per_row as u32);
        let enqueue = if probs.is_none() { survey::enqueue_dependent } else { survey::enqueue };
        // SAFETY: the buffers belong to this workspace, whose end waits for enqueued work. Their sizes suffice for the rows of a batch,
        // which are no more than those of a step. The creator of `Rows` guarantees the logits.
        unsafe { enqueue(runtime, &launch, &step) }?;
        match batch.race(step) {
            // SAFETY: the conditions of the survey's launch hold here too, and there is a draft for each row.
            None => unsafe { finish::enqueue(runtime, &self.device, row_type, needs, &step) },
            // SAFETY: the conditions of the survey's launch hold here too, and there are as many drafts for each row.
            Some(race) => unsafe { drafts::race(runtime, &self.device, row_type, &race) },
        }
    }
}

/// Checks the paths in front of `rows` rows, of which the longest has `longest` drafts, and returns where they lie.
fn path_addresses(paths: Option<&DeviceIntMatrix<'_>>, rows: usize, longest: usize) -> Result<DraftPaths> {
    let Some(paths) = paths.filter(|_| longest > 0) else {
        return match longest {
            0 => Ok(DraftPaths::default()),
            _ => Err(Error::length("paths", 0, format!("{rows} rows of at least {longest} ids"))),
        };
    };
    if paths.rows < rows || paths.width < longest {
        let value = format!("[{}, {}]", paths.rows, paths.width);
        return Err(Error::out_of_range("paths", value, format!("at least [{rows}, {longest}]")));
    }
    let ids_64_bit = match paths.dtype {
        IntType::I32 => 0,
        IntType::I64 => draft_flags::IDS_I64,
        unsigned => {
            return Err(Error::out_of_range("paths", format!("{unsigned:?}"), "i32 or i64"));
        }
    };
    let stride = u32::try_from(paths.stride)
        .map_err(|_| Error::out_of_range("paths", paths.stride, "a stride below 2^32"))?;
    Ok(DraftPaths { ids: paths.row(0), stride, flags: ids_64_bit })
}
