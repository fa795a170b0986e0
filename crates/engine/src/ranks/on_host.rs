//! The host as the place of a pool's rows that are spread over ranks: exchanges stand between the halves of a
//! step.

use gumball_dist::LogitsLayout;
use gumball_spec::Result;

use super::HostRanks;
use crate::backend::{Backend, Call, RanksInfo};
use crate::batch::Batch;
use crate::host::Host;
use crate::on_host::check_work;
use crate::outputs::Outputs;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::{Change, Copies, Slots};
use crate::work::Work;

impl Copies for HostRanks {
    fn write(&mut self, slot: Slot, sequence: &Sequence, change: Change) -> Result<()> {
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
            Call::Step(rows, out) => {
                self.with_logits(rows, true, |ranks, rows| ranks.step(slots, rows, batch, Some(out)))
            }
            Call::Verify(rows, drafts, out) => self
                .with_logits(rows, true, |ranks, rows| ranks.verify(slots, rows, batch, drafts, Some(out))),
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
        let mut in_order = std::mem::take(&mut self.host.in_order);
        let (batch, out) = (in_order.assigned.batch(), &mut in_order.outputs);
        let batch = Batch { plan: self.plan, ..batch };
        // A single piece is checked where it is done.
        let mut checked = work.iter().filter(|_| work.len() > 1);
        let done = checked
            .try_for_each(|work| self.work(slots, work, &batch, None))
            .and_then(|()| work.iter().try_for_each(|work| self.work(slots, work, &batch, Some(out))));
        self.host.in_order = in_order;
        done.map_err(|error| self.common.explain(slots, error))
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

impl HostRanks {
    /// Checks a piece of work, and does it if there are outputs for it; the ranks exchange meanwhile.
    fn work(
        &mut self,
        slots: &mut Slots,
        work: &Work<'_>,
        batch: &Batch<'_>,
        out: Option<&mut Outputs>,
    ) -> Result<()> {
        let is_done = out.is_some();
        match *work {
            Work::Step(rows, masks) => {
                check_work(masks, batch, false)?;
                self.with_logits(rows, is_done, |ranks, rows| ranks.step(slots, rows, batch, out))
            }
            Work::Verify(rows, masks, drafts) => {
                check_work(masks, batch, true)?;
                self.with_logits(rows, is_done, |ranks, rows| ranks.verify(slots, rows, batch, &drafts, out))
            }
            _ => self.host.work(slots, work, batch, out),
        }
    }
}
