//! Verification: which drafts of each request are accepted, and the token after them (rules S3 and S5 to S7).
//!
//! Each request is walked on one thread (`walk.rs`). As in a step, everything is checked first, then computed from state that
//! nobody changes, then the tokens are appended.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use gumball_cpu::Prepared;
use gumball_spec::layout::Layout;
use gumball_spec::verify::by_probabilities::{Judgement, check_draft_probs};
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::verify::{DraftTree, MAX_DRAFTS, parents_of};
use gumball_spec::{Error, Kind, NONE, Result, SamplingParams};

use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::outputs::Outputs;
use crate::pool::{PADDING, Pool, Slot, check_vocab};
use crate::route::Stages;
use crate::rows::RowsMut;
use crate::sequence::Sequence;
use crate::walk::Walk;

/// The drafts of a batch of requests, those of one request after those of another; `default()` is an empty batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drafts<'a> {
    /// The number of drafts of each request, in 0..=64.
    pub counts: &'a [u32],
    /// The draft tokens. One outside the vocabulary, [`NONE`] included, is never accepted.
    pub ids: &'a [i32],
    /// For each draft its parent in the tree of its request: -1 for the end of the history, or the number of a draft of
    /// the same request before it, counted from 0. `None`: each draft follows the one before it, a chain.
    pub parents: Option<&'a [i32]>,
    /// The probabilities that the drafts were drawn from: a row of the vocabulary for each row of logits, of which those
    /// without a draft behind them are not read. `None`: the drafter has none, or the mode is neither
    /// [`VerifyMode::Rejection`] nor [`VerifyMode::Block`], which alone read them.
    pub probs: Option<&'a [f32]>,
}

/// How drafts are judged. All but the first two draw other tokens than decoding without drafts does, and ask a route for the
/// probabilities of rows; a request without drafts takes a step in any mode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum VerifyMode {
    /// A draft is accepted if it is the token that the request would have drawn: the output is that of decoding without
    /// drafts (S3).
    #[default]
    Coupled,
    /// As `Coupled`, with temperature 0 in every row.
    Greedy,
    /// By the ratio of the target's and the drafter's probability, sibling after sibling; emitted tokens have the target's
    /// distribution (S5). With `probs`, siblings must have been drawn one after the other without replacement.
    Rejection,
    /// A chain as a whole, which accepts more than `Rejection` and has the same distribution (S6). With `probs`, drafts must not
    /// come from the race of their positions.
    Block,
    /// Accepts more than the target's distribution warrants (S7).
    Threshold {
        /// A draft of at least this probability is accepted; in 0..=1.
        single: f32,
        /// A draft is also accepted if a coin times this is below the probability of it and the siblings before it; in
        /// 0..=1. 1 for both is the target's distribution.
        acc: f32,
    },
}

impl VerifyMode {
    /// Returns the mode as numbers, which ranks compare.
    pub(crate) fn words(self) -> [u64; 3] {
        match self {
            VerifyMode::Coupled => [1, 0, 0],
            VerifyMode::Greedy => [2, 0, 0],
            VerifyMode::Rejection => [3, 0, 0],
            VerifyMode::Block => [4, 0, 0],
            VerifyMode::Threshold { single, acc } => [5, single.to_bits().into(), acc.to_bits().into()],
        }
    }

    /// Returns how drafts are judged by probabilities, if they are.
    pub(crate) fn judgement(self) -> Option<Judgement> {
        match self {
            VerifyMode::Coupled | VerifyMode::Greedy => None,
            VerifyMode::Rejection => Some(Judgement::Rejection),
            VerifyMode::Block => Some(Judgement::Block),
            VerifyMode::Threshold { single, acc } => Some(Judgement::Threshold { single, acc }),
        }
    }
}

/// What came out of a verification.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    pub(crate) outputs: Outputs,
    /// The first row of each request, and the end of the last one's.
    pub(crate) starts: Vec<usize>,
    pub(crate) accepted: Vec<u32>,
    pub(crate) rows: Vec<u32>,
}

impl Verification {
    /// Makes an empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an empty one that collects the kept set of every emitted token as well; see [`Outputs::with_kept`].
    #[must_use]
    pub fn with_kept() -> Self {
        Self { outputs: Outputs::with_kept(), ..Self::default() }
    }

