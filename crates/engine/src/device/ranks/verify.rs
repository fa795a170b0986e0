//! A verification over the devices of ranks: the rows of a request's drafts stay with one owner, and its walk comes back to all.

use gumball_cuda::{DraftCounts, DraftIds, Graph, Rows, Step, StepInput};
use gumball_dist::{Plan, StepKind, StepPart};
use gumball_spec::Result;
use gumball_spec::layout::Layout;

use super::super::input::DeviceOptions;
use super::super::verify::rule;
use super::DeviceDistPool;
use super::step::{refuse_kept, spread};
use super::watch::beside;
use crate::batch::Batch;
use crate::drafts::{Drafts, starts};
use crate::outputs::Outputs;
use crate::ranks::refuse_survey;
use crate::slot::Slot;
use crate::verify_mode::VerifyMode;

impl DeviceDistPool {
    /// Verifies the drafts of each request against rows of the host, as [`DistPool::verify`](crate::DistPool::verify) does. The call copies the
    /// logits and the drafts to the device and the results back.
    ///
    /// # Errors
    /// - Those of [`DeviceDistPool::enqueue_host_drafts`] and [`DeviceDistPool::fetch`].
    /// - [`Error::Unavailable`](gumball_spec::Error::Unavailable) if a row has a hook, which can only run on the host.
    pub fn verify(
        &mut self,
        rows: crate::Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let logits = rows.of_rank(batch)?;
        refuse_kept(out)?;
        self.with_rows(logits, |pool, rows| pool.enqueue_host_drafts(rows, batch, drafts))?;
        self.fetch(out)
    }

    /// Enqueues the verification of drafts that the host has, for rows in the device's memory. The call copies the drafts to the device, and
    /// does not wait.
    ///
    /// # Shapes and units
    /// As of [`DeviceDistPool::enqueue_verify`]. `drafts`: those of the whole batch, the same on all ranks.
    ///
    /// # Errors
    /// - Those of [`DeviceDistPool::enqueue_verify`].
    /// - [`Error::OutOfRange`](gumball_spec::Error::OutOfRange) for a parent that is neither -1 nor a draft before in the same request.
    pub fn enqueue_host_drafts(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
    ) -> Result<()> {
        self.check_broken()?;
        let most = batch.counts.iter().copied().max().unwrap_or(0) as usize;
        let drafts = self.pool.read_drafts(&Batch { plan: None, ..*batch }, drafts)?;
        let plan = &self.planned(batch, most, StepKind::Verify)?;
        let counted = (batch.counts, drafts.ids);
        self.assign_draft_ids(plan, batch.slots, counted, batch.mode, &DeviceOptions::of(batch))?;
        let uploaded = self.pool.upload_drafts(&drafts)?;
        let on_device = uploaded.ids(&drafts, self.pool.vocab());
        let enqueued = on_device.and_then(|on_device| self.enqueue_verify_assigned(rows, &on_device));
        self.pool.keep_uploaded(uploaded);
        enqueued
    }

    /// Enqueues the verification of drafts that lie in the device's memory, on all ranks, and returns before the devices have finished.
    ///
    /// The owner of a request judges its drafts, and sends the walk and what came out to all ranks; each advances all requests by the emitted
    /// tokens, so a step or another verification may follow at once.
    ///
    /// # Shapes and units
    /// `slots`, `counts`, `options`: those of the whole batch, the same on all ranks, as [`DevicePool::enqueue_verify`](crate::DevicePool::enqueue_verify)
    /// takes them. `rows`: a row for each request and draft, in the shape that [`DeviceDistPool::enqueue`] takes; under `Replicated` those of this
    /// rank's requests, in turn. `drafts`: those of the whole batch, on each rank's own device, with the same values.
    ///
    /// # Errors
    /// Those of [`DeviceDistPool::assign_drafts`] and [`DeviceDistPool::enqueue_verify_assigned`]. Nothing was sent then.
    #[expect(clippy::too_many_arguments, reason = "a plan, and what a verification takes")]
    pub fn enqueue_verify(
        &mut self,
        plan: &Plan,
        rows: Rows<'_>,
        slots: &[Slot],
        counts: &[u32],
        drafts: &DraftIds<'_>,
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.assign_drafts(plan, slots, counts, mode, options)?;
        self.enqueue_verify_assigned(rows, drafts)
    }

    /// Assigns slots with their numbers of drafts, a mode, options and a layout to the next verifications, those of captured graphs included.
    ///
    /// # Errors
    /// - Those of [`DevicePool::assign_drafts`](crate::DevicePool::assign_drafts) and [`DeviceDistPool::assign`].
    /// - [`Error::Conflict`](gumball_spec::Error::Conflict) under `Survey`, which no verification takes.
    pub fn assign_drafts(
        &mut self,
        plan: &Plan,
        slots: &[Slot],
        counts: &[u32],
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.assign_draft_ids(plan, slots, (counts, &[]), mode, options)
    }

