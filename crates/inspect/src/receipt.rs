//! `gumball verify-receipt`: draws the tokens of a receipt again from logits (R3).

use std::io::Write;
use std::path::{Path, PathBuf};

use gumball_receipt::{Answer, Receipt, Replay, Wrong};
use gumball_spec::Row;
use gumball_spec::layout::holds_id;
use serde::Serialize;

use crate::sampling::add_watermark_keys;
use crate::state::read_masks;
use crate::text::count;
use crate::{Error, Result, logits, reading};

/// Which receipt, and how exactly its claims must hold.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// The receipt, as `gumball generate --receipt` writes it
    #[arg(value_name = "RECEIPT")]
    pub receipt: PathBuf,
    /// The logits of each token: .npy, .safetensors or .json of shape (tokens, vocab), the same as they were
    /// drawn from, or computed again
    #[arg(value_name = "LOGITS")]
    pub logits: Option<PathBuf>,
    /// The tensor of a .safetensors file; may be left out if there is one only
    #[arg(long, value_name = "NAME", requires = "logits")]
    pub tensor: Option<String>,
    /// The grammar bitmasks: .npy of bool (one per id) or of 32-bit words, one line for all tokens, or one
    /// for each
    #[arg(long, value_name = "FILE", requires = "logits")]
    pub masks: Option<PathBuf>,
    /// By how much a logit may differ from the one that was drawn from; 0 if they are the same to the bit
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub tolerance: f32,
    /// Accept tokens that the caller forced: a receipt does not prove that they were drawn
    #[arg(long)]
    pub forced: bool,
    /// A file of a watermark's keys, as `gumball detect` reads it
    #[arg(long, value_name = "FILE")]
    pub watermark_keys: Option<PathBuf>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

/// The answers to a receipt.
#[derive(Clone, Debug, Serialize)]
struct Report {
    answer: &'static str,
    tolerance: f32,
    equal: usize,
    within: usize,
    forced: usize,
    wrong: Vec<Place>,
}

/// A token that the logits do not give.
#[derive(Clone, Debug, Serialize)]
struct Place {
    place: usize,
    token: u32,
    claim: &'static str,
}

/// Answers to a receipt whose tokens are drawn again, one after another.
#[derive(Debug)]
pub struct Verifier<'a> {
    receipt: &'a Receipt,
    replay: Replay<'a>,
    answers: Vec<Answer>,
}

impl Args {
    /// Reads the receipt, and the keys of its watermark.
    ///
    /// # Errors
    /// - [`Error::File`] for a file that is no receipt, or has no keys.
    pub fn read(&self) -> Result<Receipt> {
        add_watermark_keys(self.watermark_keys.as_deref())?;
        let text = reading::text(&self.receipt)?;
        Receipt::from_json(&text)
            .map_err(|error| Error::file(reading::name(&self.receipt), error.to_string()))
    }
}

impl<'a> Verifier<'a> {
    /// Begins in front of the first token.
    ///
    /// # Errors
    /// The errors of [`Replay::new`].
    pub fn new(args: &Args, receipt: &'a Receipt) -> Result<Self> {
        let replay = Replay::new(receipt, args.tolerance)?;
        Ok(Self { receipt, replay, answers: Vec::new() })
    }

    /// Draws the next token.
    ///
    /// # Errors
    /// The errors of [`Replay::next`].
    pub fn step(&mut self, row: Row<'_>, mask: Option<&[u32]>) -> Result<()> {
        self.answers.push(self.replay.next(row, mask)?.expect("a token for each row"));
        Ok(())
    }

