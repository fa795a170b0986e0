//! Operators of a device: over rows, lists and outputs that lie in its memory.

use gumball_engine::cuda::{
    ChainRows, DeviceIntMatrix, DeviceIntMatrixMut, DeviceIntSlice, IntType, Verified,
};
use gumball_engine::{
    DeviceDraws, DeviceLogits, DeviceOperators, DevicePerRow, DeviceRowParams, DeviceRows, DeviceSlice,
    Error, Kind as Holds, SamplingParams,
};

use crate::chains::Chains;
use crate::draws::Draws;
use crate::error::{Failure, Result};
use crate::logits::{Logits, dtype, extent, kind};
use crate::matrix::{RowsOut, is_same};
use crate::operators::RowParams;
use crate::sized::{read, read_or_default};

/// Returns where something lies on the device, which must be given unless there is nothing.
fn place<T>(parameter: &str, first: *const T, len: usize) -> Result<u64> {
    if first.is_null() && len > 0 {
        return Err(Failure::null(parameter));
    }
    Ok(first.addr() as u64)
}

/// Returns a column of words of 32 bits, if it is given.
///
/// # Safety
/// As for [`DeviceSlice::new`].
unsafe fn column<'a, T>(first: *const T, len: usize) -> Result<Option<DeviceSlice<'a>>> {
    if first.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller vouches.
    Ok(Some(unsafe { DeviceSlice::new(first.addr() as u64, len) }?))
}

/// Returns a column of whole numbers, if it is given.
///
/// # Safety
/// As for [`DeviceIntSlice::new`].
unsafe fn integers<'a, T>(first: *const T, int: IntType, len: usize) -> Result<Option<DeviceIntSlice<'a>>> {
    if first.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller vouches.
    Ok(Some(unsafe { DeviceIntSlice::new(first.addr() as u64, int, len) }?))
}

/// Returns rows to be read.
///
/// # Safety
/// As for [`DeviceLogits::new`].
unsafe fn rows<'a>(given: &Logits) -> Result<DeviceLogits<'a>> {
    let (stride, len) = extent(given.rows, given.vocab, given.stride)?;
    let address = place("logits", given.data, len)?;
    // SAFETY: as the caller vouches.
    let rows = unsafe { DeviceLogits::new(address, dtype(given.dtype)?, given.rows, given.vocab, stride) }?;
    Ok(rows.with_kind(kind(given.kind)?))
}

/// Returns rows to be written.
///
/// # Safety
/// As for [`DeviceRows::new`].
unsafe fn rows_out<'a>(given: &RowsOut) -> Result<DeviceRows<'a>> {
    let (stride, len) = extent(given.rows, given.vocab, given.stride)?;
    let address = place("out", given.data, len)?;
    // SAFETY: as the caller vouches.
    Ok(unsafe { DeviceRows::new(address, dtype(given.dtype)?, given.rows, given.vocab, stride) }?)
}

/// Enqueues a softmax.
///
/// # Safety
/// `logits` and `out` are NULL or structs of their sizes; the rest lies on the device, and is as the header asks.
pub(crate) unsafe fn softmax(
    operators: &mut DeviceOperators,
    logits: *const Logits,
    temperature: f32,
    temperatures: *const f32,
    out: *const RowsOut,
    statuses: *mut u32,
) -> Result<()> {
    // SAFETY: the caller vouches for the struct.
    let from = unsafe { read("logits", logits) }?;
    // SAFETY: the caller vouches for the struct.
    let to = unsafe { read("out", out) }?;
    if kind(from.kind)? == Holds::Probabilities {
        return Err(Error::out_of_range("kind", "probabilities", "logits").into());
    }
    let same = is_same(&from, &to)?;
    // SAFETY: the caller vouches for the rows.
    let logits = unsafe { rows(&from) }?;
    // SAFETY: the caller vouches for the rows, which are the same or have nothing in common.
    let out = unsafe { rows_out(&to) }?;
    // SAFETY: the caller vouches for the list.
    let each = unsafe { column(temperatures, from.rows) }?;
    let each = each.map_or(DevicePerRow::All(temperature), DevicePerRow::Device);
    // SAFETY: the caller vouches for the room.
    let statuses = unsafe { column(statuses.cast_const(), from.rows) }?;
    if same {
        operators.softmax_in_place(&out, each, statuses.as_ref())?;
    } else {
        operators.softmax(&logits, each, &out, statuses.as_ref())?;
    }
    Ok(())
}

