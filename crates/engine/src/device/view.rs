//! What a pool does on a device only: graphs, its own and those of the host program, batches of drafts, and
//! the addresses of what came out.

use gumball_cuda::{DraftBatchLimits, Graph, Recorded, Rows as DeviceMatrix, StepVariant};
use gumball_spec::layout::Layout;
use gumball_spec::{Error, Result};

use super::Device;
use super::assign::AssignedShape;
use super::backend::DeviceBackend;
use super::draft_batch::DraftBatch;
use super::on_gpu::OnGpu;
use crate::backend::no_graphs;
use crate::draft::Proposals;
use crate::pool::Pool;
use crate::slots::Slots;
use crate::work::Work;

/// A pool on a device, for what only a device does.
#[derive(Debug)]
pub struct OnDevice<'a> {
    pool: &'a mut Pool,
}

/// Where the last outputs of a pool lie in its device's memory, for a model to read there without the host.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOutputs {
    /// The address of the outputs of the last step or verification, the tokens first; it never changes. On
    /// the route `probabilities` statuses and temperatures there are of the draw alone; [`Pool::fetch`]
    /// adds the softmax's.
    pub address: u64,
    /// Their layout.
    pub layout: Layout,
    /// The address of the walks of a verification: for each row of the outputs a u32, the row of logits that
    /// it comes from, [`u32::MAX`] where it has no emitted token. They lie after the outputs, so they move
    /// with the number of rows, and with nothing else.
    pub path: u64,
    /// The address of how many drafts were accepted, a u32 for each request, after the walks.
    pub accepted: u64,
    /// The address of how many tokens the last [`Work::Shorten`] took away, a u32 for each assigned slot; it
    /// never changes.
    pub taken: u64,
    /// The address of the kept sets: `kept_words` u32 for each row of the outputs, in which bit `id % 32` of
    /// word `id / 32` is 1 for a kept id, and bits beyond the vocabulary are 0; it never changes. Over ranks
    /// that sample a share of the rows each, only the first are written: this rank's share. 0 unless the pool
    /// keeps them.
    pub kept: u64,
    /// The words of a row's kept set; 0 without.
    pub kept_words: usize,
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
        self.backend.on_device().map(|place| &place.gpu().device)
    }

    /// Lets all steps of a device search short kept sets like long ones, with the same results; nothing on
    /// the host.
    #[cfg(feature = "testing")]
    pub fn set_searching(&mut self, searches: bool) {
        if let Some(place) = self.backend.on_device_mut() {
            place.gpu_mut().workspace.set_searching(searches);
        }
    }

    /// Captures work of a device, to be replayed in this order by [`Pool::replay`]. Nothing runs yet.
    ///
    /// Each piece reads what the ones before it have written, and requests as these have left them, so a
    /// replay drafts, verifies and advances without the host. What [`Pool::assign`] says at the time of a
    /// replay counts: requests may be admitted, released and assigned in between. The numbers of requests and
    /// rows, the modes, and whether row indices and masks exist, must stay the same, for each batch of drafts
    /// too; how many drafts each request has may change. A graph has steps or verifications, not both.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] on the host: a graph would hold rows that a model must write between replays.
    /// - [`Error::OutOfRange`] for what lies in the memory of the host.
    /// - The errors of [`Pool::enqueue`].
    pub fn capture<'b>(&self, work: &[Work<'b>]) -> Result<Graph<'b>> {
        let graph = self.backend.on_device().ok_or_else(no_graphs)?.capture(work);
        self.check_assigned(graph.is_ok() && work.iter().any(Work::is_of_pool))?;
        graph
    }

    /// Enqueues the work of a graph: one call, however much it is.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] on the host, and if the device fails.
    /// - [`Error::Length`], [`Error::Conflict`] or [`Error::OutOfRange`] if an assignment's shape differs
    ///   from the capture's, a row index lies beyond the captured logits, or a path is longer than the
    ///   rows of paths.
    /// - [`Error::OutOfRange`] if a batch of drafts was removed.
    /// - [`Error::Conflict`] as of [`Pool::enqueue`], if nothing is assigned.
    ///
    /// # Panics
    /// If another pool captured the graph.
    pub fn replay(&mut self, graph: &Graph<'_>) -> Result<()> {
        self.check_assigned(graph.steps() > 0)?;
        self.at_backend(|backend, slots| {
            backend.on_device_mut().ok_or_else(no_graphs)?.replay(slots, graph)
        })?;
        self.was_direct &= graph.steps() == 0;
        Ok(())
    }
}

