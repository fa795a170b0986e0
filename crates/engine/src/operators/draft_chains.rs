//! Chains of draft tokens, accepted or resampled from the residual (rule S4).

use gumball_cpu::Draw;
use gumball_spec::verify::DraftChain;
use gumball_spec::{Error, MAX_VOCAB, Result, Status, memory};

use super::MEMORY;
use super::arrays::{PerRowMut, host_column};
use super::draws::Draws;
use super::host::Host;
#[cfg(feature = "cuda")]
use gumball_cuda::{DeviceIntMatrix, DeviceIntMatrixMut, DraftChainRows};

/// A batch of chains of n drafts each, and the tokens to write.
///
/// `tokens`, `[chains, n + 1]`, receives the accepted drafts, the token drawn after them, then
/// [`NONE`](crate::NONE). The other shapes are those that [`HostDraftChains`] names.
#[derive(Debug)]
pub enum DraftChains<'a> {
    /// Arrays in the host's memory.
    Host {
        /// The arrays to read.
        chains: HostDraftChains<'a>,
        /// The tokens to write.
        tokens: &'a mut [i32],
    },
    /// Arrays in a device's memory.
    #[cfg(feature = "cuda")]
    Device {
        /// The probabilities that the drafts were drawn from.
        draft_probs: DraftChainRows<'a>,
        /// The draft tokens.
        draft_token_ids: DeviceIntMatrix<'a>,
        /// The target's probabilities.
        target_probs: DraftChainRows<'a>,
        /// The emitted tokens.
        tokens: DeviceIntMatrixMut<'a>,
    },
}

/// Chains of n drafts each in the host's memory, whose rows follow each other without gaps, with the
/// probabilities of the drafter and of the target.
#[derive(Clone, Copy, Debug)]
pub struct HostDraftChains<'a> {
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
}

/// Where the counts and statuses of chains are written, each with one entry per chain; `default()` writes
/// none.
#[derive(Debug, Default)]
pub struct DraftChainCounts<'a> {
    /// The number of drafts that would be accepted if each were tested independently, those after the first
    /// rejected draft included.
    pub accepted: Option<PerRowMut<'a, u32>>,
    /// The number of drafts that were emitted: accepted, with all drafts before them accepted too. The token
    /// drawn after them is not counted.
    pub emitted: Option<PerRowMut<'a, u32>>,
    /// The status of the rows from which the last token was drawn.
    pub statuses: Option<PerRowMut<'a, Status>>,
    /// Whether `accepted` and `emitted` are added to the values in memory; otherwise they replace them.
    pub adds: bool,
}

impl Host {
    /// Verifies chains; see
    /// [`Operators::chain_speculative_sampling`](super::Operators::chain_speculative_sampling).
    pub(super) fn verify(
        &self,
        batch: &HostDraftChains<'_>,
        draws: &Draws<'_>,
        tokens: &mut [i32],
        counts: DraftChainCounts<'_>,
    ) -> Result<()> {
        batch.check(tokens.len())?;
        let chains = batch.chains;
        let mut accepted = host_column("accepted", counts.accepted, chains)?;
        let mut emitted = host_column("emitted", counts.emitted, chains)?;
        let mut statuses = host_column("statuses", counts.statuses, chains)?;
        draws.check_host(chains)?;
        if chains == 0 {
            return Ok(());
        }
        let width = batch.drafts + 1;
        batch.chain(0, draws).check(width)?;
        let items = memory::collected(MEMORY, tokens.chunks_mut(width).enumerate())?;
        let verified = self.over(items, |workspace, (i, tokens)| {
            let verified = workspace.verify_chain(&batch.chain(i, draws), tokens)?;
            let last = &mut tokens[verified.emitted as usize];
            *last = draws.written(*last);
            Ok(verified)
        })?;
        let write = |column: &mut Option<&mut [u32]>, chain: usize, count: u32| {
            if let Some(column) = column {
                column[chain] = if counts.adds { column[chain].wrapping_add(count) } else { count };
            }
        };
        for (i, verified) in verified.into_iter().enumerate() {
            write(&mut accepted, i, verified.accepted);
            write(&mut emitted, i, verified.emitted);
            if let Some(statuses) = &mut statuses {
                statuses[i] = verified.status;
            }
        }
        Ok(())
    }
}

impl<'a> HostDraftChains<'a> {
    /// Checks the lengths of the arrays, and of the tokens to write.
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
        Ok(())
    }

    /// Returns a chain with the keys of its draw.
    fn chain(&self, i: usize, draws: &Draws<'_>) -> DraftChain<'a> {
        let Self { drafts: n, vocab, .. } = *self;
        let Draw { seed, position, draw } = draws.of(i);
        DraftChain {
            drafts: &self.draft_token_ids[i * n..][..n],
            draft_probs: &self.draft_probs[i * n * vocab..][..n * vocab],
            target_probs: &self.target_probs[i * (n + 1) * vocab..][..(n + 1) * vocab],
            vocab,
            seed,
            position,
            draw,
        }
    }
}
