//! Trees of drafts in device memory, chains among them, and the buffers that receive what becomes of them.

use std::marker::PhantomData;

use gumball_spec::shape::{check_stride, check_vocab};
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::verify::by_probabilities::{Judgement, check_accepted_alone};
use gumball_spec::{Error, Result, TILE};

use crate::abi::dtype::IntType;
use crate::abi::{self, chain_flags};
use crate::memory::buffer::Buffer;
use crate::memory::columns::{DeviceSlice, WORDS};
use crate::memory::int_matrix::{DeviceIntMatrix, DeviceIntMatrixMut};
use crate::memory::rows::check_extent;
use crate::operators::Draws;
use crate::operators::params::Numbers;

/// Rows of f32 probabilities in device memory that lives as long as `'b`: `[trees, rows, vocab]`.
#[derive(Clone, Copy, Debug)]
pub struct DraftTreeRows<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) shape: [usize; 3],
    pub(crate) strides: [usize; 2],
}

impl<'b> DraftTreeRows<'b> {
    /// Returns the number of trees.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.shape[0]
    }

    /// Describes rows of `shape`, `[trees, rows, vocab]`, that begin at a device address.
    ///
    /// `strides` are in elements: between the first rows of two neighbouring trees, and between two
    /// neighbouring rows of a tree.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20.
    /// - [`Error::OutOfRange`] if a stride makes rows overlap, or reach beyond the address space.
    /// - [`Error::OutOfRange`] if the address is not a multiple of 4 bytes.
    /// - [`Error::Length`] if there are 2^32 or more trees, or 2^32 or more rows in a tree.
    ///
    /// # Safety
    /// For `'b`, all rows lie in memory that the device can read. Nobody writes them while work that was
    /// enqueued with them runs. The address may be arbitrary if there are no rows.
    pub unsafe fn new(address: u64, shape: [usize; 3], strides: [usize; 2]) -> Result<Self> {
        let [trees, rows, vocab] = shape;
        check_vocab(vocab)?;
        if trees > 0 {
            check_stride("stride of rows", rows, vocab, strides[1])?;
        }
        let length = rows.saturating_sub(1).saturating_mul(strides[1]).saturating_add(vocab);
        if trees > 1 && rows > 0 && strides[0] < length {
            let allowed = format!("at least the length of a tree, {length}");
            return Err(Error::out_of_range("stride of trees", strides[0], allowed));
        }
        if trees > 0 && rows > 0 && !address.is_multiple_of(4) {
            return Err(Error::out_of_range(
                "probabilities",
                format!("{address:#x}"),
                "a multiple of 4 bytes",
            ));
        }
        check_extent("stride of trees", address, size_of::<f32>(), (trees, length, strides[0]))?;
        check_extent("stride of rows", address, size_of::<f32>(), (rows, vocab, strides[1]))?;
        Ok(Self { memory: PhantomData, address, shape, strides })
    }

    /// Describes rows that begin `start` elements into a buffer.
    ///
    /// # Errors
    /// - The errors of [`DraftTreeRows::new`].
    /// - [`Error::Length`] if the buffer ends before the last row does.
    pub fn of(buffer: &'b Buffer, start: usize, shape: [usize; 3], strides: [usize; 2]) -> Result<Self> {
        let [trees, rows, vocab] = shape;
        let length = buffer.bytes() / size_of::<f32>();
        let end = || {
            let last = (trees - 1).checked_mul(strides[0])?;
            last.checked_add((rows - 1).checked_mul(strides[1])?)?.checked_add(vocab)?.checked_add(start)
        };
        if trees > 0 && rows > 0 && end().is_none_or(|end| end > length) {
            let allowed = format!("at least {shape:?} elements, {strides:?} apart, from {start}");
            return Err(Error::length("probabilities", length, allowed));
        }
        let address = buffer.address() + (start * size_of::<f32>()) as u64;
        // SAFETY: the check above saw that the rows lie in the buffer. It stays borrowed for `'b`, so nobody
        // enqueues a write until then; freeing it waits for the work that was enqueued before.
        unsafe { Self::new(address, shape, strides) }
    }

    /// Returns the address of a tree's first row.
    pub(super) fn tree(&self, tree: usize) -> u64 {
        self.address + (tree * self.strides[0] * size_of::<f32>()) as u64
    }
}

