//! Chains of drafts in device memory, and the buffers that receive their results.

use std::marker::PhantomData;

use gumball_spec::shape::{check_stride, check_vocab};
use gumball_spec::{Error, Result};

use crate::memory::buffer::Buffer;
use crate::memory::columns::{DeviceSlice, WORDS};
use crate::memory::int_matrix::{DeviceIntMatrix, DeviceIntMatrixMut};
use crate::memory::rows::check_extent;
use crate::operators::Draws;

/// Rows of f32 probabilities in device memory that lives as long as `'b`: `[chains, rows, vocab]`.
#[derive(Clone, Copy, Debug)]
pub struct DraftChainRows<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) shape: [usize; 3],
    pub(crate) strides: [usize; 2],
}

impl<'b> DraftChainRows<'b> {
    /// Returns the number of chains.
    #[must_use]
    pub fn chains(&self) -> usize {
        self.shape[0]
    }

    /// Describes rows of `shape`, `[chains, rows, vocab]`, that begin at a device address.
    ///
    /// `strides` are in elements: between the first rows of two neighbouring chains, and between two
    /// neighbouring rows of a chain.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20.
    /// - [`Error::OutOfRange`] if a stride makes rows overlap, or reach beyond the address space.
    /// - [`Error::OutOfRange`] if the address is not a multiple of 4 bytes.
    /// - [`Error::Length`] if there are 2^32 or more chains, or 2^32 or more rows in a chain.
    ///
    /// # Safety
    /// For `'b`, all rows lie in memory that the device can read. Nobody writes them while work that was
    /// enqueued with them runs. The address may be arbitrary if there are no rows.
    pub unsafe fn new(address: u64, shape: [usize; 3], strides: [usize; 2]) -> Result<Self> {
        let [chains, rows, vocab] = shape;
        check_vocab(vocab)?;
        if chains > 0 {
            check_stride("stride of rows", rows, vocab, strides[1])?;
        }
        let length = rows.saturating_sub(1).saturating_mul(strides[1]).saturating_add(vocab);
        if chains > 1 && rows > 0 && strides[0] < length {
            let allowed = format!("at least the length of a chain, {length}");
            return Err(Error::out_of_range("stride of chains", strides[0], allowed));
        }
        if chains > 0 && rows > 0 && !address.is_multiple_of(4) {
            return Err(Error::out_of_range(
                "probabilities",
                format!("{address:#x}"),
                "a multiple of 4 bytes",
            ));
        }
        check_extent("stride of chains", address, size_of::<f32>(), (chains, length, strides[0]))?;
        check_extent("stride of rows", address, size_of::<f32>(), (rows, vocab, strides[1]))?;
        Ok(Self { memory: PhantomData, address, shape, strides })
    }

    /// Describes rows that begin `start` elements into a buffer.
    ///
    /// # Errors
    /// - Those of [`DraftChainRows::new`].
    /// - [`Error::Length`] if the buffer ends before the last row does.
    pub fn of(buffer: &'b Buffer, start: usize, shape: [usize; 3], strides: [usize; 2]) -> Result<Self> {
        let [chains, rows, vocab] = shape;
        let length = buffer.bytes() / size_of::<f32>();
        let end = || {
            let last = (chains - 1).checked_mul(strides[0])?;
            last.checked_add((rows - 1).checked_mul(strides[1])?)?.checked_add(vocab)?.checked_add(start)
        };
        if chains > 0 && rows > 0 && end().is_none_or(|end| end > length) {
            let allowed = format!("at least {shape:?} elements, {strides:?} apart, from {start}");
            return Err(Error::length("probabilities", length, allowed));
        }
        let address = buffer.address() + (start * size_of::<f32>()) as u64;
        // SAFETY: the check above saw that the rows lie in the buffer. It stays borrowed for `'b`, so nobody
        // enqueues a write until then; freeing it waits for the work that was enqueued before.
        unsafe { Self::new(address, shape, strides) }
    }

    /// Returns the address of a chain's first row.
    pub(crate) fn chain(&self, chain: usize) -> u64 {
        self.address + (chain * self.strides[0] * size_of::<f32>()) as u64
    }
}

