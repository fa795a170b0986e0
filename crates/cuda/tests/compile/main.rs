//! Every kernel compiles for every architecture, without a warning and without a GPU. Its registers and its
//! stack are within bounds.
//!
//! The tests need NVRTC, for example from the PyPI wheel `nvidia-cuda-nvrtc` (`GUMBALL_NVRTC` names its
//! libnvrtc.so.13). Without that variable, they are left to `ci/run kernels`.

mod report;

use std::num::NonZero;
use std::sync::Mutex;

use gumball_cuda::{Arch, Kernel, Nvrtc, Program};

use report::KernelResources;

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

/// Tests sm_90 alone, for which kernels use every feature: each further architecture takes as long again. Of
/// the types of rows, by which kernels differ little, it tests f32, or bf16 where there are none for f32.
#[test]
fn kernels_compile() {
    hold(&[Arch::new(9, 0)], |program| {
        let (name, f32) = (program.name(), program.name().replace("bf16", "f32"));
        !name.contains("f16") || (name != f32 && Program::all().all(|other| other.name() != f32))
    });
}

#[test]
#[ignore = "takes twenty minutes"]
fn every_kernel_compiles_for_every_architecture() {
    hold(&archs(), |_| true);
}

/// Compiles the kernels of some programs for some architectures, one program per core at a time, and checks
/// their registers and stack.
fn hold(archs: &[Arch], is_held: fn(&Program) -> bool) {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(error) if std::env::var_os("GUMBALL_NVRTC").is_some() => panic!("{error}"),
        Err(error) => return println!("left to `ci/run kernels`, which brings the compiler: {error}"),
    };
    let programs =
        archs.iter().flat_map(|arch| Program::all().filter(is_held).map(|program| (*arch, program)));
    let left = Mutex::new(programs);
    let worker = || loop {
        let next = left.lock().expect("nobody panics while it is held").next();
        let Some((arch, program)) = next else { return };
        compile(nvrtc, program, arch);
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(worker))));
}

fn compile(nvrtc: Nvrtc, program: Program, arch: Arch) {
    let compiled =
        nvrtc.compile_with(program, arch, &["--ptxas-options=-v"]).unwrap_or_else(|error| panic!("{error}"));
    let (functions, warnings) = report::read(&compiled.log);
    assert!(warnings.is_empty(), "{} for {arch}: {warnings:#?}", program.name());
    let mut others = Kernel::all().filter(|(other, _)| program.kernels().all(|(own, _)| own != *other));
    assert!(others.all(|(_, name)| !functions.contains_key(&name)), "{} has other kernels", program.name());
    for (_, kernel) in program.kernels() {
        let needs = functions.get(&kernel).unwrap_or_else(|| panic!("no {kernel} for {arch}"));
        check(arch, &kernel, *needs);
    }
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
