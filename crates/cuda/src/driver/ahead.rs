//! Compiles kernels ahead of time: into the user's cache, or into a folder that other machines read.

use std::io;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::driver::arch::Arch;
use crate::driver::cache::{self, Cache};
use crate::driver::entry::Key;
use crate::driver::nvrtc::Nvrtc;
use crate::error::{Error, Result};
use crate::programs::kernels::Program;

/// Where compiled kernels go.
#[derive(Clone, Copy, Debug)]
pub enum Destination<'a> {
    /// The user's cache, for the devices of this machine.
    Cache(&'a Cache),
    /// A folder that `GUMBALL_KERNELS` names on other machines, or that a package brings.
    Folder(&'a Path),
}

/// How far [`compile_ahead`] is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The program that is done, and its architecture.
    pub done: String,
    /// How many programs are done.
    pub count: usize,
    /// How many there are.
    pub of: usize,
}

impl Destination<'_> {
    /// Returns whether a program is there, undamaged, from the sources of this build.
    fn has(self, program: Program, arch: Arch) -> bool {
        match self {
            Self::Cache(cache) => cache.read(&Key::of(program, arch)).is_some(),
            Self::Folder(folder) => cache::carries(folder, program, arch),
        }
    }

    fn write(self, program: Program, arch: Arch, cubin: &[u8]) -> io::Result<()> {
        match self {
            Self::Cache(cache) => cache.keep(&Key::of(program, arch), cubin),
            Self::Folder(folder) => cache::carry(folder, program, arch, cubin),
        }
    }

    /// Returns the programs that are not there for some architectures, as a list of their names; none if
    /// all are there.
    #[must_use]
    pub fn missing(self, archs: &[Arch]) -> Vec<String> {
        self.lacks(archs).into_iter().map(|(program, arch)| Key::name_of(program, arch)).collect()
    }

    fn lacks(self, archs: &[Arch]) -> Vec<(Program, Arch)> {
        let all = Program::all().flat_map(|program| archs.iter().map(move |arch| (program, *arch)));
        all.filter(|(program, arch)| !self.has(*program, *arch)).collect()
    }
}

/// Compiles all programs that a destination lacks for some architectures, on all cores, and calls `progress`
/// after each. Returns how many it compiled. What is done stays when a later program fails. Files of other
/// sources in a [`Destination::Folder`] are removed.
///
/// # Errors
/// - The errors of [`Nvrtc::load`] and [`Nvrtc::compile`].
/// - [`Error::Call`] if a file cannot be written.
pub fn compile_ahead(
    to: Destination<'_>,
    archs: &[Arch],
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<usize> {
    if let Destination::Folder(folder) = to {
        cache::remove_others(folder)
            .map_err(|error| Error::call("removing kernels of other sources", error))?;
    }
    let mut programs = to.lacks(archs);
    if programs.is_empty() {
        return Ok(0);
    }
    let nvrtc = Nvrtc::load()?;
    // Programs that finish rows and find cuts take longest, so they come first.
    programs.sort_by_key(|(program, _)| !program.name().starts_with("fin"));
    let (of, count) = (programs.len(), AtomicUsize::new(0));
    on_all_cores(programs, |(program, arch)| {
        let compiled = nvrtc.compile(program, arch)?;
        to.write(program, arch, &compiled.cubin).map_err(|error| Error::call("writing kernels", error))?;
        let count = 1 + count.fetch_add(1, Ordering::Relaxed);
        progress(Progress { done: Key::name_of(program, arch), count, of });
        Ok(())
    })?;
    Ok(of)
}

/// Does some work on as many threads as there are cores: a compiler takes hundreds of megabytes, and several
/// processes may start at once. Returns the results in any order. After an error the other threads end what
/// they are at.
pub(crate) fn on_all_cores<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let (left, done) = (Mutex::new(items.into_iter()), Mutex::new(Ok(Vec::new())));
    let next = || left.lock().expect("nobody panics while it is held").next();
    let take_items = || {
        while let Some(item) = next() {
            let result = work(item);
            let mut done = done.lock().expect("nobody panics while it is held");
            match (&mut *done, result) {
                (Ok(results), Ok(result)) => results.push(result),
                (Ok(_), Err(error)) => {
                    *done = Err(error);
                    left.lock().expect("nobody panics while it is held").by_ref().for_each(drop);
                }
                (Err(_), _) => {}
            }
        }
    };
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(take_items))));
    done.into_inner().expect("nobody panics while it is held")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_items_are_done_or_the_first_error_ends_the_rest() {
        let mut done = on_all_cores((0..100).collect(), Ok).unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..100).collect::<Vec<usize>>());
        let begun = AtomicUsize::new(0);
        let failing = on_all_cores(vec![(); 100_000], |()| {
            begun.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(Error::call("compiling", "no"))
        });
        assert_eq!(failing, Err(Error::call("compiling", "no")));
        assert!(begun.into_inner() < 100_000);
    }
}
