//! `gumball kernels`: compiles the GPU kernels ahead of time, for this machine or for images and machines
//! that have no compiler.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use gumball_cuda::{Arch, Cache, CudaInfo, Destination, Progress, compile_ahead};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::{say, shown};
use crate::{Error, Result};

/// What to compile, and where to.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Architectures such as sm_90 or 9.0; this machine's devices if none is named, and with --out all that
    /// the Python package carries
    #[arg(long, value_delimiter = ',')]
    pub arch: Vec<Arch>,
    /// Fill a folder, which GUMBALL_KERNELS names where the kernels run, and not the user's cache
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Compile nothing; fail if a kernel is not there
    #[arg(long)]
    pub check: bool,
}

/// Compiles what is not there, and writes where it lies.
///
/// # Errors
/// - [`Error::Usage`] if no architecture is named and there is no device, or if there is no cache.
/// - [`Error::Spec`] if NVRTC is missing or too old, or a file cannot be written.
/// - [`Error::Verdict`] if `check` finds that a kernel is not there.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let archs = archs(args)?;
    if let Some(path) = args.out.as_deref().filter(|path| path.exists() && !path.is_dir()) {
        return Err(Error::file(path, "it is no folder; name one, or a path where nothing is"));
    }
    let cache = Cache::user();
    let (to, folder) = match (&args.out, cache.folder()) {
        (Some(folder), _) => (Destination::Folder(folder), &**folder),
        (None, Some(folder)) => (Destination::Cache(&cache), folder),
        (None, None) => {
            let reason =
                "there is no cache: set GUMBALL_CACHE or HOME to an absolute path, or name a folder by --out";
            return Err(Error::Usage(reason.to_owned()));
        }
    };
    let names: Vec<String> = archs.iter().map(Arch::to_string).collect();
    let (names, folder) = (names.join(", "), shown(&folder.display().to_string()));
    if args.check {
        let missing = to.missing(&archs);
        let Some(first) = missing.first() else {
            return Ok(writeln!(out, "{folder} has all kernels for {names}")?);
        };
        let count = missing.len();
        return Err(Error::Verdict(format!(
            "{folder} lacks {count} programs of this build, {first} for one"
        )));
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    let lines = !std::io::stderr().is_terminal();
    let compiled = compile_ahead(to, &archs, &|Progress { done, count, of }| {
        if lines {
            say(format_args!("{count}/{of} {done}"));
        }
        bar.set_length(of as u64);
        bar.set_position(count as u64);
        bar.set_message(done);
    });
    bar.finish_and_clear();
    let compiled = compiled.map_err(gumball_spec::Error::from)?;
    Ok(writeln!(out, "{folder} has all kernels for {names}: {compiled} programs were compiled")?)
}

/// Returns the architectures to compile for.
fn archs(args: &Args) -> Result<Vec<Arch>> {
    let mut archs = match (&*args.arch, &args.out) {
        ([], Some(_)) => Arch::CARRIED.to_vec(),
        ([], None) => CudaInfo::probe().devices.iter().map(|device| device.arch).collect(),
        (named, _) => named.to_vec(),
    };
    archs.sort_unstable();
    archs.dedup();
    if archs.is_empty() {
        return Err(Error::Usage(
            "this machine has no CUDA device; name an architecture by --arch".to_owned(),
        ));
    }
    Ok(archs)
}
