//! A device as the place of a pool's rows.

use gumball_cuda::{Graph, StepVariant};
use gumball_spec::Result;

use super::assign::{AssignedShape, verifies};
use super::on_gpu::OnGpu;
use crate::backend::{Backend, Call};
use crate::batch::Batch;
use crate::outputs::Outputs;
use crate::slot::Slot;
use crate::slots::Slots;
use crate::work::Work;

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
            Some(of) => self.assign_draft(slots, of, &Batch { of: None, ..*batch }),
            None => self.assign_batch(slots, batch, verifies(batch)),
        }
    }

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        self.enqueue_all(slots, work, None)
    }

    fn fetch(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()> {
        self.fetch_last(slots, out)
    }

    fn gpu(&self) -> Option<&OnGpu> {
        Some(self)
    }

    fn gpu_mut(&mut self) -> Option<&mut OnGpu> {
        Some(self)
    }

    fn enqueue_variant(&mut self, slots: &mut Slots, work: &[Work<'_>], variant: StepVariant) -> Result<()> {
        self.enqueue_all(slots, work, Some(variant))
    }

    fn reserve(&mut self, slots: &mut Slots, steps: usize, variant: StepVariant) -> Result<()> {
        self.reserve_steps(slots, steps, variant)
    }

    fn assigned(&self) -> AssignedShape {
        self.assigned_shape()
    }

    fn outputs_address(&self) -> u64 {
        self.workspace.results().address()
    }

    fn capture<'b>(&self, work: &[Work<'b>]) -> Result<Graph<'b>> {
        let fixed = work.iter().map(|work| self.fix(work, None)).collect::<Result<_>>()?;
        self.workspace.capture_work(fixed)
    }

    fn replay(&mut self, slots: &mut Slots, graph: &Graph<'_>) -> Result<()> {
        self.replay_graph(slots, graph)
    }
}
