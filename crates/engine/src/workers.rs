//! Workers: a route's stages, opened once for each thread, and rows spread over them.
//!
//! Rows are halved until a block is small, and halves are offered to other threads; one block runs where it
//! is. Which thread takes a block, and with which of the opened stages, cannot be told from the outputs.

use std::sync::{Arc, Mutex, PoisonError};

use gumball_cpu::Level;
use gumball_spec::{Error, Result};

use crate::route::{Route, Stages};
use crate::rows::RowsMut;

/// Does a block of rows with the stages it is given.
pub(crate) type Work<'w> = &'w (dyn Fn(&mut RowsMut<'_>, &mut dyn Stages) -> Result<()> + Sync);

/// The threads that rows go over.
#[derive(Debug)]
pub(crate) enum Threads {
    /// The thread that asks.
    Caller,
    /// Those of rayon's global pool.
    Global,
    /// Their own.
    Own(rayon::ThreadPool),
}

impl Threads {
    /// Starts threads: 1 is the caller's, `None` those of rayon's global pool.
    pub(crate) fn new(threads: Option<usize>) -> Result<Self> {
        let unavailable = |error: rayon::ThreadPoolBuildError| Error::Unavailable {
            resource: "threads for a pool",
            reason: error.to_string(),
        };
        match threads {
            Some(0) => Err(Error::out_of_range("threads", 0, "at least 1")),
            Some(1) => Ok(Threads::Caller),
            Some(n) => {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().map_err(unavailable)?;
                Ok(Threads::Own(pool))
            }
            None => Ok(Threads::Global),
        }
    }

    /// Returns whether there is only the thread that asks.
    pub(crate) fn is_caller(&self) -> bool {
        matches!(self, Threads::Caller)
    }

    /// Runs what spreads its work by rayon, over these threads.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self {
            Threads::Own(pool) => pool.install(work),
            Threads::Caller | Threads::Global => work(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Workers {
    route: Arc<dyn Route>,
    level: Level,
    threads: Threads,
    /// Opened stages that no thread is using. A stack rather than one per thread: a hook may itself wait
    /// on rayon and take up another row meanwhile, on the same thread.
    idle: Mutex<Vec<Box<dyn Stages>>>,
}

impl Workers {
    pub(crate) fn new(route: Arc<dyn Route>, level: Level, threads: Option<usize>) -> Result<Self> {
        let count = threads.unwrap_or(1);
        let threads = Threads::new(threads)?;
        let idle = (0..count).map(|_| route.open(level)).collect::<Result<_>>()?;
        Ok(Self { route, level, threads, idle: Mutex::new(idle) })
    }

    pub(crate) fn route(&self) -> &dyn Route {
        &*self.route
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Does all rows, `grain` of them at a time; the error is that of the first block that has one.
    pub(crate) fn over(&self, mut rows: RowsMut<'_>, grain: usize, work: Work<'_>) -> Result<()> {
        let single = rows.range().len() <= grain;
        match &self.threads {
            Threads::Caller => self.block(&mut rows, work),
            _ if single => self.block(&mut rows, work),
            threads => threads.run(|| self.halve(rows, grain, work)),
        }
    }

    fn halve(&self, mut rows: RowsMut<'_>, grain: usize, work: Work<'_>) -> Result<()> {
        let len = rows.range().len();
        if len <= grain {
            return self.block(&mut rows, work);
        }
        let (a, b) = rows.split_at(len / 2);
        let (a, b) = rayon::join(|| self.halve(a, grain, work), || self.halve(b, grain, work));
        a.and(b)
    }

    fn block(&self, rows: &mut RowsMut<'_>, work: Work<'_>) -> Result<()> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let popped = idle().pop();
        let mut stages = match popped {
            Some(stages) => stages,
            None => self.route.open(self.level)?,
        };
        let result = work(rows, &mut *stages);
        idle().push(stages);
        result
    }
}
