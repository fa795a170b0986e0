//! `gumball generate`: a real model writes, every token chosen by Gumball.
//!
//! The text alone goes to standard output, as it comes; the seed and the figures go to
//! standard error. With `--json` one object is written at the end instead. The same seed gives the same
//! text at every thread count and SIMD level.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use gumball_engine::unstable::files;
use gumball_engine::{Place, Pool, PoolConfig, Widths};
use gumball_receipt::Receipt;
use gumball_spec::{LogprobMode, LogprobModes, SamplingParams};
use serde::Serialize;

use crate::decode::{Decoded, Finish, Limits, Request, decode};
use crate::engine::EngineArgs;
use crate::grammar::Grammar;
use crate::head::{HeadArgs, HeadFigures, HeadKind};
use crate::interrupt::{self, INTERRUPT};
use crate::output::{Output, say, shown};
use crate::request_head::{OnDevice, RequestHead};
use crate::sampling::{SamplingArgs, settings};
use crate::section_texts::SectionTexts;
use crate::session::{ModelArgs, Session, for_prose};
use crate::speculate::{Acceptance, Drafter, SpeculateArgs};
use crate::text::{DIM, Table, WARN};
use crate::waiting::Waiting;
use crate::{Error, Result, reading};

/// What to write, with which model.
#[derive(clap::Args, Clone, Debug)]
#[command(
    after_help = "Without a flag that shapes the distribution, tokens are drawn at temperature 0.7 and top-p 0.9. With one, or with --params that do, \
exactly those act: the temperature is 1 and nothing is cut off unless they say so."
)]
pub struct Args {
    /// What to answer or, with --no-chat, to continue; read from standard input if absent
    #[arg(value_name = "PROMPT")]
    pub prompt: Option<String>,
    /// Write at most N tokens
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_tokens: usize,
    /// End before this string; may be repeated
    #[arg(long, value_name = "STRING")]
    pub stop: Vec<String>,
    /// Make the text follow a JSON schema (.json) or a Lark grammar (.lark)
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,
    /// Write a receipt of the text, which `gumball verify-receipt` draws again
    ///
    /// It has radii, and the 8 most likely tokens after the edits: --top-logprobs says how many, --logprobs
    /// of which distribution, with radii where that is a list whose second mode is radius.
    #[arg(long, value_name = "FILE")]
    pub receipt: Option<PathBuf>,
    /// Write one JSON object at the end instead of the text as it comes
    #[arg(long)]
    pub json: bool,
    /// The way to the tokens.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The head.
    #[command(flatten)]
    pub head: HeadArgs,
    /// The drafts.
    #[command(flatten)]
    pub speculate: SpeculateArgs,
    /// The texts of a section.
    #[command(flatten)]
    pub section: SectionTexts,
    /// The parameters; temperature 0.7 and top-p 0.9 if none are given that shape the distribution.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Everything about a generated text.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The model's name.
    pub model: String,
    /// The device.
    pub device: String,
    /// The route to the tokens.
    pub route: String,
    /// The SIMD level.
    pub level: &'static str,
    /// The seed in use.
    pub seed: u64,
    /// The parameters in use.
    pub params: SamplingParams,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The figures of the head's work; absent where the model's own product made the logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadFigures>,
    /// The figures of the draft model's head; absent where its own product made the logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_head: Option<HeadFigures>,
    /// The text and its tokens.
    #[serde(flatten)]
    pub decoded: Decoded,
}

