//! Every kernel compiles for every architecture, without a warning, all but without spills, and without a GPU.
//!
//! Needs NVRTC, as from the PyPI wheel `nvidia-cuda-nvrtc` (`GUMBALL_NVRTC` names its libnvrtc.so.13); skips with
//! a message where there is none. With `--nocapture` it prints registers and stack of every kernel.

mod elf;

use std::fmt::Write as _;

use gumball_cuda::{Arch, Nvrtc, PROGRAMS};

const ARCHS: [Arch; 4] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch { major: 10, minor: 0 },
    Arch { major: 12, minor: 0 },
];

/// The kernels' launch bounds leave at least so many registers a thread.
const MOST_REGISTERS: u32 = 128;

/// The end of a step calls functions that keep what most rows do not need apart; they save registers on the stack.
const MOST_STACK: u32 = 512;

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) => return println!("skipped: {error}"),
    };
    println!("NVRTC {:?}: registers a thread, bytes of stack", nvrtc.version());
    std::thread::scope(|scope| {
        let archs = ARCHS.map(|arch| scope.spawn(move || compile(nvrtc, arch)));
        for arch in archs {
            println!("{}", arch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
}

/// Compiles every kernel for an architecture; returns what each takes.
fn compile(nvrtc: Nvrtc, arch: Arch) -> String {
    let mut taken = String::new();
    for program in PROGRAMS {
        let compiled = nvrtc.compile(program, arch).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(compiled.log, "", "{} for {arch}", program.name);
        let resources = elf::resources(&compiled.cubin);
        for kernel in program.kernels {
            let found = resources.get(*kernel).unwrap_or_else(|| panic!("no {kernel} for {arch}"));
            let (registers, stack) = (found.registers, found.stack_bytes);
            writeln!(taken, "{arch} {kernel:22} {registers:4} {stack:4}").expect("a string takes it");
            assert!((1..=MOST_REGISTERS).contains(&registers), "{kernel} for {arch}: {found:?}");
            let most = if kernel.starts_with("finish") { MOST_STACK } else { 0 };
            assert!(stack <= most, "{kernel} for {arch} spills: {found:?}");
        }
    }
    taken
}
