//! Steps: kernels that turn rows of logits or probabilities into tokens.
//!
//! [`Workspace::step`] fixes the launches for a shape. [`Workspace::enqueue`] launches the kernels of the
//! [`Variant`](crate::Variant) that the assigned rows need, or of a named [`StepVariant`]. It neither allocates nor waits, so a step can
//! be captured in a graph and replayed; positions advance on the device. A step does not borrow its
//! workspace, so requests can come and go between two replays.

use std::marker::PhantomData;
use std::ops::Range;

use gumball_spec::request::check_mask_width;
use gumball_spec::{Error, Kind, Result};

use crate::abi::dtype::Dtype;
use crate::abi::{self, flags};
use crate::launch::tuning::{self, Survey};
use crate::launch::{drafts, exchange, finish, head, history_edits, survey};
use crate::memory::rows::{MaskRows, Rows};
use crate::pipeline::assignment::Shape;
use crate::pipeline::draft_rows::{DraftIds, StepDrafts};
use crate::pipeline::head::{Head, HeadLaunch};
use crate::pipeline::rank_rows::Exchange;
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::{Edits, StepFeatures};
use crate::requests::step_variant::StepVariant;

impl Workspace {
    /// Fixes the launches of a step over rows, for the current assignment.
    ///
    /// Row i of the step reads row i of `rows`, or the one that the assignment's `row_indices` names.
    ///
    /// # Errors
    /// - [`Error::Length`] if `rows` has another vocabulary than the workspace.
    /// - [`Error::Length`] if the assignment has no `row_indices`, and `rows` has another number of rows than
    ///   it.
    /// - [`Error::OutOfRange`] if a row index is not below the number of rows.
    pub fn step<'b>(&self, rows: &Rows<'b>) -> Result<Step<'b>> {
        self.step_masked(rows, None)
    }

    /// Fixes the launches of a step like [`Workspace::step`], with bitmasks in device memory.
    ///
    /// These bitmasks replace those of the assignment, for the rows that have one there. If the assignment
    /// has no bitmasks, they apply to every row.
    ///
    /// # Errors
    /// - Those of [`Workspace::step`].
    /// - [`Error::Length`] if there is not one bitmask per assigned row.
    /// - [`Error::OutOfRange`] if a bitmask has a word for each id.
    pub fn step_masked<'b>(&self, rows: &Rows<'b>, masks: Option<&MaskRows<'b>>) -> Result<Step<'b>> {
        self.fix(rows, masks, None)
    }

    /// Fixes the launches of a step like [`Workspace::step_masked`] that verifies drafts, for an assignment that has some.
    ///
    /// Kernels draw a token from each row, and accept the drafts that equal what is drawn before them; or they judge the drafts by the
    /// probabilities of their rows, as the assignment's [`DraftRule`](crate::DraftRule) says. They advance each request by the
    /// accepted drafts and one token more. The outputs of the rows that tokens are emitted from move to the request's first
    /// rows; [`Results::read_walks`](crate::Results::read_walks) names the rows.
    ///
    /// A request with mirostat must have no drafts. Parents that are no tree end the request's walk after its first row,
    /// which gets the status `NO_TREE`.
    ///
    /// # Errors
    /// - Those of [`Workspace::step_masked`].
    /// - [`Error::Length`] if there are not as many ids and parents as the assignment counts drafts.
    /// - [`Error::OutOfRange`] for columns of another type than i32 and i64, and for probabilities of another type or shape.
    /// - [`Error::Conflict`] for probabilities that the rule does not read.
    pub fn verify<'b>(
        &self,
        rows: &Rows<'b>,
        masks: Option<&MaskRows<'b>>,
        drafts: &DraftIds<'b>,
    ) -> Result<Step<'b>> {
        self.fix(rows, masks, Some(drafts))
    }

    /// Fixes the launches of a step over hidden states: a head computes the rows of logits from them, and the launches of
    /// [`Workspace::step_masked`], or with drafts those of [`Workspace::verify`], read these rows.
    ///
    /// The head's memory holds the logits of one step at a time, so steps of one head must run one after the other.
    ///
    /// # Errors
    /// - Those of [`Workspace::step_masked`], or of [`Workspace::verify`].
    /// - [`Error::Length`] if hidden states have another width than the head, are more than its capacity, or not one for each row.
    /// - [`Error::Conflict`] if hidden states are said to be probabilities, or the assignment has row indices: each row has a hidden state of its own.
    pub fn step_hidden<'b>(
        &self,
        head: &'b Head<'_>,
        hidden: &Rows<'b>,
        masks: Option<&MaskRows<'b>>,
        drafts: Option<&DraftIds<'b>>,
    ) -> Result<Step<'b>> {
        let shape = self.rows().shape();
        if shape.row_indices {
            let reason = "a step from hidden states has one for each row";
            return Err(Error::Conflict { parameter: "row_indices", other: "hidden", reason });
        }
        if hidden.rows != shape.rows {
            let allowed = format!("one hidden state for each row, {}", shape.rows);
            return Err(Error::length("hidden", hidden.rows, allowed));
        }
        // A softmax, and a judgement by probabilities, read every logit.
        let is_judged = shape.drafts.is_some_and(|drafts| drafts.rule.judgement().is_some());
        let launch = head.launch(hidden, self.probability_rows.is_none() && !is_judged)?;
        let step = self.fix(&head.rows(hidden.rows)?, masks, drafts)?;
        Ok(Step { head: Some(launch), ..step })
    }

    fn fix<'b>(
        &self,
        rows: &Rows<'b>,
        masks: Option<&MaskRows<'b>>,
        drafts: Option<&DraftIds<'b>>,
    ) -> Result<Step<'b>> {
        let shape = self.rows().shape();
        let requests = 0..shape.drafts.map_or(0, |drafts| drafts.requests);
        let drafts = self.step_drafts(drafts, requests, 0)?;
        let step = self.step_of(rows, masks)?;
        Ok(Step { drafts, ..step })
    }

    /// Checks that there are drafts if some were assigned, and returns those of assigned requests, with the first of their rows.
    pub(crate) fn step_drafts(
        &self,
        drafts: Option<&DraftIds<'_>>,
        requests: Range<usize>,
        first_row: usize,
    ) -> Result<Option<StepDrafts>> {
        let shape = self.rows().shape();
        match (shape.drafts, drafts) {
            (None, None) => Ok(None),
            (Some(of), Some(ids)) => {
                let addresses = ids.addresses((of.requests, shape.rows, self.limits.vocab), of.rule)?;
                Ok(Some(StepDrafts { addresses, rule: of.rule, requests, first_row }))
            }
            _ => {
                let reason =
                    "a step of drafts needs an assignment with their counts, and any other step one without";
                Err(Error::Conflict { parameter: "assignment", other: "step", reason })
            }
        }
    }

    fn step_of<'b>(&self, rows: &Rows<'b>, masks: Option<&MaskRows<'b>>) -> Result<Step<'b>> {
        let vocab = self.limits.vocab;
        if rows.vocab != vocab {
            let allowed = format!("{vocab} elements in a row, the vocabulary");
            return Err(Error::length("logits", rows.vocab, allowed));
        }
        if let Some(own) = self.probability_rows.as_ref().filter(|_| rows.kind == Kind::Logits) {
            let step = self.step_over(&own.rows(rows.rows)?, masks, 0..self.rows().shape().rows)?;
            return Ok(Step { softmax_of: Some(*rows), memory: PhantomData, ..step });
        }
        self.step_over(rows, masks, 0..self.rows().shape().rows)
    }

    /// Fixes the launches of a step over rows with the workspace's vocabulary, for a part of the assigned rows.
    pub(crate) fn step_over<'b>(
        &self,
        rows: &Rows<'b>,
        masks: Option<&MaskRows<'_>>,
        part: Range<usize>,
    ) -> Result<Step<'b>> {
        let abi = self.argument(self.rows(), part.clone());
        if abi.row_indices == 0 && rows.rows != part.len() {
            return Err(Error::length("logits", rows.rows, format!("one per slot, {}", part.len())));
        }
        let abi = self.with_masks(abi, masks, self.rows().shape().rows)?;
        let step = abi::Step { logits: rows.address, stride: rows.stride as u64, ..abi };
        let shares = step.row_indices != 0
            && step.masks == 0
            && tuning::surveys_shared_rows(&self.device, part.len(), rows.rows, step.tiles as usize);
        let shared = shares.then(|| self.scratch.shared_rows.survey(&self.device, rows, &step));
        let shared_records = if shares { self.scratch.shared_rows.records() } else { 0 };
        let step = Step {
            workspace: self.id,
            shape: self.rows().shape(),
            logits_rows: rows.rows,
            kind: rows.kind,
            dtype: rows.dtype,
            shared,
            finishes: true,
            softmax_of: None,
            drafts: None,
            variant: None,
            exchange: None,
            head: None,
            step: abi::Step { shared_records, ..step },
            memory: PhantomData,
        };
        self.rows().check(step.shape, step.logits_rows)?;
        Ok(step)
    }

    /// Returns a step over `rows` rows with the bitmasks of a caller, if there are some.
    pub(crate) fn with_masks(
        &self,
        step: abi::Step,
        masks: Option<&MaskRows<'_>>,
        rows: usize,
    ) -> Result<abi::Step> {
        let Some(masks) = masks else { return Ok(step) };
        if masks.rows != rows {
            return Err(Error::length("masks", masks.rows, format!("one per row, {rows}")));
        }
        check_mask_width("masks.width", masks.width, self.limits.vocab)?;
        Ok(abi::Step {
            // Kernels read nothing of bitmasks without words. Their address must not be 0, which stands for
            // rows without bitmasks.
            masks: if masks.width == 0 { step.slots } else { masks.address },
            mask_words: masks.width as u32,
            mask_stride: masks.stride as u64,
            ..step
        })
    }

    /// Enqueues a step on the workspace's stream and returns without waiting. Allocates nothing. The first
    /// launch of a kernel loads it, or compiles it, and that takes a while.
    ///
    /// Returns true if the step runs now. Returns false if the host program is capturing the stream: then the
    /// step becomes part of its graph, with the kernels of its [`StepVariant`], or of [`StepVariant::Full`] if
    /// it has none. Call [`Workspace::reserve_replays`] before replays of that graph.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the step has a variant that does not serve an assigned row.
    /// - [`Error::Length`] or [`Error::Conflict`] if the assignment's shape has changed since the step was
    ///   fixed.
    /// - [`Error::OutOfRange`] if the assignment names a row that the logits do not have.
    /// - [`Error::OutOfRange`] if the history of a row's request may have no capacity for another token.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`] if the rows hold probabilities, and a row's
    ///   request has parameters defined for logits only.
    /// - [`Error::Unavailable`] if the device fails, or a kernel cannot be compiled.
    ///
    /// # Panics
    /// If another workspace fixed the step.
    pub fn enqueue(&self, step: &Step<'_>) -> Result<bool> {
        let rows = self.rows();
        rows.check(step.shape, step.logits_rows)?;
        rows.check_kind(step.kind)?;
        step.variant.map_or(Ok(()), |variant| rows.check_variant(variant))?;
        let features = |variant: StepVariant| rows.with_own_needs(variant.features());
        if self.runtime.is_capturing()? {
            // The step does not run yet, and the host program may replay it for other requests.
            let variant = step.variant.unwrap_or(StepVariant::Full);
            rows.captured.note(step.kind, variant);
            self.enqueue_kernels(step, features(variant))?;
            return Ok(false);
        }
        self.requests.spend(step.advances() * rows.tokens_per_step())?;
        let needs = step.variant.map_or_else(|| rows.needs(), features);
        self.enqueue_kernels(step, needs)?;
        self.requests.counters.count(needs.variant, step.variant.unwrap_or(rows.needed_variant()), 1);
        Ok(true)
    }

    /// Announces that the host program will replay graphs of its own that run `steps` steps of this workspace
    /// in total, for the current assignment. All of them were captured under `variant`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the variant does not serve an assigned row.
    /// - [`Error::OutOfRange`] if the history of a row's request may have no capacity for `steps` tokens.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`] if a step on rows of probabilities was ever
    ///   captured. They concern requests of rows whose parameters are defined for logits only.
    ///
    /// The former two concern the rows of batches of drafts as well, with the variants that those were captured with.
    pub fn reserve_replays(&self, steps: u64, variant: StepVariant) -> Result<()> {
        let rows = self.rows();
        rows.check_kind(rows.captured.kind())?;
        rows.check_variant(variant)?;
        for batch in self.batches_of_drafts() {
            batch.check_kind(batch.captured.kind())?;
            batch.captured.variant().map_or(Ok(()), |variant| batch.check_variant(variant))?;
        }
        self.requests.spend(steps.saturating_mul(rows.tokens_per_step()))?;
        self.requests.counters.count(rows.with_own_needs(variant.features()).variant, variant, steps);
        Ok(())
    }

    /// Launches the kernels that support `needs`, which must include the features of the step's rows, and those that exchange rows
    /// and results with other ranks.
    pub(crate) fn enqueue_kernels(&self, fixed: &Step<'_>, needs: StepFeatures) -> crate::Result<()> {
        assert_eq!(fixed.workspace, self.id, "a step goes to the workspace that fixed it");
        let Some(exchange) = &fixed.exchange else { return self.enqueue_rows(fixed, needs) };
        if let Some(shards) = exchange.shards.as_ref().filter(|_| fixed.kind == Kind::Logits) {
            return self.enqueue_survey(fixed, needs, shards);
        }
        // SAFETY: the windows and this workspace outlive enqueued work, and `step_over_ranks` checked their sizes against the
        // shape. The creator of `Rows` guarantees the logits.
        let send_rows = |rows| unsafe { exchange::send_rows(&*self.runtime, &self.device, rows) };
        exchange.rows.as_ref().map_or(Ok(()), send_rows)?;
        self.enqueue_rows(fixed, needs)?;
        // SAFETY: as above. The step's kernels write the outputs.
        unsafe { exchange::send_results(&*self.runtime, &exchange.results) }
    }

    fn enqueue_rows(&self, fixed: &Step<'_>, needs: StepFeatures) -> crate::Result<()> {
        let (runtime, step) = (&*self.runtime, &fixed.step);
        if step.rows == 0 {
            return Ok(());
        }
        let needs = if step.masks == 0 { needs } else { needs.union(StepFeatures::MASKS) };
        let of_drafts = |drafts| (self.rows().verified(step, drafts, &self.requests, &self.results), drafts);
        let draft_step = fixed.drafts.as_ref().map(of_drafts);
        if let Some((draft_step, drafts)) = &draft_step {
            // SAFETY: the creator of the drafts' columns guarantees these.
            unsafe { self.rows().link(runtime, drafts) }?;
            // SAFETY: the buffers belong to this workspace, and `assign` wrote what lies there. Their sizes suffice for the
            // rows and requests that `check` compared. The creator of the drafts' columns guarantees these.
            unsafe { drafts::begin(runtime, needs.edits, draft_step) }?;
        }
        if needs.edits == Edits::HistoryDependent {
            let enqueue =
                if draft_step.is_some() { history_edits::enqueue_dependent } else { history_edits::enqueue };
            // SAFETY: the conditions of the survey's launch below hold here too. The requests' lists belong
            // to this workspace as well.
            unsafe { enqueue(runtime, &self.device, step) }?;
        }
        if let Some(launch) = &fixed.head {
            // SAFETY: the head and the hidden states outlive enqueued work; `step_hidden` checked the shapes. The kernels before have
            // made the rows' requests.
            unsafe {
                head::enqueue(
                    runtime,
                    &self.device,
                    launch.types,
                    &launch.argument(step),
                    launch.centroids.as_ref(),
                )
            }?;
        }
        if let (Some(logits), Some(own)) = (&fixed.softmax_of, &self.probability_rows) {
            own.enqueue(logits).map_err(|error| crate::Error::call("the softmax of a step", error))?;
        }
        let (rows, tiles) = (step.rows as usize, step.tiles as usize);
        let row_type = (fixed.kind, fixed.dtype);
        if let Some((draft_step, drafts)) = &draft_step
            && let Some(judgement) = drafts.rule.judgement()
        {
            let (on, trees) = ((runtime, &self.device), (draft_step, *drafts));
            // SAFETY: the conditions of `drafts::begin` hold here too, and the kernels before have made the rows' requests and
            // stamped their edits.
            unsafe { self.rows().judge(on, trees, judgement, row_type, needs) }?;
        }
        let scores = fixed.shared.is_none()
            && fixed.kind == Kind::Logits
            && step.flags & flags::NO_CANDIDATES == 0
            && tuning::scores_in_survey(&self.device, rows, tiles);
        let needs = if scores { needs } else { needs.union(StepFeatures::SIMPLE) };
        let survey = match &fixed.shared {
            // If any row has edits or needs sums, all rows are surveyed separately.
            Some((survey, step)) if needs.edits == Edits::None && !needs.sums => {
                // SAFETY: the conditions of the survey's launch below hold here too. There are no more logits
                // rows than rows, or sharing would save nothing, so the records fit.
                unsafe { survey::enqueue(runtime, survey, step) }?;
                tuning::records_from_shared_rows(tiles)
            }
            _ => tuning::survey(&self.device, (rows, tiles), row_type, needs),
        };
        // A survey of each row waits by itself for what the kernel just before makes: the requests of the rows of drafts, or stamps of
        // edits.
        let is_begun = |(_, drafts): &(_, &StepDrafts)| drafts.rule.judgement().is_none();
        let is_edited = needs.edits > Edits::None;
        let waits = match &draft_step {
            Some(begun) => is_begun(begun) && (is_edited || fixed.shared.is_none()),
            None => needs.edits == Edits::HistoryDependent,
        };
        // A survey behind a head or a softmax must not load before these are complete.
        let has_rows = fixed.head.is_none() && fixed.softmax_of.is_none();
        let enqueue = if waits && has_rows { survey::enqueue_dependent } else { survey::enqueue };
        // A row of drafts has its own number as a slot, and begin_drafts gives padding parameters too, but no lists.
        let known_slots = if waits && !is_edited { flags::SLOT_IS_ROW } else { 0 };
        let step = abi::Step { flags: step.flags | known_slots, ..*step };
        let step = &step.with_blocks_per_row(survey.blocks.blocks_per_row as u32);
        // SAFETY: the buffers belong to this workspace, whose end waits for enqueued work. Their sizes
        // suffice for the shape that `step` checked. `assign` checked the slots. The creator of `Rows`
        // guarantees the logits.
        unsafe { enqueue(runtime, &survey, step) }?;
        if !fixed.finishes {
            return Ok(());
        }
        // SAFETY: the conditions of the survey's launch hold here too.
        unsafe { finish::enqueue(runtime, &self.device, row_type, needs, step) }?;
        match &draft_step {
            // SAFETY: the conditions of `drafts::begin` hold here too.
            Some((draft_step, drafts)) => unsafe { drafts::end(runtime, drafts.requests.len(), draft_step) },
            None => Ok(()),
        }
    }
}

