//! Drafting on a device: tokens of a draft model, drawn as the request would draw its own (rule S8).
//!
//! A [`DraftBatch`] has memory of its own for what is assigned to its rows and for what is drawn from them. So one captured graph may
//! hold a batch for each draft of a chain, or for each level of a tree, and the verification behind them.

use gumball_cuda::{
    Assignment, DeviceIntMatrix, DeviceIntMatrixMut, DraftBatchLimits, DraftCopyLaunch, DraftCounts, IntType,
    Rows, Step, StepInput, StepVariant,
};
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::verify::draft::check_path;
use gumball_spec::{Error, Result};

use super::assigned::code;
use super::draft_batch::DraftBatch;
use super::input::{DeviceInput, DeviceOptions, copy_bytes_up};
use super::pool::DevicePool;
use super::pool_route::PoolRoute;
use super::verify::rule;
use crate::batch::Batch;
use crate::draft::{Proposals, split_paths};
use crate::slot::{PADDING, Slot};
use crate::verify_mode::VerifyMode;

impl DevicePool {
    /// Draws drafts from the rows of a draft model in the host's memory, for the requests in `batch.slots`, and changes no sequence.
    ///
    /// The drafts equal those of [`Pool::draft`](crate::Pool::draft). The call copies the rows and the paths to the device and the
    /// drafts back; for rows on the device, and to wait for nothing, see [`DevicePool::add_draft_batch`].
    ///
    /// # Errors
    /// - Those of [`Pool::draft`](crate::Pool::draft).
    /// - [`Error::Length`] for more rows than the pool allows.
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host; for hidden states; and in a pool of the route
    ///   `probabilities`.
    pub fn draft(
        &mut self,
        rows: crate::Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        let source = rows.read(batch, self.config.vocab)?;
        source.check_slots(batch.slots)?;
        source.refuse_hidden("drafts from hidden states on a device")?;
        batch.check(batch.slots.len(), self.config.vocab)?;
        self.with_copied(rows.matrix(), |pool, copied| {
            pool.draft_rows(copied.with_kind(rows.kind()), batch, paths, out)
        })
    }

