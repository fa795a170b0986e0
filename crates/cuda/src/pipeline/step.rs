//! Steps: what turns rows of logits or probabilities into tokens, or into drafts of a batch.
//!
//! [`Workspace::fix`] fixes the launches for a shape; `launch_step.rs` launches them. A step does not borrow
//! its workspace, so requests can come and go between two replays.

use std::marker::PhantomData;

use gumball_spec::request::{check_mask_width, no_draft_counts};
use gumball_spec::{Error, Kind, Result};

use crate::abi::dtype::{Dtype, IntType};
use crate::abi::{self, draft_flags, flags};
use crate::launch::{Launch, tuning};
use crate::memory::int_matrix::DeviceIntMatrix;
use crate::memory::rows::{MaskRows, Rows};
use crate::pipeline::assignment::{DraftBatchId, Shape};
use crate::pipeline::draft_rows::{DraftIds, DraftPaths, StepDrafts};
use crate::pipeline::exchange::Spread;
use crate::pipeline::head::{Head, HeadLaunch};
use crate::pipeline::rank_rows::{Exchange, RankRows};
use crate::pipeline::row_batch::RowBatch;
use crate::pipeline::windows::Windows;
use crate::pipeline::workspace::Workspace;
use crate::requests::step_variant::StepVariant;

/// What a step reads besides what is assigned to its rows.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a, 'b> {
    /// The batch of drafts whose rows draw; `None` for the rows of steps.
    pub of: Option<DraftBatchId>,
    /// Logits or probabilities, or with a head hidden states. Row i of the step reads row i, or the one that
    /// the assignment's `row_indices` name. Over ranks: of each assigned row this rank's part, which may be
    /// followed by padding; under [`ExchangeLayout::Replicated`](crate::ExchangeLayout::Replicated) the whole
    /// rows that this rank owns.
    pub rows: Rows<'b>,
    /// The head that makes the rows of logits of hidden states, one for each row; over ranks one of this
    /// rank's ids, unless it has whole rows. Its memory holds the logits of one step at a time, so steps of
    /// one head must run one after the other.
    pub head: Option<&'b Head<'b>>,
    /// Bitmasks, over ranks of all rows. They replace those of the assignment, for the rows that have one
    /// there. If the assignment has none, they apply to every row.
    pub masks: Option<MaskRows<'b>>,
    /// The drafts that the step verifies, for an assignment that counts them.
    pub drafts: Option<DraftIds<'b>>,
    /// The paths in front of the rows of a draft model. Row r follows the first ids of row r, as many as were
    /// assigned to it. Behind a path with an id outside the vocabulary there are no drafts.
    pub paths: Option<DeviceIntMatrix<'b>>,
    /// How the rows are spread over ranks, and the window of this one. All ranks assign the same slots,
    /// options and rows, and enqueue the same steps in the same order. The windows and the workspace must
    /// outlive the step's work.
    pub ranks: Option<(&'a Windows, &'a RankRows<'a>)>,
    /// The named variant whose kernels the step launches, whatever its rows need; a [`Graph`](crate::Graph)
    /// of this crate ignores it.
    pub variant: Option<StepVariant>,
}

impl<'b> StepInput<'_, 'b> {
    /// Returns the input of a step over rows, and nothing else.
    #[must_use]
    pub fn of(rows: &Rows<'b>) -> Self {
        Self {
            of: None,
            rows: *rows,
            head: None,
            masks: None,
            drafts: None,
            paths: None,
            ranks: None,
            variant: None,
        }
    }

    /// Checks that the parts go together.
    fn check(&self) -> Result<()> {
        let of_drafts = self.of.is_some();
        let refused = [
            (of_drafts && self.drafts.is_some(), "drafts", "batch", "rows of a draft model verify no drafts"),
            (
                !of_drafts && self.paths.is_some(),
                "paths",
                "batch",
                "only rows of a draft model are behind paths",
            ),
            (
                of_drafts && self.head.is_some(),
                "hidden",
                "batch",
                "rows of a draft model are given as they are",
            ),
        ];
        match refused.into_iter().find(|(is_refused, ..)| *is_refused) {
            Some((_, parameter, other, reason)) => Err(Error::Conflict { parameter, other, reason }),
            None => Ok(()),
        }
    }
}

