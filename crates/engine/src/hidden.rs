//! A step from hidden states: a head computes the logits, and the stages go on as in any step.

use gumball_cpu::Task;
use gumball_head::{Reading, WholeRow};
use gumball_spec::{HostMatrix, Kind, Result};

use crate::batch::{Batch, Checked};
use crate::head_counts::HeadCounts;
use crate::hidden_rows::RowTasks;
use crate::host::Host;
use crate::lm_head::Head;
use crate::outputs::Outputs;
use crate::pool::Pool;
use crate::route::Route;
use crate::slot::{PADDING, Slot};
use crate::slots::Slots;

impl Host {
    /// Computes what a step from hidden states gives that was checked, and changes no sequence.
    pub fn compute_hidden(
        &mut self,
        slots: &Slots,
        head: Head<'_>,
        states: HostMatrix<'_>,
        batch: &Checked<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.with_head_buffers(|host, buffers| {
            let tasks = StepTasks { slots, batch, collects_kept: out.collects_kept() };
            host.fill_rows(head, states, &tasks, buffers)?;
            host.compute(slots, buffers.rows(host.vocab)?, batch, out)
        })?;
        out.mark_approximate(head.is_approximate());
        Ok(())
    }
}

impl Pool {
    /// Returns why a certified head must compute every logit of a request's rows, for any hidden state that
    /// they have, or `None` if there is no such reason. It may do so all the same: for a hidden state that is
    /// not finite, where too many tokens could be chosen, or in a step of many rows.
    ///
    /// `hooked`: whether the row has a hook.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) if the slot is vacant.
    pub fn needs_whole_row(&self, slot: Slot, hooked: bool) -> Result<Option<WholeRow>> {
        let prepared = self.slots.sequence(slot)?.prepared();
        if ![Route::Race, Route::Oracle].contains(&self.route) {
            return Ok(Some(WholeRow::Route));
        }
        Ok(prepared.reading_with(hooked, self.kept).whole())
    }

    /// Returns what heads of the host have done for this pool since it was made: in steps, verifications,
    /// drafts and scores from hidden states. A head of a device [counts](crate::DeviceHead::counts) for
    /// itself.
    #[must_use]
    pub fn head_counts(&self) -> HeadCounts {
        self.backend.host().map(|host| host.head.counts).unwrap_or_default()
    }
}

/// The tasks of the rows of a step.
struct StepTasks<'a> {
    slots: &'a Slots,
    batch: &'a Batch<'a>,
    collects_kept: bool,
}

impl RowTasks for StepTasks<'_> {
    fn reading(&self, row: usize) -> Option<Reading> {
        let slot = Some(self.batch.slots[row]).filter(|slot| *slot != PADDING)?;
        let hooked = self.batch.hook(row).is_some();
        Some(self.slots.admitted(slot).prepared().reading_with(hooked, self.collects_kept))
    }

    fn batch(&self) -> Option<&Batch<'_>> {
        Some(self.batch)
    }

    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R {
        let sequence = self.slots.admitted(self.batch.slots[row]);
        work(&sequence.task(Kind::Logits, self.batch.masks.row(row), self.batch.forced(row)))
    }
}
