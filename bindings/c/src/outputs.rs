//! Outputs: all results of a step or a verification, which C reads without a copy.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use crate::error::{Code, Failure};
use crate::ffi::{call, call_or, end, make, require};
use crate::pool::Pool;
use crate::versioned::{versioned, zeroed};

/// All outputs of a step or a verification, in memory that is used again: views of it stay valid until the
/// outputs are handed to another call.
#[derive(Debug)]
pub struct Outputs {
    pub(crate) inner: gumball_engine::Outputs,
}

/// Bits of a row's status, which say what was found in its data.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A logit that bans and bitmask allow was NaN; it counted as -inf.
    GUMBALL_STATUS_NAN = 1,
    /// A logit that bans and bitmask allow was +inf; it counted as FLT_MAX.
    GUMBALL_STATUS_INF = 2,
    /// No token was above -inf; the token is -1.
    GUMBALL_STATUS_EMPTY = 4,
    /// The parents of the request's drafts, which only a device has read, are no tree; no draft was accepted.
    GUMBALL_STATUS_NO_TREE = 8,
    /// A token that only a device has read, of gumball_operators_selected_logprobs, is no id.
    GUMBALL_STATUS_NO_ID = 16,
    /// The token was forced by the end of its request's section.
    GUMBALL_STATUS_SECTION = 32,
    /// Bans or bitmask forbid the token that the end of a section or of a loop forced.
    GUMBALL_STATUS_FORBIDDEN = 64,
    /// A loop was found at the row, or the token was forced because of one.
    GUMBALL_STATUS_LOOP = 128,
    /// The caller forced the token.
    GUMBALL_STATUS_FORCED = 256,
    /// The row draws by the words of its request's watermark.
    GUMBALL_STATUS_MARKED = 512,
}

/// What outputs hold: R rows, with places for the T = `top_n` most likely tokens and for I = `ids` that a
/// request names. A pointer is NULL if there is nothing.
///
/// A request with n drafts has n + 1 rows, which begin where its rows of logits do; the first ones hold its
/// emitted tokens, each with the status, logprobs and ranks of the row that it comes from. The others are as
/// of padding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OutputsView {
    pub struct_size: usize,
    pub rows: usize,
    pub top_n: usize,
    pub ids: usize,
    /// The number of requests; of outputs on a device 0.
    pub requests: usize,
    /// All that follows down to `id_ranks`, in this order and without gaps.
    pub words: *const u32,
    pub words_len: usize,
    /// R: the token of each row, -1 where there is none.
    pub tokens: *const i32,
    /// R: bits of gumball_status.
    pub statuses: *const u32,
    /// R: the token's logprob; -inf if it was not asked for.
    pub logprobs: *const f32,
    /// R: the token's rank, from 1; 0 if it was not asked for, or is no member.
    pub ranks: *const u32,
    /// R: the temperature in use; 0 if greedy.
    pub temperatures: *const f32,
    /// R: mirostat's limit after the row, in bits, or the mean of adaptive-p; 0 without both.
    pub mirostat_mu: *const f32,
    /// R: the token's logprob in the second mode; -inf if none was asked for.
    pub second_logprobs: *const f32,
    /// R x T: the most likely ids, -1 where there are no more.
    pub top_ids: *const i32,
    /// R x T: their logprobs.
    pub top_logprobs: *const f32,
    /// R x I: the logprobs of the ids that the request names.
    pub id_logprobs: *const f32,
    /// R x I: their ranks.
    pub id_ranks: *const u32,
    /// For each request how many drafts were accepted.
    pub accepted: *const u32,
    /// Of a verification: for each row the row of logits that its token comes from, UINT32_MAX where none was
    /// emitted.
    pub path: *const u32,
    /// 1 if the rows came from a clustered head, so that all of it counts only the ids that it computed;
    /// else 0. Of outputs on a device 0.
    pub is_approximate: u64,
    /// Of outputs on a device, if its pool keeps sets: R x `kept_words`, in which bit `id % 32` of word
    /// `id / 32` of a row is 1 for a kept id; over ranks that sample a share of the rows each only the first
    /// are written, this rank's share. Else NULL; gumball_outputs_kept has the sets of the host.
    pub kept: *const u32,
    pub kept_words: usize,
}

versioned!(OutputsView, "gumball_outputs_view", is_approximate: u64);

impl OutputsView {
    /// Returns the view of words that begin at an address, which may be one of a device.
    fn of(layout: gumball_engine::Layout, first: *const u32) -> Self {
        let at = |section: Range<usize>| match section.is_empty() {
            true => ptr::null(),
            false => first.wrapping_add(section.start),
        };
        Self {
            rows: layout.rows,
            top_n: layout.widths.top_n,
            ids: layout.widths.ids,
            words: at(0..layout.words()),
            words_len: layout.words(),
            tokens: at(layout.tokens()).cast(),
            statuses: at(layout.statuses()),
            logprobs: at(layout.logprobs()).cast(),
            ranks: at(layout.ranks()),
            temperatures: at(layout.temperatures()).cast(),
            mirostat_mu: at(layout.mirostat_mu()).cast(),
            second_logprobs: at(layout.second_logprobs()).cast(),
            top_ids: at(layout.top_ids()).cast(),
            top_logprobs: at(layout.top_logprobs()).cast(),
            id_logprobs: at(layout.id_logprobs()).cast(),
            id_ranks: at(layout.id_ranks()),
            ..zeroed()
        }
    }
}

