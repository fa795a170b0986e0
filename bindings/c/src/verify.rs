//! Drafts of a pool's requests: how they are drawn, their verification, and tokens that are taken away again.

use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use gumball_engine::{Batch, Emitted, Error, Matrix, Slot, Tree, VerifyMode as Mode};

use crate::draft_rows::{DraftRows, read_draft_rows, read_mode};
use crate::error::{Code, Failure, Result};
use crate::ffi::{call, call_or, end, make, require, slice};
use crate::logits::{Logits, read_logits};
use crate::options::{Options, StepOptions, list, read_options};
use crate::outputs::{Outputs, first};
use crate::pool::{Pool, either};
use crate::step::rows_of;
use crate::versioned::{VersionedStruct, read};

/// How drafts are judged (docs/semantics.md, "Speculation"). A request without drafts takes a step in any mode.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "constants of C")]
pub enum VerifyMode {
    /// A draft is accepted if it is the token that the request would have drawn: the output is that of decoding without drafts.
    GUMBALL_COUPLED = 0,
    /// As GUMBALL_COUPLED, with temperature 0 in every row.
    GUMBALL_GREEDY = 1,
    /// By the ratio of the target's and the drafter's probability; emitted tokens have the target's distribution.
    GUMBALL_REJECTION = 2,
    /// A chain as a whole, which accepts more than GUMBALL_REJECTION and has the same distribution.
    GUMBALL_BLOCK = 3,
    /// Accepts more than the target's distribution warrants.
    GUMBALL_THRESHOLD = 4,
}

/// The drafts of a batch of requests, those of one request after those of another; n is the sum of `counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Drafts {
    /// sizeof(gumball_drafts).
    pub struct_size: usize,
    /// The number of drafts of each request, in 0..=64.
    pub counts: *const u32,
    /// n ids. One outside the vocabulary, such as -1, is never accepted.
    pub ids: *const i32,
    /// n parents in the trees of the requests: -1 for the end of the history, or the number of a draft of the same request before
    /// this one, counted from 0. NULL: each draft follows the one before it, a chain.
    pub parents: *const i32,
    /// The probabilities that the drafts were drawn from: `vocab` floats for each row of logits, without gaps, of which rows without
    /// a draft behind them are not used. NULL: the drafter has none. For GUMBALL_REJECTION and GUMBALL_BLOCK.
    pub probs: *const f32,
    /// A gumball_verify_mode.
    pub mode: i64,
    /// For GUMBALL_THRESHOLD: a draft of at least this probability is accepted; in 0..=1.
    pub threshold_single: f32,
    /// For GUMBALL_THRESHOLD: a draft is also accepted if a coin times this is below the probability of it and the siblings
    /// before it; in 0..=1. With 1 for both, emitted tokens have the target's distribution.
    pub threshold_acc: f32,
    /// The trees as links between rows, as SGLang and TokenSpeed hold them, instead of `parents`: for each row of logits, a request's
    /// first row included, the row of its first child, counted from the request's first row, or -1. A link leads to a row behind
    /// its own, and one link to each draft's row. NULL: there are no links.
    pub first_child: *const i32,
    /// For each row that of its next sibling, or -1; with `first_child`, or NULL.
    pub next_sibling: *const i32,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for Drafts {
    const NAME: &'static str = "gumball_drafts";
    const LEAST: usize = offset_of!(Self, threshold_acc) + size_of::<f32>();
}

/// Calls what lies in a struct by the name of its field.
pub(crate) fn own_names(error: Error) -> Error {
    error.with_parameter(|name| {
        let field = name.strip_prefix("drafts.").or_else(|| name.strip_prefix("paths."));
        field.unwrap_or(name)
    })
}

impl Drafts {
    fn mode(&self) -> Result<Mode> {
        read_mode(self.mode, self.threshold_single, self.threshold_acc)
    }

