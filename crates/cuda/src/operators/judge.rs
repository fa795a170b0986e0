//! Judge: trees of drafts by rejection, as blocks or by thresholds, in the kernel of `judge_drafts.cu` (rules S5 to S7).
//!
//! A cluster of blocks judges a tree: it reads two numbers for each draft that it accepts at once, and whole rows where a draft is
//! refused, or for each draft of a block.

use std::sync::Arc;

use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Error, Result, TILE};

use crate::abi::dtype::IntType;
use crate::abi::{self, judge_flags};
use crate::driver::runtime::Runtime;
use crate::launch::judge::rule_of;
use crate::launch::tuning;
use crate::memory::buffer::Buffer;
use crate::memory::columns::DeviceSlice;
use crate::memory::int_matrix::{DeviceIntMatrix, DeviceIntMatrixMut};
use crate::operators::Draws;
use crate::operators::draft_chains::{DraftChainRows, DraftChains, Written};
use crate::operators::verify::{RECORDS, argument};
use crate::programs::kernels::JUDGE_DRAFTS;

/// Trees of n drafts each in device memory, with the probabilities that decide which drafts are accepted.
#[derive(Clone, Copy, Debug)]
pub struct DraftTrees<'b> {
    /// The distributions that the drafts were drawn from: `[trees, n + 1, vocab]`, where row 0 is the root's and row i + 1 that
    /// behind draft i. Rows without children are not read, and none is by thresholds. `None`: the drafter has no probabilities.
    pub draft_probs: Option<DraftChainRows<'b>>,
    /// The drafts: `[trees, n]`. One outside the vocabulary is never accepted.
    pub draft_token_ids: DeviceIntMatrix<'b>,
    /// The parent of each draft: `[trees, n]`, -1 for the root, or the number of a draft before it. `None`: each draft
    /// follows the one before it. In a tree where a parent is anything else, or whose drafts form no chain although they
    /// are judged as a block, no draft is accepted; its status is [`gumball_spec::Status::NO_TREE`].
    pub parents: Option<DeviceIntMatrix<'b>>,
    /// The target's probabilities: `[trees, n + 1, vocab]`.
    pub target_probs: DraftChainRows<'b>,
    /// Each tree's seed, draw index, and position of its first draft. The position is the number of tokens
    /// before that draft, modulo 2^32.
    pub draws: Draws<'b>,
}

/// The buffers that receive the results of trees of n drafts.
#[derive(Debug)]
pub struct Judged<'b> {
    /// The accepted drafts, then the token drawn behind them, then [`gumball_spec::NONE`]: `[trees, n + 1]`.
    pub tokens: DeviceIntMatrixMut<'b>,
    /// The rows that these tokens come from, then -1: `[trees, n + 1]` of i32.
    pub rows: Option<DeviceIntMatrixMut<'b>>,
    /// The number of accepted drafts.
    pub accepted: Option<DeviceSlice<'b>>,
    /// The [`gumball_spec::Status`] bits of the rows that the last token was drawn from.
    pub statuses: Option<DeviceSlice<'b>>,
}

impl DraftTrees<'_> {
    fn check(&self, judgement: Judgement) -> Result<()> {
        judgement.check()?;
        let [trees, rows, _] = self.target_probs.shape;
        if !(1..=MAX_DRAFTS + 1).contains(&rows) {
            let allowed = format!("a row for the root and one for each of at most {MAX_DRAFTS} drafts");
            return Err(Error::length("target_probs", rows, allowed));
        }
        if let Some(probs) = &self.draft_probs
            && probs.shape != self.target_probs.shape
        {
            let allowed = format!("{:?}, as target_probs", self.target_probs.shape);
            return Err(Error::out_of_range("draft_probs", format!("{:?}", probs.shape), allowed));
        }
        self.draft_token_ids.check("draft_token_ids", trees, rows - 1)?;
        let Some(parents) = &self.parents else { return Ok(()) };
        parents.check("parents", trees, rows - 1)?;
        if !matches!(parents.dtype, IntType::I32 | IntType::I64) {
            return Err(Error::out_of_range("parents", parents.dtype.name(), "i32 or i64"));
        }
        Ok(())
    }

    /// Returns the drafts as chains, which say all but the parents.
    fn chains(&self) -> DraftChains<'_> {
        DraftChains {
            draft_probs: self.draft_probs.unwrap_or(self.target_probs),
            draft_token_ids: self.draft_token_ids,
            target_probs: self.target_probs,
            draws: self.draws,
        }
    }
}

