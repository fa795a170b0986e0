//! A step from hidden states: a head computes the logits, and the stages go on as in any step.

use gumball_cpu::Task;
use gumball_head::{Certified, HiddenStates, WholeRow};
use gumball_spec::{Error, Kind, Result};

use crate::hidden_rows::{Needs, RowTasks};
use crate::lm_head::{Head, HeadCounts};
use crate::options::BatchOptions;
use crate::outputs::Outputs;
use crate::pool::{PADDING, Pool, Slot};
use crate::route::{ORACLE, RACE};
use crate::sequence::Sequence;

impl Pool {
    /// Chooses the next token of each hidden state, and appends it to the sequence in the row's slot.
    ///
    /// What comes out is, bit for bit, what [`Pool::step`] makes of the logits that rules H1 and H2 give, with the exact head and with a certified one; with a clustered
    /// head what it makes of rows that have the logits of probed ids only (H8), which [`Outputs::is_approximate`] says. On
    /// the caller's thread it allocates nothing once `out`, the stages, the histories and the memory for logits have grown; over
    /// threads, rayon's queues may.
    ///
    /// # Shapes and units
    /// `head`: of the pool's vocabulary. `states`: R hidden states of the head's width. `slots`: R slots, [`PADDING`] for a row without a
    /// sequence, whose hidden state is not read, no other twice. `options`: R of each kind that is given. `out`: R rows of the
    /// pool's widths.
    ///
    /// # Errors
    /// - Those of [`Pool::step`], under the same conditions.
    /// - [`Error::Length`] if the head's vocabulary is not the pool's, or hidden states have another width than the head.
    /// - [`Error::Unavailable`] if the system refuses the memory of logits and bounds, 4 to 12 bytes for each id of each row.
    pub fn step_hidden<'h>(
        &mut self,
        head: impl Into<Head<'h>>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let head = head.into();
        self.check_head(head, states)?;
        check_slots(slots, states)?;
        self.check_rows(Kind::Logits, slots, options)?;
        self.with_head_buffers(|pool, buffers| {
            let tasks = StepTasks { pool, slots, options, keep_ids: out.collects_kept() };
            pool.fill_rows(head, states, &tasks, buffers)?;
            pool.compute(buffers.rows(pool.vocab)?, slots, options, out)
        })?;
        out.mark_approximate(head.is_approximate());
        self.advance(slots, out);
        Ok(())
    }

    /// Returns why a certified head must compute every logit of a request's rows, whatever hidden state they have, or `None` if there is no such
    /// reason. It may do so all the same: for a hidden state that is not finite, where too many tokens could be chosen, or in a step of many rows.
    ///
    /// `hooked`: whether the row has a hook. `with_kept`: whether the outputs collect kept sets.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    pub fn needs_whole_row(&self, slot: Slot, hooked: bool, with_kept: bool) -> Result<Option<WholeRow>> {
        let task = self.sequence(slot)?.task(Kind::Logits, None, None);
        if ![RACE, ORACLE].contains(self.route()) {
            return Ok(Some(WholeRow::Route));
        }
        Ok(Certified::decisive(&task, hooked, with_kept).err())
    }

    /// Returns what heads have done for this pool since it was made: in steps, verifications, drafts and scores from hidden states.
    #[must_use]
    pub fn head_counts(&self) -> HeadCounts {
        self.head.counts
    }

    /// Returns the sequence in a slot that was checked.
    pub(crate) fn admitted(&self, slot: Slot) -> &Sequence {
        self.slots[slot as usize].as_ref().expect("checked: admitted")
    }
}

/// Checks that there is a slot for each hidden state.
pub(crate) fn check_slots(slots: &[Slot], states: HiddenStates<'_>) -> Result<()> {
    if slots.len() == states.rows() {
        return Ok(());
    }
    Err(Error::length("slots", slots.len(), format!("one per hidden state, {}", states.rows())))
}

/// What the rows of a step are for.
struct StepTasks<'a> {
    pool: &'a Pool,
    slots: &'a [Slot],
    options: &'a BatchOptions<'a>,
    keep_ids: bool,
}

impl RowTasks for StepTasks<'_> {
    fn needs(&self, row: usize) -> Needs {
        if self.slots[row] == PADDING {
            return Needs::Nothing;
        }
        let hooked = self.options.hook(row).is_some();
        self.with_task(row, |task| Certified::decisive(task, hooked, self.keep_ids)).into()
    }

    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R {
        let sequence = self.pool.admitted(self.slots[row]);
        work(&sequence.task(Kind::Logits, self.options.masks.row(row), self.options.forced(row)))
    }
}
