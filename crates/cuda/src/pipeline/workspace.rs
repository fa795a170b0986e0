//! The workspace: requests by slot, and memory for steps, whose size is fixed when the workspace is made.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gumball_spec::layout::Layout;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Error, Kind, Result, TILE};

use crate::abi::dtype::Dtype;
use crate::abi::{self, Slot, TileRecord, TileSum};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::drafts;
use crate::memory::buffer::{Buffer, ROWS};
use crate::pipeline::assignment::{Assigned, Assignment, DraftShape, Shape, WorkspaceLimits};
use crate::pipeline::draft_batch::DraftBatch;
use crate::pipeline::draft_rows::{DraftCounts, DraftRows, StepDrafts};
use crate::pipeline::judged_rows::Trees;
use crate::pipeline::outputs::{Outputs, set_ids};
use crate::pipeline::probability_rows::ProbabilityRows;
use crate::pipeline::row_lists::{RowLists, mask_words};
use crate::pipeline::shared_rows::SharedRows;
use crate::pipeline::step_counters::StepCounters;
use crate::requests::prepared::Prepared;
use crate::requests::request_table::{InitialState, RequestState, RequestTable};
use crate::requests::step_features::{StepFeatures, Variant};
use crate::requests::step_variant::StepVariant;

/// Requests by slot, and device memory for steps over them.
#[derive(Debug)]
pub struct Workspace {
    /// Identifies the workspace: a step or a graph works only in the workspace that made it.
    pub(crate) id: u64,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) limits: WorkspaceLimits,
    pub(crate) device: DeviceLimits,
    pub(crate) table: RequestTable,
    lists: RowLists,
    /// The rows of drafts, once some were assigned.
    draft_rows: Option<DraftRows>,
    /// The rows of draft models, by the numbers of their batches.
    pub(crate) draft_batches: Vec<Option<DraftBatch>>,
    records: Buffer,
    filter_sums: Buffer,
    logprob_sums: Buffer,
    pub(crate) shared_rows: SharedRows,
    /// The rows that a softmax fills, if steps draw from probabilities.
    pub(crate) probability_rows: Option<ProbabilityRows>,
    scratch: Buffer,
    outputs: Buffer,
    kept: Buffer,
    pub(crate) assigned: Assigned,
    pub(crate) counters: StepCounters,
    pub(crate) captured: Captured,
    /// How many tokens the last call took away of each request, `[rows]`.
    pub(crate) taken: Buffer,
}

/// Whether the host program ever captured a step on rows of probabilities.
#[derive(Debug, Default)]
pub(crate) struct Captured(AtomicBool);

impl Captured {
    pub fn note(&self, kind: Kind) {
        self.0.fetch_or(kind == Kind::Probabilities, Ordering::Relaxed);
    }

    pub fn kind(&self) -> Kind {
        if self.0.load(Ordering::Relaxed) { Kind::Probabilities } else { Kind::Logits }
    }
}

/// The words behind a row's outputs for the walk through drafts: the row of a token, and how many drafts were accepted.
pub(crate) const WALK_WORDS: usize = 2;

