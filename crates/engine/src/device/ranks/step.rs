//! A step over the devices of ranks: one token for each row, under the layout that was planned.

use gumball_cuda::{ExchangeFailure, ExchangeLayout, Graph, RankRows, Rows, Step, StepInput, StepVariant};
use gumball_dist::{LogitsLayout, Plan, Planner, StepDigest, StepKind, StepPart};
use gumball_spec::layout::Layout;
use gumball_spec::{Error, NONE, RanksError, Result};

use super::super::input::{DeviceOptions, copy_up};
use super::watch::beside;
use super::{Assigned, DeviceDistPool, is_lost};
use crate::batch::Batch;
use crate::drafts::starts;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::ranks::alike::add_batch;
use crate::slot::{PADDING, Slot};

impl DeviceDistPool {
    /// Chooses the next token of each row of the host's memory, as [`DistPool::step`](crate::DistPool::step) does. The call copies the
    /// rows to the device and the results back.
    ///
    /// # Errors
    /// - Those of [`DeviceDistPool::enqueue`] and [`DeviceDistPool::fetch`].
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host.
    pub fn step(&mut self, rows: crate::Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        let logits = rows.of_rank(batch)?;
        batch.refuse_drafts("step")?;
        batch.check(batch.slots.len(), self.pool.vocab())?;
        self.pool.refuse_hooks(batch, batch.slots.len())?;
        refuse_kept(out)?;
        let plan = self.planned(batch, 0, StepKind::Decode)?;
        self.assign(&plan, batch.slots, &DeviceOptions::of(batch))?;
        self.with_rows(logits, |pool, rows| pool.enqueue_assigned(rows))?;
        self.fetch(out)
    }

    /// Returns the plan of a batch, or decides for it as [`DeviceDistPool::plan`] does. `drafts`: the most of a request.
    pub(super) fn planned(&self, batch: &Batch<'_>, drafts: usize, kind: StepKind) -> Result<Plan> {
        batch.plan.map_or_else(|| self.plan(&self.shape(batch.slots, drafts, kind)?), Ok)
    }

