//! Operators that judge trees of drafts, chains among them, by probabilities, and those that say how likely given tokens are.

use gumball_engine::{
    DeviceIntMatrix, DeviceIntMatrixMut, DraftTreeCounts, DraftTreeRows, DraftTrees as Trees, Error,
    HostDraftTrees, IntType, Judgement, MAX_VOCAB, PerRowMut,
};

use crate::batch::VerifyModeNumber;
use crate::columns::{ListOut, device_address, per_row};
use crate::draws::Draws;
use crate::error::{Code, Failure, Result};
use crate::ffi::{call, list, require, slice};
use crate::matrix::Memory;
use crate::operands::read_rows;
use crate::operators::Operators;
use crate::rows::Rows;
use crate::versioned::{read, versioned};

/// A batch of T trees of n drafts each, with the probabilities of the target and of the drafter: arrays without gaps, in the memory of
/// the operators. Row 0 of a tree is that of its root, row i + 1 that behind draft i.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DraftTrees {
    /// sizeof(gumball_draft_trees).
    pub struct_size: usize,
    /// T.
    pub trees: usize,
    /// n, in 0..=64; any number for chains by GUMBALL_REJECTION with `draft_probs`.
    pub drafts: usize,
    /// V, the number of ids in a row.
    pub vocab: usize,
    /// The rows of `draft_probs` of each tree: n, or n + 1.
    pub draft_rows: usize,
    /// T x draft_rows x V: the probabilities that the drafts were drawn from; rows without children are not read, so the one behind the
    /// last draft never is. NULL: the drafter has none. For GUMBALL_REJECTION and GUMBALL_BLOCK.
    pub draft_probs: *const f32,
    /// T x n: the drafts. An id outside the vocabulary, such as -1, was not drawn: it is never accepted, and fills trees of fewer drafts.
    pub draft_token_ids: *const i32,
    /// T x n: the parent of each draft, -1 for the root or the number of a draft before it. NULL: chains, where each draft follows the one
    /// before it. On a device they are not checked: a tree with others accepts no draft, and has GUMBALL_STATUS_NO_TREE.
    pub parents: *const i32,
    /// T x (n + 1) x V: the target's probabilities.
    pub target_probs: *const f32,
    /// GUMBALL_REJECTION, GUMBALL_BLOCK (chains alone) or GUMBALL_THRESHOLD.
    pub mode: VerifyModeNumber,
    /// For GUMBALL_THRESHOLD, as in gumball_batch.
    pub threshold_single: f32,
    /// For GUMBALL_THRESHOLD, as in gumball_batch.
    pub threshold_acc: f32,
}

versioned!(DraftTrees, "gumball_draft_trees", threshold_acc: f32);

impl DraftTrees {
    fn judgement(&self) -> Result<Judgement> {
        match self.mode {
            2 => Ok(Judgement::Rejection),
            3 => Ok(Judgement::Block),
            4 => Ok(Judgement::Threshold { single: self.threshold_single, acc: self.threshold_acc }),
            other => {
                let allowed = "GUMBALL_REJECTION, GUMBALL_BLOCK or GUMBALL_THRESHOLD";
                Err(Failure::out_of_range("mode", other, allowed))
            }
        }
    }

