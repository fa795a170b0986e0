//! Chains of draft tokens, accepted or resampled from the residual (rule S4).

use gumball_spec::verify::{Chain, Verified};
use gumball_spec::{Error, MAX_VOCAB, Result, Status, memory};

use super::params::PerRow;
use super::{Operators, ROOM};

/// A batch of chains of n drafts each, with the probabilities of the drafter and of the target.
///
/// Rows follow each other without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Chains<'a> {
    /// The number of chains.
    pub chains: usize,
    /// The number of drafts in a chain, n; may be 0.
    pub drafts: usize,
    /// The number of ids in a row.
    pub vocab: usize,
    /// The probabilities that the drafts were drawn from: `[chains, n, vocab]`.
    pub draft_probs: &'a [f32],
    /// The draft tokens: `[chains, n]`. An id outside the vocabulary, such as [`NONE`](crate::NONE), marks a
    /// draft that was not drawn. Its token is then drawn from the target's row alone and ends the chain.
    pub draft_token_ids: &'a [i32],
    /// The target's probabilities: `[chains, n + 1, vocab]`.
    pub target_probs: &'a [f32],
    /// The seed of each chain.
    pub seeds: PerRow<'a, u64>,
    /// The position of each chain's first draft: the number of tokens before it, modulo 2^32.
    pub positions: PerRow<'a, u32>,
    /// The draw index of each chain; `None`: the chain's own index in the batch.
    pub draws: Option<PerRow<'a, u32>>,
}

/// The results of the chains, one entry per chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of drafts that would be accepted if each were tested independently, those after the first
    /// rejected draft included.
    pub accepted: Vec<u32>,
    /// The number of drafts that were emitted: accepted, with all drafts before them accepted too. The token
    /// drawn after them is not counted.
    pub emitted: Vec<u32>,
    /// The status of the rows from which the last token was drawn.
    pub statuses: Vec<Status>,
}

impl Operators {
    /// Accepts each chain's drafts up to the first that is rejected and draws a replacement for it. Every
    /// emitted token has the distribution of the target's row, whatever the drafter proposed (rule S4).
    ///
    /// Accepting a draft reads two probabilities. Of each chain at most two rows are read in full.
    ///
    /// # Shapes and units
    /// `chains`: the shapes that its fields name. `tokens`: `[chains, n + 1]`; receives the accepted drafts,
    /// the token drawn after them, then [`NONE`](crate::NONE).
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the vocabulary is outside 1..=2^20.
    /// - [`Error::Length`] if a shape differs.
    ///
    /// After an error nothing has been written.
    pub fn chain_speculative_sampling(&self, chains: &Chains<'_>, tokens: &mut [i32]) -> Result<Counts> {
        chains.check(tokens.len())?;
        let width = chains.drafts.saturating_add(1);
        let items = memory::collected(ROOM, tokens.chunks_mut(width).enumerate())?;
        let verified =
            self.over(items, |workspace, (i, tokens)| workspace.verify_chain(&chains.chain(i), tokens))?;
        let mut counts = Counts::default();
        for Verified { accepted, emitted, status } in verified {
            counts.accepted.push(accepted);
            counts.emitted.push(emitted);
            counts.statuses.push(status);
        }
        Ok(counts)
    }
}

impl<'a> Chains<'a> {
    fn check(&self, tokens: usize) -> Result<()> {
        let Self { chains, drafts: n, vocab, .. } = *self;
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"));
        }
        let times = |a: usize, b: usize| a.saturating_mul(b);
        let rows = times(chains, n.saturating_add(1));
        let lengths = [
            ("draft_probs", self.draft_probs.len(), times(times(chains, n), vocab)),
            ("draft_token_ids", self.draft_token_ids.len(), times(chains, n)),
            ("target_probs", self.target_probs.len(), times(rows, vocab)),
            ("tokens", tokens, rows),
        ];
        for (name, length, wanted) in lengths {
            if length != wanted {
                let allowed = format!("{wanted} for {chains} chains of {n} drafts and {vocab} ids");
                return Err(Error::length(name, length, allowed));
            }
        }
        self.seeds.check("seeds", chains)?;
        self.positions.check("positions", chains)?;
        if let Some(draws) = self.draws {
            draws.check("draws", chains)?;
        }
        if chains > 0 { self.chain(0).check(n + 1) } else { Ok(()) }
    }

    fn chain(&self, i: usize) -> Chain<'a> {
        let Self { drafts: n, vocab, .. } = *self;
        Chain {
            drafts: &self.draft_token_ids[i * n..][..n],
            draft_probs: &self.draft_probs[i * n * vocab..][..n * vocab],
            target_probs: &self.target_probs[i * (n + 1) * vocab..][..(n + 1) * vocab],
            vocab,
            seed: self.seeds.of(i),
            position: self.positions.of(i),
            draw: self.draws.map_or(i as u32, |draws| draws.of(i)),
        }
    }
}
