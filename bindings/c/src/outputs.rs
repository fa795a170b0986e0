//! Outputs: all results of a step, which C reads without a copy.

use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;
use std::ptr;

use gumball_engine::Widths;

use crate::error::{Code, Failure};
use crate::ffi::{call, call_or, end, make, require};
use crate::versioned::{VersionedStruct, write};

/// All outputs of a step, in one buffer of 32-bit words that is used again from step to step.
///
/// What is read of it stays until the outputs are handed to another call. A section is NULL if it is empty, or after an error.
#[derive(Debug)]
pub struct Outputs {
    pub(crate) inner: gumball_engine::Outputs,
}

/// What a row's data had to say: bits of its status.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "constants of C")]
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
}

/// Where the sections of outputs lie, as their first words. R rows, T = top_n and I = ids.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// sizeof(gumball_layout), also where it is to be written.
    pub struct_size: usize,
    /// R.
    pub rows: usize,
    /// T, the places for the most likely tokens.
    pub top_n: usize,
    /// I, the places for the ids that a request names.
    pub ids: usize,
    /// The number of words of all sections.
    pub words: usize,
    /// R of int32_t: the token, -1 where there is none.
    pub tokens: usize,
    /// R of uint32_t: bits of gumball_status.
    pub statuses: usize,
    /// R of float: the token's logprob; -inf if it was not asked for.
    pub logprobs: usize,
    /// R of uint32_t: the token's rank, from 1; 0 if it was not asked for, or is no member.
    pub ranks: usize,
    /// R of float: the temperature in use; 0 if greedy.
    pub temperatures: usize,
    /// R of float: mirostat's limit after the row, in bits; 0 without mirostat.
    pub mirostat_mu: usize,
    /// R x T of int32_t: the most likely ids, -1 where there are no more.
    pub top_ids: usize,
    /// R x T of float: their logprobs.
    pub top_logprobs: usize,
    /// R x I of float: the logprobs of the ids that the request names.
    pub id_logprobs: usize,
    /// R x I of uint32_t: their ranks.
    pub id_ranks: usize,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, valid for all bytes.
unsafe impl VersionedStruct for Layout {
    const NAME: &'static str = "gumball_layout";
    const LEAST: usize = offset_of!(Self, id_ranks) + size_of::<usize>();
}

impl Layout {
    pub(crate) fn of(layout: gumball_engine::Layout) -> Self {
        Self {
            struct_size: size_of::<Self>(),
            rows: layout.rows,
            top_n: layout.widths.top_n,
            ids: layout.widths.ids,
            words: layout.words(),
            tokens: layout.tokens().start,
            statuses: layout.statuses().start,
            logprobs: layout.logprobs().start,
            ranks: layout.ranks().start,
            temperatures: layout.temperatures().start,
            mirostat_mu: layout.mirostat_mu().start,
            top_ids: layout.top_ids().start,
            top_logprobs: layout.top_logprobs().start,
            id_logprobs: layout.id_logprobs().start,
            id_ranks: layout.id_ranks().start,
        }
    }
}

/// Writes where the outputs of `rows` rows lie, with places for the `top_n` most likely tokens and for `ids` named ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_layout_of(rows: usize, top_n: usize, ids: usize, out: *mut Layout) -> Code {
    call(|| {
        let layout = gumball_engine::Layout { rows, widths: Widths { top_n, ids } };
        if layout.checked_words().is_none() {
            return Err(Failure::out_of_range("rows", rows, "so few that their words can be counted"));
        }
        // SAFETY: the C caller ensures that `out` is NULL or points to the bytes that its `struct_size`
        // names.
        unsafe { write("out", out, Layout::of(layout)) }
    })
}

/// Makes empty outputs; with `keep_ids` above 0 such as collect the kept set of every row, which costs a sort of it. NULL
/// after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_new(keep_ids: u32) -> Option<Box<Outputs>> {
    make(|| {
        let inner = match keep_ids {
            0 => gumball_engine::Outputs::new(),
            _ => gumball_engine::Outputs::with_kept(),
        };
        Ok(Outputs { inner })
    })
}

/// Ends outputs. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_free(outputs: Option<Box<Outputs>>) {
    end(outputs);
}