    /// Draws drafts as [`DevicePool::draft`] does, from rows in the device's memory; waits for the drafts.
    ///
    /// # Errors
    /// Those of [`DevicePool::draft`] and [`DevicePool::enqueue_draft`].
    pub fn draft_rows<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        batch.refuse_plan()?;
        self.refuse_hooks(batch, batch.hooks.len())?;
        let (rows, options) = (batch.slots.len(), DeviceOptions::of(batch));
        let paths = split_paths(paths, batch, self.config.vocab)?;
        let counts: Vec<u32> = paths.iter().map(|path| path.len() as u32).collect();
        let width = counts.iter().copied().max().unwrap_or(0) as usize;
        self.check_draft(batch.slots, &counts, &options)?;
        out.reshape(rows, self.config.vocab)?;
        if rows == 0 || out.siblings() == 0 {
            return Ok(());
        }
        let drawn = self.batch_for_host(DraftBatchLimits {
            rows: self.config.rows,
            siblings: out.siblings(),
            probs: out.has_probs(),
        })?;
        self.assign_draft(drawn, batch.slots, &counts, batch.mode, &options)?;
        let mut ids = vec![0i32; rows * width];
        for (row, path) in paths.into_iter().enumerate() {
            ids[row * width..][..path.len()].copy_from_slice(path);
        }
        let buffer = copy_bytes_up(self.device.runtime(), &mut self.path_upload, bytemuck::cast_slice(&ids))?;
        let matrix = (width > 0)
            .then(|| DeviceIntMatrix::of(&buffer, IntType::I32, 0, rows, width, width))
            .transpose();
        let enqueued = matrix.and_then(|paths| self.enqueue_draft(drawn, input, paths.as_ref()));
        self.path_upload = Some(buffer);
        enqueued?;
        self.fetch_drafts(drawn, out)
    }

    /// Returns the batch of rows that the host waits for, with the given capacity.
    fn batch_for_host(&mut self, limits: DraftBatchLimits) -> Result<DraftBatch> {
        if let Some(batch) = self.host_drafts.take() {
            if batch.limits == limits {
                self.host_drafts = Some(batch);
                return Ok(batch);
            }
            self.remove_draft_batch(batch)?;
        }
        let batch = self.add_draft_batch(limits)?;
        self.host_drafts = Some(batch);
        Ok(batch)
    }

    /// Makes a batch of rows of a draft model. All its memory is allocated here, but for what rows copy of the histories and counts
    /// of their requests.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for no rows or more than the pool's, and for no siblings or more than 64.
    /// - [`Error::Unavailable`] if the device has not enough memory; and in a pool of the route `probabilities`.
    pub fn add_draft_batch(&mut self, limits: DraftBatchLimits) -> Result<DraftBatch> {
        self.check_draft_route()?;
        Ok(DraftBatch { id: self.workspace.add_draft_batch(limits)?, limits })
    }

    /// Frees a batch. Captured graphs that hold it must not run any more.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have it.
    pub fn remove_draft_batch(&mut self, batch: DraftBatch) -> Result<()> {
        self.workspace.remove_draft_batch(batch.id)
    }

    /// Assigns slots, the numbers of drafts in front of the rows, and options to the rows of a batch, for its next drafts, those of
    /// captured graphs included.
    ///
    /// `mode` is that which the drafts will be verified in. The call does not wait for the device, and copies nothing if the
    /// assignment is unchanged. While the host program captures a graph on the stream, only an unchanged assignment is allowed.
    ///
    /// # Shapes and units
    /// `slots`: a slot for each row, [`PADDING`] for one without a sequence; a slot may stand there several times. `counts`: as many,
    /// each in 0..64. `options`: each list that is not empty has as many elements.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape differs, or there are more rows than the batch allows.
    /// - [`Error::OutOfRange`] for a vacant slot, a path of 64 drafts or more, a forced token outside the vocabulary, and a batch that
    ///   this pool does not have.
    /// - [`Error::Conflict`] for a request with mirostat, which has no drafts.
    /// - [`Error::Unavailable`] if the device fails, or has not enough memory for what rows copy of their requests.
    pub fn assign_draft(
        &mut self,
        batch: DraftBatch,
        slots: &[Slot],
        counts: &[u32],
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.check_draft(slots, counts, options)?;
        let masks: Vec<Option<&[u32]>> = match options.masks.is_none() {
            true => Vec::new(),
            false => (0..slots.len()).map(|row| options.masks.row(row)).collect(),
        };
        let forced: Vec<i32> = options.forced.iter().copied().map(code).collect();
        self.workspace.assign(&Assignment {
            of: Some(batch.id),
            slots,
            forced: &forced,
            row_indices: options.row_indices,
            masks: &masks,
            drafts: Some(DraftCounts { counts, rule: rule(mode), batch_requests: &[] }),
        })
    }

    /// Returns how many rows are assigned to a batch.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have it.
    pub fn draft_rows_assigned(&self, batch: DraftBatch) -> Result<usize> {
        Ok(self.workspace.batch(Some(batch.id))?.paths().count())
    }

    /// Checks the rows of a draft model.
    fn check_draft(&self, slots: &[Slot], counts: &[u32], options: &DeviceOptions<'_>) -> Result<()> {
        self.check_draft_route()?;
        if counts.len() != slots.len() {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {}", slots.len())));
        }
        if slots.len() > self.config.rows {
            let allowed = format!("at most {}, the pool's rows", self.config.rows);
            return Err(Error::length("slots", slots.len(), allowed));
        }
        options.on_host().check(slots.len(), self.config.vocab)?;
        counts.iter().try_for_each(|count| check_path(*count as usize))?;
        let mut admitted = slots.iter().filter(|slot| **slot != PADDING);
        admitted.try_for_each(|slot| check_drafts(self.slots.sequence(*slot)?.params(), 1))
    }

    fn check_draft_route(&self) -> Result<()> {
        if self.config.route == PoolRoute::Race {
            return Ok(());
        }
        let reason = "draft in a pool of the route race, or of the host".to_owned();
        Err(Error::Unavailable { resource: "drafts on a device on the route probabilities", reason })
    }

    /// Draws drafts from the rows of a draft model for what is assigned to a batch; it only launches kernels. Each row's drafts are
    /// the first tokens that arrive in the race of its request, as that one is when the kernels run, and change no sequence.
    ///
    /// They lie at [`DevicePool::drafts_address`], where the next batch's paths, a model or a verification may read them;
    /// [`DevicePool::fetch_drafts`] waits for them. If the host program is capturing the device's stream in a graph of its own, the
    /// drafts become part of it, with kernels that serve every request; see [`DevicePool::enqueue_draft_variant`].
    ///
    /// # Shapes and units
    /// `input`: as many rows as are assigned, unless row indices are. `paths`: a row of ids, of 32 or 64 bits, for each row of the batch,
    /// of which the first ones are in front of it, as many as are assigned; `None` if none are for any row. Behind a path that has
    /// an id outside the vocabulary, [`NONE`](gumball_spec::NONE) included, there are no drafts.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or a type differs, and for a batch that this pool does not have.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`], if the rows hold probabilities.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn enqueue_draft<'b>(
        &mut self,
        batch: DraftBatch,
        input: impl Into<DeviceInput<'b>>,
        paths: Option<&DeviceIntMatrix<'_>>,
    ) -> Result<()> {
        self.enqueue_draft_with(batch, &input.into(), paths, None)
    }

    /// Draws drafts as [`DevicePool::enqueue_draft`] does, with the kernels of a named variant, for a graph of the host program.
    /// [`DevicePool::reserve_replays`] refuses replays for rows that the variant does not serve.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the variant does not serve an assigned row.
    /// - Those of [`DevicePool::enqueue_draft`].
    pub fn enqueue_draft_variant<'b>(
        &mut self,
        batch: DraftBatch,
        input: impl Into<DeviceInput<'b>>,
        paths: Option<&DeviceIntMatrix<'_>>,
        variant: StepVariant,
    ) -> Result<()> {
        self.enqueue_draft_with(batch, &input.into(), paths, Some(variant))
    }

    fn enqueue_draft_with(
        &mut self,
        batch: DraftBatch,
        input: &DeviceInput<'_>,
        paths: Option<&DeviceIntMatrix<'_>>,
        variant: Option<StepVariant>,
    ) -> Result<()> {
        // A captured batch does not run yet, and waiting would invalidate the capture.
        if !self.device.runtime().is_capturing()? {
            let rows: Vec<(Slot, u32)> = self.workspace.batch(Some(batch.id))?.paths().collect();
            for (slot, count) in rows {
                if !self.workspace.requests().has_room(slot, count.into()) {
                    self.workspace.extend(slot, self.config.history_growth.max(count as usize))?;
                }
            }
        }
        let input = StepInput { of: Some(batch.id), paths: paths.copied(), ..input.of_step() };
        let drafts = variant.into_iter().fold(self.workspace.fix(&input)?, Step::with_variant);
        self.workspace.enqueue(&drafts)?;
        Ok(())
    }

    /// Copies the drafts of the assigned rows of a batch into a matrix in the device's memory: row r to row r, its siblings to columns from
    /// `column` on. It only launches a kernel, also in a graph that the host program captures.
    ///
    /// So the drafts of a chain come together: each batch's are one column of the paths of the next one, and all of them are
    /// what a verification reads.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the matrix has too few rows or columns, or ids without a sign, and for a batch that this pool does not
    ///   have.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn enqueue_copy_drafts(
        &mut self,
        batch: DraftBatch,
        to: &DeviceIntMatrixMut<'_>,
        column: usize,
    ) -> Result<()> {
        DraftCopyLaunch::new(&self.workspace, batch.id, to, column)?.enqueue(&self.workspace)?;
        Ok(())
    }

    /// Waits for the enqueued work, and copies the last drafts of a batch, and their probabilities if `out` collects some, into `out`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch, and if `out` has another number of siblings or collects
    ///   probabilities that the batch does not write.
    /// - [`Error::Unavailable`] if the device fails, or failed before; or if the system refuses the memory.
    pub fn fetch_drafts(&mut self, batch: DraftBatch, out: &mut Proposals) -> Result<()> {
        if out.siblings() != batch.limits.siblings {
            let allowed = format!("{}, as of the batch", batch.limits.siblings);
            return Err(Error::out_of_range("siblings", out.siblings(), allowed));
        }
        if out.has_probs() {
            self.draft_probs(batch)?;
        }
        let slots: Vec<Slot> = self.workspace.batch(Some(batch.id))?.paths().map(|(slot, _)| slot).collect();
        out.reshape(slots.len(), self.config.vocab)?;
        let proposals = self.workspace.proposals(batch.id)?;
        proposals.read(out.ids_mut())?;
        let with_probs = if out.has_probs() { slots.len() } else { 0 };
        for row in (0..with_probs).filter(|row| slots[*row] != PADDING) {
            proposals.read_probs(row, out.row_probs_mut(row))?;
        }
        Ok(())
    }

    /// Returns the address, in the device's memory, of a batch's drafts: `[rows, siblings]` of i32 without gaps, the rows as they are
    /// assigned, [`NONE`](gumball_spec::NONE) where there are no more. It never changes.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch.
    pub fn drafts_address(&self, batch: DraftBatch) -> Result<u64> {
        Ok(self.workspace.proposals(batch.id)?.address())
    }

    /// Returns the probabilities that the drafts of a batch were drawn from: a row of f32 in the device's memory for each assigned row.
    /// Rows of padding are not written.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch, or it writes none.
    pub fn draft_probs(&self, batch: DraftBatch) -> Result<Rows<'_>> {
        self.workspace.proposals(batch.id)?.probs()
    }
}
