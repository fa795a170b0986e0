//! A device as the place of a pool's rows.

use gumball_cuda::Graph;
use gumball_spec::Result;

use super::on_gpu::OnGpu;
use crate::backend::Backend;
use crate::batch::Batch;
use crate::draft::Proposals;
use crate::drafts::Drafts;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::score::Scored;
use crate::slot::Slot;
use crate::slots::Slots;
use crate::work::Work;

impl Backend for OnGpu {
    fn sync(&mut self, slots: &mut Slots, slot: Slot) -> Result<()> {
        self.catch_up(slots, slot)
    }

    fn step(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.step_at_once(slots, rows, batch, out)
    }

    fn verify(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.verify_at_once(slots, rows, batch, drafts, out)
    }

    fn draft(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        self.draft_at_once(slots, rows, batch, paths, out)
    }

    fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.score_at_once(rows, batch, scored, out)
    }

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()> {
        self.assign_any(slots, batch)
    }

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        self.enqueue_all(slots, work, None)
    }

    fn fetch(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()> {
        self.fetch_last(slots, out)
    }

    fn capture<'b>(&self, _: &Slots, work: &[Work<'b>]) -> Result<Graph<'b>> {
        self.capture_work(work)
    }

    fn replay(&mut self, slots: &mut Slots, graph: &Graph<'_>) -> Result<()> {
        self.replay_graph(slots, graph)
    }
}