/// The tokens that a request emitted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Emitted {
    /// The accepted drafts and one token more, which is -1 from a row without a token; NULL for padding.
    pub tokens: *const i32,
    /// The rows of logits that these come from, as the batch counts them. These are also the rows whose keys
    /// and values a model's cache keeps.
    pub rows: *const u32,
    /// The number of both; 0 for padding.
    pub len: usize,
    pub accepted: usize,
    /// The first row of the outputs that says more of these tokens.
    pub first_place: usize,
}

/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_new() -> Option<Box<Outputs>> {
    make(|_| Ok(Outputs { inner: gumball_engine::Outputs::new() }))
}

/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_free(outputs: Option<Box<Outputs>>) {
    end(outputs);
}

/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_outputs_read(outputs: Option<&Outputs>, out: *mut OutputsView) -> Code {
    call(|c| {
        let outputs = &require("outputs", outputs)?.inner;
        let (accepted, is_approximate) = (outputs.accepted(), u64::from(outputs.is_approximate()));
        let view = OutputsView {
            requests: accepted.len(),
            accepted: first(accepted),
            path: first(outputs.path()),
            is_approximate,
            ..OutputsView::of(outputs.layout(), outputs.words().as_ptr())
        };
        c.write("out", out, view)
    })
}

/// Writes what came out for a request, by its number in the batch.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_request(
    outputs: Option<&Outputs>,
    request: usize,
    out: Option<&mut MaybeUninit<Emitted>>,
) -> Code {
    call(|_| {
        let (outputs, out) = (&require("outputs", outputs)?.inner, require("out", out)?);
        let requests = outputs.accepted().len();
        if request >= requests {
            return Err(Failure::out_of_range("request", request, &format!("a request in 0..{requests}")));
        }
        let emitted = outputs.request(request);
        out.write(Emitted {
            tokens: first(emitted.tokens),
            rows: first(emitted.rows),
            len: emitted.tokens.len(),
            accepted: emitted.accepted as usize,
            first_place: emitted.places.start,
        });
        Ok(())
    })
}

/// Writes where the last outputs of a pool on a device lie in its memory, for a model to read. The tokens'
/// address stays; others move with the number of rows.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_outputs(pool: Option<&mut Pool>, out: *mut OutputsView) -> Code {
    call(|c| {
        let there = require("pool", pool)?.inner.on_device()?.outputs();
        // Addresses are the device's, so the pointers have no provenance on the host.
        let at = |address: u64| ptr::without_provenance(address as usize);
        let (accepted, path) = (at(there.accepted), at(there.path));
        let (kept, kept_words) = (at(there.kept), there.kept_words);
        let view = OutputsView {
            accepted,
            path,
            kept,
            kept_words,
            ..OutputsView::of(there.layout, at(there.address))
        };
        c.write("out", out, view)
    })
}

/// Returns a pointer to values; NULL if there are none.
pub(crate) fn first<T>(values: &[T]) -> *const T {
    if values.is_empty() { ptr::null() } else { values.as_ptr() }
}

/// Returns the ids that a row's filters kept, ascending, and their number; NULL if the row is empty or
/// padding, or the pool keeps no sets, or after an error.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_kept(
    outputs: Option<&Outputs>,
    row: usize,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const u32 {
    call_or(ptr::null(), |_| {
        let (outputs, len) = (&require("outputs", outputs)?.inner, require("len", len)?);
        let rows = outputs.layout().rows;
        if row >= rows {
            return Err(Failure::out_of_range("row", row, &format!("a row in 0..{rows}")));
        }
        let kept = outputs.kept(row);
        len.write(kept.len());
        Ok(first(kept))
    })
}

/// Writes how many ids each row's set has to `lengths`, R of them, and the ids of gumball_outputs_kept to
/// `ids`, row after row. `needed` is how many ids there are; if `ids_len` is less, `ids` stays as it is, and
/// may be NULL.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_outputs_kept_sets(
    outputs: Option<&Outputs>,
    lengths: *mut u32,
    ids: *mut u32,
    ids_len: usize,
    needed: Option<&mut MaybeUninit<usize>>,
) -> Code {
    call(|c| {
        let (outputs, needed) = (&require("outputs", outputs)?.inner, require("needed", needed)?);
        let lengths = c.out_slice("lengths", lengths, outputs.layout().rows)?;
        let ids = c.out_slice("ids", ids, ids_len)?;
        let sets = || (0..outputs.layout().rows).map(|row| outputs.kept(row));
        lengths.iter_mut().zip(sets()).for_each(|(to, set)| _ = to.write(set.len() as u32));
        let count = *needed.write(sets().map(<[u32]>::len).sum());
        if count <= ids_len {
            ids.iter_mut().zip(sets().flatten()).for_each(|(to, id)| _ = to.write(*id));
        }
        Ok(())
    })
}
