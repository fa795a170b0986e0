//! A request: everything that a draw depends on besides the row's bits.

use crate::error::{Error, Result};
use crate::layout::holds_id;
use crate::params::SamplingParams;
use crate::row::{Kind, Status};
use crate::watermark::Words;

/// The state of a request at one row: together with the row's bits, it determines the token.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The parameters.
    pub params: &'a SamplingParams,
    /// The kind of the row's numbers.
    pub kind: Kind,
    /// The ids of the prompt.
    pub prompt: &'a [u32],
    /// The ids generated so far, then the draft path to this row.
    pub output: &'a [u32],
    /// The seed in use.
    pub seed: u64,
    /// The number of tokens before the drawn one, prompt and output, modulo 2^32 (N9).
    pub position: u32,
    /// The index of the sample, for several draws from one row; constant along a sequence.
    pub draw: u32,
    /// Mirostat's limit, in bits, or the mean of adaptive-p; a number below +inf.
    pub mu: f32,
    /// The grammar bitmask: bit `id % 32` of word `id / 32` allows an id; missing words forbid.
    pub mask: Option<&'a [u32]>,
    /// The token that is emitted instead of the drawn one.
    pub forced: Option<Forced>,
    /// The words of its mark, which stand in the place of seed, position and draw index in the race;
    /// [`sample`](crate::oracle::sample) finds them (W1).
    pub mark: Option<Words>,
}

/// A token that is emitted instead of the drawn one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forced {
    /// The id.
    pub id: u32,
    /// What forced it: `FORCED`, `SECTION` or `LOOP`; no bit for a *known* token, which is scored or was
    /// decided on by a judgement of drafts.
    pub by: Status,
}

impl Forced {
    /// Returns a token that the caller forces.
    #[must_use]
    pub fn by_caller(id: u32) -> Self {
        Self { id, by: Status::FORCED }
    }

    /// Returns a known token.
    #[must_use]
    pub fn known(id: u32) -> Self {
        Self { id, by: Status::default() }
    }

    /// Returns the token, which is its row's kept set (D2), or none if the token is known.
    #[must_use]
    pub fn kept(self) -> Option<u32> {
        (self.by != Status::default()).then_some(self.id)
    }
}

impl<'a> Request<'a> {
    /// Returns the state before the first output token.
    #[must_use]
    pub fn new(params: &'a SamplingParams, prompt: &'a [u32], seed: u64) -> Self {
        Self {
            params,
            kind: Kind::Logits,
            prompt,
            output: &[],
            seed,
            position: prompt.len() as u32,
            draw: 0,
            mu: params.initial_mu(),
            mask: None,
            forced: None,
            mark: None,
        }
    }

    /// Returns whether the bitmask allows an id; it does where there is none.
    #[must_use]
    pub fn mask_allows(&self, id: u32) -> bool {
        self.mask.is_none_or(|mask| holds_id(mask, id))
    }

    /// Checks what comes with the step rather than with the request.
    ///
    /// # Errors
    /// The errors of [`check_forced`] and [`check_mu`].
    pub fn validate(&self, vocab: usize) -> Result<()> {
        check_forced(self.forced.map(|forced| forced.id), vocab)?;
        check_mu(self.mu)
    }
}

/// Checks that a grammar bitmask does not have a word for each id: that is no bitmask.
///
/// Tokenizers pad, so a mask may be wider than its vocabulary needs; bits beyond the vocabulary mean nothing.
///
/// # Errors
/// - [`Error::OutOfRange`] if it has as many words as the vocabulary has ids, and at least 64.
pub fn check_mask_width(parameter: &'static str, words: usize, vocab: usize) -> Result<()> {
    let end = vocab.max(64);
    if words < end {
        return Ok(());
    }
    Err(Error::out_of_range(
        parameter,
        words,
        format!("less than {end}: a bit for each of {vocab} ids, not a word"),
    ))
}

/// Returns the error of a verification for which no counts of drafts were assigned, and of a step for which
/// some were.
#[must_use]
pub fn no_draft_counts() -> Error {
    let reason = "a step of drafts needs an assignment with their counts, and any other step one without";
    Error::Conflict { parameter: "assignment", other: "step", reason }
}

/// Checks that a forced token, if there is one, is a token.
///
/// # Errors
/// - [`Error::OutOfRange`] if it is outside the vocabulary.
pub fn check_forced(forced: Option<u32>, vocab: usize) -> Result<()> {
    match forced {
        Some(id) if id as usize >= vocab => {
            Err(Error::out_of_range("forced", id, format!("an id in 0..{vocab}")))
        }
        _ => Ok(()),
    }
}

/// Checks that a row that a caller edits holds logits: probabilities are edited before they are handed over.
///
/// # Errors
/// - [`Error::Conflict`] if it holds probabilities.
pub fn check_hook(kind: Kind, hooked: bool) -> Result<()> {
    if hooked && kind == Kind::Probabilities {
        let reason = "a hook edits logits; edit the probabilities before they are handed over";
        return Err(Error::Conflict { parameter: "hook", other: "probabilities", reason });
    }
    Ok(())
}

/// Checks that `mu` is a number that its updates can reach, which never is NaN or +inf (F6, D3).
///
/// # Errors
/// - [`Error::OutOfRange`] if it is either.
pub fn check_mu(mu: f32) -> Result<()> {
    // NaN is not below either.
    if mu < f32::INFINITY { Ok(()) } else { Err(Error::out_of_range("mu", mu, "a number below +inf")) }
}
