//! Chains of drafts whose probabilities lie on a GPU.

use gumball_engine::Error;
use gumball_engine::cuda::{ChainRows, Column, Ids, IdsMut, Verified};
use pyo3::prelude::*;

use super::columns::{Given, Value, int_type};
use super::device::{Input, owner_stream};
use super::device_draws::{Which, tokens};
use super::host::wrong_dtype;
use super::rooms;
use crate::arrays::{Dtype, Matrix};
use crate::errors::{out_of_range, raised};

/// Checks rows of float32 that follow each other.
fn check_packed(matrix: &Matrix, name: &str) -> PyResult<()> {
    if matrix.dtype != Dtype::F32 {
        return Err(wrong_dtype(name, matrix.dtype, "float32"));
    }
    if matrix.rows > 1 && matrix.stride != matrix.width {
        return Err(out_of_range(&format!("{name}'s stride"), matrix.stride, matrix.width));
    }
    Ok(())
}

/// Verifies chains of drafts that lie on a device, as `verify_chains` does; `None` if they do not. words: [3, chains] int32, or None,
/// for accepted, emitted and statuses.
#[pyfunction]
#[pyo3(signature = (draft_probs, draft_token_ids, target_probs, shape, seed, position, draw, dtype, stream))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn verify_on_device<'py>(
    draft_probs: &Bound<'py, PyAny>,
    draft_token_ids: &Bound<'py, PyAny>,
    target_probs: &Bound<'py, PyAny>,
    shape: (usize, usize),
    seed: &Bound<'py, PyAny>,
    position: &Bound<'py, PyAny>,
    draw: Option<&Bound<'py, PyAny>>,
    dtype: &str,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let Some(input) = Input::read(target_probs, "target_probs", stream)? else { return Ok(None) };
    let (chains, n) = shape;
    let p = input.matrix;
    check_packed(&p, "target_probs")?;
    let drafts = input.beside(draft_probs, "draft_probs")?;
    let q = drafts.matrix("draft_probs")?;
    check_packed(&q, "draft_probs")?;
    let ids = Given::<u32>::integers(&input, draft_token_ids, "draft_token_ids")?;
    let Value::Column { address: ids_address, rows: ids_rows, dtype: ids_type } = ids.value else {
        unreachable!("read as a column");
    };
    if (q.rows, p.rows, ids_rows) != (chains * n, chains * (n + 1), chains * n) {
        let allowed = format!("{} for {chains} chains of {n} drafts", chains * n);
        return Err(raised(Error::length("draft_token_ids", ids_rows, allowed)));
    }
    let which = Which::read(&input, seed, position, draw)?;
    let out = input.empty(&[chains, n + 1], dtype)?;
    let words = input.empty(&[3, chains], "int32")?;
    let (tokens_address, tokens_type, _) = tokens(&input, &out, chains * (n + 1))?;
    let words_address = input.beside(&words, "counts")?.address as u64;
    let own = [owner_stream(&input.array), owner_stream(&drafts), ids.stream];
    let streams: Vec<usize> = own.into_iter().chain(which.streams()).flatten().collect();
    let draws = which.values();
    rooms::at(target_probs.py(), input.site, &streams, |operators| {
        let strides = |rows: usize| [rows * p.width, p.width];
        let word = |row: usize| words_address + (row * chains * size_of::<u32>()) as u64;
        // SAFETY: the owners of the arrays reuse memory in the order of the stream; that nobody else writes it until the work
        // is done is the caller's part, as the package says.
        let draft_rows = unsafe { ChainRows::new(q.address as u64, [chains, n, q.width], strides(n)) }?;
        // SAFETY: the same.
        let target_rows =
            unsafe { ChainRows::new(p.address as u64, [chains, n + 1, p.width], strides(n + 1)) }?;
        // SAFETY: the same.
        let ids = unsafe { Ids::new(ids_address, int_type(ids_type), chains, n, n) }?;
        // SAFETY: the same.
        let draws = unsafe { draws.draws() }?;
        // SAFETY: they were just allocated, and are freed in the order of the stream.
        let to = unsafe { IdsMut::new(tokens_address, int_type(tokens_type), chains, n + 1, n + 1) }?;
        // SAFETY: the same; there are three words a chain.
        let column = |row: usize| unsafe { Column::new(word(row), chains) }.map(Some);
        let verified =
            Verified { accepted: column(0)?, emitted: column(1)?, statuses: column(2)?, ..Verified::new(to) };
        operators.chain_speculative_sampling(draft_rows, ids, target_rows, &draws, &verified)
    })?;
    Ok(Some((out, words)))
}
