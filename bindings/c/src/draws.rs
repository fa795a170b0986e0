//! Draws: any number of tokens from any rows, with seeds and positions of the program's choice.

use std::mem::offset_of;

use gumball_engine::{Kind, PerRow, SamplingParams};
use gumball_spec::memory;

use crate::device_operators;
use crate::error::Code;
use crate::ffi::{call, fill, optional_out_slice, out_slice, require};
use crate::logits::{Logits, read_logits};
use crate::operators::{Operators, RowParams, read_columns};
use crate::options::list;
use crate::versioned::{VersionedStruct, read};

/// Which draw each output is. Lists have one element an output; NULL: the value beside it, for all.
///
/// An output is the token of a pool whose sequence has its seed, position and draw index.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// sizeof(gumball_draws).
    pub struct_size: usize,
    /// The number of outputs.
    pub outputs: usize,
    /// For each output the row of the matrix that it is drawn from, any number of times; NULL: output i from row i.
    pub row_indices: *const u32,
    /// The seed of all outputs.
    pub seed: u64,
    /// The seed of each.
    pub seeds: *const u64,
    /// The position of each.
    pub positions: *const u32,
    /// The draw index of each; NULL: the output's own number, so that outputs of one seed and position are independent.
    pub draws: *const u32,
    /// The position of all outputs: the number of tokens before them.
    pub position: u32,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for Draws {
    const NAME: &'static str = "gumball_draws";
    const LEAST: usize = offset_of!(Self, position) + size_of::<u32>();
}

/// Returns one value per element if `first` is given, otherwise `all` for all of them.
///
/// # Safety
/// `first` is NULL or points to `len` values, which nobody writes for `'a`.
pub(crate) unsafe fn each<'a, T>(
    parameter: &'static str,
    all: T,
    first: *const T,
    len: usize,
) -> crate::error::Result<PerRow<'a, T>> {
    // SAFETY: the caller ensures that `first` is NULL or points to `len` values, which nobody writes for
    // `'a`.
    Ok(unsafe { list(parameter, first, len) }?.map_or(PerRow::All(all), PerRow::Rows))
}

/// Draws a token for each output from a row of logits or of probabilities, after its filters and bans.
///
/// A row is surveyed once for all of its draws. `rows`: L rows. `params`: lists of L, or NULL. `tokens`: room for the outputs; -1
/// where a row has no token. `statuses`: L of bits of gumball_status, 0 for a row that no output reads; or NULL.
///
/// On a device `statuses` has one for each output, and an entry of `row_indices` that is no row yields -1 and GUMBALL_STATUS_EMPTY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_sample(
    operators: Option<&Operators>,
    rows: *const Logits,
    params: *const RowParams,
    draws: *const Draws,
    tokens: *mut i32,
    statuses: *mut u32,
) -> Code {
    call(|| {
        let operators = require("operators", operators)?;
        if let Some(mut device) = operators.device() {
            // SAFETY: the C caller ensures that `rows`, `params` and `draws` have the sizes they state. Their
            // rows and lists, `tokens` and `statuses` lie on the device until the launched work is done.
            return unsafe { device_operators::sample(&mut device, rows, params, draws, tokens, statuses) };
        }
        let inner = operators.host();
        // SAFETY: the C caller ensures that `rows` is NULL or a struct of its stated size, whose rows nobody
        // writes meanwhile.
        let rows = unsafe { read_logits(rows) }?;
        let (neutral, lines) = (SamplingParams::default(), rows.rows());
        // SAFETY: the C caller ensures that `params` is NULL or a struct of its stated size, whose lists have
        // one element per row.
        let params = unsafe { read_columns(params, lines, &neutral) }?;
        // SAFETY: the C caller ensures that `draws` is NULL or points to the bytes that its `struct_size`
        // names.
        let draws = unsafe { read("draws", draws) }?;
        let n = draws.outputs;
        // SAFETY: the C caller ensures that `tokens` has memory for one id per output.
        let tokens = unsafe { out_slice("tokens", tokens, n) }?;
        // SAFETY: the C caller ensures that `statuses` is NULL or has memory for one status per row.
        let statuses = unsafe { optional_out_slice("statuses", statuses, lines) }?;
        let which = gumball_engine::Draws {
            // SAFETY: the C caller ensures that `seeds` is NULL or has one seed per output.
            seeds: unsafe { each("seeds", draws.seed, draws.seeds, n) }?,
            // SAFETY: the C caller ensures that `positions` is NULL or has one position per output.
            positions: unsafe { each("positions", draws.position, draws.positions, n) }?,
            // SAFETY: the C caller ensures that `draws` is NULL or has one draw index per output.
            draws: unsafe { list("draws", draws.draws, n) }?.map(PerRow::Rows),
        };
        // SAFETY: the C caller ensures that `row_indices` is NULL or has one index per output.
        let rows = match unsafe { list("row_indices", draws.row_indices, n) }? {
            Some(lines) => rows.select(lines)?,
            None => rows,
        };
        if n != rows.rows() {
            let allowed = format!("one per row, {}, or any number with row_indices", rows.rows());
            return Err(gumball_engine::Error::length("outputs", n, allowed).into());
        }
        let mut drawn = memory::filled("memory for outputs", 0, n)?;
        let told = match rows.kind() {
            Kind::Logits => inner.sample_logits(rows, &params, &which, &mut drawn)?,
            Kind::Probabilities => inner.sample_probabilities(rows, &params, &which, &mut drawn)?,
        };
        fill(Some(tokens), drawn);
        fill(statuses, told.iter().map(|status| status.0));
        Ok(())
    })
}
