//! Taking the last output tokens of requests away again, on the device.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::dtype::{ColumnType, IntType};
use crate::abi::{ShortenRequests, shorten_flags};
use crate::launch::drafts;
use crate::memory::columns::{DeviceSlice, SIGNED};
use crate::pipeline::workspace::Workspace;

/// A call that takes output tokens away whose launch is fixed, for as many requests as were assigned; the counts live as long as `'b`.
#[derive(Clone, Debug)]
pub struct ShortenLaunch<'b> {
    requests: usize,
    argument: ShortenRequests,
    memory: PhantomData<&'b ()>,
}

impl Workspace {
    /// Fixes the launch that takes the last output tokens of the assigned requests away.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one count for each assigned request: for each slot.
    /// - [`Error::OutOfRange`] if they have no sign.
    pub fn shorten<'b>(&self, counts: &DeviceSlice<'b>) -> Result<ShortenLaunch<'b>> {
        counts.check_type("counts", SIGNED)?;
        let requests = self.rows().requests();
        if counts.rows() != requests {
            return Err(Error::length("counts", counts.rows(), format!("one per slot, {requests}")));
        }
        let is_64_bit = counts.dtype == ColumnType::Int(IntType::I64);
        let argument = ShortenRequests {
            slots: self.rows().slots(),
            counts: counts.at(0),
            slot_params: self.requests.params.address(),
            slot_requests: self.requests.requests.address(),
            slot_states: self.requests.states.address(),
            taken: self.results.taken_address(),
            flags: if is_64_bit { shorten_flags::COUNTS_I64 } else { 0 },
            reserved: 0,
        };
        Ok(ShortenLaunch { requests, argument, memory: PhantomData })
    }

    /// Takes the last output tokens of the assigned requests away, as many of each as the device's memory says; returns whether that runs
    /// now, as [`Workspace::enqueue`] does. It launches a kernel, and neither allocates nor waits.
    ///
    /// A count below 0 or above the number of output tokens takes nothing away. With mirostat 1 is the most, once behind each token.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one count for each assigned request: for each slot.
    /// - [`Error::OutOfRange`] if they have no sign.
    /// - [`Error::Unavailable`] if the device fails, or the kernel cannot be compiled.
    pub fn enqueue_shorten(&self, counts: &DeviceSlice<'_>) -> Result<bool> {
        self.launch_shorten(&self.shorten(counts)?)?;
        Ok(!self.runtime.is_capturing()?)
    }

    /// Launches what was fixed, for as many assigned requests as it was fixed for.
    pub(crate) fn launch_shorten(&self, fixed: &ShortenLaunch<'_>) -> crate::Result<()> {
        if fixed.requests == 0 {
            return Ok(());
        }
        // SAFETY: the tables belong to this workspace, and `assign` checked the slots. There is a place in `taken` for each row. The
        // creator of the counts guarantees their memory.
        unsafe { drafts::shorten(&*self.runtime, fixed.requests, &fixed.argument) }
    }

    /// Checks that as many requests are assigned as a launch was fixed for.
    pub(crate) fn check_shorten(&self, fixed: &ShortenLaunch<'_>) -> Result<()> {
        let requests = self.rows().requests();
        if requests == fixed.requests {
            return Ok(());
        }
        let allowed = format!("{}, for which tokens are taken away", fixed.requests);
        Err(Error::length("slots", requests, allowed))
    }
}
