//! Forks: whether this process is the one that made an object.
//!
//! A child of `os.fork` has one thread: the copy of the thread that forked. Locks that other threads held at
//! that moment stay locked in the child for ever, and no GPU works there. Python calls [`forked`] after a
//! fork, so that the child gets an error in both cases instead of a hang.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

use crate::errors::UnavailableError;

/// The number of forks between the process that loaded this module and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns a number that differs between a process and each of its children.
pub fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Records that this process is a child; Python calls it in the child after os.fork.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Registers [`forked`] to be called in each child.
pub fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let (py, os) = (module.py(), module.py().import("os")?);
    let Some(register) = os.getattr_opt("register_at_fork")? else { return Ok(()) };
    let call = wrap_pyfunction!(forked, module)?;
    register.call((), Some(&[("after_in_child", call)].into_py_dict(py)?)).map(drop)
}

/// Returns an error if this process is not the one in which [`count`] returned `made`; its GPU cannot be used
/// here.
///
/// # Errors
/// - `UnavailableError`: the GPU was opened in a parent of this process.
pub fn refuse_gpu_of(made: u32) -> PyResult<()> {
    if made == count() {
        return Ok(());
    }
    let text =
        "a GPU is not available in a child of os.fork whose parent has opened it: start processes by spawn";
    Err(UnavailableError::new_err(text))
}