    /// Returns the arrays as the engine takes them.
    ///
    /// # Safety
    /// `counts` is NULL or has one number per request. The other arrays are NULL or have the elements that
    /// these name. Nobody writes them for `'a`.
    unsafe fn arrays<'a>(&self, requests: usize, vocab: usize) -> Result<GivenDrafts<'a>> {
        // SAFETY: the caller ensures that `counts` is NULL or has one number per request.
        let counts = unsafe { slice("counts", self.counts, requests) }?;
        let total = counts.iter().map(|count| *count as usize).sum::<usize>();
        // SAFETY: the caller ensures that `ids` is NULL or has as many ids as the counts sum to.
        let ids = unsafe { slice("ids", self.ids, total) }?;
        let rows = requests.saturating_add(total);
        // SAFETY: the caller ensures that `parents` and the links are NULL or have an element for each draft or each row.
        let tree = unsafe { self.tree(total, rows) }?;
        // SAFETY: the caller ensures that `probs` is NULL or has `vocab` numbers for each row of logits.
        let probs = unsafe { list("probs", self.probs, rows.saturating_mul(vocab)) }?;
        let probs = probs.map(|probs| Matrix::new(probs, rows, vocab)).transpose()?;
        Ok(GivenDrafts {
            mode: self.mode()?,
            counts,
            drafts: gumball_engine::Drafts { ids: ids.into(), tree, probs },
        })
    }

    /// Returns what each draft follows.
    ///
    /// # Safety
    /// `parents` is NULL or has an element for each of `total` drafts; `first_child` and `next_sibling` are NULL or have one for each row.
    unsafe fn tree<'a>(&self, total: usize, rows: usize) -> Result<Tree<'a>> {
        // SAFETY: the caller ensures that `parents` is NULL or has as many as there are drafts.
        let parents = unsafe { list("parents", self.parents, total) }?;
        // SAFETY: the caller ensures that `first_child` is NULL or has as many elements as there are rows.
        let first_child = unsafe { list("first_child", self.first_child, rows) }?;
        // SAFETY: the caller ensures the same of `next_sibling`.
        let next_sibling = unsafe { list("next_sibling", self.next_sibling, rows) }?;
        match (parents, first_child, next_sibling) {
            (parents, None, None) => Ok(parents.map_or(Tree::Chain, |parents| Tree::Parents(parents.into()))),
            (Some(_), ..) => {
                let reason = "a tree is held one way or the other";
                Err(Error::Conflict { parameter: "parents", other: "first_child", reason }.into())
            }
            (None, first_child, next_sibling) => Ok(Tree::Links {
                first_child: require("first_child", first_child)?.into(),
                next_sibling: require("next_sibling", next_sibling)?.into(),
            }),
        }
    }
}

/// Drafts as C handed them in, checked as far as their arrays go.
pub(crate) struct GivenDrafts<'a> {
    mode: Mode,
    pub counts: &'a [u32],
    pub drafts: gumball_engine::Drafts<'a>,
}

impl GivenDrafts<'_> {
    /// Returns the number of rows: one for each request and each draft.
    pub fn rows(&self) -> usize {
        self.counts.iter().map(|count| *count as usize + 1).sum()
    }

    /// Returns the requests as a batch of the engine's, with the masks and forced tokens of their rows.
    pub fn batch<'a>(&'a self, slots: &'a [Slot], of_rows: &Batch<'a>) -> Batch<'a> {
        Batch { slots, counts: self.counts, mode: self.mode, ..*of_rows }
    }
}

/// Reads drafts of `requests` requests over a vocabulary.
///
/// # Safety
/// `drafts` is NULL or points to the bytes that its `struct_size` names. The arrays are NULL or have the elements that `counts` and
/// `vocab` name, which nobody writes for `'a`.
pub(crate) unsafe fn read_drafts<'a>(
    drafts: *const Drafts,
    requests: usize,
    vocab: usize,
) -> Result<GivenDrafts<'a>> {
    // SAFETY: the caller ensures that `drafts` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read("drafts", drafts) }?;
    // SAFETY: the caller ensures that the arrays have the elements that `counts` and `vocab` name.
    unsafe { given.arrays(requests, vocab) }
}

/// What came out of a verification, in memory that is used again from call to call.
///
/// What is read of it stays until it is handed to another call.
#[derive(Debug)]
pub struct Verification {
    pub(crate) outputs: Outputs,
}

