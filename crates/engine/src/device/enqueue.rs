//! Enqueued, captured and replayed work of a pool on a device.
//!
//! A graph of ours holds launches of this crate alone. A program that has kernels of its own between them captures the device's stream
//! itself, and enqueues the same work.

use gumball_cuda::{
    DraftCopyLaunch, Graph, RankRows, ShortenLaunch, Step, StepInput, StepVariant, Windows, Work as Fixed,
};
use gumball_spec::Result;

use super::ahead::Ahead;
use super::draft_batch::DraftBatch;
use super::on_gpu::OnGpu;
use crate::masks::Masks;
use crate::rows::Rows;
use crate::slot::Slot;
use crate::slots::Slots;
use crate::work::{Work, masks_of_host};

impl OnGpu {
    /// Enqueues work for what was assigned last, with the kernels of a variant if it is named.
    pub(super) fn enqueue_all(
        &mut self,
        slots: &mut Slots,
        work: &[Work<'_>],
        variant: Option<StepVariant>,
    ) -> Result<()> {
        // A single piece is checked where it is enqueued.
        for work in work.iter().filter(|_| work.len() > 1) {
            self.with_placed(slots, work, |gpu, _, work| gpu.fix(work, None).map(drop))?;
        }
        work.iter().try_for_each(|work| {
            self.with_placed(slots, work, |gpu, slots, work| {
                gpu.enqueue_placed(slots, work, variant, None).map(drop)
            })
        })
    }

    /// Copies what lies in the memory of the host to the device, and does something with the work.
    fn with_placed<T>(
        &mut self,
        slots: &mut Slots,
        work: &Work<'_>,
        then: impl FnOnce(&mut Self, &mut Slots, &Work<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut uploads = std::mem::take(&mut self.uploads);
        let placed = uploads.place(self.device.runtime(), *work, |drafts| {
            self.read_drafts(&self.assigned.slots, &self.assigned.drafted()?, drafts)
        });
        let done = placed.and_then(|work| then(self, slots, &work));
        self.uploads = uploads;
        done
    }

    /// Enqueues work that lies in the memory of the device; over ranks, whose rows are spread so. Returns whether a step runs: one that the
    /// host program captures in a graph of its own does not.
    pub(super) fn enqueue_placed(
        &mut self,
        slots: &mut Slots,
        work: &Work<'_>,
        variant: Option<StepVariant>,
        ranks: Option<(&Windows, &RankRows<'_>)>,
    ) -> Result<bool> {
        match *work {
            Work::Step(..) | Work::Verify(..) => {
                let input = StepInput { ranks, ..self.step_input(work, ranks.is_some())? };
                return self.enqueue_step(slots, &input, variant);
            }
            Work::Draft(batch, ..) => {
                let input = StepInput { ranks, ..self.step_input(work, ranks.is_some())? };
                self.grow_paths(batch)?;
                let drafts = variant.into_iter().fold(self.workspace.fix(&input)?, Step::with_variant);
                self.workspace.enqueue(&drafts)?;
            }
            Work::CopyDrafts(batch, to, column) => {
                DraftCopyLaunch::new(&self.workspace, batch.id, &to, column)?.enqueue(&self.workspace)?;
            }
            Work::Shorten(counts) => {
                let shorten = ShortenLaunch::new(&self.workspace, &counts.on_device("counts")?)?;
                match shorten.enqueue(&self.workspace)? {
                    true => self.note_shorten(slots),
                    false => self.captured_shorten = true,
                }
            }
        }
        Ok(false)
    }

    fn enqueue_step(
        &mut self,
        slots: &mut Slots,
        input: &StepInput<'_, '_>,
        variant: Option<StepVariant>,
    ) -> Result<bool> {
        variant.map_or(Ok(()), |variant| self.workspace.rows().check_variant(variant))?;
        self.grow_histories(1)?;
        let step = self.workspace.fix(input)?;
        let step = variant.into_iter().fold(step, Step::with_variant);
        let runs = self.workspace.enqueue(&step)?;
        if runs {
            self.note(slots, 1, step.is_approximate());
        } else {
            self.captured_approximate |= step.is_approximate();
        }
        Ok(runs)
    }

    /// Returns what a step, a verification or drafts read, all of which must lie in the memory of the device. A head over ranks may have a part
    /// of the vocabulary.
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
    pub(super) fn fix<'b>(
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

    /// Enqueues the work of a graph.
    pub fn replay_graph(&mut self, slots: &mut Slots, graph: &Graph<'_>) -> Result<()> {
        let advances = graph.steps() > 0;
        if advances {
            self.grow_histories(graph.steps())?;
        }
        for (slot, ids) in self.workspace.lacking_paths(graph)? {
            self.workspace.extend(slot, self.history_growth.max(ids as usize))?;
        }
        self.workspace.replay(graph)?;
        for work in graph.work() {
            match work {
                Fixed::Step(step) if step.draft_batch().is_none() => {
                    self.note(slots, 1, step.is_approximate())
                }
                Fixed::Shorten(_) => self.note_shorten(slots),
                Fixed::Step(_) | Fixed::CopyDrafts(_) => {}
            }
        }
        Ok(())
    }

    /// Makes sure that histories can take the paths in front of the rows of a batch of drafts.
    fn grow_paths(&mut self, batch: DraftBatch) -> Result<()> {
        // A captured batch does not run yet, and waiting would invalidate the capture.
        if self.device.runtime().is_capturing()? {
            return Ok(());
        }
        let rows: Vec<(Slot, u32)> = self.workspace.batch(Some(batch.id))?.paths().collect();
        for (slot, count) in rows {
            if !self.workspace.requests().has_room(slot, count.into()) {
                self.workspace.extend(slot, self.history_growth.max(count as usize))?;
            }
        }
        Ok(())
    }

    /// Records that tokens of the assigned sequences are taken away behind the steps that were noted.
    fn note_shorten(&self, slots: &mut Slots) {
        slots.each_ahead(&self.assigned.slots, Ahead::note_shorten);
    }
}