    /// Returns how many drafts, tokens, and probabilities of drafter and target there are.
    fn lengths(&self) -> Result<[usize; 4]> {
        let Self { trees, drafts: n, vocab, draft_rows, .. } = *self;
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20").into());
        }
        let counted = || {
            let tokens = trees.checked_mul(n.checked_add(1)?)?;
            let probs = tokens.checked_mul(vocab)?;
            probs.checked_mul(size_of::<f32>())?;
            Some([trees * n, tokens, probs])
        };
        let allowed = "so many that all probabilities can be counted";
        let [drafts, tokens, probs] = counted().ok_or_else(|| Error::length("drafts", n, allowed))?;
        if !self.draft_probs.is_null() && draft_rows != n && draft_rows != n + 1 {
            return Err(Error::out_of_range("draft_rows", draft_rows, format!("{n} or {}", n + 1)).into());
        }
        Ok([drafts, tokens, if draft_rows > n { probs } else { drafts * vocab }, probs])
    }

    /// Returns the arrays on the host as the engine takes them.
    ///
    /// # Safety
    /// Each array is NULL or has the elements that the counts name, which nobody writes for `'a`.
    unsafe fn on_host<'a>(&self) -> Result<HostDraftTrees<'a>> {
        let [drafts, _, of_drafter, probs] = self.lengths()?;
        Ok(HostDraftTrees {
            trees: self.trees,
            drafts: self.drafts,
            vocab: self.vocab,
            // SAFETY: the caller ensures that `draft_probs` is NULL or has trees * draft_rows * vocab numbers.
            draft_probs: unsafe { list("draft_probs", self.draft_probs, of_drafter) }?,
            // SAFETY: the caller ensures that `draft_token_ids` is NULL or has trees * drafts ids.
            draft_token_ids: unsafe { slice("draft_token_ids", self.draft_token_ids, drafts) }?,
            // SAFETY: the caller ensures that `parents` is NULL or has trees * drafts numbers.
            parents: unsafe { list("parents", self.parents, drafts) }?,
            // SAFETY: the caller ensures that `target_probs` is NULL or has trees * (drafts + 1) * vocab numbers.
            target_probs: unsafe { slice("target_probs", self.target_probs, probs) }?,
        })
    }

    /// Returns the arrays on a device as the engine takes them, with the tokens and the rows to write.
    ///
    /// # Safety
    /// Each array is NULL or has the elements that the counts name, on the device, and `tokens` and `rows` memory for trees *
    /// (drafts + 1) numbers. Until the enqueued work is done nobody frees or writes them, nor reads those that are written.
    unsafe fn on_device<'a>(&self, tokens: *mut i32, rows: *mut i32) -> Result<Trees<'a>> {
        let Self { trees, drafts: n, vocab, .. } = *self;
        let [drafts, written, of_drafter, probs] = self.lengths()?;
        let rows_of = |name: &'static str, first: *const f32, rows: usize, length: usize| {
            let address = device_address(name, first, length)?;
            // SAFETY: the caller ensures that as many f32 of this array lie on the device until the work is done.
            let rows = unsafe { DraftTreeRows::new(address, [trees, rows, vocab], [rows * vocab, vocab]) };
            Ok::<_, Failure>(rows?)
        };
        let ids = |name: &'static str, first: *const i32| {
            let address = device_address(name, first, drafts)?;
            // SAFETY: the caller ensures that trees * drafts i32 of this array lie on the device until the work is done.
            Ok::<_, Failure>(unsafe { DeviceIntMatrix::new(address, IntType::I32, trees, n, n) }?)
        };
        let out = |name: &'static str, first: *mut i32| {
            let address = device_address(name, first.cast_const(), written)?;
            // SAFETY: the caller ensures that there is memory for as many i32 on the device, which only this work uses.
            Ok::<_, Failure>(unsafe { DeviceIntMatrixMut::new(address, IntType::I32, trees, n + 1, n + 1) }?)
        };
        Ok(Trees::Device {
            draft_probs: (!self.draft_probs.is_null())
                .then(|| rows_of("draft_probs", self.draft_probs, self.draft_rows, of_drafter))
                .transpose()?,
            draft_token_ids: ids("draft_token_ids", self.draft_token_ids)?,
            parents: (!self.parents.is_null()).then(|| ids("parents", self.parents)).transpose()?,
            target_probs: rows_of("target_probs", self.target_probs, n + 1, probs)?,
            tokens: out("tokens", tokens)?,
            rows: (!rows.is_null()).then(|| out("rows", rows)).transpose()?,
        })
    }
}

