//! How many blocks finish a row, of how many threads.

use gumball_spec::Kind;

use super::WARP;
use crate::abi::dtype::Dtype;
use crate::abi::{
    FINISH_CANDIDATES_LOGPROB_THREADS, FINISH_CANDIDATES_THREADS, FINISH_SHARDS_THREADS, MAX_ROW_BLOCKS,
    PACK_KEPT_THREADS, PackKept, ShardStep, Step,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::launch::Launch;
use crate::programs::kernels::{
    COUNT_KEPT, FINISH_CANDIDATES, FINISH_CANDIDATES_KEPT, FINISH_CANDIDATES_LOGPROB, FINISH_EDITED_SHARDS,
    FINISH_GENERAL, FINISH_SHARD_LISTS, FINISH_SHARDS, FINISH_SIMPLE, FINISH_SURVEY_DRAW, PACK_KEPT, Size,
};
use crate::requests::step_features::{StepFeatures, Variant};

/// The threads of a block of many rows, where blocks wait for each other; and its threads in
/// `CandidatesLogprob` and `CandidatesKept`, of which two blocks then fit a multiprocessor's registers.
const THREADS_OF_MANY_ROWS: usize = 256;
const THREADS_OF_MANY_ROWS_WITH_LOGPROB: usize = 320;

/// The least tiles of a row that blocks race together, and the least such blocks: where only two fit, the
/// second one costs other rows 3 %.
const MIN_RACED_TILES: usize = 32;
const MIN_RACE_BLOCKS: usize = 3;

/// Returns the launches of `count_kept` and then `pack_kept`: a block takes a row.
pub(crate) fn pack_kept(rows: usize) -> [Launch<PackKept>; 2] {
    [COUNT_KEPT, PACK_KEPT]
        .map(|family| Launch::new(family.kernel(), Grid::new(rows as u32, PACK_KEPT_THREADS)))
}

/// Returns the launch that finishes surveyed rows of a kind and a type. `is_next`: the kernel before is the
/// survey; otherwise the judgement of drafts lies between them.
pub(crate) fn finish_step(
    limits: &DeviceLimits,
    (kind, dtype): (Kind, Dtype),
    needs: StepFeatures,
    step: &Step,
    is_next: bool,
) -> Launch<Step> {
    let kernels = match needs.variant {
        Variant::SurveyDraw => FINISH_SURVEY_DRAW,
        Variant::Simple => FINISH_SIMPLE,
        Variant::Candidates => FINISH_CANDIDATES,
        Variant::CandidatesLogprob => FINISH_CANDIDATES_LOGPROB,
        Variant::CandidatesKept => FINISH_CANDIDATES_KEPT,
        Variant::General => FINISH_GENERAL,
    };
    let grid = finish(limits, step.rows as usize, step.tiles as usize, needs);
    Launch::new(kernels.of(kind, dtype), grid).dependent_if(is_next)
}

/// Returns the grid of kernels that finish rows: `finish_*`, `find_cut` and `verify_finish`.
///
/// While rows are no more than multiprocessors, all variants but `General` get one thread per tile, because
/// they are bound by latency: at least 256, or `threads_per_row` where warps read a tile each, and at most
/// twice `threads_per_row`. `CandidatesLogprob` and `CandidatesKept` get one more warp, which draws
/// while the others compute logprobs; their blocks have fewer threads, because each needs more registers. The
/// candidate kernels take one block per multiprocessor there, because two on one take longer. Rows are many
/// from two per multiprocessor on; of these two variants, whose larger blocks would have a multiprocessor
/// each and take turns, from 7 / 4 on, or from one on where their rows report logprobs and no nucleus is
/// long. In all other cases a block has `threads_per_row` threads. `Simple` has several blocks for each of
/// few rows.
pub(crate) fn finish(limits: &DeviceLimits, rows: usize, tiles: usize, needs: StepFeatures) -> Grid {
    let DeviceLimits { multiprocessors, threads_per_row, .. } = *limits;
    let with_logprob = matches!(needs.variant, Variant::CandidatesLogprob | Variant::CandidatesKept);
    let reports_logprobs = needs.variant == Variant::CandidatesLogprob && needs.sums && !needs.long_nucleus;
    let (many_rows, threads_of_many_rows) = if with_logprob {
        let many_rows = if reports_logprobs { multiprocessors + 1 } else { multiprocessors * 7 / 4 };
        (many_rows, THREADS_OF_MANY_ROWS_WITH_LOGPROB)
    } else {
        (2 * multiprocessors, THREADS_OF_MANY_ROWS)
    };
    let threads = if needs.variant < Variant::General && rows <= multiprocessors {
        let drawing = if with_logprob { WARP } else { 0 };
        let most = if with_logprob { FINISH_CANDIDATES_LOGPROB_THREADS } else { FINISH_CANDIDATES_THREADS };
        let most = (most as usize).min(2 * threads_per_row);
        let reads_tiles = needs.variant.has_list() || tiles >= MIN_RACED_TILES;
        let least = if reads_tiles { threads_per_row } else { THREADS_OF_MANY_ROWS };
        (tiles.next_multiple_of(WARP) + drawing).clamp(least.min(threads_per_row), most)
    } else if rows >= many_rows {
        threads_per_row.min(threads_of_many_rows)
    } else {
        threads_per_row
    };
    let candidates = needs.variant.has_list();
    let blocks = blocks_per_row(limits, rows, tiles, needs);
    let grid = Grid::new((rows * blocks) as u32, threads as u32);
    if blocks > 1 && needs.variant != Variant::Simple {
        grid.clustered(blocks as u32, 0)
    } else {
        grid.one_block_per_sm(candidates && rows <= multiprocessors)
    }
}

/// Returns the launch that finishes rows of which this rank has a part: one block for each row, with the
/// threads of [`finish`], up to as many as the kernel takes. Not measured. The kernel before is the survey of
/// the part, if there is one; if not, it may still advance the requests, which this one reads before it
/// waits.
pub(crate) fn finish_shards(
    limits: &DeviceLimits,
    (kind, dtype): (Kind, Dtype),
    needs: StepFeatures,
    step: &Step,
) -> Launch<ShardStep> {
    let (rows, tiles) = (step.rows as usize, step.tiles as usize);
    let size = if rows <= limits.multiprocessors { Size::Few } else { Size::Many };
    let kernel = match needs {
        StepFeatures { edits: true, .. } => FINISH_EDITED_SHARDS.sized(size, kind, dtype),
        StepFeatures { variant: Variant::SurveyDraw | Variant::Simple, .. } => FINISH_SHARDS.of(kind, dtype),
        _ => FINISH_SHARD_LISTS.sized(size, kind, dtype),
    };
    let needs = StepFeatures { variant: needs.variant.min(Variant::Candidates), ..StepFeatures::NONE };
    let Grid { threads, .. } = finish(limits, rows, tiles, needs);
    let grid = Grid::new(rows as u32, threads.min(FINISH_SHARDS_THREADS));
    Launch::new(kernel, grid).dependent_if(tiles > 0)
}

/// Returns how many blocks, which form a cluster, read a row that no candidate list decides; of `Simple`, how
/// many blocks, without a cluster, race a row.
///
/// There are as many as the device runs at once, with each block on a multiprocessor of its own, at most one
/// per tile. A row whose cluster has to wait for another one would take twice as long.
fn blocks_per_row(limits: &DeviceLimits, rows: usize, tiles: usize, needs: StepFeatures) -> usize {
    let is_raced = needs.variant == Variant::Simple;
    let is_searched = needs.variant == Variant::General || needs.long_nucleus;
    let fits = |blocks: usize| blocks == 1 || (rows <= limits.clusters[blocks - 1] && blocks <= tiles);
    let mut blocks = if is_searched || (is_raced && tiles >= MIN_RACED_TILES) { MAX_ROW_BLOCKS } else { 1 };
    while !fits(blocks) {
        blocks -= 1;
    }
    if is_raced && blocks < MIN_RACE_BLOCKS { 1 } else { blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: DeviceLimits = DeviceLimits::H200;
    const NUCLEUS: StepFeatures =
        StepFeatures { sums: true, long_nucleus: true, variant: Variant::Candidates, ..StepFeatures::NONE };

    fn threads(rows: usize, tiles: usize, variant: Variant) -> u32 {
        finish(&H200, rows, tiles, StepFeatures { variant, ..StepFeatures::NONE }).threads
    }

    #[test]
    fn a_row_has_a_thread_per_tile_while_rows_are_no_more_than_multiprocessors() {
        let tiles = [1, 256, 257, 594, 1024, 1025, 4096];
        for rows in [1, 132] {
            let simple = tiles.map(|tiles| threads(rows, tiles, Variant::Simple));
            assert_eq!(simple, [256, 512, 512, 608, 1024, 1024, 1024]);
            let logprob = tiles.map(|tiles| threads(rows, tiles, Variant::CandidatesLogprob));
            assert_eq!(logprob, [512, 512, 512, 640, 640, 640, 640]);
            let listed = tiles.map(|tiles| threads(rows, tiles, Variant::Candidates));
            assert_eq!(listed, [512, 512, 512, 608, 1024, 1024, 1024]);
            assert_eq!(threads(rows, 594, Variant::General), 512);
        }
        for variant in Variant::ALL {
            let with_logprob = matches!(variant, Variant::CandidatesLogprob | Variant::CandidatesKept);
            let [some, many] = if with_logprob { [320, 320] } else { [512, 256] };
            let of_rows = [133, 230, 231, 263, 264, 600].map(|rows| threads(rows, 594, variant));
            assert_eq!(of_rows, [512, 512, some, some, many, many]);
        }
        let with_sums = |long_nucleus| {
            let variant = Variant::CandidatesLogprob;
            let needs = StepFeatures { sums: true, long_nucleus, variant, ..StepFeatures::NONE };
            [132, 133, 230, 231].map(|rows| finish(&H200, rows, 594, needs).threads)
        };
        assert_eq!(with_sums(false), [640, 320, 320, 320]);
        assert_eq!(with_sums(true), [640, 512, 512, 320]);
    }

    #[test]
    fn candidate_kernels_have_multiprocessors_of_their_own_while_there_are_enough() {
        for variant in Variant::ALL {
            let candidates = variant.has_list();
            let needs = StepFeatures { variant, ..StepFeatures::NONE };
            let exclusive = |rows| finish(&H200, rows, 594, needs).one_block_per_sm;
            assert_eq!([1, 132, 133].map(exclusive), [candidates, candidates, false]);
        }
    }

    #[test]
    fn blocks_race_few_rows_together() {
        let simple = StepFeatures { variant: Variant::Simple, ..StepFeatures::NONE };
        let blocks = |rows, tiles| finish(&H200, rows, tiles, simple).blocks as usize / rows;
        assert_eq!([1, 15, 16, 30, 44, 45, 512].map(|rows| blocks(rows, 594)), [8, 8, 7, 4, 3, 1, 1]);
        assert_eq!([31, 32].map(|tiles| blocks(1, tiles)), [1, 8]);
    }

    #[test]
    fn blocks_of_a_cluster_search_a_row_together_while_all_clusters_fit() {
        let blocks = |rows, tiles, needs| {
            let Grid { blocks, cluster, .. } = finish(&H200, rows, tiles, needs);
            assert_eq!(blocks as usize, rows * cluster.max(1) as usize);
            cluster
        };
        let general = StepFeatures { variant: Variant::General, ..StepFeatures::NONE };
        for needs in [NUCLEUS, StepFeatures { variant: Variant::CandidatesLogprob, ..NUCLEUS }, general] {
            let by_rows =
                [1, 15, 16, 18, 19, 26, 30, 31, 44, 45, 66, 67, 512].map(|rows| blocks(rows, 594, needs));
            assert_eq!(by_rows, [8, 8, 7, 7, 6, 5, 4, 3, 3, 2, 2, 0, 0]);
            assert_eq!([1, 2, 3, 4, 7, 8, 9].map(|tiles| blocks(1, tiles, needs)), [0, 2, 3, 4, 7, 8, 8]);
        }
        assert_eq!(blocks(1, 594, StepFeatures { long_nucleus: false, ..NUCLEUS }), 0);
        let without_clusters = DeviceLimits { clusters: [0; 16], ..H200 };
        assert_eq!(finish(&without_clusters, 1, 594, NUCLEUS).cluster, 0);
    }
}