/// Generates a text and writes it.
///
/// # Errors
/// - A model, grammar or parameter that cannot be used.
/// - [`Error::Verdict`] if the text was cut off before its grammar was complete.
/// - [`Error::Interrupted`] after Ctrl-C.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<()> {
    let params = args.sampling.to_params()?;
    args.speculate.check(&params)?;
    let (device, level) = (args.engine.device(None)?, args.engine.level()?);
    args.head.check(device.is_some())?;
    if let Some(path) = &args.receipt {
        if path == Path::new("-") {
            let reason = "--receipt - would write among the text; name a file";
            return Err(Error::Usage(reason.to_owned()));
        }
        files::check_place(path).map_err(|error| Error::io(path, &error))?;
    }
    let route = args.engine.route()?;
    let prompt = prompt(args)?;
    let mut session = Session::start(&args.model, &prompt)?;
    let mut given = params;
    args.section.put(&mut given, &session.model.tokenizer)?;
    let mut params = for_prose(given.clone(), args.sampling.shapes());
    let is_given = params == given;
    let ends =
        session.model.eos().iter().filter(|id| !params.stop_ids.contains(id)).copied().collect::<Vec<_>>();
    params.stop_ids.extend(ends);
    let has_logprobs = params.logprobs.is_some();
    let receipt = match args.receipt {
        Some(_) => Some(receipt(args, &mut params, &session)?),
        None => None,
    };
    let widths = Widths::of(params.logprobs.as_ref());
    let drafter = args.speculate.drafter(&session.model, level)?;
    let rows = drafter.as_ref().map_or(1, |drafter| drafter.most + 1);
    let place = match &device {
        Some(device) if !args.head.is_given() => Place::device(device.clone(), rows),
        _ => Place::Host { threads: Some(1), level: Some(level) },
    };
    let mut pool = Pool::new(PoolConfig {
        slots: 1,
        place,
        widths,
        route: route.clone(),
        ..PoolConfig::new(session.model.vocab())
    })?;
    let slot = pool.admit(params, &session.prompt)?;
    let place = device.map(|device| OnDevice { device, route: route.clone(), widths, rows });
    let llama = &session.model.llama;
    let eos = session.model.eos();
    let head = RequestHead::new(&args.head, llama, eos, place.as_ref(), (&mut pool, slot))?;
    if receipt.is_some() && head.as_ref().is_some_and(|head| head.kind() == HeadKind::Clustered) {
        let reason = "--receipt needs all logits, and a clustered head computes some of them";
        return Err(Error::Usage(reason.to_owned()));
    }
    let mut request = Request { pool, slot, drafter, head, receipt };
    let grammar =
        args.grammar.as_ref().map(|path| Grammar::load(path, &session.model.tokenizer)).transpose()?;

    interrupt::hear();
    let limits = Limits { max_tokens: args.max_tokens, stops: &args.stop, interrupt: &INTERRUPT };
    if !args.json {
        introduce(&session, &mut request, is_given)?;
    }
    let mut waiting = Some(Waiting::show(format!("reading the prompt, {} tokens", session.prompt.len())));
    let decoded = decode(&mut session, &mut request, grammar, &limits, |piece| {
        drop(waiting.take());
        if !args.json {
            out.text(piece)?;
            out.flush()?;
        }
        Ok(())
    })?;
    drop(waiting);
    if let (Some(path), Some(receipt)) = (&args.receipt, &request.receipt) {
        files::write(path, receipt.to_json().as_bytes()).map_err(|error| Error::io(path, &error))?;
    }
    let (finish, complete) = (decoded.finish, decoded.complete);
    // The pool counts the rows of both heads.
    let of_drafts = request.drafter.as_ref().map(Drafter::head_counts).unwrap_or_default();
    let (counts, tokens) = (request.pool.head_counts().since(of_drafts), decoded.tokens.len());
    let sequence = request.pool.sequence(request.slot)?;
    let report = Report {
        model: session.name.clone(),
        device: args.engine.device.device.clone(),
        route: route.to_string(),
        level: level.name(),
        seed: sequence.seed(),
        params: sequence.params().clone(),
        prompt_tokens: session.prompt.len(),
        head: request.head.as_ref().map(|head| head.figures(counts, tokens)).transpose()?,
        draft_head: request.drafter.as_ref().and_then(|drafter| drafter.head_figures(tokens)),
        decoded,
    };
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        writeln!(out)?;
        if has_logprobs {
            logprobs(&report.decoded, out)?;
        }
        out.flush()?;
        sum_up(&report);
    }
    match (finish, complete) {
        (Finish::Interrupted, _) => Err(Error::Interrupted),
        (_, Some(false)) => {
            let (reason, remedy) = (reason(finish), remedy(finish));
            let text =
                format!("the text ends before its grammar does ({reason}), so it is not valid; {remedy}");
            Err(Error::Verdict(text))
        }
        (Finish::NoToken, _) => Err(Error::Verdict("no token was allowed, so the text ends here".to_owned())),
        _ => Ok(()),
    }
}

/// Returns the receipt of the text, which has no token yet, and gives the parameters what it needs: a seed,
/// and logprobs where flags do not say which.
fn receipt(args: &Args, params: &mut SamplingParams, session: &Session) -> Result<Receipt> {
    let asked = params.logprobs.get_or_insert_default();
    if !args.sampling.gives("logprobs.mode") && asked.mode == LogprobModes::default() {
        asked.mode = LogprobModes { first: LogprobMode::Edited, second: Some(LogprobMode::Radius) };
    }
    if !args.sampling.gives("logprobs.top_n") && asked.top_n == 0 {
        asked.top_n = 8;
    }
    let seed = *params.seed.get_or_insert_with(crate::fresh_seed);
    Ok(Receipt::new(params, session.model.vocab(), seed, 0, &session.prompt)?)
}

/// Returns the prompt: the argument, or what standard input says.
fn prompt(args: &Args) -> Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.clone());
    }
    if std::io::stdin().is_terminal() {
        return Err(Error::Usage("say what to answer: gumball generate \"Why is the sky blue?\"".to_owned()));
    }
    Ok(reading::text(Path::new("-"))?.trim_end().to_owned())
}

