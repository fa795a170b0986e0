//! Drafting on a device: tokens of a draft model, drawn as the request would draw its own (rule S8).
//!
//! A [`DraftBatch`] has memory of its own for what is assigned to its rows and for what is drawn from them. So one captured graph may
//! hold a batch for each draft of a chain, or for each level of a tree, and the verification behind them.

use gumball_cuda::{DeviceIntMatrix, DraftBatchLimits, IntType, Rows as DeviceMatrix};
use gumball_spec::{Error, Result};

use super::copy_up::copy_up;
use super::draft_batch::DraftBatch;
use super::pool::DevicePool;
use crate::batch::Batch;
use crate::draft::{Proposals, split_paths};
use crate::rows::Rows;
use crate::slot::{PADDING, Slot};
use crate::work::Work;

impl DevicePool {
    /// Draws drafts from the rows of a draft model, for the requests in `batch.slots`, and changes no sequence.
    ///
    /// The drafts equal those of [`Pool::draft`](crate::Pool::draft). The call copies paths, and rows of the host, to the device and the
    /// drafts back; to wait for nothing, see [`DevicePool::add_draft_batch`].
    ///
    /// # Errors
    /// - Those of [`Pool::draft`](crate::Pool::draft), and of [`DevicePool::enqueue`].
    /// - [`Error::Length`] for more rows than the pool allows.
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host; for hidden states; and in a pool of the route
    ///   `probabilities`.
    pub fn draft(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        rows.check(batch, self.config.vocab)?;
        rows.check_slots(batch)?;
        rows.refuse_hidden("drafts from hidden states on a device", HIDDEN)?;
        batch.refuse_plan()?;
        self.refuse_hooks(batch)?;
        let (batch, masks) = batch.without_device_masks();
        let count = batch.slots.len();
        batch.check(count, self.config.vocab)?;
        let paths = split_paths(paths, &batch, self.config.vocab)?;
        let counts: Vec<u32> = paths.iter().map(|path| path.len() as u32).collect();
        let width = counts.iter().copied().max().unwrap_or(0) as usize;
        self.check_draft(&batch, &counts)?;
        out.reshape(count, self.config.vocab)?;
        if count == 0 || out.siblings() == 0 {
            return Ok(());
        }
        let drawn = self.batch_for_host(DraftBatchLimits {
            rows: self.config.rows,
            siblings: out.siblings(),
            probs: out.has_probs(),
        })?;
        self.assign_draft(drawn, &batch)?;
        let mut ids = vec![0i32; count * width];
        for (row, path) in paths.into_iter().enumerate() {
            ids[row * width..][..path.len()].copy_from_slice(path);
        }
        let mut memory = self.path_upload.take();
        let buffer = copy_up(self.device.runtime(), &mut memory, bytemuck::cast_slice(&ids))?;
        let matrix = (width > 0)
            .then(|| DeviceIntMatrix::of(buffer, IntType::I32, 0, count, width, width))
            .transpose();
        let enqueued = matrix.and_then(|paths| self.enqueue(&[Work::Draft(drawn, rows, masks, paths)]));
        self.path_upload = memory;
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
    pub fn draft_probs(&self, batch: DraftBatch) -> Result<DeviceMatrix<'_>> {
        self.workspace.proposals(batch.id)?.probs()
    }
}

/// What to do with hidden states, where nothing makes logits of them.
pub(super) const HIDDEN: &str = "make logits of them first, or take a pool of the host";