    /// Assigns drafts, of which the host may know the ids.
    fn assign_draft_ids(
        &mut self,
        plan: &Plan,
        slots: &[Slot],
        (counts, ids): (&[u32], &[i32]),
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.check_assignment(plan, slots, options)?;
        refuse_survey(plan)?;
        let rows = self.pool.check_draft_counts(slots, counts, mode, options)?;
        options.on_host().check(rows, self.pool.vocab())?;
        let (order, starts) = (self.order(plan), starts(counts));
        let batch_rows: Vec<usize> =
            order.iter().flat_map(|request| starts[*request]..starts[request + 1]).collect();
        if order.is_empty() {
            self.pool.assign_drafts(slots, counts, mode, options)?;
        } else {
            let ordered: Vec<Slot> = order.iter().map(|request| slots[*request]).collect();
            let ordered_counts: Vec<u32> = order.iter().map(|request| counts[*request]).collect();
            let batch_requests: Vec<u32> = order.iter().map(|request| *request as u32).collect();
            let drafts =
                DraftCounts { counts: &ordered_counts, rule: rule(mode), batch_requests: &batch_requests };
            let on_host = options.on_host();
            let picked = on_host.pick(&batch_rows);
            let Batch { masks, forced, .. } = picked.batch();
            let options = DeviceOptions { masks, forced, row_indices: &[] };
            self.pool.assign_rows(&ordered, rows, &options, Some(drafts))?;
        }
        let mut digest = self.digest(plan, slots, (&options.on_host(), rows), &mode.words());
        digest.extend(StepPart::Drafts, counts.iter().map(|count| u64::from(*count)));
        digest.extend(StepPart::Drafts, ids.iter().map(|id| *id as u64));
        self.note_assignment(plan, slots, Some(counts), (batch_rows, digest))
    }

    /// Enqueues the verification of drafts for the requests that were assigned last; it only launches kernels, and returns before the
    /// devices have finished.
    ///
    /// If the host program is capturing the device's stream in a graph of its own, the verification becomes part of it.
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_verify_assigned`](crate::DevicePool::enqueue_verify_assigned), and [`Error::Length`](gumball_spec::Error::Length) for rows of another
    ///   shape than the layout has.
    /// - [`RanksError::Broken`](gumball_spec::RanksError::Broken) after an exchange that failed.
    pub fn enqueue_verify_assigned<'b>(&mut self, rows: Rows<'b>, drafts: &DraftIds<'b>) -> Result<()> {
        self.check_broken()?;
        let Self { pool, group, windows, .. } = self;
        let spread = spread(&self.assigned, &self.planner, group.rank())?;
        let (drafts, ranks) = (Some(*drafts), Some((&*windows, &spread)));
        let input = StepInput { drafts, ranks, ..StepInput::of(&rows) };
        let is_emulated = pool.device().gpu().is_none();
        let enqueue = || pool.enqueue_step(&input, None);
        let (enqueued, gone) = beside(group, windows, is_emulated, enqueue);
        self.gone = self.gone.take().or(gone);
        if enqueued? {
            self.note_step();
        }
        Ok(())
    }

    /// Captures a verification for each of several arrays of rows with their drafts, to be replayed in this order by
    /// [`DeviceDistPool::replay`]. Nothing runs yet.
    ///
    /// A replay uses the assignment of that moment, and reads the drafts that lie there then. The layout, the mode, and the numbers of requests and
    /// of rows that each rank owns must stay the same; how many drafts each request has may change within these.
    ///
    /// # Errors
    /// Those of [`DeviceDistPool::enqueue_verify_assigned`].
    pub fn capture_verify<'b>(&self, inputs: &[(Rows<'b>, DraftIds<'b>)]) -> Result<Graph<'b>> {
        self.check_broken()?;
        let spread = spread(&self.assigned, &self.planner, self.group.rank())?;
        let step = |(rows, drafts): &(Rows<'b>, DraftIds<'b>)| {
            let (drafts, ranks) = (Some(*drafts), Some((&self.windows, &spread)));
            self.pool.workspace.fix(&StepInput { drafts, ranks, ..StepInput::of(rows) })
        };
        let steps: Vec<Step<'b>> = inputs.iter().map(step).collect::<Result<_>>()?;
        self.pool.workspace.capture(&steps)
    }

    /// Returns the addresses, in the device's memory, of the last verification's walks: as of
    /// [`DevicePool::walks_addresses`](crate::DevicePool::walks_addresses), behind the results of the whole batch.
    #[must_use]
    pub fn walks_addresses(&self) -> [u64; 2] {
        let layout: Layout = self.pool.outputs_layout();
        let path = self.results_address() + (layout.words() * size_of::<u32>()) as u64;
        [path, path + (layout.rows * size_of::<u32>()) as u64]
    }
}