/// A step of a workspace, ready to be enqueued there; what it reads lives as long as `'b`.
#[derive(Clone, Debug)]
pub struct Step<'b> {
    pub(crate) workspace: u64,
    pub(crate) terms: StepTerms,
    pub(crate) dtype: Dtype,
    pub(crate) argument: abi::Step,
    /// What makes the requests of the rows.
    pub(crate) begin: Begin,
    /// The head that makes the step's logits of hidden states.
    pub(crate) head: Option<HeadLaunch>,
    /// The head that makes this rank's part of the logits, before rows are exchanged, and its step.
    pub(crate) part_head: Option<Box<(HeadLaunch, abi::Step)>>,
    /// The logits of which a softmax makes the rows of the step.
    pub(crate) softmax_of: Option<Rows<'b>>,
    /// The step over logits rows that several rows read, and the launch of their survey.
    pub(crate) shared: Option<(abi::Step, Launch<abi::Step>)>,
    /// Whether the step finishes its rows; otherwise it only surveys them.
    pub(crate) finishes: bool,
    memory: PhantomData<&'b ()>,
}

/// What a step was fixed for: it may be launched, or replayed, as long as the assignments suit that.
#[derive(Clone, Debug)]
pub struct StepTerms {
    /// The batch of drafts whose rows draw; `None` for the workspace's own rows.
    pub(crate) of: Option<DraftBatchId>,
    shape: Shape,
    /// The number of rows that the logits have.
    logits_rows: usize,
    /// The ids in a row of the paths in front of rows of a draft model.
    path_width: usize,
    pub(crate) kind: Kind,
    /// The named variant whose kernels the step launches, if one was named.
    pub(crate) variant: Option<StepVariant>,
    /// Whether the step advances requests.
    pub(crate) advances: bool,
    is_approximate: bool,
    /// What is exchanged with other ranks before the step's kernels and after them.
    pub(crate) exchange: Option<Exchange>,
}

/// What makes the requests of a step's rows, and what becomes of the tokens.
#[derive(Clone, Debug)]
pub(crate) enum Begin {
    /// They are those in the slots, which the tokens advance.
    Nothing,
    /// Each row follows drafts, and the requests walk through these.
    Verify(StepDrafts),
    /// Each row follows a path, and its tokens are drafts.
    Propose(DraftPaths),
}

