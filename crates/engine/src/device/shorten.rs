//! What was taken away of sequences on the device, where nothing waits.
//!
//! Only the device knows how many tokens go. The host's copy of a sequence then catches up by the length that the device has, and by
//! its history where it keeps one.

use gumball_spec::{Error, Result};

use super::pool::DevicePool;

impl DevicePool {
    /// Returns the address, in the device's memory, of how many tokens the last [`Work::Shorten`](crate::Work::Shorten) took away: a u32 for each
    /// assigned slot. It never changes.
    #[must_use]
    pub fn taken_address(&self) -> u64 {
        self.workspace.results().taken_address()
    }

    /// Waits for what was enqueued before, and reads how many tokens the last [`Work::Shorten`](crate::Work::Shorten) took away of each sequence.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not a place for each assigned slot.
    /// - [`Error::Unavailable`] if the device fails, or failed before.
    pub fn read_taken(&self, taken: &mut [u32]) -> Result<()> {
        let requests = self.assigned.slots.len();
        if taken.len() != requests {
            return Err(Error::length("taken", taken.len(), format!("one per slot, {requests}")));
        }
        self.workspace.results().read_taken(taken)
    }
}
