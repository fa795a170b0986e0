//! Operators over rows that lie on a GPU: launches on the stream that the host program works on, and nothing else.
//!
//! What comes out is allocated by whose array the rows are. Nothing is waited for, and nothing copied but the values of lists.

use gumball_engine::cuda::{DeviceSlice, Dtype as DeviceDtype, RowsOut};
use gumball_engine::{DeviceOperators, Result};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use super::columns::{Given, Value};
use super::device_draws::Filters;
use super::host::{check_apart, check_writable, wrong_dtype};
use super::is_emulated;
use super::rooms::{self, Site};
use crate::arrays::{self, Array, Dtype, Location, Matrix, torch_stream};
use crate::errors::out_of_range;
use crate::modules;
use crate::options;
use crate::streams::stream_handle;

/// Rows that lie on a device, and where operators work on them.
pub struct Input<'a, 'py> {
    pub name: &'a str,
    pub object: &'a Bound<'py, PyAny>,
    pub array: Array<'py>,
    pub matrix: Matrix,
    pub site: Site,
}

impl<'a, 'py> Input<'a, 'py> {
    /// Reads rows; `None` if they do not lie on a device.
    pub fn read(
        object: &'a Bound<'py, PyAny>,
        name: &'a str,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Self>> {
        let named = stream.map(stream_handle).transpose()?;
        let array = arrays::read(object, name, named)?;
        Self::of(object, name, array, named)
    }

    /// Takes rows that were read; `None` if they do not lie on a device.
    pub fn of(
        object: &'a Bound<'py, PyAny>,
        name: &'a str,
        array: Array<'py>,
        named: Option<usize>,
    ) -> PyResult<Option<Self>> {
        let location = array.location;
        let emulated = location == Location::Host && is_emulated();
        if !emulated && !matches!(location, Location::Cuda(_)) {
            return match named {
                Some(_) => Err(PyValueError::new_err(format!(
                    "stream is for rows on a GPU, but {name} is on {location}"
                ))),
                None => Ok(None),
            };
        }
        let matrix = array.matrix(name)?;
        if !matches!(matrix.dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16) {
            return Err(wrong_dtype(name, matrix.dtype, "float32, bfloat16 or float16"));
        }
        let stream = match (named.or(owner_stream(&array)), location) {
            (Some(stream), _) => stream,
            (None, Location::Cuda(ordinal)) => match torch_stream(object.py(), ordinal) {
                Ok(stream) => stream.unwrap_or_default(),
                // What the machine lacks is told in our words.
                Err(error) => return Err(rooms::check(object.py(), location).err().unwrap_or(error)),
            },
            (None, _) => 0,
        };
        let site = Site { location, stream };
        Ok(Some(Self { name, object, array, matrix, site }))
    }

    /// Reads another array of the call, which must lie where the rows do.
    pub fn beside(&self, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Array<'py>> {
        let array = arrays::read(object, name, Some(self.site.stream))?;
        self.check_beside(&array, name)?;
        Ok(array)
    }

    /// Refuses an array that lies elsewhere than the rows.
    pub fn check_beside(&self, array: &Array<'_>, name: &str) -> PyResult<()> {
        if array.location == self.site.location {
            return Ok(());
        }
        let allowed = format!("on {}, where {} lies", self.site.location, self.name);
        Err(out_of_range(name, format!("on {}", array.location), allowed))
    }

    /// Reads rows to be written: `None` if they are those that are read.
    fn target(&self, object: &Bound<'py, PyAny>) -> PyResult<(Option<Matrix>, Array<'py>)> {
        let array = self.beside(object, "out")?;
        check_writable(&array, "out")?;
        let to = array.matrix("out")?;
        let from = &self.matrix;
        if (to.address, to.dtype, to.rows, to.width, to.stride)
            == (from.address, from.dtype, from.rows, from.width, from.stride)
        {
            return Ok((None, array));
        }
        if !matches!(to.dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16) {
            return Err(wrong_dtype("out", to.dtype, "float32, or of the rows' own type"));
        }
        check_apart(&to, from, self.name)?;
        Ok((Some(to), array))
    }

