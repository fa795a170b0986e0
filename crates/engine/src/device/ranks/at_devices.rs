//! Devices of several ranks as the place of a pool's rows.

use gumball_cuda::{Dtype, Graph, Recorded, StepVariant, Work as Fixed, WorkTerms};
use gumball_dist::{LogitsLayout, StepPart};
use gumball_spec::{Error, Result};

use super::super::backend::{DeviceBackend, Recording};
use super::super::on_gpu::OnGpu;
use super::watch::Watched;
use super::{GpuRanks, State};
use crate::backend::{Backend, Call, RanksInfo};
use crate::batch::Batch;
use crate::drafts::{Drafted, Drafts, Ids};
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::{Change, Copies, Slots};
use crate::work::Work;

impl Copies for GpuRanks {
    fn has_copies(&self) -> bool {
        true
    }

    fn write(&mut self, slot: Slot, sequence: &Sequence, change: Change) -> Result<()> {
        let _watched = self.begin()?;
        self.gpu.write(slot, sequence, change)?;
        self.common.alike.note(slot, sequence, change);
        Ok(())
    }

    fn forget(&mut self, slot: Slot) -> Result<()> {
        let _watched = self.watch.call(self.due());
        self.gpu.forget(slot)
    }
}

impl Backend for GpuRanks {
    /// After a failed exchange the state is the state at the last fetch.
    fn sync(&mut self, slots: &mut Slots, slot: Slot) -> Result<()> {
        let _watched = self.watch.call(self.due());
        if !matches!(self.state, State::Broken(_)) && !self.gpu.last.observed {
            let layout = self.gpu.outputs_layout();
            self.read(slots, layout, (&mut vec![0; layout.words()], &mut []))?;
        }
        self.gpu.sync(slots, slot)
    }

    fn call(&mut self, slots: &mut Slots, batch: &Batch<'_>, call: Call<'_>) -> Result<()> {
        let _watched = self.begin()?;
        let (without_masks, masks) = batch.without_device_masks();
        let (work, verifies, out) = match call {
            Call::Step(rows, out) => (Work::Step(rows, masks), false, out),
            Call::Verify(rows, drafts, out) => (Work::Verify(rows, masks, *drafts), true, out),
            Call::Draft(rows, paths, out) => return self.draft(slots, rows, batch, paths, out),
            Call::Score(rows, scored, out) => return self.score(slots, rows, batch, scored, out),
        };
        let (Work::Step(rows, _) | Work::Verify(rows, ..)) = work else { unreachable!("just made") };
        let batch = &without_masks;
        rows.check_of_rank(batch)?;
        self.gpu.refuse_hooks(batch)?;
        if let Work::Verify(_, _, drafts @ Drafts { ids: Ids::Host(_), .. }) = &work {
            self.gpu.read_drafts(batch.slots, &Drafted::of(batch), drafts)?;
        }
        self.assign_batch("step", slots, batch, verifies)?;
        self.enqueue_all(slots, &[work], None)?;
        self.fetch_last(slots, out)
    }

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()> {
        let _watched = self.begin()?;
        match batch.of {
            Some(of) => self.assign_drafts(slots, of, &Batch { of: None, ..*batch }),
            None => self.assign_batch("assign", slots, batch, batch.verifies()),
        }
    }

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        let _watched = self.begin()?;
        self.enqueue_all(slots, work, None)
    }

    fn fetch(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()> {
        let _watched = self.begin()?;
        self.fetch_last(slots, out)
    }

    fn ranks(&self) -> Option<RanksInfo<'_>> {
        let sends_rows = match self.spread.plan.map(|plan| plan.layout) {
            None | Some(LogitsLayout::Replicated) => false,
            Some(LogitsLayout::Gather | LogitsLayout::Swap) => true,
            Some(LogitsLayout::Survey) => !self.gpu.workspace.rows().is_decided_in_shards(),
        };
        let (planner, group) = (&self.common.planner, &self.common.group);
        let (transport, warning) = (self.transport.name(), self.warning.as_deref());
        Some(RanksInfo { planner, group, sends_rows, transport, warning })
    }

    fn on_device(&self) -> Option<&dyn DeviceBackend> {
        Some(self)
    }

    fn on_device_mut(&mut self) -> Option<&mut dyn DeviceBackend> {
        Some(self)
    }
}

impl DeviceBackend for GpuRanks {
    fn gpu(&self) -> &OnGpu {
        &self.gpu
    }

    fn gpu_mut(&mut self) -> &mut OnGpu {
        &mut self.gpu
    }