/// Walks each tree of drafts from its root while a draft is accepted, and draws one more token where the walk ends.
///
/// By GUMBALL_REJECTION and GUMBALL_BLOCK every emitted token has the distribution of the target's row; thresholds below 1 are biased
/// towards the drafts. Chains, which have no `parents`, are fastest by GUMBALL_REJECTION with `draft_probs`. `draws`: one output per tree.
/// `tokens`: memory for T x (n + 1) tokens: the accepted drafts, the token drawn behind them, then -1. The others are NULL or memory: `rows`
/// for T x (n + 1) numbers, the rows that the tokens come from, then -1; `accepted`, `accepted_alone` and `statuses` for T words: the number
/// of accepted drafts; for these chains alone the number that would be accepted if each were judged by itself, those behind the first
/// rejected one included; bits of gumball_status of the rows that the last token was drawn from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_judge(
    operators: Option<&Operators>,
    trees: *const DraftTrees,
    draws: *const Draws,
    tokens: *mut i32,
    rows: *mut i32,
    accepted: *mut u32,
    accepted_alone: *mut u32,
    statuses: *mut u32,
) -> Code {
    call(|| {
        let operators = require("operators", operators)?;
        let memory = operators.memory();
        // SAFETY: the C caller ensures that `trees` is NULL or points to the bytes that its `struct_size` names.
        let trees = unsafe { read("trees", trees) }?;
        let (count, judgement, [_, len, ..]) = (trees.trees, trees.judgement()?, trees.lengths()?);
        // SAFETY: the C caller ensures that `draws` is NULL or points to the bytes that its `struct_size` names.
        let draws = unsafe { read("draws", draws) }?;
        draws.check_one_per_tree(count)?;
        // SAFETY: the C caller ensures that the lists of `draws` are NULL or have one element per tree.
        let keys = unsafe { draws.keys(memory) }?;
        // SAFETY: the C caller ensures that `accepted` is NULL or has memory for one count per tree.
        let mut accepted = unsafe { ListOut::optional(memory, "accepted", accepted, count) }?;
        // SAFETY: the C caller ensures that `accepted_alone` is NULL or has memory for one count per tree.
        let mut alone = unsafe { ListOut::optional(memory, "accepted_alone", accepted_alone, count) }?;
        // SAFETY: the C caller ensures that `statuses` is NULL or has memory for one status per tree.
        let mut statuses = unsafe { ListOut::optional(memory, "statuses", statuses.cast(), count) }?;
        let counts = DraftTreeCounts {
            accepted: accepted.column(),
            accepted_alone: alone.column(),
            statuses: statuses.column(),
            adds: false,
        };
        if memory == Memory::GUMBALL_DEVICE {
            // SAFETY: the C caller ensures that the arrays of `trees`, `tokens` and `rows` lie on the device, with the elements
            // that the counts name, until the launched work is done.
            let batch = unsafe { trees.on_device(tokens, rows) }?;
            return Ok(operators.inner.judge(batch, judgement, &keys, counts)?);
        }
        // SAFETY: the C caller ensures that each array of `trees` is NULL or has the elements that its counts name.
        let batch = unsafe { trees.on_host() }?;
        // SAFETY: the C caller ensures that `tokens` has memory for trees * (drafts + 1) ids, which is `len`.
        let mut tokens = unsafe { ListOut::<i32>::required(memory, "tokens", tokens, len) }?;
        // SAFETY: the C caller ensures that `rows` is NULL or has memory for as many numbers.
        let mut rows = unsafe { ListOut::<i32>::optional(memory, "rows", rows, len) }?;
        let written = |column| match column {
            Some(PerRowMut::Host(written)) => Some(written),
            None => None,
            Some(_) => unreachable!("it lies on the host"),
        };
        let batch = Trees::Host {
            trees: batch,
            tokens: written(tokens.column()).expect("it is required"),
            rows: written(rows.column()),
        };
        operators.inner.judge(batch, judgement, &keys, counts)?;
        tokens.finish();
        rows.finish();
        accepted.finish();
        alone.finish();
        statuses.finish();
        Ok(())
    })
}

/// Writes how likely one token of each row is, before any edit and filter: its logprob and its rank, as a step reports them of a forced
/// token in the mode "raw".
///
/// `tokens`: one for each row, -1 for none. `logprobs`: memory for a float for each row: ln, -inf for none. `ranks` and `statuses`: NULL, or
/// memory for a word for each row: 1 for the most likely token, 0 for none; bits of gumball_status. On the host an id outside the
/// vocabulary is an error; on a device it is none, with GUMBALL_STATUS_NO_ID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_selected_logprobs(
    operators: Option<&Operators>,
    logits: *const Rows,
    tokens: *const i32,
    logprobs: *mut f32,
    ranks: *mut u32,
    statuses: *mut u32,
) -> Code {
    call(|| {
        let operators = require("operators", operators)?;
        let memory = operators.memory();
        // SAFETY: the C caller ensures that `logits` is NULL or points to rows that are there.
        let (rows, count) = unsafe { read_rows(memory, logits) }?;
        // SAFETY: the C caller ensures that `tokens` is NULL or has one id per row.
        let tokens = unsafe { per_row(memory, "tokens", tokens, count) }?;
        let tokens = tokens.ok_or_else(|| Failure::null("tokens"))?;
        // SAFETY: the C caller ensures that `logprobs` has memory for one f32 per row.
        let mut logprobs = unsafe { ListOut::<f32>::required(memory, "logprobs", logprobs, count) }?;
        // SAFETY: the C caller ensures that `ranks` is NULL or has memory for one word per row.
        let mut ranks = unsafe { ListOut::optional(memory, "ranks", ranks, count) }?;
        // SAFETY: the C caller ensures that `statuses` is NULL or has memory for one status per row.
        let mut statuses = unsafe { ListOut::optional(memory, "statuses", statuses.cast(), count) }?;
        let written = logprobs.column().expect("it is required");
        operators.inner.selected_logprobs(rows, tokens, written, ranks.column(), statuses.column())?;
        logprobs.finish();
        ranks.finish();
        statuses.finish();
        Ok(())
    })
}
