//! What a pool does on a device only: graphs of the host program, batches of drafts, and the addresses of what came out.

use gumball_cuda::{DraftBatchLimits, Rows as DeviceMatrix, StepVariant};
use gumball_spec::layout::Layout;
use gumball_spec::{Error, Result};

use super::Device;
use super::assign::AssignedShape;
use super::draft_batch::DraftBatch;
use super::on_gpu::OnGpu;
use crate::backend::no_graphs;
use crate::draft::Proposals;
use crate::pool::Pool;
use crate::work::Work;

/// A pool on a device, for what only a device does.
#[derive(Debug)]
pub struct OnDevice<'a> {
    pool: &'a mut Pool,
}

impl Pool {
    /// Returns the view of a pool on a device.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] on the host.
    pub fn on_device(&mut self) -> Result<OnDevice<'_>> {
        if self.device().is_some() { Ok(OnDevice { pool: self }) } else { Err(no_graphs()) }
    }

    /// Returns the device; `None` on the host.
    #[must_use]
    pub fn device(&self) -> Option<&Device> {
        self.backend.gpu().map(|gpu| &gpu.device)
    }
}

impl<'a> OnDevice<'a> {
    fn gpu_mut(&mut self) -> &mut OnGpu {
        self.pool.backend.gpu_mut().expect("a view is of a device")
    }

    fn gpu(&self) -> &OnGpu {
        self.pool.backend.gpu().expect("a view is of a device")
    }

    /// Enqueues work with the kernels of a named variant.
    ///
    /// The host program may capture the work in a graph of its own on the device's stream. It does not run then, and the graph serves later
    /// assignments that the variant serves. Call the method once before the capture, with padding for instance, so that the kernels are
    /// loaded, and [`OnDevice::reserve_replays`] before replays.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) if the variant does not serve an assigned row; it names the row, its slot and
    ///   the variants that do.
    /// - Those of [`Pool::enqueue`].
    pub fn enqueue_variant(&mut self, work: &[Work<'_>], variant: StepVariant) -> Result<()> {
        self.pool.check_assigned(work.iter().any(Work::is_of_pool))?;
        let Pool { slots, backend, .. } = &mut *self.pool;
        backend.enqueue_variant(slots, work, variant)?;
        self.pool.was_direct &= !work.iter().any(Work::has_outputs);
        Ok(())
    }

    /// Returns the variants of a step in ascending order, each with the number of steps that it has served in
    /// this pool. Each one serves the requests of those before it, too.
    ///
    /// Steps reserved for replays of the host program's graphs count under the variant that was named, all
    /// others under the smallest one that serves their rows.
    #[must_use]
    pub fn variants(&self) -> [(StepVariant, u64); StepVariant::ALL.len()] {
        StepVariant::ALL.map(|variant| (variant, self.gpu().workspace.requests().steps_served(variant)))
    }

    /// Returns the smallest variant that serves the assigned rows: the one whose graph the host program should
    /// replay.
    #[must_use]
    pub fn needed_variant(&self) -> StepVariant {
        self.gpu().workspace.rows().needed_variant()
    }

    /// Prepares for replays of the host program's own graph that take `steps` steps of this pool in all, with
    /// the current assignment. The steps were captured under `variant`, or without one, which is
    /// [`StepVariant::Full`].
    ///
    /// Call it again after each assignment: no other call compares the rows with the graph's variant. Once the host program has captured a
    /// step of a clustered head, [`Outputs::is_approximate`](crate::Outputs::is_approximate) says so of all replays, since which graph is replayed is not known here.
    /// Waits for the device if histories need more memory, which happens once in `history_growth` tokens.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the variant does not serve an assigned row; it names the row, its slot and
    ///   the variants that do. Nothing has changed then.
    /// - [`Error::Conflict`] if nothing is assigned, as of [`Pool::enqueue`].
    /// - [`Error::Unavailable`] if the device has not enough memory, or fails.
    pub fn reserve_replays(&mut self, steps: usize, variant: StepVariant) -> Result<()> {
        self.pool.check_assigned(steps > 0)?;
        let Pool { slots, backend, .. } = &mut *self.pool;
        backend.reserve(slots, steps, variant)?;
        self.pool.was_direct &= steps == 0;
        Ok(())
    }

    /// Returns how much is assigned to the rows of steps and verifications, or to those of a batch of drafts.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch.
    pub fn assigned(&self, of: Option<DraftBatch>) -> Result<AssignedShape> {
        let Some(of) = of else { return Ok(self.pool.backend.assigned()) };
        let rows = self.gpu().workspace.batch(Some(of.id))?.paths().count();
        Ok(AssignedShape { rows, requests: 0 })
    }

    /// Makes a batch of rows of a draft model. All its memory is allocated here, but for what rows copy of the histories and counts
    /// of their requests.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for no rows or more than the pool's, and for no siblings or more than 64.
    /// - [`Error::Unavailable`] if the device has not enough memory; and in a pool of the route `probabilities`.
    pub fn add_draft_batch(&mut self, limits: DraftBatchLimits) -> Result<DraftBatch> {
        self.gpu_mut().add_batch(limits)
    }

    /// Frees a batch. Captured graphs that hold it must not run any more.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have it.
    pub fn remove_draft_batch(&mut self, batch: DraftBatch) -> Result<()> {
        self.gpu_mut().workspace.remove_draft_batch(batch.id)
    }

    /// Waits for the enqueued work, and copies the last drafts of a batch, and their probabilities if `out` collects some, into `out`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch, and if `out` has another number of siblings or collects
    ///   probabilities that the batch does not write.
    /// - [`Error::Unavailable`] if the device fails, or failed before; or if the system refuses the memory.
    pub fn fetch_drafts(&mut self, batch: DraftBatch, out: &mut Proposals) -> Result<()> {
        let Pool { slots, backend, .. } = &mut *self.pool;
        backend.wait_for_drafts(slots)?;
        self.gpu_mut().read_drafted(batch, out)
    }

    /// Returns the address, in the device's memory, of a batch's drafts: `[rows, siblings]` of i32 without gaps, the rows as they are
    /// assigned, [`NONE`](gumball_spec::NONE) where there are no more. It never changes.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch.
    pub fn drafts_address(&self, batch: DraftBatch) -> Result<u64> {
        Ok(self.gpu().workspace.proposals(batch.id)?.address())
    }

    /// Returns the probabilities that the drafts of a batch were drawn from: a row of f32 in the device's memory for each assigned row.
    /// Rows of padding are not written.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch, or it writes none.
    pub fn draft_probs(self, batch: DraftBatch) -> Result<DeviceMatrix<'a>> {
        let pool: &'a Pool = self.pool;
        pool.backend.gpu().expect("a view is of a device").workspace.proposals(batch.id)?.probs()
    }

