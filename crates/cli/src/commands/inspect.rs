//! `gumball inspect`: what every stage does to one row.
//!
//! The row comes from a file of logits, or from a model after a prompt. Written to the terminal, as JSON, or
//! as one page of HTML that explains itself.

mod terminal;

use std::io::Write;
use std::path::PathBuf;

use gumball_engine::{Sampler, StepOptions};
use gumball_spec::{Request, Row, SamplingParams};

use crate::engine::DeviceArgs;
use crate::logits::{Fallback, LogitsArgs, Source};
use crate::output::{say, shown};
use crate::page::{self, Context};
use crate::sampling::SamplingArgs;
use crate::session::{ModelArgs, Session, for_prose};
use crate::state::StateArgs;
use crate::trace::{OnDevice, Texts, Trace};
use crate::{Error, Result};

/// Which row, and how to show it.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The row.
    #[command(flatten)]
    pub logits: LogitsArgs,
    /// Take the row from the model, after this prompt
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["file", "kind", "prompt_ids", "history", "position"])]
    pub prompt: Option<String>,
    /// With --prompt: let N tokens be generated before the one that is inspected
    #[arg(long, value_name = "N")]
    pub after: Option<u32>,
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
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The request state.
    #[command(flatten)]
    pub state: StateArgs,
    /// The parameters.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Traces the row and writes what happened to it.
///
/// # Errors
/// - A file, model or device that cannot be used, or a parameter outside its range.
/// - [`Error::Verdict`] if the device comes to something else than the trace.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    refuse_without_effect(args)?;
    let params = args.sampling.to_params()?;
    let (trace, context) = match &args.prompt {
        Some(prompt) => from_model(args, params, prompt)?,
        None if args.logits.file.is_none() && args.logits.kind.is_none() => {
            let ways = "name a file of logits (.npy, .safetensors), give --prompt \"...\", or make a row up with --kind model-like";
            return Err(Error::Usage(ways.to_owned()));
        }
        None => (from_rows(args, params)?, None),
    };
    if let Some(path) = &args.html {
        let page = page::page(&trace, context.as_ref());
        std::fs::write(path, page).map_err(|error| Error::io(path, &error))?;
        let wrote = format!("wrote {}; open it in a browser", shown(&path.display().to_string()));
        // Standard output is the JSON's.
        if args.json { say(format_args!("{wrote}")) } else { writeln!(out, "{wrote}")? }
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &trace).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else if args.html.is_none() {
        terminal::write(&trace, context.as_ref(), out)?;
    }
    match trace.device.filter(|device| !device.differences.is_empty()) {
        Some(device) => {
            let differences = device.differences.join("; ");
            Err(Error::Verdict(format!("{} differs from the definition: {differences}", device.name)))
        }
        None => Ok(()),
    }
}

/// Refuses flags that the source of the row leaves without effect.
fn refuse_without_effect(args: &Args) -> Result<()> {
    let (without_prompt, with_prompt) = (
        args.after.map(|_| "--after").or(args.model.given()),
        args.logits.given().or(args.state.given().filter(|flag| *flag != "--mask")),
    );
    match (&args.prompt, without_prompt, with_prompt) {
        (None, Some(flag), _) => {
            Err(Error::Usage(format!("{flag} is about a model; give --prompt, or leave it out")))
        }
        (Some(_), _, Some(flag)) => {
            Err(Error::Usage(format!("{flag} is about rows from a file; leave it out, or --prompt")))
        }
        _ => Ok(()),
    }
}

fn from_rows(args: &Args, mut params: SamplingParams) -> Result<Trace> {
    let Source { logits, rows, origin, .. } =
        args.logits.load(Fallback { kind: None, rows: 1, vocab: 32_000 })?;
    let [row] = rows[..] else {
        return Err(Error::Usage(format!("there are {} rows; choose one with --rows", rows.len())));
    };
    let state = args.state.read()?;
    let seed = *params.seed.get_or_insert_with(super::fresh_seed);
    let request = state.request(&params, seed, args.draw);
    trace(args, logits.row(row), &request, &format!("Row {row} of {origin}"), &|_| None)
}

/// Traces a row, and lets the device choose its token as well, if there is one.
fn trace(args: &Args, row: Row<'_>, request: &Request<'_>, source: &str, texts: Texts<'_>) -> Result<Trace> {
    let mut trace = Trace::of(row, request, source, texts)?;
    if let Some(device) = args.device.open()? {
        trace.device = Some(OnDevice::of(&device, row, request)?);
    }
    Ok(trace)
}

/// Lets the model speak until the row that is meant, and returns its trace and the text before it.
fn from_model(args: &Args, params: SamplingParams, prompt: &str) -> Result<(Trace, Option<Context>)> {
    let mut session = Session::start(&args.model, prompt)?;
    let mask = args.state.read()?.mask;
    let params = for_prose(params);
    let sampler = Sampler::new(params.clone(), session.model.vocab())?;
    let mut sampler = sampler.with_prompt(&session.prompt).with_draw(args.draw);
    let mut logits = session.logits(&session.prompt.clone())?;
    let after = args.after.unwrap_or(0);
    for n in 0..after {
        let token = sampler
            .sample_with(&logits, StepOptions { mask: session.padding_mask(), ..Default::default() })?;
        match token.id.filter(|id| !session.model.tokenizer.is_eos(*id)) {
            Some(id) => logits = session.logits(&[id])?,
            None => {
                return Err(Error::Usage(format!("--after {after}: the text ends after {n} tokens")));
            }
        }
    }
    let request = Request {
        output: sampler.history().output(),
        position: sampler.position(),
        draw: args.draw,
        mu: sampler.sequence().mu(),
        mask: mask.as_deref().or(session.padding_mask()),
        ..Request::new(&params, &session.prompt, sampler.seed())
    };
    let source = format!("{} after {} tokens", session.name, sampler.position());
    let trace = trace(args, (&logits).into(), &request, &source, &|id| session.text(id))?;
    let said = session.model.tokenizer.decode(sampler.history().output());
    Ok((trace, Some(Context { prompt: prompt.to_owned(), said })))
}