    /// Returns the outputs. A request with n drafts has n + 1 rows in them, of which the first ones hold its emitted
    /// tokens, each with the status, logprobs and ranks of the row that it comes from. The others are as of padding.
    #[must_use]
    pub fn outputs(&self) -> &Outputs {
        &self.outputs
    }

    /// Returns how many drafts of each request were accepted.
    #[must_use]
    pub fn accepted(&self) -> &[u32] {
        &self.accepted
    }

    /// Returns which rows of [`Verification::outputs`] hold a request's emitted tokens; none for padding.
    #[must_use]
    pub fn places(&self, request: usize) -> Range<usize> {
        let start = self.starts[request];
        let is_padding = self.rows[start] == PADDED;
        start..start + if is_padding { 0 } else { self.accepted[request] as usize + 1 }
    }

    /// Returns a request's emitted tokens: the accepted drafts and one more, which is [`NONE`] from an empty row.
    #[must_use]
    pub fn tokens(&self, request: usize) -> &[i32] {
        &self.outputs.tokens()[self.places(request)]
    }

    /// Returns the rows of logits that a request's emitted tokens come from, as numbers of output rows of the logits. These
    /// are also the rows whose keys and values a model's cache keeps.
    #[must_use]
    pub fn rows(&self, request: usize) -> &[u32] {
        &self.rows[self.places(request)]
    }
}

#[cfg(feature = "cuda")]
impl Verification {
    /// Says of requests that took a step what it says of verified ones without drafts; the outputs are those of the step.
    pub(crate) fn note_step(&mut self, slots: &[Slot]) {
        let row = |(row, slot): (usize, &Slot)| if *slot == PADDING { PADDED } else { row as u32 };
        self.starts = starts(&vec![0; slots.len()]);
        self.rows = slots.iter().enumerate().map(row).collect();
        self.accepted = vec![0; slots.len()];
    }
}

/// The row of an output row that no token was emitted for.
pub(crate) const PADDED: u32 = u32::MAX;

