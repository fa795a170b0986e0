//! numpy's arrays, read from their C structure: a few loads instead of a dictionary.
//!
//! This does not import numpy. If the program has not imported it either, no object is a numpy array.

use std::sync::atomic::{AtomicI32, Ordering};

use ::numpy::{
    PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods,
    npyffi::{NPY_ARRAY_WRITEABLE, NPY_TYPES},
};
use pyo3::prelude::*;

use super::{Array, Dtype};
use crate::errors::InvalidTypeError;
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
    // SAFETY: `array` is a numpy array, as the cast checked, so the pointer is to its live structure.
    let address = unsafe { (*array.as_array_ptr()).fields.data } as usize;
    // SAFETY: `array` is a numpy array, as the cast checked, so the pointer is to its live structure.
    let readonly = unsafe { (*array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE == 0;
    // A type that no function takes may have elements of any size.
    let known = array.dtype().itemsize() == dtype.bytes();
    let array = match known {
        true => Array::strided(name, address, dtype, array.shape(), array.strides())?,
        false => Array::new(address, dtype, array.shape(), None),
    };
    Ok(Some(Array { readonly, ..array }))
}

fn dtype(descr: &Bound<'_, PyArrayDescr>, name: &str) -> PyResult<Dtype> {
    let number = descr.num();
    if !descr.is_native_byteorder().unwrap_or(true) {
        let text =
            format!("{name} is of elements in another byte order than this machine's; convert it first");
        return Err(InvalidTypeError::new_err(text));
    }
    Ok(match descr.kind() {
        // Of types of others, such as `ml_dtypes`.
        _ if number >= NPY_TYPES::NPY_USERDEF as i32 => {
            if is_bf16(descr, number) {
                Dtype::Bf16
            } else {
                Dtype::Other
            }
        }
        b'V' => Dtype::Other,
        kind => Dtype::of(char::from(kind), descr.itemsize()),
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
