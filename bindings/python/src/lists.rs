//! Lists of ids, slots and row indices, read from Python lists or from integer arrays.

use std::cell::Cell;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::arrays::{self, Array, Vector};
use crate::errors::{UnavailableError, not_a, out_of_range, passes, wrong_type};

/// The largest number of elements of a list.
pub const LONGEST: usize = 1 << 28;

/// The largest number of elements read from an iterable without a length.
const UNSIZED: usize = 1 << 24;

/// The number of elements read between two checks for signals.
const LOOK: usize = 1 << 16;

/// Collects the items of an iterator and checks for signals meanwhile.
///
/// # Errors
/// - The exception of an item, or of a signal's handler.
/// - `ValueError` if there are more than `most`.
/// - `UnavailableError` if there is not enough memory.
pub fn collected<T>(
    py: Python<'_>,
    items: impl Iterator<Item = PyResult<T>>,
    name: &str,
    most: usize,
) -> PyResult<Vec<T>> {
    let mut list = Vec::new();
    for item in items {
        let item = item?;
        if list.len() == most {
            return Err(too_long(name, format!("more than {most}"), most));
        }
        if list.len() == list.capacity() {
            list.try_reserve(list.len().max(16)).map_err(|error| {
                UnavailableError::new_err(format!("memory for {name} is not available: {error}"))
            })?;
        }
        list.push(item);
        if list.len() % LOOK == 0 {
            py.check_signals()?;
        }
    }
    Ok(list)
}

fn too_long(name: &str, length: impl std::fmt::Display, most: usize) -> PyErr {
    out_of_range(&format!("{name}'s length"), length, format!("at most {most}"))
}

/// Collects the items of a Python iterable: up to [`LONGEST`] if it has a length, otherwise up to
/// [`UNSIZED`].
///
/// # Errors
/// - `TypeError` if the object is not iterable.
/// - As [`collected`].
pub fn iterated<'py, T>(
    object: &Bound<'py, PyAny>,
    name: &str,
    wanted: &str,
    each: impl Fn(Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let items = object.try_iter().map_err(|error| not_a(error, name, wanted, object))?;
    let most = match object.len() {
        Ok(length) if length > LONGEST => return Err(too_long(name, length, LONGEST)),
        Ok(_) => LONGEST,
        // The object's length overflows a C integer.
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
            return Err(too_long(name, "beyond 2^63", LONGEST));
        }
        Err(error) if passes(object.py(), &error) => return Err(error),
        Err(_) => UNSIZED,
    };
    collected(object.py(), items.map(|item| each(item?)), name, most)
}

/// Reads an object as an array; `None` if that fails.
///
/// # Errors
/// - Exceptions for which [`passes`] holds, such as an interrupt.
fn array<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Array<'py>>> {
    match arrays::read(object, name, None) {
        Ok(array) => Ok(Some(array)),
        Err(error) if passes(object.py(), &error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Reads a one-dimensional array on the host that is not too long.
fn vector(array: &Array<'_>, name: &str) -> PyResult<Vector> {
    let vector = array.vector(name)?;
    if vector.len() > LONGEST { Err(too_long(name, vector.len(), LONGEST)) } else { Ok(vector) }
}

/// Reads the elements of a one-dimensional array of integers on the host.
///
/// # Errors
/// - `TypeError` if the elements are no integers.
/// - `ValueError` if the array has other dimensions or lies elsewhere, or is too long.
pub fn elements<T>(
    array: &Array<'_>,
    py: Python<'_>,
    name: &str,
    each: impl Fn(i64) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let vector = vector(array, name)?;
    collected(py, vector.values(name).map(|value| each(value?)), name, LONGEST)
}

/// Reads an integer.
///
/// # Errors
/// - `TypeError` if the object is no integer.
/// - `ValueError` if it lies outside the type's range.
pub fn extract_int<T: Whole>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<T> {
    if is_truth(object) {
        return Err(wrong_type(name, "an integer", object));
    }
    match object.extract::<i64>() {
        Ok(value) => cast(value, name),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
            Err(out_of_range(name, object, T::ALLOWED))
        }
        Err(error) => Err(not_a(error, name, "an integer", object)),
    }
}

/// Returns an integer as another type.
///
/// # Errors
/// - `ValueError` if it lies outside the type's range.
pub fn cast<T: Whole>(value: i64, name: &str) -> PyResult<T> {
    T::try_from(value).map_err(|_| out_of_range(name, value, T::ALLOWED))
}

/// Types that Python's integers are read into.
pub trait Whole: TryFrom<i64> {
    /// The type's range, for messages.
    const ALLOWED: &'static str;
}

impl Whole for u32 {
    const ALLOWED: &'static str = "in 0..2^32";
}

impl Whole for i32 {
    const ALLOWED: &'static str = "in -2^31..2^31";
}

impl Whole for i64 {
    const ALLOWED: &'static str = "in -2^63..2^63";
}

impl Whole for usize {
    const ALLOWED: &'static str = "in 0..2^63";
}

/// Reads integers from a list, a tuple, a range, or a one-dimensional array in the host's memory.
///
/// # Errors
/// - `TypeError` if the object is none of these, or an element is no integer.
/// - `ValueError` if an element lies outside the type's range.
pub fn integers<T: Whole>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>> {
    let wanted = "a list or an array of integers";
    let each = |item: Bound<'_, PyAny>| extract_int(&item, name);
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return iterated(object, name, wanted, each);
    }
    if object.is_instance_of::<PyString>() {
        return Err(wrong_type(name, "a list of integers", object));
    }
    if let Some(array) = array(object, name)? {
        return elements(&array, object.py(), name, |value| cast(value, name));
    }
    iterated(object, name, wanted, each)
}