    /// Returns an array of the caller's kind with the rows' shape, of float32 or of the rows' own type.
    fn like(&self, dtype: Dtype) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        let Some(like) = empty_like(py, self.object)? else {
            let text = format!("out must be given where {} is neither torch's nor CuPy's", self.name);
            return Err(PyTypeError::new_err(text));
        };
        if dtype == self.matrix.dtype {
            return like.call1((self.object,));
        }
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "dtype"), self.namespace()?.getattr(intern!(py, "float32"))?)?;
        like.call((self.object,), Some(&keywords))
    }

    /// Returns an array of the caller's kind, of a shape and of a type by its name.
    pub fn empty(&self, shape: &[usize], dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        if let Some(torch) = modules::torch_of(self.object)? {
            // Where the rows lie, and fewer words than `torch.empty` takes.
            let keywords = PyDict::new(py);
            keywords.set_item(intern!(py, "dtype"), torch.getattr(dtype)?)?;
            let shape = (PyTuple::new(py, shape)?,);
            return self.object.getattr(intern!(py, "new_empty"))?.call(shape, Some(&keywords));
        }
        if empty_like(py, self.object)?.is_none() {
            return Err(PyTypeError::new_err(format!(
                "out must be given, and no statuses, where {} is neither torch's nor CuPy's",
                self.name
            )));
        }
        let keywords = PyDict::new(py);
        let namespace = self.namespace()?;
        keywords.set_item(intern!(py, "dtype"), namespace.getattr(dtype)?)?;
        namespace.getattr(intern!(py, "empty"))?.call((PyTuple::new(py, shape)?,), Some(&keywords))
    }

    /// Returns an array of the caller's kind, of another's shape and of a type by its name.
    pub fn empty_like(&self, like: &Bound<'py, PyAny>, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        let Some(empty) = empty_like(py, self.object)? else { return self.empty(&[], dtype) };
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "dtype"), self.namespace()?.getattr(dtype)?)?;
        empty.call((like,), Some(&keywords))
    }

    /// Returns the module of the caller's kind of arrays.
    fn namespace(&self) -> PyResult<Bound<'py, PyAny>> {
        match modules::torch_of(self.object)? {
            Some(torch) => Ok(torch),
            None => Ok(self.object.py().import("cupy")?.into_any()),
        }
    }
}

/// Returns the stream on which an array's owner works, if it says so.
pub fn owner_stream(array: &Array<'_>) -> Option<usize> {
    // The default stream goes by two names.
    array.stream.map(|stream| if stream == 1 { 0 } else { stream })
}

/// Returns the function that allocates an array like another one; `None` if nobody knows one.
fn empty_like<'py>(py: Python<'py>, object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    static TORCHS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Some(torch) = modules::torch_of(object)? {
        let found = || Ok::<_, PyErr>(torch.getattr("empty_like")?.unbind());
        return Ok(Some(TORCHS.get_or_try_init(py, found)?.bind(py).clone()));
    }
    let kind = object.get_type();
    if kind.module()? == "cupy" {
        return py.import("cupy")?.getattr("empty_like").map(Some);
    }
    Ok(None)
}

/// Does what an operator is for, on rows that are read and rows that are written.
fn written<'py>(
    input: &Input<'_, 'py>,
    out: Option<&Bound<'py, PyAny>>,
    dtype: Dtype,
    return_statuses: bool,
    others: &[Option<usize>],
    work: impl FnOnce(&mut DeviceOperators, &Matrix, Option<&Matrix>, Option<&DeviceSlice<'_>>) -> Result<()>
    + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let py = input.object.py();
    let made = if out.is_none() { Some(input.like(dtype)?) } else { None };
    let object = out.or(made.as_ref()).expect("given, or just made");
    let (to, to_array) = input.target(object)?;
    if to.is_none() {
        check_writable(&input.array, input.name)?;
    }
    let statuses = if return_statuses { Some(input.empty(&[input.matrix.rows], "int32")?) } else { None };
    let column = match &statuses {
        Some(statuses) => Some(input.beside(statuses, "statuses")?.address as u64),
        None => None,
    };
    let streams: Vec<usize> = [owner_stream(&input.array), owner_stream(&to_array)]
        .iter()
        .chain(others)
        .copied()
        .flatten()
        .collect();
    let from = input.matrix;
    rooms::at(py, input.site, &streams, |operators| {
        // SAFETY: it was just allocated with a word a row, and is freed in the order of the stream.
        let column = column.map(|address| unsafe { DeviceSlice::new(address, from.rows) }).transpose()?;
        work(operators, &from, to.as_ref(), column.as_ref())
    })?;
    match statuses {
        Some(statuses) => Ok(PyTuple::new(py, [object.clone(), statuses])?.into_any()),
        None => Ok(object.clone()),
    }
}

