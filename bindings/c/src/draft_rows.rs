//! What calls that draw drafts read from C and write back, whether the rows are logits or hidden states.

use std::mem::{MaybeUninit, offset_of};

use gumball_engine::{Batch, Proposals, Slot, VerifyMode as Mode};

use crate::error::{Failure, Result};
use crate::ffi::{out_slice, slice};
use crate::options::list;
use crate::versioned::{VersionedStruct, read};

/// How drafts are drawn from the rows of a draft model, and where these stand; n is the sum of `counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DraftRows {
    /// sizeof(gumball_draft_rows).
    pub struct_size: usize,
    /// For each row the number of drafts between the end of the history and the row, in 0..64. NULL: none for any row.
    pub counts: *const u32,
    /// n ids of the vocabulary: the drafts on the path to each row, those of one row after those of another.
    pub ids: *const i32,
    /// The drafts of each row: 1 for chains.
    pub siblings: usize,
    /// The gumball_verify_mode that the drafts will be judged by. Drafts for GUMBALL_BLOCK are drawn by random words of their own.
    pub mode: i64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for DraftRows {
    const NAME: &'static str = "gumball_draft_rows";
    const LEAST: usize = offset_of!(Self, mode) + size_of::<i64>();
}

/// Reads how drafts are judged.
pub(crate) fn read_mode(mode: i64, single: f32, acc: f32) -> Result<Mode> {
    match mode {
        0 => Ok(Mode::Coupled),
        1 => Ok(Mode::Greedy),
        2 => Ok(Mode::Rejection),
        3 => Ok(Mode::Block),
        4 => Ok(Mode::Threshold { single, acc }),
        other => {
            let allowed =
                "GUMBALL_COUPLED, GUMBALL_GREEDY, GUMBALL_REJECTION, GUMBALL_BLOCK or GUMBALL_THRESHOLD";
            Err(Failure::out_of_range("mode", other, allowed))
        }
    }
}

/// Draft rows as C handed them in, checked as far as their arrays go.
pub(crate) struct GivenRows<'a> {
    mode: Mode,
    counts: &'a [u32],
    /// The paths of all rows.
    pub ids: &'a [i32],
    rows: usize,
    siblings: usize,
}

/// Reads how drafts are drawn from `rows` rows, and the paths to these.
///
/// # Safety
/// `from` is NULL or points to the bytes that its `struct_size` names. `counts` is NULL or has one number per row, `ids` as many ids as
/// these sum to. Nobody writes them for `'a`.
pub(crate) unsafe fn read_draft_rows<'a>(from: *const DraftRows, rows: usize) -> Result<GivenRows<'a>> {
    // SAFETY: the caller ensures that `from` is NULL or points to the bytes that its `struct_size` names.
    let from = unsafe { read("from", from) }?;
    let mode = read_mode(from.mode, 1.0, 1.0)?;
    // SAFETY: the caller ensures that `counts` is NULL or has one number per row.
    let counts = unsafe { list("counts", from.counts, rows) }?.unwrap_or_default();
    let total = counts.iter().map(|count| *count as usize).sum::<usize>();
    // SAFETY: the caller ensures that `ids` has as many ids as the counts sum to.
    let ids = unsafe { slice("ids", from.ids, total) }?;
    Ok(GivenRows { mode, counts, ids, rows, siblings: from.siblings })
}

/// Drafts that the engine draws, and the memory of C that they are copied to.
pub(crate) struct DrawnDrafts<'a> {
    pub inner: Proposals,
    drafts: &'a mut [MaybeUninit<i32>],
    probs: &'a mut [MaybeUninit<f32>],
}

impl GivenRows<'_> {
    /// Returns the rows as a batch of the engine's, with their masks and forced tokens.
    pub fn batch<'a>(&'a self, slots: &'a [Slot], of_rows: &Batch<'a>) -> Batch<'a> {
        Batch { slots, counts: self.counts, mode: self.mode, ..*of_rows }
    }

    /// Returns what takes the drafts of these rows, with probabilities over `vocab` ids if `probs` is not NULL.
    ///
    /// # Safety
    /// `drafts` is NULL or has `siblings` places for each row, `probs` is NULL or has `vocab` places for each row. Nobody else uses them
    /// for `'a`.
    pub unsafe fn places<'a>(
        &self,
        vocab: usize,
        drafts: *mut i32,
        probs: *mut f32,
    ) -> Result<DrawnDrafts<'a>> {
        // SAFETY: the caller ensures that `drafts` is NULL or has `siblings` places for each row.
        let drafts = unsafe { out_slice("drafts", drafts, self.rows.saturating_mul(self.siblings)) }?;
        let (inner, places) = match probs.is_null() {
            true => (Proposals::new(self.siblings), 0),
            false => (Proposals::with_probs(self.siblings), self.rows.saturating_mul(vocab)),
        };
        // SAFETY: the caller ensures that `probs`, if not NULL, has `vocab` places for each row.
        let probs = unsafe { out_slice("probs", probs, places) }?;
        Ok(DrawnDrafts { inner, drafts, probs })
    }
}

impl DrawnDrafts<'_> {
    /// Copies what the engine drew to the memory of C.
    pub fn write(self) {
        self.drafts.write_copy_of_slice(self.inner.ids());
        self.probs.write_copy_of_slice(self.inner.probs());
    }
}
