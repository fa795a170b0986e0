//! The assignment of a pool's rows that lies on the device: the host copies one up only if it differs.

use gumball_cuda::{DraftCounts, DraftRule};
use gumball_spec::request::no_draft_counts;
use gumball_spec::{NONE, Result};

use crate::batch::Batch;
use crate::drafts::Drafted;
use crate::masks::Masks;
use crate::slot::{PADDING, Slot};

/// The assignment that lies on the device: slots, forced tokens and row indices.
#[derive(Clone, Debug, Default)]
pub(super) struct Assigned {
    /// Whether the device's lists equal these. False after a failed copy, which leaves the device's lists
    /// unknown.
    pub known: bool,
    /// The slot of each row, or of each request if there are drafts.
    pub slots: Vec<Slot>,
    /// The drafts of the requests; `None` for a step.
    pub drafts: Option<AssignedDrafts>,
    pub forced: Vec<i32>,
    pub lines: Vec<u32>,
    pub masks: bool,
    /// In a pool of the route `probabilities` the temperature of the softmax of each slot's rows, `None` for
    /// padding.
    pub temperatures: Vec<Option<f32>>,
}

/// How many drafts each request has, the rule that accepts them, and the order in which they are handed over.
#[derive(Clone, Debug)]
pub(super) struct AssignedDrafts {
    counts: Vec<u32>,
    rule: DraftRule,
    batch_requests: Vec<u32>,
}

impl AssignedDrafts {
    pub fn of(drafts: DraftCounts<'_>) -> Self {
        let DraftCounts { counts, rule, batch_requests } = drafts;
        Self { counts: counts.to_vec(), rule, batch_requests: batch_requests.to_vec() }
    }

    fn counts(&self) -> DraftCounts<'_> {
        DraftCounts { counts: &self.counts, rule: self.rule, batch_requests: &self.batch_requests }
    }
}

impl Assigned {
    /// Returns the drafts of the requests.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if there are requests without counts of them.
    pub fn drafted(&self) -> Result<Drafted<'_>> {
        let requests = self.slots.len();
        match &self.drafts {
            Some(AssignedDrafts { counts, rule, .. }) => {
                Ok(Drafted { requests, counts, judgement: rule.judgement() })
            }
            None if requests == 0 => Ok(Drafted::default()),
            None => Err(no_draft_counts()),
        }
    }

    /// Returns how many drafts each request has; `None` for a step.
    pub fn counts(&self) -> Option<&Vec<u32>> {
        self.drafts.as_ref().map(|drafts| &drafts.counts)
    }

    /// Turns the rows of a slot into padding, by the slot's index.
    pub fn retire(&mut self, index: usize) {
        self.slots[index] = PADDING;
        self.temperatures.get_mut(index).into_iter().for_each(|temperature| *temperature = None);
    }

    /// Returns whether the device has these lists already. Masks are not compared: they are copied up each
    /// time.
    pub fn is(&self, batch: &Batch<'_>, drafts: Option<DraftCounts<'_>>) -> bool {
        let forced = |(known, given): (&i32, &Option<u32>)| *known == code(*given);
        let known = self.drafts.as_ref().map(AssignedDrafts::counts);
        self.known
            && self.slots == batch.slots
            && known == drafts
            && self.lines == batch.row_indices
            && !self.masks
            && matches!(batch.masks, Masks::None)
            && self.forced.len() == batch.forced.len()
            && self.forced.iter().zip(batch.forced).all(forced)
    }
}

/// Encodes a forced token for the device: its id, or `NONE`.
pub(super) fn code(forced: Option<u32>) -> i32 {
    forced.map_or(NONE, |id| id as i32)
}