/// Returns rows to be written.
///
/// # Safety
/// As for [`RowsOut::new`].
unsafe fn rows_mut<'b>(matrix: &Matrix) -> Result<RowsOut<'b>> {
    let dtype = match matrix.dtype {
        Dtype::Bf16 => DeviceDtype::Bf16,
        Dtype::F16 => DeviceDtype::F16,
        _ => DeviceDtype::F32,
    };
    // SAFETY: as the caller vouches.
    unsafe { RowsOut::new(matrix.address as u64, dtype, matrix.rows, matrix.width, matrix.stride) }
}

/// Writes the softmax of rows that lie on a device; `None` if they do not.
#[pyfunction]
#[pyo3(signature = (logits, temperature, out, return_statuses, stream))]
pub fn softmax_on_device<'py>(
    logits: &Bound<'py, PyAny>,
    temperature: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(input) = Input::read(logits, "logits", stream)? else { return Ok(None) };
    let temperature = Given::numbers(&input, temperature, "temperature", true)?;
    let others = [temperature.stream];
    let each: &Value<f32> = &temperature.value;
    let work = |operators: &mut DeviceOperators,
                from: &Matrix,
                to: Option<&Matrix>,
                statuses: Option<&DeviceSlice<'_>>| {
        // SAFETY: the owners of the arrays reuse memory in the order of the stream; that nobody else writes it until the work
        // is done is the caller's part, as the package says.
        let each = unsafe { each.numbers() }?;
        match to {
            Some(to) => {
                // SAFETY: the same.
                let rows = unsafe { from.device_logits() }?;
                // SAFETY: the same, and they lie apart from the rows.
                operators.softmax(&rows, each, &unsafe { rows_mut(to) }?, statuses)
            }
            // SAFETY: the same; nobody reads them meanwhile.
            None => operators.softmax_in_place(&unsafe { rows_mut(from) }?, each, statuses),
        }
    };
    written(&input, out, Dtype::F32, return_statuses, &others, work).map(Some)
}

/// Writes "probabilities" or "masked" rows of rows that lie on a device; `None` if they do not. filters: (temperature, top_k, top_p,
/// min_p, order, params). dtype: "float32", or None for the rows' own.
#[pyfunction]
#[pyo3(signature = (what, rows, out, dtype, kind, name, filters, return_statuses, stream))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn write_on_device<'py>(
    what: &str,
    rows: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    dtype: Option<&str>,
    kind: &str,
    name: &str,
    filters: &Bound<'py, PyTuple>,
    return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(input) = Input::read(rows, name, stream)? else { return Ok(None) };
    let kind = options::kind(kind)?;
    let filters = Filters::read(&input, filters)?;
    let (others, values, masked) = (filters.streams(), filters.values(), what == "masked");
    let work = |operators: &mut DeviceOperators,
                from: &Matrix,
                to: Option<&Matrix>,
                statuses: Option<&DeviceSlice<'_>>| {
        // SAFETY: the owners of the arrays reuse memory in the order of the stream; that nobody else writes it until the work
        // is done is the caller's part, as the package says.
        let params = unsafe { values.params() }?;
        match to {
            Some(to) => {
                // SAFETY: the same.
                let rows = unsafe { from.device_logits() }?.with_kind(kind);
                // SAFETY: the same, and they lie apart from the rows.
                let out = unsafe { rows_mut(to) }?;
                if masked {
                    operators.mask_logits(&rows, &params, &out, statuses)
                } else {
                    operators.probabilities(&rows, &params, &out, statuses)
                }
            }
            None => {
                // SAFETY: the same; nobody reads them meanwhile.
                let rows = unsafe { rows_mut(from) }?.with_kind(kind);
                if masked {
                    operators.mask_logits_in_place(&rows, &params, statuses)
                } else {
                    operators.probabilities_in_place(&rows, &params, statuses)
                }
            }
        }
    };
    let dtype = if dtype.is_some() { Dtype::F32 } else { input.matrix.dtype };
    written(&input, out, dtype, return_statuses, &others, work).map(Some)
}
