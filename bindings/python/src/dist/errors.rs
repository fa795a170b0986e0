//! What can go wrong between ranks, as Python exceptions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gumball_engine::dist::{Error, Patience};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::{UnavailableError, draft_names, to_py_err};

pyo3::create_exception!(
    gumball.dist,
    DistError,
    PyRuntimeError,
    "An exchange between ranks failed; no sequence of this rank was changed by that step. On devices that holds for the host's copies alone, \
     which are as they were at the last fetch. The group is broken then: make new pools, and resume there from the states of one rank. rank is \
     the rank that is spoken of, or None."
);
pyo3::create_exception!(gumball.dist, LostError, DistError, "A rank ended, or its connection broke.");
pyo3::create_exception!(gumball.dist, LateError, DistError, "A rank did not answer in time.");
pyo3::create_exception!(
    gumball.dist,
    DisagreeError,
    DistError,
    "A rank was started differently, or is at another step. what names what differs, ours and theirs are the two values."
);
pyo3::create_exception!(
    gumball.dist,
    CorruptError,
    DistError,
    "A rank sent what no rank of this version sends."
);
pyo3::create_exception!(
    gumball.dist,
    BrokenError,
    DistError,
    "An earlier exchange of this group failed; the text says how."
);

/// Returns the exception for an error of a group: a caller's mistake is what it is in a `Pool`.
pub fn dist_err(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Call(error) => to_py_err(draft_names(error)),
        Error::Unavailable { .. } => UnavailableError::new_err(text),
        Error::Lost { rank, .. } => of_rank(LostError::new_err(text), Some(rank)),
        Error::TimedOut { rank, waited } => late(LateError::new_err(text), rank, waited),
        Error::Disagree { rank, what, ours, theirs } => {
            let error = of_rank(DisagreeError::new_err(text), Some(rank));
            set(&error, &[("what", what), ("ours", &ours), ("theirs", &theirs)]);
            error
        }
        Error::Corrupt { rank, .. } => of_rank(CorruptError::new_err(text), Some(rank)),
        Error::Broken(_) => of_rank(BrokenError::new_err(text), None),
        _ => of_rank(DistError::new_err(text), None),
    }
}

/// Ends waits for other ranks when the handler of a signal raises, and keeps what it raised.
#[derive(Clone, Debug, Default)]
pub struct Signals(Arc<Mutex<Option<PyErr>>>);

impl Signals {
    /// Returns the patience of a group whose waits look for signals.
    pub fn patience(&self, timeout: Duration) -> Patience {
        let raised = Arc::clone(&self.0);
        Patience::from(timeout).unless(move || {
            let looked = Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()));
            let Err(error) = looked else { return false };
            *raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            true
        })
    }

    /// Returns what a handler raised since this was asked last.
    pub fn raised(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the exception for an error of a group.
    pub fn error(&self, error: Error) -> PyErr {
        match error {
            Error::Interrupted => self.raised().unwrap_or_else(|| dist_err(error)),
            error => dist_err(error),
        }
    }
}

fn of_rank(error: PyErr, rank: Option<usize>) -> PyErr {
    // Setting an attribute of a fresh exception fails only without memory; then the text still says which rank it is.
    Python::attach(|py| error.value(py).setattr("rank", rank)).ok();
    error
}

fn late(error: PyErr, rank: usize, waited: Duration) -> PyErr {
    let error = of_rank(error, Some(rank));
    Python::attach(|py| error.value(py).setattr("waited", waited.as_secs_f64())).ok();
    error
}

fn set(error: &PyErr, attributes: &[(&str, &str)]) {
    Python::attach(|py| {
        attributes.iter().try_for_each(|(name, value)| error.value(py).setattr(*name, *value)).ok()
    });
}
