//! The arrays of a call: the rows that it reads, and others that must lie beside them, in the same memory.

use std::sync::atomic::{AtomicBool, Ordering};

use gumball_engine::{ColumnType, DeviceRows, DeviceSlice, IntType};
use gumball_engine::{Kind, PerRowMut, Result, Rows, RowsInOut};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use super::by_stream::{self, StreamKey};
use crate::arguments::argument;
use crate::arrays::{self, Array, Dtype, FLOATS, Location, Matrix, torch_stream};
use crate::errors::{InvalidTypeError, InvalidValueError, UnavailableError, out_of_range};
use crate::modules;
use crate::streams::stream_handle;

/// An array, if it was asked for.
pub type Optional<'py> = Option<Bound<'py, PyAny>>;

/// Whether rows on the host count as rows of the emulated device, which uses the host's memory.
static EMULATED: AtomicBool = AtomicBool::new(false);

/// Makes rows on the host count as rows of the emulated device, or no longer; for tests. Raises
/// UnavailableError if the emulator is not built in.
#[pyfunction]
pub fn emulate(on: bool) -> PyResult<()> {
    if on && !cfg!(feature = "emulator") {
        return Err(UnavailableError::new_err("the emulated device is not built in"));
    }
    EMULATED.store(on, Ordering::Relaxed);
    Ok(())
}

/// Returns the number of rows that an operator would read: the first of two dimensions, or 1 for a row alone.
///
/// rows: [rows, vocab] or [vocab], as for all operators; nothing of them is read. name: what errors call
/// them. Raises as the operators do for an array that they do not take, by shape, type or place.
#[pyfunction]
#[pyo3(signature = (rows, name="rows"))]
pub fn row_count(rows: &Bound<'_, PyAny>, #[pyo3(from_py_with = argument)] name: &str) -> PyResult<usize> {
    Ok(Input::read(rows, name, None)?.matrix.rows)
}

/// The rows that a call reads, and the arrays that it holds while it runs.
pub struct Input<'a, 'py> {
    pub name: &'a str,
    pub object: &'a Bound<'py, PyAny>,
    pub matrix: Matrix,
    /// The device and the stream that the call works on; `None` on the host.
    pub key: Option<StreamKey>,
    /// The dimensions of the rows' array.
    shape: ([usize; 2], usize),
    readonly: bool,
    /// What keeps the memory of the call's arrays alive.
    held: Vec<(Bound<'py, PyAny>, Array<'py>)>,
}

impl<'a, 'py> Input<'a, 'py> {
    /// Reads rows. `stream`: the one that the caller names for rows on a GPU.
    pub fn read(
        object: &'a Bound<'py, PyAny>,
        name: &'a str,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let named = stream.map(stream_handle).transpose()?;
        let array = arrays::read(object, name, named)?;
        Self::of(object, name, array, named)
    }

    /// Takes an array that was read as rows.
    pub fn of(
        object: &'a Bound<'py, PyAny>,
        name: &'a str,
        array: Array<'py>,
        named: Option<usize>,
    ) -> PyResult<Self> {
        let input = Self::of_any(object, name, array, named)?;
        input.matrix.check_float_of(name, FLOATS)?;
        Ok(input)
    }

