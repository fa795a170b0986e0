//! Turns: a sampler or a pool is used by one thread at a time; the others wait.
//!
//! Threads that share a sampler or a pool take turns. While a hook runs, the call that runs it keeps its
//! turn. A hook must therefore not wait for that turn. Three cases can be detected and are refused:
//!
//! - A hook calls the object that runs it, on any thread of the step.
//! - A hook steps another object, whose hook calls the first object.
//! - Several hooks wait for each other: each calls an object whose turn the call of another hook keeps.
//!
//! Waits of a hook by Python's own means, such as joining a thread, cannot be detected. A call that
//! waits for a hook's turn therefore gives up after `PATIENCE_MS`.

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
        let _known = Waiting::for_turn(self.address())?;
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

/// The waiting hooks of a process.
struct WaitingHooks {
    /// The fork count of the process. A child inherits the list but none of the waiting threads.
    forks: u32,
    list: Vec<Waits>,
}

/// A hook that waits for a turn.
#[derive(Clone, PartialEq, Eq)]
struct Waits {
    /// The addresses of the objects whose hooks this thread is running.
    inside: Vec<usize>,
    /// The address of the object whose turn it waits for.
    wanted: usize,
}

static WAITING: Mutex<WaitingHooks> = Mutex::new(WaitingHooks { forks: 0, list: Vec::new() });

/// Keeps a waiting hook in the list until it is dropped.
struct Waiting(Waits);

impl Waiting {
    /// Records that this thread waits, if it is running a hook; returns `None` if it is not.
    ///
    /// # Errors
    /// - `RuntimeError` if the object's turn is kept by a call that waits, directly or through others, for
    ///   this hook.
    fn for_turn(wanted: usize) -> PyResult<Option<Self>> {
        let inside = hooks::inside();
        if inside.is_empty() {
            return Ok(None);
        }
        let mut waiting = lock(&WAITING);
        if waiting.forks != forks::count() {
            *waiting = WaitingHooks { forks: forks::count(), list: Vec::new() };
        }
        if waits_for(&waiting.list, wanted, &inside) {
            let text = "hooks wait for each other: this one for what another hook is run for, and that one, by itself or through \
                        others, for what this one is run for";
            return Err(CallError::new_err(text));
        }
        let waits = Waits { inside, wanted };
        waiting.list.push(waits.clone());
        Ok(Some(Self(waits)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = lock(&WAITING);
        if let Some(index) = waiting.list.iter().position(|waits| *waits == self.0) {
            waiting.list.swap_remove(index);
        }
    }
}

/// Returns whether the turn of `wanted` is kept for one of `held`, directly or through other waiting
/// hooks.
fn waits_for(waiting: &[Waits], wanted: usize, held: &[usize]) -> bool {
    let mut reached = vec![wanted];
    let mut next = 0;
    while let Some(kept) = reached.get(next).copied() {
        if held.contains(&kept) {
            return true;
        }
        for Waits { inside, wanted } in waiting {
            if inside.contains(&kept) && !reached.contains(wanted) {
                reached.push(*wanted);
            }
        }
        next += 1;
    }
    false
}
