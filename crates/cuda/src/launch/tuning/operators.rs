//! How the operators' calls are divided into launches.

use gumball_spec::Kind;

use super::survey::{self, Survey};
use super::{TileBlocks, WARP};
use crate::abi::dtype::Dtype;
use crate::abi::{
    COLUMNS_THREADS, GIVEN_THREADS, GIVEN_TILE_BYTES, GivenArgs, JUDGE_DRAFTS_THREADS, JudgeRequests,
    MAX_CLUSTER_BLOCKS, MAX_TILES_PER_WARP, ParamColumns, SELECTED_THREADS, SURVEY_WARPS, SelectedTokens,
    WRITE_ROWS_WARPS, judge_targets,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::launch::Launch;
use crate::programs::kernels::{
    GIVEN_GRADIENT, GIVEN_LOGPROBS, JUDGE_REQUESTS, PARAMS_FROM_COLUMNS, SELECT_TOKENS, WRITE_SELECTED,
};
use crate::requests::step_features::StepFeatures;

/// The most rows, and the most tiles, that one group of launches takes. They bound the scratch memory,
/// whatever the shape of a call is.
const MAX_GROUP_ROWS: usize = 1024;
const MAX_GROUP_TILES: usize = 1 << 19;

/// Of `write_rows`: blocks per multiprocessor before a warp takes several tiles, and the most tiles that a
/// warp takes if all rows are written.
const WRITE_BLOCKS_PER_SM: usize = 4;
const MAX_WRITE_TILES_PER_WARP: usize = 8;

/// Of `verify_survey`: the tiles that the resident blocks of a multiprocessor hold at once with one tile per
/// warp.
const VERIFY_TILES_PER_SM: usize = 40;

/// The fewest threads of a block of `judge_drafts`, unless the device wants fewer for a row.
const MIN_JUDGE_THREADS: usize = 128;

/// How a call is divided and surveyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The number of rows in a group of launches.
    pub rows: usize,
    pub tiles: usize,
    /// The features that the kernels support.
    pub needs: StepFeatures,
    /// The survey of rows that several outputs read; `None` if each output surveys its own.
    pub shared: Option<Survey>,
}

/// Plans a call with `outputs` outputs that read `logits_rows` rows. `indexed`: outputs name the rows that
/// they read.
pub(crate) fn plan(
    limits: &DeviceLimits,
    (logits_rows, tiles): (usize, usize),
    (kind, dtype): (Kind, Dtype),
    (outputs, indexed): (usize, bool),
    needs: StepFeatures,
) -> Plan {
    let most = (MAX_GROUP_TILES / tiles).clamp(1, MAX_GROUP_ROWS);
    let shares =
        indexed && logits_rows <= most && survey::surveys_shared_rows(limits, outputs, logits_rows, tiles);
    let shared = shares.then(|| {
        let needs = StepFeatures { sums: needs.sums, ..StepFeatures::SIMPLE };
        survey::survey(limits, (logits_rows, tiles), (kind, dtype), needs)
    });
    let rows = outputs.min(most);
    let scores = kind == Kind::Logits && !shares && survey::scores_in_survey(limits, rows, tiles);
    let needs = if scores { needs } else { needs.union(StepFeatures::SIMPLE) };
    Plan { rows, tiles, needs, shared }
}

/// Returns the launch of `params_from_columns`, which lets the survey begin once it has waited itself.
pub(crate) fn params_from_columns(outputs: usize) -> Launch<ParamColumns> {
    let grid = Grid::new((outputs as u32).div_ceil(COLUMNS_THREADS), COLUMNS_THREADS);
    Launch::dependent(PARAMS_FROM_COLUMNS.kernel(), grid)
}

/// Returns the launches of `select_tokens`, which lets the survey begin once it has waited itself, and of
/// `write_selected`.
pub(crate) fn selected_tokens(rows: usize) -> [Launch<SelectedTokens>; 2] {
    let grid = Grid::new((rows as u32).div_ceil(SELECTED_THREADS), SELECTED_THREADS);
    [Launch::dependent(SELECT_TOKENS.kernel(), grid), Launch::new(WRITE_SELECTED.kernel(), grid)]
}

