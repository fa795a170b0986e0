//! Verify: accepts chains of drafts, or replaces a draft, by rejection sampling in the kernels of `verify.cu`
//! (rule S4).
//!
//! The first kernel surveys the one or two rows that a chain's last token is drawn from, and computes the
//! residual on the way. The second races and writes. Both judge the drafts, for which each reads two numbers
//! per draft. So neither waits for a third kernel that judges, and the second judges while the first still
//! reads.

use std::sync::Arc;

use gumball_spec::{Result, TILE};

use crate::abi::{self, chain_flags};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::tuning;
use crate::memory::buffer::Buffer;
use crate::memory::columns::DeviceSlice;
use crate::operators::draft_chains::{DraftChains, Verified, Written};
use crate::operators::params::Numbers;
use crate::programs::kernels::{VERIFY_FINISH, VERIFY_SURVEY};
use crate::requests::step_features::StepFeatures;

/// The number of records in the scratch memory.
pub(super) const RECORDS: usize = 1 << 18;

/// Verification on a device. It holds 4 MiB of scratch memory, whatever the shapes of its calls are.
#[derive(Debug)]
pub struct Verify {
    runtime: Arc<dyn Runtime>,
    /// What launches are fitted to.
    device: DeviceLimits,
    records: Buffer,
    /// The most chains that one launch takes.
    max_chains: usize,
}

impl Verify {
    /// Allocates the scratch memory.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the device has not enough memory.
    pub fn new(runtime: Arc<dyn Runtime>) -> Result<Self> {
        let records = Buffer::zeroed(&runtime, RECORDS * size_of::<abi::TileRecord>())?;
        Ok(Self { device: runtime.limits(), runtime, records, max_chains: usize::MAX })
    }

    /// Returns a verification that launches at most `chains` chains at a time, and at least one. For tests.
    #[must_use]
    pub fn few_at_a_time(self, chains: usize) -> Self {
        Self { max_chains: chains.max(1), ..self }
    }

    /// Enqueues the verification of chains on the device's stream, and returns without waiting. Allocates
    /// nothing and can be captured.
    ///
    /// Kernels accept each chain's drafts up to the first that is not accepted, and draw one token after
    /// them. Every emitted token has the distribution of the target's row, whatever the drafter proposed. The
    /// results equal those of [`gumball_spec::verify::DraftChain::verify`]. Per draft, kernels read two numbers;
    /// per chain, they read at most two rows whole.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] if two shapes do not match.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    pub fn enqueue(&self, chains: &DraftChains<'_>, out: &Verified<'_>) -> Result<()> {
        chains.check()?;
        let [count, length, vocab] = chains.shape();
        out.check(count, length)?;
        let keys = chains.draws.numbers((count, "chains"))?;
        let tiles = vocab.div_ceil(TILE);
        let chains_per_launch = self.max_chains.min(RECORDS / tiles);
        for from in (0..count).step_by(chains_per_launch) {
            let launched = chains_per_launch.min(count - from);
            let argument = abi::Chains {
                records: self.records.address(),
                ..argument(chains, &keys, &out.written(), from)
            };
            // SAFETY: the creators of the rows, numbers and outputs guarantee their memory; `check` checked
            // their shapes. The scratch memory has a record for each tile of `launched` chains.
            unsafe { self.launch(launched, argument) }?;
        }
        Ok(())
    }

    /// Launches the kernels for `chains` chains.
    ///
    /// # Safety
    /// As for [`Runtime::launch`].
    unsafe fn launch(&self, chains: usize, argument: abi::Chains) -> crate::Result<()> {
        let runtime = &*self.runtime;
        let tiles = argument.tiles as usize;
        let blocks = tuning::verify_survey(&self.device, chains, tiles);
        let argument = abi::Chains {
            tiles_per_warp: (blocks.tiles_per_block / blocks.warps()) as u32,
            blocks_per_chain: blocks.blocks_per_row as u32,
            ..argument
        };
        let grid = blocks.grid(chains);
        // SAFETY: the grid is the one that verify.cu expects. Each block waits before it does anything. The
        // caller guarantees the rest.
        unsafe { runtime.launch_dependent(VERIFY_SURVEY.kernel(), grid, bytemuck::bytes_of(&argument)) }?;
        let grid = tuning::finish(&self.device, chains, tiles, StepFeatures::SIMPLE);
        // SAFETY: verify.cu expects this grid, and the caller guarantees the rest. Each block waits before it
        // reads the survey's records, and before it writes. It begins after all blocks of the survey have
        // waited, so the results of earlier kernels are visible.
        unsafe { runtime.launch_dependent(VERIFY_FINISH.kernel(), grid, bytemuck::bytes_of(&argument)) }
    }
}

/// Returns the argument for the chains from index `from` on, without the scratch memory.
pub(super) fn argument(
    chains: &DraftChains<'_>,
    [seeds, positions, draws]: &[Numbers; 3],
    out: &Written<'_>,
    from: usize,
) -> abi::Chains {
    let [_, length, vocab] = chains.shape();
    let (drafts, tokens) = (&chains.draft_token_ids, out.tokens);
    let flags = [
        (drafts.dtype.bytes() == size_of::<u64>(), chain_flags::DRAFTS_I64),
        (tokens.dtype.bytes() == size_of::<u64>(), chain_flags::TOKENS_I64),
        (seeds.is_64_bit, chain_flags::SEEDS_U64),
        (positions.is_64_bit, chain_flags::POSITIONS_U64),
        (draws.is_64_bit, chain_flags::DRAWS_U64),
        (seeds.per_row, chain_flags::SEED_PER_CHAIN),
        (positions.per_row, chain_flags::POSITION_PER_CHAIN),
        (draws.per_row, chain_flags::DRAW_PER_CHAIN),
        (chains.draws.draws.is_none(), chain_flags::DRAW_IS_INDEX),
        (out.adds, chain_flags::ADD_COUNTS),
        (chains.draws.offsets && positions.is_64_bit, chain_flags::OFFSETS),
        (chains.draws.zero_for_none, chain_flags::ZERO_FOR_NONE),
    ];
    let column = |column: Option<&DeviceSlice<'_>>| column.map_or(0, |column| column.at(from));
    abi::Chains {
        draft_probs: chains.draft_probs.chain(from),
        draft_stride: chains.draft_probs.strides[0] as u64,
        draft_row_stride: chains.draft_probs.strides[1] as u64,
        target_probs: chains.target_probs.chain(from),
        target_stride: chains.target_probs.strides[0] as u64,
        target_row_stride: chains.target_probs.strides[1] as u64,
        drafts: drafts.row(from),
        drafts_stride: drafts.stride as u64,
        tokens: tokens.row(from),
        tokens_stride: tokens.stride as u64,
        accepted: column(out.accepted),
        emitted: column(out.emitted),
        statuses: column(out.statuses),
        seeds: seeds.from(from),
        positions: positions.from(from),
        draws: draws.from(from),
        seed: seeds.common,
        position: positions.common as u32,
        draw: draws.common as u32,
        records: 0,
        draft_count: length as u32,
        vocab: vocab as u32,
        tiles: vocab.div_ceil(TILE) as u32,
        blocks_per_chain: 0,
        tiles_per_warp: 0,
        flags: flags.iter().filter(|(on, _)| *on).fold(0, |bits, (_, bit)| bits | bit),
        first_chain: from as u32,
        reserved: 0,
    }
}
