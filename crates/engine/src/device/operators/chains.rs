//! Chains of draft tokens on a device, accepted or resampled from the residual (rule S4).

use gumball_cuda::{ChainRows, Chains, DeviceIntMatrix, Verified, Verify};
use gumball_spec::Result;

use super::{DeviceDraws, DeviceOperators, room};

impl DeviceOperators {
    /// Enqueues the verification of chains of drafts:
    /// [`Operators::chain_speculative_sampling`](crate::Operators::chain_speculative_sampling) on the device.
    ///
    /// # Shapes and units
    /// For C chains of n drafts: `draft_probs` `[C, n, vocab]`, `draft_token_ids` `[C, n]`, `target_probs`
    /// `[C, n + 1, vocab]`. `draws`: one per chain, at the position of its first draft. `out`: the shapes
    /// that its fields name.
    ///
    /// # Errors
    /// - [`Error::Length`](crate::Error::Length) or [`Error::OutOfRange`](crate::Error::OutOfRange) if a
    ///   shape differs.
    /// - [`Error::Conflict`](crate::Error::Conflict) if the host program captures the stream and a list of
    ///   the host would have to be copied.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the device fails.
    ///
    /// After an error nothing has been written.
    pub fn chain_speculative_sampling(
        &mut self,
        draft_probs: ChainRows<'_>,
        draft_token_ids: DeviceIntMatrix<'_>,
        target_probs: ChainRows<'_>,
        draws: &DeviceDraws<'_>,
        out: &Verified<'_>,
    ) -> Result<()> {
        let draws = self.draws.lower(&self.device, draws, target_probs.chains())?;
        let chains = Chains { draft_probs, draft_token_ids, target_probs, draws };
        room(&self.device, &mut self.verify, Verify::new)?.enqueue(&chains, out)
    }
}
