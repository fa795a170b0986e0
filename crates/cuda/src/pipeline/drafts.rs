//! Drafting: the batches of a workspace, and the kernels that draw drafts from their rows (rule S8).

use std::marker::PhantomData;

use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::{Error, Kind, Result};

use crate::abi::dtype::{Dtype, IntType};
use crate::abi::{self, Slot, draft_flags, flags};
use crate::launch::{drafts, finish, history_edits, survey, tuning};
use crate::memory::int_matrix::DeviceIntMatrix;
use crate::memory::rows::{MaskRows, Rows};
use crate::pipeline::assignment::{Assignment, Shape};
use crate::pipeline::draft_batch::{DraftBatch, DraftBatchLimits};
use crate::pipeline::draft_rows::{DraftPaths, DraftRule};
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::{Edits, StepFeatures};
use crate::requests::step_variant::StepVariant;

/// Names a batch of rows of a draft model in the workspace that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBatchId {
    workspace: u64,
    index: usize,
}

/// Drafts of a batch whose launches are fixed, for what was assigned to it; its rows and paths live as long as `'b`.
#[derive(Clone, Debug)]
pub struct DraftLaunch<'b> {
    pub(crate) batch: DraftBatchId,
    shape: Shape,
    rule: DraftRule,
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
    /// Makes a batch of rows of a draft model.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for more rows than a step can have, for no rows or siblings, and for more than 64 siblings.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn add_draft_batch(&mut self, limits: DraftBatchLimits) -> Result<DraftBatchId> {
        if !(1..=self.limits.rows).contains(&limits.rows) {
            return Err(Error::out_of_range("rows", limits.rows, format!("in 1..={}", self.limits.rows)));
        }
        if !(1..=MAX_DRAFTS).contains(&limits.siblings) {
            return Err(Error::out_of_range("siblings", limits.siblings, format!("in 1..={MAX_DRAFTS}")));
        }
        let batch = Some(DraftBatch::new(&self.runtime, limits, self.limits.vocab)?);
        let index = match self.draft_batches.iter().position(Option::is_none) {
            Some(vacant) => vacant,
            None => {
                self.draft_batches.push(None);
                self.draft_batches.len() - 1
            }
        };
        self.draft_batches[index] = batch;
        Ok(DraftBatchId { workspace: self.id, index })
    }

    /// Frees a batch. Graphs that hold it must not run any more.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    pub fn remove_draft_batch(&mut self, id: DraftBatchId) -> Result<()> {
        self.draft_batch(id)?;
        self.draft_batches[id.index] = None;
        Ok(())
    }

    pub(crate) fn draft_batch(&self, id: DraftBatchId) -> Result<&DraftBatch> {
        let batch = self.draft_batches.get(id.index).and_then(Option::as_ref);
        batch.filter(|_| id.workspace == self.id).ok_or_else(|| {
            Error::out_of_range("batch", id.index, "a batch of drafts that this pool made and still has")
        })
    }

    /// Assigns slots, forced tokens, row indices and bitmasks to the rows of a batch: `rows.drafts` has for each row the
    /// number of drafts in front of it, 0 to 63, and the rule that will judge what is drawn. A slot may stand there several times.
    ///
    /// # Errors
    /// - Those of [`Workspace::assign`] for each row, but for slots that occur twice.
    /// - [`Error::OutOfRange`] for 64 drafts or more in front of a row.
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    /// - [`Error::Unavailable`] if the device fails, or has not enough memory for what rows copy of their requests.
    ///
    /// # Panics
    /// If `rows` has no `drafts`.
    pub fn assign_draft_batch(&mut self, id: DraftBatchId, rows: &Assignment<'_>) -> Result<()> {
        self.draft_batch(id)?;
        let of = rows.drafts.expect("the caller says how many drafts stand in front of each row");
        let batch = self.draft_batches[id.index].as_mut().expect("found above");
        batch.assign(&self.table, self.limits, rows, of.rule, of.counts)
    }

    /// Returns the slots that are assigned to the rows of a batch, and how many drafts stand in front of each row.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    pub fn draft_rows_of(&self, id: DraftBatchId) -> Result<impl Iterator<Item = (Slot, u32)>> {
        let batch = self.draft_batch(id)?;
        Ok(batch.slots.iter().copied().zip(batch.rows.counts().iter().copied()))
    }

    /// Returns whether a slot's history has capacity for a path of `count` drafts behind it.
    #[must_use]
    pub fn has_path_left(&self, slot: Slot, count: u64) -> bool {
        slot == -1 || self.table.slot_has_history_left(slot, count)
    }

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
        let batch = self.draft_batch(id)?;
        Ok(DraftLaunch {
            batch: id,
            shape: batch.shape,
            rule: batch.rule,
            logits_rows: rows.rows,
            kind: rows.kind,
            dtype: rows.dtype,
            step: self.draft_step_over(batch, rows, masks)?,
            paths: path_addresses(paths, batch.shape.rows, batch.longest_path())?,
            path_width: paths.map_or(0, |paths| paths.width),
            memory: PhantomData,
        })
    }

    /// Checks that what is assigned to a batch still suits its fixed launches, which run behind at most `tokens` tokens that the
    /// requests have not emitted yet.
    pub(crate) fn check_drafts(&self, fixed: &DraftLaunch<'_>, tokens: u64) -> Result<()> {
        let batch = self.draft_batch(fixed.batch)?;
        if batch.shape != fixed.shape || batch.rule != fixed.rule {
            let reason =
                "drafts that were fixed for a number of rows, a mode, row indices and masks need the same";
            return Err(Error::Conflict { parameter: "assignment", other: "drafts", reason });
        }
        if batch.row_indices_end > fixed.logits_rows {
            let allowed = format!("a row of the logits, in 0..{}", fixed.logits_rows);
            return Err(Error::out_of_range("row_indices", batch.row_indices_end - 1, allowed));
        }
        if batch.longest_path() > fixed.path_width {
            let allowed = format!("at most {}, the ids in a row of the paths", fixed.path_width);
            return Err(Error::out_of_range("counts", batch.longest_path(), allowed));
        }
        if fixed.kind == Kind::Probabilities {
            self.table.refusal_in(&batch.slots)?;
        }
        let mut rows = batch.slots.iter().zip(batch.rows.counts());
        match rows.find(|(slot, count)| !self.has_path_left(**slot, tokens + u64::from(**count))) {
            None => Ok(()),
            Some((slot, count)) => {
                let allowed = format!("room for {count} drafts behind the history of slot {slot}");
                Err(Error::out_of_range("history_growth", "too little", allowed))
            }
        }
    }

    /// Returns the features that the rows of a batch need.
    pub(crate) fn needs_of_drafts(&self, fixed: &DraftLaunch<'_>) -> Result<StepFeatures> {
        let batch = self.draft_batch(fixed.batch)?;
        Ok(self.table.needs_of(&batch.slots, batch.is_greedy()))
    }

    /// Draws drafts from rows of a draft model, for what is assigned to a batch; returns whether that runs now, as
    /// [`Workspace::enqueue`] does. It launches kernels, and neither allocates nor waits. The requests are as they are when the
    /// kernels run.
    ///
    /// # Errors
    /// - [`Error::Conflict`] or [`Error::OutOfRange`] if the batch's assignment has changed since the launches were fixed, so that they do
    ///   not suit it; and if it was removed.
    /// - Those of [`Workspace::enqueue`], for the rows of the batch.
    pub fn enqueue_drafts(&mut self, fixed: &DraftLaunch<'_>, variant: Option<StepVariant>) -> Result<bool> {
        self.check_drafts(fixed, 0)?;
        let batch = self.draft_batch(fixed.batch)?;
        let (slots, greedy) = (&batch.slots[..], batch.is_greedy());
        variant.map_or(Ok(()), |variant| self.table.check_variant_of(slots, greedy, variant))?;
        let capturing = self.runtime.is_capturing()?;
        let needs = match variant {
            None if capturing => StepVariant::Full.features(),
            None => self.table.needs_of(slots, greedy),
            Some(variant) => variant.features(),
        };
        self.launch_drafts(fixed, needs)?;
        if capturing {
            self.captured.note(fixed.kind);
            let variant = variant.unwrap_or(StepVariant::Full);
            let batch = self.draft_batches[fixed.batch.index].as_mut().expect("found above");
            batch.captured = Some(batch.captured.map_or(variant, |known| known.min(variant)));
        }
        Ok(!capturing)
    }

    /// Checks that what is assigned to batches is served by the variants that the host program captured them with.
    pub(crate) fn check_captured_drafts(&self) -> Result<()> {
        let captured = self.draft_batches.iter().flatten().filter_map(|batch| Some((batch, batch.captured?)));
        captured.into_iter().try_for_each(|(batch, variant)| {
            if self.captured.kind() == Kind::Probabilities {
                self.table.refusal_in(&batch.slots)?;
            }
            self.table.check_variant_of(&batch.slots, batch.is_greedy(), variant)
        })
    }

    /// Returns the step over the rows of a batch, as the kernels behind `begin_drafts` take it.
    fn draft_step_over(
        &self,
        batch: &DraftBatch,
        rows: &Rows<'_>,
        masks: Option<&MaskRows<'_>>,
    ) -> Result<abi::Step> {
        let shape = batch.shape;
        if rows.vocab != self.limits.vocab {
            let allowed = format!("{} elements in a row, the vocabulary", self.limits.vocab);
            return Err(Error::length("logits", rows.vocab, allowed));
        }
        if !shape.row_indices && rows.rows != shape.rows {
            return Err(Error::length("logits", rows.rows, format!("one per slot, {}", shape.rows)));
        }
        if batch.row_indices_end > rows.rows {
            let allowed = format!("a row of the logits, in 0..{}", rows.rows);
            return Err(Error::out_of_range("row_indices", batch.row_indices_end - 1, allowed));
        }
        let step = abi::Step {
            logits: rows.address,
            stride: rows.stride as u64,
            rows: shape.rows as u32,
            outputs: batch.outputs.address(),
            tokens: batch.drafts.address(),
            ..batch.lists.step(self.bare_step(), (shape.row_indices, shape.masks))
        };
        let step = self.with_masks(step, masks, shape.rows)?;
        Ok(batch.rows.step(step, DraftRule::Coupled))
    }

    /// Launches the kernels that support `needs`, which must include the features of the batch's rows. The workspace must still have
    /// the batch.
    pub(crate) fn launch_drafts(&self, fixed: &DraftLaunch<'_>, needs: StepFeatures) -> crate::Result<()> {
        let DraftLaunch { step, paths, kind, dtype, .. } = fixed;
        if step.rows == 0 {
            return Ok(());
        }
        let batch = self.draft_batches[fixed.batch.index].as_ref().expect("the caller looked for it");
        let (runtime, row_type) = (&*self.runtime, (*kind, *dtype));
        let needs = if step.masks == 0 { needs } else { needs.union(StepFeatures::MASKS) };
        let begun = batch.rows.propose(step, paths, &self.table, batch.rule, batch.lists.slots());
        // SAFETY: the buffers belong to this workspace, and `assign` wrote what lies there. `path_addresses` compared the paths with
        // the rows; their creator guarantees their memory.
        unsafe { drafts::begin(runtime, needs.edits, &begun) }?;
        if needs.edits == Edits::HistoryDependent {
            // SAFETY: the conditions of the survey's launch below hold here too, and the rows' lists belong to this workspace.
            unsafe { history_edits::enqueue_dependent(runtime, &self.device, step) }?;
        }
        if let Some(probs) = &batch.probs {
            // SAFETY: the conditions of `drafts::begin` hold here too, and the kernels before have made the rows' requests and
            // stamped their edits.
            unsafe { probs.write(runtime, &self.device, row_type, step, needs) }?;
        }
        // The survey does not score tokens: `draft_race` cannot read such records.
        let needs = needs.union(StepFeatures::SIMPLE);
        let launch = tuning::survey(&self.device, (step.rows as usize, step.tiles as usize), row_type, needs);
        let known_slots =
            if batch.probs.is_none() && needs.edits == Edits::None { flags::SLOT_IS_ROW } else { 0 };
        let step = abi::Step { flags: step.flags | known_slots, ..*step };
        let step = step.with_blocks_per_row(launch.blocks.blocks_per_row as u32);
        let enqueue = if batch.probs.is_none() { survey::enqueue_dependent } else { survey::enqueue };
        // SAFETY: the buffers belong to this workspace, whose end waits for enqueued work. Their sizes suffice for the rows of a batch,
        // which are no more than those of a step. The creator of `Rows` guarantees the logits.
        unsafe { enqueue(runtime, &launch, &step) }?;
        if batch.takes_steps() {
            // SAFETY: the conditions of the survey's launch hold here too, and there is a draft for each row.
            return unsafe { finish::enqueue(runtime, &self.device, row_type, needs, &step) };
        }
        let race = abi::DraftRace {
            step,
            requests: begun.requests,
            drafts: batch.drafts.address(),
            siblings: batch.limits.siblings as u32,
            are_of_blocks: batch.rule.is_block().into(),
        };
        // SAFETY: the conditions of the survey's launch hold here too, and there are as many drafts for each row.
        unsafe { drafts::race(runtime, &self.device, row_type, &race) }
    }

    /// Waits for what was enqueued before, and reads the drafts of the first rows of a batch, as many as fit `drafts`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    /// - [`Error::Unavailable`] if the device fails, or failed before.
    ///
    /// # Panics
    /// If `drafts` is longer than the batch's.
    pub fn read_drafts(&self, id: DraftBatchId, drafts: &mut [i32]) -> Result<()> {
        Ok(self.draft_batch(id)?.drafts.read(0, drafts)?)
    }

    /// Returns the address of a batch's drafts in the device's memory, `[rows, siblings]` of i32, which never changes.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    pub fn drafts_address(&self, id: DraftBatchId) -> Result<u64> {
        Ok(self.draft_batch(id)?.drafts.address())
    }

    /// Returns the probabilities that the drafts of the assigned rows were drawn from: rows in the device's memory, whose address never
    /// changes. Rows that are padding are not written.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the workspace has no such batch, or it was made without probabilities.
    pub fn draft_probs(&self, id: DraftBatchId) -> Result<Rows<'_>> {
        let batch = self.draft_batch(id)?;
        let probs = batch.probs.as_ref().ok_or_else(|| {
            Error::out_of_range("batch", id.index, "a batch that was made with probabilities")
        })?;
        Ok(probs.rows(batch.shape.rows, self.limits.vocab))
    }

    /// Waits for what was enqueued before, and reads such a row.
    ///
    /// # Errors
    /// - Those of [`Workspace::draft_probs`].
    /// - [`Error::Unavailable`] if the device fails, or failed before.
    ///
    /// # Panics
    /// If the batch has no such row.
    pub fn read_draft_probs(&self, id: DraftBatchId, row: usize, probs: &mut [f32]) -> Result<()> {
        self.draft_probs(id)?;
        let rows = self.draft_batch(id)?.probs.as_ref().expect("found above");
        rows.read(row, probs)
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