/// Returns the launch of `given_logprobs`: a block for each row, which keeps sums of tiles.
pub(crate) fn given_logprobs(rows: usize, tiles: u32, dtype: Dtype) -> Launch<GivenArgs> {
    let grid = given_rows(rows, tiles).with_dynamic_smem((tiles * GIVEN_TILE_BYTES).next_multiple_of(16));
    Launch::new(GIVEN_LOGPROBS.of(Kind::Logits, dtype), grid)
}

/// Returns the launch of `given_gradient`: a block for each row.
pub(crate) fn given_gradient(rows: usize, tiles: u32, dtype: Dtype) -> Launch<GivenArgs> {
    Launch::new(GIVEN_GRADIENT.of(Kind::Logits, dtype), given_rows(rows, tiles))
}

fn given_rows(rows: usize, tiles: u32) -> Grid {
    Grid::new(rows as u32, (tiles * WARP as u32).min(GIVEN_THREADS))
}

/// Returns the blocks of `write_rows`. `prefilled`: whether the survey has pre-filled the rows.
///
/// `find_cut` has written most rows that are pre-filled. So there are no more blocks than run at once, and
/// none has to wait only to see that its row is written.
pub(crate) fn write_rows(limits: &DeviceLimits, rows: usize, tiles: usize, prefilled: bool) -> TileBlocks {
    let blocks = limits.multiprocessors * WRITE_BLOCKS_PER_SM;
    let tiles_per_warp = if prefilled {
        tiles.div_ceil((blocks / rows).max(1) * WRITE_ROWS_WARPS)
    } else {
        (rows * tiles).div_ceil(blocks * WRITE_ROWS_WARPS).clamp(1, MAX_WRITE_TILES_PER_WARP)
    };
    TileBlocks::new(tiles, WRITE_ROWS_WARPS, tiles_per_warp)
}

/// Returns the blocks of `verify_survey`: a warp takes one tile while the device holds all tiles at once.
pub(crate) fn verify_survey(limits: &DeviceLimits, chains: usize, tiles: usize) -> TileBlocks {
    let at_once = limits.multiprocessors * VERIFY_TILES_PER_SM;
    let tiles_per_warp = (chains * tiles).div_ceil(at_once).clamp(1, MAX_TILES_PER_WARP);
    TileBlocks::new(tiles, SURVEY_WARPS, tiles_per_warp)
}

/// Returns the grid of `judge_drafts`, and of `judge_requests`: the blocks of a cluster judge a tree, with a
/// warp for each tile of a short row. There are as many as the device runs at once, and at most one for each
/// of its warps' tiles; one if the rows' records are all that is read of most tiles.
pub(crate) fn judge_drafts(limits: &DeviceLimits, trees: usize, tiles: usize, reads_rows: bool) -> Grid {
    let most = limits.threads_per_row.min(JUDGE_DRAFTS_THREADS as usize);
    let threads = (tiles * WARP).clamp(MIN_JUDGE_THREADS.min(most), most);
    let most = if reads_rows { tiles.div_ceil(threads / WARP).min(MAX_CLUSTER_BLOCKS) } else { 1 };
    let blocks = (2..=most).rev().find(|blocks| trees <= limits.clusters[blocks - 1]).unwrap_or(1);
    let grid = Grid::new((trees * blocks) as u32, threads as u32);
    if blocks > 1 { grid.clustered(blocks as u32, 0) } else { grid }
}