/// A step of a workspace, ready to be enqueued there; its logits live as long as `'b`.
#[derive(Clone, Debug)]
pub struct Step<'b> {
    workspace: u64,
    pub(crate) shape: Shape,
    /// The number of rows that the logits have.
    pub(crate) logits_rows: usize,
    pub(crate) kind: Kind,
    pub(crate) dtype: Dtype,
    /// The survey of logits rows that several rows read, with its step.
    shared: Option<(Survey, abi::Step)>,
    /// Whether the step finishes its rows; otherwise it only surveys them.
    finishes: bool,
    /// The logits of which a softmax makes the rows of the step.
    softmax_of: Option<Rows<'b>>,
    /// The drafts of a step that verifies some.
    pub(crate) drafts: Option<StepDrafts>,
    /// What is exchanged with other ranks before the step's kernels and behind them.
    pub(crate) exchange: Option<Exchange>,
    /// The head that makes the step's logits of hidden states.
    head: Option<HeadLaunch>,
    /// The named variant whose kernels the step launches, if one was named.
    variant: Option<StepVariant>,
    pub(crate) step: abi::Step,
    memory: PhantomData<&'b ()>,
}

impl Step<'_> {
    /// Returns a step of known tokens: row i is i positions after its request, and no row advances its request.
    pub(crate) fn with_known_tokens(mut self) -> Self {
        self.step.flags |= flags::KNOWN_TOKENS;
        self
    }

    /// Returns whether its rows have the logits of probed sets alone, as a head with clusters makes them.
    #[must_use]
    pub fn is_approximate(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.centroids.is_some())
    }

    /// Returns a step that launches the kernels of a named variant, whatever its rows need. A
    /// [`Graph`](crate::Graph) of this crate ignores the variant.
    #[must_use]
    pub fn with_variant(mut self, variant: StepVariant) -> Self {
        self.variant = Some(variant);
        self
    }

    /// Returns a step that searches short kept sets like long ones, with the same results. For tests.
    #[must_use]
    pub fn searching(mut self) -> Self {
        self.step.flags |= flags::NO_CANDIDATES;
        self
    }

    /// Returns a step that only surveys its rows and yields no tokens. For measurements.
    #[must_use]
    pub fn survey_only(self) -> Self {
        Self { finishes: false, ..self }
    }

    /// Returns whether the step advances requests: 1 or 0.
    pub(crate) fn advances(&self) -> u64 {
        u64::from(self.finishes && self.step.flags & flags::KNOWN_TOKENS == 0)
    }
}
