//! Operators that write rows: softmax, probabilities, masked rows.

use gumball_engine::{PerRow, Status};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::input::{Input, answer, rows_in_out, words_out};
use super::params::Filters;
use super::run::run;
use crate::arrays::Dtype;
use crate::values;

/// Writes rows by the operator "softmax", "probabilities" or "mask_logits"; returns out, or (out, statuses).
///
/// out: rows of their own, the rows themselves, or None for new rows of dtype "float32", or None for the rows'
/// own. filters: the keywords temperature, top_k, top_p, min_p, order and params.
#[pyfunction]
#[pyo3(signature = (operator, rows, name, out, dtype, kind, return_statuses, stream, **filters))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn write_rows<'py>(
    operator: &str,
    rows: &Bound<'py, PyAny>,
    name: &str,
    out: Option<&Bound<'py, PyAny>>,
    dtype: Option<&str>,
    kind: &str,
    return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
    filters: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, name, stream)?;
    let kind = values::kind(kind)?;
    let filters = Filters::read(&mut input, filters)?;
    let out = match out {
        Some(out) => out.clone(),
        None => input.like(if dtype.is_some() { Dtype::F32 } else { input.matrix.dtype })?,
    };
    let to = input.rows_out(&out)?;
    let (statuses, to_statuses) = input.words(return_statuses, &[input.matrix.rows])?;
    let (from, on_device) = (input.matrix, input.is_on_device());
    run(&input, |operators| {
        // SAFETY: `input` keeps the arrays alive during the call; on a device their owners reuse memory in
        // stream order. `rows_out` checked that the written rows are writable and the read rows or apart from
        // them. The package's documentation forbids other use of them until the work is done.
        let rows = unsafe { rows_in_out(&from, to.as_ref(), on_device, kind) }?;
        let params = filters.row_params();
        // SAFETY: the statuses were allocated above with one word per row, of which any is a status.
        let statuses = unsafe { words_out::<Status>(to_statuses.as_ref(), on_device) }?;
        match operator {
            "softmax" => operators.softmax(rows, params.temperature.unwrap_or(PerRow::All(1.0)), statuses),
            "mask_logits" => operators.mask_logits(rows, &params, statuses),
            _ => operators.probabilities(rows, &params, statuses),
        }
    })?;
    answer(out, [statuses])
}
