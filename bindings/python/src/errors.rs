//! Errors: the engine's, as Python's exceptions.
//!
//! A caller's mistake is a `ValueError` with the engine's text: parameter, value, allowed range. Where an object is of the
//! wrong kind it is a `TypeError`. What the machine lacks is `UnavailableError`, a `RuntimeError`.

use gumball_engine::Error;
use pyo3::exceptions::{PyException, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(
    gumball,
    UnavailableError,
    PyRuntimeError,
    "The machine lacks something: a driver, a library, a device, memory. Nothing was changed."
);

/// Returns the exception for an error of the engine.
pub fn raised(error: Error) -> PyErr {
    match error {
        Error::Unavailable { .. } => UnavailableError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// Returns a `ValueError` for a value outside its range.
pub fn out_of_range(name: &str, value: impl std::fmt::Display, allowed: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{name} is {value}, but must be {allowed}"))
}

/// Returns a `TypeError` for an object of the wrong kind.
pub fn wrong_type(name: &str, wanted: &str, found: &Bound<'_, PyAny>) -> PyErr {
    let kind = found.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    PyTypeError::new_err(format!("{name} must be {wanted}, not {kind}"))
}

/// Returns whether an exception is no word on the object whose code raised it: an interrupt, the end of the program, memory that
/// is used up. Such a one is never made another.
pub fn passes(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py) || error.is_instance_of::<PyMemoryError>(py)
}

/// Returns a `TypeError` for an object whose own conversion failed, unless the failure passes on as it is.
pub fn not_a(error: PyErr, name: &str, wanted: &str, found: &Bound<'_, PyAny>) -> PyErr {
    if passes(found.py(), &error) { error } else { wrong_type(name, wanted, found) }
}

/// Returns a `TypeError` for an array whose own protocol failed, with that failure as its cause. Mistakes that were told in our
/// words stay as they are.
pub fn unreadable(py: Python<'_>, name: &str, cause: PyErr) -> PyErr {
    if passes(py, &cause)
        || cause.is_instance_of::<PyValueError>(py)
        || cause.is_instance_of::<PyTypeError>(py)
    {
        return cause;
    }
    // Some libraries append a trace of their own calls.
    let text = cause.value(py).to_string();
    let error =
        PyTypeError::new_err(format!("{name} cannot be read: {}", text.lines().next().unwrap_or_default()));
    error.set_cause(py, Some(cause));
    error
}
