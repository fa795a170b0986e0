//! The workspace: requests by slot, rows that they are assigned to, and memory for steps, whose size is fixed
//! when the workspace is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gumball_spec::{Error, Result};

use crate::abi::{self, Slot};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::pipeline::assignment::{Assignment, DraftBatchId, WorkspaceLimits};
use crate::pipeline::probability_rows::ProbabilityRows;
use crate::pipeline::proposals::{DraftBatchLimits, Proposals};
use crate::pipeline::results::Results;
use crate::pipeline::row_batch::RowBatch;
use crate::pipeline::scratch::Scratch;
use crate::requests::prepared::Prepared;
use crate::requests::request_table::{InitialState, Requests};

/// Requests by slot, and device memory for steps over them.
#[derive(Debug)]
pub struct Workspace {
    /// Identifies the workspace: a step or a graph works only in the workspace that made it.
    pub(crate) id: u64,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) limits: WorkspaceLimits,
    pub(crate) device: DeviceLimits,
    pub(crate) requests: Requests,
    pub(crate) scratch: Scratch,
    pub(crate) results: Results,
    /// The rows that a softmax fills, if steps draw from probabilities.
    pub(crate) probability_rows: Option<ProbabilityRows>,
    /// Whether steps search short kept sets like long ones.
    pub(crate) searches: bool,
    /// The workspace's own rows.
    rows: RowBatch,
    /// The rows of draft models, by the numbers of their batches.
    draft_batches: Vec<Option<RowBatch>>,
}

