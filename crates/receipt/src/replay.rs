//! A receipt's steps drawn again by the oracle, and how they agree (R3).

use gumball_spec::radius::{Edits, may_report};
use gumball_spec::{Error, Forced, Request, Result, Row, oracle};

use crate::{Receipt, Step, digest_of_list, digest_of_mask};

/// How a step agrees with its receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Token, digest and radius equal the receipt's, to the bit.
    Equal,
    /// Logits that differ from these by at most the tolerance may have given token and radius.
    Within,
    /// The caller forced the token; its digest and radius are equal, or within the tolerance.
    Forced,
    /// No such logits can have given them.
    Wrong(Wrong),
}

/// The claim of a receipt that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The step's bitmask is another one.
    Mask,
    /// Another token is drawn.
    Token,
    /// The token has another radius.
    Radius,
    /// The most likely tokens have other logprobs; only where the tolerance is 0.
    Digest,
}

impl Answer {
    /// Returns `equal`, `within`, `forced`, or the name of the wrong claim.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Within => "within",
            Self::Forced => "forced",
            Self::Wrong(wrong) => wrong.name(),
        }
    }
}

impl Wrong {
    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mask => "mask",
            Self::Token => "token",
            Self::Radius => "radius",
            Self::Digest => "digest",
        }
    }
}

/// A receipt that is replayed step by step.
#[derive(Clone, Debug)]
pub struct Replay<'a> {
    receipt: &'a Receipt,
    tolerance: f32,
    output: Vec<u32>,
    mu: f32,
}

impl<'a> Replay<'a> {
    /// Begins before the first step. `tolerance`: by how much a logit may differ from the one that was drawn
    /// from; 0 if they are the same, bit for bit.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a tolerance that is negative or infinite.
    /// - [`Error::Conflict`] for a tolerance above 0 and parameters of which no radius is known (L7), or
    ///   whose edits round more than it.
    pub fn new(receipt: &'a Receipt, tolerance: f32) -> Result<Self> {
        let params = &receipt.params;
        if !(0.0..f32::INFINITY).contains(&tolerance) {
            return Err(Error::out_of_range("tolerance", tolerance, "a number from 0 on"));
        }
        let refused = match Edits::of(params, params.temperature, receipt.vocab) {
            _ if tolerance == 0.0 => None,
            None => Some((
                "params",
                "no radius is known of these parameters (L7), so the logits must be those of the draw, and the tolerance 0",
            )),
            Some(edits) if edits.slack() >= tolerance => Some((
                "logit_bias",
                "so large a bias or penalty rounds by more than the tolerance; a ban is a bias of -inf",
            )),
            Some(_) => None,
        };
        if let Some((other, reason)) = refused {
            return Err(Error::Conflict { parameter: "tolerance", other, reason });
        }
        Ok(Self { receipt, tolerance, output: Vec::new(), mu: params.initial_mu() })
    }

    /// Draws the next step from its logits, with its bitmask, and returns the answer; `None` after the last
    /// one. The next steps follow the receipt's token, also after a wrong answer.
    ///
    /// # Errors
    /// - [`Error::Length`] if the row has not as many ids as the vocabulary, or the step's bitmask is absent,
    ///   and the errors of [`oracle::sample`].
    pub fn next(&mut self, row: Row<'_>, mask: Option<&[u32]>) -> Result<Option<Answer>> {
        let receipt = self.receipt;
        let Some(step) = receipt.steps.get(self.output.len()) else { return Ok(None) };
        if row.vocab() != receipt.vocab {
            return Err(Error::length("logits", row.vocab(), format!("{} ids", receipt.vocab)));
        }
        if mask.is_none() && step.mask.is_some() {
            let allowed = format!(
                "{} words: the receipt says that the token had a bitmask",
                receipt.vocab.div_ceil(32)
            );
            return Err(Error::length("mask", 0, allowed));
        }
        let request = Request {
            output: &self.output,
            position: (receipt.prompt.len() + self.output.len()) as u32,
            draw: receipt.draw,
            mu: self.mu,
            mask,
            forced: step.is_forced.then(|| Forced::by_caller(step.token)),
            ..Request::new(&receipt.params, &receipt.prompt, receipt.seed)
        };
        let outcome = oracle::sample(row, &request, None)?;
        let answer = match self.answer(step, row, &request, &outcome) {
            Answer::Equal | Answer::Within if step.is_forced => Answer::Forced,
            answer => answer,
        };
        self.mu = outcome.mu;
        self.output.push(step.token);
        Ok(Some(answer))
    }

    fn answer(&self, step: &Step, row: Row<'_>, request: &Request<'_>, outcome: &oracle::Outcome) -> Answer {
        let own = outcome.logprobs.as_ref().expect("a receipt's parameters ask for them");
        let mask = request.mask.map(|mask| digest_of_mask(mask, self.receipt.vocab));
        if mask != step.mask {
            return Answer::Wrong(Wrong::Mask);
        }
        let is_token = outcome.token == step.token as i32;
        let is_radius = step.radius.is_none_or(|radius| own.second.to_bits() == radius.to_bits());
        let is_digest = digest_of_list(&own.top) == step.digest;
        if is_token && is_radius && is_digest {
            return Answer::Equal;
        }
        let request = &outcome.request(request);
        let may = self.tolerance > 0.0
            && may_report(row, request, &outcome.drawn(false), step.token, step.radius, self.tolerance)
                == Some(true);
        match (may, is_token, is_radius) {
            (true, ..) => Answer::Within,
            (_, false, _) => Answer::Wrong(Wrong::Token),
            (_, _, false) => Answer::Wrong(Wrong::Radius),
            _ => Answer::Wrong(Wrong::Digest),
        }
    }
}