    /// Takes an array of any type that was read in the place of rows.
    pub fn of_any(
        object: &'a Bound<'py, PyAny>,
        name: &'a str,
        array: Array<'py>,
        named: Option<usize>,
    ) -> PyResult<Self> {
        let (location, matrix) = (array.location, array.matrix(name)?);
        let emulated = location == Location::Host && cfg!(feature = "emulator");
        let on_device = matches!(location, Location::Cuda(_)) || emulated && EMULATED.load(Ordering::Relaxed);
        if !on_device && named.is_some() {
            let text = format!("stream is for rows on a GPU, but {name} is on {location}");
            return Err(InvalidValueError::new_err(text));
        }
        if !on_device && location != Location::Host {
            return Err(out_of_range(name, format!("on {location}"), "on the host or a GPU"));
        }
        let stream = match (named, location) {
            (Some(stream), _) => stream,
            (None, Location::Cuda(ordinal)) => match torch_stream(object.py(), ordinal) {
                Ok(stream) => stream.unwrap_or_default(),
                // If the device cannot be opened, this package's error names what is missing; otherwise
                // torch's stays.
                Err(error) => return Err(by_stream::check(object.py(), location).err().unwrap_or(error)),
            },
            (None, _) => 0,
        };
        let key = on_device.then_some(StreamKey { location, stream });
        let (shape, readonly) = ((array.shape, array.ndim), array.readonly);
        let mut input = Self { name, object, matrix, key, shape, readonly, held: Vec::new() };
        input.hold(object, array);
        Ok(input)
    }

    pub fn is_on_device(&self) -> bool {
        self.key.is_some()
    }

    /// Reads another array of the call, which must lie in the same memory as the rows.
    pub fn beside(&self, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Array<'py>> {
        let array = arrays::read(object, name, self.key.map(|key| key.stream))?;
        self.check_beside(&array, name)?;
        Ok(array)
    }

    /// Returns an error if an array does not lie in the same memory as the rows.
    pub fn check_beside(&self, array: &Array<'_>, name: &str) -> PyResult<()> {
        let allowed = match self.key {
            Some(key) if array.location != key.location => {
                format!("on {}, where {} lies", key.location, self.name)
            }
            None if array.location != Location::Host => "on the host".to_owned(),
            _ => return Ok(()),
        };
        Err(out_of_range(name, format!("on {}", array.location), allowed))
    }

    /// Keeps an array's memory alive during the call.
    pub fn hold(&mut self, object: &Bound<'py, PyAny>, array: Array<'py>) {
        self.held.push((object.clone(), array));
    }