impl Pool {
    /// Verifies the drafts of each request against the target's rows, and appends the emitted tokens to its sequence.
    ///
    /// A request with n drafts has n + 1 rows of logits, one after the other: that at the end of its history, then one
    /// behind each draft. Without drafts that is a step. Masks, forced tokens and hooks come with rows: a row's mask is that
    /// behind the drafts on the path to it. Every parameter acts in every row, with the path as output. A stop id that is
    /// emitted is the last token. A hook is called for the rows that tokens are emitted from; in [`VerifyMode::Block`] for all,
    /// and where drafts are judged by probabilities twice.
    ///
    /// [`Pool::shorten`] takes away what the caller does not want of the tokens.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// let mut pool = Pool::new(PoolConfig::new(4))?;
    /// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[0])?;
    /// // Behind the history: 1 or 2. Behind 1: 3.
    /// let drafts = Drafts { counts: &[3], ids: &[1, 2, 3], parents: Some(&[-1, -1, 0]), probs: None };
    /// let logits = [
    ///     0.0f32, 9.0, 0.0, 0.0, // at the end of the history, the model says 1,
    ///     0.0, 0.0, 0.0, 9.0, // behind 1 it says 3,
    ///     0.0, 0.0, 0.0, 0.0, // (behind 2)
    ///     0.0, 0.0, 9.0, 0.0, // and behind 1 and 3 it says 2.
    /// ];
    /// let mut out = Verification::new();
    /// let logits = Logits::new(&logits, 4, 4)?;
    /// pool.verify(logits, &[slot], &drafts, VerifyMode::Coupled, &BatchOptions::default(), &mut out)?;
    /// assert_eq!(out.tokens(0), [1, 3, 2]);
    /// assert_eq!(out.rows(0), [0, 1, 3]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Shapes and units
    /// `slots`: one for each request, [`PADDING`] for one without a sequence, whose drafts and rows are not read; no other
    /// twice. `drafts.counts`: as many. `logits`: as many rows as there are requests and drafts together, of the pool's
    /// vocabulary. `options`: each list in them is empty or has one element for each row.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so, or a request has more than 64 drafts.
    /// - [`Error::OutOfRange`] for a parent that is neither -1 nor a draft before in the same request: drafts in a
    ///   cycle always have one.
    /// - [`Error::Conflict`] for a request with mirostat and drafts: mu would depend on the tokens of the path. In
    ///   [`VerifyMode::Block`] also for a forced token beside drafts.
    /// - [`Error::Conflict`] for probabilities of the drafter in a mode that does not read them.
    /// - [`Error::OutOfRange`] for a threshold outside 0..=1, and in `Block` for a tree that is no chain.
    /// - [`Error::Unavailable`] if drafts are judged by probabilities, and the pool's route knows none.
    /// - Those of [`Pool::step`].
    ///
    /// No sequence was changed then.
    pub fn verify(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()> {
        drafts.check(slots.len(), self.vocab, mode)?;
        self.check_verify(logits, slots, drafts, &drafts.starts(), mode.judgement(), options)?;
        self.judge(logits, slots, drafts, mode, options, out)?;
        self.append(slots, out);
        Ok(())
    }

    /// Computes what a verification gives that was checked, and changes no sequence.
    pub(crate) fn judge(
        &self,
        logits: Logits<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()> {
        let (starts, judgement) = (drafts.starts(), mode.judgement());
        let greedy = self.greedy(slots, mode)?;

        // An error of a route leaves it empty.
        (out.starts, out.accepted, out.rows) = Default::default();
        let rows = out.outputs.reshape(Layout { rows: logits.rows(), widths: self.widths })?;
        let path: Vec<AtomicU32> = (0..logits.rows()).map(|_| AtomicU32::new(PADDED)).collect();
        let (sequences, level) = (&self.slots, self.level());
        let work = |rows: &mut RowsMut<'_>, stages: &mut dyn Stages| {
            for request in requests_in(&starts, rows.range()) {
                let places = starts[request]..starts[request + 1];
                let mut emitted = 0;
                if slots[request] != PADDING {
                    let sequence = sequences[slots[request] as usize].as_ref().expect("checked: admitted");
                    let tree = drafts.tree(places.clone(), request);
                    let judge = judgement.filter(|_| !tree.drafts.is_empty());
                    let walk = Walk {
                        logits,
                        options,
                        sequence,
                        greedy: greedy[request].as_ref(),
                        tree,
                        start: places.start,
                    };
                    let walked = match judge {
                        None => walk.coupled(rows, stages)?,
                        Some(judgement) => walk.judged(judgement, drafts.probs, level, rows, stages)?,
                    };
                    emitted = walked.len();
                    let to = path[places.start..].iter().zip(walked);
                    to.for_each(|(to, row)| to.store((places.start + row) as u32, Ordering::Relaxed));
                }
                places.skip(emitted).for_each(|row| rows.write_padding(row));
            }
            Ok(())
        };
        let split = |range: Range<usize>| {
            let requests = requests_in(&starts, range);
            (requests.len() > 1).then(|| starts[requests.start + requests.len() / 2])
        };
        self.workers.over(rows, &split, &work)?;

        out.rows = path.into_iter().map(AtomicU32::into_inner).collect();
        out.starts = starts;
        Ok(())
    }

    /// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, for a caller who stops behind a token that
    /// more were emitted after. The sequence is then as it was when the remaining tokens had been emitted.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one count for each slot.
    /// - [`Error::OutOfRange`] for a vacant slot, one that stands there twice, or more tokens than
    ///   [`Pool::truncate`] could take away. No sequence was changed then.
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        check_counts(counts, slots)?;
        for slot in slots {
            self.sequence(*slot)?;
        }
        self.check_slots(slots)?;
        for (slot, count) in slots.iter().zip(counts) {
            check_taken(*slot, *count, self.sequence(*slot)?)?;
        }
        for (slot, count) in slots.iter().zip(counts) {
            let sequence = self.slots[*slot as usize].as_mut().expect("checked: admitted");
            let left = sequence.history().output().len() - count;
            sequence.truncate(left).expect("checked: as many are there");
        }
        Ok(())
    }

    pub(crate) fn check_verify(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        starts: &[usize],
        judgement: Option<Judgement>,
        options: &BatchOptions<'_>,
    ) -> Result<()> {
        check_rows(logits, self.vocab, starts, options)?;
        self.check_requests(logits.kind(), slots, drafts, starts, judgement, options)
    }

