//! Rows that requests are assigned to: those of steps, which advance the requests, and batches of rows of a
//! draft model, from which the requests draw drafts (rule S8).
//!
//! Each batch has memory of its own for what is assigned to its rows, and one of a draft model also for what
//! is drawn from them. So one graph may hold several batches, a verification and steps. A row of a draft
//! model follows a path of drafts: `begin_drafts` makes its request from the one in the slot, as that one is
//! when the kernel runs. Nothing of a request changes.
//!
//! One draft a row is the token of an ordinary step, so the kernels of a step draw it. Several siblings, and
//! drafts of blocks, which have random words of their own, are drawn by `draft_race`.

use std::ops::Range;
use std::sync::Arc;

use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::verify::draft::check_path;
use gumball_spec::{Error, Kind, Result};

use crate::abi::dtype::Dtype;
use crate::abi::{self, DraftStep, Slot};
use crate::driver::runtime::Runtime;
use crate::pipeline::assignment::{Assignment, DraftShape, Shape, WorkspaceLimits};
use crate::pipeline::draft_rows::{DraftCounts, DraftRows, DraftRule, StepDrafts};
use crate::pipeline::judged_rows::{JudgedRows, Trees};
use crate::pipeline::proposals::{DraftBatchLimits, Proposals};
use crate::pipeline::row_lists::RowLists;
use crate::requests::prepared::Prepared;
use crate::requests::request_table::Requests;
use crate::requests::step_features::StepFeatures;
use crate::requests::step_variant::StepVariant;

/// Rows, and what is assigned to them.
#[derive(Debug)]
pub struct RowBatch {
    /// The limits of the workspace, with as many rows as the batch has.
    limits: WorkspaceLimits,
    lists: RowLists,
    /// The requests of rows after drafts, once some were assigned.
    drafts: Option<DraftRows>,
    /// The drafts that are drawn from the rows, if these are rows of a draft model.
    pub(crate) proposals: Option<Proposals>,
    /// The slot of each row, or of each request if drafts are verified; -1 is padding.
    slots: Vec<Slot>,
    /// Which lists are assigned, and to how many rows.
    pub(crate) shape: Shape,
    /// One more than the highest row index; 0 if row i reads row i of the logits.
    row_indices_end: usize,
    /// The most drafts that a request has, or that stand in front of a row of a draft model.
    most_drafts: u32,
    /// Whether the rows' tokens are known.
    known: bool,
    /// The features that the requests need, kept so that a step does not have to scan the rows.
    needs: StepFeatures,
    /// The smallest named variant that serves each slot's request, and the largest of these.
    variants: Vec<StepVariant>,
    variant: StepVariant,
    /// The error of a request that is not allowed on rows of probabilities, if there is one (P2).
    refusal: Option<Error>,
}

impl RowBatch {
    /// Allocates the lists of a workspace's own rows.
    pub(crate) fn new(runtime: &Arc<dyn Runtime>, limits: WorkspaceLimits) -> Result<Self> {
        Ok(Self {
            lists: RowLists::new(runtime, limits.rows, limits.vocab)?,
            drafts: None,
            proposals: None,
            slots: Vec::new(),
            shape: Shape::default(),
            row_indices_end: 0,
            most_drafts: 0,
            known: false,
            needs: StepFeatures::NONE,
            variants: Vec::new(),
            variant: StepVariant::NoFilter,
            refusal: None,
            limits,
        })
    }

    /// Allocates the memory of a batch of rows of a draft model, for a workspace of `limits`.
    pub(crate) fn of_drafts(
        runtime: &Arc<dyn Runtime>,
        limits: WorkspaceLimits,
        of: DraftBatchLimits,
    ) -> Result<Self> {
        let rows = of.rows;
        let proposals = Proposals::new(runtime, of, limits.vocab)?;
        Ok(Self {
            drafts: Some(DraftRows::new(runtime, rows)?),
            proposals: Some(proposals),
            ..Self::new(runtime, WorkspaceLimits { rows, kept: false, ..limits })?
        })
    }

