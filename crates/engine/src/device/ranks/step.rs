//! A step over the devices of ranks: one token for each row, under the layout that was planned.

use gumball_cuda::{
    DraftCounts, ExchangeFailure, ExchangeLayout, Graph, RankRows, StepInput, StepVariant, Work as Fixed,
};
use gumball_dist::{LogitsLayout, Plan, Planner, StepDigest, StepKind, StepPart};
use gumball_spec::layout::Layout;
use gumball_spec::request::no_draft_counts;
use gumball_spec::{Error, NONE, RanksError, Result};

use super::super::assign::{rule, verifies};
use super::super::view::gpu_of;
use super::watch::beside;
use super::{Assigned, DeviceDistPool, is_lost};
use crate::batch::Batch;
use crate::drafts::{Drafted, Drafts, Ids, starts};
use crate::masks::Masks;
use crate::outputs::Outputs;
use crate::ranks::alike::add_batch;
use crate::ranks::refuse_survey;
use crate::rows::Rows;
use crate::slot::{PADDING, Slot};
use crate::work::Work;

impl DeviceDistPool {
    /// Chooses the next token of each row, as [`DistPool::step`](crate::DistPool::step) does. The call copies rows of the host to the device, reads
    /// those of the device where they lie, and copies the results back.
    ///
    /// # Errors
    /// - Those of [`DeviceDistPool::assign`], [`DeviceDistPool::enqueue`] and [`DeviceDistPool::fetch`].
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host.
    pub fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        rows.check_of_rank(batch)?;
        batch.refuse_drafts("step")?;
        batch.check(batch.slots.len(), self.pool.vocab())?;
        self.pool.gpu_parts().1.refuse_hooks(batch)?;
        refuse_kept(out)?;
        self.assign_batch(batch, false)?;
        self.enqueue(&[Work::Step(rows, Masks::None)])?;
        self.fetch(out)
    }

    /// Assigns a batch to the rows of the next steps, or with `counts` of verifications, those of captured graphs included. All ranks assign the
    /// same batch.
    ///
    /// # Errors
    /// - Those of [`Pool::assign`](crate::Pool::assign), and [`Error::OutOfRange`] for a layout that was not configured.
    /// - [`Error::Length`] if there are not as many slots as `batch.plan` was made for.
    /// - [`Error::Conflict`] for row indices, for a batch of drafts, and under `Survey` for a verification.
    /// - [`RanksError::Broken`] after an exchange that failed.
    pub fn assign(&mut self, batch: &Batch<'_>) -> Result<()> {
        batch.refuse_hooks()?;
        self.assign_batch(batch, verifies(batch))
    }

    /// Assigns a batch to the rows of verifications, or of steps.
    pub(super) fn assign_batch(&mut self, batch: &Batch<'_>, verifies: bool) -> Result<()> {
        self.check_broken()?;
        let (slots, counts) = (batch.slots, batch.counts);
        let (most, kind) = match counts.iter().max() {
            Some(most) => (*most as usize, StepKind::Verify),
            None => (0, if verifies { StepKind::Verify } else { StepKind::Decode }),
        };
        let plan = match batch.plan {
            Some(plan) => plan,
            None => self.plan(&self.shape(slots, most, kind)?)?,
        };
        let batch = &Batch { plan: None, ..*batch };
        self.check_assignment(&plan, batch)?;
        let rows = if verifies {
            refuse_survey(&plan)?;
            gpu_of(&self.pool).check_draft_counts(batch)?
        } else {
            slots.len()
        };
        batch.check(rows, self.pool.vocab())?;
        let order = self.order(&plan);
        let starts = if verifies { starts(counts) } else { (0..=rows).collect() };
        let batch_rows: Vec<usize> =
            order.iter().flat_map(|request| starts[*request]..starts[request + 1]).collect();
        if order.is_empty() {
            let (sequences, gpu) = self.pool.gpu_parts();
            gpu.assign_batch(sequences, batch, verifies)?;
        } else {
            let ordered: Vec<Slot> = order.iter().map(|request| slots[*request]).collect();
            let picked = batch.pick(&batch_rows);
            let picked = Batch { slots: &ordered, hooks: &[], ..picked.batch() };
            if verifies {
                let counts: Vec<u32> = order.iter().map(|request| counts[*request]).collect();
                let batch_requests: Vec<u32> = order.iter().map(|request| *request as u32).collect();
                let (counts, batch_requests) = (&counts[..], &batch_requests[..]);
                let drafts = DraftCounts { counts, rule: rule(batch.mode), batch_requests };
                let (sequences, gpu) = self.pool.gpu_parts();
                gpu.assign_rows(sequences, &picked, rows, Some(drafts))?;
            } else {
                let (sequences, gpu) = self.pool.gpu_parts();
                gpu.assign_batch(sequences, &picked, false)?;
            }
        }
        let mode = if verifies { &batch.mode.words()[..] } else { &[] };
        let mut digest = self.digest(&plan, slots, (batch, rows), mode);
        digest.extend(StepPart::Drafts, counts.iter().map(|count| u64::from(*count)));
        self.note_assignment(&plan, batch, verifies, (batch_rows, digest))
    }

    /// Checks what every assignment must have.
    fn check_assignment(&self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        self.planner.check(plan.layout)?;
        if plan.shares.requests() != batch.slots.len() {
            let allowed = format!("{}, as many as were planned for", plan.shares.requests());
            return Err(Error::length("slots", batch.slots.len(), allowed));
        }
        if !batch.row_indices.is_empty() {
            let reason = "each row of a step over ranks has logits of its own";
            return Err(Error::Conflict { parameter: "row_indices", other: "ranks", reason });
        }
        Ok(())
    }

    /// Returns the requests of the batch in the order in which they are assigned, in which those of a rank are neighbours; nothing if that is
    /// the batch's own.
    fn order(&self, plan: &Plan) -> Vec<usize> {
        let order: Vec<usize> = (0..self.group.world()).flat_map(|rank| plan.shares.of(rank)).collect();
        if plan.layout == LogitsLayout::Gather || order.is_sorted() { Vec::new() } else { order }
    }

    /// Notes an assignment that the pool has taken, and writes its order of rows and its digest to the windows. `batch_rows`: for each assigned
    /// row its number in the batch; empty if the two orders are the same.
    fn note_assignment(
        &mut self,
        plan: &Plan,
        batch: &Batch<'_>,
        verifies: bool,
        (batch_rows, digest): (Vec<usize>, StepDigest),
    ) -> Result<()> {
        let batch_rows: Vec<u32> = batch_rows.into_iter().map(|row| row as u32).collect();
        if batch_rows != self.assigned.batch_rows {
            self.windows.set_batch_rows(&batch_rows)?;
            self.assigned.batch_rows = batch_rows;
        }
        self.assigned.digest = digest;
        self.set_digest(digest)?;
        let rows = |request: usize| if verifies { batch.counts[request] as usize + 1 } else { 1 };
        let (mut first_rows, mut first_requests) = (vec![0], vec![0]);
        for rank in 0..self.group.world() {
            let share = || plan.shares.of(rank);
            first_rows.push(first_rows[rank] + share().map(rows).sum::<usize>());
            first_requests.push(first_requests[rank] + share().count());
        }
        self.assigned.slots = batch.slots.to_vec();
        self.assigned.drafts = verifies.then(|| (batch.counts.to_vec(), batch.mode));
        self.assigned.plan = Some(*plan);
        (self.assigned.first_rows, self.assigned.first_requests) = (first_rows, first_requests);
        Ok(())
    }

    /// Sets the digest that the next step's exchanges compare.
    fn set_digest(&mut self, digest: StepDigest) -> Result<()> {
        self.windows.set_digest(digest.whole())?;
        self.digest = digest;
        Ok(())
    }

    /// Returns the digest of everything that all ranks must have alike in a step, except positions, which devices advance by themselves.
    /// `rows`: their number; `shape`: the mode of a verification.
    fn digest(
        &self,
        plan: &Plan,
        slots: &[Slot],
        (batch, rows): (&Batch<'_>, usize),
        shape: &[u64],
    ) -> StepDigest {
        let mut digest = StepDigest::default();
        digest.add(StepPart::Shape, plan.layout as u64);
        digest.extend(StepPart::Shape, shape.iter().copied());
        for slot in slots {
            digest.add(StepPart::Slots, *slot as u64);
            let Ok(sequence) = self.pool.slots.sequence(*slot) else { continue };
            self.requests.add(&mut digest, *slot, sequence);
        }
        add_batch(&mut digest, batch, rows);
        digest
    }

    /// Enqueues steps, verifications, and what takes tokens away, for what was assigned last, on all ranks, in this order, and returns before the
    /// devices have finished: as [`Pool::enqueue`](crate::Pool::enqueue) does.
    ///
    /// The owner of a request samples its rows or judges its drafts, and sends what came out to all ranks; each advances all requests by the
    /// emitted tokens, so more work may follow at once. If the host program is capturing the device's stream in a graph of its own, the work
    /// becomes part of it.
    ///
    /// # Shapes and units
    /// Of [`Work::Step`] and [`Work::Verify`] the rows are one for each slot, or for each request and draft, of this rank's ids, which may
    /// be followed by padding up to [`VocabSplit::width`](gumball_dist::VocabSplit::width); under `Replicated` whole rows, those of this
    /// rank's requests, in turn. They may be written again once the step is done. Drafts are those of the whole batch, with the same values on
    /// all ranks; so are the counts of [`Work::Shorten`].
    ///
    /// # Errors
    /// - Those of [`Pool::enqueue`](crate::Pool::enqueue), and [`Error::Length`] for rows of another shape than the layout has.
    /// - [`Error::Conflict`] for masks, hidden states and drafts of batches; and for [`Work::Shorten`] if the requests of ranks are not
    ///   neighbours in the batch: the numbers come in its order.
    /// - [`RanksError::Broken`] after an exchange that failed.
    ///
    /// Nothing was sent then.
    pub fn enqueue(&mut self, work: &[Work<'_>]) -> Result<()> {
        self.check_broken()?;
        for work in work.iter().filter(|_| work.len() > 1) {
            self.with_placed(work, |pool, work, _| pool.fix(work).map(drop))?;
        }
        work.iter().try_for_each(|work| self.with_placed(work, Self::enqueue_placed))
    }

    /// Copies what lies in the memory of the host to the device, and does something with the work and the digest of its step.
    fn with_placed<T>(
        &mut self,
        work: &Work<'_>,
        then: impl FnOnce(&mut Self, &Work<'_>, StepDigest) -> Result<T>,
    ) -> Result<T> {
        let mut digest = self.assigned.digest;
        if let Work::Verify(_, _, Drafts { ids: Ids::Host(ids), .. }) = work {
            digest.extend(StepPart::Drafts, ids.iter().map(|id| *id as u64));
        }
        let (_, gpu) = self.pool.gpu_parts();
        let mut uploads = std::mem::take(&mut gpu.uploads);
        let placed = uploads.place(gpu.device.runtime(), *work, |drafts| {
            let slots = &self.assigned.slots;
            match &self.assigned.drafts {
                Some((counts, mode)) => {
                    let of = Batch { counts, mode: *mode, ..Batch::of(slots) };
                    gpu.read_drafts(slots, &Drafted::of(&of), drafts)
                }
                None if slots.is_empty() => gpu.read_drafts(&[], &Drafted::default(), drafts),
                None => Err(no_draft_counts()),
            }
        });
        let done = placed.and_then(|work| then(self, &work, digest));
        self.pool.gpu_parts().1.uploads = uploads;
        done
    }

    /// Enqueues work that lies in the memory of the device.
    fn enqueue_placed(&mut self, work: &Work<'_>, digest: StepDigest) -> Result<()> {
        self.check_work(work)?;
        if let Work::Shorten(_) = work {
            let (sequences, gpu) = self.pool.gpu_parts();
            return gpu.enqueue_all(sequences, &[*work], None);
        }
        self.set_digest(digest)?;
        let Self { pool, group, windows, .. } = self;
        let spread = spread(&self.assigned, &self.planner, group.rank())?;
        let (sequences, gpu) = pool.gpu_parts();
        let input = StepInput { ranks: Some((&*windows, &spread)), ..gpu.step_input(work)? };
        let is_emulated = gpu.device.gpu().is_none();
        let enqueue = || gpu.enqueue_step(sequences, &input, None);
        let (enqueued, gone) = beside(group, windows, is_emulated, enqueue);
        self.gone = self.gone.take().or(gone);
        if enqueued? {
            self.note_step();
        }
        Ok(())
    }

    /// Checks that work is of a kind that ranks take.
    fn check_work(&self, work: &Work<'_>) -> Result<()> {
        let (parameter, other, reason) = match work {
            Work::Step(..) | Work::Verify(..) => return Ok(()),
            Work::Shorten(_) if self.assigned.batch_rows.is_empty() => return Ok(()),
            Work::Shorten(_) => {
                let reason =
                    "the requests were assigned in another order than the batch's; own them in blocks";
                ("ownership", "counts", reason)
            }
            Work::Draft(..) | Work::CopyDrafts(..) => {
                ("batch", "ranks", "drafts are drawn on each rank alone")
            }
        };
        Err(Error::Conflict { parameter, other, reason })
    }

    /// Captures steps or verifications over rows of the device, to be replayed in this order by [`DeviceDistPool::replay`]. Nothing runs yet.
    ///
    /// A replay uses the assignment of that moment, and reads the drafts that lie there then. The layout, the mode, and the numbers of requests and
    /// of rows that each rank owns must stay the same; how many drafts each request has may change within these.
    ///
    /// # Errors
    /// Those of [`DeviceDistPool::enqueue`], and [`Error::OutOfRange`] for what lies in the memory of the host.
    pub fn capture<'b>(&self, work: &[Work<'b>]) -> Result<Graph<'b>> {
        self.check_broken()?;
        let fixed = work.iter().map(|work| self.fix(work)).collect::<Result<_>>()?;
        gpu_of(&self.pool).workspace.capture_work(fixed)
    }

    fn fix<'b>(&self, work: &Work<'b>) -> Result<Fixed<'b>> {
        self.check_work(work)?;
        let spread = spread(&self.assigned, &self.planner, self.group.rank())?;
        gpu_of(&self.pool).fix(work, Some((&self.windows, &spread)))
    }

    /// Enqueues the steps or verifications of a graph.
    ///
    /// # Errors
    /// - Those of [`Pool::replay`](crate::Pool::replay).
    /// - [`Error::Conflict`] if the assignment has another layout than the capture's had, or other numbers of rows of ranks.
    /// - [`RanksError::Broken`] after an exchange that failed.
    ///
    /// # Panics
    /// If another pool captured the graph.
    pub fn replay(&mut self, graph: &Graph<'_>) -> Result<()> {
        self.check_broken()?;
        graph.check_spread(&self.windows, &spread(&self.assigned, &self.planner, self.group.rank())?)?;
        self.set_digest(self.assigned.digest)?;
        let (sequences, gpu) = self.pool.gpu_parts();
        let is_emulated = gpu.device.gpu().is_none();
        let replay = || gpu.replay_graph(sequences, graph);
        let (replayed, gone) = beside(&mut self.group, &self.windows, is_emulated, replay);
        self.gone = self.gone.take().or(gone);
        replayed?;
        (0..graph.steps()).for_each(|_| self.note_step());
        Ok(())
    }

    /// Prepares for replays of the host program's own graph that take `steps` steps or verifications of this pool in all, with the current assignment, whose
    /// layout and numbers of rows of ranks must be those of the capture. See [`OnDevice::reserve_replays`](crate::OnDevice::reserve_replays).
    ///
    /// # Errors
    /// - Those of [`OnDevice::reserve_replays`](crate::OnDevice::reserve_replays).
    /// - [`RanksError::Broken`] after an exchange that failed.
    pub fn reserve_replays(&mut self, steps: usize) -> Result<()> {
        self.check_broken()?;
        self.set_digest(self.assigned.digest)?;
        let (sequences, gpu) = self.pool.gpu_parts();
        gpu.reserve(sequences, steps, StepVariant::Full)?;
        (0..steps).for_each(|_| self.note_step());
        Ok(())
    }

    /// Counts a step, whose results come in the order of the batch.
    pub(super) fn note_step(&mut self) {
        let Assigned { slots, drafts, plan, .. } = &self.assigned;
        self.pool.gpu_parts().1.note_order(slots, drafts.as_ref().map(|(counts, _)| counts));
        plan.iter().for_each(|plan| self.planner.count(plan));
    }

    /// Waits for the enqueued steps and copies the results of the last one into `out`: the whole batch, on every rank.
    ///
    /// # Errors
    /// - [`RanksError::TimedOut`] if a rank was late, [`RanksError::Lost`] if it was gone, [`RanksError::Disagree`] if it took another step,
    ///   [`RanksError::Interrupted`] if the program wants to wait no longer. The group is broken then.
    /// - [`Error::Conflict`] if `out` collects kept sets.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        self.check_broken()?;
        refuse_kept(out)?;
        let layout = gpu_of(&self.pool).outputs_layout();
        let (whole, _) = out.whole(layout)?;
        let Some(starts) = gpu_of(&self.pool).last.counts.as_deref().map(starts) else {
            return self.read(layout, whole);
        };
        let (requests, results) = (gpu_of(&self.pool).last.slots.len(), layout.words());
        let mut words = vec![0; results + layout.rows + requests];
        self.read(layout, &mut words)?;
        whole.copy_from_slice(&words[..results]);
        out.note_walks(&starts, words[results..][..layout.rows].to_vec());
        Ok(())
    }

    /// Reads the last step's results, and of a verification its walks if `words` have room for them; updates the host's sequences.
    pub(super) fn read(&mut self, layout: Layout, words: &mut [u32]) -> Result<()> {
        let Some(failure) = self.read_results(words)? else {
            let (sequences, gpu) = self.pool.gpu_parts();
            return gpu.apply(sequences, words);
        };
        let has_gone = self.gone.as_ref().is_some_and(is_lost);
        if has_gone && matches!(failure, ExchangeFailure::GivenUp { .. }) && self.is_drawn(layout, words) {
            // The rank went after it had sent what this step needs; the next one is an error.
            self.broken = self.gone.take();
            let (sequences, gpu) = self.pool.gpu_parts();
            return gpu.apply(sequences, words);
        }
        let error = self.failed(failure);
        self.broken = Some(error.clone());
        // The device's copies may be a step ahead: the host's are those to go on from.
        let (sequences, gpu) = self.pool.gpu_parts();
        gpu.forget_unseen(sequences);
        Err(error)
    }

    /// Returns whether the step was completed: after a failure its results are the same as for padding.
    fn is_drawn(&self, layout: Layout, words: &[u32]) -> bool {
        let (tokens, statuses) = (&words[layout.tokens()], &words[layout.statuses()]);
        let counts = gpu_of(&self.pool).last.counts.iter().flatten().copied().chain(std::iter::repeat(0));
        let mut end = 0;
        gpu_of(&self.pool).last.slots.iter().zip(counts).all(|(slot, count)| {
            let first = end;
            end += count as usize + 1;
            // A row that was drawn without a token has a status.
            *slot == PADDING || tokens[first] as i32 != NONE || statuses[first] != 0
        })
    }

    /// Reads the last step's results, if the host has not done so yet.
    pub(super) fn observe_last_step(&mut self) -> Result<()> {
        if self.broken.is_none() && !gpu_of(&self.pool).last.observed {
            let layout = gpu_of(&self.pool).outputs_layout();
            let mut words = vec![0; layout.words()];
            self.read(layout, &mut words)?;
        }
        Ok(())
    }

    /// Returns whether steps of the assigned rows send whole rows: all of them under `Gather` and `Swap`, none under `Replicated`. Under `Survey`
    /// rows of logits are swapped that need more than a winner or a list of each rank: those with edits, masks or logprobs, and those of which a filter
    /// weighs the whole row. Probabilities are swapped always.
    #[must_use]
    pub fn sends_rows(&self) -> bool {
        match self.assigned.plan.map(|plan| plan.layout) {
            None | Some(LogitsLayout::Replicated) => false,
            Some(LogitsLayout::Gather | LogitsLayout::Swap) => true,
            Some(LogitsLayout::Survey) => !gpu_of(&self.pool).workspace.rows().is_decided_in_shards(),
        }
    }

    /// Returns the address of the last step's results in the device's memory; it never changes. The tokens come first.
    #[must_use]
    pub fn results_address(&self) -> u64 {
        self.windows.results_address()
    }

    /// Returns the layout of the results of the rows that were assigned last, and the number of requests whose walks follow them: 0 in a step.
    #[must_use]
    pub fn results_layout(&self) -> (Layout, usize) {
        let rows = self.assigned.first_rows.last().copied().unwrap_or(0);
        let requests = self.assigned.drafts.as_ref().map_or(0, |(counts, _)| counts.len());
        (Layout { rows, ..gpu_of(&self.pool).outputs_layout() }, requests)
    }

    pub(super) fn check_broken(&self) -> Result<()> {
        self.broken.as_ref().map_or(Ok(()), |error| Err(RanksError::Broken(Box::new(error.clone())).into()))
    }
}

