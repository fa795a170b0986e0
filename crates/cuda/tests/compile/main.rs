//! Every kernel compiles for every architecture, without a warning and without a GPU. Its registers and its
//! stack are within bounds, and are compared with a record.
//!
//! The tests need NVRTC, for example from the PyPI wheel `nvidia-cuda-nvrtc` (`GUMBALL_NVRTC` names its
//! libnvrtc.so.13). Without that variable, they are left to `ci/run kernels`. The record is `registers.txt`;
//! with `GUMBALL_BLESS=1` the test of all architectures overwrites it. The record applies to its version of
//! NVRTC only, the bounds to every version.

mod report;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;

use gumball_cuda::{Arch, Kernel, Nvrtc, Program};

use report::KernelResources;

/// Registers and stack of kernels, by architecture and name.
type Taken = HashMap<(Arch, String), KernelResources>;

/// Those that a wheel carries, and Orin, whose kernels are compiled at run time.
fn archs() -> Vec<Arch> {
    let mut archs = [&Arch::CARRIED[..], &[Arch::new(8, 7)]].concat();
    archs.sort_unstable();
    archs
}

/// The most registers of a thread. The kernels' launch bounds leave at least this number.
const MOST_REGISTERS: u32 = 128;

/// The most registers of a thread of `head_logits_*_many`, whose blocks have fewer threads.
const MOST_REGISTERS_OF_HEADS: u32 = 168;

/// The most stack bytes of a thread in kernels that finish rows. They call functions for what few rows need,
/// and these save registers on the stack.
const MOST_STACK: u32 = 640;

/// The most stack bytes of a thread in other kernels. Some spill a few registers, so that one more block
/// fits.
const MOST_STACK_ELSEWHERE: u32 = 32;

/// Tests sm_90 alone, for which kernels use every feature: each further architecture takes as long again.
/// Kernels for bf16 and f16 are left to the test below: they differ from those for f32 by how rows are read.
#[test]
fn kernels_compile() {
    hold(&[Arch::new(9, 0)], |program| !program.name().contains("f16"));
}

#[test]
#[ignore = "takes twenty minutes"]
fn every_kernel_compiles_for_every_architecture() {
    hold(&archs(), |_| true);
}

/// Compiles the kernels of some programs for some architectures and checks their registers and stack against
/// the bounds. Prints where they differ from the record.
fn hold(archs: &[Arch], is_held: fn(&Program) -> bool) {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) if std::env::var_os("GUMBALL_NVRTC").is_some() => panic!("{error}"),
        Err(error) => return println!("left to `ci/run kernels`, which brings the compiler: {error}"),
    };
    let found = Table { compiler: nvrtc.version(), columns: compile(nvrtc, archs, is_held) };
    println!("{found}");
    for ((arch, kernel), needs) in &found.columns {
        check(*arch, kernel, *needs);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile/registers.txt");
    if archs.len() > 1 && std::env::var_os("GUMBALL_BLESS").is_some() {
        std::fs::write(&path, found.to_string()).expect("the record is written");
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    if recorded.lines().next() == found.to_string().lines().next() {
        let recorded = report::read_table(&recorded);
        for ((arch, kernel), needs) in &found.columns {
            let before = recorded.get(&(arch.to_string(), kernel.clone()));
            if before != Some(&needs.to_string()) {
                println!("not as recorded: {kernel} for {arch} takes {needs}, took {before:?}");
            }
        }
    }
}

/// Compiles the kernels of some programs for some architectures, with one program per core at a time. Returns
/// registers and stack of each.
fn compile(nvrtc: Nvrtc, archs: &[Arch], is_held: fn(&Program) -> bool) -> Taken {
    let programs =
        archs.iter().flat_map(|arch| Program::all().filter(is_held).map(|program| (*arch, program)));
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

fn compile_one(nvrtc: Nvrtc, program: Program, arch: Arch) -> Taken {
    let compiled =
        nvrtc.compile_with(program, arch, &["--ptxas-options=-v"]).unwrap_or_else(|error| panic!("{error}"));
    let (functions, warnings) = report::read(&compiled.log);
    assert!(warnings.is_empty(), "{} for {arch}: {warnings:#?}", program.name());
    let mut others = Kernel::all().filter(|(other, _)| program.kernels().all(|(own, _)| own != *other));
    assert!(others.all(|(_, name)| !functions.contains_key(&name)), "{} has other kernels", program.name());
    let of = |kernel: String| {
        let needs = *functions.get(&kernel).unwrap_or_else(|| panic!("no {kernel} for {arch}"));
        ((arch, kernel), needs)
    };
    program.kernels().map(|(_, name)| of(name)).collect()
}

fn check(arch: Arch, kernel: &str, found: KernelResources) {
    let is_of_heads = kernel.starts_with("head_logits") && kernel.ends_with("_many");
    let most = if is_of_heads { MOST_REGISTERS_OF_HEADS } else { MOST_REGISTERS };
    assert!((1..=most).contains(&found.registers), "{kernel} for {arch}: {found:?}");
    let most = if ["finish", "find_cut", "draft_race"].iter().any(|end| kernel.starts_with(end)) {
        MOST_STACK
    } else {
        MOST_STACK_ELSEWHERE
    };
    assert!(found.stack_bytes <= most, "{kernel} for {arch} spills: {found:?}");
}

/// The record: a row for each kernel, a column for each architecture.
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
        let archs: BTreeSet<Arch> = self.columns.keys().map(|(arch, _)| *arch).collect();
        archs.iter().try_for_each(|arch| write!(f, " {:>18}", arch.to_string()))?;
        let is_held = |kernel: &String| self.columns.keys().any(|(_, held)| held == kernel);
        for (_, kernel) in Kernel::all().filter(|(_, kernel)| is_held(kernel)) {
            write!(f, "\n{kernel:42}")?;
            let needs = |arch: Arch| self.columns[&(arch, kernel.clone())];
            archs.iter().try_for_each(|arch| write!(f, " {:>18}", needs(*arch)))?;
        }
        writeln!(f)
    }
}
