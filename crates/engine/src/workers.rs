//! Workers: a route's stages, opened once for each thread, and rows spread over them.
//!
//! Rows are halved until a block is small, and halves are offered to other threads; one block runs where it
//! is. Which thread takes a block, and with which of the opened stages, cannot be told from the outputs.
//!
//! Threads are the crate's own, and started when work is first spread over them. So where none can be started
//! the caller's does the work, which rayon's global pool answers with a panic; and a child of a fork, in
//! which no thread of its parent runs, starts its own.

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use gumball_cpu::Level;
use gumball_spec::{Error, Result};
use rayon::prelude::*;

use crate::route::Route;
use crate::sink::RowsMut;
use crate::stages::Stages;

/// Does a block of rows with the stages it is given.
pub(crate) type Work<'w> = &'w (dyn Fn(&mut RowsMut<'_>, &mut dyn Stages) -> Result<()> + Sync);

/// Returns the row at which a block of rows is split in two; `None` for a block that one thread does.
pub(crate) type Split<'w> = &'w (dyn Fn(Range<usize>) -> Option<usize> + Sync);

/// Splits in halves what has more than `grain` rows.
pub(crate) fn blocks_of(grain: usize) -> impl Fn(Range<usize>) -> Option<usize> + Sync {
    move |rows| (rows.len() > grain).then(|| rows.start + rows.len() / 2)
}

/// How many threads a pool may have.
const MOST: usize = 1024;

thread_local! {
    /// Whether this is one of the threads that are started here.
    static STARTED_HERE: Cell<bool> = const { Cell::new(false) };
}

/// The threads that rows go over.
#[derive(Debug)]
pub(crate) enum Threads {
    /// The thread that asks.
    Caller,
    /// The threads of the rayon pool that the caller runs in, or otherwise the threads that all pools and
    /// operators share.
    Shared,
    /// Their own.
    Own(Team),
}

impl Threads {
    /// Starts threads: 1 is the caller's, `None` the shared threads.
    pub(crate) fn new(threads: Option<usize>) -> Result<Self> {
        Self::check(threads)?;
        match threads {
            None => Ok(Threads::Shared),
            Some(1) => Ok(Threads::Caller),
            Some(n) => Team::own(n).map(Threads::Own),
        }
    }

    /// Checks that a number of threads, if there is one, lies in its range.
    pub(crate) fn check(threads: Option<usize>) -> Result<()> {
        match threads {
            Some(n) if !(1..=MOST).contains(&n) => {
                Err(Error::out_of_range("threads", n, format!("in 1..={MOST}")))
            }
            _ => Ok(()),
        }
    }

    /// Runs work over these threads: `spread`, which goes over them by rayon, or `alone` where there is the
    /// caller's only.
    ///
    /// A thread that was started here is busy with other rows, of a hook that asks for these. It does them
    /// alone: while it waited for others it would take up further rows, whose hooks may wait for what this
    /// one holds.
    pub(crate) fn run<R: Send, W: Send>(
        &self,
        work: W,
        spread: impl FnOnce(W) -> R + Send,
        alone: impl FnOnce(W) -> R,
    ) -> R {
        let team = match self {
            Threads::Caller => return alone(work),
            _ if STARTED_HERE.get() => return alone(work),
            Threads::Shared if rayon::current_thread_index().is_some() => return spread(work),
            Threads::Shared => &SHARED,
            Threads::Own(team) => team,
        };
        match team.threads() {
            Some(threads) => threads.install(|| spread(work)),
            None => alone(work),
        }
    }
}

/// The threads of pools and operators that have none of their own.
static SHARED: Team = Team { count: 0, first: Generation::new() };

/// Threads that are started when work first needs them; the child of a fork starts its own.
#[derive(Debug)]
pub(crate) struct Team {
    /// How many; 0 is one a core.
    count: usize,
    first: Generation,
}

/// The threads of one process, then its child's, and so on. Nothing here waits for a lock that a
/// thread of the parent may have held when it was forked.
#[derive(Debug)]
struct Generation {
    /// The process, and its threads unless none could be started.
    started: OnceLock<(u32, Option<rayon::ThreadPool>)>,
    next: OnceLock<Box<Generation>>,
}

impl Generation {
    const fn new() -> Self {
        Self { started: OnceLock::new(), next: OnceLock::new() }
    }
}

impl Team {
    /// Starts `count` threads.
    fn own(count: usize) -> Result<Self> {
        let unavailable = |error: rayon::ThreadPoolBuildError| Error::Unavailable {
            resource: "threads for a pool",
            reason: error.to_string(),
        };
        let started = OnceLock::from((process(), Some(start(count).map_err(unavailable)?)));
        Ok(Self { count, first: Generation { started, next: OnceLock::new() } })
    }

    /// Returns the threads of this process; `None` if none can be started.
    fn threads(&self) -> Option<&rayon::ThreadPool> {
        let process = process();
        let mut generation = &self.first;
        loop {
            match generation.started.get() {
                Some((of, threads)) if *of == process => return threads.as_ref(),
                Some(_) => generation = generation.next.get_or_init(|| Box::new(Generation::new())),
                // Where another thread was faster, its threads are taken, and these end.
                None => drop(generation.started.set((process, as_many(self.count)))),
            }
        }
    }
}

impl Drop for Team {
    /// Lets go of threads that have stayed in a parent of this process, instead of telling them to end.
    fn drop(&mut self) {
        let mut generation = Some(std::mem::replace(&mut self.first, Generation::new()));
        while let Some(Generation { started, next }) = generation {
            if started.get().is_some_and(|(of, _)| *of != process()) {
                std::mem::forget(started);
            }
            generation = next.into_inner().map(|next| *next);
        }
    }
}

/// Returns which process this is. A WebAssembly module alone has no number, and no parent either.
fn process() -> u32 {
    if cfg!(all(target_family = "wasm", target_os = "unknown")) { 0 } else { std::process::id() }
}

/// Returns how many threads rayon would start by itself: `RAYON_NUM_THREADS`, or one a core.
fn one_a_core() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|number| number.parse().ok());
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.filter(|number| *number > 0).unwrap_or_else(cores).min(MOST)
}