/// Refuses outputs that collect kept sets, before a step advances sequences.
pub(super) fn refuse_kept(out: &Outputs) -> Result<()> {
    if out.collects_kept() {
        let reason = "kept sets are not sent to other ranks";
        return Err(Error::Conflict { parameter: "Outputs::with_kept", other: "ranks", reason });
    }
    Ok(())
}

/// Returns how the assigned rows are spread over the ranks.
pub(super) fn spread<'a>(assigned: &'a Assigned, planner: &Planner, rank: usize) -> Result<RankRows<'a>> {
    let Assigned { plan, first_rows, first_requests, .. } = assigned;
    let layout = match plan.map(|plan| plan.layout) {
        Some(LogitsLayout::Gather) => ExchangeLayout::Gather,
        Some(LogitsLayout::Swap) => ExchangeLayout::Swap,
        Some(LogitsLayout::Survey) => ExchangeLayout::Survey,
        Some(LogitsLayout::Replicated) => ExchangeLayout::Replicated,
        None => {
            let reason = "assign rows under a layout first";
            return Err(Error::Conflict { parameter: "assignment", other: "step", reason });
        }
    };
    let ids = planner.split().ids(rank);
    Ok(RankRows { layout, first_rows, first_requests, ids: (ids.start, ids.end) })
}
