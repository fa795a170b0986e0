//! Parameters of rows on a device: a number for all, a list to be copied there, or a column that lies there already.
//!
//! What lies there is never looked at: it may not be known yet.

use gumball_engine::cuda::Column;
use gumball_engine::{DeviceEach, Result};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList, PyTuple};

use super::device::{Input, owner_stream};
use super::host::wrong_dtype;
use crate::arrays::{self, Array, Dtype, Location};
use crate::errors::wrong_type;
use crate::modules;

/// A value for all rows, or one for each.
#[derive(Debug)]
pub enum Value<T> {
    All(T),
    /// To be copied to the device.
    List(Vec<T>),
    /// Side by side on the device.
    Column {
        address: u64,
        rows: usize,
    },
}

/// A parameter as it was read, with what keeps its memory alive.
#[derive(Debug)]
pub struct Given<'py, T> {
    pub value: Value<T>,
    /// The stream on which the owner of a column works, if it says so.
    pub stream: Option<usize>,
    _held: Option<(Bound<'py, PyAny>, Array<'py>)>,
}

impl<T> Given<'_, T> {
    fn of(value: Value<T>) -> Self {
        Self { value, stream: None, _held: None }
    }
}

impl Value<f32> {
    /// Returns what the engine takes.
    ///
    /// # Safety
    /// As for [`Column::new`].
    pub unsafe fn numbers(&self) -> Result<DeviceEach<'_, f32>> {
        Ok(match self {
            Value::All(value) => DeviceEach::All(*value),
            Value::List(values) => DeviceEach::Rows(values),
            // SAFETY: as the caller vouches.
            Value::Column { address, rows } => DeviceEach::Column(unsafe { Column::new(*address, *rows) }?),
        })
    }
}

impl<'py> Given<'py, f32> {
    /// Reads a number, a list of them, or a column of float32.
    pub fn numbers(input: &Input<'_, 'py>, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        let number = |object: &Bound<'_, PyAny>| {
            let value = object.extract::<f64>().map_err(|_| wrong_type(name, "a number", object))?;
            Ok::<_, PyErr>(value as f32)
        };
        if object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>() {
            return Ok(Self::of(Value::All(number(object)?)));
        }
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            let values = object.try_iter()?.map(|item| number(&item?));
            return Ok(Self::of(Value::List(values.collect::<PyResult<_>>()?)));
        }
        match arrays::read(object, name, Some(input.site.stream)) {
            Ok(array) if array.ndim > 0 || array.location != Location::Host => {
                Self::column(input, object, array, name, &[Dtype::F32])
            }
            _ => Ok(Self::of(Value::All(number(object)?))),
        }
    }
}

impl<'py, T> Given<'py, T> {
    /// Reads a column: [rows], [rows, 1], or of one number. A tensor of torch is converted where it is of another type than
    /// those, or not side by side.
    fn column(
        input: &Input<'_, 'py>,
        object: &Bound<'py, PyAny>,
        array: Array<'py>,
        name: &str,
        dtypes: &[Dtype],
    ) -> PyResult<Self> {
        input.check_beside(&array, name)?;
        let (rows, stride) = match (array.ndim, array.shape) {
            (0, _) => (1, 1),
            (1, [rows, _]) => (rows, array.strides[0]),
            (2, [rows, 1]) => (rows, array.strides[0]),
            (2, [1, rows]) => (rows, array.strides[1]),
            (ndim, _) => {
                let text =
                    format!("{name} has {ndim} dimensions, but must have 1, or 2 with one number a row");
                return Err(PyValueError::new_err(text));
            }
        };
        let (known, side_by_side) = (dtypes.contains(&array.dtype), rows < 2 || stride == 1);
        if known && side_by_side && array.ndim > 0 {
            let value = Value::Column { address: array.address as u64, rows };
            return Ok(Self { value, stream: owner_stream(&array), _held: Some((object.clone(), array)) });
        }
        let Some(torch) = modules::torch_of(object)? else {
            if known {
                let text = format!(
                    "{name} has numbers {stride} apart, but must have them side by side, in 1 dimension"
                );
                return Err(PyValueError::new_err(text));
            }
            return Err(wrong_dtype(name, array.dtype, dtypes[0].name()));
        };
        if matches!(array.dtype, Dtype::Other | Dtype::Bool) {
            return Err(wrong_dtype(name, array.dtype, dtypes[0].name()));
        }
        let py = object.py();
        let dtype = torch.getattr(dtypes[0].name())?;
        let flat = object.call_method1(intern!(py, "to"), (dtype,))?;
        let flat = if array.ndim == 0 {
            flat.call_method1(intern!(py, "expand"), (input.matrix.rows,))?
        } else {
            flat.call_method1(intern!(py, "reshape"), (-1,))?
        };
        let flat = flat.call_method0(intern!(py, "contiguous"))?;
        let array = input.beside(&flat, name)?;
        let value = Value::Column { address: array.address as u64, rows: array.shape[0] };
        Ok(Self { value, stream: owner_stream(&array), _held: Some((flat, array)) })
    }
}