    /// Checks the requests of a verification as far as their logits do not matter.
    pub(crate) fn check_requests(
        &mut self,
        kind: Kind,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        starts: &[usize],
        judgement: Option<Judgement>,
        options: &BatchOptions<'_>,
    ) -> Result<()> {
        judgement.map_or(Ok(()), Judgement::check)?;
        self.check_slots(slots)?;
        for (request, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            let places = starts[request]..starts[request + 1];
            let tree = drafts.tree(places.clone(), request);
            let is_block = judgement == Some(Judgement::Block);
            let check = if is_block { tree.check_chain() } else { tree.check() };
            check.map_err(|error| in_request(error, request))?;
            check_drafts(self.sequence(*slot)?.params(), tree.drafts.len())?;
            if is_block {
                check_forced_block(places.clone(), |row| options.forced(row))?;
            }
            let hooked = places.into_iter().any(|row| options.hook(row).is_some());
            self.check_row(*slot, kind, hooked)?;
        }
        Ok(())
    }

    /// Returns the parameters of the requests that are greedy by the mode alone.
    pub(crate) fn greedy(&self, slots: &[Slot], mode: VerifyMode) -> Result<Vec<Option<Prepared>>> {
        let prepare = |slot: &Slot| {
            if mode != VerifyMode::Greedy || *slot == PADDING {
                return Ok(None);
            }
            let params = self.sequence(*slot)?.params();
            Prepared::new(SamplingParams { temperature: 0.0, ..params.clone() }, self.vocab).map(Some)
        };
        slots.iter().map(prepare).collect()
    }

    /// Appends the emitted tokens.
    pub(crate) fn append(&mut self, slots: &[Slot], out: &mut Verification) {
        for (request, slot) in slots.iter().enumerate() {
            let places = out.starts[request]..out.starts[request + 1];
            let emitted = out.rows[places.clone()].iter().take_while(|row| **row != PADDED).count();
            out.accepted.push(emitted.saturating_sub(1) as u32);
            for place in places.take(emitted) {
                let (token, mu) = (out.outputs.tokens()[place], out.outputs.mirostat_mu()[place]);
                if token != NONE {
                    let sequence = self.slots[*slot as usize].as_mut().expect("checked: admitted");
                    sequence.push(token as u32, mu);
                }
            }
        }
    }
}

impl<'a> Drafts<'a> {
    /// Returns what [`Drafts::parents`] takes for trees that are held as links, as SGLang and TokenSpeed hold them.
    ///
    /// Rows are those of logits: a request with n drafts has n + 1, counted from 0, its root's first. `first_child` and
    /// `next_sibling` have an element for each row of each request: a row of the same request behind this one, or -1.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// // A root with the children 1 and 3; 1 has the child 2. Then a request without drafts.
    /// let parents = Drafts::parents_of(&[3, 0], &[1, 2, -1, -1, -1], &[-1, 3, -1, -1, -1])?;
    /// assert_eq!(parents, [-1, 0, -1]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so.
    /// - [`Error::OutOfRange`] for more than 64 drafts, a link that is neither -1 nor a row behind its own, a row that two links lead
    ///   to or none, and a sibling of a root. So cycles and orphans are refused.
    pub fn parents_of(counts: &[u32], first_child: &[i32], next_sibling: &[i32]) -> Result<Vec<i32>> {
        check_draft_counts(counts)?;
        let rows: usize = counts.iter().map(|count| *count as usize + 1).sum();
        for (name, links) in [("first_child", first_child), ("next_sibling", next_sibling)] {
            if links.len() != rows {
                let allowed = format!("one per request and one per draft, {rows}");
                return Err(Error::length(name, links.len(), allowed));
            }
        }
        let (mut parents, mut start) = (Vec::with_capacity(rows - counts.len()), 0);
        for (request, count) in counts.iter().enumerate() {
            let rows = start..start + *count as usize + 1;
            start = rows.end;
            let tree = parents_of(&first_child[rows.clone()], &next_sibling[rows]);
            parents.extend(tree.map_err(|error| in_request(error, request))?);
        }
        Ok(parents)
    }

