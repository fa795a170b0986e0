//! A step on the host: one token for each row of a batch.
//!
//! First everything is checked, then all rows are computed from state that stays as it is, then the tokens
//! are appended. So an error, or a panic in a hook, leaves every sequence as it was.

use gumball_spec::layout::Layout;
use gumball_spec::{Kind, MOST_LISTED, Reading, Result};

use crate::batch::{Batch, Checked};
use crate::host::Host;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::route::Route;
use crate::rows::{Rows, Source};
use crate::sink::RowsMut;
use crate::slot::PADDING;
use crate::slots::Slots;
use crate::stages::Stages;
use crate::workers::blocks_of;

/// About how long it takes until other threads have taken up rows.
const AWAKE_NS: usize = 30_000;
/// About how long a race and a list take besides their ids, and how many ids they read in a nanosecond.
const RACE_NS: usize = 1_600;
const RACE_IDS_A_NS: usize = 3;
const LIST_NS: usize = 4_500;
const LIST_IDS_A_NS: usize = 25;

impl Host {
    /// Checks a step, and takes it if there are outputs for it.
    pub fn step(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        out: Option<&mut Outputs>,
    ) -> Result<()> {
        let source = rows.read(batch, self.vocab)?;
        rows.check_slots(batch)?;
        let batch = &self.check_rows(slots, rows.kind(), batch)?;
        let Some(out) = out else { return Ok(()) };
        match source {
            Source::Given(logits) => self.compute(slots, logits, batch, out)?,
            Source::Hidden(head, states) => self.compute_hidden(slots, head, states, batch, out)?,
        }
        slots.advance(batch.slots, out);
        Ok(())
    }

    /// Computes what a step gives, and changes no sequence.
    pub fn compute(
        &self,
        sequences: &Slots,
        logits: Logits<'_>,
        batch: &Checked<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let slots = batch.slots;
        let rows = out.reshape(Layout { rows: slots.len(), widths: self.widths })?;
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
        let grain = if self.is_short(sequences, batch) { slots.len() } else { 1 };
        self.workers.over(rows, &blocks_of(grain), &work)
    }

    /// Returns whether a step is done before other threads would have woken up: few rows, each a race, an
    /// argmax or a list.
    fn is_short(&self, sequences: &Slots, batch: &Checked<'_>) -> bool {
        let mut left_ns = if *self.workers.route() == Route::Race { AWAKE_NS } else { 0 };
        batch.slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING).all(|(row, slot)| {
            let prepared = sequences.admitted(*slot).prepared();
            let row_ns = match prepared.reading_with(batch.hook(row).is_some(), false) {
                _ if prepared.is_edited() => AWAKE_NS,
                Reading::First | Reading::Race(_) => RACE_NS + self.vocab / RACE_IDS_A_NS,
                Reading::Top(k) if k <= MOST_LISTED => LIST_NS + self.vocab / LIST_IDS_A_NS,
                _ => AWAKE_NS,
            };
            left_ns = left_ns.saturating_sub(row_ns);
            left_ns > 0
        })
    }

    /// Checks the rows of a step as far as their logits do not matter.
    pub fn check_rows<'a>(&self, slots: &mut Slots, kind: Kind, batch: &Batch<'a>) -> Result<Checked<'a>> {
        let batch = batch.check_step("step", self.vocab)?;
        slots.check(batch.slots)?;
        for (row, slot) in batch.slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            slots.check_row(*slot, kind, batch.hook(row).is_some())?;
        }
        Ok(batch)
    }
}
