//! Devices of several ranks as the place of a pool's rows.

use gumball_cuda::{Graph, StepVariant};
use gumball_dist::{Group, LogitsLayout, StepPart};
use gumball_spec::Result;

use super::super::assign::{AssignedShape, verifies};
use super::super::on_gpu::OnGpu;
use super::GpuRanks;
use crate::backend::{Backend, Call, RanksInfo};
use crate::batch::Batch;
use crate::drafts::{Drafted, Ids};
use crate::outputs::Outputs;
use crate::sequence::Sequence;
use crate::slot::{PADDING, Slot};
use crate::slots::{Change, Copies, Slots};
use crate::work::Work;

impl Copies for GpuRanks {
    fn has_copies(&self) -> bool {
        true
    }

    fn write(&mut self, slot: Slot, sequence: &Sequence, change: Change) -> Result<()> {
        self.check_broken()?;
        self.gpu.write(slot, sequence, change)?;
        self.common.alike.note(slot, sequence, change);
        Ok(())
    }

    fn forget(&mut self, slot: Slot) -> Result<()> {
        let assigned = self.assigned.slots.iter_mut().filter(|assigned| **assigned == slot);
        assigned.for_each(|assigned| *assigned = PADDING);
        self.gpu.forget(slot)
    }
}

impl Backend for GpuRanks {
    /// After a failed exchange the state is that of the last fetch.
    fn sync(&mut self, slots: &mut Slots, slot: Slot) -> Result<()> {
        self.observe_last_step(slots)?;
        self.gpu.sync(slots, slot)
    }

    fn call(&mut self, slots: &mut Slots, batch: &Batch<'_>, call: Call<'_>) -> Result<()> {
        let (without_masks, masks) = batch.without_device_masks();
        let (work, verifies, out) = match call {
            Call::Step(rows, out) => (Work::Step(rows, masks), false, out),
            Call::Verify(rows, drafts, out) => (Work::Verify(rows, masks, *drafts), true, out),
            Call::Draft(rows, paths, out) => return self.draft(slots, rows, batch, paths, out),
            Call::Score(rows, scored, out) => return self.score(slots, rows, batch, scored, out),
        };
        let (Work::Step(rows, _) | Work::Verify(rows, ..)) = work else { unreachable!("just made") };
        let batch = &without_masks;
        if !verifies {
            batch.refuse_drafts("step")?;
        }
        rows.check_of_rank(batch)?;
        self.check_broken()?;
        self.gpu.refuse_hooks(batch)?;
        match &work {
            Work::Verify(_, _, drafts) => {
                if let Ids::Host(_) = drafts.ids {
                    self.gpu.read_drafts(batch.slots, &Drafted::of(batch), drafts)?;
                }
            }
            _ => batch.check(batch.slots.len(), self.gpu.vocab)?,
        }
        self.assign_batch(slots, batch, verifies)?;
        self.enqueue(slots, &[work])?;
        self.fetch(slots, out)
    }

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()> {
        match batch.of {
            Some(of) => self.assign_drafts(slots, of, &Batch { of: None, ..*batch }),
            None => self.assign_batch(slots, batch, verifies(batch)),
        }
    }

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        self.enqueue_all(slots, work, None)
    }

    fn fetch(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()> {
        self.fetch_last(slots, out)
    }

    fn ranks(&self) -> Option<RanksInfo<'_>> {
        let sends_rows = match self.assigned.plan.map(|plan| plan.layout) {
            None | Some(LogitsLayout::Replicated) => false,
            Some(LogitsLayout::Gather | LogitsLayout::Swap) => true,
            Some(LogitsLayout::Survey) => !self.gpu.workspace.rows().is_decided_in_shards(),
        };
        let (planner, group) = (&self.common.planner, &self.common.group);
        let (transport, warning) = (self.transport.name(), self.warning.as_deref());
        Some(RanksInfo { planner, group, sends_rows, transport, warning })
    }

    fn group_mut(&mut self) -> Option<&mut Group> {
        Some(&mut self.common.group)
    }

    fn gpu(&self) -> Option<&OnGpu> {
        Some(&self.gpu)
    }

    fn gpu_mut(&mut self) -> Option<&mut OnGpu> {
        Some(&mut self.gpu)
    }

    fn enqueue_variant(&mut self, slots: &mut Slots, work: &[Work<'_>], variant: StepVariant) -> Result<()> {
        self.enqueue_all(slots, work, Some(variant))
    }

    fn wait_for_drafts(&mut self, slots: &mut Slots) -> Result<()> {
        self.wait(slots)
    }

    fn reserve(&mut self, slots: &mut Slots, steps: usize, variant: StepVariant) -> Result<()> {
        self.check_broken()?;
        self.gpu.reserve_steps(slots, steps, variant)?;
        // The variant decides what a survey exchanges.
        let mut digest = self.assigned.digest();
        digest.add(StepPart::Shape, variant as u64);
        self.set_digest(digest)?;
        (0..steps).for_each(|_| self.note_step());
        Ok(())
    }

    fn assigned(&self) -> AssignedShape {
        let rows = self.assigned.first_rows.last().copied().unwrap_or(0);
        let requests = self.assigned.drafts.as_ref().map_or(0, |(counts, _)| counts.len());
        AssignedShape { rows, requests }
    }

    fn outputs_address(&self) -> u64 {
        self.windows.results_address()
    }

    fn capture<'b>(&self, work: &[Work<'b>]) -> Result<Graph<'b>> {
        self.check_broken()?;
        let fixed = work.iter().map(|work| self.fix(work)).collect::<Result<_>>()?;
        self.gpu.workspace.capture_work(fixed)
    }

    fn replay(&mut self, slots: &mut Slots, graph: &Graph<'_>) -> Result<()> {
        self.replay_graph(slots, graph)
    }
}
