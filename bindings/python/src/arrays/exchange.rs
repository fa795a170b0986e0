//! Tensors whose type offers DLPack's table of functions, as torch's does from 2.10 on. One call describes a
//! tensor, without a capsule and without synchronisation.

use std::ffi::c_void;
use std::fmt::Display;
use std::ptr::NonNull;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyType};

use super::{Array, Dtype, Location};
use crate::dlpack::{self, Exchange, Tensor};
use crate::errors::unreadable;
use crate::modules;

/// Reads a tensor through its type's table; `None` if the type has no table of a known version.
pub fn read<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Array<'py>>> {
    let Some(table) = table(&object.get_type())? else { return Ok(None) };
    let Some(describe) = table.describe else { return Ok(None) };
    let mut tensor = Tensor::empty();
    // SAFETY: `table` belongs to the object's type, so `describe` takes the object; it writes to the live
    // `tensor`.
    let status = unsafe { describe(object.as_ptr().cast::<c_void>(), &raw mut tensor) };
    if status != 0 {
        return Err(unreadable(object.py(), name, PyErr::fetch(object.py())));
    }
    // SAFETY: `describe` succeeded, so shape and strides have `ndim` elements and live as long as the object.
    let array = unsafe { described(&tensor, None) };
    array.map(Some).map_err(|cause| unreadable(object.py(), name, cause))
}

/// Returns the stream on which torch enqueues at present on a device; `None` unless torch is imported and has
/// CUDA.
pub fn torch_stream(py: Python<'_>, ordinal: i32) -> PyResult<Option<usize>> {
    let Some(tensor) = modules::torch_tensor(py)? else { return Ok(None) };
    let Some(current) = table(tensor)?.and_then(|table| table.current_stream) else {
        return modules::torch_raw_stream(py, ordinal);
    };
    let mut stream = std::ptr::null_mut();
    // SAFETY: `current` is from torch's table and writes a handle to the live `stream`.
    let status = unsafe { current(dlpack::CUDA, ordinal, &raw mut stream) };
    if status == 0 { Ok(Some(stream as usize)) } else { Err(PyErr::fetch(py)) }
}

/// Returns a type's table if its version's layout is known.
///
/// The table of `torch.Tensor` is cached: nearly every call is for this type, and the cache's owner keeps the
/// type alive. Other types are looked up each time, because a new type may reuse the address of a freed one.
fn table(kind: &Bound<'_, PyType>) -> PyResult<Option<&'static Exchange>> {
    static OF_TORCH: PyOnceLock<Option<&'static Exchange>> = PyOnceLock::new();
    let py = kind.py();
    if modules::torch_tensor(py)?.is_some_and(|tensor| kind.is(tensor)) {
        return OF_TORCH.get_or_try_init(py, || ask(kind)).copied();
    }
    ask(kind)
}

/// Reads the table from a type's attribute.
fn ask(kind: &Bound<'_, PyType>) -> PyResult<Option<&'static Exchange>> {
    let Some(capsule) = kind.getattr_opt(intern!(kind.py(), "__dlpack_c_exchange_api__"))? else {
        return Ok(None);
    };
    let Ok(capsule) = capsule.cast_into::<PyCapsule>() else { return Ok(None) };
    let found = aligned(capsule.pointer_checked(Some(dlpack::EXCHANGE))?.cast::<Exchange>())?;
    // SAFETY: a capsule with DLPack's name for tables points to one, and tables live until the process ends.
    let table = unsafe { found.as_ref() };
    Ok(Some(table).filter(|table| table.major == dlpack::VERSION.0))
}

fn wrong(part: &str, found: impl Display, allowed: impl Display) -> PyErr {
    PyValueError::new_err(format!("DLPack's {part} is {found}, but must be {allowed}"))
}

/// Returns a structure's address if a structure of its kind can lie there.
pub fn aligned<T>(structure: NonNull<T>) -> PyResult<NonNull<T>> {
    if structure.is_aligned() { Ok(structure) } else { Err(wrong("structure", "misaligned", "aligned")) }
}

/// Returns the numbers that DLPack has of each dimension.
///
/// # Safety
/// `numbers` points to `ndim` numbers, unless it is null or misaligned.
unsafe fn of_dimensions<'a, T>(part: &str, numbers: *const T, ndim: usize) -> PyResult<&'a [T]> {
    if numbers.is_null() || !numbers.is_aligned() {
        let found = if numbers.is_null() { "NULL" } else { "misaligned" };
        return Err(wrong(part, found, format!("the address of {ndim} numbers")));
    }
    // SAFETY: the caller ensures that `numbers`, which is neither null nor misaligned, points to `ndim` of
    // them.
    Ok(unsafe { std::slice::from_raw_parts(numbers, ndim) })
}

/// Converts DLPack's description of a tensor.
///
/// # Errors
/// - `ValueError` for dimensions without lengths, and for a length below 0.
///
/// # Safety
/// `tensor.shape` and `tensor.strides` point to `tensor.ndim` numbers, unless they are null or misaligned.
pub unsafe fn described<'py>(tensor: &Tensor, loan: Option<Bound<'py, PyAny>>) -> PyResult<Array<'py>> {
    let kind = match tensor.dtype.code {
        dlpack::FLOAT => 'f',
        dlpack::BFLOAT => 'V',
        dlpack::INT => 'i',
        dlpack::UINT => 'u',
        dlpack::BOOL => 'b',
        _ => '?',
    };
    let is_whole = tensor.dtype.lanes == 1 && tensor.dtype.bits.is_multiple_of(8);
    let dtype = if is_whole { Dtype::of(kind, usize::from(tensor.dtype.bits / 8)) } else { Dtype::Other };
    let location = match tensor.device.kind {
        dlpack::CPU | dlpack::CUDA_HOST => Location::Host,
        dlpack::CUDA => Location::Cuda(tensor.device.id),
        _ => Location::Elsewhere,
    };
    // A number of 64 bits is a `usize` here.
    const _: () = assert!(size_of::<usize>() == size_of::<i64>());
    let ndim = usize::try_from(tensor.ndim);
    let ndim = ndim.map_err(|_| wrong("ndim", tensor.ndim, "at least 0"))?;
    let (mut lengths, mut strides) = (&[][..], None);
    if ndim > 0 {
        // SAFETY: the caller ensures that `tensor.shape` points to `ndim` numbers, or cannot.
        lengths = unsafe { of_dimensions("shape", tensor.shape.cast::<usize>(), ndim) }?;
        let mut signed = lengths.iter().take(3).map(|length| *length as isize);
        if let Some(length) = signed.find(|length| *length < 0) {
            return Err(wrong("shape", length, "at least 0"));
        }
    }
    if ndim > 0 && !tensor.strides.is_null() {
        // SAFETY: the caller ensures that `tensor.strides` points to `ndim` numbers, or cannot.
        strides = Some(unsafe { of_dimensions("strides", tensor.strides.cast::<isize>(), ndim) }?);
    }
    let address = (tensor.data as usize).wrapping_add(tensor.byte_offset as usize);
    Ok(Array { location, loan, ..Array::new(address, dtype, lengths, strides) })
}