/// Trees of n drafts each in device memory, with the probabilities that decide which drafts are accepted.
#[derive(Clone, Copy, Debug)]
pub struct DraftTrees<'b> {
    /// The distributions that the drafts were drawn from: `[trees, n, vocab]`, where row 0 is the root's and
    /// row i + 1 that after draft i, or `[trees, n + 1, vocab]`. Rows without children are not read, so the
    /// last one never is, and none is by thresholds. `None`: the drafter has no probabilities.
    pub draft_probs: Option<DraftTreeRows<'b>>,
    /// The drafts: `[trees, n]`. One outside the vocabulary was not drawn, and is never accepted.
    pub draft_token_ids: DeviceIntMatrix<'b>,
    /// The parent of each draft: `[trees, n]`, -1 for the root, or the number of a draft before it. `None`:
    /// each draft follows the one before it. In a tree where a parent is anything else, or whose drafts form
    /// no chain although they are judged as a block, no draft is accepted; its status is
    /// [`gumball_spec::Status::NO_TREE`].
    pub parents: Option<DeviceIntMatrix<'b>>,
    /// The target's probabilities: `[trees, n + 1, vocab]`.
    pub target_probs: DraftTreeRows<'b>,
    /// Each tree's seed, draw index, and position of its first draft. The position is the number of tokens
    /// before that draft, modulo 2^32.
    pub draws: Draws<'b>,
}

impl DraftTrees<'_> {
    /// Returns the number of trees, the number of drafts in each, and the vocabulary.
    pub(super) fn shape(&self) -> [usize; 3] {
        let [trees, rows, vocab] = self.target_probs.shape;
        [trees, rows.saturating_sub(1), vocab]
    }

    /// Returns whether the drafts are chains that S4 judges.
    pub(super) fn are_chains(&self, judgement: Judgement) -> bool {
        judgement.is_of_chains(self.parents.is_some(), self.draft_probs.is_some())
    }

    pub(super) fn check(&self, judgement: Judgement) -> Result<()> {
        judgement.check()?;
        let [trees, rows, vocab] = self.target_probs.shape;
        if rows == 0 || rows > MAX_DRAFTS + 1 && !self.are_chains(judgement) {
            let allowed = format!(
                "a row for the root and one for each draft, of which only chains by rejection with draft_probs have more than {MAX_DRAFTS}"
            );
            return Err(Error::length("target_probs", rows, allowed));
        }
        if let Some(DraftTreeRows { shape, .. }) = &self.draft_probs
            && *shape != [trees, rows, vocab]
            && *shape != [trees, rows - 1, vocab]
        {
            let allowed = format!("[{trees}, {} or {rows}, {vocab}], as target_probs", rows - 1);
            return Err(Error::out_of_range("draft_probs", format!("{shape:?}"), allowed));
        }
        self.draft_token_ids.check("draft_token_ids", trees, rows - 1)?;
        let Some(parents) = &self.parents else { return Ok(()) };
        parents.check("parents", trees, rows - 1)?;
        if !matches!(parents.dtype, IntType::I32 | IntType::I64) {
            return Err(Error::out_of_range("parents", parents.dtype.name(), "i32 or i64"));
        }
        Ok(())
    }

    /// Returns the kernels' argument for the trees from index `from` on, without the scratch memory.
    pub(super) fn argument(
        &self,
        [seeds, positions, draws]: &[Numbers; 3],
        out: &Judged<'_>,
        from: usize,
    ) -> abi::Chains {
        let [_, length, vocab] = self.shape();
        let (drafts, tokens) = (&self.draft_token_ids, out.tokens.ids());
        let flags = [
            (drafts.dtype.bytes() == size_of::<u64>(), chain_flags::DRAFTS_I64),
            (tokens.dtype.bytes() == size_of::<u64>(), chain_flags::TOKENS_I64),
            (seeds.is_64_bit, chain_flags::SEEDS_U64),
            (positions.is_64_bit, chain_flags::POSITIONS_U64),
            (draws.is_64_bit, chain_flags::DRAWS_U64),
            (seeds.per_row, chain_flags::SEED_PER_CHAIN),
            (positions.per_row, chain_flags::POSITION_PER_CHAIN),
            (draws.per_row, chain_flags::DRAW_PER_CHAIN),
            (self.draws.draws.is_none(), chain_flags::DRAW_IS_INDEX),
            (out.adds, chain_flags::ADD_COUNTS),
            (self.draws.offsets && positions.is_64_bit, chain_flags::OFFSETS),
            (self.draws.zero_for_none, chain_flags::ZERO_FOR_NONE),
        ];
        let column = |column: &Option<DeviceSlice<'_>>| column.as_ref().map_or(0, |column| column.at(from));
        let [draft_stride, draft_row_stride] = self.draft_probs.map_or([0; 2], |probs| probs.strides);
        let rows = out.rows.as_ref().map(DeviceIntMatrixMut::ids);
        abi::Chains {
            draft_probs: self.draft_probs.map_or(0, |probs| probs.tree(from)),
            draft_stride: draft_stride as u64,
            draft_row_stride: draft_row_stride as u64,
            target_probs: self.target_probs.tree(from),
            target_stride: self.target_probs.strides[0] as u64,
            target_row_stride: self.target_probs.strides[1] as u64,
            drafts: drafts.row(from),
            drafts_stride: drafts.stride as u64,
            tokens: tokens.row(from),
            tokens_stride: tokens.stride as u64,
            rows: rows.map_or(0, |rows| rows.row(from)),
            rows_stride: rows.map_or(0, |rows| rows.stride as u64),
            accepted: column(&out.accepted),
            accepted_alone: column(&out.accepted_alone),
            statuses: column(&out.statuses),
            seeds: seeds.from(from),
            positions: positions.from(from),
            draws: draws.from(from),
            seed: seeds.common,
            position: positions.common as u32,
            draw: draws.common as u32,
            draft_count: length as u32,
            vocab: vocab as u32,
            tiles: vocab.div_ceil(TILE) as u32,
            flags: flags.iter().filter(|(on, _)| *on).fold(0, |bits, (_, bit)| bits | bit),
            first_chain: from as u32,
            ..abi::Chains::default()
        }
    }
}