    /// Reads an array that the operator writes, as a matrix.
    pub fn written(&mut self, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Matrix> {
        let array = self.beside(object, name)?;
        let matrix = array.matrix(name)?;
        check_writable(array.readonly, name)?;
        self.hold(object, array);
        Ok(matrix)
    }

    /// Reads the rows to be written; `None` if they are the rows that are read.
    pub fn rows_out(&mut self, object: &Bound<'py, PyAny>) -> PyResult<Option<Matrix>> {
        let array = self.beside(object, "out")?;
        let (to, from) = (array.matrix("out")?, &self.matrix);
        if (to.address, to.dtype, to.rows, to.width, to.stride)
            == (from.address, from.dtype, from.rows, from.width, from.stride)
        {
            check_writable(self.readonly, self.name)?;
            return Ok(None);
        }
        check_writable(array.readonly, "out")?;
        let allowed = if self.is_on_device() { "float32, or of the rows' own type" } else { FLOATS };
        to.check_float_of("out", allowed)?;
        check_apart(&to, from, self.name)?;
        self.hold(object, array);
        Ok(Some(to))
    }

    /// Returns a new array of the caller's library with the rows' shape, of float32 or the rows' type.
    pub fn like(&self, dtype: Dtype) -> PyResult<Bound<'py, PyAny>> {
        let ([rows, width], ndim) = self.shape;
        if !self.is_on_device() {
            return self.empty(&[rows, width][..ndim], dtype.name());
        }
        let py = self.object.py();
        let Some(like) = empty_like(py, self.object)? else {
            let text = format!("out must be given where {} is neither torch's nor CuPy's", self.name);
            return Err(InvalidTypeError::new_err(text));
        };
        if dtype == self.matrix.dtype {
            return like.call1((self.object,));
        }
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "dtype"), self.namespace()?.getattr(intern!(py, "float32"))?)?;
        like.call((self.object,), Some(&keywords))
    }

    /// Returns a new array of the caller's library, for other rows on the host of numpy, with a shape and a
    /// type, by its name.
    pub fn empty(&self, shape: &[usize], dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let py = self.object.py();
        if let Some(torch) = modules::torch_of(self.object)? {
            // `new_empty` allocates on the rows' device and takes fewer keywords than `torch.empty`.
            let keywords = PyDict::new(py);
            keywords.set_item(intern!(py, "dtype"), torch.getattr(dtype)?)?;
            let shape = (PyTuple::new(py, shape)?,);
            return self.object.getattr(intern!(py, "new_empty"))?.call(shape, Some(&keywords));
        }
        if !self.is_on_device() {
            return numpy_empty(py, shape, dtype);
        }
        if empty_like(py, self.object)?.is_none() {
            return Err(InvalidTypeError::new_err(format!(
                "out must be given, and no statuses or ranks, where {} is neither torch's nor CuPy's",
                self.name
            )));
        }
        let keywords = PyDict::new(py);
        let namespace = self.namespace()?;
        keywords.set_item(intern!(py, "dtype"), namespace.getattr(dtype)?)?;
        namespace.getattr(intern!(py, "empty"))?.call((PyTuple::new(py, shape)?,), Some(&keywords))
    }

    /// Returns a new array for statuses or counts, if it is wanted: of the caller's library on a device,
    /// otherwise of numpy.
    pub fn words(&mut self, wanted: bool, shape: &[usize]) -> PyResult<(Optional<'py>, Option<Matrix>)> {
        let object = match self.key {
            _ if !wanted => return Ok((None, None)),
            Some(_) => self.empty(shape, "int32")?,
            None => numpy_empty(self.object.py(), shape, "uint32")?,
        };
        let matrix = self.written(&object, "statuses")?;
        Ok((Some(object), Some(matrix)))
    }

    /// Returns the module of the caller's array library.
    pub fn namespace(&self) -> PyResult<Bound<'py, PyAny>> {
        match modules::torch_of(self.object)? {
            Some(torch) => Ok(torch),
            None => Ok(self.object.py().import("cupy")?.into_any()),
        }
    }
}

/// Returns what an operator wrote: the array alone, or a tuple of it and of the words that were asked for.
pub fn answer<'py>(
    out: Bound<'py, PyAny>,
    words: impl IntoIterator<Item = Optional<'py>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut all = vec![out.clone()];
    all.extend(words.into_iter().flatten());
    if all.len() == 1 { Ok(out) } else { Ok(PyTuple::new(out.py(), all)?.into_any()) }
}

/// Returns a new array of numpy.
fn numpy_empty<'py>(py: Python<'py>, shape: &[usize], dtype: &str) -> PyResult<Bound<'py, PyAny>> {
    let shape = PyTuple::new(py, shape)?;
    let empty = py.import(intern!(py, "numpy"))?.getattr(intern!(py, "empty"))?;
    match dtype {
        "bfloat16" => empty.call1((shape, py.import("ml_dtypes")?.getattr(dtype)?)),
        _ => empty.call1((shape, dtype)),
    }
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

/// Returns an error if an array is not to be written.
pub fn check_writable(readonly: bool, name: &str) -> PyResult<()> {
    if readonly {
        return Err(InvalidValueError::new_err(format!(
            "{name} is read-only, but must be an array to write to"
        )));
    }
    Ok(())
}

/// Returns an error if `out` shares memory with rows that are read.
pub fn check_apart(out: &Matrix, read: &Matrix, name: &str) -> PyResult<()> {
    if out.overlaps(read) {
        let text = format!("out shares memory with {name}, but must be {name} itself or lie apart from it");
        return Err(InvalidValueError::new_err(text));
    }
    Ok(())
}

