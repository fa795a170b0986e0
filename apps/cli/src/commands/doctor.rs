//! `gumball doctor`: what `gumball-inspect` finds of this machine, and where the default model is.

use std::io::Write;

use gumball_inspect::doctor::{self, Known, ModelFile};

use crate::Result;
use crate::model::fetch::{Artefact, Fetcher, holds};

pub use gumball_inspect::doctor::Args;

/// Examines the machine and writes what was found.
///
/// # Errors
/// The errors of [`doctor::run`].
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    doctor::run(args, Known { model: Some(model()), ..Known::default() }, out)
}

/// Looks for the default model.
fn model() -> ModelFile {
    let artefact = Artefact::smollm2();
    let path = Fetcher::from_environment().map(|fetcher| fetcher.cache.join(&artefact.file));
    let there = match &path {
        Ok(path) => holds(path, &artefact).map_err(|error| error.to_string()),
        Err(_) => Ok(false),
    };
    ModelFile {
        model_bytes: there.as_ref().is_ok_and(|there| *there).then_some(artefact.bytes),
        model_trouble: there.err(),
        model: path.map(|path| path.display().to_string()).map_err(|error| error.to_string()),
    }
}