impl Workspace {
    /// Allocates the memory of a workspace.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` or another size is outside its range.
    /// - [`Error::Unavailable`] if the device or the host has not enough memory.
    pub fn new(runtime: Arc<dyn Runtime>, limits: WorkspaceLimits) -> Result<Self> {
        limits.check()?;
        let WorkspaceLimits { vocab, slots, rows, widths, .. } = limits;
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            // The largest buffers come first, so that a far too large workspace fails before it has allocated
            // much.
            scratch: Scratch::new(&runtime, rows, vocab)?,
            results: Results::new(&runtime, limits)?,
            requests: Requests::new(&runtime, vocab, slots, widths)?,
            rows: RowBatch::new(&runtime, limits)?,
            draft_batches: Vec::new(),
            probability_rows: None,
            searches: false,
            device: runtime.limits(),
            runtime,
            limits,
        })
    }

    /// Returns the workspace with steps that turn rows of logits into rows of probabilities first, and draw
    /// from those. Takes memory for the rows.
    ///
    /// Each row is a softmax at the temperature that [`Workspace::assign_temperatures`] gives it, in f32.
    /// Requests are those for rows of probabilities.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device has not enough memory, or the softmax cannot be compiled.
    pub fn with_softmax(mut self) -> Result<Self> {
        let WorkspaceLimits { vocab, rows, .. } = self.limits;
        self.probability_rows = Some(ProbabilityRows::new(&self.runtime, rows, vocab)?);
        Ok(self)
    }

    /// Lets the steps that are fixed from now on search short kept sets like long ones, or no longer, with
    /// the same results.
    #[cfg(feature = "testing")]
    pub fn set_searching(&mut self, searches: bool) {
        self.searches = searches;
    }

    /// Sets the temperature of the softmax of each row of the next steps.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one for each assigned row.
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If the workspace has no softmax.
    pub fn assign_temperatures(&mut self, temperatures: &[f32]) -> Result<()> {
        let rows = self.rows.shape.rows;
        if temperatures.len() != rows {
            return Err(Error::length("temperatures", temperatures.len(), format!("one per row, {rows}")));
        }
        let own = self.probability_rows.as_mut().expect("a workspace with a softmax");
        Ok(own.temperatures.write(0, temperatures)?)
    }

    /// Waits for the steps enqueued before, and reads the [`gumball_spec::Status`] bits that the last one's
    /// softmax found in each row of logits.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If the workspace has no softmax, or capacity for fewer rows.
    pub fn read_softmax_statuses(&self, statuses: &mut [u32]) -> Result<()> {
        let own = self.probability_rows.as_ref().expect("a workspace with a softmax");
        Ok(own.statuses.read(0, statuses)?)
    }

    /// Returns the workspace's capacity.
    #[must_use]
    pub fn limits(&self) -> WorkspaceLimits {
        self.limits
    }

    /// Puts a request into a slot, and replaces the request that was there.
    ///
    /// Allocates device memory, and then waits, only if the slot's lists have never been as long.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such slot, or the request was prepared for another vocabulary.
    /// - [`Error::OutOfRange`] if the request's `top_n` exceeds the capacity, or its history's capacity
    ///   exceeds a u32.
    /// - [`Error::Length`] if the request names more ids for logprobs than the capacity.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn admit(&mut self, slot: Slot, request: &Prepared, start: &InitialState<'_>) -> Result<()> {
        self.requests.admit(slot, request, start)?;
        self.follow(slot)
    }

    /// Empties a slot, and keeps its memory for the next request. Rows that are assigned to the slot become
    /// padding.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such slot.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        let Self { rows, draft_batches, requests, .. } = self;
        let mut batches = std::iter::once(rows).chain(draft_batches.iter_mut().flatten());
        batches.try_for_each(|batch| batch.retire(requests, slot))?;
        requests.release(slot)
    }

    /// Enlarges the history in a slot to take `history_growth` more ids than it has now, if the slot keeps
    /// one. Waits for the steps enqueued before.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such slot, or the history's capacity would exceed a u32.
    /// - [`Error::Unavailable`] if the device has not enough memory, or fails.
    pub fn extend(&mut self, slot: Slot, history_growth: usize) -> Result<()> {
        self.requests.extend(slot, history_growth)?;
        self.follow(slot)
    }

    /// Recomputes what all rows keep of the request in a slot, which has changed.
    fn follow(&mut self, slot: Slot) -> Result<()> {
        let Self { rows, draft_batches, requests, .. } = self;
        let mut batches = std::iter::once(rows).chain(draft_batches.iter_mut().flatten());
        batches.try_for_each(|batch| batch.follow(requests, slot))
    }

    /// Records the lengths of the histories in some slots, prompts included. All steps that were enqueued for
    /// these slots must be counted in them.
    ///
    /// Steps with drafts take capacity for all tokens that they might have emitted; this returns what they
    /// did not use.
    pub fn note_lengths(&mut self, lengths: impl IntoIterator<Item = (Slot, usize)>) {
        self.requests.note_lengths(lengths);
    }

    /// Returns whether the histories of the assigned rows have capacity for the tokens of `steps` more steps,
    /// whatever is drawn, and for a path of drafts after them.
    #[must_use]
    pub fn has_history_left(&self, steps: u64) -> bool {
        let tokens = steps.saturating_mul(self.rows.tokens_per_step());
        self.requests.history_budget.left() >= tokens.saturating_add(self.longest_path() as u64)
    }

    /// Returns the most drafts that stand in front of an assigned row of a draft model.
    #[must_use]
    pub fn longest_path(&self) -> usize {
        self.draft_batches.iter().flatten().map(RowBatch::longest_path).max().unwrap_or(0)
    }

    /// Makes a batch of rows of a draft model.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for more rows than a step can have, for no rows or siblings, and for more than
    ///   64 siblings.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn add_draft_batch(&mut self, limits: DraftBatchLimits) -> Result<DraftBatchId> {
        limits.check(self.limits.rows)?;
        let batch = Some(RowBatch::of_drafts(&self.runtime, self.limits, limits)?);
        let index = match self.draft_batches.iter().position(Option::is_none) {
            Some(vacant) => vacant,
            None => {
                self.draft_batches.push(None);
                self.draft_batches.len() - 1
            }
        };
        self.draft_batches[index] = batch;
        Ok(DraftBatchId { workspace: self.id, index })
    }

    /// Frees a batch. Graphs that hold it must not run any more.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    pub fn remove_draft_batch(&mut self, id: DraftBatchId) -> Result<()> {
        self.batch(Some(id))?;
        self.draft_batches[id.index] = None;
        Ok(())
    }

    /// Assigns slots, forced tokens, row indices and bitmasks to rows: those of the next steps, or of a batch
    /// of drafts. Copies nothing if rows of a draft model have the assignment already, which has no bitmasks
    /// then.
    ///
    /// # Errors
    /// - [`Error::Length`] if there are more rows than the capacity, or the lists differ in length.
    /// - [`Error::OutOfRange`] if a slot or a token does not exist, a slot occurs twice in the rows of steps,
    ///   one has more than 64 drafts or a row of a draft model 64 in front of it, a threshold is outside
    ///   0..=1, or the workspace has no such batch.
    /// - [`Error::Unavailable`] if the device fails, or has not enough memory for drafts. Nothing is assigned
    ///   then.
    pub fn assign(&mut self, rows: &Assignment<'_>) -> Result<()> {
        if rows.of.is_some() {
            return self.assign_rows(rows);
        }
        let mut sorted: Vec<_> = rows.slots.iter().filter(|slot| **slot != -1).collect();
        sorted.sort_unstable();
        match sorted.array_windows().find(|[a, b]| a == b) {
            None => self.assign_rows(rows),
            Some([slot, _]) => Err(Error::out_of_range(
                "slots",
                format!("{slot} twice"),
                "a slot that stands in a step once",
            )),
        }
    }

    /// Assigns rows like [`Workspace::assign`], but several may share a slot, for steps that do not advance
    /// the request.
    pub(crate) fn assign_rows(&mut self, rows: &Assignment<'_>) -> Result<()> {
        self.batch(rows.of)?;
        let Self { requests, draft_batches, .. } = self;
        match rows.of.and_then(|id| draft_batches[id.index].as_mut()) {
            Some(batch) => batch.assign(requests, rows),
            None => {
                self.rows.assign(requests, rows)?;
                self.requests.history_budget.assign(rows.slots);
                Ok(())
            }
        }
    }

    /// Returns the requests in the slots.
    #[must_use]
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Returns the rows of steps.
    #[must_use]
    pub fn rows(&self) -> &RowBatch {
        &self.rows
    }

    /// Returns the results of the last step.
    #[must_use]
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Returns the rows of a batch of drafts, or of steps.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    pub fn batch(&self, of: Option<DraftBatchId>) -> Result<&RowBatch> {
        let Some(id) = of else { return Ok(&self.rows) };
        let batch = self.draft_batches.get(id.index).and_then(Option::as_ref);
        batch.filter(|_| id.workspace == self.id).ok_or_else(|| {
            Error::out_of_range("batch", id.index, "a batch of drafts that this pool made and still has")
        })
    }

    /// Returns the drafts of a batch.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the workspace has no such batch.
    pub fn proposals(&self, id: DraftBatchId) -> Result<&Proposals> {
        Ok(self.batch(Some(id))?.proposals.as_ref().expect("a batch of drafts"))
    }

    /// Returns the argument of a step's kernels over the requests in the slots, without rows.
    pub(crate) fn bare_step(&self) -> abi::Step {
        self.requests.step(self.scratch.step())
    }

    /// Returns the argument of a step's kernels for a part of the rows of a batch, without the logits.
    pub(crate) fn argument(&self, batch: &RowBatch, part: std::ops::Range<usize>) -> abi::Step {
        let step = self.bare_step();
        batch.step(if batch.proposals.is_some() { step } else { self.results.step(step) }, part)
    }
}