    /// Checks what can be checked without the requests.
    pub(crate) fn check(&self, requests: usize, vocab: usize, mode: VerifyMode) -> Result<()> {
        if self.counts.len() != requests {
            let wanted = format!("one per request, {requests}");
            return Err(Error::length("drafts.counts", self.counts.len(), wanted));
        }
        check_draft_counts(self.counts)?;
        let total: usize = self.counts.iter().map(|count| *count as usize).sum();
        let parents = self.parents.map(|parents| ("drafts.parents", parents.len()));
        for (name, length) in parents.into_iter().chain([("drafts.ids", self.ids.len())]) {
            if length != total {
                return Err(Error::length(name, length, format!("{total}, the sum of the counts")));
            }
        }
        let Some(probs) = self.probs else { return Ok(()) };
        check_draft_probs("drafts.probs", mode.judgement())?;
        let wanted = (requests + total).saturating_mul(vocab);
        if probs.len() != wanted {
            let wanted = format!("{wanted}, a row for each row of logits");
            return Err(Error::length("drafts.probs", probs.len(), wanted));
        }
        Ok(())
    }

    /// Returns the first row of each request, and the end of the last one's.
    pub(crate) fn starts(&self) -> Vec<usize> {
        starts(self.counts)
    }

    /// Returns the tree of a request whose rows are `places`: in front of them each request has one row that is no draft's.
    pub(crate) fn tree(&self, places: Range<usize>, request: usize) -> DraftTree<'a> {
        let drafts = places.start - request..places.end - request - 1;
        DraftTree { drafts: &self.ids[drafts.clone()], parents: self.parents.map(|parents| &parents[drafts]) }
    }
}

/// Returns the first row of each of several requests with drafts, and the end of the last one's.
pub(crate) fn starts(counts: &[u32]) -> Vec<usize> {
    let mut end = 0;
    let ends = counts.iter().map(|count| {
        end += *count as usize + 1;
        end
    });
    std::iter::once(0).chain(ends).collect()
}

/// Checks the rows of a verification and what comes with them.
pub(crate) fn check_rows(
    logits: Logits<'_>,
    vocab: usize,
    starts: &[usize],
    options: &BatchOptions<'_>,
) -> Result<()> {
    check_vocab(vocab, logits.vocab())?;
    let rows = starts.last().copied().unwrap_or(0);
    if logits.rows() != rows {
        let wanted = format!("{rows} rows, one per request and one per draft");
        return Err(Error::length("logits", logits.rows(), wanted));
    }
    options.check(rows, vocab)
}

/// Checks that no row of a block with drafts has a forced token.
pub(crate) fn check_forced_block(
    mut rows: Range<usize>,
    forced: impl Fn(usize) -> Option<u32>,
) -> Result<()> {
    if rows.len() > 1 && rows.any(|row| forced(row).is_some()) {
        let reason = "a block is judged as a whole; force tokens in another mode, or without drafts";
        return Err(Error::Conflict { parameter: "forced", other: "block", reason });
    }
    Ok(())
}

/// Checks that there is a count for each slot.
pub(crate) fn check_counts(counts: &[usize], slots: &[Slot]) -> Result<()> {
    if counts.len() == slots.len() {
        return Ok(());
    }
    Err(Error::length("counts", counts.len(), format!("one per slot, {}", slots.len())))
}

/// Checks that as many tokens can be taken away from a sequence.
pub(crate) fn check_taken(slot: Slot, count: usize, sequence: &Sequence) -> Result<()> {
    let most = sequence.most_to_take_away();
    if count <= most {
        return Ok(());
    }
    let value = format!("{count} of slot {slot}");
    Err(Error::out_of_range("counts", value, format!("in 0..={most}, its output tokens")))
}

/// Checks that no request has too many drafts.
fn check_draft_counts(counts: &[u32]) -> Result<()> {
    match counts.iter().enumerate().find(|(_, count)| **count as usize > MAX_DRAFTS) {
        Some((request, count)) => {
            let value = format!("{count} in request {request}");
            Err(Error::out_of_range("drafts.counts", value, format!("in 0..={MAX_DRAFTS}")))
        }
        None => Ok(()),
    }
}

/// Returns the request that a row is of.
pub(crate) fn request_of(starts: &[usize], row: usize) -> usize {
    starts.partition_point(|start| *start <= row) - 1
}

/// Returns the requests whose rows are in a range, which cuts none in two.
fn requests_in(starts: &[usize], rows: Range<usize>) -> Range<usize> {
    let request = |row| starts.partition_point(|start| *start < row);
    request(rows.start)..request(rows.end)
}

/// Says in an error which request it is about.
pub(crate) fn in_request(error: Error, request: usize) -> Error {
    match error {
        Error::OutOfRange { parameter, value, allowed } => {
            Error::OutOfRange { parameter, value: format!("{value} of request {request}"), allowed }
        }
        error => error,
    }
}