/// Returns the launch of `judge_requests` for the drafts of `requests` requests. By rows of logits the kernel
/// before is their survey.
pub(crate) fn judge_requests(
    limits: &DeviceLimits,
    requests: usize,
    argument: &JudgeRequests,
) -> Launch<JudgeRequests> {
    let by_logits = argument.target != judge_targets::PROBABILITIES;
    let reads_rows = !by_logits || argument.draft_probs != 0;
    let grid = judge_drafts(limits, requests, argument.drafts.step.tiles as usize, reads_rows);
    Launch::new(JUDGE_REQUESTS.kernel(), grid).dependent_if(by_logits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::step_features::Variant;

    const H200: DeviceLimits = DeviceLimits::H200;
    const F32: (Kind, Dtype) = (Kind::Logits, Dtype::F32);
    /// The tiles of 151936 tokens.
    const TILES: usize = 594;

    #[test]
    fn warps_of_verify_take_one_tile_while_all_are_there_at_once() {
        let per_warp = |chains| verify_survey(&H200, chains, TILES).tiles_per_block / SURVEY_WARPS;
        assert_eq!([1, 8, 9, 17, 18, 26, 27, 128].map(per_warp), [1, 1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn warps_that_write_take_more_tiles_the_more_there_are() {
        // 132 * 4 * 8 = 4224 tiles are one per warp.
        let written = |rows| write_rows(&H200, rows, TILES, false).tiles_per_block / WRITE_ROWS_WARPS;
        assert_eq!([1, 7, 8, 14, 15, 49, 50, 512].map(written), [1, 1, 2, 2, 3, 7, 8, 8]);
        // 528 blocks run at once.
        let blocks = |rows| write_rows(&H200, rows, TILES, true).blocks_per_row;
        assert_eq!([1, 7, 8, 264, 265, 528, 529, 2048].map(blocks), [75, 75, 38, 2, 1, 1, 1, 1]);
    }

    #[test]
    fn the_blocks_of_a_cluster_judge_a_tree_together_while_all_clusters_fit() {
        let of = |trees, tiles| {
            let Grid { blocks, threads, cluster, .. } = judge_drafts(&H200, trees, tiles, true);
            assert_eq!(blocks as usize, trees * cluster.max(1) as usize);
            (cluster, threads)
        };
        assert_eq!(
            [1, 7, 8, 15, 16, 30, 32, 44, 66, 67, 512].map(|trees| of(trees, TILES).0),
            [16, 16, 15, 8, 7, 4, 3, 3, 2, 0, 0]
        );
        // A block takes 16 tiles at once.
        assert_eq!(
            [1, 4, 16, 17, 33, 300].map(|tiles| of(1, tiles)),
            [(0, 128), (0, 128), (0, 512), (2, 512), (3, 512), (16, 512)]
        );
    }

    #[test]
    fn groups_are_bounded_by_rows_and_by_tiles() {
        let rows = |outputs, tiles| {
            plan(&H200, (outputs, tiles), F32, (outputs, false), StepFeatures::EVERYTHING).rows
        };
        assert_eq!([1023, 1024, 1025].map(|outputs| rows(outputs, 1)), [1023, 1024, 1024]);
        assert_eq!([882, 883].map(|outputs| rows(outputs, TILES)), [882, 882]);
        assert_eq!([1, 128, 129].map(|outputs| params_from_columns(outputs).grid.blocks), [1, 1, 2]);
    }

    #[test]
    fn a_call_shares_surveys_or_scores_in_them() {
        let of = |kind, logits_rows, outputs, indexed| {
            let plan =
                plan(&H200, (logits_rows, TILES), (kind, Dtype::F32), (outputs, indexed), StepFeatures::NONE);
            (plan.shared.is_some(), plan.needs.variant)
        };
        assert_eq!(of(Kind::Logits, 5, 5, false), (false, Variant::SurveyDraw));
        assert_eq!(of(Kind::Logits, 6, 6, false), (false, Variant::Simple));
        assert_eq!(of(Kind::Probabilities, 3, 3, false), (false, Variant::Simple));
        assert_eq!(of(Kind::Logits, 1, 29, true), (false, Variant::Simple));
        assert_eq!(of(Kind::Logits, 1, 30, true), (true, Variant::Simple));
        assert_eq!(of(Kind::Logits, 882, 2_000, true), (true, Variant::Simple));
        assert_eq!(of(Kind::Logits, 883, 2_000, true), (false, Variant::Simple));
    }
}