/// Chains of n drafts each, with the probabilities that decide which drafts are accepted (S4).
#[derive(Clone, Copy, Debug)]
pub struct DraftChains<'b> {
    /// The distributions that the drafts were drawn from: `[chains, n, vocab]`.
    pub draft_probs: DraftChainRows<'b>,
    /// The drafts: `[chains, n]`. A draft outside the vocabulary was not drawn from its row. It ends the
    /// chain: the last token is drawn from the target's row, not from a residual.
    pub draft_token_ids: DeviceIntMatrix<'b>,
    /// The target's probabilities: `[chains, n + 1, vocab]`.
    pub target_probs: DraftChainRows<'b>,
    /// Each chain's seed, draw index, and position of its first draft. The position is the number of tokens
    /// before that draft, modulo 2^32.
    pub draws: Draws<'b>,
}

impl DraftChains<'_> {
    /// Returns the number of chains, the number of drafts in each, and the vocabulary.
    pub(crate) fn shape(&self) -> [usize; 3] {
        let [chains, rows, vocab] = self.target_probs.shape;
        [chains, rows.saturating_sub(1), vocab]
    }

    pub(crate) fn check(&self) -> Result<()> {
        let [chains, n, vocab] = self.shape();
        let [_, rows, _] = self.target_probs.shape;
        if rows == 0 {
            return Err(Error::length("target_probs", rows, "one row more than there are drafts"));
        }
        let [draft_chains, drafts, draft_vocab] = self.draft_probs.shape;
        let lengths = [("chains", draft_chains, chains), ("rows", drafts, n), ("ids", draft_vocab, vocab)];
        for (what, length, wanted) in lengths {
            if length != wanted {
                let allowed = format!("{wanted} {what}, as target_probs of {:?}", self.target_probs.shape);
                return Err(Error::length("draft_probs", length, allowed));
            }
        }
        self.draft_token_ids.check("draft_token_ids", chains, n)
    }
}

/// The buffers that receive the results of chains of n drafts.
#[derive(Debug)]
pub struct Verified<'b> {
    /// The accepted drafts, then the token drawn after them, then [`gumball_spec::NONE`]: `[chains, n + 1]`.
    pub tokens: DeviceIntMatrixMut<'b>,
    /// The number of drafts that rule S4 accepts when each is judged alone, including drafts after the end of
    /// the chain.
    pub accepted: Option<DeviceSlice<'b>>,
    /// The number of drafts that were emitted: those before the first draft that was not accepted. The token
    /// drawn after them does not count.
    pub emitted: Option<DeviceSlice<'b>>,
    /// The [`gumball_spec::Status`] bits of the rows that the last token was drawn from.
    pub statuses: Option<DeviceSlice<'b>>,
    /// Whether kernels add `accepted` and `emitted` to the values in memory; otherwise they overwrite them.
    pub adds: bool,
}

impl<'b> Verified<'b> {
    /// Describes results of which only the tokens are wanted.
    #[must_use]
    pub fn new(tokens: DeviceIntMatrixMut<'b>) -> Self {
        Self { tokens, accepted: None, emitted: None, statuses: None, adds: false }
    }

    pub(crate) fn check(&self, chains: usize, n: usize) -> Result<()> {
        self.written().check((chains, "chains"), n)
    }

    /// Returns what kernels write.
    pub(crate) fn written(&self) -> Written<'_> {
        Written {
            tokens: self.tokens.ids(),
            accepted: self.accepted.as_ref(),
            emitted: self.emitted.as_ref(),
            statuses: self.statuses.as_ref(),
            adds: self.adds,
        }
    }
}

/// What kernels write of chains or trees; the fields are those of [`Verified`].
pub(crate) struct Written<'a> {
    pub tokens: &'a DeviceIntMatrix<'a>,
    pub accepted: Option<&'a DeviceSlice<'a>>,
    pub emitted: Option<&'a DeviceSlice<'a>>,
    pub statuses: Option<&'a DeviceSlice<'a>>,
    pub adds: bool,
}

impl Written<'_> {
    /// Checks the shapes and types for `count` chains or trees of n drafts each.
    pub fn check(&self, (count, what): (usize, &str), n: usize) -> Result<()> {
        self.tokens.check("tokens", count, n + 1)?;
        for (name, column) in
            [("accepted", self.accepted), ("emitted", self.emitted), ("statuses", self.statuses)]
        {
            let Some(column) = column else { continue };
            column.check_type(name, WORDS)?;
            if column.rows != count {
                return Err(Error::length(name, column.rows, format!("one for each of {count} {what}")));
            }
        }
        Ok(())
    }
}
