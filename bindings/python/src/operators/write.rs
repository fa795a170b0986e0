//! Operators that write rows: softmax, probabilities, masked rows.

use gumball_engine::{Kind, Operators, PerRow, PerRowMut, Result, RowParams, RowsInOut, Status};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::columns::Value;
use super::input::{Input, answer, rows_in_out, words_out};
use super::params::Filters;
use super::run::run;
use crate::arguments::argument;
use crate::arrays::Dtype;
use crate::values;

/// Where a call's results go.
struct Written<'a, 'py> {
    /// Rows of their own, the rows themselves, or `None` for new rows.
    out: Option<&'a Bound<'py, PyAny>>,
    /// The type of new rows; `None`: the type of the rows that are read.
    dtype: Option<Dtype>,
    return_statuses: bool,
}

impl<'py> Written<'_, 'py> {
    /// Writes rows by an operator; returns out, or (out, statuses).
    fn by(
        self,
        mut input: Input<'_, 'py>,
        kind: Kind,
        filters: &Filters,
        operator: impl FnOnce(
            &Operators,
            RowsInOut<'_>,
            &RowParams<'_>,
            Option<PerRowMut<'_, Status>>,
        ) -> Result<()>
        + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let out = match self.out {
            Some(out) => out.clone(),
            None => input.like(self.dtype.unwrap_or(input.matrix.dtype))?,
        };
        let to = input.rows_out(&out)?;
        let (statuses, to_statuses) = input.words(self.return_statuses, &[input.matrix.rows])?;
        let (from, on_device) = (input.matrix, input.is_on_device());
        run(&input, |operators| {
            // SAFETY: `input` keeps the arrays alive during the call; on a device their owners reuse memory
            // in stream order. `rows_out` checked that the written rows are writable and the read rows or
            // apart from them. The package's documentation forbids other use of them until the work is done.
            let rows = unsafe { rows_in_out(&from, to.as_ref(), on_device, kind) }?;
            // SAFETY: the statuses were allocated above with one word per row, of which any is a status.
            let statuses = unsafe { words_out::<Status>(to_statuses.as_ref(), on_device) }?;
            operator(operators, rows, &filters.row_params(), statuses)
        })?;
        answer(out, [statuses])
    }
}

/// Returns the softmax of each row of logits at its temperature, fused; float32 [rows, vocab] without out.
///
/// temperature: in 0..=2^100, a number, [rows] or [rows, 1]; at 0 the first of the largest logits gets 1, the
/// others
/// 0. out: of the logits' shape and of any of the three types, on a GPU float32 or the logits' own; each
///    number is rounded to it once. The maximum is subtracted before the division by the temperature, so
///    logits of +-1e6 at 0.01 stay finite. Equal logits get equal probabilities, bit for bit. NaN counts as
///    -inf and +inf as the largest float32. A row without a logit above -inf becomes all 0. On a GPU a call
///    launches one or two kernels.
#[pyfunction]
#[pyo3(
    signature = (logits, temperature=None, out=None, *, return_statuses=false, stream=None),
    text_signature = "(logits, temperature=1.0, out=None, *, return_statuses=False, stream=None)"
)]
pub fn softmax<'py>(
    logits: &Bound<'py, PyAny>,
    temperature: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(logits, "logits", stream)?;
    let temperature = temperature.map(|it| Value::read(&mut input, it, "temperature")).transpose()?;
    let filters = Filters::of_temperature(temperature);
    let to = Written { out, dtype: Some(Dtype::F32), return_statuses };
    to.by(input, Kind::Logits, &filters, |operators, rows, params, statuses| {
        operators.softmax(rows, params.temperature.unwrap_or(PerRow::All(1.0)), statuses)
    })
}

/// Returns the distribution that each row's token is drawn from.
///
/// filters: temperature, top_k, top_p and min_p, a number or one for each row; order, the order of the
/// filters, as in SamplingParams, of which "joint" lets all see the unfiltered row; params, SamplingParams
/// with all others. kind: "logits", or "probabilities" for rows that hold those, need not sum to 1 and allow
/// only temperatures 0 and 1. Without out, probabilities of logits are float32; rows of probabilities keep
/// their type. Of tokens that tie at a cut the lower ids stay. A row without a token becomes all 0.
#[pyfunction]
#[pyo3(signature = (rows, *, kind="logits", out=None, return_statuses=false, stream=None, **filters))]
pub fn probabilities<'py>(
    rows: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = argument)] kind: &str,
    out: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
    filters: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, "rows", stream)?;
    let kind = values::kind(kind)?;
    let filters = Filters::read(&mut input, "probabilities", filters)?;
    let to = Written { out, dtype: (kind == Kind::Logits).then_some(Dtype::F32), return_statuses };
    to.by(input, kind, &filters, |operators, rows, params, statuses| {
        operators.probabilities(rows, params, statuses)
    })
}

/// Returns each row of logits with -inf for tokens that its filters and bans do not keep, in the logits' own
/// type.
///
/// filters: as of probabilities. out=logits masks in place. Filters weigh tokens at the temperature, but the
/// kept logits are not divided by it. -0.0 becomes 0.0. +inf becomes the largest finite float32, which
/// bfloat16 and float16 round to +inf again. A row of only -inf stays as it is.
#[pyfunction]
#[pyo3(signature = (logits, *, out=None, return_statuses=false, stream=None, **filters))]
pub fn mask_logits<'py>(
    logits: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
    filters: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(logits, "logits", stream)?;
    let filters = Filters::read(&mut input, "mask_logits", filters)?;
    let to = Written { out, dtype: None, return_statuses };
    to.by(input, Kind::Logits, &filters, |operators, rows, params, statuses| {
        operators.mask_logits(rows, params, statuses)
    })
}
