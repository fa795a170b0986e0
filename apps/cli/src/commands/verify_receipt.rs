//! `gumball verify-receipt`: draws the tokens of a receipt again, from a file of logits, or from logits that
//! a model computes again for the whole text at once.

use std::io::Write;
use std::path::PathBuf;

use crate::grammar::Grammar;
use crate::receipt::{self, Verifier};
use crate::session::Session;
use crate::waiting::Waiting;
use crate::{Error, Result, reading};

/// How many rows of logits are held at once.
const ROWS: usize = 64;

/// Which receipt, and where the logits come from.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The receipt.
    #[command(flatten)]
    pub receipt: receipt::Args,
    /// Without LOGITS: the model that computes them, a Llama-family model in GGUF format; default: that of
    /// generate
    #[arg(long, value_name = "FILE", conflicts_with = "logits")]
    pub model: Option<PathBuf>,
    /// Without LOGITS: the grammar that the text was made to follow
    #[arg(long, value_name = "FILE", conflicts_with = "logits")]
    pub grammar: Option<PathBuf>,
}

/// Draws the tokens of a receipt again.
///
/// # Errors
/// - A receipt, model or grammar that cannot be used, and the errors of [`Verifier`].
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    if args.receipt.logits.is_some() {
        return receipt::run(&args.receipt, out);
    }
    let receipt = args.receipt.read()?;
    let mut verifier = Verifier::new(&args.receipt, &receipt)?;
    let wrong = |reason: String| Error::file(reading::name(&args.receipt.receipt), reason);
    if receipt.prompt().is_empty() {
        return Err(wrong("it has no prompt, and a model computes no logits of nothing".to_owned()));
    }
    let mut session = Session::load(args.model.as_deref())?;
    let Session { model, padding_mask, .. } = &mut session;
    if model.vocab() != receipt.vocab() {
        let (own, vocab) = (model.vocab(), receipt.vocab());
        return Err(wrong(format!(
            "it is of {vocab} ids, but the model has {own}; name its model by --model"
        )));
    }
    let grammar = args.grammar.as_ref().map(|path| Grammar::load(path, &model.tokenizer));
    let (mut grammar, mut has_left) = (grammar.transpose()?, false);
    if receipt.has_masks() && grammar.is_none() && padding_mask.is_none() {
        return Err(Error::Usage(
            "the receipt's tokens had bitmasks; name the grammar by --grammar".to_owned(),
        ));
    }
    let _waiting = Waiting::show(format!("reading {} tokens again", receipt.steps().len()));
    let output: Vec<u32> = receipt.steps().iter().map(|step| step.token).collect();
    for (chunk, ids) in output.chunks(ROWS).enumerate() {
        // The model reads the token before each row: the prompt or the last token of the chunk before, then
        // the chunk's own tokens, except its last one.
        let (before, ids_before) = (ids.len() - 1, &output[..chunk * ROWS]);
        let last = ids_before.last().map_or(receipt.prompt(), std::slice::from_ref);
        let hidden = model.llama.hidden(&[last, &ids[..before]].concat())?;
        let logits = model.llama.logits_last(&hidden, ids.len())?;
        for (row, id) in logits.chunks(receipt.vocab()).zip(ids) {
            let allowed = match &mut grammar {
                // A text that has left the grammar has no mask of it.
                Some(_) if has_left => Some(Vec::new()),
                Some(grammar) => Some(grammar.mask()?),
                None => None,
            };
            verifier.step(row.into(), allowed.as_deref().or(padding_mask.as_deref()))?;
            has_left = has_left || grammar.as_mut().is_some_and(|grammar| grammar.follow(*id).is_err());
        }
    }
    verifier.finish(&args.receipt, out)
}
