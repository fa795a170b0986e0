//! The part of a place that only a device has: work of which the program or a graph of ours
//! holds the launches.

use gumball_cuda::{Graph, Recorded, StepVariant, Work as Fixed, WorkTerms};
use gumball_spec::Result;

use super::on_gpu::OnGpu;
use crate::slots::Slots;
use crate::work::Work;

/// Work that the program records in a graph of its own while it is enqueued.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The variant whose kernels are launched.
    pub variant: StepVariant,
    /// The terms of the work so far, which replays need.
    pub work: Vec<WorkTerms>,
}

/// A place on a device, of one process or of ranks.
pub(crate) trait DeviceBackend {
    /// Returns what computes on the device.
    fn gpu(&self) -> &OnGpu;

    fn gpu_mut(&mut self) -> &mut OnGpu;

    /// Fixes the launches of work.
    fn fix<'b>(&self, work: &Work<'b>) -> Result<Fixed<'b>>;

    /// Enqueues work that lies in the memory of the device; `given`: where the caller has it.
    fn enqueue_placed(
        &mut self,
        slots: &mut Slots,
        work: &Work<'_>,
        given: &Work<'_>,
        recording: Option<&mut Recording>,
    ) -> Result<()>;

    /// Waits until batches of drafts are drawn that were enqueued; over ranks, as long as these may be waited
    /// for.
    fn wait_for_drafts(&mut self, _slots: &mut Slots) -> Result<()> {
        Ok(())
    }

    /// Prepares for replays of graphs of the program, one for each element.
    fn before_replay(&mut self, slots: &mut Slots, recorded: &[&Recorded]) -> Result<()>;

    /// Returns where the outputs of the last step lie in the memory of the device.
    fn outputs_address(&self) -> u64;

    /// Fixes the launches of work, and captures them.
    fn capture<'b>(&self, work: &[Work<'b>]) -> Result<Graph<'b>> {
        let fixed = work.iter().map(|work| self.fix(work)).collect::<Result<_>>()?;
        self.gpu().workspace.capture_work(fixed)
    }

    fn replay(&mut self, slots: &mut Slots, graph: &Graph<'_>) -> Result<()>;

    /// Enqueues work with the kernels of a variant, and returns what its replays must know, should the
    /// program be capturing.
    fn record(&mut self, slots: &mut Slots, work: &[Work<'_>], variant: StepVariant) -> Result<Recorded>;

    /// Enqueues work for the batch that was assigned last.
    fn enqueue_all(
        &mut self,
        slots: &mut Slots,
        work: &[Work<'_>],
        mut recording: Option<&mut Recording>,
    ) -> Result<()>
    where
        Self: Sized,
    {
        // A single piece is checked where it is enqueued.
        for work in work.iter().filter(|_| work.len() > 1) {
            self.with_placed(work, |place, work| place.fix(work).map(drop))?;
        }
        work.iter().try_for_each(|given| {
            self.with_placed(given, |place, work| {
                place.enqueue_placed(slots, work, given, recording.as_deref_mut())
            })
        })
    }

    /// Enqueues work for the batch that was assigned last, and records it.
    fn record_all(&mut self, slots: &mut Slots, work: &[Work<'_>], variant: StepVariant) -> Result<Recorded>
    where
        Self: Sized,
    {
        let mut recording = Recording { variant, work: Vec::new() };
        self.enqueue_all(slots, work, Some(&mut recording))?;
        Ok(self.gpu().workspace.recorded(recording.work))
    }

    /// Copies what lies in the memory of the host to the device, and does something with the work.
    fn with_placed<T>(
        &mut self,
        work: &Work<'_>,
        then: impl FnOnce(&mut Self, &Work<'_>) -> Result<T>,
    ) -> Result<T>
    where
        Self: Sized,
    {
        if !work.reads_host() {
            return then(self, work);
        }
        let mut uploads = std::mem::take(&mut self.gpu_mut().uploads);
        let placed = uploads.place(self.gpu().device.runtime(), *work, |drafts| {
            let of = &self.gpu().assigned.of;
            self.gpu().read_drafts(&of.slots, &of.drafted()?, drafts)
        });
        let done = placed.and_then(|work| then(self, &work));
        self.gpu_mut().uploads = uploads;
        done
    }
}