    /// Assigns slots, forced tokens, row indices and bitmasks to the rows. Copies nothing if rows of a draft
    /// model have the assignment already.
    ///
    /// # Errors
    /// The errors of [`Workspace::assign`](crate::Workspace::assign), except for slots that occur twice. If
    /// the device fails, nothing is assigned.
    pub(crate) fn assign(&mut self, requests: &Requests, rows: &Assignment<'_>) -> Result<()> {
        let count = self.check_count(rows)?;
        if self.is_assigned(rows) {
            return Ok(());
        }
        RowLists::check(self.limits, rows, count)?;
        self.slots.clear();
        (self.shape, self.most_drafts) = (Shape::default(), 0);
        self.lists.write(rows, count)?;
        if let Some(drafts) = &rows.drafts {
            self.assign_drafts(requests, rows.slots, drafts)?;
        }
        if let Some(proposals) = &mut self.proposals {
            proposals.note(rows);
        }
        let (row_indices, masks) = (!rows.row_indices.is_empty(), !rows.masks.is_empty());
        let drafts = rows.drafts.map(|of| DraftShape { requests: rows.slots.len(), rule: of.rule });
        self.shape = Shape { rows: count, row_indices, masks, drafts };
        self.row_indices_end = rows.row_indices.iter().max().map_or(0, |row| *row as usize + 1);
        self.slots.extend(rows.slots);
        // Padding emits nothing, but has a row of paths like any other.
        let counted = |(slot, count)| (slot != -1 || self.proposals.is_some()).then_some(count);
        self.most_drafts = self.paths().filter_map(counted).max().unwrap_or(0);
        self.known = rows.known;
        self.refresh(requests);
        Ok(())
    }

    /// Checks the number of rows that an assignment has, and returns it.
    fn check_count(&self, rows: &Assignment<'_>) -> Result<usize> {
        let requests = rows.slots.len();
        let (parameter, count) = match (&self.proposals, rows.drafts) {
            (Some(_), drafts) => {
                let counts = drafts.map_or(&[][..], |drafts| drafts.counts);
                if counts.len() != requests {
                    return Err(Error::length("counts", counts.len(), format!("one per slot, {requests}")));
                }
                counts.iter().try_for_each(|count| check_path(*count as usize))?;
                ("slots", requests)
            }
            (None, None) => ("slots", requests),
            (None, Some(drafts)) => {
                drafts.rule.judgement().map_or(Ok(()), Judgement::check)?;
                ("counts", drafts.rows(requests)?)
            }
        };
        if count > self.limits.rows {
            return Err(Error::length(parameter, count, format!("at most {} rows", self.limits.rows)));
        }
        Ok(count)
    }

    /// Returns whether an assignment is that of these rows of a draft model. Bitmasks are not compared: they
    /// are copied up each time.
    fn is_assigned(&self, rows: &Assignment<'_>) -> bool {
        let Some(proposals) = &self.proposals else { return false };
        let drafts = |of: DraftCounts<'_>| DraftShape { requests: rows.slots.len(), rule: of.rule };
        self.slots == rows.slots
            && self.shape.drafts == rows.drafts.map(drafts)
            && self.counts() == rows.drafts.map_or(&[][..], |drafts| drafts.counts)
            && proposals.has_lists_of(rows)
            && !self.shape.masks
            && rows.masks.is_empty()
    }

    fn assign_drafts(&mut self, requests: &Requests, slots: &[Slot], drafts: &DraftCounts<'_>) -> Result<()> {
        let rows = match &mut self.drafts {
            Some(rows) => rows,
            none => none.insert(DraftRows::new(&requests.runtime, self.limits.rows)?),
        };
        if self.proposals.is_some() {
            return rows.assign_paths(requests, slots, drafts.counts, drafts.rule);
        }
        if drafts.rule.judgement().is_some() && rows.judged.is_none() {
            rows.judged = Some(JudgedRows::new(&requests.runtime, self.limits.rows, self.limits.vocab)?);
        }
        rows.assign(requests, slots, drafts)
    }

    /// Makes the rows of a slot padding, because its request is about to leave; where drafts are verified,
    /// all rows of the request.
    pub(crate) fn retire(&mut self, requests: &Requests, slot: Slot) -> Result<()> {
        if !self.slots.contains(&slot) {
            return Ok(());
        }
        for index in 0..self.slots.len() {
            if self.slots[index] == slot {
                self.lists.retire(index)?;
                self.slots[index] = -1;
            }
        }
        self.refresh(requests);
        Ok(())
    }

    /// Recomputes what the rows keep of the request in a slot, which has changed: its features, and memory
    /// for copies of its lists.
    pub(crate) fn follow(&mut self, requests: &Requests, slot: Slot) -> Result<()> {
        if !self.slots.contains(&slot) {
            return Ok(());
        }
        self.refresh(requests);
        match (&mut self.drafts, self.shape.drafts) {
            (Some(rows), Some(of)) => rows.follow(requests, &self.slots, of.rule),
            _ => Ok(()),
        }
    }

