//! `gumball inspect`: what every stage does to one row.
//!
//! The row is read from a file of logits, or made up. The result goes to the terminal, as text or JSON, or
//! to a page of HTML that explains itself. A program that has a model traces rows of its own by [`trace()`]
//! and writes them by [`write()`].

use std::io::Write;
use std::path::{Path, PathBuf};

use gumball_engine::unstable::files;
use gumball_spec::{Request, Row};

use crate::engine::DeviceArgs;
use crate::logits::{Fallback, LogitsArgs, Source};
use crate::output::{say, shown};
use crate::page::{self, Context};
use crate::sampling::SamplingArgs;
use crate::state::StateArgs;
use crate::trace::{Detail, OnDevice, Texts, Trace};
use crate::{Error, Result, terminal};

/// Which row, and how to show it.
// Programs flatten it into arguments of the same name, which may be there once.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// The row.
    #[command(flatten)]
    pub logits: LogitsArgs,
    /// The draw index
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub draw: u32,
    /// Write a page of HTML to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Where the token is chosen as well, to be held to the trace.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The request state.
    #[command(flatten)]
    pub state: StateArgs,
    /// The parameters.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

impl Args {
    /// Checks that the page can be written where it is to go, before there is one.
    ///
    /// # Errors
    /// - [`Error::File`] if it cannot.
    pub fn check_place(&self) -> Result<()> {
        let place = self
            .html
            .as_deref()
            .map(|path| files::check_place(path).map_err(|error| Error::io(path, &error)));
        place.unwrap_or(Ok(()))
    }
}

/// Traces a row of a file, or one made up, and writes what happened to it; `kernels` is the folder of
/// compiled kernels that the program brings, if any.
///
/// # Errors
/// - A file or device that cannot be used, or a parameter outside its range.
/// - [`Error::Usage`] if no row is named, or more than one.
/// - [`Error::Verdict`] if the device draws another token, or reports other numbers, than the trace.
pub fn run(args: &Args, kernels: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    args.check_place()?;
    let mut params = args.sampling.to_params()?;
    let Source { logits, numbers, rows, origin, .. } =
        args.logits.load(Fallback { kind: None, rows: 1, vocab: 32_000 })?;
    let [row] = rows[..] else {
        return Err(Error::Usage(format!("there are {} rows; choose one with --rows", rows.len())));
    };
    let state = args.state.read()?;
    let seed = *params.seed.get_or_insert_with(crate::fresh_seed);
    let request = state.request(&params, seed, args.draw);
    let source = format!("Row {} of {origin}", numbers[row]);
    let trace = trace(args, kernels, logits.row(row), &request, &source, &|_| None)?;
    write(args, &trace, None, out)
}

/// Traces a row, and lets the device choose its token as well, if there is one.
///
/// # Errors
/// A device that cannot be used, or a parameter outside its range.
pub fn trace(
    args: &Args,
    kernels: Option<&Path>,
    row: Row<'_>,
    request: &Request<'_>,
    source: &str,
    texts: Texts<'_>,
) -> Result<Trace> {
    let mut trace = Trace::of(row, request, source, texts, Detail::Full)?;
    if let Some(device) = args.device.open_with(kernels)? {
        trace.device = Some(OnDevice::of(&device, row, request)?);
    }
    Ok(trace)
}

/// Writes a trace as the arguments ask: text, JSON or a page.
///
/// # Errors
/// - [`Error::File`] if the page cannot be written.
/// - [`Error::Verdict`] if the device draws another token, or reports other numbers, than the trace.
pub fn write(args: &Args, trace: &Trace, context: Option<&Context>, out: &mut dyn Write) -> Result<()> {
    if let Some(path) = &args.html {
        let page = page::page(trace, context);
        files::write(path, page.as_bytes()).map_err(|error| Error::io(path, &error))?;
        let wrote = format!("wrote {}; open it in a browser", shown(&path.display().to_string()));
        // Standard output is the JSON's.
        if args.json { say(format_args!("{wrote}")) } else { writeln!(out, "{wrote}")? }
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, trace).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else if args.html.is_none() {
        terminal::write(trace, context, out)?;
    }
    match trace.device.as_ref().filter(|device| !device.differences.is_empty()) {
        Some(device) => {
            let differences = device.differences.join("; ");
            Err(Error::Verdict(format!("{} differs from the definition: {differences}", device.name)))
        }
        None => Ok(()),
    }
}
