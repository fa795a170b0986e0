//! Taking emitted tokens away again on the device, where nothing waits.
//!
//! Only the device knows how many tokens go. The host's copy of a sequence then catches up by the length that the device has, and by
//! its history where it keeps one.

use gumball_cuda::{DeviceSlice, IntType, ShortenLaunch};
use gumball_spec::{Error, Result};

use super::input::copy_bytes_up;
use super::pool::DevicePool;

impl DevicePool {
    /// Takes away the last output tokens of the sequences in the slots that were assigned last, as many of each as a number in the device's
    /// memory says, and returns before the device has finished. A following step, draft or verification reads the shorter sequences:
    /// positions, histories, counts and mu.
    ///
    /// If the host program is capturing the device's stream in a graph of its own, the call becomes part of it; a replay reads the slots and
    /// the numbers that are there then. The kernel is loaded by the first call, so call it once before.
    ///
    /// The host does not see the numbers. [`DevicePool::sequence`] reads the sequence back: whole, if the device keeps its history
    /// ([`keep_histories`](super::DevicePoolConfig::keep_histories), or edits that read it); otherwise by its length, as long as the outputs of
    /// each step are fetched before the next one is enqueued.
    ///
    /// # Shapes and units
    /// `counts`: i32 or i64, one for each assigned slot, in turn; that of padding is not read. A number below 0 or above that of the output
    /// tokens takes nothing away, and so does one above 1 with mirostat, of whose limits the device has the last two;
    /// [`DevicePool::taken_address`] says what was taken.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one number for each slot, and [`Error::OutOfRange`] for another type.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn enqueue_shorten(&mut self, counts: &DeviceSlice<'_>) -> Result<()> {
        if !ShortenLaunch::new(&self.workspace, counts)?.enqueue(&self.workspace)? {
            self.captured_shorten = true;
            return Ok(());
        }
        self.note_shorten();
        Ok(())
    }

    /// Takes away tokens as [`DevicePool::enqueue_shorten`] does, by numbers of the host, which are copied up. Does not wait.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_shorten`].
    pub fn enqueue_host_shorten(&mut self, counts: &[u32]) -> Result<()> {
        let (requests, runtime) = (self.assigned.slots.len(), self.device.runtime());
        if counts.len() != requests {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {requests}")));
        }
        let signed: Vec<i64> = counts.iter().copied().map(i64::from).collect();
        let buffer = copy_bytes_up(runtime, &mut self.count_upload, bytemuck::cast_slice(&signed))?;
        let column = DeviceSlice::of(&buffer, IntType::I64).first(requests);
        let enqueued = column.and_then(|counts| self.enqueue_shorten(&counts));
        self.count_upload = Some(buffer);
        enqueued
    }

    /// Returns the address, in the device's memory, of how many tokens the last [`DevicePool::enqueue_shorten`] took away: a u32 for each
    /// assigned slot. It never changes.
    #[must_use]
    pub fn taken_address(&self) -> u64 {
        self.workspace.results().taken_address()
    }

    /// Waits for what was enqueued before, and reads how many tokens the last [`DevicePool::enqueue_shorten`] took away of each sequence.
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
