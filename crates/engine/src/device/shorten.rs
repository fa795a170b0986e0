//! Taking emitted tokens away again: through the host, or on the device, where nothing waits.
//!
//! On the device only that knows how many tokens go. The host's copy of a sequence then catches up by the length that the
//! device has, and by its history where it keeps one.

use gumball_cuda::{DeviceSlice, IntType, ShortenLaunch};
use gumball_spec::{Error, Result};

use super::input::copy_bytes_up;
use super::pool::DevicePool;
use super::sequences::Shortened;
use crate::slot::Slot;
use crate::verify::{check_counts, check_taken};

impl DevicePool {
    /// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`. See
    /// [`Pool::shorten`](crate::Pool::shorten).
    ///
    /// The states go through the host, which may have to wait for the device; [`DevicePool::enqueue_shorten`] waits for nothing.
    ///
    /// # Errors
    /// - Those of [`Pool::shorten`](crate::Pool::shorten) and [`DevicePool::sequence`].
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        check_counts(counts, slots)?;
        for slot in slots {
            self.host_sequence(*slot)?;
        }
        self.check_slots(slots)?;
        for (slot, count) in slots.iter().zip(counts) {
            check_taken(*slot, *count, self.sequence(*slot)?)?;
        }
        for (slot, count) in slots.iter().zip(counts).filter(|(_, count)| **count > 0) {
            let left = self.sequence(*slot)?.history().output().len() - count;
            self.truncate(*slot, left)?;
        }
        Ok(())
    }

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

    /// Makes the host's copy of a sequence, which knows all tokens, as long as the device's, which lost some.
    pub(super) fn follow_shortened(&mut self, slot: Slot) -> Result<()> {
        if self.shortened[slot as usize] != Shortened::Behind {
            return Ok(());
        }
        let state = self.workspace.requests().state(slot)?;
        self.known_sequence(slot).cut(state.output_len, state.mu);
        self.shortened[slot as usize] = Shortened::No;
        Ok(())
    }

    /// Does so before the tokens of a step are appended that came behind: `emitted` of them.
    pub(super) fn follow_before_step(&mut self, slot: Slot, emitted: usize) -> Result<()> {
        if self.shortened[slot as usize] != Shortened::Before {
            return Ok(());
        }
        let state = self.workspace.requests().state(slot)?;
        let sequence = self.known_sequence(slot);
        let mu = sequence.mu();
        sequence.cut(state.output_len.saturating_sub(emitted), mu);
        self.shortened[slot as usize] = Shortened::No;
        Ok(())
    }
}
