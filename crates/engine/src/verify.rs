//! Verification: which drafts of each request are accepted, and the token after them (rules S3 and S5 to S7).
//!
//! Each request is walked on one thread (`walk.rs`). As in a step, everything is checked first, then computed from state that
//! nobody changes, then the tokens are appended.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use gumball_cpu::Prepared;
use gumball_spec::layout::Layout;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::{Error, Kind, NONE, Result, SamplingParams};

use crate::batch::Batch;
use crate::drafts::{Drafted, Drafts, ReadDrafts, in_request};
use crate::logits::Logits;
use crate::outputs::{Outputs, PADDED};
use crate::pool::Pool;
use crate::route::Stages;
use crate::rows::{Rows, Source};
use crate::sink::RowsMut;
use crate::slot::{PADDING, Slot};
use crate::verify_mode::VerifyMode;
use crate::walk::Walk;

impl Pool {
    /// Verifies the drafts of each request against the target's rows, and appends the emitted tokens to its sequence.
    ///
    /// A request with n drafts has n + 1 rows, one after the other: that at the end of its history, then one
    /// behind each draft. Without drafts that is a step. Masks, forced tokens and hooks come with rows: a row's mask is that
    /// behind the drafts on the path to it. Every parameter acts in every row, with the path as output. A stop id that is
    /// emitted is the last token. A hook is called for the rows that tokens are emitted from; in [`VerifyMode::Block`] for all,
    /// and where drafts are judged by probabilities twice.
    ///
    /// From hidden states, a certified head computes a part of a row in the modes [`VerifyMode::Coupled`] and [`VerifyMode::Greedy`], and in any
    /// mode for a request without drafts, under the conditions of [`Pool::needs_whole_row`]; rows that are judged by probabilities take the
    /// exact head. Rows behind a draft outside the vocabulary are not computed. The logits of all others are held at once.
    ///
    /// [`Pool::shorten`] takes away what the caller does not want of the tokens.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// let mut pool = Pool::new(PoolConfig::new(4))?;
    /// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[0])?;
    /// // Behind the history: 1 or 2. Behind 1: 3.
    /// let drafts = Drafts::tree(&[1, 2, 3], &[-1, -1, 0]);
    /// let logits = [
    ///     0.0f32, 9.0, 0.0, 0.0, // at the end of the history, the model says 1,
    ///     0.0, 0.0, 0.0, 9.0, // behind 1 it says 3,
    ///     0.0, 0.0, 0.0, 0.0, // (behind 2)
    ///     0.0, 0.0, 9.0, 0.0, // and behind 1 and 3 it says 2.
    /// ];
    /// let batch = Batch { slots: &[slot], counts: &[3], ..Batch::default() };
    /// let mut out = Outputs::new();
    /// pool.verify(Rows::logits(&logits, 4, 4)?, &batch, &drafts, &mut out)?;
    /// assert_eq!(out.request(0).tokens, [1, 3, 2]);
    /// assert_eq!(out.request(0).rows, [0, 1, 3]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Shapes and units
    /// `batch.slots`: one for each request, [`PADDING`] for one without a sequence, whose drafts and rows are not read; no other
    /// twice. `batch.counts`: as many. `rows`: as many as there are requests and drafts together, of the pool's
    /// vocabulary. The other lists of `batch`: each is empty or has one element for each row.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so, or a request has more than 64 drafts.
    /// - [`Error::OutOfRange`] for a parent that is neither -1 nor a draft before in the same request, and for a link that is neither -1 nor
    ///   a row behind its own, a row that two links lead to or none, and a sibling of a root. So cycles and orphans are refused.
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
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        batch.refuse_plan()?;
        let (source, drafts) = self.check_verification(rows, batch, drafts)?;
        self.verify_checked(source, batch, &drafts, out)?;
        self.in_order.note_direct();
        Ok(())
    }

    /// Checks a verification, and returns its rows and drafts.
    pub(crate) fn check_verification<'a>(
        &mut self,
        rows: Rows<'a>,
        batch: &Batch<'a>,
        drafts: &Drafts<'a>,
    ) -> Result<(Source<'a>, ReadDrafts<'a>)> {
        let drafts = drafts.read(&Drafted::of(batch), self.vocab)?;
        let source = rows.read(batch, self.vocab)?;
        rows.check_drafted(batch, drafts.rows())?;
        self.check_requests(rows.kind(), batch, &drafts)?;
        Ok((source, drafts))
    }

    /// Takes a verification that was checked.
    pub(crate) fn verify_checked(
        &mut self,
        source: Source<'_>,
        batch: &Batch<'_>,
        drafts: &ReadDrafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        match source {
            Source::Given(logits) => self.judge(logits, batch, drafts, out)?,
            Source::Hidden(head, states) => self.judge_hidden(head, states, batch, drafts, out)?,
        }
        self.append(batch.slots, out);
        Ok(())
    }

    /// Computes what a verification gives that was checked, and changes no sequence.
    pub(crate) fn judge(
        &self,
        logits: Logits<'_>,
        batch: &Batch<'_>,
        drafts: &ReadDrafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let (slots, judgement) = (batch.slots, batch.mode.judgement());
        let greedy = self.greedy(slots, batch.mode)?;

        let rows = out.reshape(Layout { rows: logits.rows(), widths: self.widths })?;
        let path: Vec<AtomicU32> = (0..logits.rows()).map(|_| AtomicU32::new(PADDED)).collect();
        let (sequences, level, starts) = (&self.slots, self.level(), &drafts.starts);
        let work = |rows: &mut RowsMut<'_>, stages: &mut dyn Stages| {
            for request in requests_in(starts, rows.range()) {
                let places = drafts.places(request);
                let mut emitted = 0;
                if slots[request] != PADDING {
                    let sequence = sequences.admitted(slots[request]);
                    let tree = drafts.tree(request);
                    let judge = judgement.filter(|_| !tree.drafts.is_empty());
                    let walk = Walk {
                        logits,
                        batch,
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
            let requests = requests_in(starts, range);
            (requests.len() > 1).then(|| starts[requests.start + requests.len() / 2])
        };
        self.workers.over(rows, &split, &work)?;

        out.note_walks(starts, path.into_iter().map(AtomicU32::into_inner).collect());
        Ok(())
    }

    /// Checks the requests of a verification and what comes with their rows, as far as logits do not matter.
    pub(crate) fn check_requests(
        &mut self,
        kind: Kind,
        batch: &Batch<'_>,
        drafts: &ReadDrafts<'_>,
    ) -> Result<()> {
        self.check_drafted(batch, &drafts.starts)?;
        for (request, slot) in batch.slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            let tree = drafts.tree(request);
            let check = if batch.mode == VerifyMode::Block { tree.check_chain() } else { tree.check() };
            check.map_err(|error| in_request(error, request))?;
            let hooked = drafts.places(request).into_iter().any(|row| batch.hook(row).is_some());
            self.check_row(*slot, kind, hooked)?;
        }
        Ok(())
    }

    /// Checks a batch whose requests have their first rows, and the end of the last one's, in `starts`.
    pub(crate) fn check_drafted(&mut self, batch: &Batch<'_>, starts: &[usize]) -> Result<()> {
        batch.check(starts.last().copied().unwrap_or(0), self.vocab)?;
        batch.mode.judgement().map_or(Ok(()), Judgement::check)?;
        self.slots.check(batch.slots)?;
        let requests = batch.slots.iter().zip(starts.array_windows());
        for (slot, [start, end]) in requests.filter(|(slot, _)| **slot != PADDING) {
            check_drafts(self.slots.admitted(*slot).params(), end - start - 1)?;
            if batch.mode == VerifyMode::Block {
                check_forced_block(*start..*end, |row| batch.forced(row))?;
            }
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
    pub(crate) fn append(&mut self, slots: &[Slot], out: &Outputs) {
        for (request, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            for place in out.request(request).range {
                let (token, mu) = (out.tokens()[place], out.mirostat_mu()[place]);
                if token != NONE {
                    self.slots.admitted_mut(*slot).push(token as u32, mu);
                }
            }
        }
    }
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

/// Returns the request that a row is of.
pub(crate) fn request_of(starts: &[usize], row: usize) -> usize {
    starts.partition_point(|start| *start <= row) - 1
}

/// Returns the requests whose rows are in a range, which cuts none in two.
fn requests_in(starts: &[usize], rows: Range<usize>) -> Range<usize> {
    let request = |row| starts.partition_point(|start| *start < row);
    request(rows.start)..request(rows.end)
}