/// Says what acts; `is_given`: only what flags and files say does.
fn introduce(session: &Session, request: &mut Request, is_given: bool) -> Result<()> {
    let sequence = request.pool.sequence(request.slot)?;
    let acting = SamplingParams { stop_ids: Vec::new(), ..sequence.params().clone() };
    let mut settings = settings(&acting);
    if !settings.starts_with("temperature ") {
        let rest = if settings.is_empty() { settings } else { format!(", {settings}") };
        settings = format!("temperature {}{rest}", acting.temperature);
    }
    let name = shown(&session.name);
    say(format_args!("{DIM}{name}: {settings}, and nothing else; seed {}{DIM:#}", sequence.seed()));
    if is_given {
        say(format_args!("{DIM}temperature 0.7 and top-p 0.9 are for calls without such parameters{DIM:#}"));
    }
    if let Some(head) = &request.head {
        say(format_args!(
            "{DIM}the {} head adds up in an order of its own, so the text may be another than without --head{DIM:#}",
            head.kind().name()
        ));
    }
    say(format_args!(""));
    Ok(())
}

fn sum_up(report: &Report) {
    let timing = report.decoded.timing;
    let tokens = match report.decoded.tokens.len() {
        0 => "no tokens".to_owned(),
        1 => "1 token".to_owned(),
        n => format!("{n} tokens"),
    };
    let draft_us = report.decoded.speculation.map_or(0.0, |acceptance| acceptance.draft_us);
    let each_us = timing.model_us + timing.choose_us + draft_us;
    let prompt = match report.decoded.tokens.len() {
        0 => String::new(),
        _ => format!("; the first after {:.1} s", timing.prompt_ms / 1e3),
    };
    let speed = match report.decoded.tokens.len() {
        0 | 1 => String::new(),
        _ => {
            format!(", then {:.0} a second, {:.0} us of each to choose it", 1e6 / each_us, timing.choose_us)
        }
    };
    say(format_args!("\n{DIM}{tokens}, ended by {}{prompt}{speed}{DIM:#}", reason(report.decoded.finish)));
    if let Some(Acceptance { passes, drafted, accepted, draft_us }) = report.decoded.speculation {
        let share = 100.0 * accepted as f64 / drafted.max(1) as f64;
        let a_pass = report.decoded.tokens.len() as f64 / passes.max(1) as f64;
        say(format_args!(
            "{DIM}{accepted} of {drafted} drafts accepted ({share:.0} %), {a_pass:.2} tokens a pass of the model, \
             {draft_us:.0} us of each to draft{DIM:#}"
        ));
    }
    if let Some(figures) = &report.head {
        say_head("head", figures);
    }
    if let Some(figures) = &report.draft_head {
        say_head("head of the draft model", figures);
    }
    if report.decoded.finish == Finish::MaxTokens && report.decoded.complete.is_none() {
        say(format_args!("{WARN}the limit of tokens cut it off; --max-tokens raises it{WARN:#}"));
    }
}

fn say_head(what: &str, figures: &HeadFigures) {
    let HeadFigures { kind, bytes_a_token, whole_rows, ref device, .. } = *figures;
    let HeadFigures { certified_rows, certified_logits, clustered_rows, clustered_logits, .. } = *figures;
    let (rows, logits) = (certified_rows + clustered_rows, certified_logits + clustered_logits);
    let of_part = match rows {
        0 => String::new(),
        rows => {
            format!(
                "; {rows} of {} rows by {:.1} logits each",
                rows + whole_rows,
                logits as f64 / rows as f64
            )
        }
    };
    let kind = if figures.approximate { format!("approximate, {kind}") } else { kind.to_owned() };
    let place = device.as_ref().map_or(String::new(), |device| format!(" on {device}"));
    let read = match bytes_a_token {
        Some(bytes) => format!("{:.1} MB of weights read for each", bytes / 1e6),
        None => "rows of a pass share what they read of the weights".to_owned(),
    };
    say(format_args!("{DIM}{kind} {what}{place}: {read}{of_part}{DIM:#}"));
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::StopToken => "the model",
        Finish::StopString => "a stop string",
        Finish::Grammar => "the grammar",
        Finish::MaxTokens => "the limit of tokens",
        Finish::Context => "the model's context",
        Finish::NoToken => "lack of an allowed token",
        Finish::Interrupted => "Ctrl-C",
    }
}

/// Returns what to do about a text that ended before its grammar did.
fn remedy(finish: Finish) -> &'static str {
    match finish {
        Finish::NoToken => {
            "the parameters ban each token that the grammar allows next: see --allowed-ids, --banned-ids, --bad-words, --logit-bias, --no-repeat-ngram and \
             --min-tokens"
        }
        Finish::StopString => "leave out --stop, or name a string that the grammar does not need",
        Finish::Context => "shorten the prompt",
        _ => "raise --max-tokens",
    }
}

fn logprobs(decoded: &Decoded, out: &mut dyn Write) -> Result<()> {
    let mut table = Table::new(&[">id", "token", ">logprob", ">rank", "most likely, and ids asked for"]);
    for step in &decoded.tokens {
        let Some(own) = step.logprob else { continue };
        let others = step.top_logprobs.iter().chain(&step.logprob_ids);
        let others: Vec<_> = others.map(|other| format!("{} {:.3}", other.id, other.logprob)).collect();
        let text = format!("{:?}", step.text);
        table.row(vec![step.id.to_string(), text, own.shown(4), own.rank.to_string(), others.join("  ")]);
    }
    writeln!(out)?;
    Ok(table.write(out)?)
}
