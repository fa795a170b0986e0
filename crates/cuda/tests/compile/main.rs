//! Every kernel compiles for every architecture, without a warning and without a GPU; what each takes is recorded.
//!
//! Needs NVRTC, as from the PyPI wheel `nvidia-cuda-nvrtc` (`GUMBALL_NVRTC` names its libnvrtc.so.13); skips with
//! a message where there is none. The record is `kernels.txt`; `GUMBALL_RECORD=1` writes it anew. Another version of
//! NVRTC than the record's is held to the bounds alone.

mod report;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use gumball_cuda::{Arch, Kernel, Nvrtc, PROGRAMS};

use report::Needs;

const ARCHS: [Arch; 4] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch { major: 10, minor: 0 },
    Arch { major: 12, minor: 0 },
];

/// The kernels' launch bounds leave at least so many registers a thread.
const MOST_REGISTERS: u32 = 128;

/// The end of a step calls functions that keep what most rows do not need apart; they save registers on the stack.
const MOST_STACK: u32 = 640;

/// Bounds of other kernels admit one block more for a few words that are spilled.
const MOST_STACK_ELSEWHERE: u32 = 32;

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => return println!("skipped: {error}"),
    };
    let needs = std::thread::scope(|scope| {
        let archs = ARCHS.map(|arch| scope.spawn(move || compile(nvrtc, arch)));
        archs.map(|arch| arch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let found = table(nvrtc.version(), &needs);
    println!("{found}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile/kernels.txt");
    if std::env::var_os("GUMBALL_RECORD").is_some() {
        std::fs::write(&path, &found).expect("the record is written");
    }
    for (arch, needs) in ARCHS.iter().zip(&needs) {
        needs.iter().for_each(|(kernel, found)| check(*arch, kernel, *found));
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    if recorded.lines().next() == found.lines().next() {
        let differ = found.lines().filter(|line| !recorded.lines().any(|other| other == *line));
        differ.for_each(|line| println!("not as recorded: {line}"));
    }
}

/// Compiles every kernel for an architecture; returns what each takes.
fn compile(nvrtc: Nvrtc, arch: Arch) -> BTreeMap<&'static str, Needs> {
    let mut taken = BTreeMap::new();
    for program in PROGRAMS {
        let compiled = nvrtc
            .compile_told(program, arch, &["--ptxas-options=-v"])
            .unwrap_or_else(|error| panic!("{error}"));
        let (functions, warnings) = report::read(&compiled.log);
        assert!(warnings.is_empty(), "{} for {arch}: {warnings:#?}", program.name);
        for kernel in program.kernels {
            let found = *functions.get(*kernel).unwrap_or_else(|| panic!("no {kernel} for {arch}"));
            taken.insert(*kernel, found);
        }
    }
    taken
}

fn check(arch: Arch, kernel: &str, found: Needs) {
    assert!((1..=MOST_REGISTERS).contains(&found.registers), "{kernel} for {arch}: {found:?}");
    let most = if ["finish", "keep"].iter().any(|end| kernel.starts_with(end)) {
        MOST_STACK
    } else {
        MOST_STACK_ELSEWHERE
    };
    assert!(found.stack_bytes <= most, "{kernel} for {arch} spills: {found:?}");
}

fn table((major, minor): (i32, i32), needs: &[BTreeMap<&str, Needs>]) -> String {
    let mut text = format!(
        "NVRTC {major}.{minor}: registers a thread; where a kernel has a stack, its bytes, and those spilled and reloaded\n{:28}",
        "kernel"
    );
    let mut put = |words: std::fmt::Arguments<'_>| text.write_fmt(words).expect("a string takes it");
    ARCHS.iter().for_each(|arch| put(format_args!(" {:>18}", arch.to_string())));
    for kernel in Kernel::all() {
        put(format_args!("\n{kernel:28}"));
        needs.iter().for_each(|arch| put(format_args!(" {:>18}", arch[kernel])));
    }
    put(format_args!("\n"));
    text
}
