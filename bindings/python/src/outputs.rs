//! Outputs: a step's results as numpy arrays over one buffer.

use std::cell::UnsafeCell;
use std::ops::Range;

use gumball_engine::{Layout, NONE, Outputs as EngineOutputs};
use numpy::ndarray::{ArrayView1, ArrayView2};
use numpy::{Element, PyArray1, PyArray2};
use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::errors::{not_a, out_of_range};
use crate::modules;

/// The results of a step with R rows, in the order of its rows.
///
/// The arrays are views of one buffer, which this object owns. No later step changes it.
///
/// ============== ===================== ============================================== =================
/// attribute      shape, dtype          what                                           without a value
/// ============== ===================== ============================================== =================
/// tokens         [R] int32             the tokens                                     -1
/// statuses       [R] uint32            bits of gumball.Status                         0
/// logprobs       [R] float32           of the tokens, natural                         -inf
/// ranks          [R] uint32            of the tokens, from 1                          0
/// temperatures   [R] float32           in use; 0 if greedy                            0
/// mirostat_mu    [R] float32           mirostat's limits after the rows, in bits      0
/// top_ids        [R, top_n] int32      the most likely ids                            -1
/// top_logprobs   [R, top_n] float32    their logprobs                                 -inf
/// id_logprobs    [R, ids] float32      of the ids that the request names              -inf
/// id_ranks       [R, ids] uint32       their ranks                                    0
/// ============== ===================== ============================================== =================
#[pyclass(frozen, module = "gumball", name = "Outputs")]
#[derive(Debug)]
pub struct Outputs {
    layout: Layout,
    /// Holders of arrays read and write the words. This file reads single words under the GIL and writes
    /// none.
    words: Box<[UnsafeCell<u32>]>,
    kept: Option<Vec<Vec<u32>>>,
    is_approximate: bool,
}

// SAFETY: threads share the layout and the kept sets, which never change. numpy gets the words' address and,
// as for every array, leaves it to its users that no thread writes what another reads.
unsafe impl Sync for Outputs {}

impl Outputs {
    /// Copies the engine's outputs: some words per row.
    pub fn new(out: &EngineOutputs, kept: bool) -> Self {
        let layout = out.layout();
        Self {
            layout,
            words: out.words().iter().map(|word| UnsafeCell::new(*word)).collect(),
            kept: kept.then(|| (0..layout.rows).map(|row| out.kept(row).to_vec()).collect()),
            is_approximate: out.is_approximate(),
        }
    }

    /// Reads the index of a row.
    ///
    /// # Errors
    /// - `IndexError` if the index is outside 0..R; `TypeError` if the object is no integer.
    fn row_index(&self, row: &Bound<'_, PyAny>) -> PyResult<usize> {
        let there = match row.extract::<i64>() {
            Ok(index) => usize::try_from(index).ok().filter(|index| *index < self.layout.rows),
            Err(error) if error.is_instance_of::<PyOverflowError>(row.py()) => None,
            Err(error) => return Err(not_a(error, "row", "an integer", row)),
        };
        let rows = self.layout.rows;
        there.ok_or_else(|| PyIndexError::new_err(format!("row is {row}, but must be in 0..{rows}")))
    }

    fn address<T>(&self, section: &Range<usize>) -> *mut T {
        self.words[section.clone()].as_ptr().cast::<T>().cast_mut()
    }

