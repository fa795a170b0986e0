//! `gumball detect`: looks for a watermark in the ids of a text.

use std::io::Write;
use std::path::PathBuf;

use gumball_detect::{Evidence, Part, Scheme, detect_any, find_marked};
use gumball_spec::error::shown;
use gumball_spec::{Scope, Watermark, watermark};
use serde::Serialize;

use crate::output::Output;
use crate::sampling::{add_watermark_keys, key_number};
use crate::text::{Table, count};
use crate::{Error, Result, reading};

/// Which text, and which mark.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A file of the text's ids, separated by spaces, commas or lines, as JSON's lists are, too; - is
    /// standard input
    pub ids: PathBuf,
    /// How many of the first ids are the prompt
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub prompt_len: usize,
    /// A file of keys: in each line a number, and 32 hexadecimal digits, or 0x and up to 16 of another
    /// engine's key. GUMBALL_WATERMARK_KEYS names one, too
    #[arg(long, value_name = "FILE")]
    pub watermark_keys: Option<PathBuf>,
    /// The numbers of the keys to look for
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "0", value_parser = key_number)]
    pub keys: Vec<u32>,
    /// Whose mark: gumball; vllm, vllm_dual_key, vllm_dual_key=ALPHA, sglang, or sglang=KEY_B or
    /// sglang=KEY_B,MIXING with the number of a second key, which have rules of their own in the place of
    /// scope and window
    #[arg(long, value_name = "NAME", default_value_t)]
    pub scheme: Scheme,
    /// How many ids a context has
    #[arg(long, value_name = "N", default_value_t = Watermark::default().context)]
    pub context: u32,
    /// The ids of which contexts are made: output or both
    #[arg(long, value_name = "SCOPE", default_value_t = Watermark::default().scope)]
    pub scope: Scope,
    /// Skip a token whose context came in the last N rows; 0 is all
    #[arg(long, value_name = "N", default_value_t = Watermark::default().window)]
    pub window: u32,
    /// Look for marked parts by windows of N ids besides
    #[arg(long, value_name = "N")]
    pub parts: Option<usize>,
    /// The p-value below which a part is marked, and below which the command ends with 0 (1: it was no mark)
    #[arg(long, value_name = "P", default_value_t = 1e-4)]
    pub alpha: f64,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Found {
    key: u32,
    tokens: usize,
    skipped: usize,
    score: f64,
    p_value: f64,
    ln_p: f64,
    parts: Vec<Place>,
}

#[derive(Serialize)]
struct Place {
    start: usize,
    end: usize,
    p_value: f64,
}

/// Looks for a mark.
///
/// # Errors
/// - [`Error::File`] for ids or keys that cannot be read, and [`Error::Usage`] for what cannot be looked for.
/// - [`Error::Verdict`] if no key's p-value is below `alpha`.
pub fn run(args: &Args, out: &mut Output<'_>) -> Result<()> {
    add_watermark_keys(args.watermark_keys.as_deref())?;
    let ids = read_ids(args)?;
    let usage = |error: gumball_spec::Error| Error::Usage(error.to_string());
    for number in &args.keys {
        if watermark::key(*number).is_err() {
            let reason =
                "has no key; name the file of keys by --watermark-keys FILE, and their numbers by --keys";
            return Err(Error::Usage(format!("the number {number} {reason}")));
        }
    }
    let Args { prompt_len, scheme, context, scope, window, .. } = *args;
    let watermark = Watermark { key: 0, context, scope, window };
    watermark.validate().map_err(usage)?;
    let (number, evidence) = detect_any(&ids, prompt_len, scheme, &watermark, &args.keys).map_err(usage)?;
    let marked = match args.parts {
        Some(length) => {
            let watermark = Watermark { key: number, ..watermark };
            find_marked(&ids, prompt_len, scheme, &watermark, length, args.alpha).map_err(usage)?
        }
        None => Vec::new(),
    };
    write(out, args, number, &evidence, &marked)?;
    if evidence.ln_p < args.alpha.ln() {
        return Ok(());
    }
    Err(Error::Verdict(format!("no mark: the p-value is not below {}", args.alpha)))
}

fn write(out: &mut Output<'_>, args: &Args, key: u32, evidence: &Evidence, parts: &[Part]) -> Result<()> {
    let Evidence { tokens, skipped, score, ln_p } = *evidence;
    if args.json {
        let place = |part: &Part| Place {
            start: part.ids.start,
            end: part.ids.end,
            p_value: part.evidence.p_value(),
        };
        let parts = parts.iter().map(place).collect();
        let found = Found { key, tokens, skipped, score, p_value: evidence.p_value(), ln_p, parts };
        writeln!(out, "{}", serde_json::to_string(&found).expect("plain data"))?;
        return Ok(());
    }
    let p = |evidence: &Evidence| match evidence.p_value() {
        p if p > 0.0 => format!("{p:.3e}"),
        _ => format!("1e{:.0}", evidence.ln_p / std::f64::consts::LN_10),
    };
    writeln!(out, "key {key}: p-value {}", p(evidence))?;
    writeln!(
        out,
        "  {} tokens count, {} do not (no context of their own), score {score:.1}, {tokens} without a mark",
        count(tokens as u64),
        count(skipped as u64)
    )?;
    if !parts.is_empty() {
        let mut table = Table::new(&["marked ids", ">tokens", ">p-value"]);
        for part in parts {
            let ids = format!("{} to {}", part.ids.start, part.ids.end - 1);
            table.row(vec![ids, count(part.evidence.tokens as u64), p(&part.evidence)]);
        }
        table.write(out)?;
    }
    Ok(())
}

/// Reads ids between anything that is no digit of theirs.
fn read_ids(args: &Args) -> Result<Vec<u32>> {
    let text = reading::text(&args.ids)?;
    let between = |letter: char| letter.is_whitespace() || ",[]".contains(letter);
    let words = text.split(between).filter(|word| !word.is_empty());
    let id = |word: &str| {
        let reason = || format!("\"{}\" is no id in 0..2^32", shown(word));
        word.parse().map_err(|_| Error::file(&args.ids, reason()))
    };
    words.map(id).collect()
}
