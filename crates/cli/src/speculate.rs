//! Drafts: which tokens might come next, guessed by something cheaper than the model.
//!
//! A draft changes no token of the text. The model computes its rows for all drafts of a pass at once, and a draft is accepted if
//! it is the token that the request draws from its row anyway (rule S3).

use clap::{Args, ValueEnum};
use gumball_spec::SamplingParams;
use serde::Serialize;

use crate::model::ROWS_LIKE_ONE;
use crate::{Error, Result};

/// The most drafts of a pass: as many as the model computes the rows of with the bits of tokens that come one by one.
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
    /// Draft tokens; the text stays the same, and a model that computes several rows at once writes it sooner
    #[arg(long, value_name = "BY")]
    pub speculate: Option<Speculate>,
    /// Draft at most N tokens for a pass of the model, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 5, requires = "speculate",
          value_parser = clap::value_parser!(u8).range(1..=MOST_DRAFTS as i64))]
    pub drafts: u8,
    /// Look up at most N of the last tokens; fewer where so many never stood before
    #[arg(long, value_name = "N", default_value_t = 3, requires = "speculate",
          value_parser = clap::value_parser!(u8).range(1..))]
    pub ngram: u8,
}

impl SpeculateArgs {
    /// Returns what drafts for a request, if anything shall.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Conflict`] for a request with mirostat.
    pub fn drafter(&self, params: &SamplingParams) -> Result<Option<Drafter>> {
        let Some(Speculate::Ngram) = self.speculate else { return Ok(None) };
        if params.mirostat.is_some() {
            let reason = "its limit at a draft depends on the tokens drawn before; leave out one of the two";
            let conflict =
                gumball_spec::Error::Conflict { parameter: "--speculate", other: "--mirostat", reason };
            return Err(Error::Spec(conflict));
        }
        Ok(Some(Drafter { most: self.drafts.into(), longest: self.ngram.into(), found: Vec::new() }))
    }
}

/// Drafts tokens, one after the other.
#[derive(Debug)]
pub struct Drafter {
    /// How many for a pass.
    pub most: usize,
    /// The longest suffix that is looked up.
    longest: usize,
    /// What followed it.
    found: Vec<u32>,
}

impl Drafter {
    /// Begins a pass of the model, behind a prompt and the output so far.
    pub fn begin(&mut self, ids: &[u32]) {
        self.found.clear();
        self.found.extend_from_slice(lookup(ids, self.longest, self.most));
    }

    /// Returns the draft behind those of this pass so far, if there is one.
    pub fn next(&mut self, path: &[u32]) -> Option<u32> {
        self.found.get(path.len()).copied()
    }
}

/// Returns up to `count` ids that followed the last earlier occurrence of the longest suffix, of at most `longest` ids,
/// that occurred before.
fn lookup(ids: &[u32], longest: usize, count: usize) -> &[u32] {
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
