//! Taking emitted tokens away again, on the devices of all ranks alike.

use gumball_cuda::DeviceSlice;
use gumball_spec::{Error, Result};

use super::DeviceDistPool;
use crate::slot::Slot;

impl DeviceDistPool {
    /// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, as [`DevicePool::shorten`](crate::DevicePool::shorten) does. All
    /// ranks make the call.
    ///
    /// # Errors
    /// Those of [`DevicePool::shorten`](crate::DevicePool::shorten) and [`DeviceDistPool::fetch`].
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.check_broken()?;
        self.observe_last_step()?;
        self.pool.shorten(slots, counts)?;
        slots.iter().zip(counts).for_each(|(slot, count)| self.requests.note(*slot, !(*count as u64) >> 1));
        Ok(())
    }

    /// Takes away the last output tokens of the sequences in the slots that were assigned last, as many of each as a number in this rank's device's memory says, and
    /// returns before the device has finished: as [`DevicePool::enqueue_shorten`](crate::DevicePool::enqueue_shorten) does. Nothing is sent: all ranks
    /// make the call, with the same numbers.
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_shorten`](crate::DevicePool::enqueue_shorten).
    /// - [`Error::Conflict`] if the requests of ranks are not neighbours in the batch: the numbers come in its order.
    /// - [`RanksError::Broken`](gumball_spec::RanksError::Broken) after an exchange that failed.
    pub fn enqueue_shorten(&mut self, counts: &DeviceSlice<'_>) -> Result<()> {
        self.check_broken()?;
        if !self.assigned.batch_rows.is_empty() {
            let reason = "the requests were assigned in another order than the batch's; own them in blocks";
            return Err(Error::Conflict { parameter: "ownership", other: "counts", reason });
        }
        self.pool.enqueue_shorten(counts)
    }
}