/// Returns rows to be read as the engine takes them.
///
/// # Safety
/// The matrix lies on a device if `on_device`, otherwise on the host. For `'a`, on a device until the
/// enqueued work is done, no code frees or writes its rows.
pub unsafe fn rows_in<'a>(matrix: &Matrix, on_device: bool, kind: Kind) -> Result<Rows<'a>> {
    if on_device {
        // SAFETY: the caller ensures that the rows lie on the device, unchanged until the work is done.
        return Ok(Rows::of(unsafe { matrix.device_logits() }?, kind));
    }
    // SAFETY: the caller ensures that the rows lie on the host and that no code writes them for `'a`.
    Ok(Rows::of(unsafe { matrix.logits() }?, kind))
}

/// Returns rows to be read and rows to be written as the engine takes them. `to`: `None` replaces the rows.
///
/// # Safety
/// That of [`rows_in`], and no other code uses the rows that are written, which lie apart from rows that are
/// read.
pub unsafe fn rows_in_out<'a>(
    from: &Matrix,
    to: Option<&Matrix>,
    on_device: bool,
    kind: Kind,
) -> Result<RowsInOut<'a>> {
    let written = to.unwrap_or(from);
    // SAFETY: the caller ensures that the rows lie there, apart from `to`, unchanged until the work is done.
    let from = to.map(|_| unsafe { rows_in(from, on_device, kind) }).transpose()?;
    if on_device {
        let dtype = written.device_dtype();
        let Matrix { address, rows, width, stride, .. } = *written;
        // SAFETY: the caller ensures that the rows lie on the device and are used by no other code until the
        // work is done.
        let to = unsafe { DeviceRows::new(address as u64, dtype, rows, width, stride) }?.with_kind(kind);
        return Ok(RowsInOut { from, to: to.into() });
    }
    // SAFETY: the caller ensures that the rows lie on the host and that no other code uses them.
    let to = unsafe { written.logits_mut() }?.with_kind(kind);
    Ok(RowsInOut { from, to: to.into() })
}

/// Returns words to be written, statuses, counts or numbers, as the engine takes them, if there are some.
///
/// # Safety
/// The matrix holds words of 32 bits, of which any is a `T`, without gaps, on a device if `on_device`,
/// otherwise on the host. For `'a`, on a device until the enqueued work is done, no other code uses them.
pub unsafe fn words_out<'a, T>(matrix: Option<&Matrix>, on_device: bool) -> Result<Option<PerRowMut<'a, T>>> {
    let Some(matrix) = matrix else { return Ok(None) };
    if on_device {
        let (address, count) = (matrix.address as u64, matrix.rows * matrix.width);
        let dtype = if matrix.dtype == Dtype::F32 { ColumnType::F32 } else { IntType::U32.into() };
        // SAFETY: the caller ensures that `count` words lie at `address` on the device.
        return Ok(Some(PerRowMut::Device(unsafe { DeviceSlice::new(address, dtype, count) }?)));
    }
    // SAFETY: the caller ensures that the words lie on the host, are `T`, and are used by no other code.
    Ok(Some(PerRowMut::Host(unsafe { matrix.elements_mut::<T>() })))
}

/// Runs `work` with the tokens to write on the host: the array itself, or for int64 a list that is widened
/// afterwards.
///
/// # Safety
/// The matrix holds int32 or int64 without gaps, on the host, and no other code uses them meanwhile.
pub unsafe fn write_tokens(out: &Matrix, work: impl FnOnce(&mut [i32]) -> Result<()>) -> Result<()> {
    if out.dtype == Dtype::I32 {
        // SAFETY: the elements are int32, and the caller ensures that no other code uses them.
        return work(unsafe { out.elements_mut::<i32>() });
    }
    let mut tokens = vec![0; out.rows * out.width];
    work(&mut tokens)?;
    // SAFETY: the elements are int64, and the caller ensures that no other code uses them.
    let wide = unsafe { out.elements_mut::<i64>() };
    wide.iter_mut().zip(tokens).for_each(|(wide, token)| *wide = i64::from(token));
    Ok(())
}
