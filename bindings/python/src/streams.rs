//! The handles of CUDA streams.

use pyo3::prelude::*;

use crate::errors::{passes, wrong_type};

/// Reads a stream's handle from an int, or from an object of torch, CuPy or cuda.core that holds one.
pub fn stream_handle(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = stream.py();
    let mut handle = optional(py, stream.extract::<usize>())?;
    for name in ["cuda_stream", "ptr", "handle"] {
        if handle.is_none() {
            handle = optional(py, stream.getattr(name).and_then(|held| held.extract()))?;
        }
    }
    let handle = handle.ok_or_else(|| wrong_type("stream", "the handle of a CUDA stream, an int", stream))?;
    // The legacy default stream has two handles, 0 and 1.
    Ok(if handle == 1 { 0 } else { handle })
}

/// Returns what was read, or `None` if reading failed. Exceptions for which [`passes`] holds stay errors.
fn optional<T>(py: Python<'_>, read: PyResult<T>) -> PyResult<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if passes(py, &error) => Err(error),
        Err(_) => Ok(None),
    }
}
