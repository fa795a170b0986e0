//! A step: one token for each row of a batch.
//!
//! First everything is checked, then all rows are computed from state that nobody changes, then the tokens
//! are appended. So an error, or a panic in a hook, leaves every sequence as it was.

use gumball_spec::request::check_hook;
use gumball_spec::{Error, Kind, NONE, Result};

use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::outputs::Outputs;
use crate::pool::{PADDING, Pool, Slot, check_vocab};
use crate::route::Stages;
use crate::rows::RowsMut;
use crate::workers::blocks_of;
use gumball_spec::layout::Layout;

impl Pool {
    /// Chooses the next token of each row, and appends it to the sequence in the row's slot.
    ///
    /// A drawn or forced token advances its sequence by one; a row that yields [`NONE`] leaves it as it was.
    /// Rows are independent: what is in one changes nothing in another. On the caller's thread it allocates
    /// nothing once `out`, the stages and the histories have grown; over threads, rayon's queues may.
    ///
    /// # Shapes and units
    /// `logits`: R rows of the pool's vocabulary, logits or [probabilities](Logits::probabilities); a sequence may change
    /// from one to the other from step to step. `slots`: R slots, [`PADDING`] for a row without a sequence,
    /// no other twice. `options`: R of each kind that is given. `out`: R rows of the pool's widths.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so.
    /// - [`Error::OutOfRange`] for a vacant slot, a slot that stands there twice, or a forced token outside
    ///   the vocabulary.
    /// - For rows of probabilities those of [`SamplingParams::validate_for`](crate::SamplingParams::validate_for), and
    ///   [`Error::Conflict`] if a row has a hook.
    /// - [`Error::Unavailable`] if the system refuses the memory of the outputs.
    ///
    /// No sequence was changed then. `out` is untouched by these; after an error of a route of the
    /// caller's own, what it holds is unspecified.
    pub fn step(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.check_step(logits, slots, options)?;
        self.compute(logits, slots, options, out)?;
        self.advance(slots, out);
        Ok(())
    }

    /// Computes what a step gives that was checked, and changes no sequence.
    pub(crate) fn compute(
        &self,
        logits: Logits<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let rows = out.reshape(Layout { rows: slots.len(), widths: self.widths })?;
        let sequences = &self.slots;
        let work = |rows: &mut RowsMut<'_>, stages: &mut dyn Stages| {
            for row in rows.range() {
                if slots[row] == PADDING {
                    rows.write_padding(row);
                    continue;
                }
                let sequence = sequences[slots[row] as usize].as_ref().expect("checked: admitted");
                let task = sequence.task(logits.kind(), options.masks.row(row), options.forced(row));
                rows.carry(logits.row(row), row, &task, options.hook(row), stages)?;
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
                let sequence = self.slots[*slot as usize].as_mut().expect("checked: admitted");
                sequence.push(token as u32, mu);
            }
        }
    }

    pub(crate) fn check_step(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
    ) -> Result<()> {
        check_vocab(self.vocab, logits.vocab())?;
        if slots.len() != logits.rows() {
            return Err(Error::length("slots", slots.len(), format!("one per row, {}", logits.rows())));
        }
        self.check_rows(logits.kind(), slots, options)
    }

    /// Checks the rows of a step as far as their logits do not matter.
    pub(crate) fn check_rows(
        &mut self,
        kind: Kind,
        slots: &[Slot],
        options: &BatchOptions<'_>,
    ) -> Result<()> {
        options.check(slots.len(), self.vocab)?;
        self.check_slots(slots)?;
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            self.check_row(*slot, kind, options.hook(row).is_some())?;
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
