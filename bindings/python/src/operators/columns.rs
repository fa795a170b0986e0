//! Parameters that may differ from row to row: one value for all rows, a list, or a column on a device.
//!
//! The host never reads a column on the device: its values may not be computed yet.

use gumball_engine::{ColumnType, DeviceSlice, IntType, PerRow};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList, PyTuple};

use super::input::Input;
use crate::arrays::{self, Array, Dtype, Location};
use crate::errors::{InvalidValueError, passes, to_py_err};
use crate::lists;
use crate::modules;
use crate::params;

/// A value for all rows, or one for each.
#[derive(Debug)]
pub enum Value<T> {
    All(T),
    /// A list; operators of a device copy it there.
    List(Vec<T>),
    /// A column on the device. The call's [`Input`] keeps its memory alive.
    Device(DeviceSlice<'static>),
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

/// Numbers that a parameter consists of.
pub trait Number: Copy {
    /// The types of a column on a device, of which torch converts others to the first.
    const TYPES: &'static [Dtype];

    /// Reads a number.
    fn one(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self>;

    /// Reads an array on the host.
    fn all(array: &Array<'_>, py: Python<'_>, name: &str) -> PyResult<Vec<Self>>;
}

impl Number for f32 {
    const TYPES: &'static [Dtype] = &[Dtype::F32];

    fn one(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        lists::number(object, name)
    }

    fn all(array: &Array<'_>, py: Python<'_>, name: &str) -> PyResult<Vec<Self>> {
        lists::numbers(array, py, name)
    }
}

/// Seeds and offsets. Elements of an array are taken as bits, so an int64 array can hold any seed.
impl Number for u64 {
    const TYPES: &'static [Dtype] = &[Dtype::I64, Dtype::U64];

    fn one(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        params::word(object, name)
    }

    fn all(array: &Array<'_>, py: Python<'_>, name: &str) -> PyResult<Vec<Self>> {
        lists::words(array, py, name)
    }
}

macro_rules! whole {
    ($($type:ident: $dtypes:expr),*) => {
        $(impl Number for $type {
            const TYPES: &'static [Dtype] = &$dtypes;

            fn one(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
                lists::extract_int(object, name)
            }

            fn all(array: &Array<'_>, py: Python<'_>, name: &str) -> PyResult<Vec<Self>> {
                lists::elements(array, py, name, |value| lists::cast(value, name))
            }
        })*
    };
}

// Of a column of words the low bits count.
whole!(
    u32: [Dtype::I64, Dtype::I32, Dtype::U32, Dtype::U64],
    i64: [Dtype::I64, Dtype::I32],
    i32: [Dtype::I64, Dtype::I32]
);

impl<T: Copy> Value<T> {
    /// Returns the value as the engine takes it.
    pub fn per_row(&self) -> PerRow<'_, T> {
        match self {
            Value::All(value) => PerRow::All(*value),
            Value::List(values) => PerRow::Host(values),
            Value::Device(column) => PerRow::Device(*column),
        }
    }

    /// Takes an array of adjacent numbers, of f32 or integers, on a device; `input` keeps its memory alive.
    fn device<'py>(
        input: &mut Input<'_, 'py>,
        object: &Bound<'py, PyAny>,
        array: Array<'py>,
        rows: usize,
    ) -> PyResult<Self> {
        let dtype = match array.dtype {
            Dtype::F32 => ColumnType::F32,
            other => ColumnType::Int(int_type(other)),
        };
        // SAFETY: the array holds `rows` numbers of this type. `input` keeps it alive during the call; on a
        // device its owner reuses memory in stream order. The package's documentation forbids other writes
        // until the work is done.
        let column = unsafe { DeviceSlice::new(array.address as u64, dtype, rows) }.map_err(to_py_err)?;
        input.hold(object, array);
        Ok(Value::Device(column))
    }
}

impl Value<u32> {
    /// Reads the indices of rows: a list or an array of integers; on a device also one for all outputs.
    pub fn indices<'py>(input: &mut Input<'_, 'py>, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        match input.is_on_device() {
            true => Self::read(input, object, "indices"),
            false => lists::integers(object, "indices").map(Value::List),
        }
    }
}

