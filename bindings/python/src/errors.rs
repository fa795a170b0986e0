//! Errors: the engine's errors as Python exceptions.
//!
//! The classes are in `python/gumball/errors.py`, all below `gumball.Error`. A caller's mistake raises a
//! `ValueError` with the engine's text: parameter, value, allowed range. An object of the wrong kind raises a
//! `TypeError`. A missing driver, library, device or memory raises `UnavailableError`, a `RuntimeError`.

use gumball_engine::head::ArtefactError;
use gumball_engine::unstable::{quoted, shown, shown_of};
use gumball_engine::{Error, RanksError};
use pyo3::exceptions::{PyBaseException, PyException, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

mod any {
    pyo3::import_exception!(gumball.errors, Error);
}
use any::Error as GumballError;

pyo3::import_exception!(gumball.errors, InvalidTypeError);
pyo3::import_exception!(gumball.errors, InvalidValueError);
pyo3::import_exception!(gumball.errors, UnnamedTypeError);
pyo3::import_exception!(gumball.errors, UnnamedValueError);
pyo3::import_exception!(gumball.errors, CallError);
pyo3::import_exception!(gumball.errors, UnavailableError);
pyo3::import_exception!(gumball.errors, DeviceLostError);
pyo3::import_exception!(gumball.errors, DistError);
pyo3::import_exception!(gumball.errors, LostError);
pyo3::import_exception!(gumball.errors, LateError);
pyo3::import_exception!(gumball.errors, DisagreeError);
pyo3::import_exception!(gumball.errors, CorruptError);
pyo3::import_exception!(gumball.errors, BrokenError);

/// Returns the exception for an error of the engine.
pub fn to_py_err(error: Error) -> PyErr {
    match error {
        Error::Unavailable { .. } => UnavailableError::new_err(error.to_string()),
        Error::DeviceLost { .. } => DeviceLostError::new_err(error.to_string()),
        Error::Ranks(error) => ranks_err(*error),
        _ => InvalidValueError::new_err(error.to_string()),
    }
}

/// Returns the exception for what failed between ranks, with its numbers as attributes.
fn ranks_err(error: RanksError) -> PyErr {
    let text = error.to_string();
    Python::attach(|py| {
        let (error, rank) = match &error {
            RanksError::Unavailable { .. } => return UnavailableError::new_err(text),
            RanksError::Lost { rank, .. } => (LostError::new_err(text), Some(*rank)),
            RanksError::Late { rank, waited } => {
                let late = LateError::new_err(text);
                set(late.value(py), "waited", waited.as_secs_f64());
                (late, Some(*rank))
            }
            RanksError::Disagree { rank, what, ours, theirs } => {
                let differs = DisagreeError::new_err(text);
                set(differs.value(py), "what", what);
                set(differs.value(py), "ours", ours);
                set(differs.value(py), "theirs", theirs);
                (differs, Some(*rank))
            }
            RanksError::Corrupt { rank, .. } => (CorruptError::new_err(text), Some(*rank)),
            RanksError::Broken(_) => (BrokenError::new_err(text), None),
            _ => (DistError::new_err(text), None),
        };
        set(error.value(py), "rank", rank);
        error
    })
}

/// Sets an attribute of a fresh exception, which fails only without memory; its text says the same.
fn set<'py>(error: &Bound<'py, PyBaseException>, name: &str, value: impl IntoPyObject<'py>) {
    error.setattr(name, value).ok();
}

/// Calls what the engine says of rows by the name of the argument that holds them.
pub fn rows_names(error: Error, rows: &str) -> Error {
    let (rows, width, stride) = match rows {
        "logits" => ("logits", "logits.shape[1]", "logits.stride"),
        "states" => ("states", "states.shape[1]", "states.stride"),
        "target_probs" => ("target_probs", "target_probs.shape[2]", "target_probs.stride"),
        _ => ("rows", "rows.shape[1]", "rows.stride"),
    };
    error.with_parameter(|name| match name {
        "logits" => rows,
        "vocab" => width,
        "stride" => stride,
        name => name,
    })
}

