//! Drafts: which tokens might come next, guessed by something cheaper than the model.
//!
//! A draft changes no token of the text. The model computes its rows for all drafts of a pass at once, and a
//! draft is accepted if it is the token that the request draws from its row anyway (rule S3).

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gumball_engine::head::HostMatrix;
use gumball_engine::{Batch, HeadCounts, Level, Masks, Pool, Proposals, Rows, Slot};
use gumball_spec::SamplingParams;
use serde::Serialize;

use crate::head::{HeadFigures, HeadKind, ModelHead};
use crate::model::{Hidden, Llama, Model, ROWS_LIKE_ONE, Tokenizer};
use crate::{Error, Result};

/// The most drafts of a pass: as many as the model computes the rows of with the bits of tokens that come one
/// by one.
const MOST_DRAFTS: usize = ROWS_LIKE_ONE - 1;

/// What guesses.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculate {
    /// The text itself: what followed the last tokens where they stood before
    Ngram,
}

/// Whether tokens are drafted, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculateArgs {
    /// Draft tokens; the text stays the same
    ///
    /// A model that computes several rows at once writes it sooner.
    #[arg(long, value_name = "BY", group = "drafter")]
    pub speculate: Option<Speculate>,
    /// Let a smaller model with the same vocabulary draft
    ///
    /// Each draft is what the request would draw from its row.
    #[arg(long, value_name = "FILE", group = "drafter")]
    pub draft_model: Option<PathBuf>,
    /// Make the draft model's logits by a head of Gumball's from its weights as f32, on the CPU: auto; if
    /// absent, by its own product
    #[arg(long, value_name = "KIND", requires = "draft_model", hide_short_help = true)]
    pub draft_head: Option<HeadKind>,
    /// Draft at most N tokens for a pass of the model, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 5, requires = "drafter", hide_short_help = true,
          value_parser = clap::value_parser!(u8).range(1..=MOST_DRAFTS as i64))]
    pub drafts: u8,
    /// Look up the last N tokens in the text so far, or fewer of them if those N stand there only once
    #[arg(long, value_name = "N", default_value_t = 3, requires = "speculate", hide_short_help = true,
          value_parser = clap::value_parser!(u8).range(1..))]
    pub ngram: u8,
}

impl SpeculateArgs {
    /// Checks that a request may have drafts.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Conflict`] for one with mirostat or adaptive-p.
    /// - [`Error::Usage`] for a draft model with a fast head: the host computes it.
    pub fn check(&self, params: &SamplingParams) -> Result<()> {
        if self.draft_head == Some(HeadKind::Fast) {
            let reason = "the head of a draft model is computed on the CPU, also with --device; take --draft-head auto";
            return Err(Error::Usage(reason.to_owned()));
        }
        let parameter = match (&self.speculate, &self.draft_model) {
            (Some(_), _) => "--speculate",
            (_, Some(_)) => "--draft-model",
            _ => return Ok(()),
        };
        let other = match params.steered_by() {
            None => return Ok(()),
            Some("mirostat") => "--mirostat",
            Some(_) => "--adaptive-target",
        };
        let reason = "its state at a draft depends on the tokens drawn before; leave out one of the two";
        Err(Error::Spec(gumball_spec::Error::Conflict { parameter, other, reason }))
    }