impl Workspace {
    /// Fixes the launches of a step, for the current assignment.
    ///
    /// With drafts, kernels draw a token from each row, and accept the drafts that equal what is drawn before
    /// them; or they judge the drafts by the probabilities of their rows, as the assignment's
    /// [`DraftRule`](crate::DraftRule) says. They advance each request by the accepted drafts and one token
    /// more. The outputs of the rows that tokens are emitted from move to the request's first rows;
    /// [`Results::read_walks`](crate::Results::read_walks) names the rows. A request with mirostat or
    /// adaptive-p must have no drafts. Parents that are no tree end the request's walk after its first row,
    /// which gets the status `NO_TREE`.
    ///
    /// Over ranks the results of the whole batch lie in each rank's window then, walks after them, and each
    /// rank has advanced all requests. The rows of a request have one owner. The drafts are those of the
    /// whole batch, in its order, on all ranks alike; of the drafter's probabilities only the rows of own
    /// requests are read. Of a batch of drafts each rank draws all, from rows that are gathered.
    ///
    /// # Errors
    /// - [`Error::Length`] if the rows have another vocabulary than the workspace, or hidden states another
    ///   width than the head.
    /// - [`Error::Length`] if the assignment has no `row_indices`, and there is another number of rows than
    ///   it has; if there is not one bitmask per assigned row; for hidden states beyond the head's capacity.
    /// - [`Error::OutOfRange`] if a row index is not below the number of rows, or a bitmask has a word for
    ///   each id.
    /// - [`Error::Length`] if there are not as many ids and parents as the assignment counts drafts;
    ///   [`Error::OutOfRange`] for columns of another type than i32 and i64, and for probabilities of another
    ///   type or shape; [`Error::Conflict`] for probabilities that the rule does not read.
    /// - [`Error::Length`] if the paths have too few rows or columns, or there are none and a row has a path;
    ///   [`Error::OutOfRange`] if their ids have no sign, or their rows lie 2^32 ids or more apart.
    /// - [`Error::OutOfRange`] if the workspace has no such batch of drafts.
    /// - [`Error::Conflict`] for parts of the input that do not go together or with the assignment: over
    ///   ranks, for example, row indices; bitmasks of rows that are assigned in another order than the
    ///   batch's; a layout that the windows were made without; and under
    ///   [`ExchangeLayout::Survey`](crate::ExchangeLayout::Survey) kept sets, messages, and drafts that are
    ///   judged by probabilities.
    ///
    /// # Panics
    /// If the windows were made for another workspace, or the rows are spread over another number of ranks.
    pub fn fix<'b>(&self, input: &StepInput<'_, 'b>) -> Result<Step<'b>> {
        let batch = self.batch(input.of)?;
        let shape = batch.shape;
        input.check()?;
        let spread =
            input.ranks.map(|(windows, rows)| Spread::new(self, batch, windows, rows)).transpose()?;
        let (mut head, mut part_head) = (None, None);
        match (input.head, &spread) {
            (Some(of), Some(spread)) if !spread.has_whole_rows() => {
                spread.check_order("hidden")?;
                part_head = Some(Box::new(of.launch_part(&input.rows, self.bare_step())?));
            }
            (Some(of), spread) => {
                let rows = spread.as_ref().map_or(shape.rows, |spread| spread.part().len());
                head = Some(self.fix_head(of, &input.rows, (shape, rows))?);
            }
            (None, _) => {}
        }
        let begin = fix_begin(batch, input, spread.as_ref(), self.limits.vocab)?;
        let given = input.head.map_or(Ok(input.rows), |head| head.rows(input.rows.rows))?;
        let rows = match &spread {
            Some(spread) => spread.sampled(&given)?,
            None => given,
        };
        if rows.vocab != self.limits.vocab {
            let allowed = format!("{} elements in a row, the vocabulary", self.limits.vocab);
            return Err(Error::length("logits", rows.vocab, allowed));
        }
        let is_own = input.of.is_none();
        let is_for_softmax = is_own && spread.is_none() && rows.kind == Kind::Logits;
        let softmax = self.probability_rows.as_ref().filter(|_| is_for_softmax);
        let (rows, softmax_of) = match softmax {
            Some(own) => (own.rows(rows.rows)?, Some(rows)),
            None => (rows, None),
        };

        let part = spread.as_ref().map_or(0..shape.rows, Spread::part);
        if !shape.row_indices && rows.rows != part.len() {
            return Err(Error::length("logits", rows.rows, format!("one per slot, {}", part.len())));
        }
        batch.check(shape, rows.rows)?;
        let (sampled, first) = (part.len(), part.start);
        let mut argument = self.argument(batch, part);
        argument.flags |= if self.searches { flags::NO_CANDIDATES } else { 0 };
        (argument.logits, argument.stride) = (rows.address, rows.stride as u64);
        if let Some(masks) = &input.masks {
            self.set_masks(&mut argument, masks, (shape.rows, first))?;
        }
        let mut shared = None;
        if is_own
            && shape.row_indices
            && argument.masks == 0
            && tuning::surveys_shared_rows(&self.device, sampled, rows.rows, argument.tiles as usize)
        {
            shared = Some(self.scratch.shared_rows.survey(&self.device, &rows, &argument));
            argument.shared_records = self.scratch.shared_rows.records.address();
        }
        let exchange = match &spread {
            Some(spread) => Some(spread.exchange(self, (&given, input.masks.as_ref()), &argument)?),
            None => None,
        };
        let terms = StepTerms {
            of: input.of,
            shape,
            logits_rows: rows.rows,
            path_width: input.paths.map_or(0, |paths| paths.width),
            kind: rows.kind,
            variant: input.variant,
            advances: is_own,
            is_approximate: head.as_ref().is_some_and(|head| head.centroids.is_some()),
            exchange,
        };
        Ok(Step {
            workspace: self.id,
            terms,
            dtype: rows.dtype,
            argument,
            begin,
            head,
            part_head,
            softmax_of,
            shared,
            finishes: true,
            memory: PhantomData,
        })
    }

    /// Fixes the launches of a head over hidden states.
    fn fix_head<'b>(
        &self,
        head: &'b Head<'b>,
        hidden: &Rows<'b>,
        (shape, rows): (Shape, usize),
    ) -> Result<HeadLaunch> {
        if shape.row_indices {
            let reason = "a step from hidden states has one for each row";
            return Err(Error::Conflict { parameter: "row_indices", other: "hidden", reason });
        }
        if hidden.rows != rows {
            let allowed = format!("one hidden state for each row, {rows}");
            return Err(Error::length("hidden", hidden.rows, allowed));
        }
        // A softmax, and a judgement by probabilities, read every logit.
        let is_judged = shape.drafts.is_some_and(|drafts| drafts.rule.judgement().is_some());
        head.launch(hidden, self.probability_rows.is_none() && !is_judged)
    }

    /// Lets a step read the bitmasks of a caller for `rows` rows, those from `first` on.
    pub(super) fn set_masks(
        &self,
        step: &mut abi::Step,
        masks: &MaskRows<'_>,
        (rows, first): (usize, usize),
    ) -> Result<()> {
        if masks.rows != rows {
            return Err(Error::length("masks", masks.rows, format!("one per row, {rows}")));
        }
        check_mask_width("masks.width", masks.width, self.limits.vocab)?;
        // Kernels read nothing of bitmasks without words. Their address must not be 0, which stands for
        // rows without bitmasks.
        let skipped = (first * masks.stride * size_of::<u32>()) as u64;
        step.masks = if masks.width == 0 { step.slots } else { masks.address + skipped };
        (step.mask_words, step.mask_stride) = (masks.width as u32, masks.stride as u64);
        Ok(())
    }
}