impl Value<i32> {
    /// Reads the ids of tokens: one, or a list or an array of them; for rows on a device also a column there
    /// of int32 or int64.
    pub fn tokens<'py>(input: &mut Input<'_, 'py>, object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let name = "tokens";
        let is_one = object.is_instance_of::<PyInt>();
        let is_list = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
        if let Some(key) = input.key
            && !is_one
            && !is_list
            && arrays::read(object, name, Some(key.stream)).is_ok_and(|array| array.location == key.location)
        {
            return Self::read(input, object, name);
        }
        if is_one {
            lists::extract_int(object, name).map(Value::All)
        } else {
            lists::integers(object, name).map(Value::List)
        }
    }

    /// Reads integers of two dimensions, of a shape.
    pub fn flat<'py>(
        input: &mut Input<'_, 'py>,
        object: &Bound<'py, PyAny>,
        name: &str,
        shape: [usize; 2],
    ) -> PyResult<Self> {
        let array = input.beside(object, name)?;
        array.check_shape(name, &[&shape])?;
        let (mut object, mut array) = (object.clone(), array.flat());
        if array.ndim != 1 || array.strides[0] != 1 {
            object = object.call_method1(intern!(object.py(), "reshape"), (-1,))?;
            array = input.beside(&object, name)?;
        }
        if input.is_on_device() {
            return Self::column(input, &object, array, name);
        }
        i32::all(&array, object.py(), name).map(Value::List)
    }
}

impl<T: Number> Value<T> {
    /// Reads a parameter: a number, or a list or an array of them; on a device a column there.
    pub fn read<'py>(input: &mut Input<'_, 'py>, object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        if object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>() {
            return T::one(object, name).map(Value::All);
        }
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            return lists::iterated(object, name, "a list", |item| T::one(&item, name)).map(Value::List);
        }
        match arrays::read(object, name, input.key.map(|key| key.stream)) {
            Ok(array) if array.ndim > 0 || array.location != Location::Host => match input.key {
                Some(_) => Self::column(input, object, array, name),
                None => T::all(&array.column(), object.py(), name).map(Value::List),
            },
            Err(error) if passes(object.py(), &error) => Err(error),
            _ => T::one(object, name).map(Value::All),
        }
    }

    /// Takes a column on a device: [rows], [rows, 1], [1, rows], or one number. A torch tensor of another
    /// type, or with other strides, is converted by torch.
    fn column<'py>(
        input: &mut Input<'_, 'py>,
        object: &Bound<'py, PyAny>,
        array: Array<'py>,
        name: &str,
    ) -> PyResult<Self> {
        let wanted = T::TYPES[0];
        input.check_beside(&array, name)?;
        let array = array.column();
        let (rows, stride) = match array.ndim {
            0 => (1, 1),
            1 => (array.shape[0], array.strides[0]),
            ndim => {
                let text =
                    format!("{name} has {ndim} dimensions, but must have 1, or 2 with one number a row");
                return Err(InvalidValueError::new_err(text));
            }
        };
        let known = T::TYPES.contains(&array.dtype);
        if known && (rows < 2 || stride == 1) {
            return Self::device(input, object, array, rows);
        }
        let Some(torch) = modules::torch_of(object)? else {
            if known {
                let text = format!(
                    "{name} has numbers {stride} apart, but must have them side by side, in 1 dimension"
                );
                return Err(InvalidValueError::new_err(text));
            }
            return Err(array.dtype.wrong(name, wanted.name()));
        };
        let whole = array.dtype.is_integer();
        if matches!(array.dtype, Dtype::Other | Dtype::Bool) || (wanted != Dtype::F32 && !whole) {
            return Err(array.dtype.wrong(name, wanted.name()));
        }
        let py = object.py();
        let dtype = torch.getattr(wanted.name())?;
        let flat = object.call_method1(intern!(py, "to"), (dtype,))?;
        let flat = flat.call_method1(intern!(py, "reshape"), (-1,))?;
        let flat = flat.call_method0(intern!(py, "contiguous"))?;
        let array = input.beside(&flat, name)?;
        let rows = array.shape[0];
        Self::device(input, &flat, array, rows)
    }
}