/// The buffers that receive what becomes of trees of n drafts.
#[derive(Debug)]
pub struct Judged<'b> {
    /// The accepted drafts, then the token drawn after them, then [`gumball_spec::NONE`]: `[trees, n + 1]`.
    pub tokens: DeviceIntMatrixMut<'b>,
    /// The rows that these tokens come from, then -1: `[trees, n + 1]` of i32.
    pub rows: Option<DeviceIntMatrixMut<'b>>,
    /// The number of accepted drafts. The token drawn after them does not count.
    pub accepted: Option<DeviceSlice<'b>>,
    /// The number of drafts that rule S4 accepts when each is judged alone, including drafts after the end of
    /// the chain; for chains by rejection with `draft_probs`.
    pub accepted_alone: Option<DeviceSlice<'b>>,
    /// The [`gumball_spec::Status`] bits of the rows that the last token was drawn from.
    pub statuses: Option<DeviceSlice<'b>>,
    /// Whether kernels add the two counts to the values in memory; otherwise they overwrite them.
    pub adds: bool,
}

impl<'b> Judged<'b> {
    /// Describes results of which only the tokens are wanted.
    #[must_use]
    pub fn new(tokens: DeviceIntMatrixMut<'b>) -> Self {
        Self { tokens, rows: None, accepted: None, accepted_alone: None, statuses: None, adds: false }
    }

    /// Checks the shapes and types for trees of n drafts each.
    pub(super) fn check(&self, [trees, n, _]: [usize; 3], are_chains: bool) -> Result<()> {
        check_accepted_alone(self.accepted_alone.is_some(), are_chains)?;
        self.tokens.ids().check("tokens", trees, n + 1)?;
        for (name, column) in [
            ("accepted", &self.accepted),
            ("accepted_alone", &self.accepted_alone),
            ("statuses", &self.statuses),
        ] {
            let Some(column) = column else { continue };
            column.check_type(name, WORDS)?;
            if column.rows != trees {
                return Err(Error::length(name, column.rows, format!("one for each of {trees} trees")));
            }
        }
        let Some(rows) = &self.rows else { return Ok(()) };
        rows.ids().check("rows", trees, n + 1)?;
        if rows.ids().dtype != IntType::I32 {
            return Err(Error::out_of_range("rows", rows.ids().dtype.name(), "i32"));
        }
        Ok(())
    }
}
