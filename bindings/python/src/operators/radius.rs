//! Radii: how far all logits of each row may move without another token being drawn.

use gumball_engine::Kind;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::draws::column_out;
use super::input::{Input, rows_in, words_out};
use super::params::{DrawKeys, Filters, KeyArguments};
use super::run::run;
use crate::arrays::Dtype;

/// Returns how far all logits of each row may move, each by its own amount up or down, while sample draws the
/// same token by these filters, seeds, positions and draw indices: out, or a new array [rows] float32.
///
/// It is the radius that a Pool reports with LogprobsParams(mode=["raw", "radius"]): -inf of a row without a
/// token, +inf if no other token can be drawn. The rows are drawn from again; call it for those of whom you
/// need it. filters, seed, position, draw: as of sample.
///
/// Raises ValueError for filters of which no radius is known, as typical-p, or p-less after another filter; a
/// filter that varies from row to row counts as switched on.
#[pyfunction]
#[pyo3(
    signature = (rows, *, seed, position=None, draw=None, out=None, stream=None, **filters),
    text_signature = "(rows, *, seed, position=None, draw=None, out=None, stream=None, **filters)"
)]
pub fn radii<'py>(
    rows: &Bound<'py, PyAny>,
    seed: &Bound<'py, PyAny>,
    position: Option<&Bound<'py, PyAny>>,
    draw: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    stream: Option<&Bound<'py, PyAny>>,
    filters: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, "rows", stream)?;
    let filters = Filters::read(&mut input, "radii", filters)?;
    let keys = KeyArguments { seed: Some(seed), position, draw, offsets: false, zero_for_none: false };
    let keys = DrawKeys::read(&mut input, &keys)?;
    let (from, on_device, count) = (input.matrix, input.is_on_device(), input.matrix.rows);
    let out = match out {
        Some(out) => out.clone(),
        None => input.empty(&[count], "float32")?,
    };
    let to = column_out(&mut input, &out, count, &[Dtype::F32], "float32")?;
    run(&input, |operators| {
        // SAFETY: `input` keeps the rows alive during the call; on a device their owners reuse memory in
        // stream order. The package's documentation forbids writes to them until the work is done.
        let rows = unsafe { rows_in(&from, on_device, Kind::Logits) }?;
        // SAFETY: `column_out` checked that `out` has `count` float32 without gaps, is writable and lies
        // apart from the rows; no other code uses it until the work is done.
        let radii = unsafe { words_out::<f32>(Some(&to), on_device) }?.expect("it was given");
        operators.radii(rows, &filters.row_params(), &keys.draws(), radii)
    })?;
    Ok(out)
}