    /// Writes the answers.
    ///
    /// # Errors
    /// - [`Error::Verdict`] if one is wrong.
    pub fn finish(self, args: &Args, out: &mut dyn Write) -> Result<()> {
        let of = |wanted: Answer| self.answers.iter().filter(|answer| **answer == wanted).count();
        let [equal, within, forced] = [Answer::Equal, Answer::Within, Answer::Forced].map(of);
        let tokens = self.receipt.steps().iter().map(|step| step.token);
        let wrong: Vec<Place> = (0..)
            .zip(tokens)
            .zip(&self.answers)
            .filter(|(_, answer)| matches!(answer, Answer::Wrong(_)))
            .map(|((place, token), answer)| Place { place, token, claim: answer.name() })
            .collect();
        let answer = match (wrong.len(), forced, within) {
            (1.., ..) => "wrong",
            (0, 1.., _) => "forced",
            (0, 0, 1..) => "within",
            (0, 0, 0) if equal == 0 => "empty",
            (0, 0, 0) => "equal",
        };
        let report = Report { answer, tolerance: args.tolerance, equal, within, forced, wrong };
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&report).expect("plain data"))?;
        } else {
            let Report { answer, tolerance, equal, within, forced, ref wrong } = report;
            let [equal, within, forced, many] =
                [equal, within, forced, wrong.len()].map(|number| count(number as u64));
            let within =
                if tolerance > 0.0 { format!(", {within} within {tolerance}") } else { String::new() };
            writeln!(out, "{answer}: {equal} tokens equal{within}, {forced} forced, {many} wrong")?;
            for Place { place, token, claim } in wrong.iter().take(20) {
                writeln!(out, "  token {place}, id {token}: another {claim}")?;
            }
        }
        let is_near = |answer: &Answer| {
            !matches!(answer, Answer::Wrong(Wrong::Token | Wrong::Mask)) && args.tolerance == 0.0
        };
        match (report.wrong.len(), report.forced) {
            _ if report.answer == "empty" => {
                Err(Error::Verdict("the receipt has no tokens, so nothing was drawn again".to_owned()))
            }
            (0, 0) => Ok(()),
            (0, _) if args.forced => Ok(()),
            (0, forced) => Err(Error::Verdict(format!(
                "{forced} tokens were forced by the caller, so that nothing drew them; --forced accepts them"
            ))),
            (wrong, _) => {
                let hint = match self.answers.iter().all(is_near) {
                    true => "; for logits that were computed again give a --tolerance",
                    false => "",
                };
                Err(Error::Verdict(format!(
                    "{wrong} claims of the receipt do not follow from these logits{hint}"
                )))
            }
        }
    }
}

/// Draws a receipt's tokens from a file of logits.
///
/// # Errors
/// - A file that cannot be used, and the errors of [`Verifier`].
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let Some(path) = &args.logits else {
        return Err(Error::Usage("name the file of the logits behind the receipt".to_owned()));
    };
    let receipt = args.read()?;
    let steps = receipt.steps().len();
    if steps == 0 {
        return Verifier::new(args, &receipt)?.finish(args, out);
    }
    let rows = logits::read(path, args.tensor.as_deref(), None, None)?.logits;
    if (rows.rows(), rows.vocab()) != (steps, receipt.vocab()) {
        let (found, vocab) = (rows.rows(), rows.vocab());
        let reason = format!(
            "it has {found} rows of {vocab} logits, the receipt {steps} tokens of {}",
            receipt.vocab()
        );
        return Err(Error::file(reading::name(path), reason));
    }
    let masks = args.masks.as_deref().map(|masks| masks_of(masks, steps)).transpose()?.unwrap_or_default();
    if masks.is_empty() && receipt.has_masks() {
        return Err(Error::Usage("the receipt's tokens had bitmasks; name their file by --masks".to_owned()));
    }
    let mut verifier = Verifier::new(args, &receipt)?;
    for (place, step) in receipt.steps().iter().enumerate() {
        let mask = masks.get(if masks.len() == 1 { 0 } else { place });
        // A line that allows all ids stands for a token without a mask.
        let mask = mask.filter(|mask| step.mask.is_some() || !allows_all(mask, receipt.vocab()));
        verifier.step(rows.row(place), mask.map(Vec::as_slice))?;
    }
    verifier.finish(args, out)
}

/// Reads one bitmask, or one for each token.
fn masks_of(path: &Path, steps: usize) -> Result<Vec<Vec<u32>>> {
    let masks = read_masks(path, steps)?;
    if masks.len() == 1 || masks.len() == steps {
        return Ok(masks);
    }
    Err(Error::file(path, format!("it has {} masks, the receipt {steps} tokens", masks.len())))
}

fn allows_all(mask: &[u32], vocab: usize) -> bool {
    (0..vocab as u32).all(|id| holds_id(mask, id))
}
