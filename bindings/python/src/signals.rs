//! Signals, Ctrl-C for one, in calls that may take long: Python's handlers run only where a call looks for
//! them.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The time between two looks.
pub const LOOK: Duration = Duration::from_millis(50);

/// Runs the handlers of signals that came, on Python's main thread; the caller need not hold the GIL.
///
/// # Errors
/// - The exception of a handler.
pub fn look() -> PyResult<()> {
    Python::try_attach(|py| py.check_signals()).transpose().map(drop)
}

/// A listener of a call that does many short things, without the GIL.
#[derive(Debug)]
pub struct Listener {
    last: Instant,
}

impl Listener {
    pub fn new() -> Self {
        Self { last: Instant::now() }
    }

    /// Looks for signals if the last look was a while ago.
    ///
    /// # Errors
    /// - The exception of a handler.
    pub fn listen(&mut self) -> PyResult<()> {
        if self.last.elapsed() < LOOK {
            return Ok(());
        }
        self.last = Instant::now();
        look()
    }
}