/// Calls what a pool reads by the names of the call's arguments, or of the values that hold it.
pub fn pool_names(error: Error) -> Error {
    error.with_parameter(|name| match name {
        "logits" => "rows",
        "hidden" => "states",
        "masks.width" => "masks",
        "masks.present" => "mask_present",
        name => name,
    })
}

/// Calls drafts, paths and their parts by the names of Python's arguments; `counted`: the lists whose lengths
/// are the batch's counts.
pub fn draft_names(error: Error, counted: Option<&'static str>) -> Error {
    let is_value = matches!(error, Error::OutOfRange { .. });
    error.with_parameter(|name| match (name, counted) {
        ("counts", Some("drafts")) if is_value => "len(drafts)",
        ("counts", Some("paths")) if is_value => "len(paths)",
        ("counts", Some(lists)) => lists,
        (name, _) => draft_name(name),
    })
}

fn draft_name(name: &'static str) -> &'static str {
    match name {
        "drafts.ids" | "ids" => "drafts",
        "drafts.parents" => "parents",
        "drafts.probs" | "drafts.probs.stride" => "probs",
        name => name,
    }
}

/// Returns a `ValueError` for a value outside its range.
pub fn out_of_range(name: &str, value: impl std::fmt::Display, allowed: impl std::fmt::Display) -> PyErr {
    InvalidValueError::new_err(format!(
        "{name} is {}, but must be {allowed}",
        shown_of(name, &value.to_string())
    ))
}

/// Returns a `TypeError` for an object of the wrong kind.
pub fn wrong_type(name: &str, wanted: &str, found: &Bound<'_, PyAny>) -> PyErr {
    let kind = found.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    InvalidTypeError::new_err(format!("{name} must be {wanted}, not {}", shown(&kind)))
}

/// Refuses a class in the place of one of its instances, whose attributes it has.
pub fn refuse_class(object: &Bound<'_, PyAny>, name: &str, wanted: &str) -> PyResult<()> {
    if object.is_instance_of::<PyType>() { Err(wrong_type(name, wanted, object)) } else { Ok(()) }
}

/// Returns whether an exception says nothing about the object whose code raised it: an interrupt, an exit, or
/// exhausted memory. Such an exception is always raised unchanged.
pub fn passes(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py) || error.is_instance_of::<PyMemoryError>(py)
}

/// Returns a `TypeError` for an object whose own conversion failed, or the failure itself if [`passes`] holds
/// for it.
pub fn not_a(error: PyErr, name: &str, wanted: &str, found: &Bound<'_, PyAny>) -> PyErr {
    if passes(found.py(), &error) { error } else { wrong_type(name, wanted, found) }
}

/// Returns the error of an array whose own protocol failed, with that failure as its cause: a `ValueError`
/// for one, otherwise a `TypeError`. An error of this package stays unchanged.
pub fn unreadable(py: Python<'_>, name: &str, cause: PyErr) -> PyErr {
    if passes(py, &cause) || cause.is_instance_of::<GumballError>(py) {
        return cause;
    }
    // Some libraries append a trace of their own calls, so only the first line is used.
    let text = cause.value(py).to_string();
    let text =
        format!("{name} cannot be read: {}", quoted(text.lines().next().unwrap_or_default().as_bytes(), 300));
    let error = match cause.is_instance_of::<PyValueError>(py) {
        true => InvalidValueError::new_err(text),
        false => InvalidTypeError::new_err(text),
    };
    error.set_cause(py, Some(cause));
    error
}

/// Returns the exception for a fault of a head's file.
pub fn of_file(parameter: &str, error: ArtefactError) -> PyErr {
    match error {
        ArtefactError::Io { source, path } => {
            let kind = source.kind();
            PyErr::from(std::io::Error::new(kind, format!("{}: {source}", path.display())))
        }
        error => InvalidValueError::new_err(format!("{parameter} cannot be used: {error}")),
    }
}