/// Starts `count` threads.
fn start(count: usize) -> std::result::Result<rayon::ThreadPool, rayon::ThreadPoolBuildError> {
    let name = |thread| format!("gumball-{thread}");
    let here = |_| STARTED_HERE.set(true);
    rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(name).start_handler(here).build()
}

/// Starts as many threads as can be, half as many each time; `None` where that is the caller's alone.
fn as_many(count: usize) -> Option<rayon::ThreadPool> {
    let mut count = if count == 0 { one_a_core() } else { count };
    while count > 1 {
        match start(count) {
            Ok(threads) => return Some(threads),
            Err(_) => count /= 2,
        }
    }
    None
}

#[derive(Debug)]
pub(crate) struct Workers {
    route: Route,
    level: Level,
    threads: Threads,
    /// Opened stages that no thread is using. A stack rather than one per thread: a hook may itself wait
    /// on rayon and take up another row meanwhile, on the same thread.
    idle: Mutex<Vec<Box<dyn Stages>>>,
}

impl Workers {
    pub(crate) fn new(route: Route, level: Level, threads: Option<usize>) -> Result<Self> {
        let count = threads.unwrap_or(1);
        // Looks at the number first.
        let threads = Threads::new(threads)?;
        let idle = (0..count).map(|_| route.open(level)).collect::<Result<_>>()?;
        Ok(Self { route, level, threads, idle: Mutex::new(idle) })
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    pub(crate) fn threads(&self) -> &Threads {
        &self.threads
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Does all rows, in blocks that `split` does not split; returns the error of the first block that has
    /// one.
    pub(crate) fn over(&self, mut rows: RowsMut<'_>, split: Split<'_>, work: Work<'_>) -> Result<()> {
        if split(rows.range()).is_none() {
            return self.block(&mut rows, work);
        }
        let spread = |rows| self.halve(rows, split, work);
        self.threads.run(rows, spread, |mut rows| self.block(&mut rows, work))
    }

    fn halve(&self, mut rows: RowsMut<'_>, split: Split<'_>, work: Work<'_>) -> Result<()> {
        let range = rows.range();
        let Some(border) = split(range.clone()) else {
            return self.block(&mut rows, work);
        };
        let (a, b) = rows.split_at(border - range.start);
        let (a, b) = rayon::join(|| self.halve(a, split, work), || self.halve(b, split, work));
        a.and(b)
    }

    /// Does all items, each on one thread; returns the error of an item that has one.
    pub(crate) fn each<T: Send>(
        &self,
        mut items: Vec<T>,
        work: impl Fn(&mut T, &mut dyn Stages) -> Result<()> + Sync,
    ) -> Result<()> {
        self.spread(&mut items, |item| self.with_stages(|stages| work(item, stages)))
    }

    /// Does all items, each on one thread, without stages of the route; returns the error of an item that has
    /// one.
    pub(crate) fn spread<T: Send>(
        &self,
        items: &mut [T],
        one: impl Fn(&mut T) -> Result<()> + Sync + Send,
    ) -> Result<()> {
        if items.len() < 2 {
            return items.iter_mut().try_for_each(one);
        }
        let spread = |items: &mut [T]| items.par_iter_mut().try_for_each(&one);
        self.threads.run(items, spread, |items| items.iter_mut().try_for_each(&one))
    }

    fn block(&self, rows: &mut RowsMut<'_>, work: Work<'_>) -> Result<()> {
        self.with_stages(|stages| work(rows, stages))
    }

    /// Works with stages that no other thread is using.
    fn with_stages(&self, work: impl FnOnce(&mut dyn Stages) -> Result<()>) -> Result<()> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let popped = idle().pop();
        let mut stages = match popped {
            Some(stages) => stages,
            None => self.route.open(self.level)?,
        };
        let result = work(&mut *stages);
        idle().push(stages);
        result
    }
}