/// Reads a list of integers from each item of a list, or from each row of an array.
///
/// # Errors
/// As [`integers`], naming the item by its number.
pub fn integer_lists<T: Whole>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<Vec<T>>> {
    let number = Cell::new(0);
    let each =
        |item: Bound<'_, PyAny>| integers(&item, &format!("{name}[{}]", number.replace(number.get() + 1)));
    iterated(object, name, "a list of lists or an array of integers", each)
}

/// Reads a number as float64.
///
/// # Errors
/// - `TypeError` if the object is no number.
pub fn double(object: &Bound<'_, PyAny>, name: &str) -> PyResult<f64> {
    if is_truth(object) {
        return Err(wrong_type(name, "a number", object));
    }
    object.extract().map_err(|error| not_a(error, name, "a number", object))
}

/// Reads a number as float32.
///
/// # Errors
/// As [`double`].
pub fn number(object: &Bound<'_, PyAny>, name: &str) -> PyResult<f32> {
    Ok(double(object, name)? as f32)
}

/// Reads the elements of a one-dimensional array on the host, as float32.
///
/// # Errors
/// As [`elements`].
pub fn numbers(array: &Array<'_>, py: Python<'_>, name: &str) -> PyResult<Vec<f32>> {
    let vector = vector(array, name)?;
    collected(py, vector.numbers(name), name, LONGEST)
}

/// Reads the elements of a one-dimensional array on the host, as words of 64 bits.
///
/// # Errors
/// As [`elements`].
pub fn words(array: &Array<'_>, py: Python<'_>, name: &str) -> PyResult<Vec<u64>> {
    let vector = vector(array, name)?;
    collected(py, vector.words(name), name, LONGEST)
}

/// Returns whether an object is true or false, of Python or of numpy.
pub fn is_truth(object: &Bound<'_, PyAny>) -> bool {
    if object.is_exact_instance_of::<PyFloat>() || object.is_exact_instance_of::<PyInt>() {
        return false;
    }
    let is_numpys = || object.get_type().name().is_ok_and(|name| name == "bool" || name == "bool_");
    object.is_instance_of::<PyBool>() || is_numpys()
}

/// Reads true or false.
///
/// # Errors
/// - `TypeError` for any other object: also 1, 0 and texts.
pub fn truth(object: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    if is_truth(object) { object.is_truthy() } else { Err(wrong_type(name, "True or False", object)) }
}

/// Reads a list of booleans; an element may be 1 or 0.
pub fn truths(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<bool>> {
    iterated(object, name, "a list or an array of bools", |item| {
        if item.is_instance_of::<PyString>() {
            return Err(wrong_type(name, "a list or an array of bools", &item));
        }
        item.is_truthy()
    })
}

/// Reads one forced token per row; `None` or -1 means none.
pub fn forced(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<Option<u32>>> {
    let token = |value: i64| match value {
        -1 => Ok(None),
        _ => u32::try_from(value).map(Some).map_err(|_| out_of_range(name, value, "an id, or -1 for none")),
    };
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let one =
            |item: Bound<'_, PyAny>| if item.is_none() { Ok(None) } else { token(extract_int(&item, name)?) };
        return iterated(object, name, "a list", one);
    }
    integers::<i64>(object, name)?.into_iter().map(token).collect()
}
