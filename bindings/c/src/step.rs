//! Steps of a pool over logits in host memory: the next token of each row, and the logprobs of given tokens.

use std::mem::offset_of;

use gumball_engine::{Batch, Rows};

use crate::error::{Code, Failure, Result};
use crate::ffi::{call, require, slice};
use crate::logits::{Logits, read_logits};
use crate::options::{Options, StepOptions, read_options};
use crate::outputs::Outputs;
use crate::params::Params;
use crate::pool::{Pool, either};
use crate::versioned::{VersionedStruct, read};

/// A known sequence, some of whose tokens are to be scored: row i scores `ids[start + i]`, after all ids before it.
///
/// To score a prompt: `prompt_len` its length, `start` 1, and the logits of the prompt's ids but the last. To score an answer:
/// `start` at `prompt_len`. Long sequences can be handed in piecewise, `start` moving on.
#[repr(C)]
#[derive(Debug)]
pub struct Scored {
    /// sizeof(gumball_scored).
    pub struct_size: usize,
    /// The parameters. Their `logprobs` say what to report; if absent, the token's raw logprob and rank.
    pub params: *const Params,
    /// Prompt and output.
    pub ids: *const u32,
    /// Their number.
    pub ids_len: usize,
    /// How many of them are prompt, for the penalties that tell it from output.
    pub prompt_len: usize,
    /// The place in `ids` of the token that row 0 predicts.
    pub start: usize,
}

impl Clone for Scored {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Scored {}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for Scored {
    const NAME: &'static str = "gumball_scored";
    const LEAST: usize = offset_of!(Self, start) + size_of::<usize>();
}

/// Reads a known sequence, in the types of the engine.
///
/// # Safety
/// `scored` is NULL or points to the bytes that its `struct_size` names. `params` is NULL or a live handle, `ids` is NULL or has `ids_len`
/// ids. Nobody writes them for `'a`.
pub(crate) unsafe fn read_scored<'a>(scored: *const Scored) -> Result<gumball_engine::Scored<'a>> {
    // SAFETY: the caller ensures that `scored` is NULL or points to the bytes that its `struct_size` names.
    let scored = unsafe { read("scored", scored) }?;
    // SAFETY: the caller ensures that `params` is NULL or a live handle, which nobody writes for `'a`.
    let params = require("params", unsafe { scored.params.as_ref::<'a>() })?;
    // SAFETY: the caller ensures that `ids` has `ids_len` ids.
    let ids = unsafe { slice("ids", scored.ids, scored.ids_len) }?;
    Ok(gumball_engine::Scored {
        params: &params.inner,
        ids,
        prompt_len: scored.prompt_len,
        start: scored.start,
        chunk_rows: None,
    })
}

/// Chooses the next token of each row, and appends it to the sequence in the row's slot.
///
/// `slots`: `rows` slots, -1 for a row without a sequence, no other twice. Without `row_indices` in the options, the logits have as
/// many rows. A row that yields -1 leaves its sequence as it was. After an error no sequence was changed, nor were the
/// outputs. In a pool on a device, the logits are copied up and the outputs down.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_step(
    pool: Option<&mut Pool>,
    logits: *const Logits,
    slots: *const i32,
    rows: usize,
    options: *const StepOptions,
    outputs: Option<&mut Outputs>,
) -> Code {
    call(|| {
        let (pool, outputs) = (require("pool", pool)?, require("outputs", outputs)?);
        // SAFETY: the C caller ensures that `logits` is NULL or a struct of its stated size, whose rows
        // nobody writes meanwhile.
        let logits = unsafe { read_logits(logits) }?;
        // SAFETY: the C caller ensures that `slots` has `rows` slots.
        let slots = unsafe { slice("slots", slots, rows) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, rows) }?;
        let rows = rows_of(logits, &options)?;
        options.with(|batch| {
            let batch = &Batch { slots, ..*batch };
            Ok(either!(pool, inner => inner.step(rows, batch, &mut outputs.inner))?)
        })
    })
}

/// Returns rows as a pool takes them, once it is checked that the options agree on what they are.
pub(crate) fn rows_of<'a>(logits: gumball_engine::Logits<'a>, options: &Options<'a>) -> Result<Rows<'a>> {
    options.check_kind(logits.kind())?;
    Ok(Rows::of(logits.matrix(), logits.kind()))
}

/// Tells the logprobs of known tokens, in any mode, with ranks, most likely tokens and given ids: what a step would in which
/// each of them is forced. No slot is touched. The outputs have the widths of the request's `logprobs`.
///
/// `rows`: how many tokens are scored. The options may bring masks, hooks and row_indices; nothing can be forced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_score(
    pool: Option<&mut Pool>,
    logits: *const Logits,
    scored: *const Scored,
    rows: usize,
    options: *const StepOptions,
    outputs: Option<&mut Outputs>,
) -> Code {
    call(|| {
        let (pool, outputs) = (require("pool", pool)?, require("outputs", outputs)?);
        // SAFETY: the C caller ensures that `logits` is NULL or a struct of its stated size, whose rows
        // nobody writes meanwhile.
        let logits = unsafe { read_logits(logits) }?;
        // SAFETY: the C caller ensures that `scored` is NULL or a struct of its stated size, whose `params` is a live handle and whose
        // `ids` has `ids_len` ids, which nobody writes meanwhile.
        let known = unsafe { read_scored(scored) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, rows) }?;
        if options.row_indices.is_none() && logits.rows() != rows {
            let allowed = format!("the number of rows of the logits, {}", logits.rows());
            return Err(Failure::out_of_range("rows", rows, &allowed));
        }
        let of = rows_of(logits, &options)?;
        options.with(|batch| Ok(either!(pool, inner => inner.score(of, batch, &known, &mut outputs.inner))?))
    })
}
