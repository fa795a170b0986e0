//! `gumball sample`: draws tokens from a file of logits.
//!
//! Every row is drawn as if it came next after the given prompt and history; `--draws N` draws each N times,
//! with draw index 0 to N - 1. The result is a table, or with `--json` one line of JSON a token. In JSON a
//! logprob of -inf is `null`.

use std::io::Write;
use std::path::Path;

use gumball_spec::logprobs::TokenLogprob;
use gumball_spec::{NONE, Request};
use serde::Serialize;

use crate::engine::EngineArgs;
use crate::logits::{Fallback, LogitsArgs, Source};
use crate::one_slot::OneSlot;
use crate::records::LogprobRecord;
use crate::sampling::SamplingArgs;
use crate::state::{State, StateArgs};
use crate::text::{DIM, Table, count};
use crate::{Error, Result};

/// What to draw from, and how.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The rows.
    #[command(flatten)]
    pub logits: LogitsArgs,
    /// Draw each row N times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub draws: u32,
    /// Write JSON, one line a token
    #[arg(long)]
    pub json: bool,
    /// The way to the tokens.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The request state.
    #[command(flatten)]
    pub state: StateArgs,
    /// The parameters.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// One drawn token.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The row of the file.
    pub row: usize,
    /// The draw index.
    pub draw: u32,
    /// The token, or -1 if the row has none.
    pub token: i32,
    /// How many tokens the filters kept.
    pub kept: usize,
    /// The temperature in use.
    pub temperature: f32,
    /// The status of the row's data.
    pub status: Vec<&'static str>,
    /// The seed in use.
    pub seed: u64,
    /// The position in use.
    pub position: u32,
    /// Of the token, in the mode asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprob: Option<LogprobRecord>,
    /// Of the most likely tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<LogprobRecord>,
    /// Of the ids asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprob_ids: Vec<LogprobRecord>,
}

/// The most tokens of a table, which is held whole before it is written.
const MOST_IN_A_TABLE: u64 = 1 << 20;

/// Draws the tokens and writes them; `kernels` is the folder of compiled kernels that the program brings, if
/// any.
///
/// # Errors
/// A file that cannot be used, a row that does not exist, or a parameter outside its range.
pub fn run(args: &Args, kernels: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    let Source { logits, numbers, rows, .. } =
        args.logits.load(Fallback { kind: None, rows: 1, vocab: 32_000 })?;
    let state = args.state.read()?;
    let mut params = args.sampling.to_params()?;
    let seed = *params.seed.get_or_insert_with(crate::fresh_seed);
    let (place, route) = args.engine.place(kernels)?;
    let mut slot = OneSlot::new(&params, logits.vocab(), place, route)?;

    let tokens = (rows.len() as u64).saturating_mul(u64::from(args.draws));
    if tokens > MOST_IN_A_TABLE && !args.json {
        let (tokens, most) = (count(tokens), count(MOST_IN_A_TABLE));
        let reason = format!(
            "{tokens} tokens are too many for a table, which takes {most}; --json writes a line for each"
        );
        return Err(Error::Usage(reason));
    }
    let mut records = Vec::new();
    for row in rows {
        for draw in 0..args.draws {
            let request = state.request(&params, seed, draw);
            slot.draw(logits.row(row), &request)?;
            let record = record(numbers[row], &request, &slot);
            if args.json {
                serde_json::to_writer(&mut *out, &record).map_err(std::io::Error::from)?;
                writeln!(out)?;
            } else {
                records.push(record);
            }
        }
    }
    if !args.json {
        table(&records, seed, &state, out)?;
    }
    Ok(())
}

fn record(row: usize, request: &Request<'_>, slot: &OneSlot) -> Record {
    let records = |list: &[TokenLogprob]| list.iter().map(LogprobRecord::from).collect();
    let (drawn, logprobs) = (slot.drawn(), slot.logprobs());
    let has_second = request.params.logprobs.as_ref().is_some_and(|asked| asked.mode.second.is_some());
    Record {
        row,
        draw: request.draw,
        token: drawn.tokens()[0],
        kept: drawn.kept(0).len(),
        temperature: drawn.temperatures()[0],
        status: drawn.status(0).names().collect(),
        seed: request.seed,
        position: request.position,
        logprob: logprobs.as_ref().map(|logprobs| LogprobRecord {
            second: has_second.then_some(logprobs.second),
            ..LogprobRecord::from(&logprobs.token)
        }),
        top_logprobs: logprobs.as_ref().map_or_else(Vec::new, |logprobs| records(&logprobs.top)),
        logprob_ids: logprobs.as_ref().map_or_else(Vec::new, |logprobs| records(&logprobs.ids)),
    }
}

fn table(records: &[Record], seed: u64, state: &State, out: &mut dyn Write) -> Result<()> {
    let with_logprobs = records.iter().any(|record| record.logprob.is_some());
    let mut headings = vec![">row", ">draw", ">token", ">kept", ">T"];
    if with_logprobs {
        headings.extend([">logprob", ">rank", "most likely, and ids asked for"]);
    }
    headings.push("status");
    let mut table = Table::new(&headings);
    for record in records {
        let token = if record.token == NONE { "none".to_owned() } else { record.token.to_string() };
        let mut cells = vec![
            record.row.to_string(),
            record.draw.to_string(),
            token,
            record.kept.to_string(),
            record.temperature.to_string(),
        ];
        if let Some(logprob) = record.logprob {
            let others = record.top_logprobs.iter().chain(&record.logprob_ids);
            let others: Vec<_> = others.map(|other| format!("{} {:.4}", other.id, other.logprob)).collect();
            cells.extend([logprob.shown(6), logprob.rank.to_string(), others.join("  ")]);
        }
        cells.push(record.status.join(" "));
        table.row(cells);
    }
    table.write(out)?;
    writeln!(out, "{DIM}  seed {seed}, position {}{DIM:#}", state.position)?;
    Ok(())
}
