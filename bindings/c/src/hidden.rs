//! Steps, drafts and scores of a pool on the host from hidden states, by a head.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use gumball_engine::{Batch, Error, Kind, Rows};

use crate::draft_rows::{DraftRows, read_draft_rows};
use crate::error::{Code, Result};
use crate::ffi::{call, require, slice};
use crate::head::{self, Head, Hidden, read_hidden};
use crate::options::{StepOptions, read_options};
use crate::outputs::Outputs;
use crate::pool::{Home, Pool};
use crate::step::{Scored, read_scored};
use crate::verify::{self, Drafts, Verification, read_drafts};
use crate::versioned::{VersionedStruct, write};

/// What heads have done for a pool since it was made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadCounts {
    /// sizeof(gumball_head_counts).
    pub struct_size: usize,
    /// Rows whose logits were all computed.
    pub whole_rows: u64,
    /// Rows that a certified head decided by a part of their logits.
    pub certified_rows: u64,
    /// How many logits that took, for all of these rows.
    pub certified_logits: u64,
    /// How many times all weights were read: once for all rows of a call, or of a chunk of a score, whose logits were all computed.
    pub weight_reads: u64,
    /// How many times a certified head's copy was read: once for all rows of a call, or of a chunk of a score, that were screened.
    pub screen_reads: u64,
    /// Rows of which a clustered head computed the probed clusters alone.
    pub clustered_rows: u64,
    /// How many logits that took, for all of these rows; one that several rows of a call need counts for each.
    pub clustered_logits: u64,
    /// How many times centroids were read: once for all rows of a call, or of a chunk of a score.
    pub centroid_reads: u64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, valid for all bytes.
unsafe impl VersionedStruct for HeadCounts {
    const NAME: &'static str = "gumball_head_counts";
    const LEAST: usize = offset_of!(Self, screen_reads) + size_of::<u64>();
}

impl HeadCounts {
    /// Returns what the engine counted, as C reads it.
    pub(crate) fn of(seen: &gumball_engine::HeadCounts) -> Self {
        Self {
            struct_size: 0,
            whole_rows: seen.whole_rows,
            certified_rows: seen.certified_rows,
            certified_logits: seen.certified_logits,
            weight_reads: seen.weight_reads,
            screen_reads: seen.screen_reads,
            clustered_rows: seen.clustered_rows,
            clustered_logits: seen.clustered_logits,
            centroid_reads: seen.centroid_reads,
        }
    }
}

impl Pool {
    /// Returns the pool of the host, where heads are.
    fn on_host(&mut self) -> Result<&mut gumball_engine::Pool> {
        match &mut self.home {
            Home::Host(pool) => Ok(pool),
            Home::Device(_) => {
                let reason = "a gumball_head computes on the CPU; gumball_device_head_of copies it, for \
                              gumball_pool_enqueue_hidden and _enqueue_verify_hidden; gumball_device_head_counts counts its rows";
                let reason = reason.to_owned();
                let resource = "hidden states by a head of the host in a pool on a device";
                Err(Error::Unavailable { resource, reason }.into())
            }
        }
    }
}

/// Calls what comes with drafts and hidden states by the names of the structs' fields.
fn own_names(error: Error) -> Error {
    head::own_names(verify::own_names(error))
}

/// As gumball_pool_step, from hidden states: what comes out is, bit for bit, what that makes of the logits of gumball_head_logits; of a clustered head, with
/// -inf for the ids that it does not probe, which gumball_outputs_is_approximate says. So it is of the functions that follow.
///
/// `hidden`: `rows` hidden states of the head's width. The head's vocabulary is the pool's. The options have no `row_indices`. For pools on the
/// host. After an error no sequence was changed, nor were the outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_step_hidden(
    pool: Option<&mut Pool>,
    head: Option<&Head>,
    hidden: *const Hidden,
    slots: *const i32,
    rows: usize,
    options: *const StepOptions,
    outputs: Option<&mut Outputs>,
) -> Code {
    call(|| {
        let (pool, head) = (require("pool", pool)?, require("head", head)?);
        let outputs = require("outputs", outputs)?;
        // SAFETY: the C caller ensures that `hidden` is NULL or a struct of its stated size, whose hidden states
        // nobody writes meanwhile.
        let states = unsafe { read_hidden(hidden) }?;
        // SAFETY: the C caller ensures that `slots` has `rows` slots.
        let slots = unsafe { slice("slots", slots, rows) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, rows) }?;
        options.check_kind(Kind::Logits)?;
        let pool = pool.on_host()?;
        options.with(|batch| {
            let batch = &Batch { slots, ..*batch };
            let stepped = pool.step(Rows::hidden(head.get(), states), batch, &mut outputs.inner);
            Ok(stepped.map_err(own_names)?)
        })
    })
}

