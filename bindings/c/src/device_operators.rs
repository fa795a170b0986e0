//! Operators on a device, over rows, lists and outputs in its memory.

use gumball_engine::{
    ChainRows, DeviceDraws, DeviceIntMatrix, DeviceIntMatrixMut, DeviceIntSlice, DeviceLogits,
    DeviceOperators, DevicePerRow, DeviceRowParams, DeviceRows, DeviceSlice, Error, IntType, Kind as Holds,
    SamplingParams, Verified,
};

use crate::chains::Chains;
use crate::draws::Draws;
use crate::error::{Failure, Result};
use crate::logits::{Logits, dtype, extent, kind};
use crate::matrix::{RowsOut, is_same};
use crate::operators::RowParams;
use crate::versioned::{read, read_or_default};

/// Returns the device address of `first`; NULL is an error unless `len` is 0.
fn place<T>(parameter: &str, first: *const T, len: usize) -> Result<u64> {
    if first.is_null() && len > 0 {
        return Err(Failure::null(parameter));
    }
    Ok(first.addr() as u64)
}

/// Returns a column of 32-bit elements, or `None` for NULL.
///
/// # Safety
/// `first` is NULL or the device address of `len` elements. Until the enqueued work is done, nobody frees or
/// writes them; elements that the work writes, nobody reads either.
unsafe fn column<'a, T>(first: *const T, len: usize) -> Result<Option<DeviceSlice<'a>>> {
    if first.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller ensures that `first` is the device address of `len` elements that stay until the
    // work is done.
    Ok(Some(unsafe { DeviceSlice::new(first.addr() as u64, len) }?))
}

/// Returns a column of integers, or `None` for NULL.
///
/// # Safety
/// `first` is NULL or the device address of `len` integers of type `int`. Nobody frees or writes them until
/// the enqueued work is done.
unsafe fn integers<'a, T>(first: *const T, int: IntType, len: usize) -> Result<Option<DeviceIntSlice<'a>>> {
    if first.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller ensures that `first` is the device address of `len` integers that stay until the
    // work is done.
    Ok(Some(unsafe { DeviceIntSlice::new(first.addr() as u64, int, len) }?))
}

/// Returns rows to be read.
///
/// # Safety
/// `given.data` is NULL or the device address of the matrix that `given` describes. Nobody frees or writes it
/// until the enqueued work is done.
unsafe fn rows<'a>(given: &Logits) -> Result<DeviceLogits<'a>> {
    let (stride, len) = extent(given.rows, given.vocab, given.stride)?;
    let address = place("logits", given.data, len)?;
    // SAFETY: the caller ensures that `given.data` is the device address of this matrix, unchanged until the
    // work is done.
    let rows = unsafe { DeviceLogits::new(address, dtype(given.dtype)?, given.rows, given.vocab, stride) }?;
    Ok(rows.with_kind(kind(given.kind)?))
}

/// Returns rows to be written.
///
/// # Safety
/// `given.data` is NULL or the device address of the matrix that `given` describes. Until the enqueued work
/// is done, nobody frees it, or reads or writes it otherwise.
unsafe fn rows_out<'a>(given: &RowsOut) -> Result<DeviceRows<'a>> {
    let (stride, len) = extent(given.rows, given.vocab, given.stride)?;
    let address = place("out", given.data, len)?;
    // SAFETY: the caller ensures that `given.data` is the device address of this matrix, which only this work
    // uses.
    Ok(unsafe { DeviceRows::new(address, dtype(given.dtype)?, given.rows, given.vocab, stride) }?)
}

