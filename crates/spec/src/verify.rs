//! Verify: which drafts stand. Here a chain of them against the probabilities of the target, by rejection
//! (rule S4); [`coupled`] compares drafts with the tokens drawn from logits (S3), and [`draft`] draws them
//! (S8).
//!
//! Draft j was drawn from the drafter's row j. It is accepted with probability `min(1, p / q)` of its two
//! probabilities; the first that is not is replaced by a token of the residual `max(p - q, 0)`, and the chain
//! ends there. If all are accepted, one more token is drawn from the target's last row. So each emitted token
//! has the distribution of the target's row, with any drafter.
//!
//! Acceptance and residual draw words of their own tags: the drafter's arrivals decided the draft, and would
//! bias whatever they decide again.

use crate::error::{Error, Result};
use crate::num::Tag;
use crate::row::{Kind, NONE, Status};
use crate::shape::check_vocab;

pub mod coupled;
pub mod draft;
pub mod judged;
pub mod tree;

pub mod weights;

pub mod by_probabilities;

use weights::{Key, Naive, Weigh, uniform};

pub use tree::{DraftTree, MAX_DRAFTS, ROOT, parents_of};
pub use weights::counted;

/// A chain of n drafts with the rows it is judged by.
#[derive(Clone, Copy, Debug)]
pub struct DraftChain<'a> {
    /// The draft tokens; one outside the vocabulary, [`NONE`] included, was not drawn.
    pub drafts: &'a [i32],
    /// The n rows of probabilities that the drafts were drawn from, one after the other.
    pub draft_probs: &'a [f32],
    /// The n + 1 rows of the target's probabilities, one after the other.
    pub target_probs: &'a [f32],
    /// The number of ids in a row.
    pub vocab: usize,
    /// The seed.
    pub seed: u64,
    /// The number of tokens before the first draft; row j stands at `position + j`, modulo 2^32.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
}

/// What became of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// How many drafts were accepted, with all drafts before them.
    pub accepted: u32,
    /// How many drafts would be accepted if each were judged by itself, drafts after the end of the chain
    /// included.
    pub accepted_alone: u32,
    /// The status of the rows that the last token was drawn from: the target's, and for a residual the
    /// drafter's.
    pub status: Status,
}

/// What acceptance says of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// How many drafts are accepted, with all drafts before them; the row of this number is the last that a
    /// token comes from.
    pub accepted: u32,
    /// How many drafts would be accepted if each were judged by itself.
    pub accepted_alone: u32,
    /// Whether that token is one of the residual.
    pub rejected: bool,
}

/// How a draft is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Accepted,
    /// It goes, and a token of the residual comes.
    Rejected,
    /// It was not drawn from the drafter's row: it goes, and a token of the target's row comes.
    NotDrawn,
}

/// Judges a draft whose probabilities are `q` at the drafter and `p` at the target, as they count.
///
/// `word` is word 0 of the draft's ACCEPT counter.
#[must_use]
pub fn judge(q: f32, p: f32, word: u32) -> Verdict {
    let u = uniform(word);
    match () {
        () if q <= 0.0 => Verdict::NotDrawn,
        () if p >= q || u * q < p => Verdict::Accepted,
        () => Verdict::Rejected,
    }
}

impl DraftChain<'_> {
    /// Checks the lengths of a chain whose tokens go into `tokens` places.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20.
    /// - [`Error::Length`] if there are not n rows of the drafter, n + 1 of the target, and n + 1 places.
    pub fn check(&self, tokens: usize) -> Result<()> {
        let (n, vocab) = (self.drafts.len(), self.vocab);
        check_vocab(vocab)?;
        let lengths = [
            ("draft_probs", self.draft_probs.len(), n.saturating_mul(vocab)),
            ("target_probs", self.target_probs.len(), (n + 1).saturating_mul(vocab)),
            ("tokens", tokens, n + 1),
        ];
        for (name, length, wanted) in lengths {
            if length != wanted {
                return Err(Error::length(name, length, format!("{wanted} for {n} drafts of {vocab} ids")));
            }
        }
        Ok(())
    }

    /// Verifies the chain; returns its n + 1 tokens too: the accepted drafts, the one that was drawn, then
    /// [`NONE`]. If the row to be drawn from has no token, the drawn one is [`NONE`] too.
    ///
    /// # Errors
    /// The errors of [`DraftChain::check`].
    pub fn verify(&self) -> Result<(Vec<i32>, Verified)> {
        let n = self.drafts.len();
        self.check(n + 1)?;
        let Judged { accepted, accepted_alone, rejected } = self.judge();
        let row = accepted as usize;
        let mut tokens = vec![NONE; n + 1];
        tokens[..row].copy_from_slice(&self.drafts[..row]);
        let (token, status) = self.last(row, rejected);
        tokens[row] = token;
        Ok((tokens, Verified { accepted, accepted_alone, status }))
    }

    /// Judges all drafts. The chain was checked.
    #[must_use]
    pub fn judge(&self) -> Judged {
        let stays = |row: &usize| self.verdict(*row) == Verdict::Accepted;
        let n = self.drafts.len();
        let accepted = (0..n).take_while(stays).count();
        Judged {
            accepted: accepted as u32,
            accepted_alone: (0..n).filter(stays).count() as u32,
            rejected: accepted < n && self.verdict(accepted) == Verdict::Rejected,
        }
    }

    /// Returns a row of the target.
    #[must_use]
    pub fn target(&self, row: usize) -> &[f32] {
        &self.target_probs[row * self.vocab..][..self.vocab]
    }

    /// Returns a row of the drafter.
    #[must_use]
    pub fn draft(&self, row: usize) -> &[f32] {
        &self.draft_probs[row * self.vocab..][..self.vocab]
    }

    fn verdict(&self, row: usize) -> Verdict {
        let draft = self.drafts[row];
        let Some(id) = usize::try_from(draft).ok().filter(|id| *id < self.vocab) else {
            return Verdict::NotDrawn;
        };
        let word = self.key(row).word(0, Tag::Accept);
        judge(counted(self.draft(row)[id]), counted(self.target(row)[id]), word)
    }

    /// Draws the last token: from the residual of a row, or from the row plainly.
    fn last(&self, row: usize, rejected: bool) -> (i32, Status) {
        let mut status = Status::default();
        let p = self.target(row);
        p.iter().for_each(|p| status.insert(Kind::Probabilities.status(*p)));
        let mut weights: Vec<f32> = p.iter().map(|p| counted(*p)).collect();
        if rejected {
            let q = self.draft(row);
            q.iter().for_each(|q| status.insert(Kind::Probabilities.status(*q)));
            let residual: Vec<f32> = weights.iter().zip(q).map(|(p, q)| (p - counted(*q)).max(0.0)).collect();
            // Where the target has nothing that the drafter has not too, only roundings led here.
            if residual.iter().any(|r| *r > 0.0) {
                weights = residual;
            }
        }
        match Naive.draw(&weights, self.key(row), rejected) {
            Some(id) => (id as i32, status),
            None => {
                status.insert(Status::EMPTY);
                (NONE, status)
            }
        }
    }

    /// Returns the key of a row's random words.
    fn key(&self, row: usize) -> Key {
        Key { seed: self.seed, position: self.position, draw: self.draw }.ahead(row)
    }
}
