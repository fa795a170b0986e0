//! numpy's arrays, read from their C structure: a few loads instead of a dictionary.
//!
//! This does not import numpy. If the program has not imported it either, no object is a numpy array.

use std::sync::atomic::{AtomicI32, Ordering};

use ::numpy::{
    PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods,
    npyffi::{NPY_ARRAY_WRITEABLE, NPY_TYPES},
};
use pyo3::prelude::*;

use super::{Array, Dtype, Location};
use crate::errors::{InvalidTypeError, InvalidValueError};
use crate::modules;

/// numpy's type number of `ml_dtypes.bfloat16`, once an array of this type was seen; -1 before.
static BF16: AtomicI32 = AtomicI32::new(-1);

/// Reads a numpy array; `None` for other objects.
pub fn read<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Array<'py>>> {
    if !modules::numpy_is_loaded(object.py()) {
        return Ok(None);
    }
    let Ok(array) = object.cast::<PyUntypedArray>() else { return Ok(None) };
    if modules::is_masked(object)? {
        return Err(InvalidTypeError::new_err(format!("{name} has masked elements; fill them first")));
    }
    let dtype = dtype(&array.dtype(), name)?;
    let ndim = array.ndim();
    let (mut shape, mut strides) = ([0; 2], [0; 2]);
    if ndim <= 2 {
        let bytes = array.dtype().itemsize() as isize;
        for (axis, stride) in array.strides().iter().enumerate() {
            if stride % bytes.max(1) != 0 {
                let text = format!(
                    "{name} has a stride of {stride} bytes, no multiple of an element's {bytes}; copy it first"
                );
                return Err(InvalidValueError::new_err(text));
            }
            strides[axis] = stride / bytes.max(1);
        }
        shape[..ndim].copy_from_slice(array.shape());
    }
    // SAFETY: `array` is a numpy array, as the cast checked, so the pointer is to its live structure.
    let address = unsafe { (*array.as_array_ptr()).fields.data } as usize;
    // SAFETY: `array` is a numpy array, as the cast checked, so the pointer is to its live structure.
    let readonly = unsafe { (*array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE == 0;
    let (location, stream, loan) = (Location::Host, None, None);
    let outer = None;
    Ok(Some(Array { address, location, dtype, ndim, shape, strides, outer, stream, readonly, loan }))
}

fn dtype(descr: &Bound<'_, PyArrayDescr>, name: &str) -> PyResult<Dtype> {
    const SIGNED_LONG: i32 = NPY_TYPES::NPY_LONG as i32;
    const UNSIGNED_LONG: i32 = NPY_TYPES::NPY_ULONG as i32;
    let number = descr.num();
    if !descr.is_native_byteorder().unwrap_or(true) {
        let text =
            format!("{name} is of elements in another byte order than this machine's; convert it first");
        return Err(InvalidTypeError::new_err(text));
    }
    Ok(match number {
        _ if number == NPY_TYPES::NPY_FLOAT as i32 => Dtype::F32,
        _ if number == NPY_TYPES::NPY_DOUBLE as i32 => Dtype::F64,
        _ if number == NPY_TYPES::NPY_HALF as i32 => Dtype::F16,
        _ if number == NPY_TYPES::NPY_BYTE as i32 => Dtype::I8,
        _ if number == NPY_TYPES::NPY_UBYTE as i32 => Dtype::U8,
        _ if number == NPY_TYPES::NPY_SHORT as i32 => Dtype::I16,
        _ if number == NPY_TYPES::NPY_USHORT as i32 => Dtype::U16,
        _ if number == NPY_TYPES::NPY_INT as i32 => Dtype::I32,
        _ if number == NPY_TYPES::NPY_UINT as i32 => Dtype::U32,
        _ if number == NPY_TYPES::NPY_LONGLONG as i32 => Dtype::I64,
        _ if number == NPY_TYPES::NPY_ULONGLONG as i32 => Dtype::U64,
        // C's `long` has 4 or 8 bytes, depending on the platform.
        SIGNED_LONG => {
            if descr.itemsize() == 8 {
                Dtype::I64
            } else {
                Dtype::I32
            }
        }
        UNSIGNED_LONG => {
            if descr.itemsize() == 8 {
                Dtype::U64
            } else {
                Dtype::U32
            }
        }
        _ if number == NPY_TYPES::NPY_BOOL as i32 => Dtype::Bool,
        _ if number >= NPY_TYPES::NPY_USERDEF as i32 && is_bf16(descr, number) => Dtype::Bf16,
        _ => Dtype::Other,
    })
}

fn is_bf16(descr: &Bound<'_, PyArrayDescr>, number: i32) -> bool {
    if BF16.load(Ordering::Relaxed) == number {
        return true;
    }
    let found = descr.itemsize() == 2 && descr.typeobj().name().is_ok_and(|name| name == "bfloat16");
    if found {
        BF16.store(number, Ordering::Relaxed);
    }
    found
}
