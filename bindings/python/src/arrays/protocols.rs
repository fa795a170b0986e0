//! Arrays of other libraries, read through the protocols that array libraries share.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyCapsule, PyDict, PyMemoryView};

use super::exchange::described;
use super::{Array, Dtype, Location};
use crate::dlpack::{self, Managed, ManagedVersioned};
use crate::errors::InvalidTypeError;

/// Reads an array through the first protocol that it offers; `None` if it offers none.
pub fn read<'py>(
    object: &Bound<'py, PyAny>,
    name: &str,
    stream: Option<usize>,
) -> PyResult<Option<Array<'py>>> {
    let py = object.py();
    if let Some(interface) = object.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
        // The CUDA array interface does not name the device. DLPack does, if the object offers it too.
        let ordinal = match object.getattr_opt(intern!(py, "__dlpack_device__"))? {
            Some(device) => device.call0()?.extract::<(i32, i32)>()?.1,
            None => 0,
        };
        return interfaced(&interface, name, Location::Cuda(ordinal)).map(Some);
    }
    if let Some(export) = object.getattr_opt(intern!(py, "__dlpack__"))? {
        return capsule(object, &export, stream).map(Some);
    }
    if let Some(interface) = object.getattr_opt(intern!(py, "__array_interface__"))? {
        return interfaced(&interface, name, Location::Host).map(Some);
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
        let managed = unsafe { pointer.cast::<ManagedVersioned>().as_ref() };
        if managed.major != dlpack::VERSION.0 {
            let text =
                format!("the array comes by DLPack {}.{}, which is not known", managed.major, managed.minor);
            return Err(InvalidTypeError::new_err(text));
        }
        // SAFETY: the tensor's producer gives shape and strides `ndim` elements; `loan` keeps them alive.
        let array = unsafe { described(&managed.tensor, Some(loan.clone().into_any())) };
        return Ok(Array { readonly: managed.flags & dlpack::READ_ONLY != 0, ..array });
    }
    let pointer = loan.pointer_checked(Some(dlpack::CAPSULE))?;
    // SAFETY: a capsule of this name points to a live `Managed`, which its destructor frees.
    let managed = unsafe { pointer.cast::<Managed>().as_ref() };
    // SAFETY: the tensor's producer gives shape and strides `ndim` elements; `loan` keeps them alive.
    Ok(unsafe { described(&managed.tensor, Some(loan.clone().into_any())) })
}

/// Converts an array interface: a dictionary with shape, typestr, data and strides.
fn interfaced<'py>(interface: &Bound<'py, PyAny>, name: &str, location: Location) -> PyResult<Array<'py>> {
    let item = |key: &str| interface.get_item(key);
    let optional = |key: &str| {
        let found = interface.cast::<PyDict>().map_err(PyErr::from)?.get_item(key)?;
        Ok::<_, PyErr>(found.filter(|value| !value.is_none()))
    };
    let typestr: String = item("typestr")?.extract()?;
    // A type without a letter appears as two nameless bytes, V2; that is bfloat16 of `ml_dtypes`.
    let mut letters = typestr.trim_start_matches(['<', '=', '|']).chars();
    let kind = letters.next().unwrap_or('?');
    let dtype = Dtype::of(kind, letters.as_str().parse().unwrap_or(0));
    if optional("mask")?.is_some() {
        return Err(InvalidTypeError::new_err(format!(
            "{name} has a mask of its own; fill what it masks first"
        )));
    }
    let lengths: Vec<usize> = item("shape")?.extract()?;
    let (address, readonly): (usize, bool) = item("data")?.extract()?;
    let array = match optional("strides")? {
        Some(strides) => Array::strided(name, address, dtype, &lengths, &strides.extract::<Vec<_>>()?)?,
        None => Array::new(address, dtype, &lengths, None),
    };
    let stream = match location {
        Location::Cuda(_) => optional("stream")?.map(|stream| stream.extract()).transpose()?,
        _ => None,
    };
    // An entry of the dictionary may own the memory, so the dictionary is the loan.
    let loan = Some(interface.clone());
    Ok(Array { location, stream, readonly, loan, ..array })
}

/// Returns an array interface that describes memory of this package.
pub fn interface<'py>(
    py: Python<'py>,
    address: usize,
    typestr: &str,
    shape: &[usize],
    stream: Option<usize>,
) -> PyResult<Bound<'py, PyDict>> {
    let shape = pyo3::types::PyTuple::new(py, shape)?;
    let out = [("version", 3)].into_py_dict(py)?;
    out.set_item("shape", shape)?;
    out.set_item("typestr", typestr)?;
    out.set_item("data", (address, false))?;
    out.set_item("strides", py.None())?;
    if let Some(stream) = stream {
        out.set_item("stream", stream.max(1))?;
    }
    Ok(out)
}
