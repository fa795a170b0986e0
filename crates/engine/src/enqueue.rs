//! Work in order on the host, which does it at once.

use gumball_spec::request::no_draft_counts;
use gumball_spec::{Error, Result};

use crate::batch::Batch;
use crate::drafts::{Drafted, starts};
use crate::in_order::InOrder;
use crate::masks::Masks;
use crate::outputs::Outputs;
use crate::pool::Pool;
use crate::slot::{PADDING, Slot};
use crate::work::{Work, masks_of_host};

impl Pool {
    /// Assigns a batch to the rows of the next work: of steps, or with `counts` of verifications. What it holds is copied, into memory that
    /// is kept.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// let mut pool = Pool::new(PoolConfig::new(3))?;
    /// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[])?;
    /// pool.assign(&Batch::of(&[slot]))?;
    /// for logits in [[0.0f32, 2.0, 1.0], [0.0, 1.0, 2.0]] {
    ///     pool.enqueue(&[Work::step(Rows::logits(&logits, 1, 3)?)])?;
    /// }
    /// let mut out = Outputs::new();
    /// pool.fetch(&mut out)?;
    /// assert_eq!(out.tokens(), [2]);
    /// assert_eq!(pool.sequence(slot)?.history().output(), [1, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Shapes and units
    /// `batch`: as [`Pool::step`] takes it, or with `counts` as [`Pool::verify`] does.
    ///
    /// # Errors
    /// - Those of [`Pool::step`] and [`Pool::verify`] that concern `batch`.
    /// - [`Error::Conflict`] for hooks, which do not outlive the call that they are handed to.
    ///
    /// What was assigned before stays then.
    pub fn assign(&mut self, batch: &Batch<'_>) -> Result<()> {
        batch.refuse_plan()?;
        batch.refuse_hooks()?;
        let rows = if batch.counts.is_empty() {
            if !batch.slots.is_empty() {
                batch.refuse_drafts("assign")?;
            }
            batch.check(batch.slots.len(), self.vocab)?;
            self.slots.check(batch.slots)?;
            batch.slots.len()
        } else {
            Drafted::of(batch).check()?;
            let starts = starts(batch.counts);
            self.check_drafted(batch, &starts)?;
            starts[batch.slots.len()]
        };
        self.in_order.assigned.set(batch, rows);
        self.in_order.is_assigned = true;
        Ok(())
    }

    /// Does work for what was assigned last, in this order. It is done on return, so the memory that it reads may be written again;
    /// [`Pool::fetch`] tells what came out of the last step or verification. Allocates as little as [`Pool::step`].
    ///
    /// # Errors
    /// - [`Error::Conflict`] if nothing was assigned since the pool was made, or since its last step or verification by a direct call.
    /// - [`Error::Conflict`] for a verification unless counts of drafts were assigned, and for a step if they were; and for masks of the host,
    ///   which are assigned.
    /// - [`Error::Length`] if a shape is not that of the assignment.
    /// - [`Error::OutOfRange`] for what lies in the memory of a device, and [`Error::Unavailable`] for batches of drafts, which a device has.
    /// - Those of [`Pool::step`] and [`Pool::verify`].
    ///
    /// No sequence was changed then, unless memory or a route of the caller's own failed behind a piece that was done.
    pub fn enqueue(&mut self, work: &[Work<'_>]) -> Result<()> {
        let mut in_order = std::mem::take(&mut self.in_order);
        let done = self.enqueue_for(work, &mut in_order);
        self.in_order = in_order;
        done
    }

    fn enqueue_for(&mut self, work: &[Work<'_>], in_order: &mut InOrder) -> Result<()> {
        if !in_order.is_assigned {
            let reason = "assign a batch first, and again after a direct call";
            return Err(Error::Conflict { parameter: "work", other: "assignment", reason });
        }
        let batch = &in_order.assigned.batch();
        // A single piece is checked where it is done.
        for work in work.iter().filter(|_| work.len() > 1) {
            self.work(work, batch, None)?;
        }
        for work in work {
            self.work(work, batch, Some(&mut in_order.outputs))?;
            in_order.was_direct &= matches!(work, Work::Shorten(_));
        }
        Ok(())
    }

    /// Checks a piece of work, and does it if there are outputs for it.
    fn work(&mut self, work: &Work<'_>, batch: &Batch<'_>, out: Option<&mut Outputs>) -> Result<()> {
        match *work {
            Work::Step(rows, masks) => {
                check_work(masks, batch, false)?;
                let source = self.check_step(rows, batch)?;
                out.map_or(Ok(()), |out| self.step_checked(source, batch, out))
            }
            Work::Verify(rows, masks, drafts) => {
                check_work(masks, batch, true)?;
                let (source, drafts) = self.check_verification(rows, batch, &drafts)?;
                out.map_or(Ok(()), |out| self.verify_checked(source, batch, &drafts, out))
            }
            Work::Shorten(counts) => {
                let (counts, requests) = (counts.on_host("counts")?, batch.slots.len());
                if counts.len() != requests {
                    return Err(Error::length("counts", counts.len(), format!("one per slot, {requests}")));
                }
                out.map_or(Ok(()), |_| self.shorten_where_possible(batch.slots, counts))
            }
            #[cfg(feature = "cuda")]
            Work::Draft(..) | Work::CopyDrafts(..) => {
                let reason = "call Pool::draft".to_owned();
                Err(Error::Unavailable { resource: "batches of drafts on the host", reason })
            }
        }
    }

    fn shorten_where_possible(&mut self, slots: &[Slot], counts: &[i32]) -> Result<()> {
        for (slot, count) in slots.iter().zip(counts).filter(|(slot, _)| **slot != PADDING) {
            let sequence = self.slots.admitted(*slot);
            // Of mirostat's limits a device has the last two.
            let known = if sequence.params().mirostat.is_some() { 1 } else { usize::MAX };
            let most = sequence.most_to_take_away().min(known);
            if let Some(count) = usize::try_from(*count).ok().filter(|count| *count <= most) {
                self.slots.shorten(&[*slot], &[count], None)?;
            }
        }
        Ok(())
    }

    /// Copies what came out of the last step or verification that was enqueued; nothing has come out of a new pool.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if a direct call came behind, whose outputs the caller has; and if `out` collects kept sets and
    ///   [`PoolConfig::kept`](crate::PoolConfig::kept) is not set.
    /// - [`Error::Unavailable`] if the system refuses the memory of the outputs.
    pub fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        let InOrder { outputs, was_direct, .. } = &self.in_order;
        if *was_direct {
            let reason = "its outputs are those that it was given";
            return Err(Error::Conflict { parameter: "fetch", other: "the direct call before", reason });
        }
        if out.collects_kept() && !outputs.collects_kept() {
            let reason = "the pool was made to keep none; set PoolConfig::kept";
            return Err(Error::Conflict { parameter: "Outputs::with_kept", other: "the pool", reason });
        }
        out.copy_from(outputs)
    }
}

/// Checks the masks of a step or a verification, and whether drafts were assigned to it.
fn check_work(masks: Masks<'_>, batch: &Batch<'_>, verifies: bool) -> Result<()> {
    match masks {
        Masks::None => {}
        Masks::Host(_) => return Err(masks_of_host()),
        #[cfg(feature = "cuda")]
        Masks::Device(_) => return Err(crate::matrix::on_a_device("masks")),
    }
    if batch.counts.is_empty() != verifies || batch.slots.is_empty() {
        Ok(())
    } else {
        Err(no_draft_counts())
    }
}
