//! Logprobs of selected tokens: of one token of each row.

use gumball_engine::Status;
use pyo3::prelude::*;

use super::columns::Value;
use super::input::{Input, answer, rows_in, words_out};
use super::run::run;
use super::sample::column_out;
use crate::arrays::Dtype;
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
    let (ranks, to_ranks) = input.words(return_ranks, &[count])?;
    let (statuses, to_statuses) = input.words(return_statuses, &[count])?;
    run(&input, |operators| {
        // SAFETY: `input` keeps the rows alive during the call; on a device their owners reuse memory in stream order. The
        // package's documentation forbids writes to them until the work is done.
        let rows = unsafe { rows_in(&from, on_device, kind) }?;
        // SAFETY: `column_out` checked that `out` has `count` float32 without gaps, is writable and lies apart from the rows;
        // no other code uses it until the work is done.
        let logprobs = unsafe { words_out::<f32>(Some(&to), on_device) }?.expect("it was given");
        // SAFETY: the ranks were allocated above with one word per row.
        let ranks = unsafe { words_out::<u32>(to_ranks.as_ref(), on_device) }?;
        // SAFETY: the statuses were allocated above with one word per row, of which any is a status.
        let statuses = unsafe { words_out::<Status>(to_statuses.as_ref(), on_device) }?;
        operators.selected_logprobs(rows, tokens.per_row(), logprobs, ranks, statuses)
    })?;
    answer(out, [ranks, statuses])
}
