//! Arguments that are read before a function's body runs: flags, texts, paths and numbers, by
//! `#[pyo3(from_py_with = argument)]`.
//!
//! Their error is `gumball.Error`'s as any other. It is made without the argument's name, which PyO3 adds to
//! it as a note; `python/gumball/errors.py` puts the name in front.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{FromPyObject, PyClass};

use crate::errors::{UnnamedTypeError, UnnamedValueError, passes};

/// A type of arguments.
pub trait Argument<'a, 'py>: FromPyObject<'a, 'py> {
    /// What such an argument is, in the words of an error.
    const WANTED: &'static str;
}

macro_rules! arguments {
    ($($of:ty: $wanted:literal,)*) => {
        $(impl<'a> Argument<'a, '_> for $of {
            const WANTED: &'static str = $wanted;
        })*
    };
}

arguments! {
    bool: "True or False",
    &'a str: "a str of Unicode's characters",
    PathBuf: "a path",
    f32: "a number",
    usize: "an integer in 0..2^64",
    isize: "an integer",
    (u32, u32): "a pair of integers",
    (i32, i32): "a pair of integers",
}

impl<'py, T: PyClass> Argument<'_, 'py> for Bound<'py, T> {
    const WANTED: &'static str = T::NAME;
}

impl<'py> Argument<'_, 'py> for (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>) {
    const WANTED: &'static str = "a pair of arrays";
}

impl<'a, 'py, T: Argument<'a, 'py>> Argument<'a, 'py> for Option<T> {
    const WANTED: &'static str = T::WANTED;
}

/// Reads an argument.
///
/// # Errors
/// - `TypeError` for an object of another type, `ValueError` for one that the type cannot hold.
pub fn argument<'a, 'py, T: Argument<'a, 'py>>(it: &'a Bound<'py, PyAny>) -> PyResult<T> {
    it.extract().map_err(|error: T::Error| {
        let (py, error) = (it.py(), error.into());
        if passes(py, &error) {
            error
        } else if error.is_instance_of::<PyTypeError>(py) {
            let kind = it.get_type().name().map(|name| name.to_string()).unwrap_or_default();
            UnnamedTypeError::new_err(format!("must be {}, not {kind}", T::WANTED))
        } else {
            UnnamedValueError::new_err(format!("must be {}: {}", T::WANTED, error.value(py)))
        }
    })
}
