//! Runs an operator: on the host, or on a device and a stream.

use std::sync::{Mutex, PoisonError};

use gumball_engine::{Error, Operators, Result};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use super::by_stream;
use super::input::Input;
use crate::errors::{rows_names, to_py_err};
use crate::forks;
use crate::hooks::{OUTPUTS, caught};

/// Runs `work` with the operators of the memory that the rows of `input` lie in, without the GIL.
pub fn run<R: Send>(input: &Input<'_, '_>, work: impl FnOnce(&Operators) -> Result<R> + Send) -> PyResult<R> {
    let py = input.object.py();
    // The engine's names of what Python calls otherwise.
    let argument = |name| match name {
        "row_indices" => "indices",
        "seeds" => "seed",
        "positions" => "position",
        "draws" => "draw",
        "masks" | "masks.width" => "kept",
        "width" => "ids.shape[-1]",
        name => name,
    };
    let named = |error: Error| rows_names(error.with_parameter(argument), input.name);
    let work = |operators: &Operators| work(operators).map_err(named);
    match input.key {
        Some(key) => by_stream::run(py, key, work),
        None => {
            let operators = on_host(py)?;
            py.detach(|| caught(OUTPUTS, || work(operators)))?.map_err(to_py_err)
        }
    }
}

/// Returns the host's operators of this process, which keep their buffers from call to call.
fn on_host(py: Python<'_>) -> PyResult<&'static Operators> {
    /// The operators and the fork count of their process. A child of a fork makes its own, because threads of
    /// its parent may have held the buffers.
    static OPERATORS: Mutex<Option<(u32, &'static Operators)>> = Mutex::new(None);
    let mut kept = OPERATORS.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
    match *kept {
        Some((process, operators)) if process == forks::count() => Ok(operators),
        _ => {
            let made: &Operators = Box::leak(Box::new(Operators::new(None, None).map_err(to_py_err)?));
            *kept = Some((forks::count(), made));
            Ok(made)
        }
    }
}