    /// Returns what drafts for a model, if anything shall.
    ///
    /// # Errors
    /// - The errors of reading the draft model's file; [`Error::File`] if its tokens differ from the model's.
    /// - The errors of a head over its weights.
    pub fn drafter(&self, model: &Model, level: Level) -> Result<Option<Drafter>> {
        let guess = match (&self.speculate, &self.draft_model) {
            (Some(Speculate::Ngram), _) => Guess::Ngram { longest: self.ngram.into(), found: Vec::new() },
            (None, Some(path)) => {
                let mut draft_model = DraftModel::load(path, &model.tokenizer)?;
                let head = |kind| ModelHead::new(kind, &draft_model.llama, model.vocab(), level);
                draft_model.head = self.draft_head.map(head).transpose()?;
                Guess::Model(Box::new(draft_model))
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(Drafter { most: self.drafts.into(), guess }))
    }
}

/// Drafts tokens, one after the other.
#[derive(Debug)]
pub struct Drafter {
    /// How many for a pass.
    pub most: usize,
    guess: Guess,
}

#[derive(Debug)]
enum Guess {
    Ngram { longest: usize, found: Vec<u32> },
    Model(Box<DraftModel>),
}

impl Drafter {
    /// Returns the draft that follows a history and the drafts of this pass so far, if there is one. `mask`:
    /// the bitmask of the draft's row.
    ///
    /// # Errors
    /// The errors of the draft model.
    pub fn next(
        &mut self,
        pool: &mut Pool,
        slot: Slot,
        path: &[u32],
        mask: Option<&[u32]>,
    ) -> Result<Option<u32>> {
        let ids = pool.sequence(slot)?.history().ids();
        match &mut self.guess {
            Guess::Ngram { longest, found } => {
                if path.is_empty() {
                    found.clear();
                    found.extend_from_slice(lookup(ids, *longest, self.most));
                }
                Ok(found.get(path.len()).copied())
            }
            Guess::Model(model) => {
                let Some(hidden) = model.hidden(ids, path)? else { return Ok(None) };
                model.draw(&hidden, pool, slot, path, mask)
            }
        }
    }

    /// Returns how many bytes the draft model's head has read for each of `tokens` emitted tokens; `None` if
    /// the drafter has no head of its own.
    #[must_use]
    pub fn head_figures(&self, tokens: usize) -> Option<HeadFigures> {
        match &self.guess {
            Guess::Ngram { .. } => None,
            Guess::Model(model) => Some(model.head.as_ref()?.figures(model.counts, tokens)),
        }
    }

    /// Returns what that head has done.
    #[must_use]
    pub fn head_counts(&self) -> HeadCounts {
        match &self.guess {
            Guess::Ngram { .. } => HeadCounts::default(),
            Guess::Model(model) => model.counts,
        }
    }
}

/// A smaller model of the same vocabulary, and the tokens in its cache.
#[derive(Debug)]
struct DraftModel {
    llama: Llama,
    seen: Vec<u32>,
    proposals: Proposals,
    /// The head that makes the logits, if the model's own product does not, with its figures.
    head: Option<ModelHead>,
    counts: HeadCounts,
}

impl DraftModel {
    /// Loads a model, which must have the tokens of `tokenizer`.
    fn load(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let Model { llama, tokenizer: own, .. } = Model::load(path)?;
        let other = |id: &u32| own.token_bytes(*id) != tokenizer.token_bytes(*id);
        let reason = match (0..tokenizer.len().min(own.len()) as u32).find(other) {
            Some(id) => format!("token {id} is another than the model's"),
            None if own.len() != tokenizer.len() => {
                format!("it has {} tokens, the model has {}", own.len(), tokenizer.len())
            }
            None => {
                let (seen, proposals) = (Vec::new(), Proposals::new(1));
                return Ok(Self { llama, seen, proposals, head: None, counts: HeadCounts::default() });
            }
        };
        Err(Error::file(path, format!("{reason}; a draft model needs the same vocabulary")))
    }

    /// Returns the hidden states of the tokens of a history and the drafts so far that were not run yet, the
    /// last one at least; none where the context is full.
    fn hidden(&mut self, ids: &[u32], path: &[u32]) -> Result<Option<Hidden>> {
        let all = || ids.iter().chain(path).copied();
        let len = ids.len() + path.len();
        if len > self.llama.config().context {
            return Ok(None);
        }
        // Drafts that were not emitted are forgotten; the last token is run in any case, for its row.
        let same = self.seen.iter().zip(all()).take_while(|(seen, id)| **seen == *id).count().min(len - 1);
        self.llama.truncate(same);
        self.seen.truncate(same);
        self.seen.extend(all().skip(same));
        let hidden = self.llama.hidden(&self.seen[same..]);
        Ok(Some(hidden.inspect_err(|_| self.seen.truncate(same))?))
    }

