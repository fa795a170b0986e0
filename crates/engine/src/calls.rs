//! Direct calls of a pool: checked, computed, and known to the host on return.

use gumball_spec::Result;
#[cfg(doc)]
use gumball_spec::{Error, SamplingParams};

use crate::backend::Call;
use crate::batch::Batch;
use crate::draft::Proposals;
use crate::drafts::Drafts;
use crate::outputs::Outputs;
use crate::pool::Pool;
use crate::rows::Rows;
use crate::score::Scored;

impl Pool {
    /// Chooses the next token of each row, and appends it to the sequence in the row's slot.
    ///
    /// A drawn or forced token advances its sequence by one; a row that yields [`NONE`](crate::NONE) leaves
    /// it as it was. Rows are independent: the numbers of one change nothing in another. On the caller's
    /// thread it allocates nothing once `out`, the stages and the histories have grown; over threads, rayon's
    /// queues may.
    ///
    /// A device reads rows that lie in its memory where they are; rows of the host are copied there, and
    /// the outputs are copied back.
    ///
    /// From hidden states a head computes the logits: the outputs are, bit for bit, the outputs of rows of
    /// the logits that rules H1 and H2 give, with the exact head and with a certified one; with a clustered
    /// head the outputs of rows that have the logits of probed ids only (H8), which
    /// [`Outputs::is_approximate`] says.
    ///
    /// # Shapes and units
    /// `rows`: R rows of the pool's vocabulary, or hidden states of a head's width whose vocabulary that is;
    /// a sequence may change from one kind to the other from step to step. `batch.slots`: R slots,
    /// [`PADDING`](crate::PADDING) for a row without a sequence, which is not read, no other twice. The other
    /// lists of `batch`: each is empty or has R elements; with `row_indices` the matrix may have any number
    /// of rows. `out`: R rows of the pool's widths.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so.
    /// - [`Error::OutOfRange`] for a vacant slot, a slot that stands there twice, a row index beyond the
    ///   matrix, a forced token outside the vocabulary, or on the host for what lies in the memory of a
    ///   device.
    /// - For rows of probabilities the errors of [`SamplingParams::validate_for`], and
    ///   [`Error::Conflict`] if a row has a hook.
    /// - [`Error::Conflict`] for `counts`, a mode or a plan in `batch`, and for row indices of hidden states.
    /// - [`Error::Unavailable`] if the system refuses the memory of the outputs; or for hidden states that of
    ///   logits and bounds, 4 to 12 bytes for each id of each row; if the head does not lie in the pool's
    ///   place; on a device for a hook, which runs on the host, and if the device fails.
    /// - On a device the errors of [`Pool::assign`], [`Pool::enqueue`] and [`Pool::fetch`].
    ///
    /// No sequence was changed then, unless the device failed. The assignment of [`Pool::assign`] has ended
    /// in any case. `out` is untouched by these; after an error of a route of the caller's own, its content
    /// is unspecified.
    pub fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        out.collect_kept(self.kept);
        self.advance(batch, Call::Step(rows, out))
    }

    /// Verifies the drafts of each request against the target's rows, and appends the emitted tokens to its
    /// sequence.
    ///
    /// A request with n drafts has n + 1 rows, one after the other: that at the end of its history, then one
    /// after each draft. Without drafts that is a step. Masks, forced tokens and hooks come with rows: a
    /// row's mask is that after the drafts on the path to it. Every parameter acts in every row, with the
    /// path as output. A stop id that is emitted is the last token. A hook is called for the rows that tokens
    /// are emitted from; in [`VerifyMode::Block`](crate::VerifyMode::Block) for all, and where drafts are
    /// judged by probabilities twice.
    ///
    /// From hidden states, a certified head computes a part of a row in the modes
    /// [`VerifyMode::Coupled`](crate::VerifyMode::Coupled) and
    /// [`VerifyMode::Greedy`](crate::VerifyMode::Greedy), and in any mode for a request without drafts, under
    /// the conditions of [`Pool::needs_whole_row`]; rows that are judged by probabilities take the exact
    /// head. Rows after a draft outside the vocabulary are not computed. The logits of all others are held at
    /// once.
    ///
    /// [`Pool::shorten`] takes away what the caller does not want of the tokens.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// let mut pool = Pool::new(PoolConfig::new(4))?;
    /// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[0])?;
    /// // After the history: 1 or 2. After 1: 3.
    /// let drafts = Drafts::tree(&[1, 2, 3], &[-1, -1, 0]);
    /// let logits = [
    ///     0.0f32, 9.0, 0.0, 0.0, // at the end of the history, the model says 1,
    ///     0.0, 0.0, 0.0, 9.0, // after 1 it says 3,
    ///     0.0, 0.0, 0.0, 0.0, // (after 2)
    ///     0.0, 0.0, 9.0, 0.0, // and after 1 and 3 it says 2.
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
    /// `batch.slots`: one for each request, [`PADDING`](crate::PADDING) for one without a sequence, whose
    /// drafts and rows are not read; no other twice. `batch.counts`: as many. `rows`: as many as there are
    /// requests and drafts together, of the pool's vocabulary. The other lists of `batch`: each is empty or
    /// has one element for each row.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so.
    /// - [`Error::OutOfRange`] for more than 64 drafts of a request, for a parent that is neither -1 nor a
    ///   draft before in the same request, and for a link that is neither -1 nor a row after its own, a row
    ///   that two links lead to or none, and a sibling of a root. So cycles and orphans are refused.
    /// - [`Error::Conflict`] for a request with mirostat or adaptive-p and drafts: mu would depend on the
    ///   tokens of the path. In [`VerifyMode::Block`](crate::VerifyMode::Block) also for a forced token
    ///   beside drafts.
    /// - [`Error::Conflict`] for probabilities of the drafter in a mode that does not read them.
    /// - [`Error::OutOfRange`] for a threshold outside 0..=1, and in `Block` for a tree that is no chain.
    /// - [`Error::Unavailable`] if drafts are judged by probabilities, and the pool's route knows none.
    /// - The errors of [`Pool::step`].
    ///
    /// Drafts in the memory of a device are as of [`Work::Verify`](crate::Work::Verify). No sequence was
    /// changed then, unless the device failed.
    pub fn verify(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        out.collect_kept(self.kept);
        self.advance(batch, Call::Verify(rows, drafts, out))
    }

    /// Draws drafts from the rows of a draft model, for the requests in `batch.slots`, and changes no
    /// sequence.
    ///
    /// A row follows the history of its sequence and a path of drafts. Its drafts are the first tokens that
    /// arrive in the request's race over the row, with all its parameters and with the path as output. The
    /// first is the token that the request would draw there if the row were the target's; the others,
    /// siblings of a tree, are the runners-up. `batch.mode` is that which [`Pool::verify`] will judge the
    /// drafts by: the same random words draw drafts and tokens where that is sound, and drafts of a
    /// [`VerifyMode::Block`](crate::VerifyMode::Block) get words of their own.
    ///
    /// From hidden states of a draft model its head computes the logits. A certified head computes a part of
    /// a row where that decides its drafts: at temperature 0, after top-k or min-p, and, for one draft of a
    /// row that no block judges and without probabilities, in a plain race. What logprobs the request asks
    /// for does not matter.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// let mut pool = Pool::new(PoolConfig::new(4))?;
    /// let slot = pool.admit(SamplingParams { seed: Some(5), ..Default::default() }, &[0])?;
    /// // The draft model agrees with the target, so the target draws both drafts.
    /// let row = [0.0f32, 1.0, 2.0, 3.0];
    /// let (mut path, mut next) = (Vec::new(), Proposals::new(1));
    /// for _ in 0..2 {
    ///     let batch = Batch { slots: &[slot], counts: &[path.len() as u32], ..Batch::default() };
    ///     pool.draft(Rows::logits(&row, 1, 4)?, &batch, &path, &mut next)?;
    ///     path.extend(next.row(0));
    /// }
    /// let batch = Batch { slots: &[slot], counts: &[2], ..Batch::default() };
    /// let (rows, mut out) = ([row; 3].concat(), Outputs::new());
    /// pool.verify(Rows::logits(&rows, 3, 4)?, &batch, &Drafts::chain(&path), &mut out)?;
    /// assert_eq!(out.accepted(), [2]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Shapes and units
    /// `rows`: R rows of the pool's vocabulary, or hidden states of a head's width whose vocabulary that is.
    /// `batch.slots`: R slots, [`PADDING`](crate::PADDING) for a row without a sequence, which gets
    /// [`NONE`](crate::NONE)s; a slot may stand there several times. `batch.counts`: R numbers of drafts
    /// between the end of the history and the row, in 0..64, or none if none are there for any row. `paths`:
    /// these drafts, ids of the vocabulary, row after row. The other lists of
    /// `batch`: each is empty or has R elements; a forced token is the only draft of its row.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so.
    /// - [`Error::OutOfRange`] for a vacant slot, a path of 64 drafts or more, an id of a path outside the
    ///   vocabulary, and more than 64 siblings.
    /// - [`Error::Conflict`] for a request with mirostat or adaptive-p, which has no drafts.
    /// - [`Error::Unavailable`] if the pool's route cannot draw siblings, drafts of blocks or probabilities;
    ///   or if the system refuses the memory.
    /// - For rows of probabilities the errors of [`SamplingParams::validate_for`], and
    ///   [`Error::Conflict`] if a row has a hook.
    /// - [`Error::Conflict`] for a plan in `batch`, over ranks for one under which ranks have no part of all
    ///   rows, and for row indices of hidden states.
    /// - On a device [`Error::Length`] for more rows than the place allows, and [`Error::Unavailable`] for a
    ///   hook, for hidden states, and on the route `probabilities`. There the call waits;
    ///   [`OnDevice::add_draft_batch`](crate::unstable::OnDevice::add_draft_batch) is for drafts that do not.
    pub fn draft(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        self.check_plan(batch)?;
        self.at_backend(|backend, slots| backend.call(slots, batch, Call::Draft(rows, paths, out)))
    }

    /// Returns the logprobs of known tokens, in any mode, with ranks, top tokens and given ids.
    ///
    /// `out` holds per row what a step in which the token is forced would: `tokens` are the known ones.
    /// Its widths are the request's, not the pool's. No slot is touched. Rows are taken in chunks,
    /// over the pool's threads. A row inside the prompt costs the counting of its history anew where the
    /// parameters have edits that read it.
    ///
    /// From hidden states the logits of `scored.chunk_rows` rows are held at a time; the outputs do not
    /// depend on it, and are as of [`Pool::step`]. The exact head reads its weights once for these rows. A
    /// certified head computes a part of a row where that decides its logprobs: in mode `processed` after
    /// top-k or min-p, and at temperature 0 also in mode `tempered`; and if there are not more rows at a time
    /// than [`Certified::most_rows`](crate::head::Certified::most_rows).
    ///
    /// ```
    /// # use gumball_engine::*;
    /// let mut pool = Pool::new(PoolConfig::new(2))?;
    /// // After 0 came 1, whose logit was the larger one.
    /// let params = SamplingParams::default();
    /// let scored = Scored { params: &params, ids: &[0, 1], prompt_len: 1, start: 1, chunk_rows: None };
    /// let mut out = Outputs::new();
    /// pool.score(Rows::logits(&[0.0f32, 2.0], 1, 2)?, &Batch::default(), &scored, &mut out)?;
    /// assert_eq!(out.ranks(), [1]);
    /// assert!((out.logprobs()[0] + 0.127).abs() < 0.001);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Shapes and units
    /// `rows`: R rows of the pool's vocabulary, or hidden states of a head's width whose vocabulary that is;
    /// `scored.start + R` ids are there at least. `batch`: masks, hooks and row indices, R of each that is
    /// given. For each hidden state of a chunk the call holds 4 bytes for each id, with a certified head 12;
    /// with a clustered head also 12 for each cluster, and 4 for each id that it computes: 8 for each id in
    /// all if a chunk has more rows than [`Clustered::most_rows`](crate::head::Clustered::most_rows).
    ///
    /// # Errors
    /// - The errors of [`SamplingParams::validate_for`].
    /// - [`Error::Length`] if a shape is not so.
    /// - [`Error::OutOfRange`] if a scored id is outside the vocabulary, `prompt_len` beyond the ids, or
    ///   `chunk_rows` 0.
    /// - [`Error::Conflict`] for anything else in `batch`, and for `chunk_rows` without hidden states; in
    ///   mode `processed` also with mirostat, whose limit depends on draws, and with XTC without a seed.
    /// - [`Error::Unavailable`] if the system refuses the memory of the outputs, or that of logits and
    ///   bounds.
    /// - On a device [`Error::Conflict`] on the route `probabilities`, and [`Error::Unavailable`] for hidden
    ///   states, for a hook, for an option that no kernel implements, and if the device fails.
    pub fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        out.collect_kept(self.kept);
        self.at_backend(|backend, slots| backend.call(slots, batch, Call::Score(rows, scored, out)))
    }
    /// Does a call that advances sequences.
    fn advance(&mut self, batch: &Batch<'_>, call: Call<'_>) -> Result<()> {
        self.is_assigned = false;
        self.check_plan(batch)?;
        self.at_backend(|backend, slots| backend.call(slots, batch, call))?;
        self.was_direct = true;
        Ok(())
    }
}
