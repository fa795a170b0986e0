//! How far the requests of the rows may still be moved on: counted where steps are enqueued, so that no history is
//! ever full when a kernel appends to it.
//!
//! A step appends at most one id to each history, so the steps enqueued bound the lengths from above and nothing needs
//! to be read back.

use std::sync::atomic::{AtomicU64, Ordering};

use gumball_spec::{Error, Result, memory};

use crate::abi::Slot;
use crate::runtime::SLOTS;

/// What slots have room for.
#[derive(Debug)]
pub(crate) struct HistoryBudget {
    /// By slot; [`UNBOUNDED`] where no history is kept.
    rooms: Vec<u64>,
    /// The slots of the rows.
    rows: Vec<Slot>,
    /// How many steps the rows had room for when they were assigned, and have now.
    granted: u64,
    left: AtomicU64,
}

/// More steps than anyone enqueues.
pub(crate) const UNBOUNDED: u64 = u64::MAX;

impl HistoryBudget {
    /// Makes a ledger of empty slots.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the system refuses the memory.
    pub fn new(slots: usize) -> Result<Self> {
        let left = AtomicU64::new(UNBOUNDED);
        let rooms = memory::filled(SLOTS, UNBOUNDED, slots)?;
        Ok(Self { rooms, rows: Vec::new(), granted: UNBOUNDED, left })
    }

    /// Takes note of what a slot has room for from now on.
    pub fn set(&mut self, slot: usize, room: u64) {
        self.settle();
        self.rooms[slot] = room;
        self.grant();
    }

    /// Takes note of the slots that the next steps move on; -1 is padding.
    pub fn assign(&mut self, rows: &[Slot]) {
        self.settle();
        self.rows.clear();
        self.rows.extend(rows);
        self.grant();
    }

    /// Takes note that a row became padding.
    pub fn retire(&mut self, row: usize) {
        self.settle();
        if let Some(slot) = self.rows.get_mut(row) {
            *slot = -1;
        }
        self.grant();
    }

    /// Returns the slots of the rows.
    pub fn rows(&self) -> &[Slot] {
        &self.rows
    }

    /// Returns how many steps the rows have room for.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Counts steps that are about to be enqueued.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if a history has no room for them; nothing is counted.
    pub fn spend(&self, steps: u64) -> Result<()> {
        let spend = |left: u64| left.checked_sub(steps);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend) {
            Ok(_) => Ok(()),
            Err(left) => {
                let allowed = format!("at least {steps} more ids of history in every row's request");
                Err(Error::out_of_range("room", left, allowed))
            }
        }
    }

    /// Takes the steps enqueued so far off the rooms of the rows.
    fn settle(&mut self) {
        let spent = self.granted - self.left.load(Ordering::Relaxed);
        for slot in &self.rows {
            if let Some(room) = usize::try_from(*slot).ok().map(|slot| &mut self.rooms[slot]) {
                *room = if *room == UNBOUNDED { UNBOUNDED } else { room.saturating_sub(spent) };
            }
        }
    }

    fn grant(&mut self) {
        let rooms =
            self.rows.iter().filter_map(|slot| usize::try_from(*slot).ok()).map(|slot| self.rooms[slot]);
        self.granted = rooms.min().unwrap_or(UNBOUNDED);
        self.left.store(self.granted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_count_for_the_rows_they_were_enqueued_for() {
        let mut history_budget = HistoryBudget::new(4).unwrap();
        history_budget.set(0, 3);
        history_budget.set(2, 5);
        history_budget.assign(&[0, -1, 1]);
        history_budget.spend(2).unwrap();
        let message = history_budget.spend(2).unwrap_err().to_string();
        assert_eq!(message, "room is 1, but must be at least 2 more ids of history in every row's request");
        history_budget.assign(&[2, 0]);
        history_budget.spend(1).unwrap();
        assert!(history_budget.spend(1).is_err());
        history_budget.assign(&[2, 1]);
        history_budget.spend(4).unwrap();
        assert!(history_budget.spend(1).is_err());
        history_budget.set(2, 1);
        history_budget.spend(1).unwrap();
        history_budget.assign(&[1, 3, -1]);
        history_budget.spend(1_000_000).unwrap();
    }
}