/// Checks that there are drafts if some were assigned, and returns what makes the requests of the rows.
fn fix_begin(
    batch: &RowBatch,
    input: &StepInput<'_, '_>,
    spread: Option<&Spread<'_>>,
    vocab: usize,
) -> Result<Begin> {
    let shape = batch.shape;
    match (shape.drafts, input.drafts) {
        _ if input.of.is_some() => {
            Ok(Begin::Propose(paths_of(input.paths.as_ref(), shape.rows, batch.longest_path())?))
        }
        (None, None) => Ok(Begin::Nothing),
        // Without requests nothing tells drafts from none.
        (None, Some(_)) if shape.rows == 0 && input.rows.rows == 0 => Ok(Begin::Nothing),
        (Some(of), Some(ids)) => {
            let mut addresses = ids.addresses((of.requests, shape.rows, vocab), of.rule)?;
            let surveys = spread.is_some_and(|spread| spread.surveys(input.rows.kind));
            addresses.flags |= if surveys { draft_flags::IN_BATCH } else { 0 };
            let own = spread.filter(|_| !surveys);
            Ok(Begin::Verify(StepDrafts {
                addresses,
                rule: of.rule,
                requests: own.map_or(0..of.requests, Spread::requests),
                first_row: own.map_or(0, |spread| spread.part().start),
            }))
        }
        _ => Err(no_draft_counts()),
    }
}

/// Checks the paths in front of `rows` rows, of which the longest has `longest` drafts, and returns where
/// they lie.
fn paths_of(paths: Option<&DeviceIntMatrix<'_>>, rows: usize, longest: usize) -> Result<DraftPaths> {
    let Some(paths) = paths.filter(|_| longest > 0) else {
        return match longest {
            0 => Ok(DraftPaths::default()),
            _ => Err(Error::length("paths", 0, format!("{rows} rows of at least {longest} ids"))),
        };
    };
    if paths.rows < rows || paths.width < longest {
        let value = format!("[{}, {}]", paths.rows, paths.width);
        return Err(Error::out_of_range("paths", value, format!("at least [{rows}, {longest}]")));
    }
    let ids_64_bit = match paths.dtype {
        IntType::I32 => 0,
        IntType::I64 => draft_flags::IDS_I64,
        unsigned => {
            return Err(Error::out_of_range("paths", format!("{unsigned:?}"), "i32 or i64"));
        }
    };
    let stride = u32::try_from(paths.stride)
        .map_err(|_| Error::out_of_range("paths", paths.stride, "a stride below 2^32"))?;
    Ok(DraftPaths { ids: paths.row(0), stride, flags: ids_64_bit })
}

impl Step<'_> {
    /// Returns what it was fixed for.
    #[must_use]
    pub fn terms(&self) -> &StepTerms {
        &self.terms
    }

    /// Returns a step of known tokens: row i is i positions after its request, and no row advances its
    /// request.
    pub(crate) fn with_known_tokens(mut self) -> Self {
        self.argument.flags |= flags::KNOWN_TOKENS;
        self.terms.advances = false;
        self
    }

    /// Returns a step that only surveys its rows and yields no tokens. For measurements.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn survey_only(mut self) -> Self {
        (self.finishes, self.terms.advances) = (false, false);
        self
    }
}

impl StepTerms {
    /// Checks that the assignment still suits what was fixed for it, after at most `tokens` tokens that the
    /// requests have not emitted yet, and returns its rows.
    pub(crate) fn check<'w>(&self, workspace: &'w Workspace, tokens: u64) -> Result<&'w RowBatch> {
        let batch = workspace.batch(self.of)?;
        batch.check(self.shape, self.logits_rows)?;
        if self.of.is_some() {
            let longest = batch.longest_path();
            if longest > self.path_width {
                let allowed = format!("at most {}, the ids in a row of the paths", self.path_width);
                return Err(Error::out_of_range("counts", longest, allowed));
            }
            batch.check_room(&workspace.requests, tokens)?;
        }
        Ok(batch)
    }

    /// Checks that the requests of the rows are allowed on what these hold, and served by the variant.
    pub(crate) fn check_requests(&self, rows: &RowBatch) -> Result<()> {
        rows.check_kind(self.kind)?;
        self.variant.map_or(Ok(()), |variant| rows.check_variant(variant))
    }

    /// Returns the batch of drafts whose rows draw; `None` for a step that advances requests.
    #[must_use]
    pub fn draft_batch(&self) -> Option<DraftBatchId> {
        self.of
    }

    /// Returns the named variant whose kernels the step launches, if one was named.
    #[must_use]
    pub fn variant(&self) -> Option<StepVariant> {
        self.variant
    }

    /// Returns whether its rows have the logits of probed sets alone, as a head with clusters makes them.
    #[must_use]
    pub fn is_approximate(&self) -> bool {
        self.is_approximate
    }
}
