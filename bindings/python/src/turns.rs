//! Turns: a sampler or a pool is used by one thread at a time; the others wait.
//!
//! Threads that share a sampler or a pool take turns. While a hook runs, the call that runs it keeps its
//! turn. A hook must therefore not wait for that turn: a call of the object that runs it, by itself or by
//! the hook of another object that it steps, is refused at once. Hooks of two calls that wait for each
//! other, and waits by Python's own means, such as joining a thread, end otherwise: a call that waits for a
//! hook's turn gives up after `PATIENCE_MS`.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::CallError;
use crate::forks;
use crate::hooks;
use crate::signals::{self, LOOK};

/// The longest time that a call waits while a hook keeps the turn, in milliseconds.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(30_000);

/// Sets how long, in seconds, a call waits while a hook of another call keeps the turn; for tests.
#[pyfunction]
pub fn set_patience(seconds: f64) {
    PATIENCE_MS.store((seconds * 1e3) as u64, Ordering::Relaxed);
}

/// A value that one thread at a time uses.
#[derive(Debug)]
pub struct Turns<T> {
    value: Mutex<T>,
    /// The fork count of the process whose thread had the turn last.
    process: AtomicU32,
    /// The number of hooks that the call with the turn is running.
    hooks: AtomicUsize,
    /// The number of calls that wait for the turn.
    waiting: AtomicUsize,
    gate: Mutex<()>,
    freed: Condvar,
}

/// The turn; dropping it wakes a waiting call.
struct Turn<'a, T> {
    value: Option<MutexGuard<'a, T>>,
    turns: &'a Turns<T>,
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        // A call that begins to wait later counts itself in `waiting` first and then tries again, so no
        // wakeup is lost.
        fence(Ordering::SeqCst);
        if self.turns.waiting.load(Ordering::SeqCst) > 0 {
            let _gate = lock(&self.turns.gate);
            self.turns.freed.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Send> Turns<T> {
    pub fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            process: AtomicU32::new(forks::count()),
            hooks: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            gate: Mutex::new(()),
            freed: Condvar::new(),
        }
    }

    /// Returns the value; no other thread can reach it any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the objects whose turns a call of this thread keeps while its hooks run: this one, and those
    /// it runs inside of.
    pub fn caller(&self) -> Caller<'_> {
        let mut holds = hooks::inside();
        holds.push(self.address());
        Caller { holds, hooks: &self.hooks }
    }

    /// Runs `work` on the value, without the GIL, when it is this call's turn.
    ///
    /// # Errors
    /// - `RuntimeError` if the turn may never come, or if the work panics; `untouched` says what the panic
    ///   left unchanged.
    /// - The exception of a hook, or of a signal's handler.
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        untouched: &'static str,
        work: impl FnOnce(&mut T) -> R + Send,
    ) -> PyResult<R> {
        hooks::refuse_inside(self.address())?;
        py.detach(|| {
            let mut turn = self.take()?;
            let value = turn.value.as_deref_mut().expect("there until it is dropped");
            hooks::caught(untouched, || work(value))
        })
    }

    /// Returns the address by which hooks identify this object.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn take(&self) -> PyResult<Turn<'_, T>> {
        match self.try_take() {
            Some(turn) => Ok(turn),
            None => self.wait(),
        }
    }

    fn try_take(&self) -> Option<Turn<'_, T>> {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let process = forks::count();
        if self.process.load(Ordering::Relaxed) != process {
            self.process.store(process, Ordering::Relaxed);
            // The waiting threads exist only in the parent process.
            self.waiting.store(0, Ordering::SeqCst);
        }
        Some(Turn { value: Some(value), turns: self })
    }

    /// Waits for the turn.
    fn wait(&self) -> PyResult<Turn<'_, T>> {
        if self.process.load(Ordering::Relaxed) != forks::count() {
            let text = "it was in use by another thread when this process was forked, and stays so for ever: make a new one in the \
                        child, or start processes by spawn";
            return Err(CallError::new_err(text));
        }
        let since = Instant::now();
        let _counted = Counted::new(&self.waiting);
        loop {
            let gate = lock(&self.gate);
            if let Some(turn) = self.try_take() {
                return Ok(turn);
            }
            drop(self.freed.wait_timeout(gate, LOOK).unwrap_or_else(PoisonError::into_inner));
            if let Some(turn) = self.try_take() {
                return Ok(turn);
            }
            let patience = Duration::from_millis(PATIENCE_MS.load(Ordering::Relaxed));
            if since.elapsed() >= patience && self.hooks.load(Ordering::Relaxed) > 0 {
                return Err(given_up(patience));
            }
            signals::look()?;
        }
    }
}

/// Returns the error of a call that has waited for a hook for the longest allowed time.
fn given_up(patience: Duration) -> PyErr {
    let text = format!(
        "it is in the middle of a step whose hook has not come back for {} s; a hook must not wait for a thread that uses the sampler \
         or the pool that the hook is run for",
        patience.as_secs_f64()
    );
    CallError::new_err(text)
}

/// The facts of a call that its hooks need.
#[derive(Debug)]
pub struct Caller<'a> {
    /// The addresses of the objects whose turns the call keeps, the innermost last.
    pub holds: Vec<usize>,
    /// The number of the call's running hooks.
    pub hooks: &'a AtomicUsize,
}

/// Counts one more until it is dropped.
#[derive(Debug)]
pub struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