    /// Recomputes what the requests of the rows need.
    fn refresh(&mut self, requests: &Requests) {
        let is_greedy = self.rule() == DraftRule::Greedy;
        self.needs = StepFeatures::NONE;
        self.variants.clear();
        for slot in &self.slots {
            let (needs, variant) = requests.needs_of(*slot, is_greedy);
            self.needs = self.needs.union(needs);
            self.variants.push(variant);
        }
        let reports_kept = |slot: &Slot| requests.prepared(*slot).is_some_and(Prepared::reports_kept);
        let draws_nothing = self.known || self.rule().judgement().is_some();
        if draws_nothing && (self.limits.kept || self.slots.iter().any(reports_kept)) {
            self.needs = self.needs.union(StepFeatures::KEPT_OF_KNOWN);
        }
        self.variant = self.variants.iter().copied().max().unwrap_or(StepVariant::NoFilter);
        self.refusal = self.slots.iter().find_map(|slot| requests.prepared(*slot)?.refusal.clone());
    }

    /// Returns how many requests are assigned: rows, unless drafts are verified.
    pub(crate) fn requests(&self) -> usize {
        self.slots.len()
    }

    /// Returns the rule that judges drafts; for rows without drafts one that changes nothing.
    pub(crate) fn rule(&self) -> DraftRule {
        self.shape.drafts.map_or(DraftRule::Coupled, |drafts| drafts.rule)
    }

    /// Checks that the assignment still has the shape that a step was fixed for. Its row indices must be
    /// below `logits_rows`, the number of rows of logits.
    pub(crate) fn check(&self, shape: Shape, logits_rows: usize) -> Result<()> {
        let of_drafts = self.proposals.is_some();
        if self.shape.rows != shape.rows && !of_drafts {
            let allowed = format!("{} rows, for which the step was fixed", shape.rows);
            return Err(Error::length("slots", self.shape.rows, allowed));
        }
        if let (Some(assigned), Some(fixed)) = (self.shape.drafts, shape.drafts)
            && assigned.rule != fixed.rule
            && !of_drafts
        {
            let allowed = format!("{}, for which the step was fixed", fixed.rule.name());
            return Err(Error::out_of_range("mode", assigned.rule.name(), allowed));
        }
        if self.shape != shape {
            let (other, reason) = match of_drafts {
                true => (
                    "drafts",
                    "drafts that were fixed for a number of rows, a mode, row indices and masks need the same",
                ),
                false => (
                    "step",
                    "a step that was fixed with row indices, masks or drafts needs some, and one without takes none",
                ),
            };
            return Err(Error::Conflict { parameter: "assignment", other, reason });
        }
        if self.row_indices_end > logits_rows {
            let allowed = format!("a row of the logits, in 0..{logits_rows}");
            return Err(Error::out_of_range("row_indices", self.row_indices_end - 1, allowed));
        }
        Ok(())
    }

