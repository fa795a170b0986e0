//! Hooks: Python callables that edit a row after the engine's biases and before its bans.
//!
//! A hook gets a numpy array with a copy of the row; afterwards the row is overwritten with the copy. The
//! array owns the copy's memory, so it stays valid when the hook keeps or reshapes it. An exception in a hook
//! unwinds through the engine as a panic, which changes no sequence; `caught` turns it into an exception
//! again.
//!
//! While a hook runs, the sampler or pool that runs it is locked. A hook that calls it would wait for ever,
//! so such a call is refused here. [`crate::turns`] names the other refused calls.

use std::any::Any;
use std::cell::{RefCell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{CallError, InvalidTypeError, not_a, wrong_type};
use crate::lists::{LONGEST, collected};
use crate::modules;
use crate::turns::{Caller, Counted};

/// The largest depth of hooks that run inside other hooks, because each uses a part of the thread's stack.
const DEPTH: usize = 32;

thread_local! {
    /// The addresses of the locked objects whose hooks this thread is running, the innermost last. A step on
    /// several threads passes the list of its caller to the threads that run its hooks.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the addresses of the locked objects whose hooks this thread is running.
pub fn inside() -> Vec<usize> {
    INSIDE.with_borrow(Clone::clone)
}

/// A Python callable that edits a row.
#[derive(Debug)]
pub struct Hook(Py<PyAny>);

/// A copy of a row, whose memory a numpy array shows.
#[pyclass(frozen)]
struct Copied(Box<[UnsafeCell<f32>]>);

// SAFETY: this file reads the numbers only while it holds the GIL. numpy gets their address and, as for every
// array, leaves it to its users that no thread writes what another reads.
unsafe impl Sync for Copied {}

impl Hook {
    /// Takes a callable as a hook.
    ///
    /// # Errors
    /// - `TypeError` if the object cannot be called.
    pub fn read(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        if !object.is_callable() {
            return Err(wrong_type(name, "callable", object));
        }
        modules::load_numpy(object.py())?;
        Ok(Self(object.clone().unbind()))
    }

    /// Reads one hook per row; `None` means no hook.
    ///
    /// # Errors
    /// - `TypeError` if the object is not iterable, or an element cannot be called.
    pub fn read_all(object: &Bound<'_, PyAny>) -> PyResult<Vec<Option<Self>>> {
        let wanted = "a list of callables and None";
        let one = |hook: PyResult<Bound<'_, PyAny>>| {
            let hook = hook?;
            (!hook.is_none()).then(|| Self::read(&hook, "hooks' element")).transpose()
        };
        let items = object.try_iter().map_err(|error| not_a(error, "hooks", wanted, object))?;
        collected(object.py(), items.map(one), "hooks", LONGEST)
    }

    /// Runs the hook over a row. An exception continues as a panic, for [`caught`].
    pub fn run(&self, caller: &Caller<'_>, row: &mut [f32]) {
        /// Restores the thread's list of locked objects, also if the hook panics.
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
        // SAFETY: `address` points to `row.len()` adjacent f32 in the box of `copied`, which has one for each
        // number of `row`.
        let view = unsafe { ArrayView1::from_shape_ptr(row.len(), address) };
        // SAFETY: the box's memory does not move while `copied` lives, and the array keeps `copied` alive.
        let array = unsafe { PyArray1::borrow_from_array(&view, copied.clone().into_any()) };
        let left = called(self.0.bind(py), &PyTuple::new(py, [array])?)?;
        if !left.is_none() {
            let kind = left.get_type().name()?;
            let text = format!("a hook must change the logits that it is given and return None, not {kind}");
            return Err(InvalidTypeError::new_err(text));
        }
        for (to, from) in row.iter_mut().zip(&copied.get().0) {
            // SAFETY: the cell is in the box of `copied`; the GIL is held, and users of numpy answer for
            // writes by other threads.
            *to = unsafe { *from.get() };
        }
        Ok(())
    }
}

unsafe extern "C-unwind" {
    /// CPython's function. At exit it may end the thread instead of returning; it then unwinds.
    fn PyObject_CallObject(callable: *mut ffi::PyObject, arguments: *mut ffi::PyObject)
    -> *mut ffi::PyObject;
}

/// Calls a callable.
///
/// At exit Python ends a daemon thread at its next attempt to take the GIL, which may be in the middle of a
/// hook. Python does so by unwinding the stack. Some frames further up must not be unwound, so `Stay` stops
/// it here, and the thread waits for the process to end.
fn called<'py>(callable: &Bound<'py, PyAny>, arguments: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    /// Dropped only by unwinding; then it parks the thread for ever.
    struct Stay;
    impl Drop for Stay {
        fn drop(&mut self) {
            loop {
                std::thread::park();
            }
        }
    }
    let stay = Stay;
    // SAFETY: `callable` and `arguments` are live objects, the latter a tuple, and the GIL is held.
    let left = unsafe { PyObject_CallObject(callable.as_ptr(), arguments.as_ptr()) };
    std::mem::forget(stay);
    // SAFETY: `left` is a new reference, or null with an exception set, as `PyObject_CallObject` returns it.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), left) }
}

/// Refuses a call to the object at address `owner` by a hook that it runs, or by a hook at the largest depth.
///
/// # Errors
/// - `RuntimeError` in both cases.
pub fn refuse_inside(owner: usize) -> PyResult<()> {
    INSIDE.with_borrow(|inside| {
        if inside.contains(&owner) {
            let text = "a hook must not use the sampler or the pool that it is run for, which is in the middle of a step";
            return Err(CallError::new_err(text));
        }
        if inside.len() >= DEPTH {
            let text = format!("hooks are run inside each other {DEPTH} deep, but may be at most that deep");
            return Err(CallError::new_err(text));
        }
        Ok(())
    })
}

/// Runs `work`, in which hooks may run, and turns a panic into an exception. `untouched` says for the message
/// what such a call leaves unchanged.
///
/// # Errors
/// - The exception of a hook that raised one.
/// - `RuntimeError` for any other panic, which is a defect of this package.
pub fn caught<R>(untouched: &str, work: impl FnOnce() -> R) -> PyResult<R> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| match payload.downcast::<PyErr>() {
        Ok(error) => *error,
        Err(payload) => broken(&*payload, untouched),
    })
}

/// The state after a panic in a call without sequences, for the message.
pub const OUTPUTS: &str = "what it was to write is unspecified";

/// Returns the exception for a panic that is a defect.
fn broken(payload: &(dyn Any + Send), untouched: &str) -> PyErr {
    let said = payload.downcast_ref::<&str>().copied();
    let said =
        said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given");
    let text = format!(
        "the call broke off: {said}; {untouched}. Unless another thread wrote the call's arrays meanwhile, this is a defect of gumball: \
         please report it"
    );
    CallError::new_err(text)
}

/// Panics as a defect would; for tests. Raises RuntimeError with the text.
#[pyfunction]
pub fn break_off(py: Python<'_>, text: String) -> PyResult<()> {
    py.detach(|| caught(OUTPUTS, || panic!("{text}")))
}