    /// Returns the address of the last step's outputs in the device's memory; it never changes.
    ///
    /// The tokens come first, so a model can read them there without the host. On the route `probabilities` statuses and
    /// temperatures there are those of the draw alone; [`Pool::fetch`] adds those of the softmax.
    #[must_use]
    pub fn outputs_address(&self) -> u64 {
        self.pool.backend.outputs_address()
    }

    /// Returns the layout of the last step's outputs.
    #[must_use]
    pub fn outputs_layout(&self) -> Layout {
        self.gpu().outputs_layout()
    }

    /// Returns the addresses, in the device's memory, of the walks of the last verification: for each row of the outputs a u32,
    /// the row of logits that it comes from, [`u32::MAX`] where it has no emitted token; and for each request a u32, how many drafts were accepted.
    ///
    /// They lie behind the outputs, so they move with the number of rows, and with nothing else.
    #[must_use]
    pub fn walks_addresses(&self) -> [u64; 2] {
        let Layout { rows, .. } = self.outputs_layout();
        let path = self.outputs_address() + (self.outputs_layout().words() * size_of::<u32>()) as u64;
        [path, path + (rows * size_of::<u32>()) as u64]
    }

    /// Returns the address, in the device's memory, of how many tokens the last [`Work::Shorten`](crate::Work::Shorten) took away: a u32 for each
    /// assigned slot. It never changes.
    #[must_use]
    pub fn taken_address(&self) -> u64 {
        self.gpu().workspace.results().taken_address()
    }

    /// Waits for what was enqueued before, and reads how many tokens the last [`Work::Shorten`](crate::Work::Shorten) took away of each sequence.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not a place for each assigned slot.
    /// - [`Error::Unavailable`] if the device fails, or failed before.
    pub fn read_taken(&self, taken: &mut [u32]) -> Result<()> {
        let requests = self.gpu().assigned.slots.len();
        if taken.len() != requests {
            return Err(Error::length("taken", taken.len(), format!("one per slot, {requests}")));
        }
        self.gpu().workspace.results().read_taken(taken)
    }
}
