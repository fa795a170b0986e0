//! The host as the place of a pool's rows. Work in order is done at once.

use gumball_dist::Plan;
use gumball_spec::request::no_draft_counts;
use gumball_spec::{Error, Result};

use crate::backend::{Backend, Call};
use crate::batch::Batch;
use crate::drafts::{Drafted, Drafts, starts};
use crate::host::Host;
use crate::masks::Masks;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::sequence::Sequence;
use crate::slot::{PADDING, Slot};
use crate::slots::{Change, Copies, Slots};
use crate::work::{Work, masks_of_host};

impl Copies for Host {
    fn write(&mut self, _: Slot, sequence: &Sequence, change: Change) -> Result<()> {
        match change {
            Change::Placed => self.workers.route().check(sequence.params()),
            Change::Pushed(_) | Change::Shortened(_) => Ok(()),
        }
    }

    fn forget(&mut self, slot: Slot) -> Result<()> {
        self.in_order.assigned.of.forget(slot);
        Ok(())
    }
}

impl Backend for Host {
    fn call(&mut self, slots: &mut Slots, batch: &Batch<'_>, call: Call<'_>) -> Result<()> {
        match call {
            Call::Step(rows, out) => self.step(slots, rows, batch, Some(out)),
            Call::Verify(rows, drafts, out) => self.verify(slots, rows, batch, drafts, Some(out)),
            Call::Draft(rows, paths, out) => self.draft(slots, rows, batch, paths, out),
            Call::Score(rows, scored, out) => self.score(rows, batch, scored, out),
        }
    }

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()> {
        let verifies = batch.verifies();
        let batch = if verifies {
            Drafted::of(batch).check()?;
            self.check_drafted(slots, batch, &starts(batch.counts))?
        } else {
            let batch = batch.check_step("assign", self.vocab)?;
            slots.check(batch.slots)?;
            batch
        };
        self.in_order.assigned.set(&batch, verifies);
        Ok(())
    }

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        self.enqueue_all(slots, work)
    }

    fn host(&self) -> Option<&Host> {
        Some(self)
    }

    fn fetch(&mut self, _: &mut Slots, out: &mut Outputs) -> Result<()> {
        out.copy_from(&self.in_order.outputs)
    }
}

/// A place on the host, of one process or of ranks.
pub(crate) trait HostBackend {
    fn host_mut(&mut self) -> &mut Host;

    /// Returns the plan of the assigned batch.
    fn plan(&self) -> Option<Plan> {
        None
    }

    /// Checks a step, or with drafts a verification, and takes it if there are outputs for it.
    fn advance(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: Option<&Drafts<'_>>,
        out: Option<&mut Outputs>,
    ) -> Result<()>;

    /// Does pieces of work over the batch that was assigned last.
    fn enqueue_all(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()> {
        let mut in_order = std::mem::take(&mut self.host_mut().in_order);
        let (batch, outputs) = (in_order.assigned.batch(), &mut in_order.outputs);
        let batch = Batch { plan: self.plan(), ..batch };
        // A single piece is checked where it is done.
        let mut checked = work.iter().filter(|_| work.len() > 1);
        let done = checked
            .try_for_each(|work| self.work(slots, work, &batch, None))
            .and_then(|()| work.iter().try_for_each(|work| self.work(slots, work, &batch, Some(outputs))));
        self.host_mut().in_order = in_order;
        done
    }

    /// Checks a piece of work, and does it if there are outputs for it.
    fn work(
        &mut self,
        slots: &mut Slots,
        work: &Work<'_>,
        batch: &Batch<'_>,
        out: Option<&mut Outputs>,
    ) -> Result<()> {
        match *work {
            Work::Step(rows, masks) => {
                check_work(masks, batch, false)?;
                self.advance(slots, rows, batch, None, out)
            }
            Work::Verify(rows, masks, drafts) => {
                check_work(masks, batch, true)?;
                self.advance(slots, rows, batch, Some(&drafts), out)
            }
            Work::Shorten(counts) => {
                let (counts, requests) = (counts.on_host("counts")?, batch.slots.len());
                if counts.len() != requests {
                    return Err(Error::length("counts", counts.len(), format!("one per slot, {requests}")));
                }
                out.map_or(Ok(()), |_| self.host_mut().shorten_where_possible(slots, batch.slots, counts))
            }
            Work::Draft(..) | Work::CopyDrafts(..) => {
                let reason = "call Pool::draft".to_owned();
                Err(Error::Unavailable { resource: "batches of drafts on the host", reason })
            }
        }
    }
}

impl HostBackend for Host {
    fn host_mut(&mut self) -> &mut Host {
        self
    }

    fn advance(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: Option<&Drafts<'_>>,
        out: Option<&mut Outputs>,
    ) -> Result<()> {
        match drafts {
            None => self.step(slots, rows, batch, out),
            Some(drafts) => self.verify(slots, rows, batch, drafts, out),
        }
    }
}

impl Host {
    fn shorten_where_possible(
        &mut self,
        sequences: &mut Slots,
        slots: &[Slot],
        counts: &[i32],
    ) -> Result<()> {
        for (slot, count) in slots.iter().zip(counts).filter(|(slot, _)| **slot != PADDING) {
            let sequence = sequences.admitted(*slot);
            // Of these numbers a device has the last two.
            let known = if sequence.params().steered_by().is_some() { 1 } else { usize::MAX };
            let most = sequence.most_to_take_away().min(known);
            if let Some(count) = usize::try_from(*count).ok().filter(|count| *count <= most) {
                sequences.shorten(&[*slot], &[count], self)?;
            }
        }
        Ok(())
    }
}

/// Checks the masks of a step or a verification, and whether drafts were assigned to it.
fn check_work(masks: Masks<'_>, batch: &Batch<'_>, verifies: bool) -> Result<()> {
    match masks {
        Masks::None => {}
        Masks::Host(_) => return Err(masks_of_host()),
        Masks::Device(_) => return Err(crate::matrix::on_a_device("masks")),
    }
    if batch.counts.is_empty() != verifies || batch.slots.is_empty() {
        Ok(())
    } else {
        Err(no_draft_counts())
    }
}