/// Tells where the sections lie.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_outputs_layout(outputs: Option<&Outputs>, out: *mut Layout) -> Code {
    call(|| {
        let layout = require("outputs", outputs)?.inner.layout();
        // SAFETY: the C caller ensures that `out` is NULL or points to the bytes that its `struct_size`
        // names.
        unsafe { write("out", out, Layout::of(layout)) }
    })
}

/// Returns the number of rows; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_rows(outputs: Option<&Outputs>) -> usize {
    call_or(0, || Ok(require("outputs", outputs)?.inner.layout().rows))
}

/// Returns 1 if the rows came from a clustered head, so that tokens, kept sets, logprobs and ranks are those of the ids that it computed and approximate the exact
/// head's; else 0, as after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_is_approximate(outputs: Option<&Outputs>) -> u32 {
    call_or(0, || Ok(require("outputs", outputs)?.inner.is_approximate().into()))
}

/// Returns the buffer, all sections as gumball_outputs_layout tells; NULL if it is empty, or after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_words(outputs: Option<&Outputs>) -> *const u32 {
    call_or(ptr::null(), || Ok(first(require("outputs", outputs)?.inner.words())))
}

pub(crate) fn first<T>(values: &[T]) -> *const T {
    if values.is_empty() { ptr::null() } else { values.as_ptr() }
}

/// Returns a pointer to a section of the outputs; NULL if it is empty.
fn section<T>(
    outputs: Option<&Outputs>,
    place: impl FnOnce(gumball_engine::Layout) -> Range<usize>,
) -> *const T {
    call_or(ptr::null(), || {
        let outputs = &require("outputs", outputs)?.inner;
        Ok(first(&outputs.words()[place(outputs.layout())]).cast())
    })
}

/// Returns the token of each row, -1 where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_tokens(outputs: Option<&Outputs>) -> *const i32 {
    section(outputs, gumball_engine::Layout::tokens)
}

/// Returns the status of each row, bits of gumball_status.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_statuses(outputs: Option<&Outputs>) -> *const u32 {
    section(outputs, gumball_engine::Layout::statuses)
}

/// Returns the logprob of each row's token; -inf if it was not asked for.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_logprobs(outputs: Option<&Outputs>) -> *const f32 {
    section(outputs, gumball_engine::Layout::logprobs)
}

/// Returns the rank of each row's token, from 1; 0 if it was not asked for, or is no member.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_ranks(outputs: Option<&Outputs>) -> *const u32 {
    section(outputs, gumball_engine::Layout::ranks)
}

/// Returns the temperature in use in each row; 0 if greedy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_temperatures(outputs: Option<&Outputs>) -> *const f32 {
    section(outputs, gumball_engine::Layout::temperatures)
}

/// Returns mirostat's limit after each row, in bits; 0 without mirostat.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_mirostat_mu(outputs: Option<&Outputs>) -> *const f32 {
    section(outputs, gumball_engine::Layout::mirostat_mu)
}

/// Returns the most likely ids, `top_n` of them a row, row by row; -1 where there are no more.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_top_ids(outputs: Option<&Outputs>) -> *const i32 {
    section(outputs, gumball_engine::Layout::top_ids)
}

/// Returns the logprobs of the most likely ids, row by row.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_top_logprobs(outputs: Option<&Outputs>) -> *const f32 {
    section(outputs, gumball_engine::Layout::top_logprobs)
}

/// Returns the logprobs of the ids that requests name, `ids` of them a row, row by row.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_id_logprobs(outputs: Option<&Outputs>) -> *const f32 {
    section(outputs, gumball_engine::Layout::id_logprobs)
}

/// Returns the ranks of the ids that requests name, row by row.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_id_ranks(outputs: Option<&Outputs>) -> *const u32 {
    section(outputs, gumball_engine::Layout::id_ranks)
}

/// Returns the ids that a row's filters kept, and their number: ascending, on the host as on a device.
///
/// NULL if there are none: the row is empty or padding, or the outputs collect no kept sets; and after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_outputs_kept(
    outputs: Option<&Outputs>,
    row: usize,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const u32 {
    call_or(ptr::null(), || {
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
