//! Compiles kernels into a folder that a package carries: `gumball-kernels [--check] FOLDER [ARCH..]`.
//!
//! It does what `gumball kernels --out FOLDER` does, and is built without what a model needs. Scripts that
//! make packages call it. An ARCH is `sm_90`, or `native` for this machine's devices; without one, or without
//! a device, it compiles for all architectures that a wheel carries. `--check` compiles nothing, and fails if
//! the folder lacks a kernel of this build's sources.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use gumball_cuda::{Arch, CudaInfo, Destination, compile_ahead};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (options, words): (Vec<_>, Vec<_>) = arguments.iter().partition(|word| word.starts_with("--"));
    let done = match (&*options, &*words) {
        ([], [folder, archs @ ..]) => fill(Path::new(folder), archs),
        ([option], [folder, archs @ ..]) if *option == "--check" => check(Path::new(folder), archs),
        _ => Err("usage: gumball-kernels [--check] FOLDER [ARCH..]".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("gumball-kernels: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the architectures that words name.
fn read(words: &[&String]) -> Result<Vec<Arch>, String> {
    let mut archs: Vec<Arch> = match words {
        [] => Vec::new(),
        [word] if *word == "native" => CudaInfo::probe().devices.iter().map(|device| device.arch).collect(),
        words => {
            words.iter().map(|word| word.parse()).collect::<Result<_, _>>().map_err(|e| format!("{e}"))?
        }
    };
    archs.sort_unstable();
    archs.dedup();
    Ok(if archs.is_empty() { Arch::CARRIED.to_vec() } else { archs })
}

fn fill(folder: &Path, words: &[&String]) -> Result<(), String> {
    let archs = read(words)?;
    let compiled = compile_ahead(Destination::Folder(folder), &archs, &|progress| {
        eprintln!("{:4} of {}  {}", progress.count, progress.of, progress.done);
    });
    let compiled = compiled.map_err(|error| error.to_string())?;
    eprintln!("{} programs compiled into {}, the others were there", compiled, folder.display());
    Ok(())
}

fn check(folder: &Path, words: &[&String]) -> Result<(), String> {
    let missing = Destination::Folder(folder).missing(&read(words)?);
    let Some(first) = missing.first() else { return Ok(()) };
    Err(format!(
        "{} lacks {} programs of this build's sources, {first} for one",
        folder.display(),
        missing.len()
    ))
}
