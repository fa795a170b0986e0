//! `gumball inspect`: what every stage does to one row.
//!
//! The row comes from a file of logits, or from a model after a prompt. `gumball-inspect` traces and writes
//! it.

use std::io::Write;

use gumball_engine::{Sampler, StepOptions};
use gumball_inspect::inspect;
use gumball_spec::{Request, SamplingParams};

use crate::page::Context;
use crate::session::{ModelArgs, Session, for_prose};
use crate::trace::Trace;
use crate::{Error, Result};

/// Which row, and how to show it.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Take the row from the model, after this prompt
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["file", "kind", "prompt_ids", "history", "position"])]
    pub prompt: Option<String>,
    /// With --prompt: let N tokens be generated before the one that is inspected
    #[arg(long, value_name = "N")]
    pub after: Option<u32>,
    /// The row, the parameters, and how to show it.
    // After the two flags above, which would otherwise appear under the heading of its last flags.
    #[command(flatten)]
    pub row: inspect::Args,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Traces the row and writes what happened to it.
///
/// # Errors
/// - A file, model or device that cannot be used, or a parameter outside its range.
/// - [`Error::Verdict`] if the device's result differs from the trace.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    refuse_without_effect(args)?;
    args.row.check_place()?;
    let (trace, context) = match &args.prompt {
        Some(prompt) => from_model(args, args.row.sampling.to_params()?, prompt)?,
        None if args.row.logits.file.is_none() && args.row.logits.kind.is_none() => {
            let ways = "name a file of logits (.npy, .safetensors, .json), give --prompt \"...\", or make a row up with --kind model-like";
            return Err(Error::Usage(ways.to_owned()));
        }
        None => return inspect::run(&args.row, None, out),
    };
    inspect::write(&args.row, &trace, context.as_ref(), out)
}

/// Refuses flags that the source of the row leaves without effect.
fn refuse_without_effect(args: &Args) -> Result<()> {
    let (without_prompt, with_prompt) = (
        args.after.map(|_| "--after").or(args.model.given()),
        args.row.logits.given().or(args.row.state.given().filter(|flag| *flag != "--mask")),
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

/// Lets the model speak until the row that is meant, and returns its trace and the text before it.
fn from_model(args: &Args, params: SamplingParams, prompt: &str) -> Result<(Trace, Option<Context>)> {
    let mut session = Session::start(&args.model, prompt)?;
    let mask = args.row.state.read()?.mask;
    let params = for_prose(params, args.row.sampling.shapes());
    let sampler = Sampler::new(params.clone(), session.model.vocab())?;
    let mut sampler = sampler.with_prompt(&session.prompt).with_draw(args.row.draw);
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
        draw: args.row.draw,
        mu: sampler.sequence().mu(),
        mask: mask.as_deref().or(session.padding_mask()),
        ..Request::new(&params, &session.prompt, sampler.seed())
    };
    let source = format!("{} after {} tokens", session.name, sampler.position());
    let of_template = ", those of its chat template among them; --no-chat leaves it out";
    let source = if args.model.no_chat { source } else { source + of_template };
    let trace = inspect::trace(&args.row, None, (&logits).into(), &request, &source, &|id| session.text(id))?;
    let said = session.model.tokenizer.decode(sampler.history().output());
    Ok((trace, Some(Context { prompt: prompt.to_owned(), said })))
}