/// Enqueues a softmax.
///
/// # Safety
/// `logits` and `out` are NULL or structs with the sizes they state. Their rows lie on the device, and
/// `temperatures` and `statuses` are NULL or have one element per row there. All of it stays until the
/// enqueued work is done.
pub(crate) unsafe fn softmax(
    operators: &mut DeviceOperators,
    logits: *const Logits,
    temperature: f32,
    temperatures: *const f32,
    out: *const RowsOut,
    statuses: *mut u32,
) -> Result<()> {
    // SAFETY: the caller ensures that `logits` is NULL or points to the bytes that its `struct_size` names.
    let from = unsafe { read("logits", logits) }?;
    // SAFETY: the caller ensures that `out` is NULL or points to the bytes that its `struct_size` names.
    let to = unsafe { read("out", out) }?;
    if kind(from.kind)? == Holds::Probabilities {
        return Err(Error::out_of_range("kind", "probabilities", "logits").into());
    }
    let same = is_same(&from, &to)?;
    // SAFETY: the caller ensures that the rows of `logits` lie on the device until the work is done.
    let logits = unsafe { rows(&from) }?;
    // SAFETY: the caller ensures that the rows of `out` lie on the device; `is_same` found them equal to the
    // read rows or apart.
    let out = unsafe { rows_out(&to) }?;
    // SAFETY: the caller ensures that `temperatures` is NULL or has one f32 per row on the device.
    let each = unsafe { column(temperatures, from.rows) }?;
    let each = each.map_or(DevicePerRow::All(temperature), DevicePerRow::Device);
    // SAFETY: the caller ensures that `statuses` is NULL or has memory for one u32 per row on the device.
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
/// `given`, `params` and `draws` are NULL or structs with the sizes they state. Their rows and lists,
/// `tokens` and `statuses` are NULL or lie on the device, with one element per row or per output as the
/// header says. All of it stays until the enqueued work is done.
pub(crate) unsafe fn sample(
    operators: &mut DeviceOperators,
    given: *const Logits,
    params: *const RowParams,
    draws: *const Draws,
    tokens: *mut i32,
    statuses: *mut u32,
) -> Result<()> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read("logits", given) }?;
    // SAFETY: the caller ensures that the rows of `given` lie on the device until the work is done.
    let rows = unsafe { rows(&given) }?;
    // SAFETY: the caller ensures that `params` is NULL or points to the bytes that its `struct_size` names.
    let params = unsafe { read_or_default("params", params) }?;
    // SAFETY: the caller ensures that `draws` is NULL or points to the bytes that its `struct_size` names.
    let draws = unsafe { read("draws", draws) }?;
    let (n, lines, neutral) = (draws.outputs, given.rows, SamplingParams::default());
    // SAFETY: the caller ensures that the lists of `params` are NULL or have one element per row on the
    // device.
    let params = unsafe { row_params(&params, &neutral, lines) }?;
    // SAFETY: the caller ensures that `seeds`, `positions` and `draws` are NULL or have one element per
    // output on the device.
    let which =
        unsafe { which((draws.seed, draws.seeds), (draws.position, draws.positions), draws.draws, n) }?;
    // SAFETY: the caller ensures that `row_indices` is NULL or has one u32 per output on the device.
    let lines = unsafe { integers(draws.row_indices, IntType::U32, n) }?.map(DevicePerRow::Device);
    let address = place("tokens", tokens.cast_const(), n)?;
    // SAFETY: the caller ensures that `tokens` has memory for one i32 per output on the device.
    let tokens = unsafe { DeviceIntSlice::new(address, IntType::I32, n) }?;
    // SAFETY: the caller ensures that `statuses` is NULL or has memory for one u32 per output on the device.
    let statuses = unsafe { column(statuses.cast_const(), n) }?;
    Ok(operators.sample(&rows, &params, &which, lines, &tokens, statuses.as_ref())?)
}

/// Returns the parameters of rows.
///
/// # Safety
/// `given.params` is NULL or a live handle. Each list is NULL or the device address of one element per row.
/// Nobody frees or writes them until the enqueued work is done.
unsafe fn row_params<'a>(
    given: &RowParams,
    neutral: &'a SamplingParams,
    lines: usize,
) -> Result<DeviceRowParams<'a>> {
    Ok(DeviceRowParams {
        // SAFETY: the caller ensures that `params` is NULL or a live handle.
        common: unsafe { given.params.as_ref() }.map_or(neutral, |params| &params.inner),
        // SAFETY: the caller ensures that `temperature` is NULL or has one f32 per row on the device.
        temperature: unsafe { column(given.temperature, lines) }?.map(DevicePerRow::Device),
        // SAFETY: the caller ensures that `top_k` is NULL or has one i64 per row on the device.
        top_k: unsafe { integers(given.top_k, IntType::I64, lines) }?.map(DevicePerRow::Device),
        // SAFETY: the caller ensures that `top_p` is NULL or has one f32 per row on the device.
        top_p: unsafe { column(given.top_p, lines) }?.map(DevicePerRow::Device),
        // SAFETY: the caller ensures that `min_p` is NULL or has one f32 per row on the device.
        min_p: unsafe { column(given.min_p, lines) }?.map(DevicePerRow::Device),
    })
}

/// Enqueues rows of probabilities, or masked rows.
///
/// # Safety
/// `given`, `params` and `out` are NULL or structs with the sizes they state. Their rows and lists and
/// `statuses` are NULL or lie on the device, the lists and `statuses` with one element per row. All of it
/// stays until the enqueued work is done.
pub(crate) unsafe fn write(
    operators: &mut DeviceOperators,
    given: *const Logits,
    params: *const RowParams,
    out: *const RowsOut,
    statuses: *mut u32,
    masked: bool,
) -> Result<()> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let from = unsafe { read("logits", given) }?;
    // SAFETY: the caller ensures that `out` is NULL or points to the bytes that its `struct_size` names.
    let to = unsafe { read("out", out) }?;
    // SAFETY: the caller ensures that `params` is NULL or points to the bytes that its `struct_size` names.
    let params = unsafe { read_or_default("params", params) }?;
    let (same, neutral) = (is_same(&from, &to)?, SamplingParams::default());
    // SAFETY: the caller ensures that the rows of `given` lie on the device until the work is done.
    let logits = unsafe { rows(&from) }?;
    // SAFETY: the caller ensures that the rows of `out` lie on the device; `is_same` found them equal to the
    // read rows or apart.
    let out = unsafe { rows_out(&to) }?.with_kind(logits.kind());
    // SAFETY: the caller ensures that the lists of `params` are NULL or have one element per row on the
    // device.
    let params = unsafe { row_params(&params, &neutral, from.rows) }?;
    // SAFETY: the caller ensures that `statuses` is NULL or has memory for one u32 per row on the device.
    let statuses = unsafe { column(statuses.cast_const(), from.rows) }?;
    match (masked, same) {
        (true, true) => operators.mask_logits_in_place(&out, &params, statuses.as_ref())?,
        (true, false) => operators.mask_logits(&logits, &params, &out, statuses.as_ref())?,
        (false, true) => operators.probabilities_in_place(&out, &params, statuses.as_ref())?,
        (false, false) => operators.probabilities(&logits, &params, &out, statuses.as_ref())?,
    }
    Ok(())
}

