//! Kept sets in the smaller of two forms, a list of ids or a bitmask, as they leave an engine.

use gumball_engine::set_ids;
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arguments::argument;
use crate::{arrays, modules};

/// The first word of a set whose other words are its bitmask.
const BITMASK: i32 = -1;

/// Lengths of sets, and their words one set after the other.
type Packed<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i32>>);

/// Returns kept sets, given as bitmasks [rows, words] on the host, as (lengths [rows] int64, ids int32): the
/// ids of each row ascending. With bitmasks, a row that is smaller as -1 and its words is these.
#[pyfunction]
#[pyo3(signature = (sets, bitmasks))]
pub fn packed_sets<'py>(
    py: Python<'py>,
    sets: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = argument)] bitmasks: bool,
) -> PyResult<Packed<'py>> {
    modules::load_numpy(py)?;
    let array = arrays::read(sets, "sets", None)?;
    let matrix = array.matrix("sets")?;
    matrix.check_host("sets")?;
    matrix.check_words("sets")?;
    // SAFETY: the elements are 32-bit words on the host, as checked. `array` keeps them alive, and the
    // package's documentation forbids writes to an argument during a call.
    let words = unsafe { matrix.elements::<u32>() };
    let (lengths, ids) = py.detach(|| {
        let (mut lengths, mut ids) = (Vec::with_capacity(matrix.rows), Vec::new());
        for row in 0..matrix.rows {
            let (words, start) = (&words[row * matrix.stride..][..matrix.width], ids.len());
            let count: u32 = words.iter().map(|word| word.count_ones()).sum();
            if bitmasks && count as usize > 1 + matrix.width {
                ids.push(BITMASK);
                ids.extend(words.iter().map(|word| word.cast_signed()));
            } else {
                ids.extend(set_ids(words).map(u32::cast_signed));
            }
            lengths.push((ids.len() - start) as i64);
        }
        (lengths, ids)
    });
    Ok((PyArray1::from_vec(py, lengths), PyArray1::from_vec(py, ids)))
}