/// As gumball_pool_verify, from hidden states: what comes out is, bit for bit, what that makes of the logits of gumball_head_logits.
///
/// `hidden`: a hidden state for each request and each draft, in the order of the rows there. A certified head computes a part of a row's logits in
/// GUMBALL_COUPLED and GUMBALL_GREEDY, and for requests without drafts. The options have no `row_indices`. For pools on the host. After an error no
/// sequence was changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_verify_hidden(
    pool: Option<&mut Pool>,
    head: Option<&Head>,
    hidden: *const Hidden,
    slots: *const i32,
    requests: usize,
    drafts: *const Drafts,
    options: *const StepOptions,
    verification: Option<&mut Verification>,
) -> Code {
    call(|| {
        let (pool, head) = (require("pool", pool)?, require("head", head)?);
        let verification = require("verification", verification)?;
        // SAFETY: the C caller ensures that `hidden` is NULL or a struct of its stated size, whose hidden states
        // nobody writes meanwhile.
        let states = unsafe { read_hidden(hidden) }?;
        // SAFETY: the C caller ensures that `slots` has one slot per request.
        let slots = unsafe { slice("slots", slots, requests) }?;
        let pool = pool.on_host()?;
        // SAFETY: the C caller ensures that `drafts` is NULL or a struct of its stated size, whose arrays have the elements
        // that `counts` and the pool's vocabulary name, which nobody writes meanwhile.
        let given = unsafe { read_drafts(drafts, requests, pool.vocab()) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row, of which there are as many as hidden states.
        let options = unsafe { read_options(options, states.rows()) }?;
        options.check_kind(Kind::Logits)?;
        verification.fill(&options, |batch, out| {
            let (rows, batch) = (Rows::hidden(head.get(), states), &given.batch(slots, batch));
            let verified = pool.verify(rows, batch, &given.drafts, out);
            Ok(verified.map_err(own_names)?)
        })
    })
}

/// As gumball_pool_draft, from the hidden states of a draft model: what comes out is, bit for bit, what that makes of the logits of
/// gumball_head_logits.
///
/// `head`: the draft model's, with the pool's vocabulary. `hidden`: `rows` hidden states. The options have no `row_indices`. For pools on the
/// host. After an error nothing was written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_draft_hidden(
    pool: Option<&mut Pool>,
    head: Option<&Head>,
    hidden: *const Hidden,
    slots: *const i32,
    rows: usize,
    from: *const DraftRows,
    options: *const StepOptions,
    drafts: *mut i32,
    probs: *mut f32,
) -> Code {
    call(|| {
        let (pool, head) = (require("pool", pool)?, require("head", head)?);
        // SAFETY: the C caller ensures that `hidden` is NULL or a struct of its stated size, whose hidden states
        // nobody writes meanwhile.
        let states = unsafe { read_hidden(hidden) }?;
        // SAFETY: the C caller ensures that `slots` has one slot per row.
        let slots = unsafe { slice("slots", slots, rows) }?;
        // SAFETY: the C caller ensures that `from` is NULL or a struct of its stated size, whose arrays have the elements that `rows` and
        // `counts` name, which nobody writes meanwhile.
        let given = unsafe { read_draft_rows(from, rows) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, rows) }?;
        options.check_kind(Kind::Logits)?;
        let pool = pool.on_host()?;
        // SAFETY: the C caller ensures that `drafts` has `siblings` places for each row, and `probs`, if not NULL, `vocab` places for each
        // row, which nobody else uses.
        let mut drawn = unsafe { given.places(pool.vocab(), drafts, probs) }?;
        options.with(|batch| {
            let (rows, batch) = (Rows::hidden(head.get(), states), &given.batch(slots, batch));
            let drafted = pool.draft(rows, batch, given.ids, &mut drawn.inner);
            Ok(drafted.map_err(own_names)?)
        })?;
        drawn.write();
        Ok(())
    })
}

