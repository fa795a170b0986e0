//! Operators over rows on a GPU: each call launches kernels on the host program's stream and does nothing
//! more.
//!
//! The library that owns the rows' array allocates the outputs. A call waits for nothing and copies only
//! lists of values.

use gumball_engine::{DeviceOperators, DeviceRows, DeviceSlice, Dtype as DeviceDtype, Result};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use super::by_stream::{self, StreamKey};
use super::columns::{Given, Value};
use super::device_draws::Filters;
use super::host::{check_apart, check_writable, wrong_dtype};
use super::is_emulated;
use crate::arrays::{self, Array, Dtype, Location, Matrix, torch_stream};
use crate::errors::out_of_range;
use crate::modules;
use crate::options;
use crate::streams::stream_handle;

/// Rows on a device, with the device and stream that operators work on.
pub struct Input<'a, 'py> {
    pub name: &'a str,
    pub object: &'a Bound<'py, PyAny>,
    pub array: Array<'py>,
    pub matrix: Matrix,
    pub key: StreamKey,
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

    /// Takes an array that was read as rows; `None` if it does not lie on a device.
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
                // If the device cannot be opened, this package's error says what is missing; otherwise
                // torch's stays.
                Err(error) => return Err(by_stream::check(object.py(), location).err().unwrap_or(error)),
            },
            (None, _) => 0,
        };
        let key = StreamKey { location, stream };
        Ok(Some(Self { name, object, array, matrix, key }))
    }

    /// Reads another array of the call, which must lie on the same device as the rows.
    pub fn beside(&self, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Array<'py>> {
        let array = arrays::read(object, name, Some(self.key.stream))?;
        self.check_beside(&array, name)?;
        Ok(array)
    }

    /// Returns an error if an array does not lie on the same device as the rows.
    pub fn check_beside(&self, array: &Array<'_>, name: &str) -> PyResult<()> {
        if array.location == self.key.location {
            return Ok(());
        }
        let allowed = format!("on {}, where {} lies", self.key.location, self.name);
        Err(out_of_range(name, format!("on {}", array.location), allowed))
    }

    /// Reads the rows to be written; `None` if they are the rows that are read.
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

    /// Returns a new array of the caller's library with the rows' shape, of float32 or the rows' type.
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

    /// Returns a new array of the caller's library with a shape and a type, by its name.
    pub fn empty(&self, shape: &[usize], dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        if let Some(torch) = modules::torch_of(self.object)? {
            // `new_empty` allocates on the rows' device and takes fewer keywords than `torch.empty`.
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

    /// Returns a new array of the caller's library with another array's shape and a type, by its name.
    pub fn empty_like(&self, like: &Bound<'py, PyAny>, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        let Some(empty) = empty_like(py, self.object)? else { return self.empty(&[], dtype) };
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "dtype"), self.namespace()?.getattr(dtype)?)?;
        empty.call((like,), Some(&keywords))
    }

    /// Returns the module of the caller's array library.
    fn namespace(&self) -> PyResult<Bound<'py, PyAny>> {
        match modules::torch_of(self.object)? {
            Some(torch) => Ok(torch),
            None => Ok(self.object.py().import("cupy")?.into_any()),
        }
    }
}

/// Returns the stream on which an array's owner writes it, if the owner names one.
pub fn owner_stream(array: &Array<'_>) -> Option<usize> {
    // The legacy default stream has two handles, 0 and 1.
    array.stream.map(|stream| if stream == 1 { 0 } else { stream })
}

/// Returns the library's function that allocates an array like another one; `None` for unknown libraries.
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

/// Runs an operator that reads rows and writes rows; allocates the output and the statuses if needed.
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
    by_stream::run(py, input.key, &streams, |operators| {
        // SAFETY: `statuses` was allocated above with one 32-bit word per row, and its owner frees it in
        // stream order.
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
/// The matrix lies on the device. Until the enqueued work is done, nobody frees its rows, or reads or writes
/// them otherwise.
unsafe fn rows_mut<'b>(matrix: &Matrix) -> Result<DeviceRows<'b>> {
    let dtype = match matrix.dtype {
        Dtype::Bf16 => DeviceDtype::Bf16,
        Dtype::F16 => DeviceDtype::F16,
        _ => DeviceDtype::F32,
    };
    // SAFETY: the caller ensures that the matrix lies on the device and is used by nobody else until the work
    // is done.
    unsafe { DeviceRows::new(matrix.address as u64, dtype, matrix.rows, matrix.width, matrix.stride) }
}

/// Writes the softmax of rows on a device; returns None if they do not lie on one.
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
        // SAFETY: `temperature` keeps its column's array alive during the call, and the owner reuses memory in
        // stream order. The package's documentation forbids other writes until the work is done.
        let each = unsafe { each.numbers() }?;
        match to {
            Some(to) => {
                // SAFETY: `input` keeps the rows' array alive; its owner reuses memory in stream order, and
                // nobody writes the rows meanwhile.
                let rows = unsafe { from.device_logits() }?;
                // SAFETY: `out` is alive, writable and apart from the rows, as `target` checked; nobody else
                // uses it until the work is done.
                operators.softmax(&rows, each, &unsafe { rows_mut(to) }?, statuses)
            }
            // SAFETY: the rows are alive and writable, as `written` checks; nobody else uses them until the
            // work is done.
            None => operators.softmax_in_place(&unsafe { rows_mut(from) }?, each, statuses),
        }
    };
    written(&input, out, Dtype::F32, return_statuses, &others, work).map(Some)
}

/// Writes "probabilities" or "masked" rows of rows on a device; returns None if they do not lie on one.
///
/// filters: (temperature, top_k, top_p, min_p, order, params). dtype: "float32", or None for the rows' own.
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
        // SAFETY: `filters` keeps the columns' arrays alive during the call, and their owners reuse memory in
        // stream order. The package's documentation forbids other writes until the work is done.
        let params = unsafe { values.params() }?;
        match to {
            Some(to) => {
                // SAFETY: `input` keeps the rows' array alive; its owner reuses memory in stream order, and
                // nobody writes the rows meanwhile.
                let rows = unsafe { from.device_logits() }?.with_kind(kind);
                // SAFETY: `out` is alive, writable and apart from the rows, as `target` checked; nobody else
                // uses it until the work is done.
                let out = unsafe { rows_mut(to) }?;
                if masked {
                    operators.mask_logits(&rows, &params, &out, statuses)
                } else {
                    operators.probabilities(&rows, &params, &out, statuses)
                }
            }
            None => {
                // SAFETY: the rows are alive and writable, as `written` checks; nobody else uses them until
                // the work is done.
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
