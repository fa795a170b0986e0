//! Operators: softmax, renormalisation, masks, draws and chains over batches of rows, without sequences.
//!
//! They serve engines that hold probabilities or must return them, and that choose seeds and positions
//! themselves. A row's result is a function of its numbers, its parameters and its draw, as in a
//! [`Pool`](crate::Pool). The batch, the thread count and the SIMD level do not change it. All arguments are
//! checked before anything is written.

mod chains;
mod draws;
mod matrix;
mod params;
mod write;

use std::sync::{Mutex, PoisonError};

use gumball_cpu::{Level, Workspace};
use gumball_spec::Result;
use rayon::prelude::*;

use crate::workers::Threads;

pub use chains::{Chains, Counts};
pub use draws::Draws;
pub use matrix::LogitsMut;
pub use params::{PerRow, RowParams};

/// The operators of the host. They keep their buffers from call to call.
///
/// ```
/// use gumball_engine::{Logits, LogitsMut, Operators};
///
/// let operators = Operators::new(None, Some(1))?;
/// let logits = [0.0f32, 0.0, 2.0, f32::NEG_INFINITY];
/// let mut probabilities = [0.0f32; 4];
/// let out = LogitsMut::new(&mut probabilities[..], 2, 2)?;
/// operators.softmax(Logits::new(&logits, 2, 2)?, 1.0.into(), out)?;
/// assert_eq!(probabilities, [0.5, 0.5, 1.0, 0.0]);
/// # Ok::<(), gumball_engine::Error>(())
/// ```
#[derive(Debug)]
pub struct Operators {
    level: Level,
    threads: Threads,
    idle: Mutex<Vec<Workspace>>,
}

impl Operators {
    /// Makes operators for a SIMD level and a number of threads.
    ///
    /// `level`: `None` takes the best level of the processor. `threads`: in 1..=1024, where 1 is the caller's
    /// thread. `None` takes the threads that all pools and operators share, one per core.
    ///
    /// # Errors
    /// - [`OutOfRange`](crate::Error::OutOfRange) for a level that the processor lacks, or a number of
    ///   threads outside its range.
    /// - [`Unavailable`](crate::Error::Unavailable) if the threads cannot be started.
    pub fn new(level: Option<Level>, threads: Option<usize>) -> Result<Self> {
        let level = level.map_or_else(Level::detect, Level::check)?;
        Ok(Self { level, threads: Threads::new(threads)?, idle: Mutex::default() })
    }

    /// Returns the SIMD level in use.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Runs `work` for each item on the threads; returns the results in the items' order.
    fn over<T: Send, R: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(&mut Workspace, T) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let alone = |items: Vec<T>| {
            let mut borrowed = self.borrow()?;
            items.into_iter().map(|item| work(borrowed.workspace(), item)).collect()
        };
        if items.len() <= 1 {
            return alone(items);
        }
        let spread = |items: Vec<T>| {
            let borrow = || self.borrow();
            let each = |borrowed: &mut Result<Borrowed<'_>>, item| match borrowed {
                Ok(borrowed) => work(borrowed.workspace(), item),
                Err(error) => Err(error.clone()),
            };
            items.into_par_iter().map_init(borrow, each).collect()
        };
        self.threads.run(items, spread, alone)
    }

    fn borrow(&self) -> Result<Borrowed<'_>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let workspace = idle.map_or_else(|| Workspace::new(self.level), Ok)?;
        Ok(Borrowed { operators: self, workspace: Some(workspace) })
    }
}

/// The resource that errors name when the system refuses memory proportional to the rows.
const ROOM: &str = "memory for rows";

/// A borrowed workspace. Dropping it returns it, except during a panic, which may have left it inconsistent.
struct Borrowed<'a> {
    operators: &'a Operators,
    workspace: Option<Workspace>,
}

impl Borrowed<'_> {
    fn workspace(&mut self) -> &mut Workspace {
        self.workspace.as_mut().expect("there until it is dropped")
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut idle = self.operators.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.extend(self.workspace.take());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_workspace_that_a_panic_left_is_not_used_again() {
        let operators = Operators::new(None, Some(1)).unwrap();
        let idle = || operators.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        let broken = catch_unwind(AssertUnwindSafe(|| {
            operators.over(vec![1], |_, _| -> Result<()> { panic!("on purpose") })
        }));
        assert!(broken.is_err());
        assert_eq!(idle(), 0);
        assert_eq!(operators.over(vec![1, 2], |_, item| Ok(item)), Ok(vec![1, 2]));
        assert_eq!(idle(), 1);
    }
}