/// Enqueues draws.
///
/// # Safety
/// `given`, `params` and `draws` are NULL or structs of their sizes; the rest lies on the device, and is as the header asks.
pub(crate) unsafe fn sample(
    operators: &mut DeviceOperators,
    given: *const Logits,
    params: *const RowParams,
    draws: *const Draws,
    tokens: *mut i32,
    statuses: *mut u32,
) -> Result<()> {
    // SAFETY: the caller vouches for the struct.
    let given = unsafe { read("logits", given) }?;
    // SAFETY: the caller vouches for the rows.
    let rows = unsafe { rows(&given) }?;
    // SAFETY: the caller vouches for the struct.
    let params = unsafe { read_or_default("params", params) }?;
    // SAFETY: the caller vouches for the struct.
    let draws = unsafe { read("draws", draws) }?;
    let (n, lines, neutral) = (draws.outputs, given.rows, SamplingParams::default());
    // SAFETY: the caller vouches for the lists.
    let params = unsafe { row_params(&params, &neutral, lines) }?;
    // SAFETY: the caller vouches for the lists.
    let which =
        unsafe { which((draws.seed, draws.seeds), (draws.position, draws.positions), draws.draws, n) }?;
    // SAFETY: the caller vouches for the list.
    let lines = unsafe { integers(draws.row_indices, IntType::U32, n) }?.map(DevicePerRow::Device);
    let address = place("tokens", tokens.cast_const(), n)?;
    // SAFETY: the caller vouches for the room.
    let tokens = unsafe { DeviceIntSlice::new(address, IntType::I32, n) }?;
    // SAFETY: the caller vouches for the room.
    let statuses = unsafe { column(statuses.cast_const(), n) }?;
    Ok(operators.sample(&rows, &params, &which, lines, &tokens, statuses.as_ref())?)
}

/// Returns the parameters of rows.
///
/// # Safety
/// Parameters are NULL or a handle; lists are NULL, or lie on the device as the header asks.
unsafe fn row_params<'a>(
    given: &RowParams,
    neutral: &'a SamplingParams,
    lines: usize,
) -> Result<DeviceRowParams<'a>> {
    Ok(DeviceRowParams {
        // SAFETY: the caller vouches for the handle.
        common: unsafe { given.params.as_ref() }.map_or(neutral, |params| &params.inner),
        // SAFETY: the caller vouches for the list.
        temperature: unsafe { column(given.temperature, lines) }?.map(DevicePerRow::Device),
        // SAFETY: the caller vouches for the list.
        top_k: unsafe { integers(given.top_k, IntType::I64, lines) }?.map(DevicePerRow::Device),
        // SAFETY: the caller vouches for the list.
        top_p: unsafe { column(given.top_p, lines) }?.map(DevicePerRow::Device),
        // SAFETY: the caller vouches for the list.
        min_p: unsafe { column(given.min_p, lines) }?.map(DevicePerRow::Device),
    })
}

/// Enqueues rows of probabilities, or masked rows.
///
/// # Safety
/// `given`, `params` and `out` are NULL or structs of their sizes; the rest lies on the device, and is as the header asks.
pub(crate) unsafe fn write(
    operators: &mut DeviceOperators,
    given: *const Logits,
    params: *const RowParams,
    out: *const RowsOut,
    statuses: *mut u32,
    masked: bool,
) -> Result<()> {
    // SAFETY: the caller vouches for the struct.
    let from = unsafe { read("logits", given) }?;
    // SAFETY: the caller vouches for the struct.
    let to = unsafe { read("out", out) }?;
    // SAFETY: the caller vouches for the struct.
    let params = unsafe { read_or_default("params", params) }?;
    let (same, neutral) = (is_same(&from, &to)?, SamplingParams::default());
    // SAFETY: the caller vouches for the rows.
    let logits = unsafe { rows(&from) }?;
    // SAFETY: the caller vouches for the rows, which are the same or have nothing in common.
    let out = unsafe { rows_out(&to) }?.with_kind(logits.kind());
    // SAFETY: the caller vouches for the lists.
    let params = unsafe { row_params(&params, &neutral, from.rows) }?;
    // SAFETY: the caller vouches for the room.
    let statuses = unsafe { column(statuses.cast_const(), from.rows) }?;
    match (masked, same) {
        (true, true) => operators.mask_logits_in_place(&out, &params, statuses.as_ref())?,
        (true, false) => operators.mask_logits(&logits, &params, &out, statuses.as_ref())?,
        (false, true) => operators.probabilities_in_place(&out, &params, statuses.as_ref())?,
        (false, false) => operators.probabilities(&logits, &params, &out, statuses.as_ref())?,
    }
    Ok(())
}

