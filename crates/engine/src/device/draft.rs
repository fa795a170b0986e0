//! Drafting on a device: tokens of a draft model, drawn as the request would draw its own (rule S8).
//!
//! A [`DraftBatch`] has memory of its own for the assignment of its rows and for the drafts drawn from them.
//! So one captured graph may hold a batch for each draft of a chain, or for each level of a tree, and the
//! verification after them.

use gumball_cuda::{Buffer, DeviceIntMatrix, DraftBatchLimits, IntType};
use gumball_spec::{Error, Result};

use super::backend::DeviceBackend;
use super::copy_up::copy_up;
use super::draft_batch::DraftBatch;
use super::on_gpu::OnGpu;
use crate::batch::{Batch, Checked};
use crate::draft::{Proposals, split_paths};
use crate::rows::Rows;
use crate::slot::{PADDING, Slot};
use crate::slots::Slots;
use crate::work::Work;

impl OnGpu {
    /// Draws drafts, once the host's rows and paths are copied to the device, and waits for them.
    pub fn draft(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        rows.check(batch, self.vocab)?;
        let (batch, masks) = batch.without_device_masks();
        let Some((drawn, _)) = self.assign_paths(slots, rows, &batch, paths, out)? else { return Ok(()) };
        self.enqueue_all(slots, &[Work::Draft(drawn.batch, rows, masks, drawn.paths()?)], None)?;
        self.path_upload = drawn.memory;
        self.read_drafted(drawn.batch, out)
    }

    /// Checks drafts that the host waits for, assigns their rows and copies their paths up; `None` if there
    /// are none to be drawn.
    pub(super) fn assign_paths<'a>(
        &mut self,
        slots: &Slots,
        rows: Rows<'_>,
        batch: &Batch<'a>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<Option<(Drawn, Checked<'a>)>> {
        rows.check_slots(batch)?;
        rows.refuse_hidden("drafts from hidden states on a device", HIDDEN)?;
        self.refuse_hooks(batch)?;
        let count = batch.slots.len();
        let paths = split_paths(paths, batch, self.vocab)?;
        let counts: Vec<u32> = paths.iter().map(|path| path.len() as u32).collect();
        let width = counts.iter().copied().max().unwrap_or(0) as usize;
        let batch = self.check_draft(slots, batch, &counts)?;
        out.reshape(count, self.vocab)?;
        if count == 0 || out.siblings() == 0 {
            return Ok(None);
        }
        let drawn = self.batch_for_host(DraftBatchLimits {
            rows: self.rows,
            siblings: out.siblings(),
            probs: out.has_probs(),
        })?;
        self.assign_checked_draft(drawn, &batch, &counts)?;
        let mut ids = vec![0i32; count * width];
        for (row, path) in paths.into_iter().enumerate() {
            ids[row * width..][..path.len()].copy_from_slice(path);
        }
        copy_up(self.device.runtime(), &mut self.path_upload, bytemuck::cast_slice(&ids))?;
        let memory = self.path_upload.take();
        Ok(Some((Drawn { batch: drawn, memory, rows: count, width }, batch)))
    }

    /// Returns the batch of rows that the host waits for, with the given capacity.
    fn batch_for_host(&mut self, limits: DraftBatchLimits) -> Result<DraftBatch> {
        if let Some(batch) = self.host_drafts.take() {
            if batch.limits == limits {
                self.host_drafts = Some(batch);
                return Ok(batch);
            }
            self.workspace.remove_draft_batch(batch.id)?;
        }
        let batch = self.add_batch(limits)?;
        self.host_drafts = Some(batch);
        Ok(batch)
    }

    pub(super) fn add_batch(&mut self, limits: DraftBatchLimits) -> Result<DraftBatch> {
        self.check_draft_route()?;
        Ok(DraftBatch { id: self.workspace.add_draft_batch(limits)?, limits })
    }

    /// Waits for the drafts of a batch, and copies them.
    pub(super) fn read_drafted(&mut self, batch: DraftBatch, out: &mut Proposals) -> Result<()> {
        if out.siblings() != batch.limits.siblings {
            let allowed = format!("{}, as of the batch", batch.limits.siblings);
            return Err(Error::out_of_range("siblings", out.siblings(), allowed));
        }
        if out.has_probs() {
            self.workspace.proposals(batch.id)?.probs()?;
        }
        let slots: Vec<Slot> = self.workspace.batch(Some(batch.id))?.paths().map(|(slot, _)| slot).collect();
        out.reshape(slots.len(), self.vocab)?;
        let proposals = self.workspace.proposals(batch.id)?;
        proposals.read(out.ids_mut())?;
        let with_probs = if out.has_probs() { slots.len() } else { 0 };
        for row in (0..with_probs).filter(|row| slots[*row] != PADDING) {
            proposals.read_probs(row, out.row_probs_mut(row))?;
        }
        Ok(())
    }
}

/// Drafts that the host waits for: their batch, and the rows of paths that were copied up, of so many ids
/// each.
pub(super) struct Drawn {
    pub batch: DraftBatch,
    /// The buffer with the paths, which serves the next ones, too.
    pub memory: Option<Buffer>,
    rows: usize,
    width: usize,
}

impl Drawn {
    /// Returns the paths; `None` if no row has one.
    pub fn paths(&self) -> Result<Option<DeviceIntMatrix<'_>>> {
        let of = |memory| DeviceIntMatrix::of(memory, IntType::I32, 0, self.rows, self.width, self.width);
        self.memory.as_ref().filter(|_| self.width > 0).map(of).transpose()
    }
}

/// What to do with hidden states, where nothing makes logits of them.
pub(super) const HIDDEN: &str = "make logits of them first, or take a pool of the host";