    /// Copies rows of the host up, and does work with them.
    pub(super) fn with_rows<T>(
        &mut self,
        logits: Logits<'_>,
        work: impl FnOnce(&mut Self, Rows<'_>) -> Result<T>,
    ) -> Result<T> {
        let (matrix, kind) = (logits.matrix(), logits.kind());
        let (data, stride) = matrix.to_last();
        let (buffer, dtype) = copy_up(self.pool.device.runtime(), &mut self.pool.upload, data)?;
        let rows = Rows::of(&buffer, dtype, 0, matrix.rows(), matrix.width(), stride);
        let done = rows.and_then(|rows| work(self, rows.with_kind(kind)));
        self.pool.upload = Some(buffer);
        done
    }

    /// Enqueues a step: the next token of each row, appended to the sequence in the row's slot, on all ranks.
    ///
    /// # Shapes and units
    /// `slots`, `options`: those of the whole batch, the same on all ranks. `rows`: one row for each slot, of this rank's ids, which may
    /// be followed by padding up to [`VocabSplit::width`](gumball_dist::VocabSplit::width); under `Replicated` a row of the whole vocabulary for each
    /// request of this rank's share, in turn. They may be written again once the step is done.
    ///
    /// # Errors
    /// Those of [`DeviceDistPool::assign`] and [`DeviceDistPool::enqueue_assigned`]. Nothing was sent then.
    pub fn enqueue(
        &mut self,
        plan: &Plan,
        rows: Rows<'_>,
        slots: &[Slot],
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.assign(plan, slots, options)?;
        self.enqueue_assigned(rows)
    }

    /// Assigns slots, options and a layout to the rows of the next steps, those of captured graphs included.
    ///
    /// # Errors
    /// - Those of [`DevicePool::assign`](crate::DevicePool::assign), and [`Error::OutOfRange`] for a layout that was not configured.
    /// - [`Error::Length`] if there are not as many slots as were planned for.
    /// - [`Error::Conflict`] for row indices.
    /// - [`RanksError::Broken`] after an exchange that failed.
    pub fn assign(&mut self, plan: &Plan, slots: &[Slot], options: &DeviceOptions<'_>) -> Result<()> {
        self.check_assignment(plan, slots, options)?;
        options.on_host().check(slots.len(), self.pool.vocab())?;
        let order = self.order(plan);
        if order.is_empty() {
            self.pool.assign(slots, options)?;
        } else {
            let ordered: Vec<Slot> = order.iter().map(|row| slots[*row]).collect();
            let on_host = options.on_host();
            let picked = on_host.pick(&order);
            let Batch { masks, forced, .. } = picked.batch();
            self.pool.assign(&ordered, &DeviceOptions { masks, forced, row_indices: &[] })?;
        }
        let digest = self.digest(plan, slots, (&options.on_host(), slots.len()), &[]);
        self.note_assignment(plan, slots, None, (order, digest))
    }

    /// Checks what every assignment must have.
    pub(super) fn check_assignment(
        &self,
        plan: &Plan,
        slots: &[Slot],
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.check_broken()?;
        self.planner.check(plan.layout)?;
        if plan.shares.requests() != slots.len() {
            let allowed = format!("{}, as many as were planned for", plan.shares.requests());
            return Err(Error::length("slots", slots.len(), allowed));
        }
        if !options.row_indices.is_empty() {
            let reason = "each row of a step over ranks has logits of its own";
            return Err(Error::Conflict { parameter: "row_indices", other: "ranks", reason });
        }
        Ok(())
    }

    /// Returns the requests of the batch in the order in which they are assigned, in which those of a rank are neighbours; nothing if that is
    /// the batch's own.
    pub(super) fn order(&self, plan: &Plan) -> Vec<usize> {
        let order: Vec<usize> = (0..self.group.world()).flat_map(|rank| plan.shares.of(rank)).collect();
        if plan.layout == LogitsLayout::Gather || order.is_sorted() { Vec::new() } else { order }
    }

    /// Notes an assignment that the pool has taken, and writes its order of rows and its digest to the windows. `counts`: how many drafts each
    /// request of the batch has. `batch_rows`: for each assigned row its number in the batch; empty if the two orders are the same.
    pub(super) fn note_assignment(
        &mut self,
        plan: &Plan,
        slots: &[Slot],
        counts: Option<&[u32]>,
        (batch_rows, digest): (Vec<usize>, StepDigest),
    ) -> Result<()> {
        let batch_rows: Vec<u32> = batch_rows.into_iter().map(|row| row as u32).collect();
        if batch_rows != self.assigned.batch_rows {
            self.windows.set_batch_rows(&batch_rows)?;
            self.assigned.batch_rows = batch_rows;
        }
        self.windows.set_digest(digest.whole())?;
        self.assigned.digest = digest;
        let rows = |request: usize| counts.map_or(1, |counts| counts[request] as usize + 1);
        let (mut first_rows, mut first_requests) = (vec![0], vec![0]);
        for rank in 0..self.group.world() {
            let share = || plan.shares.of(rank);
            first_rows.push(first_rows[rank] + share().map(rows).sum::<usize>());
            first_requests.push(first_requests[rank] + share().count());
        }
        self.assigned.slots = slots.to_vec();
        self.assigned.counts = counts.map(<[u32]>::to_vec);
        self.assigned.plan = Some(*plan);
        (self.assigned.first_rows, self.assigned.first_requests) = (first_rows, first_requests);
        Ok(())
    }

    /// Returns the digest of everything that all ranks must have alike in a step, except positions, which devices advance by themselves.
    /// `rows`: their number; `shape`: the mode of a verification.
    pub(super) fn digest(
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

    /// Enqueues a step for the rows that were assigned last; it only launches kernels, and returns before the devices have finished.
    ///
    /// If the host program is capturing the device's stream in a graph of its own, the step becomes part of it.
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_assigned`](crate::DevicePool::enqueue_assigned), and [`Error::Length`] for rows of another shape than the
    ///   layout has.
    /// - [`RanksError::Broken`] after an exchange that failed.
    pub fn enqueue_assigned(&mut self, rows: Rows<'_>) -> Result<()> {
        self.check_broken()?;
        let Self { pool, group, windows, .. } = self;
        let spread = spread(&self.assigned, &self.planner, group.rank())?;
        let input = StepInput { ranks: Some((&*windows, &spread)), ..StepInput::of(&rows) };
        let is_emulated = pool.device().gpu().is_none();
        let enqueue = || pool.enqueue_step(&input, None);
        let (enqueued, gone) = beside(group, windows, is_emulated, enqueue);
        self.gone = self.gone.take().or(gone);
        if enqueued? {
            self.note_step();
        }
        Ok(())
    }

    /// Captures a step for each of several arrays of rows, to be replayed in this order. Nothing runs yet.
    ///
    /// A replay uses the assignment of that moment, which must have the layout and the number of rows of the one at the capture.
    ///
    /// # Errors
    /// Those of [`DeviceDistPool::enqueue_assigned`].
    pub fn capture<'b>(&self, rows: &[Rows<'b>]) -> Result<Graph<'b>> {
        self.check_broken()?;
        let spread = spread(&self.assigned, &self.planner, self.group.rank())?;
        let ranks = Some((&self.windows, &spread));
        let step = |rows: &Rows<'b>| self.pool.workspace.fix(&StepInput { ranks, ..StepInput::of(rows) });
        let steps: Vec<Step<'b>> = rows.iter().map(step).collect::<Result<_>>()?;
        self.pool.workspace.capture(&steps)
    }

    /// Enqueues the steps or verifications of a graph.
    ///
    /// # Errors
    /// - Those of [`DevicePool::replay`](crate::DevicePool::replay).
    /// - [`Error::Conflict`] if the assignment has another layout than the capture's had, or other numbers of rows of ranks.
    /// - [`RanksError::Broken`] after an exchange that failed.
    ///
    /// # Panics
    /// If another pool captured the graph.
    pub fn replay(&mut self, graph: &Graph<'_>) -> Result<()> {
        self.check_broken()?;
        graph.check_spread(&self.windows, &spread(&self.assigned, &self.planner, self.group.rank())?)?;
        let is_emulated = self.pool.device().gpu().is_none();
        let replay = || self.pool.replay(graph);
        let (replayed, gone) = beside(&mut self.group, &self.windows, is_emulated, replay);
        self.gone = self.gone.take().or(gone);
        replayed?;
        (0..graph.steps()).for_each(|_| self.note_step());
        Ok(())
    }

    /// Prepares for replays of the host program's own graph that take `steps` steps or verifications of this pool in all, with the current assignment, whose
    /// layout and numbers of rows of ranks must be those of the capture. See [`DevicePool::reserve_replays`](crate::DevicePool::reserve_replays).
    ///
    /// # Errors
    /// - Those of [`DevicePool::reserve_replays`](crate::DevicePool::reserve_replays).
    /// - [`RanksError::Broken`] after an exchange that failed.
    pub fn reserve_replays(&mut self, steps: usize) -> Result<()> {
        self.check_broken()?;
        self.pool.reserve_replays(steps, StepVariant::Full)?;
        (0..steps).for_each(|_| self.note_step());
        Ok(())
    }

    /// Counts a step, whose results come in the order of the batch.
    pub(super) fn note_step(&mut self) {
        self.pool.note_order(&self.assigned.slots, self.assigned.counts.as_ref());
        self.assigned.plan.iter().for_each(|plan| self.planner.count(plan));
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
        let layout = self.pool.outputs_layout();
        let (whole, _) = out.whole(layout)?;
        let Some(starts) = self.pool.last.counts.as_deref().map(starts) else {
            return self.read(layout, whole);
        };
        let (requests, results) = (self.pool.last.slots.len(), layout.words());
        let mut words = vec![0; results + layout.rows + requests];
        self.read(layout, &mut words)?;
        whole.copy_from_slice(&words[..results]);
        out.note_walks(&starts, words[results..][..layout.rows].to_vec());
        Ok(())
    }

    /// Reads the last step's results, and of a verification its walks if `words` have room for them; updates the host's sequences.
    pub(super) fn read(&mut self, layout: Layout, words: &mut [u32]) -> Result<()> {
        let Some(failure) = self.read_results(words)? else {
            return self.pool.apply(words);
        };
        let has_gone = self.gone.as_ref().is_some_and(is_lost);
        if has_gone && matches!(failure, ExchangeFailure::GivenUp { .. }) && self.is_drawn(layout, words) {
            // The rank went after it had sent what this step needs; the next one is an error.
            self.broken = self.gone.take();
            return self.pool.apply(words);
        }
        let error = self.failed(failure);
        self.broken = Some(error.clone());
        // The device's copies may be a step ahead: the host's are those to go on from.
        self.pool.forget_unseen();
        Err(error)
    }

    /// Returns whether the step was completed: after a failure its results are the same as for padding.
    fn is_drawn(&self, layout: Layout, words: &[u32]) -> bool {
        let (tokens, statuses) = (&words[layout.tokens()], &words[layout.statuses()]);
        let counts = self.pool.last.counts.iter().flatten().copied().chain(std::iter::repeat(0));
        let mut end = 0;
        self.pool.last.slots.iter().zip(counts).all(|(slot, count)| {
            let first = end;
            end += count as usize + 1;
            // A row that was drawn without a token has a status.
            *slot == PADDING || tokens[first] as i32 != NONE || statuses[first] != 0
        })
    }

    /// Reads the last step's results, if the host has not done so yet.
    pub(super) fn observe_last_step(&mut self) -> Result<()> {
        if self.broken.is_none() && !self.pool.last.observed {
            let layout = self.pool.outputs_layout();
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
            Some(LogitsLayout::Survey) => !self.pool.workspace.rows().is_decided_in_shards(),
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
        let requests = self.assigned.counts.as_ref().map_or(0, Vec::len);
        (Layout { rows, ..self.pool.outputs_layout() }, requests)
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
