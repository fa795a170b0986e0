//! Lists: ids, slots and lines, from Python's own lists or from arrays of integers.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::arrays;
use crate::errors::{out_of_range, wrong_type};
use crate::params;

/// Reads a number that is whole.
///
/// # Errors
/// - `TypeError` if it is none.
/// - `ValueError` if it lies outside the type's range.
pub fn whole<T: Whole>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<T> {
    let beyond = || out_of_range(name, object, T::ALLOWED);
    match object.extract::<i64>() {
        Ok(value) => T::try_from(value).map_err(|_| beyond()),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => Err(beyond()),
        Err(_) => Err(wrong_type(name, "an integer", object)),
    }
}

/// Integers that Python's are read as.
pub trait Whole: TryFrom<i64> {
    /// The range, in words.
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

/// Reads a list of integers: a list, a tuple, a range, or an array of one dimension in the host's memory.
///
/// # Errors
/// - `TypeError` if it is none.
/// - `ValueError` if one lies outside the type's range.
pub fn integers<T: Whole>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>> {
    if let Ok(list) = object.cast::<PyList>() {
        return list.iter().map(|item| whole(&item, name)).collect();
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return tuple.iter().map(|item| whole(&item, name)).collect();
    }
    if object.is_instance_of::<PyString>() {
        return Err(wrong_type(name, "a list of integers", object));
    }
    if let Ok(array) = arrays::read(object, name, None) {
        let values = array.vector(name)?.values(name)?;
        let cast = |value| T::try_from(value).map_err(|_| out_of_range(name, value, T::ALLOWED));
        return values.into_iter().map(cast).collect();
    }
    let items = object.try_iter().map_err(|_| wrong_type(name, "a list or an array of integers", object))?;
    items.map(|item| whole(&item?, name)).collect()
}

/// One value for all rows, or a list with one for each.
#[derive(Clone, Debug)]
pub enum Column<T> {
    All(T),
    Rows(Vec<T>),
}

impl<T> Column<T> {
    /// Returns the list; an empty one where there is one value for all.
    pub fn rows(&self) -> &[T] {
        match self {
            Column::All(_) => &[],
            Column::Rows(values) => values,
        }
    }

    /// Returns the value for all.
    pub fn all(&self) -> Option<&T> {
        match self {
            Column::All(value) => Some(value),
            Column::Rows(_) => None,
        }
    }
}

/// Returns whether an object is a list, or an array of one dimension or more.
fn is_listed(object: &Bound<'_, PyAny>) -> bool {
    if object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>() {
        return false;
    }
    object.is_instance_of::<PyList>()
        || object.is_instance_of::<PyTuple>()
        || arrays::read(object, "", None).is_ok_and(|array| array.ndim > 0)
}

/// Reads an integer, or a list of them.
///
/// # Errors
/// Those of [`whole`] and [`integers`].
pub fn whole_column<T: Whole>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Column<T>> {
    if is_listed(object) {
        integers(object, name).map(Column::Rows)
    } else {
        whole(object, name).map(Column::All)
    }
}

/// Reads a seed, or a list of them; what an array holds is read as bits, so that int64 serves.
///
/// # Errors
/// - `TypeError` or `ValueError` if it is none.
pub fn seed_column(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Column<u64>> {
    if !is_listed(object) {
        return params::seed(object).map(Column::All);
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return object
            .try_iter()?
            .map(|item| params::seed(&item?))
            .collect::<PyResult<_>>()
            .map(Column::Rows);
    }
    let words = arrays::read(object, name, None)?.vector(name)?.values(name)?;
    Ok(Column::Rows(words.into_iter().map(i64::cast_unsigned).collect()))
}

/// Reads a number, or a list of them.
///
/// # Errors
/// - `TypeError` if it is none.
pub fn number_column(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Column<f32>> {
    let number = |object: &Bound<'_, PyAny>| {
        object.extract::<f64>().map(|value| value as f32).map_err(|_| wrong_type(name, "a number", object))
    };
    if !is_listed(object) {
        return number(object).map(Column::All);
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return object.try_iter()?.map(|item| number(&item?)).collect::<PyResult<_>>().map(Column::Rows);
    }
    arrays::read(object, name, None)?.vector(name)?.numbers(name).map(Column::Rows)
}

/// Reads a list of truth values.
pub fn truths(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<bool>> {
    let items = object.try_iter().map_err(|_| wrong_type(name, "a list or an array of bools", object))?;
    items.map(|item| item?.is_truthy()).collect()
}

/// Reads a token for each row, or `None` or -1 for none.
pub fn forced(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<Option<u32>>> {
    let token = |value: i64| match value {
        -1 => Ok(None),
        _ => u32::try_from(value).map(Some).map_err(|_| out_of_range(name, value, "an id, or -1 for none")),
    };
    let item = |item: Bound<'_, PyAny>| {
        if item.is_none() { Ok(None) } else { token(whole(&item, name)?) }
    };
    if let Ok(list) = object.cast::<PyList>() {
        return list.iter().map(item).collect();
    }
    integers::<i64>(object, name)?.into_iter().map(token).collect()
}
