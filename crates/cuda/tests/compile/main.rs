//! Every kernel compiles for every architecture, without a warning and without a GPU; what each takes is recorded.
//!
//! Needs NVRTC, as from the PyPI wheel `nvidia-cuda-nvrtc` (`GUMBALL_NVRTC` names its libnvrtc.so.13); skips with
//! a message where there is none. The record is `kernels.txt`; with `GUMBALL_RECORD=1` the test of all architectures writes it
//! anew. Another version of NVRTC than the record's is held to the bounds alone.

mod report;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;

use gumball_cuda::{Arch, Kernel, Nvrtc, PROGRAMS, Program};

use report::StepFeatures;

/// What kernels take, by architecture and name.
type Taken = HashMap<(Arch, &'static str), StepFeatures>;

const ARCHS: [Arch; 4] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch { major: 10, minor: 0 },
    Arch { major: 12, minor: 0 },
];

/// The kernels' launch bounds leave at least so many registers a thread.
const MOST_REGISTERS: u32 = 128;

/// The end of a step calls functions that keep what most rows do not need apart; they save registers on the stack.
const MOST_STACK: u32 = 576;

/// Bounds of other kernels admit one block more for a few words that are spilled.
const MOST_STACK_ELSEWHERE: u32 = 32;

/// The one with everything that kernels know of; the others take as long each.
#[test]
fn every_kernel_compiles() {
    hold(&[Arch { major: 9, minor: 0 }]);
}

#[test]
#[ignore = "takes ten minutes"]
fn every_kernel_compiles_for_every_architecture() {
    hold(&ARCHS);
}

/// Compiles every kernel for some architectures, and holds what it takes to the bounds. Says where that is not what is recorded.
fn hold(archs: &[Arch]) {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => return println!("skipped: {error}"),
    };
    let found = Table { compiler: nvrtc.version(), columns: compile(nvrtc, archs) };
    println!("{found}");
    for ((arch, kernel), needs) in &found.columns {
        check(*arch, kernel, *needs);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile/kernels.txt");
    if archs == ARCHS && std::env::var_os("GUMBALL_RECORD").is_some() {
        std::fs::write(&path, found.to_string()).expect("the record is written");
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    if recorded.lines().next() == found.to_string().lines().next() {
        let recorded = report::read_table(&recorded);
        for ((arch, kernel), needs) in &found.columns {
            let before = recorded.get(&(arch.to_string(), (*kernel).to_owned()));
            if before != Some(&needs.to_string()) {
                println!("not as recorded: {kernel} for {arch} takes {needs}, took {before:?}");
            }
        }
    }
}

/// Compiles every kernel for some architectures, program by program on all cores; returns what each takes.
fn compile(nvrtc: Nvrtc, archs: &[Arch]) -> Taken {
    let programs = archs.iter().flat_map(|arch| PROGRAMS.iter().map(|program| (*arch, program)));
    let left = Mutex::new(programs);
    let worker = || {
        let mut taken = Taken::new();
        loop {
            let next = left.lock().expect("nobody panics while it is held").next();
            let Some((arch, program)) = next else { return taken };
            taken.extend(compile_one(nvrtc, program, arch));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        let taken = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        taken.flatten().collect()
    })
}

fn compile_one(nvrtc: Nvrtc, program: &'static Program, arch: Arch) -> Taken {
    let compiled =
        nvrtc.compile_with(program, arch, &["--ptxas-options=-v"]).unwrap_or_else(|error| panic!("{error}"));
    let (functions, warnings) = report::read(&compiled.log);
    assert!(warnings.is_empty(), "{} for {arch}: {warnings:#?}", program.name);
    let of = |kernel: &'static str| {
        let needs = functions.get(kernel).unwrap_or_else(|| panic!("no {kernel} for {arch}"));
        ((arch, kernel), *needs)
    };
    program.kernels.iter().map(|kernel| of(kernel)).collect()
}

fn check(arch: Arch, kernel: &str, found: StepFeatures) {
    assert!((1..=MOST_REGISTERS).contains(&found.registers), "{kernel} for {arch}: {found:?}");
    let most = if ["finish", "find_cut"].iter().any(|end| kernel.starts_with(end)) {
        MOST_STACK
    } else {
        MOST_STACK_ELSEWHERE
    };
    assert!(found.stack_bytes <= most, "{kernel} for {arch} spills: {found:?}");
}

/// What is recorded: a line for each kernel, a column for each architecture.
struct Table {
    compiler: (i32, i32),
    columns: Taken,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compiler;
        writeln!(
            f,
            "NVRTC {major}.{minor}: registers a thread; where a kernel has a stack, its bytes, and those spilled and reloaded"
        )?;
        write!(f, "{:42}", "kernel")?;
        let archs: Vec<_> =
            ARCHS.iter().filter(|arch| self.columns.keys().any(|(other, _)| other == *arch)).collect();
        archs.iter().try_for_each(|arch| write!(f, " {:>18}", arch.to_string()))?;
        for kernel in Kernel::all() {
            write!(f, "\n{kernel:42}")?;
            archs.iter().try_for_each(|arch| write!(f, " {:>18}", self.columns[&(**arch, kernel)]))?;
        }
        writeln!(f)
    }
}
