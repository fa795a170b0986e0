//! Signals while ranks wait for each other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gumball_engine::dist::Patience;
use gumball_engine::{Error, RanksError};
use pyo3::prelude::*;

use crate::errors::to_py_err;

/// Ends waits for other ranks when the handler of a signal raises, and keeps what it raised.
#[derive(Clone, Debug, Default)]
pub struct Signals(Arc<Mutex<Option<PyErr>>>);

impl Signals {
    /// Returns the patience of a group whose waits look for signals.
    pub fn patience(&self, timeout: Duration) -> Patience {
        let signals = self.clone();
        Patience::from(timeout).unless(move || {
            let looked = Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()));
            let Err(error) = looked else { return false };
            signals.keep(error);
            true
        })
    }

    /// Keeps what was raised, for the error of the call that it ended.
    pub fn keep(&self, error: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Returns what a handler raised since this was asked last.
    pub fn raised(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the exception for an error of a pool.
    pub fn error(&self, error: Error) -> PyErr {
        let raised = if error.of_ranks() == Some(&RanksError::Interrupted) { self.raised() } else { None };
        raised.unwrap_or_else(|| to_py_err(error))
    }
}
