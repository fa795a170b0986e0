//! Edited logits after known tokens, for `gumball.torch.edited`.

use gumball_engine::Scored;
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays::Dtype;
use crate::errors::to_py_err;
use crate::lists::{extract_int, integers};
use crate::{arrays, modules, params};

/// Edited logits and their derivatives by the raw ones, both flat.
type Edited<'py> = (Bound<'py, PyArray1<f32>>, Bound<'py, PyArray1<f32>>);

/// Edits logits by the penalties, DRY and biases of parameters (L6): values [rows, columns] float32 on the
/// host are the logits of the ids columns, of which row i comes after ids[:start + i]. Returns the edited
/// logits, and their derivatives by the raw ones.
///
/// Raises ValueError for parameters outside their ranges, and if rows, columns and ids do not match.
#[pyfunction]
pub fn edit_columns<'py>(
    py: Python<'py>,
    params: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    prompt_len: &Bound<'py, PyAny>,
    start: &Bound<'py, PyAny>,
    columns: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
) -> PyResult<Edited<'py>> {
    modules::load_numpy(py)?;
    let (params, ids, columns) =
        (params::read(params)?, integers(ids, "ids")?, integers(columns, "columns")?);
    let (prompt_len, start) = (extract_int(prompt_len, "prompt_len")?, extract_int(start, "start")?);
    let array = arrays::read(values, "values", None)?;
    let matrix = array.matrix("values")?;
    matrix.check_host("values")?;
    if matrix.dtype != Dtype::F32 {
        return Err(matrix.dtype.wrong("values", "float32"));
    }
    // SAFETY: the elements are floats on the host, as checked. `array` keeps them alive, and the package's
    // documentation forbids writes to an argument during a call.
    let mut values = unsafe { matrix.elements::<f32>() }.to_vec();
    let mut slopes = vec![0.0; values.len()];
    py.detach(|| {
        let known = Scored { params: &params, ids: &ids, prompt_len, start, chunk_rows: None };
        gumball_engine::edit_columns(&known, &columns, &mut values, &mut slopes)
    })
    .map_err(to_py_err)?;
    Ok((PyArray1::from_vec(py, values), PyArray1::from_vec(py, slopes)))
}
