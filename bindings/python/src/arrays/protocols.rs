//! Arrays of other libraries, read through DLPack; and buffers, which are copied.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyMemoryView};

use super::exchange::{aligned, described};
use super::{Array, Dtype};
use crate::dlpack::{self, Managed, ManagedVersioned};

/// Reads an array through DLPack, or as a buffer; `None` if it offers neither.
pub fn read<'py>(object: &Bound<'py, PyAny>, stream: Option<usize>) -> PyResult<Option<Array<'py>>> {
    let py = object.py();
    if let Some(export) = object.getattr_opt(intern!(py, "__dlpack__"))? {
        return capsule(object, &export, stream).map(Some);
    }
    match PyMemoryView::from(object) {
        Ok(view) => buffer(&view).map(Some),
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Copies the elements of a buffer, which lie side by side in the copy.
fn buffer<'py>(view: &Bound<'py, PyMemoryView>) -> PyResult<Array<'py>> {
    let py = view.py();
    let format: String = view.getattr(intern!(py, "format"))?.extract()?;
    let bytes: usize = view.getattr(intern!(py, "itemsize"))?.extract()?;
    let kind = match format.trim_start_matches(['@', '=', '<']) {
        "d" | "f" | "e" => 'f',
        "b" | "h" | "i" | "l" | "q" => 'i',
        "B" | "c" | "H" | "I" | "L" | "Q" => 'u',
        "?" => 'b',
        _ => '?',
    };
    let dtype = Dtype::of(kind, bytes);
    let lengths: Vec<usize> = view.getattr(intern!(py, "shape"))?.extract()?;
    let copy = view.call_method0(intern!(py, "tobytes"))?.cast_into::<PyBytes>().map_err(PyErr::from)?;
    let address = copy.as_bytes().as_ptr() as usize;
    let loan = Some(copy.into_any());
    Ok(Array { readonly: true, loan, ..Array::new(address, dtype, &lengths, None) })
}

/// Reads a tensor from its DLPack capsule, which the array keeps.
fn capsule<'py>(
    object: &Bound<'py, PyAny>,
    export: &Bound<'py, PyAny>,
    stream: Option<usize>,
) -> PyResult<Array<'py>> {
    let py = object.py();
    let (kind, _): (i32, i32) = object.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
    let wanted = PyDict::new(py);
    if kind == dlpack::CUDA {
        // The array API standard numbers the legacy default stream 1.
        wanted.set_item("stream", stream.map_or(1, |stream| stream.max(1)))?;
    }
    let versioned = wanted.copy()?;
    versioned.set_item("max_version", dlpack::VERSION)?;
    let capsule = match export.call((), Some(&versioned)) {
        // Older libraries do not take the keyword `max_version`.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => export.call((), Some(&wanted))?,
        other => other?,
    };
    let loan = capsule.cast_into::<PyCapsule>().map_err(PyErr::from)?;
    if let Ok(pointer) = loan.pointer_checked(Some(dlpack::CAPSULE_VERSIONED)) {
        // SAFETY: a capsule of this name points to a live `ManagedVersioned`, which its destructor frees.
        let managed = unsafe { aligned(pointer.cast::<ManagedVersioned>())?.as_ref() };
        if managed.major != dlpack::VERSION.0 {
            let text = format!("it comes by DLPack {}.{}, which is not known", managed.major, managed.minor);
            return Err(PyTypeError::new_err(text));
        }
        // SAFETY: the tensor's producer gives shape and strides `ndim` elements; `loan` keeps them alive.
        let array = unsafe { described(&managed.tensor, Some(loan.clone().into_any())) }?;
        return Ok(Array { readonly: managed.flags & dlpack::READ_ONLY != 0, ..array });
    }
    let pointer = loan.pointer_checked(Some(dlpack::CAPSULE))?;
    // SAFETY: a capsule of this name points to a live `Managed`, which its destructor frees.
    let managed = unsafe { aligned(pointer.cast::<Managed>())?.as_ref() };
    // SAFETY: the tensor's producer gives shape and strides `ndim` elements; `loan` keeps them alive.
    unsafe { described(&managed.tensor, Some(loan.clone().into_any())) }
}
