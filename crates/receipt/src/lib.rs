//! Receipts: one JSON object for each request, from which its tokens can be drawn again (rules R1 to R3).
//!
//! The program that samples makes a [`Receipt`] of the request, and pushes each token with the logprobs of
//! its step. An auditor reads the receipt and hands the logits of each step to a [`Replay`]: the same logits,
//! or logits computed again.
#![forbid(unsafe_code)]

use gumball_spec::logprobs::{Logprobs, TokenLogprob};
use gumball_spec::{DEFINITION, Error, LogprobMode, NONE, Result, SamplingParams, Status};
use sha2::{Digest as _, Sha256};

pub use replay::{Answer, Replay, Wrong};

mod json;
mod replay;

/// The first half of a SHA-256.
pub type Digest = [u8; 16];

/// The receipt of one request: its parameters, seed and prompt, and its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    params: SamplingParams,
    vocab: usize,
    seed: u64,
    draw: u32,
    prompt: Vec<u32>,
    steps: Vec<Step>,
}

/// A token, and the numbers that its step reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The token.
    pub token: u32,
    /// The digest of the most likely tokens and their logprobs.
    pub digest: Digest,
    /// The radius (L7), if the receipt has radii.
    pub radius: Option<f32>,
    /// The digest of the grammar bitmask, if the step had one.
    pub mask: Option<Digest>,
    /// Whether the caller forced the token.
    pub is_forced: bool,
}

impl Receipt {
    /// Returns the receipt of a request without a token.
    ///
    /// The receipt holds digests of the list that `params.logprobs` asks for, of at least one token, and
    /// radii if its second mode is `radius`. `draw` is the draw index.
    ///
    /// # Errors
    /// - The errors of [`SamplingParams::validate`], and [`Error::OutOfRange`] if `params.logprobs` asks for
    ///   no list, or its second mode is another one.
    pub fn new(params: &SamplingParams, vocab: usize, seed: u64, draw: u32, prompt: &[u32]) -> Result<Self> {
        params.validate(vocab)?;
        let params = SamplingParams { seed: None, ..params.clone() };
        let (second, top_n) =
            params.logprobs.as_ref().map_or((None, 0), |asked| (asked.mode.second, asked.top_n));
        if let Some(other) = second.filter(|second| *second != LogprobMode::Radius) {
            let allowed = "of a receipt one mode, or two of which the second is radius";
            return Err(Error::out_of_range(
                "logprobs.mode",
                format!("of the second mode {}", other.name()),
                allowed,
            ));
        }
        if top_n == 0 {
            return Err(Error::out_of_range("logprobs.top_n", top_n, "at least 1, for a receipt"));
        }
        Ok(Self { params, vocab, seed, draw, prompt: prompt.to_vec(), steps: Vec::new() })
    }

    /// Adds a token with its row's status and logprobs, as its step reported them, and the step's bitmask.
    ///
    /// Do not add a row that a hook changed: a replay has no hooks.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a token or a listed one that is no id of the vocabulary, a logprob that is
    ///   none, and a radius below 0, and [`Error::Length`] if fewer tokens are listed than asked for; nothing
    ///   is added.
    pub fn push(
        &mut self,
        token: i32,
        status: Status,
        logprobs: &Logprobs,
        mask: Option<&[u32]>,
    ) -> Result<()> {
        let id = u32::try_from(token).ok().filter(|id| (*id as usize) < self.vocab);
        let id =
            id.ok_or_else(|| Error::out_of_range("token", token, format!("an id in 0..{}", self.vocab)))?;
        let top_n = self.top_n();
        // A pool lists as many as any of its requests asks for.
        let top = logprobs.top.get(..top_n);
        let top =
            top.ok_or_else(|| Error::length("logprobs.top", logprobs.top.len(), format!("{top_n} tokens")))?;
        let is_listed =
            |one: &&TokenLogprob| one.id >= 0 && (one.id as usize) < self.vocab && one.logprob <= 0.0;
        if let Some(odd) = top.iter().filter(|one| one.id != NONE).find(|one| !is_listed(one)) {
            let allowed = format!("ids in 0..{} and logprobs of at most 0", self.vocab);
            return Err(Error::out_of_range(
                "logprobs.top",
                format!("with {} at {}", odd.id, odd.logprob),
                allowed,
            ));
        }
        let radius = self.has_radii().then_some(logprobs.second);
        check_radius(radius)?;
        self.steps.push(Step {
            token: id,
            digest: digest_of_list(top),
            radius,
            mask: mask.map(|mask| digest_of_mask(mask, self.vocab)),
            is_forced: status.contains(Status::FORCED),
        });
        Ok(())
    }

    /// Returns the parameters, without the seed.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Returns the size of the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the ids of the prompt.
    #[must_use]
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// Returns the steps.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns whether the receipt has radii.
    #[must_use]
    pub fn has_radii(&self) -> bool {
        self.params.logprobs.as_ref().is_some_and(|asked| asked.mode.second.is_some())
    }

    /// Returns whether a token had a bitmask.
    #[must_use]
    pub fn has_masks(&self) -> bool {
        self.steps.iter().any(|step| step.mask.is_some())
    }

    /// Returns how many of the most likely tokens a digest is of.
    #[must_use]
    pub fn top_n(&self) -> usize {
        self.params.logprobs.as_ref().map_or(0, |asked| asked.top_n as usize)
    }
}

/// Checks that a radius, if there is one, is a number from 0 on, or +inf.
fn check_radius(radius: Option<f32>) -> Result<()> {
    match radius {
        Some(radius) if radius.is_nan() || radius < 0.0 => {
            Err(Error::out_of_range("radius", radius, "a number from 0 on"))
        }
        _ => Ok(()),
    }
}

fn half(hash: Sha256) -> Digest {
    let whole = hash.finalize();
    std::array::from_fn(|byte| whole[byte])
}

/// Returns the digest of listed tokens: of each the id and the bits of its logprob, little-endian (R2).
#[must_use]
pub fn digest_of_list(top: &[TokenLogprob]) -> Digest {
    let mut hash = Sha256::new();
    for listed in top.iter().filter(|listed| listed.id != NONE) {
        hash.update(listed.id.to_le_bytes());
        hash.update(listed.logprob.to_bits().to_le_bytes());
    }
    half(hash)
}

/// Returns the digest of a bitmask: of as many words as the vocabulary needs, little-endian, without bits
/// beyond it; words that are missing are 0 (R2).
#[must_use]
pub fn digest_of_mask(mask: &[u32], vocab: usize) -> Digest {
    let mut hash = Sha256::new();
    for place in 0..vocab.div_ceil(32) {
        let bits = vocab - 32 * place;
        let all = if bits < 32 { (1 << bits) - 1 } else { u32::MAX };
        hash.update((mask.get(place).copied().unwrap_or(0) & all).to_le_bytes());
    }
    half(hash)
}

#[cfg(test)]
mod tests;