/// As gumball_pool_score, from hidden states: what comes out is, bit for bit, what that makes of the logits of gumball_head_logits, without the
/// logits of all rows.
///
/// `hidden`: a hidden state for each token that is scored. `chunk_rows`: how many rows are computed at a time, 1 or more: 4 bytes for each id of each, 12 with a
/// certified head, up to 8 and 12 for each cluster with a clustered one. The options may bring masks and hooks. For pools on the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_score_hidden(
    pool: Option<&mut Pool>,
    head: Option<&Head>,
    hidden: *const Hidden,
    scored: *const Scored,
    chunk_rows: usize,
    options: *const StepOptions,
    outputs: Option<&mut Outputs>,
) -> Code {
    call(|| {
        let (pool, head) = (require("pool", pool)?, require("head", head)?);
        let outputs = require("outputs", outputs)?;
        // SAFETY: the C caller ensures that `hidden` is NULL or a struct of its stated size, whose hidden states
        // nobody writes meanwhile.
        let states = unsafe { read_hidden(hidden) }?;
        // SAFETY: the C caller ensures that `scored` is NULL or a struct of its stated size, whose `params` is a live handle and whose
        // `ids` has `ids_len` ids, which nobody writes meanwhile.
        let known = unsafe { read_scored(scored) }?;
        let known = gumball_engine::Scored { chunk_rows: Some(chunk_rows), ..known };
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, states.rows()) }?;
        options.check_kind(Kind::Logits)?;
        let pool = pool.on_host()?;
        options.with(|batch| {
            let scored = pool.score(Rows::hidden(head.get(), states), batch, &known, &mut outputs.inner);
            Ok(scored.map_err(own_names)?)
        })
    })
}

/// Tells why a certified head must compute every logit of a request's rows, whatever hidden state they have: `reason` becomes its name, or NULL
/// if there is none. The names live until the program ends.
///
/// hook: `hooked` is above 0, so the rows have hooks. kept: `keep_ids` is above 0, so the outputs collect kept sets, and no filter bounds them. logprobs: of a
/// mode whose members are all tokens. dynamic_temperature, mirostat, joint, route; or the filter that acts first, top_p for instance. A row may take
/// all logits all the same: for a hidden state that is not finite, where too many tokens could be chosen, or in a call of many rows. A pool on a device has no
/// hooks, and collects kept sets if its config says so, whatever `hooked` and `keep_ids` are.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_needs_whole_row(
    pool: Option<&mut Pool>,
    slot: i32,
    hooked: u32,
    keep_ids: u32,
    reason: Option<&mut MaybeUninit<*const c_char>>,
) -> Code {
    call(|| {
        let (pool, reason) = (require("pool", pool)?, require("reason", reason)?);
        let whole = match &mut pool.home {
            Home::Host(pool) => pool.needs_whole_row(slot, hooked > 0, keep_ids > 0)?,
            Home::Device(pool) => pool.needs_whole_row(slot, false, keep_ids > 0)?,
        };
        reason.write(whole.map_or(ptr::null(), |whole| head::reason(whole).as_ptr()));
        Ok(())
    })
}

/// Writes what heads have done for a pool on the host since it was made. Set the `struct_size` of `counts` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_head_counts(pool: Option<&mut Pool>, counts: *mut HeadCounts) -> Code {
    call(|| {
        let seen = require("pool", pool)?.on_host()?.head_counts();
        // SAFETY: the C caller ensures that `counts` is NULL or points to the bytes that its `struct_size` names,
        // which nobody else uses.
        unsafe { write("counts", counts, HeadCounts::of(&seen)) }
    })
}