    /// Draws a draft from the last hidden state, as the request would draw its token.
    fn draw(
        &mut self,
        hidden: &Hidden,
        pool: &mut Pool,
        slot: Slot,
        path: &[u32],
        mask: Option<&[u32]>,
    ) -> Result<Option<u32>> {
        let ids: Vec<i32> = path.iter().map(|id| *id as i32).collect();
        let masks = mask.map_or(Ok(Masks::None), |mask| Masks::new(mask, 1, mask.len(), mask.len()))?;
        let batch = Batch { slots: &[slot], counts: &[ids.len() as u32], masks, ..Batch::default() };
        let out = &mut self.proposals;
        if let Some(head) = &self.head {
            let before = pool.head_counts();
            let states = HostMatrix::new(hidden.last(), 1, hidden.width())?;
            pool.draft(Rows::hidden(head.head(), states), &batch, &ids, out)?;
            self.counts = self.counts.plus(pool.head_counts().since(before));
        } else {
            let mut row = self.llama.logits(hidden)?;
            // Rows may be padded beyond the tokens, to other lengths.
            row.resize(pool.vocab(), f32::NEG_INFINITY);
            pool.draft(Rows::logits(&row, 1, row.len())?, &batch, &ids, out)?;
        }
        Ok(u32::try_from(self.proposals.row(0)[0]).ok())
    }
}

/// Returns up to `count` ids that followed the last earlier occurrence of the longest suffix, of at most
/// `longest` ids, that occurred before.
#[must_use]
pub fn lookup(ids: &[u32], longest: usize, count: usize) -> &[u32] {
    let Some((_, before)) = ids.split_last() else { return &[] };
    let after = |length: usize| {
        let suffix = &ids[ids.len() - length..];
        let at = before.windows(length).rposition(|window| window == suffix)?;
        Some(at + length)
    };
    let start = (1..=longest.min(before.len())).rev().find_map(after).unwrap_or(ids.len());
    &ids[start..ids.len().min(start + count)]
}

/// What drafts were worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Acceptance {
    /// Passes of the model, that over the prompt included.
    pub passes: usize,
    /// Drafts that the model computed a row for.
    pub drafted: usize,
    /// Drafts that were accepted.
    pub accepted: usize,
    /// The drafter's part of a token, in microseconds.
    pub draft_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_what_followed_the_last_occurrence_of_the_longest_suffix() {
        let ids = [1, 2, 3, 9, 2, 3, 4, 5, 3, 8, 1, 2, 3];
        assert_eq!(lookup(&ids, 3, 4), [9, 2, 3, 4], "1 2 3 stood at the beginning");
        assert_eq!(lookup(&ids, 2, 2), [4, 5], "2 3 stood last before 4");
        assert_eq!(lookup(&ids, 1, 9), [8, 1, 2, 3], "3 stood last before 8");
        assert_eq!(lookup(&ids, 200, 1), [9]);
    }

    #[test]
    fn a_suffix_may_overlap_its_earlier_occurrence() {
        assert_eq!(lookup(&[7, 7, 7], 3, 5), [7]);
        assert_eq!(lookup(&[7, 8, 7, 8, 7], 2, 5), [8, 7]);
    }

    #[test]
    fn what_never_stood_before_has_no_draft() {
        assert_eq!(lookup(&[1, 2, 3], 3, 5), [] as [u32; 0]);
        assert_eq!(lookup(&[1], 3, 5), [] as [u32; 0]);
        assert_eq!(lookup(&[], 3, 5), [] as [u32; 0]);
    }
}
