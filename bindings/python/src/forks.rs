//! Forks: whether this process is still the one in which something was made.
//!
//! A child of `os.fork` has one thread: the one that forked. What other threads held at that moment stays locked in the child for
//! ever, and no GPU works there. Python says when it has forked, so that both can be refused instead of waited for.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

use crate::errors::UnavailableError;

/// How many forks lie between the process that loaded this module and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns a number that is another one in each child.
pub fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Takes note that this process is a child.
#[pyfunction]
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Asks Python to call [`forked`] in each child.
pub fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let (py, os) = (module.py(), module.py().import("os")?);
    let Some(register) = os.getattr_opt("register_at_fork")? else { return Ok(()) };
    let call = wrap_pyfunction!(forked, module)?;
    register.call((), Some(&[("after_in_child", call)].into_py_dict(py)?)).map(drop)
}

/// Refuses to use a GPU that was opened in a parent of this process.
///
/// # Errors
/// - `UnavailableError`.
pub fn refuse_gpu_of(made: u32) -> PyResult<()> {
    if made == count() {
        return Ok(());
    }
    let text =
        "a GPU is not available in a child of os.fork whose parent has opened it: start processes by spawn";
    Err(UnavailableError::new_err(text))
}
