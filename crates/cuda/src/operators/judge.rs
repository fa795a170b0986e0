//! Judge: which drafts probabilities accept, and the token after them: chains by rejection in the kernels of
//! `verify.cu` (rule S4), all other trees in the kernel of `judge_drafts.cu` (S5 to S7).
//!
//! A chain takes two kernels. The first surveys the one or two rows that a chain's last token is drawn from,
//! and computes the residual on the way. The second races and writes. Both judge the drafts, for which each
//! reads two numbers per draft. So neither waits for a third kernel that judges, and the second judges while
//! the first still reads.
//!
//! A tree takes a cluster of blocks: it reads two numbers for each draft that it accepts at once, and whole
//! rows where a draft is refused, or for each draft of a block.

use std::sync::Arc;

use gumball_spec::filter::fraction_to_u32;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Result, TILE};

use crate::abi::{self, judge_flags, judge_rules};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::{Launch, tuning};
use crate::memory::buffer::Buffer;
use crate::operators::draft_trees::{DraftTrees, Judged};
use crate::programs::kernels::{JUDGE_DRAFTS, VERIFY_FINISH, VERIFY_SURVEY};
use crate::requests::step_features::StepFeatures;

/// The number of records in the scratch memory, and of sums of tiles.
const RECORDS: usize = 1 << 18;

/// Returns a judgement as kernels take it: the code of its rule, `threshold_single`, and `threshold_acc` in
/// units of 2^-32.
pub(crate) fn rule_of(judgement: Judgement) -> (u32, f32, u64) {
    match judgement {
        Judgement::Rejection => (judge_rules::REJECTION, 0.0, 0),
        Judgement::Block => (judge_rules::BLOCK, 0.0, 0),
        Judgement::Threshold { single, acc } => (judge_rules::THRESHOLD, single, fraction_to_u32(acc)),
    }
}

/// The judgement of drafts on a device. It holds 10 MiB of scratch memory, whatever the shapes of its calls
/// are.
#[derive(Debug)]
pub struct Judge {
    runtime: Arc<dyn Runtime>,
    /// What launches are fitted to.
    device: DeviceLimits,
    records: Buffer,
    tile_sums: Buffer,
    /// The most trees that one launch takes.
    max_trees: usize,
}

impl Judge {
    /// Allocates the scratch memory.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the device has not enough memory.
    pub fn new(runtime: Arc<dyn Runtime>) -> Result<Self> {
        let records = Buffer::zeroed(&runtime, RECORDS * size_of::<abi::TileRecord>())?;
        let tile_sums = Buffer::zeroed(&runtime, RECORDS * size_of::<abi::TileSum>())?;
        Ok(Self { device: runtime.limits(), runtime, records, tile_sums, max_trees: usize::MAX })
    }

    /// Returns a judgement that launches at most `trees` trees at a time, and at least one. For tests.
    #[must_use]
    pub fn few_at_a_time(self, trees: usize) -> Self {
        Self { max_trees: trees.max(1), ..self }
    }

    /// Enqueues the judgement of trees on the device's stream, and returns without waiting. Allocates nothing
    /// and can be captured.
    ///
    /// The results equal those of [`gumball_spec::verify::by_probabilities::Trial::judge`], and for chains by
    /// rejection those of [`gumball_spec::verify::DraftChain::verify`].
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] for a threshold outside 0..=1, or a type that a column cannot
    ///   have.
    /// - [`gumball_spec::Error::Length`] if two shapes do not match, or for more than 64 drafts in a tree
    ///   that is no chain by rejection with `draft_probs`.
    /// - [`gumball_spec::Error::Conflict`] for `accepted_alone` of other trees than these chains.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    pub fn enqueue(&self, trees: &DraftTrees<'_>, judgement: Judgement, out: &Judged<'_>) -> Result<()> {
        trees.check(judgement)?;
        let (shape, are_chains) = (trees.shape(), trees.are_chains(judgement));
        out.check(shape, are_chains)?;
        let [count, _, vocab] = shape;
        let keys = trees.draws.numbers((count, "trees"))?;
        let tiles = vocab.div_ceil(TILE);
        // A tree has two sums for each tile.
        let trees_per_launch = self.max_trees.min(if are_chains { RECORDS } else { RECORDS / 2 } / tiles);
        for from in (0..count).step_by(trees_per_launch) {
            let launched = trees_per_launch.min(count - from);
            let records = self.records.address();
            let argument = abi::Chains { records, ..trees.argument(&keys, out, from) };
            if are_chains {
                // SAFETY: the creators of the rows, numbers and outputs guarantee their memory; `check`
                // checked their shapes. The scratch memory has a record for each tile of `launched` chains.
                unsafe { self.launch_chains(launched, argument) }?;
            } else {
                // SAFETY: as above, and the scratch memory has two sums for each tile of `launched` trees.
                unsafe { self.launch_trees(launched, trees, judgement, from, argument) }?;
            }
        }
        Ok(())
    }

    /// Launches the kernels for `launched` chains.
    ///
    /// # Safety
    /// As for [`Runtime::launch`].
    unsafe fn launch_chains(&self, launched: usize, argument: abi::Chains) -> crate::Result<()> {
        let runtime = &*self.runtime;
        let tiles = argument.tiles as usize;
        let blocks = tuning::verify_survey(&self.device, launched, tiles);
        let argument = abi::Chains {
            tiles_per_warp: (blocks.tiles_per_block / blocks.warps()) as u32,
            blocks_per_chain: blocks.blocks_per_row as u32,
            ..argument
        };
        let survey = Launch::dependent(VERIFY_SURVEY.kernel(), blocks.grid(launched));
        // SAFETY: the caller guarantees it.
        unsafe { survey.enqueue(runtime, &argument) }?;
        let grid = tuning::finish(&self.device, launched, tiles, StepFeatures::NONE);
        // It begins after all blocks of the survey have waited, so it sees the results of earlier kernels.
        let finish = Launch::dependent(VERIFY_FINISH.kernel(), grid);
        // SAFETY: as above.
        unsafe { finish.enqueue(runtime, &argument) }
    }

    /// Launches the kernel for `launched` trees from index `from` on.
    ///
    /// # Safety
    /// As for [`Runtime::launch`].
    unsafe fn launch_trees(
        &self,
        launched: usize,
        trees: &DraftTrees<'_>,
        judgement: Judgement,
        from: usize,
        chains: abi::Chains,
    ) -> crate::Result<()> {
        let (rule, threshold_single, threshold_acc) = rule_of(judgement);
        let parents_64 = trees.parents.is_some_and(|parents| parents.dtype.bytes() == size_of::<u64>());
        let argument = abi::JudgeDrafts {
            chains,
            parents: trees.parents.map_or(0, |parents| parents.row(from)),
            parents_stride: trees.parents.map_or(0, |parents| parents.stride as u64),
            tile_sums: self.tile_sums.address(),
            threshold_acc,
            threshold_single,
            rule,
            flags: if parents_64 { judge_flags::PARENTS_I64 } else { 0 },
            reserved: 0,
        };
        let grid = tuning::judge_drafts(&self.device, launched, chains.tiles as usize, true);
        // SAFETY: the caller guarantees it.
        unsafe { Launch::dependent(JUDGE_DRAFTS.kernel(), grid).enqueue(&*self.runtime, &argument) }
    }
}