impl<'a> OnDevice<'a> {
    fn place(&self) -> &dyn DeviceBackend {
        self.pool.backend.on_device().expect("a view is of a device")
    }

    fn place_mut(&mut self) -> (&mut dyn DeviceBackend, &mut Slots) {
        let Pool { backend, slots, .. } = &mut *self.pool;
        (backend.on_device_mut().expect("a view is of a device"), slots)
    }

    fn gpu(&self) -> &OnGpu {
        self.place().gpu()
    }

    /// Enqueues work as [`Pool::enqueue`] does, with the kernels of a named variant, and returns what replays
    /// of it must be announced by.
    ///
    /// While the host program captures the device's stream in a graph of its own, the work does not run, but
    /// becomes part of that graph, which serves later assignments that the variant serves. Otherwise it runs:
    /// so it does in a call before the capture, with padding for instance, which loads the kernels. A replay
    /// reads the memory of the device that was read then, and a head must stay as it is as long as there are
    /// replays.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) if the variant does not serve an assigned row; it
    ///   names the row, its slot and the variants that do.
    /// - The errors of [`Pool::enqueue`].
    pub fn record(&mut self, work: &[Work<'_>], variant: StepVariant) -> Result<Recorded> {
        self.pool.check_assigned(work.iter().any(Work::is_of_pool))?;
        let (place, slots) = self.place_mut();
        let recorded = place.record(slots, work, variant)?;
        self.pool.was_direct &= !work.iter().any(Work::has_outputs);
        Ok(recorded)
    }

    /// Prepares for the replay of a graph of the host program, with the current assignments. `recorded`: what
    /// the graph holds, in the order in which it runs; for several replays of it, that many times.
    ///
    /// Call it before each replay: no other call compares the rows with the recording, or knows that the
    /// replay runs. Waits for the device if histories need more memory, which happens once in
    /// `history_growth` tokens.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if a variant does not serve an assigned row; it names the row, its slot and
    ///   the variants that do. The same for what another pool has recorded, and for a batch of drafts that
    ///   was removed.
    /// - [`Error::Length`] or [`Error::Conflict`] if an assignment's shape differs from the shape of the
    ///   recording, as of [`Pool::replay`].
    /// - [`Error::Conflict`] if nothing is assigned, as of [`Pool::enqueue`].
    /// - [`Error::Unavailable`] if the device has not enough memory, or fails.
    ///
    /// Nothing has changed then.
    pub fn before_replay(&mut self, recorded: &[&Recorded]) -> Result<()> {
        let has_steps = recorded.iter().any(|recorded| recorded.steps() > 0);
        self.pool.check_assigned(has_steps)?;
        let (place, slots) = self.place_mut();
        place.before_replay(slots, recorded)?;
        self.pool.was_direct &= !has_steps;
        Ok(())
    }

    /// Returns the variants of a step in ascending order, each with the number of steps that it has served in
    /// this pool. Each one serves the requests of those before it, too.
    ///
    /// Recorded steps count under the variant that was named, in each replay that was announced; all others
    /// under the smallest one that serves their rows.
    #[must_use]
    pub fn variants(&self) -> [(StepVariant, u64); StepVariant::ALL.len()] {
        StepVariant::ALL.map(|variant| (variant, self.gpu().workspace.requests().steps_served(variant)))
    }

    /// Returns the smallest variant that serves the assigned rows: the one whose graph the host program
    /// should replay.
    #[must_use]
    pub fn needed_variant(&self) -> StepVariant {
        self.gpu().workspace.rows().needed_variant()
    }

    /// Returns how much is assigned to the rows of steps and verifications, or to the rows of a batch of
    /// drafts.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch.
    pub fn assigned(&self, of: Option<DraftBatch>) -> Result<AssignedShape> {
        let Some(of) = of else { return Ok(self.gpu().assigned_shape()) };
        let rows = self.gpu().workspace.batch(Some(of.id))?.paths().count();
        Ok(AssignedShape { rows, requests: 0 })
    }

    /// Makes a batch of rows of a draft model. All its memory is allocated here, except for the parts that
    /// rows copy of the histories and counts of their requests.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for no rows or more than the pool's, and for no siblings or more than 64.
    /// - [`Error::Unavailable`] if the device has not enough memory; and in a pool of the route
    ///   `probabilities`.
    pub fn add_draft_batch(&mut self, limits: DraftBatchLimits) -> Result<DraftBatch> {
        self.place_mut().0.gpu_mut().add_batch(limits)
    }

    /// Frees a batch. Captured graphs that hold it must not run any more.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have it.
    pub fn remove_draft_batch(&mut self, batch: DraftBatch) -> Result<()> {
        self.place_mut().0.gpu_mut().workspace.remove_draft_batch(batch.id)
    }

    /// Waits for the enqueued work, and copies the last drafts of a batch, and their probabilities if `out`
    /// collects some, into `out`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch, and if `out` has another number of
    ///   siblings or collects probabilities that the batch does not write.
    /// - [`Error::Unavailable`] if the device fails, or failed before; or if the system refuses the memory.
    pub fn fetch_drafts(&mut self, batch: DraftBatch, out: &mut Proposals) -> Result<()> {
        let (place, slots) = self.place_mut();
        place.wait_for_drafts(slots)?;
        place.gpu_mut().read_drafted(batch, out)
    }

    /// Returns the address, in the device's memory, of a batch's drafts: `[rows, siblings]` of i32 without
    /// gaps, the rows as they are assigned, [`NONE`](gumball_spec::NONE) where there are no more. It never
    /// changes.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch.
    pub fn drafts_address(&self, batch: DraftBatch) -> Result<u64> {
        Ok(self.gpu().workspace.proposals(batch.id)?.address())
    }

    /// Returns the probabilities that the drafts of a batch were drawn from: a row of f32 in the device's
    /// memory for each assigned row. Rows of padding are not written.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this pool does not have the batch, or it writes none.
    pub fn draft_probs(self, batch: DraftBatch) -> Result<DeviceMatrix<'a>> {
        let pool: &'a Pool = self.pool;
        let place = pool.backend.on_device().expect("a view is of a device");
        place.gpu().workspace.proposals(batch.id)?.probs()
    }

    /// Returns where the last outputs lie in the device's memory, without a wait.
    #[must_use]
    pub fn outputs(&self) -> DeviceOutputs {
        let (layout, address) = (self.gpu().outputs_layout(), self.place().outputs_address());
        let path = address + (layout.words() * size_of::<u32>()) as u64;
        let accepted = path + (layout.rows * size_of::<u32>()) as u64;
        let results = self.gpu().workspace.results();
        let (kept, kept_words) = results.kept_address().unwrap_or_default();
        DeviceOutputs { address, layout, path, accepted, taken: results.taken_address(), kept, kept_words }
    }

    /// Waits for the work that was enqueued before, and reads how many tokens the last
    /// [`Work::Shorten`](crate::Work::Shorten) took away of each sequence.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not a place for each assigned slot.
    /// - [`Error::Unavailable`] if the device fails, or failed before.
    pub fn read_taken(&self, taken: &mut [u32]) -> Result<()> {
        let requests = self.gpu().assigned.of.slots.len();
        if taken.len() != requests {
            return Err(Error::length("taken", taken.len(), format!("one per slot, {requests}")));
        }
        self.gpu().workspace.results().read_taken(taken)
    }
}
