//! Taking the last output tokens of requests away again, on the device.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::dtype::{ColumnType, IntType};
use crate::abi::{ShortenRequests, shorten_flags};
use crate::launch::tuning;
use crate::memory::columns::{DeviceSlice, SIGNED};
use crate::pipeline::workspace::Workspace;

/// A call that takes output tokens away whose launch is fixed, for as many requests as were assigned; the
/// counts live as long as `'b`.
#[derive(Clone, Debug)]
pub struct ShortenLaunch<'b> {
    pub(crate) requests: usize,
    argument: ShortenRequests,
    memory: PhantomData<&'b ()>,
}

impl<'b> ShortenLaunch<'b> {
    /// Fixes the launch that takes the last output tokens of the assigned requests away, as many of each as
    /// the device's memory says.
    ///
    /// A count below 0 or above the number of output tokens takes nothing away. With mirostat or
    /// adaptive-p 1 is the most, once after each token.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one count for each assigned request: for each slot.
    /// - [`Error::OutOfRange`] if they have no sign.
    pub fn new(workspace: &Workspace, counts: &DeviceSlice<'b>) -> Result<Self> {
        counts.check_type("counts", SIGNED)?;
        let requests = workspace.rows().requests();
        if counts.rows() != requests {
            return Err(Error::length("counts", counts.rows(), format!("one per slot, {requests}")));
        }
        let is_64_bit = counts.dtype == ColumnType::Int(IntType::I64);
        let argument = ShortenRequests {
            slots: workspace.rows().slots(),
            counts: counts.at(0),
            slot_params: workspace.requests.params.address(),
            slot_requests: workspace.requests.requests.address(),
            slot_states: workspace.requests.states.address(),
            taken: workspace.results.taken_address(),
            flags: if is_64_bit { shorten_flags::COUNTS_I64 } else { 0 },
            reserved: 0,
        };
        Ok(Self { requests, argument, memory: PhantomData })
    }

    /// Launches what was fixed, for as many assigned requests as it was fixed for.
    pub(crate) fn launch(&self, workspace: &Workspace) -> crate::Result<()> {
        if self.requests == 0 {
            return Ok(());
        }
        // SAFETY: the tables belong to this workspace, and `assign` checked the slots. There is a place in
        // `taken` for each row. The creator of the counts guarantees their memory.
        unsafe { tuning::shorten_requests(self.requests).enqueue(&*workspace.runtime, &self.argument) }
    }
}