    /// Checks that the requests are allowed on rows of a kind (P2).
    pub(crate) fn check_kind(&self, kind: Kind) -> Result<()> {
        match &self.refusal {
            Some(error) if kind == Kind::Probabilities => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Checks that the histories of the slots can take the paths in front of the rows of a draft model, each
    /// after `tokens` tokens more.
    pub(crate) fn check_room(&self, requests: &Requests, tokens: u64) -> Result<()> {
        match self.lacking(requests, tokens).next() {
            None => Ok(()),
            Some((slot, count)) => {
                let allowed = format!("room for {count} drafts behind the history of slot {slot}");
                Err(Error::out_of_range("history_growth", "too little", allowed))
            }
        }
    }

    /// Returns the rows whose slot's history cannot take `tokens` tokens and the path after them.
    pub(crate) fn lacking(&self, requests: &Requests, tokens: u64) -> impl Iterator<Item = (Slot, u32)> {
        let lacks = move |(slot, count): &(Slot, u32)| {
            !requests.has_room(*slot, tokens.saturating_add(u64::from(*count)))
        };
        self.paths().filter(lacks)
    }

    /// Returns the features that the rows need.
    pub(crate) fn needs(&self) -> StepFeatures {
        self.with_own_needs(self.needs)
    }

    /// Returns features of requests with those that the assignment's bitmasks and the kept sets need. The
    /// launches of drafts add them.
    pub(crate) fn with_own_needs(&self, needs: StepFeatures) -> StepFeatures {
        let has_masks = self.shape.masks && self.proposals.is_none();
        let masks = if has_masks { StepFeatures::MASKS } else { StepFeatures::NONE };
        let kept = if self.limits.kept { StepFeatures::KEPT } else { StepFeatures::NONE };
        needs.union(masks).union(kept)
    }

    /// Returns the smallest named variant that serves the requests of the rows.
    #[must_use]
    pub fn needed_variant(&self) -> StepVariant {
        self.variant
    }

    /// Checks that a named variant serves the requests of the rows.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] with the first row that needs more, and the variants that serve it.
    pub fn check_variant(&self, variant: StepVariant) -> Result<()> {
        if variant >= self.variant {
            return Ok(());
        }
        let mut rows = self.slots.iter().zip(&self.variants).enumerate();
        rows.try_for_each(|(row, (slot, needed))| variant.check(*needed, row, *slot))
    }

    /// Returns the most tokens by which a step advances a request: one, and with drafts as many more as the
    /// request with most has.
    #[must_use]
    pub fn tokens_per_step(&self) -> u64 {
        1 + u64::from(self.most_drafts)
    }

    /// Returns whether a winner or a list of each rank decides all rows, as rows of logits: then a step under
    /// [`ExchangeLayout::Survey`](crate::ExchangeLayout::Survey) sends no others.
    #[must_use]
    pub fn is_decided_in_shards(&self) -> bool {
        self.needs().are_decided_in_shards(Kind::Logits)
    }

    /// Returns the assigned slots, and how many drafts each request has, or how many stand in front of each
    /// row of a draft model; nothing without drafts.
    pub fn paths(&self) -> impl Iterator<Item = (Slot, u32)> {
        self.slots.iter().copied().zip(self.counts().iter().copied())
    }

    fn counts(&self) -> &[u32] {
        let rows = self.drafts.as_ref().filter(|_| self.shape.drafts.is_some());
        rows.map_or(&[], |rows| &rows.counts)
    }

    /// Returns the most drafts on the path to a row of a draft model.
    pub(crate) fn longest_path(&self) -> usize {
        if self.proposals.is_some() { self.most_drafts as usize } else { 0 }
    }

    /// Returns the slot of each request.
    pub(crate) fn assigned(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the address of the slots.
    pub(crate) fn slots(&self) -> u64 {
        self.lists.slots.address()
    }

    /// Returns a step over a part of the rows.
    pub(crate) fn step(&self, step: abi::Step, part: Range<usize>) -> abi::Step {
        let Shape { row_indices, masks, .. } = self.shape;
        let step = self.lists.step(step, (row_indices, masks)).with_rows(part);
        match (&self.drafts, &self.proposals, self.shape.drafts) {
            // Nothing is judged yet: rows emit what the caller forces.
            (Some(rows), Some(proposals), _) => rows.step(proposals.step(step), DraftRule::Coupled),
            (Some(rows), None, Some(shape)) => rows.step(step, shape.rule),
            _ => step,
        }
    }

    /// Returns the rows of drafts.
    ///
    /// # Panics
    /// If no drafts were ever assigned.
    pub(crate) fn draft_rows(&self) -> &DraftRows {
        self.drafts.as_ref().expect("a step of drafts is fixed after these were assigned")
    }

    /// Enqueues the judgement of drafts by probabilities. `draft_step` is the argument of the kernels that
    /// begin and end the step; its rows need `needs`. `surveyed`: the step whose rows of logits were surveyed
    /// for it.
    ///
    /// # Safety
    /// As for [`JudgedRows::judge`], or of surveyed rows for [`JudgedRows::judge_surveyed`].
    pub(crate) unsafe fn judge(
        &self,
        (draft_step, drafts): (&DraftStep, &StepDrafts),
        judgement: Judgement,
        row_type: (Kind, Dtype),
        (needs, surveyed): (StepFeatures, Option<&abi::Step>),
    ) -> crate::Result<()> {
        let trees = Trees {
            drafts: draft_step,
            requests: drafts.requests.len(),
            row_type,
            draft_probs: drafts.addresses.probs,
            caller_forced: self.lists.forced.address() + (drafts.first_row * size_of::<i32>()) as u64,
        };
        let judged = self.draft_rows().judged();
        match surveyed {
            // SAFETY: the caller guarantees what the functions require.
            None => unsafe { judged.judge(&trees, judgement, needs) },
            // SAFETY: as above.
            Some(step) => unsafe { judged.judge_surveyed(&trees, judgement, (step, needs)) },
        }
    }

    /// Returns the argument of `draft_race`, if it draws from the rows, and not the kernels of a step.
    pub(crate) fn race(&self, step: &abi::Step) -> Option<abi::DraftRace> {
        let proposals = self.proposals.as_ref()?;
        let is_block = self.rule() == DraftRule::Judged(Judgement::Block);
        (proposals.limits.siblings > 1 || is_block).then(|| abi::DraftRace {
            step: *step,
            requests: self.draft_rows().requests.address(),
            drafts: proposals.address(),
            siblings: proposals.limits.siblings as u32,
            are_of_blocks: is_block.into(),
        })
    }
}
