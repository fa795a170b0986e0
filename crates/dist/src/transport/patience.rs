//! Patience: how long ranks are waited for, and what ends the wait before.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gumball_spec::{RanksError, Result};

/// How often a wait looks whether the program wants it to end.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// How long ranks are waited for, and what ends the wait before.
#[derive(Clone)]
pub struct Patience {
    timeout: Duration,
    ends: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Patience {
    /// Returns the longest wait.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Ends waits once `ends` returns true, which is asked some 20 times a second, on the thread that waits.
    #[must_use]
    pub fn unless(self, ends: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { ends: Some(Arc::new(ends)), ..self }
    }

    /// Asks the program whether it wants to wait on.
    pub(crate) fn ask(&self) -> Result<()> {
        match &self.ends {
            Some(ends) if ends() => Err(RanksError::Interrupted.into()),
            _ => Ok(()),
        }
    }

    /// Begins a wait.
    pub(crate) fn begin(&self) -> Wait<'_> {
        let now = Instant::now();
        Wait { patience: self, since: now, looked: now }
    }
}

impl From<Duration> for Patience {
    fn from(timeout: Duration) -> Self {
        Self { timeout, ends: None }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// A wait under way.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    patience: &'a Patience,
    since: Instant,
    looked: Instant,
}

impl Wait<'_> {
    /// Returns what is left of the longest time, nothing once it is over.
    pub fn left(&self, longest: Duration) -> Duration {
        longest.saturating_sub(self.since.elapsed())
    }

    /// Asks the program whether it wants to wait on, if it was not asked just now.
    pub fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.patience.ask()
    }
}
