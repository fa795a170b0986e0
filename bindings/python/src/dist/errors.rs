//! What can go wrong between ranks, as Python exceptions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gumball_engine::dist::Patience;
use gumball_engine::{Error, RanksError};
use pyo3::prelude::*;

use crate::errors::{UnavailableError, draft_names, to_py_err};

pyo3::import_exception!(gumball.errors, DistError);
pyo3::import_exception!(gumball.errors, LostError);
pyo3::import_exception!(gumball.errors, LateError);
pyo3::import_exception!(gumball.errors, DisagreeError);
pyo3::import_exception!(gumball.errors, CorruptError);
pyo3::import_exception!(gumball.errors, BrokenError);

/// Returns the exception for what failed between ranks.
pub fn ranks_err(error: RanksError) -> PyErr {
    let text = error.to_string();
    match error {
        RanksError::Unavailable { .. } => UnavailableError::new_err(text),
        RanksError::Lost { rank, .. } => of_rank(LostError::new_err(text), Some(rank)),
        RanksError::TimedOut { rank, waited } => late(LateError::new_err(text), rank, waited),
        RanksError::Disagree { rank, what, ours, theirs } => {
            let error = of_rank(DisagreeError::new_err(text), Some(rank));
            set(&error, &[("what", what), ("ours", &ours), ("theirs", &theirs)]);
            error
        }
        RanksError::Corrupt { rank, .. } => of_rank(CorruptError::new_err(text), Some(rank)),
        RanksError::Broken(_) => of_rank(BrokenError::new_err(text), None),
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
        let raised = if error.of_ranks() == Some(&RanksError::Interrupted) { self.raised() } else { None };
        raised.unwrap_or_else(|| to_py_err(draft_names(error)))
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
