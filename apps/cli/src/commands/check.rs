//! `gumball check`: is what this machine draws what the definition says it draws?

use std::io::Write;

use gumball_spec::SamplingParams;
use serde::Serialize;

use crate::check::{Check, Engine, FALSE_ALARM_RATE, Item, OnDevice, Setting, Subject, suite};
use crate::engine::EngineArgs;
use crate::logits::{Fallback, Kind, LogitsArgs, Source};
use crate::sampling::SamplingArgs;
use crate::state::StateArgs;
use crate::text::{BAD, DIM, GOOD, HEAD, count};
use crate::{Error, Result};

/// What to check, and how thoroughly.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The rows.
    #[command(flatten)]
    pub logits: LogitsArgs,
    /// Draws in each test of a distribution
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub draws: u32,
    /// Draws compared with the oracle, for each row and setting
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub oracle_draws: u32,
    /// The way to the tokens.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// The request state.
    #[command(flatten)]
    pub state: StateArgs,
    /// The parameters to check; a suite of settings if none are given.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Everything that was checked.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the subject that was checked.
    pub subject: String,
    /// Draws in each test of a distribution.
    pub draws: u32,
    /// The chance that a test of a distribution fails a right engine.
    pub false_alarm_rate: f64,
    /// The items.
    pub items: Vec<Item>,
}

/// The seed of a check that was given none: a verdict should not change from run to run.
const SEED: u64 = 0x6D_BA11;

/// Checks, and writes figures and verdicts.
///
/// # Errors
/// - [`Error::Verdict`] if an item does not hold.
/// - What the files and parameters get wrong.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let params = args.sampling.to_params()?;
    let check =
        Check { draws: args.draws, oracle_draws: args.oracle_draws, seed: params.seed.unwrap_or(SEED) };
    let subject: Box<dyn Subject> = match args.engine.device(None)? {
        Some(device) => Box::new(OnDevice { device, route: args.engine.route()? }),
        None => Box::new(Engine { level: args.engine.level()?, route: args.engine.route()? }),
    };
    let is_given = (SamplingParams { seed: None, ..params.clone() }) != SamplingParams::default();
    if let Some(flag) = args.state.given().filter(|_| !is_given) {
        let reason = "it is about parameters that are given, and the suite has states of its own";
        return Err(Error::Usage(format!("{flag}: {reason}; give parameters, or leave it out")));
    }
    let given = match is_given {
        true => vec![Setting { name: "as given".to_owned(), params, state: args.state.read()? }],
        false => Vec::new(),
    };
    let mut report = Report {
        subject: subject.name(),
        draws: check.draws,
        false_alarm_rate: FALSE_ALARM_RATE,
        items: Vec::new(),
    };
    for source in sources(&args.logits)? {
        if !args.json {
            writeln!(out, "{HEAD}{} on {}{HEAD:#}", report.subject, source.name)?;
        }
        let settings = if is_given { given.clone() } else { suite(source.logits.vocab()) };
        for setting in &settings {
            let items = check.run(&*subject, setting, &source)?;
            if !args.json {
                write(setting, &items, out)?;
            }
            report.items.extend(items);
        }
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    let failed = report.items.iter().filter(|item| !item.holds).count();
    if failed > 0 {
        return Err(Error::Verdict(format!("{failed} of {} items do not hold", report.items.len())));
    }
    if !args.json {
        writeln!(out, "\n{GOOD}all {} items hold{GOOD:#}", report.items.len())?;
        let draws = count(u64::from(report.draws));
        writeln!(
            out,
            "{DIM}{draws} draws in each test of a distribution, false-alarm rate {FALSE_ALARM_RATE:e}{DIM:#}"
        )?;
    }
    Ok(())
}

/// Returns the rows asked for; rows of both kinds where none are.
fn sources(args: &LogitsArgs) -> Result<Vec<Source>> {
    let load = |kind| args.load(Fallback { kind: Some(kind), rows: 1, vocab: 32_000 });
    match (&args.file, args.kind) {
        (None, None) => [Kind::ModelLike, Kind::Flat].map(load).into_iter().collect(),
        _ => Ok(vec![load(Kind::ModelLike)?]),
    }
}

fn write(setting: &Setting, items: &[Item], out: &mut dyn Write) -> Result<()> {
    writeln!(out, " {}", setting.name)?;
    for item in items {
        let (style, verdict) = if item.holds { (GOOD, "holds") } else { (BAD, "FAILS") };
        let row = item.row.map_or_else(|| "all".to_owned(), |row| format!("row {row}"));
        writeln!(
            out,
            "  {style}{verdict}{style:#}  {:<24} {row:<6} {DIM}{}{DIM:#}",
            item.name, item.figures
        )?;
    }
    Ok(out.flush()?)
}
