//! The logprobs that a pool tells of its tokens over their kept sets, against the trainer's function (L4) of
//! the same rows, edited as a trainer repeats it (L6).

use std::fmt::Display;

use gumball_engine::{
    GivenLogprobs, GivenTokens, Masks, NONE, Operators, Outputs, PerRow, Result, Rows, SamplingParams,
    Scored, edit_columns,
};
use gumball_spec::{LogprobMode, LogprobModes, LogprobsParams};

/// A token that a pool emitted, and what it was drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Drawn<'a> {
    /// The request's parameters.
    pub params: &'a SamplingParams,
    /// Prompt and output before the token.
    pub before: &'a [u32],
    /// How many of these are prompt.
    pub prompt_len: usize,
    /// The row of logits.
    pub row: &'a [f32],
    /// The row of the outputs.
    pub place: usize,
}

/// Returns parameters that ask for the token's logprob over its kept set, which adaptive-p does not have.
#[must_use]
pub fn asking(params: SamplingParams) -> SamplingParams {
    let mode = LogprobModes::from(LogprobMode::Processed);
    let logprobs = Some(LogprobsParams { mode, ..LogprobsParams::default() });
    SamplingParams { logprobs, adaptive_target: -1.0, ..params }
}

/// Returns the row as a step edits it, without bans.
fn edited(Drawn { params, before, prompt_len, row, .. }: &Drawn<'_>) -> Result<Vec<f32>> {
    let (mut row, biased) = (row.to_vec(), params.logit_bias.iter().map(|(id, _)| *id));
    let of_row = |id: &u32| (*id as usize) < row.len();
    let mut columns: Vec<u32> = before.iter().copied().chain(biased).filter(of_row).collect();
    columns.sort_unstable();
    columns.dedup();
    let mut values: Vec<f32> = columns.iter().map(|id| row[*id as usize]).collect();
    let mut slopes = vec![0.0; values.len()];
    let (ids, prompt_len) = (*before, *prompt_len);
    let known = Scored { params, ids, prompt_len, start: ids.len(), chunk_rows: None };
    if !columns.is_empty() {
        edit_columns(&known, &columns, &mut values, &mut slopes)?;
    }
    columns.iter().zip(values).for_each(|(id, value)| row[*id as usize] = value);
    Ok(row)
}

/// Holds the logprobs of tokens whose requests are [`asking`] for them to those of the trainer's function;
/// returns how many tokens there were.
///
/// # Errors
/// A text that says what differs, or what the engine said.
pub fn hold(operators: &Operators, out: &Outputs, drawn: &[Drawn<'_>]) -> std::result::Result<usize, String> {
    let text = |error: &dyn Display| format!("the trainer's function: {error}");
    let drawn: Vec<&Drawn<'_>> = drawn.iter().filter(|of| out.tokens()[of.place] != NONE).collect();
    let Some(first) = drawn.first() else { return Ok(0) };
    let (count, vocab) = (drawn.len(), first.row.len());
    let words = vocab.div_ceil(32);
    let (mut rows, mut kept) = (Vec::with_capacity(count * vocab), vec![0u32; count * words]);
    for (of, kept) in drawn.iter().zip(kept.chunks_mut(words)) {
        rows.extend(edited(of).map_err(|error| text(&error))?);
        out.kept(of.place).iter().for_each(|id| kept[*id as usize / 32] |= 1 << (id % 32));
    }
    let ids: Vec<i32> = drawn.iter().map(|of| out.tokens()[of.place]).collect();
    let temperatures: Vec<f32> = drawn.iter().map(|of| out.temperatures()[of.place]).collect();
    let mut found = vec![0.0; count];
    let mut run = || {
        let tokens = GivenTokens {
            temperature: PerRow::Host(&temperatures),
            kept: Masks::new(&kept, count, words, words)?,
            ..GivenTokens::new(PerRow::Host(&ids))
        };
        let to = GivenLogprobs { logprobs: (&mut found).into(), entropies: None, weighed: None };
        operators.logprobs(Rows::logits(&rows, count, vocab)?, &tokens, to)
    };
    run().map_err(|error| text(&error))?;
    for (of, found) in drawn.iter().zip(found) {
        let (told, kept) = (out.logprobs()[of.place], out.kept(of.place));
        // A forced token, which is its whole set, has the logprob 0 even at -inf.
        let wanted = if kept.len() == 1 && found == f32::NEG_INFINITY { 0.0 } else { found };
        if told.to_bits() != wanted.to_bits() {
            let Drawn { params, before, place, .. } = of;
            return Err(format!(
                "the logprob of {} is {told:e}, and {found:e} by the trainer's function over {:?}, after {before:?}\n{params:?}",
                out.tokens()[*place],
                kept,
            ));
        }
    }
    Ok(count)
}