impl Verification {
    /// Verifies with the rows' masks and forced tokens.
    pub(crate) fn fill(
        &mut self,
        options: &Options<'_>,
        verify: impl FnOnce(&Batch<'_>, &mut gumball_engine::Outputs) -> Result<()>,
    ) -> Result<()> {
        options.with(|batch| verify(batch, &mut self.outputs.inner))
    }

    /// Returns an error if there is no such request.
    fn check(&self, request: usize) -> Result<()> {
        let requests = self.outputs.inner.accepted().len();
        if request >= requests {
            return Err(Failure::out_of_range("request", request, &format!("a request in 0..{requests}")));
        }
        Ok(())
    }
}

/// Makes an empty one; with `keep_ids` above 0 such as collects the kept set of every emitted token, which costs a sort of it.
/// NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_verification_new(keep_ids: u32) -> Option<Box<Verification>> {
    make(|| {
        let inner = match keep_ids {
            0 => gumball_engine::Outputs::new(),
            _ => gumball_engine::Outputs::with_kept(),
        };
        Ok(Verification { outputs: Outputs { inner } })
    })
}

/// Ends a verification. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_verification_free(verification: Option<Box<Verification>>) {
    end(verification);
}

/// Returns how many drafts of each request were accepted; NULL without requests, or after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_verification_accepted(verification: Option<&Verification>) -> *const u32 {
    call_or(ptr::null(), || Ok(first(require("verification", verification)?.outputs.inner.accepted())))
}

/// Returns a request's emitted tokens, and their number: the accepted drafts and one more, which is -1 from a row without a
/// token. NULL for padding, which has none, and after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_verification_tokens(
    verification: Option<&Verification>,
    request: usize,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const i32 {
    of_request(verification, request, len, |emitted| emitted.tokens)
}

/// Returns the rows of logits that a request's emitted tokens come from, and their number. These are also the rows whose keys
/// and values a model's cache keeps. NULL for padding, which has none, and after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_verification_rows(
    verification: Option<&Verification>,
    request: usize,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const u32 {
    of_request(verification, request, len, |emitted| emitted.rows)
}

/// Returns a list of a request's, and its length.
fn of_request<'a, T: 'a>(
    verification: Option<&'a Verification>,
    request: usize,
    len: Option<&mut MaybeUninit<usize>>,
    list: impl FnOnce(Emitted<'a>) -> &'a [T],
) -> *const T {
    call_or(ptr::null(), || {
        let (verification, len) = (require("verification", verification)?, require("len", len)?);
        verification.check(request)?;
        let list = list(verification.outputs.inner.request(request));
        len.write(list.len());
        Ok(first(list))
    })
}

/// Returns the outputs, which belong to the verification: as many rows as there are requests and drafts together. A request's
/// rows begin where its logits do; the first ones hold its emitted tokens, each with the status, logprobs and ranks of the row
/// that it comes from. The others are as of padding. NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_verification_outputs(verification: Option<&Verification>) -> *const Outputs {
    call_or(ptr::null(), || Ok(ptr::from_ref(&require("verification", verification)?.outputs)))
}

