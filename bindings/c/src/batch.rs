//! Batches: the requests that the rows of a call belong to, and the rows' masks, forced tokens and hooks.

use std::ffi::c_void;

use gumball_engine::{NONE, RowHook, VerifyMode as Mode};

use crate::error::{Failure, Result, refuse};
use crate::ffi::{Caller, VerifyModeNumber, constant};
use crate::matrix::{GivenMasks, Masks};
use crate::ranks::Plan;
use crate::versioned::versioned;

/// How drafts are judged (docs/semantics.md, "Speculation"). A request without drafts takes a step in any
/// mode.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyMode {
    /// A draft is accepted if it is the token that the request would have drawn: the output is the same as
    /// without drafts.
    GUMBALL_COUPLED = 0,
    /// As GUMBALL_COUPLED, with temperature 0 in every row.
    GUMBALL_GREEDY = 1,
    /// By the ratio of the target's and the drafter's probability; emitted tokens have the target's
    /// distribution.
    GUMBALL_REJECTION = 2,
    /// A chain as a whole, which accepts more than GUMBALL_REJECTION and has the same distribution.
    GUMBALL_BLOCK = 3,
    /// Accepts more than the target's distribution warrants.
    GUMBALL_THRESHOLD = 4,
}

/// The program's own edits of a row: sees it after the logit bias and before the bans, as `vocab` floats, and
/// may change it. `row` is the row's place in the call, `user` what the batch says. A pool calls it from its
/// threads, for several rows at the same time. It leaves the handle alone that calls it.
pub type Hook = Option<unsafe extern "C" fn(user: *mut c_void, row: usize, logits: *mut f32, vocab: usize)>;

/// Which requests the rows of a call belong to, and how each is processed. `slots` and `counts` have an
/// element for each request, the other lists one for each row; NULL stands for a list that says nothing. A
/// request with n drafts has n + 1 rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub struct_size: usize,
    /// The slots of the requests, -1 for one without a sequence. No other stands there twice, but in front of
    /// rows that drafts are drawn from.
    pub slots: *const i32,
    /// Their number; where there are no slots, the number of rows, or 0.
    pub len: usize,
    /// How many drafts a verification has for each request, in 0..=64; or how many are in front of each row
    /// that drafts are drawn from, in 0..64.
    pub counts: *const u32,
    /// How drafts are judged, or will be. Drafts for GUMBALL_BLOCK are drawn by random words of their own.
    pub mode: VerifyModeNumber,
    /// For GUMBALL_THRESHOLD, as the next, in 0..=1: a draft of at least this probability is accepted.
    pub threshold_single: f32,
    /// So it is if a coin times this is below the probability of it and the siblings before it. With 1 for
    /// both, tokens have the target's distribution.
    pub threshold_acc: f32,
    /// Bitmasks of the rows; a draft's is for the row after the drafts on the path to it.
    pub masks: Masks,
    /// For each row the token to emit in place of the drawn one, or -1.
    pub forced: *const i32,
    /// For each row the index of the matrix row that it reads; NULL: row i reads matrix row i.
    pub row_indices: *const u32,
    /// The program's own edits, in direct calls of the host.
    pub hook: Hook,
    pub hook_user: *mut c_void,
    /// For each row whether the hook is called; NULL: for all.
    pub hook_rows: *const u8,
    /// Over ranks, what gumball_pool_plan decided; NULL: the pool decides.
    pub plan: *const Plan,
    /// In gumball_pool_assign, the number of a batch of drafts whose rows these are; 0: they are the pool's
    /// own.
    pub draft_batch: i64,
}

versioned!(Batch, "gumball_batch", draft_batch: i64);

/// The things that the lists of a batch have one element each for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Each request and each draft.
    Drafted,
    /// Each slot.
    Slots,
    /// Each of so many rows, or as many as the batch says, and slots are not needed.
    Rows(usize),
}

/// A batch of C, checked as far as its lists go.
#[derive(Debug)]
pub(crate) struct GivenBatch<'a> {
    slots: &'a [i32],
    counts: &'a [u32],
    mode: Mode,
    /// The number of rows that lists have an element for.
    pub rows: usize,
    pub masks: GivenMasks<'a>,
    pub forced: Vec<Option<u32>>,
    row_indices: &'a [u32],
    hooks: Vec<Option<Call>>,
    pub plan: Option<Plan>,
    pub draft_batch: i64,
}

/// A hook and the arguments of its call.
#[derive(Clone, Copy, Debug)]
struct Call {
    hook: unsafe extern "C" fn(*mut c_void, usize, *mut f32, usize),
    user: *mut c_void,
    row: usize,
}