    fn wait_for_drafts(&mut self, slots: &mut Slots) -> Result<()> {
        let _watched = self.begin()?;
        self.wait(slots)
    }

    fn fix<'b>(&self, work: &Work<'b>) -> Result<Fixed<'b>> {
        self.state.check()?;
        self.spread.check_work(work)?;
        if let Work::CopyDrafts(..) | Work::Shorten(_) = work {
            return self.gpu.fix_work(work, None);
        }
        let spread = self.spread.of(work, &self.common.planner)?;
        self.gpu.fix_work(work, Some((&self.windows, &spread)))
    }

    fn enqueue_placed(
        &mut self,
        slots: &mut Slots,
        work: &Work<'_>,
        given: &Work<'_>,
        recording: Option<&mut Recording>,
    ) -> Result<()> {
        self.spread.check_work(work)?;
        let (Work::Step(rows, _) | Work::Verify(rows, ..) | Work::Draft(_, rows, ..)) = work else {
            return self.gpu.enqueue_work(slots, work, None, recording).map(drop);
        };
        let mut digest = self.spread.digest();
        if let Work::Verify(_, _, drafts @ Drafts { ids: Ids::Host(_), .. }) = given {
            let of = &self.gpu.assigned.of;
            let read = self.gpu.read_drafts(&of.slots, &of.drafted()?, drafts)?;
            self.common.alike.add_drafts(&mut digest, &read, self.gpu.vocab);
        }
        let is_announced = recording.is_some() && self.turn.digest != digest;
        self.set_digest(digest).map_err(|error| match self.gpu.device.runtime().is_capturing() {
            Ok(true) if is_announced => {
                let reason = "a replay was announced after the assignment; assign again before the capture";
                Error::Conflict { parameter: "record", other: "before_replay", reason }
            }
            _ => error,
        })?;
        let dtype = match rows {
            Rows::Hidden(..) => Dtype::F32,
            _ => rows.matrix().on_device("logits")?.dtype(),
        };
        self.turn.rows = Some((dtype, rows.kind()));
        self.watch.set_work(true);
        let Self { gpu, common, windows, spread, .. } = self;
        let spread = spread.of(work, &common.planner)?;
        if gpu.enqueue_work(slots, work, Some((&*windows, &spread)), recording)? {
            self.note_step();
        }
        Ok(())
    }

    fn before_replay(&mut self, slots: &mut Slots, recorded: &[&Recorded]) -> Result<()> {
        let _watched = self.begin()?;
        recorded.iter().try_for_each(|recorded| self.check_recorded(recorded))?;
        // The program enqueues it after this call.
        self.watch.set_work(true);
        self.gpu.before_replay(slots, recorded)?;
        // The variants decide what a survey exchanges.
        let mut digest = self.spread.digest();
        for work in recorded.iter().flat_map(|recorded| recorded.work()) {
            if let WorkTerms::Step(step) = work
                && step.draft_batch().is_none()
            {
                digest.extend(StepPart::Shape, step.variant().map(|variant| variant as u64));
                self.note_step();
            }
        }
        self.set_digest(digest)
    }

    fn outputs_address(&self) -> u64 {
        self.windows.results_address()
    }

    fn replay(&mut self, slots: &mut Slots, graph: &Graph<'_>) -> Result<()> {
        let _watched = self.begin()?;
        self.check_recorded(graph.recorded())?;
        self.set_digest(self.spread.digest())?;
        self.turn.rows = None;
        self.watch.set_work(true);
        self.gpu.replay(slots, graph)?;
        (0..graph.steps()).for_each(|_| self.note_step());
        Ok(())
    }

    fn record(&mut self, slots: &mut Slots, work: &[Work<'_>], variant: StepVariant) -> Result<Recorded> {
        let _watched = self.begin()?;
        self.record_all(slots, work, variant)
    }
}

impl GpuRanks {
    /// Begins a call that may wait for the device.
    ///
    /// # Errors
    /// - [`RanksError::Broken`](crate::RanksError::Broken) if a step failed.
    fn begin(&self) -> Result<Watched> {
        self.state.check()?;
        Ok(self.watch.call(self.due()))
    }

    /// Checks that rows are spread as they were when a graph was captured.
    fn check_recorded(&self, recorded: &Recorded) -> Result<()> {
        if recorded.steps() == 0 {
            return Ok(());
        }
        recorded.check_spread(&self.windows, &self.spread.own_spread(&self.common.planner)?)
    }
}