/// Returns which draws are meant.
///
/// # Safety
/// As for [`DeviceIntSlice::new`].
unsafe fn which<'a>(
    (seed, seeds): (u64, *const u64),
    (position, positions): (u32, *const u32),
    draws: *const u32,
    n: usize,
) -> Result<DeviceDraws<'a>> {
    // SAFETY: as the caller vouches.
    let seeds = unsafe { integers(seeds, IntType::U64, n) }?;
    // SAFETY: the same.
    let positions = unsafe { integers(positions, IntType::U32, n) }?;
    Ok(DeviceDraws {
        seeds: seeds.map_or(DevicePerRow::All(seed), DevicePerRow::Device),
        positions: positions.map_or(DevicePerRow::All(position), DevicePerRow::Device),
        // SAFETY: the same.
        draws: unsafe { integers(draws, IntType::U32, n) }?.map(DevicePerRow::Device),
        ..DeviceDraws::new(seed, position)
    })
}

/// Enqueues the verification of chains.
///
/// # Safety
/// `given` is NULL or a struct of its size; the rest lies on the device, and is as the header asks.
pub(crate) unsafe fn verify(
    operators: &mut DeviceOperators,
    given: *const Chains,
    tokens: *mut i32,
    [accepted, emitted, statuses]: [*mut u32; 3],
) -> Result<()> {
    // SAFETY: the caller vouches for the struct.
    let given = unsafe { read("chains", given) }?;
    let Chains { chains, drafts: n, vocab, .. } = given;
    let counted = || chains.checked_mul(n.checked_add(1)?)?.checked_mul(vocab)?.checked_mul(size_of::<f32>());
    if counted().is_none() {
        return Err(Error::length("drafts", n, "so many that all probabilities can be counted").into());
    }
    let rows = |name: &'static str, first: *const f32, count: usize| {
        let address = place(name, first, chains * count * vocab)?;
        // SAFETY: the caller vouches for the rows.
        let rows = unsafe { ChainRows::new(address, [chains, count, vocab], [count * vocab, vocab]) };
        Ok::<_, Failure>(rows?)
    };
    let draft_rows = rows("draft_probs", given.draft_probs, n)?;
    let target_rows = rows("target_probs", given.target_probs, n + 1)?;
    let address = place("draft_token_ids", given.draft_token_ids, chains * n)?;
    // SAFETY: the caller vouches for the ids.
    let ids = unsafe { DeviceIntMatrix::new(address, IntType::I32, chains, n, n) }?;
    // SAFETY: the caller vouches for the lists.
    let which =
        unsafe { which((given.seed, given.seeds), (given.position, given.positions), given.draws, chains) }?;
    let address = place("tokens", tokens.cast_const(), chains * (n + 1))?;
    // SAFETY: the caller vouches for the room.
    let to = unsafe { DeviceIntMatrixMut::new(address, IntType::I32, chains, n + 1, n + 1) }?;
    let verified = Verified {
        // SAFETY: the caller vouches for the room.
        accepted: unsafe { column(accepted.cast_const(), chains) }?,
        // SAFETY: the caller vouches for the room.
        emitted: unsafe { column(emitted.cast_const(), chains) }?,
        // SAFETY: the caller vouches for the room.
        statuses: unsafe { column(statuses.cast_const(), chains) }?,
        ..Verified::new(to)
    };
    Ok(operators.chain_speculative_sampling(draft_rows, ids, target_rows, &which, &verified)?)
}
