//! Logprobs of selected tokens: of one token of each row.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::input::{Input, rows_in};
use super::run::run;
use crate::lists::integers;
use crate::{modules, options};

/// Returns the logprob of one token of each row, or (logprobs, ranks).
///
/// tokens: ids in the host's memory, one per row. For rows on the host logprobs are an array of the rows' library, for
/// rows on a device one of numpy; ranks are always one of numpy.
#[pyfunction]
#[pyo3(signature = (rows, name, tokens, kind, return_ranks, stream))]
pub fn token_logprobs<'py>(
    rows: &Bound<'py, PyAny>,
    name: &str,
    tokens: &Bound<'py, PyAny>,
    kind: &str,
    return_ranks: bool,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = rows.py();
    let mut input = Input::read(rows, name, stream)?;
    let kind = options::kind(kind)?;
    let tokens: Vec<i32> = integers(tokens, "tokens")?;
    let (from, on_device, count) = (input.matrix, input.is_on_device(), input.matrix.rows);
    let (logprobs, ranks) = run(&input, |operators| {
        // SAFETY: `input` keeps the rows alive during the call, which waits for a device. The package's
        // documentation forbids writes to them meanwhile.
        let rows = unsafe { rows_in(&from, on_device, kind) }?;
        let (mut logprobs, mut ranks) = (vec![0.0f32; count], vec![0u32; count]);
        operators.selected_logprobs(rows, &tokens, &mut logprobs, Some(&mut ranks))?;
        Ok((logprobs, ranks))
    })?;
    modules::load_numpy(py)?;
    let logprobs = if on_device {
        PyArray1::from_vec(py, logprobs).into_any()
    } else {
        let out = input.empty(&[count], "float32")?;
        let matrix = input.written(&out, "logprobs")?;
        // SAFETY: the array was allocated above with as many float32 on the host, and nobody else has it.
        unsafe { matrix.elements_mut::<f32>() }.copy_from_slice(&logprobs);
        out
    };
    match return_ranks {
        true => Ok(PyTuple::new(py, [logprobs, PyArray1::from_vec(py, ranks).into_any()])?.into_any()),
        false => Ok(logprobs),
    }
}
