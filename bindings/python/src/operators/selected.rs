//! Logprobs of selected tokens: of one token of each row.

use gumball_engine::Status;
use pyo3::prelude::*;

use super::columns::Value;
use super::input::{Input, answer, rows_in, words_out};
use super::run::run;
use super::sample::column_out;
use crate::arrays::{Dtype, Matrix};
use crate::values;

/// Returns the logprob of one token of each row. If ranks or statuses are wanted, a tuple of logprobs and these.
///
/// tokens: one per row, or one for all; ids on the host, or an array beside rows on a device. out: an array of float32, or
/// None for a new one of the rows' library.
#[pyfunction]
#[pyo3(signature = (rows, name, tokens, out, kind, return_ranks, return_statuses, stream))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's function")]
pub fn token_logprobs<'py>(
    rows: &Bound<'py, PyAny>,
    name: &str,
    tokens: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    kind: &str,
    return_ranks: bool,
    return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, name, stream)?;
    let kind = values::kind(kind)?;
    let tokens = Value::tokens(&mut input, tokens)?;
    let (from, on_device, count) = (input.matrix, input.is_on_device(), input.matrix.rows);
    let out = match out {
        Some(out) => out.clone(),
        None => input.empty(&[count], "float32")?,
    };
    let to = column_out(&mut input, &out, count, &[Dtype::F32], "float32")?;
    let ranks = return_ranks.then(|| input.words(&[count])).transpose()?;
    let statuses = return_statuses.then(|| input.words(&[count])).transpose()?;
    let matrix = |words: &Option<(Bound<'_, PyAny>, Matrix)>| words.as_ref().map(|(_, matrix)| *matrix);
    let (to_ranks, to_statuses) = (matrix(&ranks), matrix(&statuses));
    run(&input, |operators| {
        // SAFETY: `input` keeps the rows alive during the call; on a device their owners reuse memory in stream order. The
        // package's documentation forbids writes to them until the work is done.
        let rows = unsafe { rows_in(&from, on_device, kind) }?;
        // SAFETY: `column_out` checked that `out` has `count` float32 without gaps, is writable and lies apart from the rows;
        // no other code uses it until the work is done.
        let logprobs = unsafe { words_out::<f32>(&to, on_device) }?;
        // SAFETY: the ranks were allocated above with one word per row.
        let ranks = to_ranks.as_ref().map(|matrix| unsafe { words_out::<u32>(matrix, on_device) });
        // SAFETY: the statuses were allocated above with one word per row, of which any is a status.
        let statuses = to_statuses.as_ref().map(|matrix| unsafe { words_out::<Status>(matrix, on_device) });
        operators.selected_logprobs(
            rows,
            tokens.per_row(),
            logprobs,
            ranks.transpose()?,
            statuses.transpose()?,
        )
    })?;
    answer(out, [ranks, statuses])
}
