//! Logprobs of selected tokens: of one token of each row.

use gumball_engine::Status;
use pyo3::prelude::*;

use super::columns::Value;
use super::draws::column_out;
use super::input::{Input, answer, rows_in, words_out};
use super::run::run;
use crate::arguments::argument;
use crate::arrays::Dtype;
use crate::values;

/// Returns the logprob of one token of each row: out, or a new array [rows] float32. With return_ranks or
/// return_statuses a tuple of it and of these, [rows] uint32 of numpy, on a GPU int32.
///
/// They are the ones that a Pool reports of these tokens with LogprobsParams(mode="raw"): at temperature 1,
/// without edits and filters. tokens: [rows] ids, or one for all rows; -1 for none. For rows on a GPU they
/// are a list or an array of the host, which is copied there, or int32 or int64 in its memory. A token whose
/// logit is -inf or NaN, or whose probability is 0, and -1, have logprob -inf and rank 0; the most likely
/// token has rank 1. kind: "logits", or "probabilities" for rows that hold those and need not sum to 1.
///
/// Raises ValueError for an id of the host outside the vocabulary. In a GPU's memory such an id counts as -1,
/// and the row's status is NO_ID.
#[pyfunction]
#[pyo3(signature = (rows, tokens, *, kind="logits", out=None, return_ranks=false, return_statuses=false, stream=None))]
pub fn selected_logprobs<'py>(
    rows: &Bound<'py, PyAny>,
    tokens: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = argument)] kind: &str,
    out: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] return_ranks: bool,
    #[pyo3(from_py_with = argument)] return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, "rows", stream)?;
    let kind = values::kind(kind)?;
    let tokens = Value::tokens(&mut input, tokens)?;
    let (from, on_device, count) = (input.matrix, input.is_on_device(), input.matrix.rows);
    let out = match out {
        Some(out) => out.clone(),
        None => input.empty(&[count], "float32")?,
    };
    let to = column_out(&mut input, &out, count, &[Dtype::F32], "float32")?;
    let (ranks, to_ranks) = input.words(return_ranks, &[count])?;
    let (statuses, to_statuses) = input.words(return_statuses, &[count])?;
    run(&input, |operators| {
        // SAFETY: `input` keeps the rows alive during the call; on a device their owners reuse memory in
        // stream order. The package's documentation forbids writes to them until the work is done.
        let rows = unsafe { rows_in(&from, on_device, kind) }?;
        // SAFETY: `column_out` checked that `out` has `count` float32 without gaps, is writable and lies
        // apart from the rows; no other code uses it until the work is done.
        let logprobs = unsafe { words_out::<f32>(Some(&to), on_device) }?.expect("it was given");
        // SAFETY: the ranks were allocated above with one word per row.
        let ranks = unsafe { words_out::<u32>(to_ranks.as_ref(), on_device) }?;
        // SAFETY: the statuses were allocated above with one word per row, of which any is a status.
        let statuses = unsafe { words_out::<Status>(to_statuses.as_ref(), on_device) }?;
        operators.selected_logprobs(rows, tokens.per_row(), logprobs, ranks, statuses)
    })?;
    answer(out, [ranks, statuses])
}
