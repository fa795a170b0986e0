//! Weights of heads: the memory of other libraries, borrowed or copied, and permuted where a caller wants
//! that.
//!
//! Weights are borrowed where their rows follow each other in the host's memory, and copied where not. What
//! keeps borrowed weights alive is held: of a tensor of torch a second one with the same memory, so that
//! another tensor's data in the first one's place do no harm. A write to borrowed weights cannot be
//! prevented; torch counts its own, and a count that has grown is an error.

use gumball_engine::Row;
use gumball_engine::head::Weights;
use pyo3::intern;
use pyo3::prelude::*;

use crate::arrays::{Array, Matrix};
use crate::errors::{CallError, InvalidValueError, out_of_range};
use crate::modules;

/// What keeps borrowed weights alive, and how many writes there were when the head was made.
#[derive(Debug)]
pub struct Borrowed {
    owner: Py<PyAny>,
    _loan: Option<Py<PyAny>>,
    version: Option<i64>,
}

impl Borrowed {
    /// Holds what keeps an array's memory alive.
    pub fn of(object: &Bound<'_, PyAny>, array: Array<'_>) -> PyResult<Self> {
        let owner = match modules::torch_of(object)? {
            Some(_) => object.call_method0(intern!(object.py(), "detach"))?,
            None => object.clone(),
        };
        let version = version(&owner);
        Ok(Self { owner: owner.unbind(), _loan: array.into_loan(), version })
    }

    /// Refuses weights that were written since.
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.version.is_some_and(|made| version(self.owner.bind(py)).is_some_and(|now| now != made)) {
            let text = "the weights of the head were written since it was made; make a new one";
            return Err(CallError::new_err(text));
        }
        Ok(())
    }

    /// Notes that a head has permuted the weights, and adds to torch's count of writes, so that other heads
    /// over them refuse to go on.
    pub fn written_here(self, object: &Bound<'_, PyAny>) -> Self {
        // Older versions of torch have no such function, and tensors of inference mode no count. No head asks
        // for it then.
        let _ = count_write(object);
        Self { version: version(self.owner.bind(object.py())), ..self }
    }
}

/// Returns how many writes torch has counted to the memory of a tensor; `None` for other arrays, and for
/// tensors without a count.
fn version(object: &Bound<'_, PyAny>) -> Option<i64> {
    object.getattr(intern!(object.py(), "_version")).ok()?.extract().ok()
}

/// Counts a write to the memory of a tensor.
fn count_write(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(torch) = modules::torch_of(object)? else { return Ok(()) };
    torch.getattr("autograd")?.getattr("graph")?.call_method1("increment_version", (object,)).map(|_| ())
}

/// Copies rows that do not follow each other.
fn packed(matrix: &Matrix) -> Weights<'static> {
    fn rows<T: Copy>(all: &[T], matrix: &Matrix) -> Vec<T> {
        (0..matrix.rows).flat_map(|row| &all[row * matrix.stride..][..matrix.width]).copied().collect()
    }
    // SAFETY: the elements lie on the host, as the caller checked, and the caller holds the array; Python's
    // callers do not write it during the call.
    match unsafe { matrix.floats() } {
        Row::F32(all) => rows(all, matrix).into(),
        Row::Bf16(all) => rows(all, matrix).into(),
        Row::F16(all) => rows(all, matrix).into(),
    }
}

/// Returns weights as they lie, if each row follows the one before it, and whether they do; else a copy.
pub fn borrowed_or_packed(matrix: &Matrix) -> (bool, Weights<'static>) {
    if !follow_each_other(matrix) {
        return (false, packed(matrix));
    }
    // SAFETY: the elements lie on the host, as the caller checked. The maker of a head keeps them alive as
    // long as it; the class' documentation forbids writing them.
    let all = match unsafe { matrix.floats() } {
        Row::F32(all) => Weights::from(all),
        Row::Bf16(all) => all.into(),
        Row::F16(all) => all.into(),
    };
    (true, all)
}

fn follow_each_other(matrix: &Matrix) -> bool {
    matrix.rows <= 1 || matrix.stride == matrix.width
}

/// Checks that the rows of weights can be permuted where they lie.
pub fn check_movable(array: &Array<'_>, matrix: &Matrix) -> PyResult<()> {
    if !follow_each_other(matrix) {
        let allowed = format!("{}, as rows that are permuted in place must follow each other", matrix.width);
        return Err(out_of_range("weights' stride", matrix.stride, allowed));
    }
    if array.readonly {
        return Err(InvalidValueError::new_err("weights must not be written, but in_place is True"));
    }
    Ok(())
}
