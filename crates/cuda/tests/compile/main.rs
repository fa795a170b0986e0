//! Every kernel compiles for every architecture, without a warning, all but without spills, and without a GPU.
//!
//! Needs NVRTC, as from the PyPI wheel `nvidia-cuda-nvrtc` (`GUMBALL_NVRTC` names its libnvrtc.so.13); skips with
//! a message where there is none. With `--nocapture` it prints registers and stack of every kernel.

mod elf;

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
    for arch in ARCHS {
        for program in PROGRAMS {
            let compiled = nvrtc.compile(program, arch).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(compiled.log, "", "{} for {arch}", program.name);
            let resources = elf::resources(&compiled.cubin);
            for kernel in program.kernels {
                let found = resources.get(*kernel).unwrap_or_else(|| panic!("no {kernel} for {arch}"));
                println!("{arch} {kernel:16} {:4} {:4}", found.registers, found.stack_bytes);
                assert!((1..=MOST_REGISTERS).contains(&found.registers), "{kernel} for {arch}: {found:?}");
                let stack = if kernel.starts_with("finish") { MOST_STACK } else { 0 };
                assert!(found.stack_bytes <= stack, "{kernel} for {arch} spills: {found:?}");
            }
        }
    }
}
