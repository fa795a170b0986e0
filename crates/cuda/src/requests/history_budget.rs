//! How many more steps the assigned rows can take. The host counts steps when it enqueues them, so no kernel
//! ever appends to a full history.
//!
//! A step appends at most one id to each history, or with drafts as many as the request with most can emit.
//! The number of enqueued steps therefore bounds every length from above, and the host reads nothing back.
//! Where it has read a length anyway, the bound starts from that.

use std::sync::atomic::{AtomicU64, Ordering};

use gumball_spec::{Error, Result, memory};

use crate::abi::Slot;
use crate::memory::buffer::SLOTS;

/// How many more ids each slot's history can take, and how many steps remain for the assigned rows.
#[derive(Debug)]
pub(crate) struct HistoryBudget {
    /// Ids that each slot's history can still take, by slot; [`UNBOUNDED`] if the slot keeps no history.
    growths: Vec<u64>,
    /// The slot of each row; -1 is padding.
    rows: Vec<Slot>,
    /// The number of steps the rows could take when they were assigned, and the number that remains.
    granted: u64,
    left: AtomicU64,
}

/// No limit: more steps than any program enqueues.
pub(crate) const UNBOUNDED: u64 = u64::MAX;

impl HistoryBudget {
    /// Makes the budget of slots that are all empty.
    pub fn new(slots: usize) -> Result<Self> {
        let left = AtomicU64::new(UNBOUNDED);
        let growths = memory::filled(SLOTS, UNBOUNDED, slots)?;
        Ok(Self { growths, rows: Vec::new(), granted: UNBOUNDED, left })
    }

    /// Records how many more ids the histories of some slots can take from now on.
    pub fn set(&mut self, growths: impl IntoIterator<Item = (usize, u64)>) {
        self.subtract_spent();
        growths.into_iter().for_each(|(slot, growth)| self.growths[slot] = growth);
        self.grant();
    }

    /// Records the slots that the next steps advance; -1 is padding.
    pub fn assign(&mut self, rows: &[Slot]) {
        self.subtract_spent();
        self.rows.clear();
        self.rows.extend(rows);
        self.grant();
    }

    /// Records that the rows of a slot became padding.
    pub fn retire(&mut self, slot: Slot) {
        self.subtract_spent();
        self.rows.iter_mut().filter(|row| **row == slot).for_each(|row| *row = -1);
        self.grant();
    }

    /// Returns how many more ids a slot's history can take.
    pub fn left_of(&self, slot: usize) -> u64 {
        let growth = self.growths[slot];
        let is_assigned = self.rows.iter().any(|row| usize::try_from(*row) == Ok(slot));
        let spent = if is_assigned { self.granted - self.left() } else { 0 };
        if growth == UNBOUNDED { UNBOUNDED } else { growth.saturating_sub(spent) }
    }

    /// Returns how many more steps every row's history can take.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Subtracts steps that are about to be enqueued.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if a history cannot take one id per step; nothing is subtracted then.
    pub fn spend(&self, steps: u64) -> Result<()> {
        let spend = |left: u64| left.checked_sub(steps);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend) {
            Ok(_) => Ok(()),
            Err(left) => {
                let allowed = format!("at least {steps} more ids of history in every row's request");
                Err(Error::out_of_range("history_growth", left, allowed))
            }
        }
    }

    /// Subtracts the steps enqueued since the last grant from the capacities of the rows' slots.
    fn subtract_spent(&mut self) {
        let spent = self.granted - self.left.load(Ordering::Relaxed);
        for slot in &self.rows {
            if let Some(growth) = usize::try_from(*slot).ok().map(|slot| &mut self.growths[slot]) {
                *growth = if *growth == UNBOUNDED { UNBOUNDED } else { growth.saturating_sub(spent) };
            }
        }
    }

    fn grant(&mut self) {
        let growths =
            self.rows.iter().filter_map(|slot| usize::try_from(*slot).ok()).map(|slot| self.growths[slot]);
        self.granted = growths.min().unwrap_or(UNBOUNDED);
        self.left.store(self.granted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_count_for_the_rows_they_were_enqueued_for() {
        let mut history_budget = HistoryBudget::new(4).unwrap();
        history_budget.set([(0, 3), (2, 5)]);
        history_budget.assign(&[0, -1, 1]);
        history_budget.spend(2).unwrap();
        let message = history_budget.spend(2).unwrap_err().to_string();
        let expected =
            "history_growth is 1, but must be at least 2 more ids of history in every row's request";
        assert_eq!(message, expected);
        history_budget.assign(&[2, 0]);
        history_budget.spend(1).unwrap();
        assert!(history_budget.spend(1).is_err());
        history_budget.assign(&[2, 1]);
        history_budget.spend(4).unwrap();
        assert!(history_budget.spend(1).is_err());
        history_budget.set([(2, 1)]);
        history_budget.spend(1).unwrap();
        history_budget.assign(&[1, 3, -1]);
        history_budget.spend(1_000_000).unwrap();
    }
}
