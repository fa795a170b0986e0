//! Where a pool's rows are computed: on the host, on a device.
//!
//! The pool has the table of sequences, and lends it to each call. It has checked what does not depend on the place.

use std::any::Any;
use std::fmt;

#[cfg(feature = "cuda")]
use gumball_spec::Error;
use gumball_spec::Result;

use crate::batch::Batch;
#[cfg(feature = "cuda")]
use crate::device::DeviceGraph;
use crate::draft::Proposals;
use crate::drafts::Drafts;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::score::Scored;
use crate::slot::Slot;
use crate::slots::{Copies, Slots};
use crate::work::Work;

/// A direct call.
pub(crate) enum Call<'a> {
    Step(Rows<'a>, &'a mut Outputs),
    Verify(Rows<'a>, &'a Drafts<'a>, &'a mut Outputs),
    /// Behind paths of drafts.
    Draft(Rows<'a>, &'a [i32], &'a mut Proposals),
    Score(Rows<'a>, &'a Scored<'a>, &'a mut Outputs),
}

/// A place where rows are computed. After an error of a call no sequence has changed.
pub(crate) trait Backend: Copies + Any + fmt::Debug + Send + Sync {
    /// Brings the host's copy of an admitted slot's sequence up to date.
    fn sync(&mut self, _slots: &mut Slots, _slot: Slot) -> Result<()> {
        Ok(())
    }

    /// Does a direct call.
    fn call(&mut self, slots: &mut Slots, batch: &Batch<'_>, call: Call<'_>) -> Result<()>;

    fn assign(&mut self, slots: &mut Slots, batch: &Batch<'_>) -> Result<()>;

    fn enqueue(&mut self, slots: &mut Slots, work: &[Work<'_>]) -> Result<()>;

    fn fetch(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()>;

    #[cfg(feature = "cuda")]
    fn capture<'b>(&self, _work: &[Work<'b>]) -> Result<DeviceGraph<'b>> {
        Err(no_graphs())
    }

    #[cfg(feature = "cuda")]
    fn replay(&mut self, _slots: &mut Slots, _graph: &DeviceGraph<'_>) -> Result<()> {
        Err(no_graphs())
    }
}

/// The error of what a device does, on the host.
#[cfg(feature = "cuda")]
pub(crate) fn no_graphs() -> Error {
    let reason = "a graph would hold rows that a model must write between replays; enqueue the work, or take Place::Device";
    Error::Unavailable {
        resource: "graphs and memory of a device in a pool of the host",
        reason: reason.to_owned(),
    }
}
