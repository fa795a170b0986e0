//! Where a pool's rows are computed: on the host, on a device, and over ranks on either.
//!
//! The pool has the table of sequences, and lends it to each call. It has checked what does not depend on the
//! place.

use std::fmt;

use gumball_dist::{Group, Planner};
use gumball_spec::{Error, Result};

use crate::batch::Batch;
use crate::device::DeviceBackend;
use crate::draft::Proposals;
use crate::drafts::Drafts;
use crate::host::Host;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::score::Scored;
use crate::slot::Slot;
use crate::slots::{Copies, Slots};
use crate::work::Work;

/// The ranks of a pool: their planner, their group, and how rows travel between them.
#[derive(Clone, Copy, Debug)]
pub struct RanksInfo<'a> {
    /// What decides the layouts of steps, and counts them.
    pub planner: &'a Planner,
    /// The ranks, and the bytes that they exchanged.
    pub group: &'a Group,
    /// Whether steps of the assigned rows send whole rows: all of them under `Gather` and `Swap`, none under
    /// `Replicated`. Under `Survey` on a device rows of logits are swapped that need more than a winner or a
    /// list of each rank: rows with logprobs, and rows that a filter weighs whole.
    /// Probabilities are swapped always.
    pub sends_rows: bool,
    /// The name of the transport that was taken: of rows on devices "onesided" or "nccl", of others that of
    /// the group.
    pub transport: &'static str,
    /// Why rows on devices take another transport or fewer layouts than they would in another place; `None`
    /// if all is as it was asked for.
    pub warning: Option<&'a str>,
}

/// A direct call.
pub(crate) enum Call<'a> {
    Step(Rows<'a>, &'a mut Outputs),
    Verify(Rows<'a>, &'a Drafts<'a>, &'a mut Outputs),
    /// After paths of drafts.
    Draft(Rows<'a>, &'a [i32], &'a mut Proposals),
    Score(Rows<'a>, &'a Scored<'a>, &'a mut Outputs),
}

/// A place where rows are computed. After an error of a call no sequence has changed.
pub(crate) trait Backend: Copies + fmt::Debug + Send {
    /// Brings the host's copy of an admitted slot's sequence up to date.
    fn sync(&mut self, _slots: &mut Slots, _slot: Slot) -> Result<()> {
        Ok(())
    }

    /// Does a direct call.
    fn call(&mut self, slots: &mut Slots, batch: &Batch<'_>, call: Call<'_>) -> Result<()>;

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()>;

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()>;

    fn fetch(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()>;

    fn ranks(&self) -> Option<RanksInfo<'_>> {
        None
    }

    /// Returns what computes on the host, on this rank.
    fn host(&self) -> Option<&Host> {
        None
    }

    /// Returns the place as one on a device, if it is one.
    fn on_device(&self) -> Option<&dyn DeviceBackend> {
        None
    }

    fn on_device_mut(&mut self) -> Option<&mut dyn DeviceBackend> {
        None
    }
}

/// The error of a call that only a device serves, for a pool of the host.
pub(crate) fn no_graphs() -> Error {
    let reason = "a graph would hold rows that a model must write between replays; enqueue the work, or make the pool on a device";
    Error::Unavailable {
        resource: "graphs and memory of a device in a pool of the host",
        reason: reason.to_owned(),
    }
}
