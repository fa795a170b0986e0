//! The host as the place of a pool's rows.

use gumball_spec::Result;

use crate::backend::Backend;
use crate::batch::Batch;
use crate::draft::Proposals;
use crate::drafts::Drafts;
use crate::host::Host;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::score::Scored;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::{Copies, Slots};
use crate::work::Work;

impl Copies for Host {
    fn has_copies(&self) -> bool {
        false
    }

    fn write(&mut self, _: Slot, _: &Sequence) -> Result<()> {
        Ok(())
    }

    fn forget(&mut self, slot: Slot) -> Result<()> {
        self.in_order.assigned.forget(slot);
        Ok(())
    }
}

impl Backend for Host {
    fn sync(&mut self, _: &mut Slots, _: Slot) -> Result<()> {
        Ok(())
    }

    fn step(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let source = self.check_step(slots, rows, batch)?;
        self.step_checked(slots, source, batch, out)
    }

    fn verify(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let (source, drafts) = self.check_verification(slots, rows, batch, drafts)?;
        self.verify_checked(slots, source, batch, &drafts, out)
    }

    fn draft(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        self.propose_from(slots, rows, batch, paths, out)
    }

    fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.score_from(rows, batch, scored, out)
    }

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()> {
        self.assign_batch(slots, batch)
    }

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        self.work_in_order(slots, work)
    }

    fn fetch(&mut self, _: &mut Slots, out: &mut Outputs) -> Result<()> {
        out.copy_from(&self.in_order.outputs)
    }
}
