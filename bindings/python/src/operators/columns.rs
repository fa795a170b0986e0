//! Parameters of rows on a device: one number for all rows, a list that is copied to the device, or a column
//! that lies there.
//!
//! The host never reads a column on the device: its values may not be computed yet.

use gumball_engine::{DeviceIntSlice, DeviceSlice, IntType};
use gumball_engine::{DevicePerRow, Result};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList, PyTuple};

use super::device::{Input, owner_stream};
use super::host::wrong_dtype;
use crate::arrays::{self, Array, Dtype, Location};
use crate::errors::passes;
use crate::lists::{self, Whole};
use crate::modules;
use crate::params;

/// A value for all rows, or one for each.
#[derive(Debug)]
pub enum Value<T> {
    All(T),
    /// A list to be copied to the device.
    List(Vec<T>),
    /// A column on the device, with adjacent elements.
    DeviceSlice {
        address: u64,
        rows: usize,
        dtype: Dtype,
    },
}

/// A parameter that was read, together with what keeps its memory alive.
#[derive(Debug)]
pub struct Given<'py, T> {
    pub value: Value<T>,
    /// The stream on which the owner of a column writes it, if the owner names one.
    pub stream: Option<usize>,
    _held: Option<(Bound<'py, PyAny>, Array<'py>)>,
}

impl<T> Given<'_, T> {
    fn of(value: Value<T>) -> Self {
        Self { value, stream: None, _held: None }
    }
}

impl Value<f32> {
    /// Returns the value as the engine takes it.
    ///
    /// # Safety
    /// The `rows` f32 at the column's address lie on the device. Nobody frees or writes them until the
    /// enqueued work is done.
    pub unsafe fn numbers(&self) -> Result<DevicePerRow<'_, f32>> {
        Ok(match self {
            Value::All(value) => DevicePerRow::All(*value),
            Value::List(values) => DevicePerRow::Host(values),
            Value::DeviceSlice { address, rows, .. } => {
                // SAFETY: the caller ensures that `rows` f32 at `address` lie on the device, unchanged until
                // the work is done.
                DevicePerRow::Device(unsafe { DeviceSlice::new(*address, *rows) }?)
            }
        })
    }
}

impl<T: Copy> Value<T> {
    /// Returns the value as the engine takes it.
    ///
    /// # Safety
    /// The `rows` integers at the column's address lie on the device. Nobody frees or writes them until the
    /// enqueued work is done.
    pub unsafe fn integers(&self) -> Result<DevicePerRow<'_, T, DeviceIntSlice<'_>>> {
        Ok(match self {
            Value::All(value) => DevicePerRow::All(*value),
            Value::List(values) => DevicePerRow::Host(values),
            Value::DeviceSlice { address, rows, dtype } => {
                // SAFETY: the caller ensures that `rows` integers at `address` lie on the device, unchanged
                // until the work is done.
                DevicePerRow::Device(unsafe { DeviceIntSlice::new(*address, int_type(*dtype), *rows) }?)
            }
        })
    }
}

/// Returns the integer type; the caller has checked that `dtype` is one.
pub fn int_type(dtype: Dtype) -> IntType {
    match dtype {
        Dtype::I32 => IntType::I32,
        Dtype::U32 => IntType::U32,
        Dtype::U64 => IntType::U64,
        _ => IntType::I64,
    }
}

/// The types of seed columns: 64 bits.
const WIDE: &[Dtype] = &[Dtype::I64, Dtype::U64];
const WHOLE: &[Dtype] = &[Dtype::I64, Dtype::I32, Dtype::U32, Dtype::U64];
const SIGNED: &[Dtype] = &[Dtype::I64, Dtype::I32];

impl<'py> Given<'py, f32> {
    /// Reads a number, a list of numbers, or a column of float32. `spread` expands an array of one number to
    /// a column.
    pub fn numbers(
        input: &Input<'_, 'py>,
        object: &Bound<'py, PyAny>,
        name: &str,
        spread: bool,
    ) -> PyResult<Self> {
        let number = |object: &Bound<'_, PyAny>| lists::number(object, name);
        if object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>() {
            return Ok(Self::of(Value::All(number(object)?)));
        }
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            let values = lists::iterated(object, name, "a list", |item| number(&item))?;
            return Ok(Self::of(Value::List(values)));
        }
        match arrays::read(object, name, Some(input.key.stream)) {
            Ok(array) if array.ndim > 0 || array.location != Location::Host => {
                Self::column(input, object, array, name, &[Dtype::F32], spread)
            }
            Err(error) if passes(object.py(), &error) => Err(error),
            _ => Ok(Self::of(Value::All(number(object)?))),
        }
    }
}

