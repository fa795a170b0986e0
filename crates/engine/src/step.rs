//! A step: one token for each row of a batch.
//!
//! First everything is checked, then all rows are computed from state that nobody changes, then the tokens
//! are appended. So an error, or a panic in a hook, leaves every sequence as it was.

use gumball_spec::layout::Layout;
use gumball_spec::request::check_hook;
use gumball_spec::{Kind, NONE, Result};

use crate::batch::Batch;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::pool::Pool;
use crate::route::Stages;
use crate::rows::{Rows, Source};
use crate::sink::RowsMut;
use crate::slot::{PADDING, Slot};
use crate::workers::blocks_of;

impl Pool {
    /// Chooses the next token of each row, and appends it to the sequence in the row's slot.
    ///
    /// A drawn or forced token advances its sequence by one; a row that yields [`NONE`] leaves it as it was.
    /// Rows are independent: what is in one changes nothing in another. On the caller's thread it allocates
    /// nothing once `out`, the stages and the histories have grown; over threads, rayon's queues may.
    ///
    /// From hidden states a head computes the logits: what comes out is, bit for bit, what rows of the logits give that rules H1 and H2
    /// give, with the exact head and with a certified one; with a clustered head what rows give that have the logits of probed ids only
    /// (H8), which [`Outputs::is_approximate`] says.
    ///
    /// # Shapes and units
    /// `rows`: R rows of the pool's vocabulary, or hidden states of a head's width whose vocabulary that is; a sequence may change from one
    /// kind to the other from step to step. `batch.slots`: R slots, [`PADDING`] for a row without a sequence, which is not read, no other
    /// twice. The other lists of `batch`: each is empty or has R elements; with `row_indices` the matrix may have any number of rows.
    /// `out`: R rows of the pool's widths.
    ///
    /// # Errors
    /// - [`Error::Length`](crate::Error::Length) if a shape is not so.
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) for a vacant slot, a slot that stands there twice, a row index beyond the matrix, a forced token outside
    ///   the vocabulary, or for what lies in the memory of a device.
    /// - For rows of probabilities those of [`SamplingParams::validate_for`](crate::SamplingParams::validate_for), and
    ///   [`Error::Conflict`](crate::Error::Conflict) if a row has a hook.
    /// - [`Error::Conflict`](crate::Error::Conflict) for `counts`, a mode or a plan in `batch`, and for row indices of hidden states.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the system refuses the memory of the outputs; or for hidden states that of logits and bounds, 4 to 12 bytes
    ///   for each id of each row; or if the head lies on a device.
    ///
    /// No sequence was changed then. `out` is untouched by these; after an error of a route of the
    /// caller's own, what it holds is unspecified.
    pub fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        batch.refuse_plan()?;
        let source = self.check_step(rows, batch)?;
        self.step_checked(source, batch, out)?;
        self.in_order.note_direct();
        Ok(())
    }

    /// Checks a step, and returns its rows.
    pub(crate) fn check_step<'a>(&mut self, rows: Rows<'a>, batch: &Batch<'a>) -> Result<Source<'a>> {
        let source = rows.read(batch, self.vocab)?;
        rows.check_slots(batch)?;
        self.check_rows(rows.kind(), batch)?;
        Ok(source)
    }

    /// Takes a step that was checked.
    pub(crate) fn step_checked(
        &mut self,
        source: Source<'_>,
        batch: &Batch<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        match source {
            Source::Given(logits) => self.compute(logits, batch, out)?,
            Source::Hidden(head, states) => self.compute_hidden(head, states, batch, out)?,
        }
        self.advance(batch.slots, out);
        Ok(())
    }

    /// Computes what a step gives that was checked, and changes no sequence.
    pub(crate) fn compute(&self, logits: Logits<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        let slots = batch.slots;
        let rows = out.reshape(Layout { rows: slots.len(), widths: self.widths })?;
        let sequences = &self.slots;
        let work = |rows: &mut RowsMut<'_>, stages: &mut dyn Stages| {
            for row in rows.range() {
                if slots[row] == PADDING {
                    rows.write_padding(row);
                    continue;
                }
                let sequence = sequences.admitted(slots[row]);
                let task = sequence.task(logits.kind(), batch.masks.row(row), batch.forced(row));
                rows.carry(logits.row(row), row, &task, batch.hook(row), stages)?;
            }
            Ok(())
        };
        self.workers.over(rows, &blocks_of(1), &work)
    }

    /// Appends the tokens of a step to the sequences.
    pub(crate) fn advance(&mut self, slots: &[Slot], out: &Outputs) {
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            let (token, mu) = (out.tokens()[row], out.mirostat_mu()[row]);
            if token != NONE {
                self.slots.admitted_mut(*slot).push(token as u32, mu);
            }
        }
    }

    /// Checks the rows of a step as far as their logits do not matter.
    pub(crate) fn check_rows(&mut self, kind: Kind, batch: &Batch<'_>) -> Result<()> {
        batch.refuse_drafts("step")?;
        batch.check(batch.slots.len(), self.vocab)?;
        self.slots.check(batch.slots)?;
        for (row, slot) in batch.slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            self.check_row(*slot, kind, batch.hook(row).is_some())?;
        }
        Ok(())
    }

    /// Checks that a request may have a row of a kind, with or without a hook.
    pub(crate) fn check_row(&self, slot: Slot, kind: Kind, hooked: bool) -> Result<()> {
        if kind == Kind::Logits {
            return Ok(());
        }
        self.sequence(slot)?.params().check_kind(kind)?;
        check_hook(kind, hooked)
    }
}
