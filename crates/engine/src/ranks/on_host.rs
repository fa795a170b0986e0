//! The host as the place of a pool's rows that are spread over ranks: exchanges stand between the halves of a
//! step.

use gumball_dist::{LogitsLayout, Plan};
use gumball_spec::Result;

use super::HostRanks;
use crate::backend::{Backend, Call, RanksInfo};
use crate::batch::Batch;
use crate::drafts::Drafts;
use crate::host::Host;
use crate::on_host::HostBackend;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::{Change, Copies, Slots};
use crate::work::Work;

impl Copies for HostRanks {
    fn write(&mut self, slot: Slot, sequence: &Sequence, change: Change) -> Result<()> {
        self.host.write(slot, sequence, change)?;
        self.common.alike.note(slot, sequence, change);
        Ok(())
    }

    fn forget(&mut self, slot: Slot) -> Result<()> {
        self.host.forget(slot)
    }
}

impl Backend for HostRanks {
    fn call(&mut self, slots: &mut Slots, batch: &Batch<'_>, call: Call<'_>) -> Result<()> {
        let done = match call {
            Call::Step(rows, out) => self.advance(slots, rows, batch, None, Some(out)),
            Call::Verify(rows, drafts, out) => self.advance(slots, rows, batch, Some(drafts), Some(out)),
            Call::Draft(rows, paths, out) => {
                self.with_logits(rows, true, |ranks, rows| ranks.draft(slots, rows, batch, paths, out))
            }
            Call::Score(rows, scored, out) => {
                self.with_logits(rows, true, |ranks, rows| ranks.score(slots, rows, batch, scored, out))
            }
        };
        done.map_err(|error| self.common.explain(slots, error))
    }

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()> {
        self.host.assign(slots, batch)?;
        self.plan = batch.plan;
        Ok(())
    }

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        self.enqueue_all(slots, work).map_err(|error| self.common.explain(slots, error))
    }

    fn fetch(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()> {
        self.host.fetch(slots, out)
    }

    fn ranks(&self) -> Option<RanksInfo<'_>> {
        let sends_rows =
            self.plan.is_some_and(|plan| matches!(plan.layout, LogitsLayout::Gather | LogitsLayout::Swap));
        let (planner, group) = (&self.common.planner, &self.common.group);
        Some(RanksInfo { planner, group, sends_rows, transport: group.transport(), warning: None })
    }

    fn host(&self) -> Option<&Host> {
        Some(&self.host)
    }
}

impl HostBackend for HostRanks {
    fn host_mut(&mut self) -> &mut Host {
        &mut self.host
    }

    fn plan(&self) -> Option<Plan> {
        self.plan
    }

    /// The ranks exchange meanwhile.
    fn advance(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: Option<&Drafts<'_>>,
        out: Option<&mut Outputs>,
    ) -> Result<()> {
        self.with_logits(rows, out.is_some(), |ranks, rows| match drafts {
            None => ranks.step(slots, rows, batch, out),
            Some(drafts) => ranks.verify(slots, rows, batch, drafts, out),
        })
    }
}
