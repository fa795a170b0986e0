//! Lists: ids, slots and lines, from Python's own lists or from arrays of integers.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::arrays::{self, Array};
use crate::errors::{UnavailableError, not_a, out_of_range, passes, wrong_type};
use crate::params;

/// How many elements a list may have.
pub const LONGEST: usize = 1 << 28;

/// How many elements are taken of what does not say how many it has.
const UNSIZED: usize = 1 << 24;

/// How many elements are read between two looks at signals.
const LOOK: usize = 1 << 16;

/// Collects what a list gives, and looks at signals meanwhile.
///
/// # Errors
/// - What an element raises, or the handler of a signal.
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

/// Collects what an object gives that is iterated over: as many elements as a list may have if it says how many it has, less if
/// it does not.
///
/// # Errors
/// - `TypeError` if it gives nothing.
/// - Those of [`collected`].
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
        // So long that its length is no C integer.
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
            return Err(too_long(name, "beyond 2^63", LONGEST));
        }
        Err(error) if passes(object.py(), &error) => return Err(error),
        Err(_) => UNSIZED,
    };
    collected(object.py(), items.map(|item| each(item?)), name, most)
}

/// Reads an object as an array, if it is one that can be read.
///
/// # Errors
/// - What passes on as it is.
fn array<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Array<'py>>> {
    match arrays::read(object, name, None) {
        Ok(array) => Ok(Some(array)),
        Err(error) if passes(object.py(), &error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Reads the elements of an array of one dimension.
fn elements<T>(
    array: &Array<'_>,
    py: Python<'_>,
    name: &str,
    each: impl Fn(i64) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let vector = array.vector(name)?;
    if vector.len() > LONGEST {
        return Err(too_long(name, vector.len(), LONGEST));
    }
    collected(py, vector.values(name).map(|value| each(value?)), name, LONGEST)
}

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
        Err(error) => Err(not_a(error, name, "an integer", object)),
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
    let wanted = "a list or an array of integers";
    let each = |item: Bound<'_, PyAny>| whole(&item, name);
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return iterated(object, name, wanted, each);
    }
    if object.is_instance_of::<PyString>() {
        return Err(wrong_type(name, "a list of integers", object));
    }
    if let Some(array) = array(object, name)? {
        let cast = |value| T::try_from(value).map_err(|_| out_of_range(name, value, T::ALLOWED));
        return elements(&array, object.py(), name, cast);
    }
    iterated(object, name, wanted, each)
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

/// What an object holds: one value, a list of Python's, or an array of one dimension or more.
enum Held<'py> {
    One,
    List,
    Array(Array<'py>),
}

impl<'py> Held<'py> {
    fn of(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        if object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>() {
            return Ok(Held::One);
        }
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            return Ok(Held::List);
        }
        Ok(array(object, name)?.filter(|array| array.ndim > 0).map_or(Held::One, Held::Array))
    }
}

/// Reads a column: `one` is for a value of Python's, `word` for one of an array.
fn column<T>(
    object: &Bound<'_, PyAny>,
    name: &str,
    one: impl Fn(&Bound<'_, PyAny>) -> PyResult<T>,
    word: impl Fn(i64) -> PyResult<T>,
) -> PyResult<Column<T>> {
    match Held::of(object, name)? {
        Held::One => one(object).map(Column::All),
        Held::List => iterated(object, name, "a list", |item| one(&item)).map(Column::Rows),
        Held::Array(array) => elements(&array, object.py(), name, word).map(Column::Rows),
    }
}

/// Reads an integer, or a list of them.
///
/// # Errors
/// Those of [`whole`] and [`integers`].
pub fn whole_column<T: Whole>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Column<T>> {
    let cast = |value| T::try_from(value).map_err(|_| out_of_range(name, value, T::ALLOWED));
    column(object, name, |one| whole(one, name), cast)
}

/// Reads a seed, or a list of them; what an array holds is read as bits, so that int64 serves.
///
/// # Errors
/// - `TypeError` or `ValueError` if it is none.
pub fn seed_column(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Column<u64>> {
    column(object, name, params::seed, |word| Ok(word.cast_unsigned()))
}

/// Reads a number.
///
/// # Errors
/// - `TypeError` if it is none.
pub fn number(object: &Bound<'_, PyAny>, name: &str) -> PyResult<f32> {
    let value = object.extract::<f64>().map_err(|error| not_a(error, name, "a number", object))?;
    Ok(value as f32)
}

/// Reads a number, or a list of them.
///
/// # Errors
/// - `TypeError` if it is none.
pub fn number_column(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Column<f32>> {
    match Held::of(object, name)? {
        Held::One => number(object, name).map(Column::All),
        Held::List => iterated(object, name, "a list", |item| number(&item, name)).map(Column::Rows),
        Held::Array(array) => {
            let vector = array.vector(name)?;
            if vector.len() > LONGEST {
                return Err(too_long(name, vector.len(), LONGEST));
            }
            collected(object.py(), vector.numbers(name), name, LONGEST).map(Column::Rows)
        }
    }
}

/// Reads a list of truth values.
pub fn truths(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<bool>> {
    iterated(object, name, "a list or an array of bools", |item| item.is_truthy())
}

/// Reads a token for each row, or `None` or -1 for none.
pub fn forced(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<Option<u32>>> {
    let token = |value: i64| match value {
        -1 => Ok(None),
        _ => u32::try_from(value).map(Some).map_err(|_| out_of_range(name, value, "an id, or -1 for none")),
    };
    if object.is_instance_of::<PyList>() {
        let one = |item: Bound<'_, PyAny>| if item.is_none() { Ok(None) } else { token(whole(&item, name)?) };
        return iterated(object, name, "a list", one);
    }
    integers::<i64>(object, name)?.into_iter().map(token).collect()
}
