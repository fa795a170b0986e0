//! Chains of drafts in a machine's memory, and where what becomes of them goes.

use std::marker::PhantomData;

use gumball_spec::{Error, MAX_VOCAB, Result};

use crate::int_matrix::{DeviceIntMatrix, DeviceIntMatrixMut};
use crate::operators::{Draws, PerRow};
use crate::rows::{DeviceSlice, IntType, check_extent};
use crate::runtime::Buffer;

/// The rows of probabilities of chains, f32, in the machine's memory, which lives as long as `'b`: `[chains, rows, vocab]`.
#[derive(Clone, Copy, Debug)]
pub struct ChainRows<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) shape: [usize; 3],
    pub(crate) strides: [usize; 2],
}

impl<'b> ChainRows<'b> {
    /// Returns how many chains there are.
    #[must_use]
    pub fn chains(&self) -> usize {
        self.shape[0]
    }

    /// Takes rows of `shape`, `[chains, rows, vocab]`, at an address of the machine. `strides` are how many elements lie
    /// between the beginnings of two chains, and of two rows of a chain.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20, a stride so small that rows would overlap or so large that
    ///   they reach beyond the address space, or the address no multiple of 4 bytes.
    /// - [`Error::Length`] if there are 2^32 chains or more, or as many rows in one.
    ///
    /// # Safety
    /// For `'b`, all rows lie in memory that the machine can read, and nobody writes them while what is enqueued on them
    /// runs. Where there are none, the address may be any.
    pub unsafe fn new(address: u64, shape: [usize; 3], strides: [usize; 2]) -> Result<Self> {
        let [chains, rows, vocab] = shape;
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"));
        }
        if chains > 0 && rows > 1 && strides[1] < vocab {
            let allowed = format!("at least the width of a row, {vocab}");
            return Err(Error::out_of_range("stride of rows", strides[1], allowed));
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

    /// Takes rows that begin `start` elements into a buffer.
    ///
    /// # Errors
    /// - Those of [`ChainRows::new`].
    /// - [`Error::Length`] if the buffer ends before the last row does.
    pub fn of(buffer: &'b Buffer, start: usize, shape: [usize; 3], strides: [usize; 2]) -> Result<Self> {
        let [chains, rows, vocab] = shape;
        let room = buffer.bytes() / size_of::<f32>();
        let end = || {
            let last = (chains - 1).checked_mul(strides[0])?;
            last.checked_add((rows - 1).checked_mul(strides[1])?)?.checked_add(vocab)?.checked_add(start)
        };
        if chains > 0 && rows > 0 && end().is_none_or(|end| end > room) {
            let allowed = format!("room for {shape:?} elements from {start}, {strides:?} apart");
            return Err(Error::length("probabilities", room, allowed));
        }
        let address = buffer.address() + (start * size_of::<f32>()) as u64;
        // SAFETY: the rows lie in the buffer, as was just seen, which is borrowed for `'b`: until then nothing enqueues a
        // write, and its end waits for what was enqueued before.
        unsafe { Self::new(address, shape, strides) }
    }

    /// Returns the address of a chain's first row.
    pub(crate) fn chain(&self, chain: usize) -> u64 {
        self.address + (chain * self.strides[0] * size_of::<f32>()) as u64
    }
}

/// Chains of n drafts each, with the probabilities they are judged by.
#[derive(Clone, Copy, Debug)]
pub struct Chains<'b> {
    /// What the drafts were drawn from: `[chains, n, vocab]`.
    pub draft_probs: ChainRows<'b>,
    /// The drafts: `[chains, n]`. One outside the vocabulary was not drawn: its row is drawn plainly and ends the chain.
    pub draft_token_ids: DeviceIntMatrix<'b>,
    /// The target's probabilities: `[chains, n + 1, vocab]`.
    pub target_probs: ChainRows<'b>,
    /// The seed of each chain; the position of its first draft, the number of tokens before it modulo 2^32; its draw index.
    pub draws: Draws<'b>,
}

impl Chains<'_> {
    /// Returns how many chains there are, how many drafts each has, and the width of a row.
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
        self.draft_token_ids.check("draft_token_ids", chains, n)?;
        let Draws { seeds, positions, draws, .. } = &self.draws;
        check_column("seeds", seeds, chains)?;
        check_column("positions", positions, chains)?;
        draws.as_ref().map_or(Ok(()), |draws| check_column("draws", draws, chains))
    }
}

/// Checks that a column has a number for each chain, or one for all.
fn check_column<T>(parameter: &'static str, column: &PerRow<'_, T>, chains: usize) -> Result<()> {
    match column {
        PerRow::Rows(column) if column.rows != chains && column.rows != 1 => {
            let allowed = format!("one for each of {chains} chains, or for all");
            Err(Error::length(parameter, column.rows, allowed))
        }
        _ => Ok(()),
    }
}

/// Numbers as kernels take them: a column's address or 0, with what it is like, and else the number of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    pub of_all: u64,
    pub address: u64,
    /// Whether they have 64 bits.
    pub wide: bool,
    /// Whether there is one for each chain, and not one for all.
    pub each: bool,
}

impl Numbers {
    pub fn of<T: Copy + Into<u64>>(numbers: &PerRow<'_, T>) -> Self {
        match numbers {
            PerRow::All(number) => Self { of_all: (*number).into(), ..Self::default() },
            PerRow::Rows(column) => Self {
                of_all: 0,
                address: column.address,
                wide: matches!(column.dtype, IntType::I64 | IntType::U64),
                each: column.rows != 1,
            },
        }
    }

    /// Returns where those of the chains from one on lie.
    pub fn from(&self, chain: usize) -> u64 {
        let bytes = if self.wide { size_of::<u64>() } else { size_of::<u32>() };
        self.address + if self.each { (chain * bytes) as u64 } else { 0 }
    }
}

/// Where it goes what becomes of chains of n drafts.
#[derive(Debug)]
pub struct Verified<'b> {
    /// The accepted drafts, the token that was drawn behind them, then [`gumball_spec::NONE`]: `[chains, n + 1]`.
    pub tokens: DeviceIntMatrixMut<'b>,
    /// How many drafts would be accepted if each were judged by itself, those behind the end of the chain included.
    pub accepted: Option<DeviceSlice<'b>>,
    /// How many drafts were emitted: accepted, and all before them too. The token behind them is not counted.
    pub emitted: Option<DeviceSlice<'b>>,
    /// The [`gumball_spec::Status`] bits of the rows that the last token was drawn from.
    pub statuses: Option<DeviceSlice<'b>>,
    /// Whether the two counts are added to what is there, instead of written over it.
    pub adds: bool,
}

impl<'b> Verified<'b> {
    /// Takes a place for the tokens alone.
    #[must_use]
    pub fn new(tokens: DeviceIntMatrixMut<'b>) -> Self {
        Self { tokens, accepted: None, emitted: None, statuses: None, adds: false }
    }

    pub(crate) fn check(&self, chains: usize, n: usize) -> Result<()> {
        self.tokens.ids().check("tokens", chains, n + 1)?;
        let columns =
            [("accepted", &self.accepted), ("emitted", &self.emitted), ("statuses", &self.statuses)];
        for (name, column) in columns {
            if let Some(column) = column.as_ref().filter(|column| column.rows != chains) {
                let allowed = format!("one for each of {chains} chains");
                return Err(Error::length(name, column.rows, allowed));
            }
        }
        Ok(())
    }
}