/// Returns the keys of `n` draws.
///
/// # Safety
/// `seeds`, `positions` and `draws` are NULL or the device addresses of `n` elements. Nobody frees or writes
/// them until the enqueued work is done.
unsafe fn which<'a>(
    (seed, seeds): (u64, *const u64),
    (position, positions): (u32, *const u32),
    draws: *const u32,
    n: usize,
) -> Result<DeviceDraws<'a>> {
    // SAFETY: the caller ensures that `seeds` is NULL or the device address of `n` u64.
    let seeds = unsafe { integers(seeds, IntType::U64, n) }?;
    // SAFETY: the caller ensures that `positions` is NULL or the device address of `n` u32.
    let positions = unsafe { integers(positions, IntType::U32, n) }?;
    Ok(DeviceDraws {
        seeds: seeds.map_or(DevicePerRow::All(seed), DevicePerRow::Device),
        positions: positions.map_or(DevicePerRow::All(position), DevicePerRow::Device),
        // SAFETY: the caller ensures that `draws` is NULL or the device address of `n` u32.
        draws: unsafe { integers(draws, IntType::U32, n) }?.map(DevicePerRow::Device),
        ..DeviceDraws::new(seed, position)
    })
}

/// Enqueues the verification of chains.
///
/// # Safety
/// `given` is NULL or a struct with the size it states. Its arrays, `tokens`, `accepted`, `emitted` and
/// `statuses` are NULL or lie on the device with the elements that the struct's counts name. All of it stays
/// until the enqueued work is done.
pub(crate) unsafe fn verify(
    operators: &mut DeviceOperators,
    given: *const Chains,
    tokens: *mut i32,
    [accepted, emitted, statuses]: [*mut u32; 3],
) -> Result<()> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read("chains", given) }?;
    let Chains { chains, drafts: n, vocab, .. } = given;
    let counted = || chains.checked_mul(n.checked_add(1)?)?.checked_mul(vocab)?.checked_mul(size_of::<f32>());
    if counted().is_none() {
        return Err(Error::length("drafts", n, "so many that all probabilities can be counted").into());
    }
    let rows = |name: &'static str, first: *const f32, count: usize| {
        let address = place(name, first, chains * count * vocab)?;
        // SAFETY: the caller ensures that chains * count * vocab f32 of this array lie on the device until
        // the work is done.
        let rows = unsafe { ChainRows::new(address, [chains, count, vocab], [count * vocab, vocab]) };
        Ok::<_, Failure>(rows?)
    };
    let draft_rows = rows("draft_probs", given.draft_probs, n)?;
    let target_rows = rows("target_probs", given.target_probs, n + 1)?;
    let address = place("draft_token_ids", given.draft_token_ids, chains * n)?;
    // SAFETY: the caller ensures that `draft_token_ids` has chains * n i32 on the device.
    let ids = unsafe { DeviceIntMatrix::new(address, IntType::I32, chains, n, n) }?;
    // SAFETY: the caller ensures that `seeds`, `positions` and `draws` are NULL or have one element per chain
    // on the device.
    let which =
        unsafe { which((given.seed, given.seeds), (given.position, given.positions), given.draws, chains) }?;
    let address = place("tokens", tokens.cast_const(), chains * (n + 1))?;
    // SAFETY: the caller ensures that `tokens` has memory for chains * (n + 1) i32 on the device.
    let to = unsafe { DeviceIntMatrixMut::new(address, IntType::I32, chains, n + 1, n + 1) }?;
    let verified = Verified {
        // SAFETY: the caller ensures that `accepted` is NULL or has memory for one u32 per chain on the
        // device.
        accepted: unsafe { column(accepted.cast_const(), chains) }?,
        // SAFETY: the caller ensures that `emitted` is NULL or has memory for one u32 per chain on the
        // device.
        emitted: unsafe { column(emitted.cast_const(), chains) }?,
        // SAFETY: the caller ensures that `statuses` is NULL or has memory for one u32 per chain on the
        // device.
        statuses: unsafe { column(statuses.cast_const(), chains) }?,
        ..Verified::new(to)
    };
    Ok(operators.chain_speculative_sampling(draft_rows, ids, target_rows, &which, &verified)?)
}