impl Judged<'_> {
    /// Returns what the kernel writes, but for the rows. Accepted drafts are those that chains count as emitted.
    fn written(&self) -> Written<'_> {
        Written {
            tokens: self.tokens.ids(),
            accepted: None,
            emitted: self.accepted.as_ref(),
            statuses: self.statuses.as_ref(),
            adds: false,
        }
    }

    fn check(&self, trees: usize, n: usize) -> Result<()> {
        self.written().check((trees, "trees"), n)?;
        let Some(rows) = &self.rows else { return Ok(()) };
        rows.ids().check("rows", trees, n + 1)?;
        if rows.ids().dtype != IntType::I32 {
            return Err(Error::out_of_range("rows", rows.ids().dtype.name(), "i32"));
        }
        Ok(())
    }
}

/// The judgement of drafts on a device. It holds 8 MiB of scratch memory, whatever the shapes of its calls are.
#[derive(Debug)]
pub struct Judge {
    runtime: Arc<dyn Runtime>,
    records: Buffer,
    tile_sums: Buffer,
    /// The most trees that one launch takes.
    max_trees: usize,
}

impl Judge {
    /// Allocates the scratch memory.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn new(runtime: Arc<dyn Runtime>) -> Result<Self> {
        let records = Buffer::zeroed(&runtime, RECORDS / 2 * size_of::<abi::TileRecord>())?;
        let tile_sums = Buffer::zeroed(&runtime, RECORDS * size_of::<abi::TileSum>())?;
        Ok(Self { runtime, records, tile_sums, max_trees: usize::MAX })
    }

    /// Returns a judgement that launches at most `trees` trees at a time, and at least one. For tests.
    #[must_use]
    pub fn few_at_a_time(self, trees: usize) -> Self {
        Self { max_trees: trees.max(1), ..self }
    }

    /// Enqueues the judgement of trees on the device's stream, and returns without waiting. Allocates nothing and can be
    /// captured.
    ///
    /// The results equal those of [`gumball_spec::verify::by_probabilities::Trial::judge`].
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a threshold outside 0..=1, or a type that a column cannot have.
    /// - [`Error::Length`] if two shapes do not match, or for more than 64 drafts in a tree.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn enqueue(&self, trees: &DraftTrees<'_>, judgement: Judgement, out: &Judged<'_>) -> Result<()> {
        trees.check(judgement)?;
        let chains = trees.chains();
        let [count, n, vocab] = chains.shape();
        out.check(count, n)?;
        let keys = chains.draws.numbers((count, "trees"))?;
        let tiles = vocab.div_ceil(TILE);
        let limits = self.runtime.limits();
        let trees_per_launch = self.max_trees.min(RECORDS / 2 / tiles);
        let (rule, threshold_single, threshold_acc) = rule_of(judgement);
        for from in (0..count).step_by(trees_per_launch) {
            let launched = trees_per_launch.min(count - from);
            let of_chains = argument(&chains, &keys, &out.written(), from);
            let draft_probs = if trees.draft_probs.is_some() { of_chains.draft_probs } else { 0 };
            let parents_64 = trees.parents.is_some_and(|parents| parents.dtype.bytes() == size_of::<u64>());
            let argument = abi::JudgeDrafts {
                chains: abi::Chains { records: self.records.address(), draft_probs, ..of_chains },
                parents: trees.parents.map_or(0, |parents| parents.row(from)),
                parents_stride: trees.parents.map_or(0, |parents| parents.stride as u64),
                rows: out.rows.as_ref().map_or(0, |rows| rows.ids().row(from)),
                rows_stride: out.rows.as_ref().map_or(0, |rows| rows.ids().stride as u64),
                tile_sums: self.tile_sums.address(),
                threshold_acc,
                threshold_single,
                rule,
                flags: if parents_64 { judge_flags::PARENTS_I64 } else { 0 },
                reserved: 0,
            };
            let grid = tuning::judge_drafts(&limits, launched, tiles);
            // SAFETY: the grid is the one that judge_drafts.cu expects, and each block waits before it does anything. The creators
            // of the rows, numbers and outputs guarantee their memory; `check` checked their shapes. The scratch memory has a
            // record and two sums for each tile of `launched` trees.
            unsafe {
                self.runtime.launch_dependent(JUDGE_DRAFTS.kernel(), grid, bytemuck::bytes_of(&argument))
            }?;
        }
        Ok(())
    }
}
