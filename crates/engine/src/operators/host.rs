//! The operators of the host: rows spread over threads, each with a workspace that is kept from call to call.

use std::sync::{Mutex, PoisonError};

use gumball_cpu::{History, Level, Output, Prepared, Task, Workspace};
use gumball_spec::{Error, Kind, Result, Status};
use rayon::prelude::*;

use super::LogitsMut;
use super::params::RowParams;
use crate::logits::Logits;
use crate::workers::Threads;

/// The operators of the host.
#[derive(Debug)]
pub(super) struct Host {
    level: Level,
    threads: Threads,
    idle: Mutex<Vec<Workspace>>,
}

impl Host {
    pub fn new(level: Option<Level>, threads: Option<usize>) -> Result<Self> {
        let level = level.map_or_else(Level::detect, Level::check)?;
        Ok(Self { level, threads: Threads::new(threads)?, idle: Mutex::default() })
    }

    /// Writes rows; returns the status of each. `from`: the rows to read; `None`: the rows of `to`.
    pub fn write(
        &self,
        output: Output,
        from: Option<Logits<'_>>,
        to: LogitsMut<'_>,
        params: &RowParams<'_>,
    ) -> Result<Vec<Status>> {
        let history = History::new(&[]);
        let Some(from) = from else {
            let kind = to.kind();
            let prepared = params.prepare(kind, to.rows(), to.vocab())?;
            return self.over(to.into_rows()?, |workspace, (row, data)| {
                let task = task(kind, prepared.of(row), &history);
                Ok(workspace.write_in_place(data, &task, output)?.status)
            });
        };
        if to.rows() != from.rows() {
            return Err(Error::length("out", to.rows(), format!("a row for each of {}", from.rows())));
        }
        if to.vocab() != from.vocab() {
            return Err(Error::out_of_range("out.vocab", to.vocab(), format!("{}", from.vocab())));
        }
        let prepared = params.prepare(from.kind(), from.rows(), from.vocab())?;
        self.over(to.into_rows()?, |workspace, (row, out)| {
            let task = task(from.kind(), prepared.of(row), &history);
            Ok(workspace.write(from.row(row), &task, None, output, out)?.status)
        })
    }

    /// Runs `work` for each item on the threads; returns the results in the items' order.
    pub fn over<T: Send, R: Send>(
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
        Ok(Borrowed { host: self, workspace: Some(workspace) })
    }
}

/// Returns a task for a row without a sequence: no history, and seed, position and draw index 0.
pub(super) fn task<'a>(kind: Kind, prepared: &'a Prepared, history: &'a History) -> Task<'a> {
    let mu = prepared.params().initial_mu();
    Task { kind, prepared, history, seed: 0, position: 0, draw: 0, mu, mask: None, forced: None }
}

/// A borrowed workspace. Dropping it returns it, except during a panic, which may have left it inconsistent.
struct Borrowed<'a> {
    host: &'a Host,
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
        let mut idle = self.host.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.extend(self.workspace.take());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_workspace_that_a_panic_left_is_not_used_again() {
        let host = Host::new(None, Some(1)).unwrap();
        let idle = || host.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        let broken = catch_unwind(AssertUnwindSafe(|| {
            host.over(vec![1], |_, _| -> Result<()> { panic!("on purpose") })
        }));
        assert!(broken.is_err());
        assert_eq!(idle(), 0);
        assert_eq!(host.over(vec![1, 2], |_, item| Ok(item)), Ok(vec![1, 2]));
        assert_eq!(idle(), 1);
    }
}
