//! The requests of an assigned batch in their order, and the lists of the batch except its masks. `assign`
//! makes one such value; the pool's place, its last step and the digests over ranks share it.

use std::ops::Range;
use std::sync::Arc;

use gumball_spec::Result;
use gumball_spec::request::no_draft_counts;

use crate::batch::{Batch, Checked};
use crate::drafts::Drafted;
use crate::slot::{PADDING, Slot};
use crate::verify_mode::VerifyMode;

/// A batch of steps or of verifications, without masks and hooks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assignment {
    /// The slot of each request; padding once its sequence has ended.
    pub slots: Vec<Slot>,
    pub verifies: bool,
    /// How many drafts each request has; none of a step.
    counts: Vec<u32>,
    mode: VerifyMode,
    forced: Vec<Option<u32>>,
    row_indices: Vec<u32>,
    /// The requests in the order in which a device has them; empty if that is the batch's.
    order: Vec<u32>,
}

impl Assignment {
    pub fn of(batch: &Checked<'_>, verifies: bool, order: Vec<u32>) -> Arc<Self> {
        let mut assignment = Self { order, ..Self::default() };
        assignment.set(batch, verifies);
        Arc::new(assignment)
    }

    /// Copies a batch into the memory that is there.
    pub fn set(&mut self, batch: &Checked<'_>, verifies: bool) {
        self.verifies = verifies;
        batch.slots.clone_into(&mut self.slots);
        batch.counts.clone_into(&mut self.counts);
        self.mode = batch.mode;
        batch.forced.clone_into(&mut self.forced);
        batch.row_indices.clone_into(&mut self.row_indices);
    }

    /// Returns whether assigning this batch in this order would make an equal value.
    pub fn is_of(&self, batch: &Checked<'_>, verifies: bool, order: &[u32]) -> bool {
        let of = self.batch();
        self.verifies == verifies
            && self.order == order
            && (of.slots, of.counts, of.mode) == (batch.slots, batch.counts, batch.mode)
            && (of.forced, of.row_indices) == (batch.forced, batch.row_indices)
    }

    /// Returns the batch.
    pub fn batch(&self) -> Batch<'_> {
        let Self { slots, counts, mode, forced, row_indices, .. } = self;
        Batch { slots, counts, mode: *mode, forced, row_indices, ..Batch::default() }
    }

    /// Returns how many drafts each request has; `None` for a step.
    pub fn counts(&self) -> Option<&[u32]> {
        self.verifies.then_some(&self.counts)
    }

    /// Returns the drafts of the requests.
    ///
    /// # Errors
    /// - [`Error::Conflict`](crate::Error::Conflict) if there are requests without counts of them.
    pub fn drafted(&self) -> Result<Drafted<'_>> {
        match (self.verifies, &self.slots[..]) {
            (true, _) => Ok(Drafted::of(&self.batch())),
            (false, []) => Ok(Drafted::default()),
            (false, _) => Err(no_draft_counts()),
        }
    }

    /// Returns the slot of each request, and its rows.
    pub fn places(&self) -> impl Iterator<Item = (Slot, Range<usize>)> {
        let mut end = 0;
        self.slots.iter().enumerate().map(move |(request, slot)| {
            let start = end;
            end += self.counts.get(request).map_or(1, |count| *count as usize + 1);
            (*slot, start..end)
        })
    }

    pub fn rows(&self) -> usize {
        self.places().last().map_or(0, |(_, rows)| rows.end)
    }

    /// Turns the rows of a slot into padding when its sequence ends.
    pub fn forget(&mut self, slot: Slot) {
        self.slots.iter_mut().filter(|assigned| **assigned == slot).for_each(|assigned| *assigned = PADDING);
    }

    /// Turns the rows of a slot into padding for one of the owners of a shared assignment, which gets a copy
    /// of its own if others hold it.
    pub fn forget_in(shared: &mut Arc<Self>, slot: Slot) {
        if shared.slots.contains(&slot) {
            Arc::make_mut(shared).forget(slot);
        }
    }
}