    fn row<'py, T: Element>(
        slf: &Bound<'py, Self>,
        section: Range<usize>,
    ) -> PyResult<Bound<'py, PyArray1<T>>> {
        modules::load_numpy(slf.py())?;
        let address = slf.get().address::<T>(&section);
        // SAFETY: `address` points to the `section.len()` words of the section; every word is a valid i32,
        // u32 and f32.
        let view = unsafe { ArrayView1::from_shape_ptr(section.len(), address) };
        // SAFETY: the words do not move while `slf` lives, and the array keeps `slf` alive.
        Ok(unsafe { PyArray1::borrow_from_array(&view, slf.clone().into_any()) })
    }

    fn matrix<'py, T: Element>(
        slf: &Bound<'py, Self>,
        section: Range<usize>,
        width: usize,
    ) -> PyResult<Bound<'py, PyArray2<T>>> {
        modules::load_numpy(slf.py())?;
        let address = slf.get().address::<T>(&section);
        // SAFETY: `address` points to the section's `rows * width` words; every word is a valid i32, u32 and
        // f32.
        let view = unsafe { ArrayView2::from_shape_ptr((slf.get().layout.rows, width), address) };
        // SAFETY: the words do not move while `slf` lives, and the array keeps `slf` alive.
        Ok(unsafe { PyArray2::borrow_from_array(&view, slf.clone().into_any()) })
    }
}

#[pymethods]
impl Outputs {
    #[getter]
    fn tokens<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<i32>>> {
        Self::row(slf, slf.get().layout.tokens())
    }

    #[getter]
    fn statuses<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        Self::row(slf, slf.get().layout.statuses())
    }

    #[getter]
    fn logprobs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        Self::row(slf, slf.get().layout.logprobs())
    }

    #[getter]
    fn ranks<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        Self::row(slf, slf.get().layout.ranks())
    }

    #[getter]
    fn temperatures<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        Self::row(slf, slf.get().layout.temperatures())
    }

    #[getter]
    fn mirostat_mu<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        Self::row(slf, slf.get().layout.mirostat_mu())
    }

    #[getter]
    fn top_ids<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray2<i32>>> {
        Self::matrix(slf, slf.get().layout.top_ids(), slf.get().layout.widths.top_n)
    }

    #[getter]
    fn top_logprobs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        Self::matrix(slf, slf.get().layout.top_logprobs(), slf.get().layout.widths.top_n)
    }

    #[getter]
    fn id_logprobs<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        Self::matrix(slf, slf.get().layout.id_logprobs(), slf.get().layout.widths.ids)
    }

    #[getter]
    fn id_ranks<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        Self::matrix(slf, slf.get().layout.id_ranks(), slf.get().layout.widths.ids)
    }

    /// Whether the rows came from a clustered head: tokens, kept sets, logprobs and ranks are those of the ids that it computed, and approximate the exact
    /// head's.
    #[getter]
    fn is_approximate(&self) -> bool {
        self.is_approximate
    }

    /// The tokens as a list of int, -1 where there is none. Needs no numpy.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // SAFETY: the cell belongs to `self.words`; holders of arrays write it only under the GIL, which is
        // held here.
        let token = |word: &UnsafeCell<u32>| unsafe { *word.get() }.cast_signed();
        PyList::new(py, self.words[self.layout.tokens()].iter().map(token))
    }

    /// The token of a row, or None if it has none. Needs no numpy.
    ///
    /// Raises IndexError if the row is outside 0..R.
    fn token(&self, row: &Bound<'_, PyAny>) -> PyResult<Option<i32>> {
        let row = self.row_index(row)?;
        // SAFETY: the cell belongs to `self.words`; holders of arrays write it only under the GIL, which is
        // held here.
        let token = unsafe { *self.words[self.layout.tokens()][row].get() }.cast_signed();
        Ok(Some(token).filter(|token| *token != NONE))
    }

    /// The ids that a row's filters kept, [K] uint32, ascending.
    ///
    /// Raises ValueError unless the pool was made with kept=True, IndexError if the row is outside 0..R.
    fn kept<'py>(&self, py: Python<'py>, row: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let kept = self.kept.as_ref();
        let kept = kept.ok_or_else(|| out_of_range("kept", "False", "True when the pool is made"))?;
        let row = self.row_index(row)?;
        modules::load_numpy(py)?;
        Ok(PyArray1::from_slice(py, &kept[row]))
    }

    fn __len__(&self) -> usize {
        self.layout.rows
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Outputs(tokens={})", self.tolist(py)?.repr()?))
    }
}
