//! Enqueued, captured and replayed work of a pool on a device.
//!
//! A graph of ours holds launches of this crate alone. A program that has kernels of its own between them
//! captures the device's stream itself, and enqueues the same work.

use gumball_cuda::{
    DraftBatchId, DraftCopyLaunch, RankRows, Recorded, ShortenLaunch, StepInput, Windows, Work as Fixed,
    WorkTerms, Workspace,
};
use gumball_spec::Result;

use super::backend::Recording;
use super::on_gpu::OnGpu;
use crate::ahead::Ahead;
use crate::masks::Masks;
use crate::rows::Rows;
use crate::slot::Slot;
use crate::slots::Slots;
use crate::work::{Work, masks_of_host};

impl OnGpu {
    /// Enqueues work that lies in the memory of the device; over ranks, whose rows are spread so. Returns
    /// whether a step runs.
    pub(super) fn enqueue_work(
        &mut self,
        slots: &mut Slots,
        work: &Work<'_>,
        ranks: Option<(&Windows, &RankRows<'_>)>,
        recording: Option<&mut Recording>,
    ) -> Result<bool> {
        if let Work::CopyDrafts(..) | Work::Shorten(_) = work {
            let fixed = self.fix_work(work, None)?;
            let runs = self.workspace.enqueue_work(&fixed, recording.is_some())?;
            recording.into_iter().for_each(|recording| recording.work.push(fixed.terms()));
            if runs && let Work::Shorten(_) = work {
                self.note_shorten(slots);
            }
            return Ok(false);
        }
        let variant = recording.as_ref().map(|recording| recording.variant);
        let input = StepInput { ranks, variant, ..self.step_input(work, ranks.is_some())? };
        self.enqueue_step(slots, &input, recording)
    }

    /// Enqueues a step, or drafts. Returns whether a step runs: one that the host program captures in a graph
    /// of its own does not.
    fn enqueue_step(
        &mut self,
        slots: &mut Slots,
        input: &StepInput<'_, '_>,
        recording: Option<&mut Recording>,
    ) -> Result<bool> {
        match input.of {
            Some(batch) => self.grow_paths(batch)?,
            None => {
                input.variant.map_or(Ok(()), |variant| self.workspace.rows().check_variant(variant))?;
                self.grow_histories(1)?;
            }
        }
        // A step is large, and `?` would move it.
        let fixed = self.workspace.fix(input);
        let step = fixed.as_ref().map_err(Clone::clone)?;
        let runs = self.workspace.enqueue(step)? && input.of.is_none();
        if runs {
            self.note(slots, 1, step.terms().is_approximate());
        }
        recording
            .into_iter()
            .for_each(|recording| recording.work.push(WorkTerms::Step(Box::new(step.terms().clone()))));
        Ok(runs)
    }

    /// Returns what a step, a verification or drafts read, all of which must lie in the memory of the device.
    /// A head over ranks may have a part of the vocabulary.
    fn step_input<'a, 'b>(&self, work: &Work<'b>, over_ranks: bool) -> Result<StepInput<'a, 'b>> {
        let (of, rows, masks, drafts, paths) = match *work {
            Work::Step(rows, masks) => (None, rows, masks, None, None),
            Work::Verify(rows, masks, drafts) => (None, rows, masks, Some(drafts.on_device()?), None),
            Work::Draft(batch, rows, masks, paths) => (Some(batch.id), rows, masks, None, paths),
            Work::CopyDrafts(..) | Work::Shorten(_) => unreachable!("{work:?} reads no rows"),
        };
        let head = match rows {
            Rows::Hidden(head, _) if over_ranks => Some(&head.on_device()?.head),
            Rows::Hidden(head, _) => Some(&self.check_head(head.on_device()?)?.head),
            _ => None,
        };
        let masks = match masks {
            Masks::None => None,
            Masks::Device(masks) => Some(masks),
            Masks::Host(_) => return Err(masks_of_host()),
        };
        self.check_route(rows.kind(), masks.is_some())?;
        let there = rows.matrix().on_device("logits")?.with_kind(rows.kind());
        Ok(StepInput { of, head, masks, drafts, paths, ..StepInput::of(&there) })
    }

    /// Fixes the launches of work; over ranks, how its rows are spread.
    pub(super) fn fix_work<'b>(
        &self,
        work: &Work<'b>,
        ranks: Option<(&Windows, &RankRows<'_>)>,
    ) -> Result<Fixed<'b>> {
        let workspace = &self.workspace;
        Ok(match *work {
            Work::Step(..) | Work::Verify(..) | Work::Draft(..) => {
                let input = StepInput { ranks, ..self.step_input(work, ranks.is_some())? };
                Fixed::Step(Box::new(workspace.fix(&input)?))
            }
            Work::CopyDrafts(batch, to, column) => {
                Fixed::CopyDrafts(DraftCopyLaunch::new(workspace, batch.id, &to, column)?)
            }
            Work::Shorten(counts) => {
                Fixed::Shorten(ShortenLaunch::new(workspace, &counts.on_device("counts")?)?)
            }
        })
    }

    /// Lets graphs be replayed by `replay`, one for each element, and records what they do.
    pub(super) fn replay_by(
        &mut self,
        slots: &mut Slots,
        recorded: &[&Recorded],
        replay: impl FnOnce(&Workspace) -> Result<()>,
    ) -> Result<()> {
        let steps = recorded.iter().fold(0usize, |steps, recorded| steps.saturating_add(recorded.steps()));
        if steps > 0 {
            self.grow_histories(steps)?;
        }
        for (slot, ids) in self.workspace.lacking_paths(recorded)? {
            self.workspace.extend(slot, self.history_growth.max(ids as usize))?;
        }
        replay(&self.workspace)?;
        for work in recorded.iter().flat_map(|recorded| recorded.work()) {
            match work {
                WorkTerms::Step(step) if step.draft_batch().is_none() => {
                    self.note(slots, 1, step.is_approximate());
                }
                WorkTerms::Shorten(_) => self.note_shorten(slots),
                WorkTerms::Step(_) | WorkTerms::CopyDrafts(..) => {}
            }
        }
        Ok(())
    }

    /// Makes sure that histories can take the paths in front of the rows of a batch of drafts.
    fn grow_paths(&mut self, batch: DraftBatchId) -> Result<()> {
        // A captured batch does not run yet, and waiting would invalidate the capture.
        if self.device.runtime().is_capturing()? {
            return Ok(());
        }
        let rows: Vec<(Slot, u32)> = self.workspace.batch(Some(batch))?.paths().collect();
        for (slot, count) in rows {
            if !self.workspace.requests().has_room(slot, count.into()) {
                self.workspace.extend(slot, self.history_growth.max(count as usize))?;
            }
        }
        Ok(())
    }

    /// Records that tokens of the assigned sequences are taken away after the steps that were noted.
    fn note_shorten(&self, slots: &mut Slots) {
        slots.each_ahead(&self.assigned.of.slots, Ahead::note_shorten);
    }
}