/// Verifies the drafts of each request, and appends the emitted tokens to its sequence. In a pool on a device, logits and drafts
/// are copied up and the outputs down.
///
/// A request with n drafts has n + 1 rows of logits, one after the other: that at the end of its history, then one behind each
/// draft. Without drafts that is a step. `slots`: one for each request, -1 for one without a sequence, whose drafts and rows are
/// not used; no other twice. Lists in the options have one element for each row; a row's mask is that behind the drafts on the path to
/// it, and `row_indices` say which row of the logits each row reads. A stop id that is emitted is the last token. A request with mirostat has no drafts. In GUMBALL_BLOCK drafts are chains, and
/// no token is forced beside them. After an error no sequence was changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_verify(
    pool: Option<&mut Pool>,
    logits: *const Logits,
    slots: *const i32,
    requests: usize,
    drafts: *const Drafts,
    options: *const StepOptions,
    verification: Option<&mut Verification>,
) -> Code {
    call(|| {
        let (pool, verification) = (require("pool", pool)?, require("verification", verification)?);
        // SAFETY: the C caller ensures that `logits` is NULL or a struct of its stated size, whose rows
        // nobody writes meanwhile.
        let logits = unsafe { read_logits(logits) }?;
        // SAFETY: the C caller ensures that `slots` has one slot per request.
        let slots = unsafe { slice("slots", slots, requests) }?;
        // SAFETY: the C caller ensures that `drafts` is NULL or a struct of its stated size, whose arrays have the elements
        // that `counts` and the logits name, which nobody writes meanwhile.
        let given = unsafe { read_drafts(drafts, requests, logits.vocab()) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, given.rows()) }?;
        let rows = rows_of(logits, &options)?;
        verification.fill(&options, |batch, out| {
            let batch = &given.batch(slots, batch);
            let verified = either!(pool, pool => pool.verify(rows, batch, &given.drafts, out));
            Ok(verified.map_err(own_names)?)
        })
    })
}

/// Draws drafts from rows of a draft model, and changes no sequence. In a pool on a device, logits and paths are copied up and the drafts
/// down; for rows that are there, see gumball_pool_add_draft_batch.
///
/// A row stands behind the history of the sequence in its slot and a path of drafts. Its drafts are the first tokens that arrive in
/// the request's race over the row, with all its parameters and with the path as output: the first is what the request would draw
/// there if the row were the target's, the others, siblings of a tree, are the runners-up. `slots`: one for each of `rows` rows, -1 for
/// padding; a slot may stand there several times. `drafts`: `siblings` ids for each row, -1 where there are no more. `probs`: NULL, or
/// `vocab` floats for each row: the probabilities that its drafts are drawn from, as gumball_drafts.probs has them. Lists in the
/// options have one element for each row; a forced token is the only draft of its row. After an error nothing was written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_draft(
    pool: Option<&mut Pool>,
    logits: *const Logits,
    slots: *const i32,
    rows: usize,
    from: *const DraftRows,
    options: *const StepOptions,
    drafts: *mut i32,
    probs: *mut f32,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?;
        // SAFETY: the C caller ensures that `logits` is NULL or a struct of its stated size, whose rows
        // nobody writes meanwhile.
        let logits = unsafe { read_logits(logits) }?;
        // SAFETY: the C caller ensures that `slots` has one slot per row.
        let slots = unsafe { slice("slots", slots, rows) }?;
        // SAFETY: the C caller ensures that `from` is NULL or a struct of its stated size, whose arrays have the elements that `rows` and
        // `counts` name, which nobody writes meanwhile.
        let given = unsafe { read_draft_rows(from, rows) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, rows) }?;
        let of = rows_of(logits, &options)?;
        // SAFETY: the C caller ensures that `drafts` has `siblings` places for each row, and `probs`, if not NULL, `vocab` places for each
        // row, which nobody else uses.
        let mut drawn = unsafe { given.places(logits.vocab(), drafts, probs) }?;
        options.with(|batch| {
            let (batch, out) = (&given.batch(slots, batch), &mut drawn.inner);
            let drafted = either!(pool, pool => pool.draft(of, batch, given.ids, out));
            Ok(drafted.map_err(own_names)?)
        })?;
        drawn.write();
        Ok(())
    })
}

/// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, for a program that stops behind a token that
/// more were emitted after. The sequence is then as it was when the remaining tokens had been emitted.
///
/// `len`: the number of slots and of counts; no slot twice. On a device the states go through the host, which may have to wait;
/// gumball_pool_enqueue_shorten waits for nothing.
/// After an error no sequence was changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_shorten(
    pool: Option<&mut Pool>,
    slots: *const i32,
    counts: *const usize,
    len: usize,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?;
        // SAFETY: the C caller ensures that `slots` has `len` slots.
        let slots = unsafe { slice("slots", slots, len) }?;
        // SAFETY: the C caller ensures that `counts` has `len` numbers.
        let counts = unsafe { slice("counts", counts, len) }?;
        Ok(either!(pool, pool => pool.shorten(slots, counts))?)
    })
}