impl Workspace {
    /// Allocates the memory of a workspace.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` or another size is outside its range.
    /// - [`Error::Unavailable`] if the device or the host has not enough memory.
    pub fn new(runtime: Arc<dyn Runtime>, limits: WorkspaceLimits) -> Result<Self> {
        limits.check()?;
        let WorkspaceLimits { vocab, slots, rows, widths, kept } = limits;
        let tiles = vocab.div_ceil(TILE);
        let mask_bytes = mask_words(vocab) * size_of::<u32>();
        let alloc = |bytes_per_row: usize| Buffer::sized(&runtime, ROWS, &[rows, bytes_per_row]);
        // The largest buffers come first, so that a far too large workspace fails before it has allocated
        // much.
        let scratch = alloc(abi::Step::scratch_words(tiles) * size_of::<u64>())?;
        let outputs = alloc((Layout { rows: 1, widths }.words() + WALK_WORDS) * size_of::<u32>())?;
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            table: RequestTable::new(&runtime, vocab, slots, widths)?,
            lists: RowLists::new(&runtime, rows, vocab)?,
            draft_rows: None,
            draft_batches: Vec::new(),
            shared_rows: SharedRows::new(&runtime, rows, vocab)?,
            probability_rows: None,
            records: alloc(tiles * size_of::<TileRecord>())?,
            filter_sums: alloc(tiles * size_of::<u64>())?,
            logprob_sums: alloc(tiles * size_of::<TileSum>())?,
            scratch,
            outputs,
            kept: alloc(if kept { mask_bytes } else { 0 })?,
            assigned: Assigned::default(),
            counters: StepCounters::default(),
            captured: Captured::default(),
            taken: alloc(size_of::<u32>())?,
            device: runtime.limits(),
            runtime,
            limits,
        })
    }

    /// Returns the workspace with steps that turn rows of logits into rows of probabilities first, and draw from
    /// those. Takes memory for the rows.
    ///
    /// Each row is a softmax at the temperature that [`Workspace::assign_temperatures`] gives it, in f32. Requests
    /// are those for rows of probabilities.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device has not enough memory, or the softmax cannot be compiled.
    pub fn with_softmax(mut self) -> Result<Self> {
        let WorkspaceLimits { vocab, rows, .. } = self.limits;
        self.probability_rows = Some(ProbabilityRows::new(&self.runtime, rows, vocab)?);
        Ok(self)
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
        if temperatures.len() != self.rows() {
            let allowed = format!("one per row, {}", self.rows());
            return Err(Error::length("temperatures", temperatures.len(), allowed));
        }
        self.probability_rows.as_mut().expect("a workspace with a softmax").write_temperatures(temperatures)
    }

    /// Waits for the steps enqueued before, and reads the [`gumball_spec::Status`] bits that the last one's softmax
    /// found in each row of logits.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If the workspace has no softmax, or capacity for fewer rows.
    pub fn read_softmax_statuses(&self, statuses: &mut [u32]) -> Result<()> {
        self.probability_rows.as_ref().expect("a workspace with a softmax").read_statuses(statuses)
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
        self.table.admit(slot, request, start)?;
        self.place_draft_lists(slot)
    }

    /// Empties a slot, and keeps its memory for the next request. A row that is still assigned to the slot is
    /// drawn without edits and filters; a row of a draft model becomes padding.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such slot.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        self.draft_batches.iter_mut().flatten().try_for_each(|batch| batch.retire(slot))?;
        self.table.release(slot)
    }

    /// Returns whether the histories of the assigned rows have capacity for the tokens of `steps` more steps,
    /// whatever is drawn, and for a path of drafts behind them.
    #[must_use]
    pub fn has_history_left(&self, steps: u64) -> bool {
        let tokens = steps.saturating_mul(self.assigned.tokens_per_step);
        self.table.has_history_left(tokens.saturating_add(self.longest_path() as u64))
    }

    /// Returns the most drafts that stand in front of an assigned row of a draft model.
    #[must_use]
    pub fn longest_path(&self) -> usize {
        self.draft_batches.iter().flatten().map(DraftBatch::longest_path).max().unwrap_or(0)
    }

    /// Records the lengths of the histories in some slots, prompts included. All steps that were enqueued for these slots must
    /// be counted in them.
    ///
    /// Steps with drafts take capacity for all tokens that they might have emitted; this returns what they did not use.
    pub fn note_lengths(&mut self, lengths: impl IntoIterator<Item = (Slot, usize)>) {
        self.table.note_lengths(lengths);
    }

    /// Enlarges the history in a slot to take `history_growth` more ids than it has now, if the slot keeps
    /// one. Waits for the steps enqueued before.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such slot, or the history's capacity would exceed a u32.
    /// - [`Error::Unavailable`] if the device has not enough memory, or fails.
    pub fn extend(&mut self, slot: Slot, history_growth: usize) -> Result<()> {
        self.table.extend(slot, history_growth)?;
        self.place_draft_lists(slot)
    }

    /// Gives the rows of drafts other memory if the lists of one of their requests, in `slot`, have changed.
    fn place_draft_lists(&mut self, slot: Slot) -> Result<()> {
        let mut batches = self.draft_batches.iter_mut().flatten().filter(|batch| batch.has(slot));
        batches.try_for_each(|batch| batch.place_lists(&self.table))?;
        match &mut self.draft_rows {
            Some(rows) if self.assigned.shape.drafts.is_some() && self.table.rows().contains(&slot) => {
                rows.place_lists(&self.table, self.table.rows())
            }
            _ => Ok(()),
        }
    }

    /// Assigns slots, forced tokens, row indices and bitmasks to the rows of the next steps.
    ///
    /// # Errors
    /// - [`Error::Length`] if there are more rows than the capacity, or the lists differ in length.
    /// - [`Error::OutOfRange`] if a slot or a token does not exist, a slot occurs twice, one has more than 64 drafts, or a
    ///   threshold is outside 0..=1.
    /// - [`Error::Unavailable`] if the device fails, or has not enough memory for drafts.
    pub fn assign(&mut self, rows: &Assignment<'_>) -> Result<()> {
        let mut sorted: Vec<_> = rows.slots.iter().filter(|slot| **slot != -1).collect();
        sorted.sort_unstable();
        if let Some([slot, _]) = sorted.array_windows().find(|[a, b]| a == b) {
            return Err(Error::out_of_range(
                "slots",
                format!("{slot} twice"),
                "a slot that stands in a step once",
            ));
        }
        self.assign_rows(rows)
    }

    /// Assigns rows like [`Workspace::assign`], but several may share a slot, for steps that do not advance the
    /// request.
    pub(crate) fn assign_rows(&mut self, rows: &Assignment<'_>) -> Result<()> {
        let WorkspaceLimits { vocab, rows: max_rows, .. } = self.limits;
        let requests = rows.slots.len();
        rows.drafts.and_then(|drafts| drafts.rule.judgement()).map_or(Ok(()), Judgement::check)?;
        let count = rows.drafts.map_or(Ok(requests), |drafts| drafts.rows(requests))?;
        if count > max_rows {
            let parameter = if rows.drafts.is_some() { "counts" } else { "slots" };
            return Err(Error::length(parameter, count, format!("at most {max_rows} rows")));
        }
        self.lists.write(self.limits, rows, count)?;
        self.table.assign(rows.slots, rows.drafts.is_some_and(|drafts| drafts.rule.is_greedy()));
        if let Some(drafts) = &rows.drafts {
            let draft_rows = match &mut self.draft_rows {
                Some(draft_rows) => draft_rows,
                none => none.insert(DraftRows::new(&self.runtime, max_rows)?),
            };
            if drafts.rule.judgement().is_some() {
                draft_rows.reserve_judged(max_rows, vocab)?;
            }
            draft_rows.assign(&self.table, rows.slots, drafts)?;
        }
        let (row_indices, masks) = (!rows.row_indices.is_empty(), !rows.masks.is_empty());
        let drafts = rows.drafts.map(|DraftCounts { rule, .. }| DraftShape { requests, rule });
        let of_slots = |drafts: DraftCounts<'_>| {
            let counts = rows.slots.iter().zip(drafts.counts);
            counts.filter(|(slot, _)| **slot != -1).map(|(_, count)| *count).max()
        };
        let most_drafts = rows.drafts.and_then(of_slots);
        self.assigned = Assigned {
            shape: Shape { rows: count, row_indices, masks, drafts },
            row_indices_end: rows.row_indices.iter().max().map_or(0, |row| *row as usize + 1),
            tokens_per_step: most_drafts.map_or(1, |drafts| u64::from(drafts) + 1),
        };
        Ok(())
    }

    /// Returns the most tokens by which a step of the assigned rows advances a request: one, and with drafts as many more
    /// as the request with most has.
    #[must_use]
    pub fn tokens_per_step(&self) -> u64 {
        self.assigned.tokens_per_step
    }

    /// Makes a row of the next steps padding, whatever its assignment, because its request is about to leave; with drafts
    /// all rows of the request of that index.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such row.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn retire(&mut self, row: usize) -> Result<()> {
        let rows = self.limits.rows;
        if row >= rows {
            return Err(Error::out_of_range("row", row, format!("in 0..{rows}")));
        }
        self.table.retire(row);
        self.lists.retire(row)
    }

    fn mask_words(&self) -> usize {
        mask_words(self.limits.vocab)
    }

    /// Returns the number of 32-bit words in a row's kept set; 0 if steps do not record them.
    pub(crate) fn kept_words(&self) -> usize {
        if self.limits.kept { self.mask_words() } else { 0 }
    }

    /// Returns the argument of a step's kernels, without the logits and what is assigned to its rows.
    pub(crate) fn bare_step(&self) -> abi::Step {
        let tiles = self.limits.vocab.div_ceil(TILE);
        abi::Step {
            vocab: self.limits.vocab as u32,
            tiles: tiles as u32,
            params: self.table.params.address(),
            requests: self.table.requests.address(),
            states: self.table.states.address(),
            records: self.records.address(),
            filter_sums: self.filter_sums.address(),
            logprob_sums: self.logprob_sums.address(),
            scratch: self.scratch.address(),
            scratch_words: abi::Step::scratch_words(tiles) as u64,
            ..abi::Step::default()
        }
    }

    /// Returns the argument of a step's kernels for a part of the assigned rows, without the logits.
    pub(crate) fn abi(&self, part: Range<usize>) -> abi::Step {
        let step = abi::Step {
            outputs: self.outputs.address(),
            top_n_width: self.limits.widths.top_n as u32,
            ids_width: self.limits.widths.ids as u32,
            kept_bits: if self.limits.kept { self.kept.address() } else { 0 },
            ..self.bare_step()
        };
        let Shape { row_indices, masks, .. } = self.assigned.shape;
        let step = self.lists.step(step, (row_indices, masks)).with_rows(part);
        match (&self.draft_rows, self.assigned.shape.drafts) {
            (Some(rows), Some(shape)) => rows.step(step, shape.rule),
            _ => step,
        }
    }

    /// Returns the argument of the kernels that begin and end a step over the rows of drafts.
    ///
    /// # Panics
    /// If no drafts were ever assigned.
    pub(crate) fn draft_step(&self, step: &abi::Step, drafts: &StepDrafts) -> abi::DraftStep {
        let rows = self.assigned_draft_rows();
        let path = self.outputs.address() + self.walk_start(step.rows as usize) as u64;
        let accepted = path + u64::from(step.rows) * size_of::<u32>() as u64;
        let firsts = (drafts.first_row, drafts.requests.start);
        let addresses = [self.lists.slots(), path, accepted];
        rows.argument(step, &drafts.addresses, &self.table, drafts.rule, firsts, addresses)
    }

    fn assigned_draft_rows(&self) -> &DraftRows {
        self.draft_rows.as_ref().expect("a step of drafts is fixed after these were assigned")
    }

    /// Returns the address of the assigned requests with drafts.
    ///
    /// # Panics
    /// If no drafts were ever assigned.
    pub(crate) fn draft_requests(&self) -> u64 {
        self.assigned_draft_rows().requests()
    }

    /// Enqueues the kernel that makes parents of the links of drafts, if they have some.
    ///
    /// # Safety
    /// As for [`Runtime::launch`]. The creator of the drafts guarantees the links.
    pub(crate) unsafe fn link_drafts(&self, drafts: &StepDrafts) -> crate::Result<()> {
        let requests = drafts.requests.clone();
        let links = self.draft_rows.as_ref().and_then(|rows| rows.links(&drafts.addresses, requests.start));
        // SAFETY: the parents have memory for each row, and `assign` wrote the requests. The caller guarantees the rest.
        links.map_or(Ok(()), |links| unsafe { drafts::link(&*self.runtime, requests.len(), &links) })
    }

    /// Enqueues the judgement of drafts by probabilities, if the assignment has such a rule. `draft_step` is the argument of the
    /// kernels that begin and end the step; its rows need `needs`.
    ///
    /// # Safety
    /// As for [`JudgedRows::judge`](crate::pipeline::judged_rows::JudgedRows::judge).
    pub(crate) unsafe fn judge_drafts(
        &self,
        draft_step: &abi::DraftStep,
        drafts: &StepDrafts,
        row_type: (Kind, Dtype),
        needs: StepFeatures,
    ) -> crate::Result<()> {
        let (Some(judgement), Some(rows)) = (drafts.rule.judgement(), &self.draft_rows) else {
            return Ok(());
        };
        let trees = Trees {
            drafts: draft_step,
            requests: drafts.requests.len(),
            row_type,
            draft_probs: drafts.addresses.probs,
            caller_forced: self.lists.forced() + (drafts.first_row * size_of::<i32>()) as u64,
        };
        // SAFETY: the caller guarantees what the function requires.
        unsafe { rows.judged().judge(&*self.runtime, &self.device, &trees, judgement, needs) }
    }

    /// Returns the byte of the outputs from which the walks of a step of `rows` rows lie.
    fn walk_start(&self, rows: usize) -> usize {
        Layout { rows, widths: self.limits.widths }.words() * size_of::<u32>()
    }

    /// Waits for the steps enqueued before, and reads the walks of the last one, which had drafts: for each row that a token
    /// was emitted from, in the order of its request's walk and from the request's first row on, the row of the logits;
    /// `u32::MAX` at the others. Then for each request how many drafts were accepted.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If `path` is longer than the capacity, or `accepted` than `path`.
    pub fn read_walks(&self, path: &mut [u32], accepted: &mut [u32]) -> Result<()> {
        assert!(accepted.len() <= path.len(), "a request has a row at least");
        let mut words = vec![0; path.len() + accepted.len()];
        self.outputs.read(self.walk_start(path.len()), &mut words)?;
        let (rows, counts) = words.split_at(path.len());
        path.copy_from_slice(rows);
        accepted.copy_from_slice(counts);
        Ok(())
    }

    /// Returns the address of the assigned slots.
    pub(crate) fn assigned_slots(&self) -> u64 {
        self.lists.slots()
    }

    /// Returns the number of assigned rows.
    pub(crate) fn rows(&self) -> usize {
        self.assigned.shape.rows
    }

    /// Waits for the steps enqueued before, and reads the outputs of the last one, in the layout of its rows.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If `words` is longer than the outputs of the workspace.
    pub fn read_outputs(&self, words: &mut [u32]) -> Result<()> {
        Ok(self.outputs.read(0, words)?)
    }

    /// Waits for the steps enqueued before, and appends the kept ids of each row of the last one to its list,
    /// ascending.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If the workspace does not record kept sets, or has capacity for fewer rows.
    pub fn read_kept(&self, rows: &mut [Vec<u32>]) -> Result<()> {
        assert!(self.limits.kept, "the workspace does not record kept sets");
        let width = self.mask_words();
        let mut words = vec![0u32; rows.len() * width];
        self.kept.read(0, &mut words)?;
        for (ids, words) in rows.iter_mut().zip(words.chunks_exact(width)) {
            ids.extend(set_ids(words, self.limits.vocab));
        }
        Ok(())
    }

    /// Returns the device address of the last step's outputs, in the layout of its rows. The address never
    /// changes.
    #[must_use]
    pub fn outputs_address(&self) -> u64 {
        self.outputs.address()
    }

    /// Returns the workspace's capacity.
    #[must_use]
    pub fn limits(&self) -> WorkspaceLimits {
        self.limits
    }

    /// Waits for the steps enqueued before, and returns the outputs of the last one, which has `rows` rows.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If the workspace has capacity for fewer rows.
    pub fn outputs(&self, rows: usize) -> Result<Outputs> {
        let layout = Layout { rows, widths: self.limits.widths };
        let mut outputs = Outputs::zeros(layout, self.kept_words())?;
        self.outputs.read(0, &mut outputs.words)?;
        self.kept.read(0, &mut outputs.kept)?;
        Ok(outputs)
    }

    /// Returns the features that the assigned rows need.
    pub(crate) fn needs(&self) -> StepFeatures {
        self.with_own_needs(self.table.needs())
    }

    /// Returns features of requests with those that the assignment's bitmasks and the kept sets need.
    pub(crate) fn with_own_needs(&self, needs: StepFeatures) -> StepFeatures {
        let masks = if self.assigned.shape.masks { StepFeatures::MASKS } else { StepFeatures::NONE };
        let kept = if self.limits.kept { StepFeatures::KEPT } else { StepFeatures::NONE };
        needs.union(masks).union(kept)
    }

    /// Returns the smallest named variant that serves the requests of the assigned rows.
    #[must_use]
    pub fn needed_variant(&self) -> StepVariant {
        self.table.variant()
    }

    /// Checks that a named variant serves the requests of the assigned rows.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] with the first row that needs more, and the variants that serve it.
    pub fn check_variant(&self, variant: StepVariant) -> Result<()> {
        self.table.check_variant(variant)
    }

    /// Returns the error of an assigned row's request that is not allowed on rows of probabilities, if there
    /// is one (P2).
    pub(crate) fn refusal(&self) -> Result<()> {
        self.table.refusal()
    }

    /// Returns how many steps a variant has run: those enqueued or replayed in this workspace.
    #[must_use]
    pub fn steps_run(&self, variant: Variant) -> u64 {
        self.counters.run(variant)
    }

    /// Returns how many steps a named variant has served: those reserved for replays of a host program's
    /// graph under the variant that was named, and all others under the smallest one that serves their rows.
    #[must_use]
    pub fn steps_served(&self, variant: StepVariant) -> u64 {
        self.counters.served(variant)
    }

    /// Subtracts the tokens by which `steps` steps may advance the rows' requests from the capacity of their
    /// histories.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if a history may not have capacity for them.
    pub(crate) fn spend(&self, steps: u64) -> Result<()> {
        self.table.spend(steps.saturating_mul(self.assigned.tokens_per_step))
    }

    /// Waits for the steps enqueued before, and returns the state of the request in a slot.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such slot.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn state(&self, slot: Slot) -> Result<RequestState> {
        self.table.state(slot)
    }

    /// Waits for the steps enqueued before, and returns the position of the request in a slot.
    ///
    /// # Errors
    /// Those of [`Workspace::state`].
    pub fn position(&self, slot: Slot) -> Result<u32> {
        Ok(self.state(slot)?.position)
    }
}
