//! Chains of draft tokens, accepted or resampled from the residual.

use std::mem::offset_of;

use gumball_engine::{Error, MAX_VOCAB, PerRow};
use gumball_spec::memory;

use crate::device_operators;
use crate::draws::each;
use crate::error::{Code, Result};
use crate::ffi::{call, fill, optional_out_slice, out_slice, require, slice};
use crate::operators::Operators;
use crate::options::list;
use crate::versioned::{VersionedStruct, read};

/// A batch of C chains of n drafts each, with the probabilities they are judged by: float in host memory, without gaps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Chains {
    /// sizeof(gumball_chains).
    pub struct_size: usize,
    /// C.
    pub chains: usize,
    /// n, which may be 0.
    pub drafts: usize,
    /// V, the number of ids in a row.
    pub vocab: usize,
    /// C x n x V: the probabilities that the drafts were drawn from.
    pub draft_probs: *const f32,
    /// C x n: the drafts. One outside the vocabulary, -1 included, was not drawn: its row is drawn plainly and ends the
    /// chain.
    pub draft_token_ids: *const i32,
    /// C x (n + 1) x V: the target's probabilities.
    pub target_probs: *const f32,
    /// The seed of all chains.
    pub seed: u64,
    /// The seed of each chain; NULL: seed.
    pub seeds: *const u64,
    /// The position of each chain's first draft; NULL: position.
    pub positions: *const u32,
    /// The draw index of each chain; NULL: the chain's own number.
    pub draws: *const u32,
    /// The position of the first draft of all chains: the number of tokens before it.
    pub position: u32,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for Chains {
    const NAME: &'static str = "gumball_chains";
    const LEAST: usize = offset_of!(Self, position) + size_of::<u32>();
}

/// Accepts each chain's drafts or replaces the first that is not accepted, so that every emitted token has the distribution of
/// the target's row, whatever the drafter proposed.
///
/// `tokens`: room for C x (n + 1); the accepted drafts, the token drawn after them, then -1. The others are NULL or room for C:
/// `accepted`: how many drafts would be accepted if each were judged by itself, those behind the end of the chain included.
/// `emitted`: how many drafts were emitted; the token after them is not counted. `statuses`: bits of gumball_status, of the row that
/// the last token was drawn from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_chain_speculative_sampling(
    operators: Option<&Operators>,
    chains: *const Chains,
    tokens: *mut i32,
    accepted: *mut u32,
    emitted: *mut u32,
    statuses: *mut u32,
) -> Code {
    call(|| {
        let operators = require("operators", operators)?;
        if let Some(mut device) = operators.device() {
            // SAFETY: the C caller ensures that `chains` has the size it states. Its arrays, `tokens`,
            // `accepted`, `emitted` and `statuses` lie on the device, with the elements its counts name,
            // until the launched work is done.
            return unsafe {
                device_operators::verify(&mut device, chains, tokens, [accepted, emitted, statuses])
            };
        }
        let inner = operators.host();
        // SAFETY: the C caller ensures that `chains` is NULL or points to the bytes that its `struct_size`
        // names.
        let chains = unsafe { read("chains", chains) }?;
        // SAFETY: the C caller ensures that each array of `chains` is NULL or has the elements that its
        // counts name.
        let (chains, len) = unsafe { read_chains(&chains) }?;
        // SAFETY: the C caller ensures that `tokens` has memory for chains * (drafts + 1) ids, which is
        // `len`.
        let tokens = unsafe { out_slice("tokens", tokens, len) }?;
        // SAFETY: the C caller ensures that `accepted` is NULL or has memory for one count per chain.
        let accepted = unsafe { optional_out_slice("accepted", accepted, chains.chains) }?;
        // SAFETY: the C caller ensures that `emitted` is NULL or has memory for one count per chain.
        let emitted = unsafe { optional_out_slice("emitted", emitted, chains.chains) }?;
        // SAFETY: the C caller ensures that `statuses` is NULL or has memory for one status per chain.
        let statuses = unsafe { optional_out_slice("statuses", statuses, chains.chains) }?;
        let mut chosen = memory::filled("memory for tokens", 0, len)?;
        let counts = inner.chain_speculative_sampling(&chains, &mut chosen)?;
        fill(Some(tokens), chosen);
        fill(accepted, counts.accepted);
        fill(emitted, counts.emitted);
        fill(statuses, counts.statuses.iter().map(|status| status.0));
        Ok(())
    })
}

/// Returns the chains as the engine takes them, and the number of tokens to be written.
///
/// # Safety
/// Each array is NULL or has the elements that the struct's counts name. Nobody writes them for `'a`.
unsafe fn read_chains<'a>(given: &Chains) -> Result<(gumball_engine::Chains<'a>, usize)> {
    let Chains { chains, drafts, vocab, .. } = *given;
    if !(1..=MAX_VOCAB).contains(&vocab) {
        return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20").into());
    }
    let counted = || {
        let (drawn, rows) = (chains.checked_mul(drafts)?, chains.checked_mul(drafts.checked_add(1)?)?);
        Some((drawn, rows, drawn.checked_mul(vocab)?, rows.checked_mul(vocab)?))
    };
    let Some((drawn, rows, draft_len, target_len)) = counted() else {
        return Err(Error::length("drafts", drafts, "so many that all probabilities can be counted").into());
    };
    let chains = gumball_engine::Chains {
        chains,
        drafts,
        vocab,
        // SAFETY: the caller ensures that `draft_probs` is NULL or has chains * drafts * vocab numbers.
        draft_probs: unsafe { slice("draft_probs", given.draft_probs, draft_len) }?,
        // SAFETY: the caller ensures that `draft_token_ids` is NULL or has chains * drafts ids.
        draft_token_ids: unsafe { slice("draft_token_ids", given.draft_token_ids, drawn) }?,
        // SAFETY: the caller ensures that `target_probs` is NULL or has chains * (drafts + 1) * vocab
        // numbers.
        target_probs: unsafe { slice("target_probs", given.target_probs, target_len) }?,
        // SAFETY: the caller ensures that `seeds` is NULL or has one seed per chain.
        seeds: unsafe { each("seeds", given.seed, given.seeds, chains) }?,
        // SAFETY: the caller ensures that `positions` is NULL or has one position per chain.
        positions: unsafe { each("positions", given.position, given.positions, chains) }?,
        // SAFETY: the caller ensures that `draws` is NULL or has one draw index per chain.
        draws: unsafe { list("draws", given.draws, chains) }?.map(PerRow::Rows),
    };
    Ok((chains, rows))
}
