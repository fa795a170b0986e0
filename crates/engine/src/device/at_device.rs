//! A device as the place of a pool's rows.

use gumball_cuda::{Graph, Recorded, StepVariant, Work as Fixed};
use gumball_spec::Result;

use super::Device;
use super::backend::{DeviceBackend, Recording};
use super::on_gpu::OnGpu;
use super::ranks::GpuRanks;
use crate::backend::{Backend, Call};
use crate::batch::Batch;
use crate::config::{PoolConfig, Ranks};
use crate::outputs::Outputs;
use crate::slot::Slot;
use crate::slots::Slots;
use crate::work::Work;

impl Device {
    /// Makes the place of a pool's rows.
    pub(crate) fn backend(&self, config: &PoolConfig, ranks: Option<Ranks>) -> Result<Box<dyn Backend>> {
        Ok(match ranks {
            None => Box::new(OnGpu::new(config)?),
            Some(ranks) => Box::new(GpuRanks::new(config, ranks)?),
        })
    }
}

impl Backend for OnGpu {
    fn sync(&mut self, slots: &mut Slots, slot: Slot) -> Result<()> {
        self.last.sync(slots, &mut self.workspace, slot)
    }

    fn call(&mut self, slots: &mut Slots, batch: &Batch<'_>, call: Call<'_>) -> Result<()> {
        match call {
            Call::Step(rows, out) => self.step(slots, rows, batch, out),
            Call::Verify(rows, drafts, out) => self.verify(slots, rows, batch, drafts, out),
            Call::Draft(rows, paths, out) => self.draft(slots, rows, batch, paths, out),
            Call::Score(rows, scored, out) => self.score(rows, batch, scored, out),
        }
    }

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()> {
        match batch.of {
            Some(of) => self.assign_draft(slots, of, &Batch { of: None, ..*batch }).map(drop),
            None if batch.verifies() => {
                let batch = self.check_verification(batch)?;
                self.assign_batch(slots, &batch, true, (&[], &[]))
            }
            None => {
                let batch = self.check_step("assign", batch)?;
                self.assign_batch(slots, &batch, false, (&[], &[]))
            }
        }
    }

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        self.enqueue_all(slots, work, None)
    }

    fn fetch(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()> {
        self.fetch_last(slots, out)
    }

    fn on_device(&self) -> Option<&dyn DeviceBackend> {
        Some(self)
    }

    fn on_device_mut(&mut self) -> Option<&mut dyn DeviceBackend> {
        Some(self)
    }
}

impl DeviceBackend for OnGpu {
    fn gpu(&self) -> &OnGpu {
        self
    }

    fn gpu_mut(&mut self) -> &mut OnGpu {
        self
    }

    fn fix<'b>(&self, work: &Work<'b>) -> Result<Fixed<'b>> {
        self.fix_work(work, None)
    }

    fn enqueue_placed(
        &mut self,
        slots: &mut Slots,
        work: &Work<'_>,
        _: &Work<'_>,
        recording: Option<&mut Recording>,
    ) -> Result<()> {
        self.enqueue_work(slots, work, None, recording).map(drop)
    }

    fn before_replay(&mut self, slots: &mut Slots, recorded: &[&Recorded]) -> Result<()> {
        self.replay_by(slots, recorded, |workspace| workspace.before_replay(recorded))
    }

    fn outputs_address(&self) -> u64 {
        self.workspace.results().address()
    }

    fn replay(&mut self, slots: &mut Slots, graph: &Graph<'_>) -> Result<()> {
        self.replay_by(slots, &[graph.recorded()], |workspace| workspace.replay(graph))
    }

    fn record(&mut self, slots: &mut Slots, work: &[Work<'_>], variant: StepVariant) -> Result<Recorded> {
        self.record_all(slots, work, variant)
    }
}