// SAFETY: the header says that a hook may be called on any thread, so the C caller ensures that `user` may be
// used there.
unsafe impl Send for Call {}
// SAFETY: the header says that a hook may be called on several threads at once, so `user` may be shared among
// them.
unsafe impl Sync for Call {}

impl Call {
    fn call(&self, row: &mut [f32]) {
        // SAFETY: the C caller ensures that `hook` is a function of this type that takes `user`. `row` has
        // the passed length, and no other thread uses it during the call.
        unsafe { (self.hook)(self.user, self.row, row.as_mut_ptr(), row.len()) }
    }
}

pub(crate) fn read_batch<'a>(c: Caller<'a>, given: *const Batch, lists: Lists) -> Result<GivenBatch<'a>> {
    let is_optional = matches!(lists, Lists::Rows(_));
    let given = if is_optional { c.read_or_default("batch", given)? } else { c.read("batch", given)? };
    let len = given.len;
    let slots = c.list("slots", given.slots, len)?;
    if slots.is_none() && len > 0 && !is_optional {
        return Err(Failure::null("slots"));
    }
    let counts = c.list("counts", given.counts, len)?.unwrap_or_default();
    let rows = match lists {
        Lists::Drafted if given.draft_batch == 0 => {
            counts.iter().fold(len, |rows, count| rows.saturating_add(*count as usize))
        }
        Lists::Rows(rows) if len == 0 => rows,
        _ => len,
    };
    let forced = c.list("forced", given.forced, rows)?.unwrap_or_default();
    let on = c.list("hook_rows", given.hook_rows, rows)?;
    let calls = |hook| {
        let call = move |row| Call { hook, user: given.hook_user, row };
        (0..rows).map(|row| on.is_none_or(|on| on[row] != 0).then(|| call(row))).collect()
    };
    Ok(GivenBatch {
        slots: slots.unwrap_or_default(),
        counts,
        mode: read_mode(given.mode, given.threshold_single, given.threshold_acc)?,
        rows,
        masks: given.masks.get(c)?,
        forced: forced.iter().map(|forced| code(*forced)).collect::<Result<_>>()?,
        row_indices: c.list("row_indices", given.row_indices, rows)?.unwrap_or_default(),
        hooks: given.hook.map_or_else(Vec::new, calls),
        plan: c.list("plan", given.plan, 1)?.map(|plan| plan[0]),
        draft_batch: given.draft_batch,
    })
}

pub(crate) fn read_mode(mode: VerifyModeNumber, single: f32, acc: f32) -> Result<Mode> {
    let all = [
        (VerifyMode::GUMBALL_COUPLED, Mode::Coupled),
        (VerifyMode::GUMBALL_GREEDY, Mode::Greedy),
        (VerifyMode::GUMBALL_REJECTION, Mode::Rejection),
        (VerifyMode::GUMBALL_BLOCK, Mode::Block),
        (VerifyMode::GUMBALL_THRESHOLD, Mode::Threshold { single, acc }),
    ];
    let mode = constant("mode", mode, &all)?;
    if matches!(mode, Mode::Threshold { .. }) {
        return Ok(mode);
    }
    let thresholds = [("threshold_single", single != 0.0), ("threshold_acc", acc != 0.0)];
    refuse(thresholds, "mode", "only GUMBALL_THRESHOLD has thresholds; leave it 0")?;
    Ok(mode)
}

fn code(forced: i32) -> Result<Option<u32>> {
    match u32::try_from(forced) {
        Ok(id) => Ok(Some(id)),
        Err(_) if forced == NONE => Ok(None),
        Err(_) => Err(Failure::out_of_range("forced", forced, "an id in the vocabulary, or -1 for none")),
    }
}

impl GivenBatch<'_> {
    /// Calls `work` with a batch of the engine's, without a plan and a batch of drafts.
    pub fn with<T>(&self, work: impl FnOnce(&gumball_engine::Batch<'_>) -> Result<T>) -> Result<T> {
        let edits: Vec<_> =
            self.hooks.iter().map(|call| call.map(|call| move |row: &mut [f32]| call.call(row))).collect();
        let hooks: Vec<Option<RowHook<'_>>> =
            edits.iter().map(|edit| edit.as_ref().map(|edit| edit as RowHook<'_>)).collect();
        work(&gumball_engine::Batch {
            slots: self.slots,
            counts: self.counts,
            mode: self.mode,
            masks: self.masks.get()?,
            forced: &self.forced,
            row_indices: self.row_indices,
            hooks: &hooks,
            ..Default::default()
        })
    }
}
