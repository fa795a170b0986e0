//! Verification: which drafts of each request were accepted, and the tokens that were emitted.

use gumball_engine::Outputs as Verified;
use numpy::PyArray1;
use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::PySlice;

use crate::errors::not_a;
use crate::modules;
use crate::outputs::Outputs;

/// What Pool.verify returns. No later call changes it.
///
/// A request with n drafts has n + 1 rows in outputs. The first ones hold its emitted tokens, each with the
/// status, logprobs and ranks of the row of logits that it comes from; the others are as of padding.
#[pyclass(frozen, module = "gumball", name = "Verification")]
#[derive(Debug)]
pub struct Verification {
    outputs: Py<Outputs>,
    verified: Verified,
}

impl Verification {
    pub fn new(py: Python<'_>, verified: Verified, kept: bool) -> PyResult<Self> {
        Ok(Self { outputs: Py::new(py, Outputs::new(&verified, kept))?, verified })
    }

    /// Reads the number of a request.
    ///
    /// # Errors
    /// - `IndexError` if there is no such request; `TypeError` if the object is no integer.
    fn request(&self, request: &Bound<'_, PyAny>) -> PyResult<usize> {
        let requests = self.verified.accepted().len();
        let there = match request.extract::<i64>() {
            Ok(index) => usize::try_from(index).ok().filter(|index| *index < requests),
            Err(error) if error.is_instance_of::<PyOverflowError>(request.py()) => None,
            Err(error) => return Err(not_a(error, "request", "an integer", request)),
        };
        let text = || format!("request is {request}, but must be in 0..{requests}");
        there.ok_or_else(|| PyIndexError::new_err(text()))
    }
}

#[pymethods]
impl Verification {
    /// The Outputs: as many rows as there are requests and drafts together.
    #[getter]
    fn outputs(&self, py: Python<'_>) -> Py<Outputs> {
        self.outputs.clone_ref(py)
    }

    /// How many drafts of each request were accepted, [requests] uint32.
    #[getter]
    fn accepted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        modules::load_numpy(py)?;
        Ok(PyArray1::from_slice(py, self.verified.accepted()))
    }

    /// A request's emitted tokens, [accepted + 1] int32: the accepted drafts and one more, which is -1 from a
    /// row without a token. None at all for padding.
    ///
    /// Raises IndexError if there is no such request.
    fn tokens<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<i32>>> {
        let request = self.request(request)?;
        modules::load_numpy(py)?;
        Ok(PyArray1::from_slice(py, self.verified.request(request).tokens))
    }

    /// The rows of logits that a request's emitted tokens come from, [accepted + 1] uint32. These are also the
    /// rows whose keys and values a model's cache keeps. None at all for padding.
    ///
    /// Raises IndexError if there is no such request.
    fn rows<'py>(&self, py: Python<'py>, request: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let request = self.request(request)?;
        modules::load_numpy(py)?;
        Ok(PyArray1::from_slice(py, self.verified.request(request).rows))
    }

    /// The slice of the rows of outputs that hold a request's emitted tokens.
    ///
    /// Raises IndexError if there is no such request.
    fn places<'py>(&self, py: Python<'py>, request: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PySlice>> {
        let places = self.verified.request(self.request(request)?).range;
        Ok(PySlice::new(py, places.start as isize, places.end as isize, 1))
    }

    /// The emitted tokens of each request, a list of lists of int. Needs no numpy.
    fn tolist(&self) -> Vec<Vec<i32>> {
        (0..self.__len__()).map(|request| self.verified.request(request).tokens.to_vec()).collect()
    }

    fn __len__(&self) -> usize {
        self.verified.accepted().len()
    }

    fn __repr__(&self) -> String {
        format!("Verification(tokens={:?})", self.tolist())
    }
}
