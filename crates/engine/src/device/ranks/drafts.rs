//! Drafts over the devices of ranks: their rows are gathered, so each rank draws all of them, and nothing
//! else travels.

use gumball_dist::LogitsLayout;
use gumball_spec::Result;

use super::super::backend::DeviceBackend;
use super::super::draft_batch::DraftBatch;
use super::GpuRanks;
use crate::batch::{Batch, Checked};
use crate::draft::Proposals;
use crate::ranks::gathered;
use crate::rows::Rows;
use crate::slots::Slots;
use crate::work::Work;

impl GpuRanks {
    /// Draws drafts, once the host's rows and paths are copied to the device, and waits for them.
    pub(super) fn draft(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        rows.check_of_rank(batch)?;
        let (batch, masks) = gathered(batch)?.without_device_masks();
        let Some((drawn, batch)) = self.gpu.assign_paths(slots, rows, &batch, paths, out)? else {
            return Ok(());
        };
        self.note_drafts(slots, drawn.batch, &batch, paths)?;
        self.enqueue_all(slots, &[Work::Draft(drawn.batch, rows, masks, drawn.paths()?)], None)?;
        self.gpu.path_upload = drawn.memory;
        self.wait(slots)?;
        self.gpu.read_drafted(drawn.batch, out)
    }

    /// Assigns a batch to the rows of a batch of drafts.
    pub(super) fn assign_drafts(&mut self, slots: &Slots, of: DraftBatch, batch: &Batch<'_>) -> Result<()> {
        let batch = &gathered(batch)?;
        let batch = self.gpu.assign_draft(slots, of, batch)?;
        self.note_drafts(slots, of, &batch, &[])
    }

    /// Notes what is assigned to a batch of drafts, which all ranks must have alike.
    fn note_drafts(
        &mut self,
        slots: &Slots,
        of: DraftBatch,
        batch: &Checked<'_>,
        paths: &[i32],
    ) -> Result<()> {
        let drafted = &mut self.spread.drafted;
        let place = drafted.iter().position(|(batch, _)| *batch == of).unwrap_or(drafted.len());
        let digest = self.common.alike.of_drafts(
            slots,
            LogitsLayout::Gather,
            (place, batch),
            (of.limits().siblings, paths),
        );
        let noted = (of, digest.whole().into());
        match drafted.get_mut(place) {
            Some(place) => *place = noted,
            None => drafted.push(noted),
        }
        self.set_digest(self.spread.digest())
    }
}
