//! Hooks: Python's own edits of a row, after the engine's and before its bans.
//!
//! A hook is given a copy of the row as an array of numpy, whose memory that array holds, and the row is what it left there: so an
//! array that outlives the call, or was reshaped in it, does no harm. An exception leaves the engine as a panic, which changes no
//! sequence, and becomes an exception again in `caught`. What a hook is run for is kept meanwhile, so the hook must not ask it
//! anything: that is refused here, as waiting would never end ([`crate::turns`] says what else is).

use std::any::Any;
use std::cell::{RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{not_a, wrong_type};
use crate::lists::{LONGEST, collected};
use crate::modules;
use crate::turns::{Caller, Counted};

/// How many hooks may be run inside each other: each takes its part of the thread's stack.
const DEPTH: usize = 32;

thread_local! {
    /// The addresses of what the hooks are run for that this thread is in, the innermost last. A step of several threads hands
    /// those of its caller to the threads on which its own hooks run.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the addresses of what the hooks are run for that this thread is in.
pub fn inside() -> Vec<usize> {
    INSIDE.with_borrow(Clone::clone)
}

/// A callable of Python's that edits a row.
#[derive(Debug)]
pub struct Hook(Py<PyAny>);

/// A copy of a row, which an array of numpy shows.
#[pyclass(frozen)]
struct Copied(Box<[UnsafeCell<f32>]>);

// SAFETY: the numbers are read here under the GIL, and go out as an address for numpy, which leaves it to its users, as everywhere,
// that no thread writes what another reads.
unsafe impl Sync for Copied {}

impl Hook {
    /// Reads a hook.
    ///
    /// # Errors
    /// - `TypeError` for what cannot be called.
    pub fn read(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        if !object.is_callable() {
            return Err(wrong_type(name, "callable", object));
        }
        modules::load_numpy(object.py())?;
        Ok(Self(object.clone().unbind()))
    }

    /// Reads hooks, one for each row; None is none.
    ///
    /// # Errors
    /// - `TypeError` for what is no list, and for an element that cannot be called.
    pub fn read_all(object: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Self>>> {
        let wanted = "a list of callables and None";
        let one = |hook: PyResult<Bound<'_, PyAny>>| {
            let hook = hook?;
            (!hook.is_none()).then(|| Self::read(&hook, "hooks' element")).transpose()
        };
        let items = object.try_iter().map_err(|error| not_a(error, "hooks", wanted, object))?;
        collected(object.py(), items.map(one), "hooks", LONGEST)
    }

    /// Runs it over a row, for a call. An exception goes on as a panic, for [`caught`].
    pub fn run(&self, caller: &Caller<'_>, row: &mut [f32]) {
        /// Goes back to where the thread was, however the hook ends.
        struct Back(Vec<usize>);
        impl Drop for Back {
            fn drop(&mut self) {
                INSIDE.set(std::mem::take(&mut self.0));
            }
        }
        let _at_work = Counted::new(caller.hooks);
        let _back = Back(INSIDE.replace(caller.holds.clone()));
        if let Err(error) = Python::attach(|py| self.call(py, row)) {
            resume_unwind(Box::new(error));
        }
    }

    fn call(&self, py: Python<'_>, row: &mut [f32]) -> PyResult<()> {
        let copied = Bound::new(py, Copied(row.iter().map(|z| UnsafeCell::new(*z)).collect()))?;
        let address = copied.get().0.as_ptr().cast::<f32>();
        // SAFETY: there are as many numbers, side by side.
        let view = unsafe { ArrayView1::from_shape_ptr(row.len(), address) };
        // SAFETY: they stay where they are for as long as the copy lives, which the array holds.
        let array = unsafe { PyArray1::borrow_from_array(&view, copied.clone().into_any()) };
        let left = called(self.0.bind(py), &PyTuple::new(py, [array])?)?;
        if !left.is_none() {
            let kind = left.get_type().name()?;
            let text = format!("a hook must change the logits that it is given and return None, not {kind}");
            return Err(PyTypeError::new_err(text));
        }
        for (to, from) in row.iter_mut().zip(&copied.get().0) {
            // SAFETY: the GIL is held, and what other threads write is their users' concern.
            *to = unsafe { *from.get() };
        }
        Ok(())
    }
}

unsafe extern "C-unwind" {
    /// Python's own, which returns, or ends the thread: then it unwinds.
    fn PyObject_CallObject(callable: *mut ffi::PyObject, arguments: *mut ffi::PyObject)
    -> *mut ffi::PyObject;
}

/// Calls a callable.
///
/// At exit Python ends a daemon thread where it next asks for the GIL, which is in the middle of a hook. That unwinds through
/// frames of ours, and further up through some that must not be unwound, so it stops here: the thread waits for the process to end.
fn called<'py>(callable: &Bound<'py, PyAny>, arguments: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    /// Is dropped by unwinding alone.
    struct Stay;
    impl Drop for Stay {
        fn drop(&mut self) {
            loop {
                std::thread::park();
            }
        }
    }
    let stay = Stay;
    // SAFETY: both are live objects, the latter a tuple, and the GIL is held.
    let left = unsafe { PyObject_CallObject(callable.as_ptr(), arguments.as_ptr()) };
    std::mem::forget(stay);
    // SAFETY: it is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), left) }
}

/// Refuses a call to what lies at `owner` by a hook that is run for it, or by one too many hooks inside each other.
///
/// # Errors
/// - `RuntimeError`.
pub fn refuse_inside(owner: usize) -> PyResult<()> {
    INSIDE.with_borrow(|inside| {
        if inside.contains(&owner) {
            let text = "a hook must not use the sampler or the pool that it is run for, which is in the middle of a step";
            return Err(PyRuntimeError::new_err(text));
        }
        if inside.len() >= DEPTH {
            let text = format!("hooks are run inside each other {DEPTH} deep, but may be at most that deep");
            return Err(PyRuntimeError::new_err(text));
        }
        Ok(())
    })
}

/// Does work in which hooks may run, and which must not break off as a panic. `untouched` says what is as it was if it does.
///
/// # Errors
/// - The exception of a hook that raised one.
/// - `RuntimeError` if something of ours breaks.
pub fn caught<R>(untouched: &str, work: impl FnOnce() -> R) -> PyResult<R> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| match payload.downcast::<PyErr>() {
        Ok(error) => *error,
        Err(payload) => broken(&*payload, untouched),
    })
}

/// What is as it was where a call breaks off that has no sequences.
pub const OUTPUTS: &str = "what it was to write is unspecified";

/// Returns the exception for a panic.
fn broken(payload: &(dyn Any + Send), untouched: &str) -> PyErr {
    let said = payload.downcast_ref::<&str>().copied();
    let said =
        said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given");
    let text = format!(
        "the call broke off: {said}; {untouched}. Unless another thread wrote the call's arrays meanwhile, this is a defect of gumball: \
         please report it"
    );
    PyRuntimeError::new_err(text)
}

/// Breaks off as a defect would, on this thread or on those of operators; for tests.
#[pyfunction]
pub fn break_off(py: Python<'_>, text: String) -> PyResult<()> {
    py.detach(|| caught(OUTPUTS, || panic!("{text}")))
}