impl<'py> Given<'py, i64> {
    /// Reads an integer, a list of integers, or a column of int32 or int64.
    pub fn signed(input: &Input<'_, 'py>, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        Self::extract_int(input, object, name, SIGNED, |one| lists::extract_int(one, name))
    }
}

impl<'py> Given<'py, u64> {
    /// Reads a seed, a list of seeds, or a column of int64 or uint64, whose bits are the seeds.
    pub fn seeds(input: &Input<'_, 'py>, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::extract_int(input, object, "seed", WIDE, params::seed)
    }
}

impl<'py, T: Whole> Given<'py, T> {
    /// Reads an integer, a list of integers, or a column of any integer type, whose low bits count.
    pub fn unsigned(input: &Input<'_, 'py>, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        Self::extract_int(input, object, name, WHOLE, |one| lists::extract_int(one, name))
    }
}

impl<'py, T> Given<'py, T> {
    fn extract_int(
        input: &Input<'_, 'py>,
        object: &Bound<'py, PyAny>,
        name: &str,
        dtypes: &[Dtype],
        one: impl Fn(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> PyResult<Self> {
        if object.is_instance_of::<PyInt>() {
            return Ok(Self::of(Value::All(one(object)?)));
        }
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            let values = lists::iterated(object, name, "a list", |item| one(&item))?;
            return Ok(Self::of(Value::List(values)));
        }
        match arrays::read(object, name, Some(input.key.stream)) {
            Ok(array) if array.ndim > 0 || array.location != Location::Host => {
                Self::column(input, object, array, name, dtypes, false)
            }
            Err(error) if passes(object.py(), &error) => Err(error),
            _ => Ok(Self::of(Value::All(one(object)?))),
        }
    }

    /// Reads adjacent integers, of one dimension or two.
    pub fn integers(input: &Input<'_, 'py>, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        let array = arrays::read(object, name, Some(input.key.stream))?.flat();
        if array.ndim == 1 && array.strides[0] == 1 {
            return Self::column(input, object, array, name, SIGNED, false);
        }
        let object = object.call_method1(intern!(object.py(), "reshape"), (-1,))?;
        let array = arrays::read(&object, name, Some(input.key.stream))?;
        Self::column(input, &object, array, name, SIGNED, false)
    }

    /// Reads a column: [rows], [rows, 1], [1, rows], or one number. A torch tensor of another type, or with
    /// other strides, is converted by torch.
    fn column(
        input: &Input<'_, 'py>,
        object: &Bound<'py, PyAny>,
        array: Array<'py>,
        name: &str,
        dtypes: &[Dtype],
        spread: bool,
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
        let spread = spread && array.ndim == 0;
        if known && side_by_side && !spread {
            let value = Value::DeviceSlice { address: array.address as u64, rows, dtype: array.dtype };
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
        let whole = matches!(array.dtype, Dtype::I32 | Dtype::U32 | Dtype::I64 | Dtype::U64);
        if matches!(array.dtype, Dtype::Other | Dtype::Bool) || (dtypes[0] != Dtype::F32 && !whole) {
            return Err(wrong_dtype(name, array.dtype, dtypes[0].name()));
        }
        let py = object.py();
        let dtype = torch.getattr(dtypes[0].name())?;
        let flat = object.call_method1(intern!(py, "to"), (dtype,))?;
        let flat = if spread {
            flat.call_method1(intern!(py, "expand"), (input.matrix.rows,))?
        } else {
            flat.call_method1(intern!(py, "reshape"), (-1,))?
        };
        let flat = flat.call_method0(intern!(py, "contiguous"))?;
        let array = input.beside(&flat, name)?;
        let value =
            Value::DeviceSlice { address: array.address as u64, rows: array.shape[0], dtype: array.dtype };
        Ok(Self { value, stream: owner_stream(&array), _held: Some((flat, array)) })
    }
}
