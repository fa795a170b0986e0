//! Chains of draft tokens, to be accepted or resampled from the residual.

use std::mem::offset_of;

use gumball_engine::{DeviceIntMatrix, DeviceIntMatrixMut, DraftChainRows, IntType};
use gumball_engine::{Error, HostDraftChains, MAX_VOCAB};

use crate::columns::device_address;
use crate::error::{Failure, Result};
use crate::ffi::slice;
use crate::versioned::VersionedStruct;

/// A batch of C chains of n drafts each, with the probabilities of the drafter and of the target: arrays of float without
/// gaps, in the memory of the operators.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DraftChains {
    /// sizeof(gumball_draft_chains).
    pub struct_size: usize,
    /// C.
    pub chains: usize,
    /// n, which may be 0.
    pub drafts: usize,
    /// V, the number of ids in a row.
    pub vocab: usize,
    /// C x n x V: the probabilities that the drafts were drawn from.
    pub draft_probs: *const f32,
    /// C x n: the drafts. An id outside the vocabulary, such as -1, marks a draft that was not drawn. Its token is then drawn from
    /// the target's row alone and ends the chain.
    pub draft_token_ids: *const i32,
    /// C x (n + 1) x V: the target's probabilities.
    pub target_probs: *const f32,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for DraftChains {
    const NAME: &'static str = "gumball_draft_chains";
    const LEAST: usize = offset_of!(Self, target_probs) + size_of::<*const f32>();
}

/// The numbers of elements in the arrays of chains.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    drafts: usize,
    draft_probs: usize,
    target_probs: usize,
    tokens: usize,
}

impl DraftChains {
    fn lengths(&self) -> Result<Lengths> {
        let Self { chains, drafts: n, vocab, .. } = *self;
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20").into());
        }
        let counted = || {
            let (drafts, tokens) = (chains.checked_mul(n)?, chains.checked_mul(n.checked_add(1)?)?);
            let target_probs = tokens.checked_mul(vocab)?;
            target_probs.checked_mul(size_of::<f32>())?;
            Some(Lengths { drafts, draft_probs: drafts * vocab, target_probs, tokens })
        };
        let allowed = "so many that all probabilities can be counted";
        counted().ok_or_else(|| Error::length("drafts", n, allowed).into())
    }

    /// Returns the number of tokens to be written.
    pub(crate) fn tokens(&self) -> Result<usize> {
        Ok(self.lengths()?.tokens)
    }

    /// Returns the arrays on the host as the engine takes them.
    ///
    /// # Safety
    /// Each array is NULL or has the elements that the counts name, which nobody writes for `'a`.
    pub(crate) unsafe fn on_host<'a>(&self) -> Result<HostDraftChains<'a>> {
        let Self { chains, drafts, vocab, .. } = *self;
        let lengths = self.lengths()?;
        Ok(HostDraftChains {
            chains,
            drafts,
            vocab,
            // SAFETY: the caller ensures that `draft_probs` is NULL or has chains * drafts * vocab numbers.
            draft_probs: unsafe { slice("draft_probs", self.draft_probs, lengths.draft_probs) }?,
            // SAFETY: the caller ensures that `draft_token_ids` is NULL or has chains * drafts ids.
            draft_token_ids: unsafe { slice("draft_token_ids", self.draft_token_ids, lengths.drafts) }?,
            // SAFETY: the caller ensures that `target_probs` is NULL or has chains * (drafts + 1) * vocab
            // numbers.
            target_probs: unsafe { slice("target_probs", self.target_probs, lengths.target_probs) }?,
        })
    }

    /// Returns the arrays on a device as the engine takes them, with the tokens to write.
    ///
    /// # Safety
    /// Each array is NULL or has the elements that the counts name, on the device, and `tokens` memory for
    /// chains * (drafts + 1) ids. Until the enqueued work is done nobody frees or writes them, nor reads
    /// `tokens`.
    pub(crate) unsafe fn on_device<'a>(&self, tokens: *mut i32) -> Result<gumball_engine::DraftChains<'a>> {
        let Self { chains, drafts: n, vocab, .. } = *self;
        let lengths = self.lengths()?;
        let probs = |name: &'static str, first: *const f32, rows: usize| {
            let address = device_address(name, first, chains * rows * vocab)?;
            // SAFETY: the caller ensures that chains * rows * vocab f32 of this array lie on the device until
            // the work is done.
            let rows = unsafe { DraftChainRows::new(address, [chains, rows, vocab], [rows * vocab, vocab]) };
            Ok::<_, Failure>(rows?)
        };
        let (draft_probs, target_probs) =
            (probs("draft_probs", self.draft_probs, n)?, probs("target_probs", self.target_probs, n + 1)?);
        let ids = device_address("draft_token_ids", self.draft_token_ids, lengths.drafts)?;
        let written = device_address("tokens", tokens.cast_const(), lengths.tokens)?;
        Ok(gumball_engine::DraftChains::Device {
            draft_probs,
            // SAFETY: the caller ensures that `draft_token_ids` has chains * n i32 on the device.
            draft_token_ids: unsafe { DeviceIntMatrix::new(ids, IntType::I32, chains, n, n) }?,
            target_probs,
            // SAFETY: the caller ensures that `tokens` has memory for chains * (n + 1) i32 on the device.
            tokens: unsafe { DeviceIntMatrixMut::new(written, IntType::I32, chains, n + 1, n + 1) }?,
        })
    }
}
