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
    let of = programs.len();
    let (left, count) = (Mutex::new(programs.into_iter()), AtomicUsize::new(0));
    let work = || {
        loop {
            let Some((program, arch)) = left.lock().expect("nobody panics while it is held").next() else {
                return Ok(());
            };
            let done = nvrtc.compile(program, arch).and_then(|compiled| {
                to.write(program, arch, &compiled.cubin)
                    .map_err(|error| Error::call("writing kernels", error))
            });
            if done.is_err() {
                // The other threads end after their programs.
                left.lock().expect("nobody panics while it is held").by_ref().for_each(drop);
                return done;
            }
            let count = 1 + count.fetch_add(1, Ordering::Relaxed);
            progress(Progress { done: Key::name_of(program, arch), count, of });
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get).min(of);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(of)
}
