//! Which kernel surveys rows, and how many tiles each of its warps takes; and the kernel that finds the edits
//! which match the end of a row's history, before the survey.

use gumball_spec::Kind;

use super::{TileBlocks, WARP};
use crate::abi::dtype::Dtype;
use crate::abi::{
    EDITED_FEW_TILES, EDITED_FEW_WARPS, EDITED_MANY_TILES, EDITED_MANY_WARPS, EDITED_MEDIUM_TILES,
    EDITED_MEDIUM_WARPS, SHARED_ROWS_THREADS, SURVEY_BLOCK_WARPS, SURVEY_DRAW_WARPS, SURVEY_FEW_TILES,
    SURVEY_MANY_TILES, ShardStep, Step, flags,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::launch::Launch;
use crate::programs::kernels::{
    HISTORY_EDITS, Kernel, RECORDS_FROM_SHARED_ROWS, SURVEY, SURVEY_DRAW, SURVEY_EDITED,
    SURVEY_EDITED_SHARDS, SURVEY_EDITED_SUMS, SURVEY_SHARDS, SURVEY_SUMS, Size,
};
use crate::requests::step_features::{StepFeatures, Variant};

/// A survey's launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    pub kernel: Kernel,
    pub blocks: TileBlocks,
}

impl Survey {
    /// Returns a step with this survey's number of blocks per row, and the launch over its rows.
    ///
    /// `is_early`: it may begin while the kernel launched last still makes the requests of the rows or stamps
    /// their edits. That kernel makes no logits, bitmasks and row indices, and lets this one begin once those
    /// before it are complete.
    pub fn over(&self, step: &Step, is_early: bool) -> (Step, Launch<Step>) {
        let Self { kernel, blocks } = *self;
        let grid = blocks.grid(step.rows as usize);
        let step = step.with_blocks_per_row(blocks.blocks_per_row as u32);
        (step, Launch::new(kernel, grid).dependent_if(is_early))
    }
}

/// The most tiles per multiprocessor at which the survey scores every token: the multiprocessors would
/// otherwise idle while logits load. Three blocks then share one multiprocessor. With a fourth, a step of
/// rows like a model's takes up to 1.05 times as long.
const MAX_SCORED_TILES: usize = 3 * SURVEY_DRAW_WARPS;

/// The most tiles per multiprocessor at which a warp takes one tile: those that the resident blocks hold at
/// once, of rows without edits and sums, and of rows with either. Beyond that a warp takes several tiles, so
/// that fewer warps draw arrivals.
const MAX_FEW_TILES: usize = 48;
const MAX_FEW_TILES_WITH_MORE: usize = 40;

/// The most tiles per multiprocessor, of rows with edits, at which blocks of `Size::Medium` all run in one
/// wave: those that the resident blocks hold at once. A second wave would leave multiprocessors idle.
const MAX_MEDIUM_TILES: usize = 160;

/// The reads of tiles per multiprocessor that must be saved before one survey of shared rows, followed by
/// `records_from_shared_rows`, is faster than a survey of every row.
const MIN_SAVED_TILES: usize = 128;

/// Returns the launch of `history_edits`, before the survey: a block handles a row. `drafted`: the kernel
/// before makes the requests of the rows.
pub(crate) fn history_edits(limits: &DeviceLimits, rows: usize, drafted: bool) -> Launch<Step> {
    let grid = Grid::new(rows as u32, limits.threads_per_row as u32);
    Launch::new(HISTORY_EDITS.kernel(), grid).dependent_if(drafted)
}

/// Returns whether the survey of rows that need only an unfiltered draw also scores their tokens.
pub(crate) fn scores_in_survey(limits: &DeviceLimits, rows: usize, tiles: usize) -> bool {
    rows * tiles <= limits.multiprocessors * MAX_SCORED_TILES
}

/// Returns the survey of rows. With [`Variant::SurveyDraw`] it also scores every token; only choose that
/// where [`scores_in_survey`] returns true.
///
/// Eight tiles per warp without edits, or blocks of sixteen warps, are 2 to 20 % slower, or registers spill.
pub(crate) fn survey(
    limits: &DeviceLimits,
    (rows, tiles): (usize, usize),
    (kind, dtype): (Kind, Dtype),
    needs: StepFeatures,
) -> Survey {
    if needs.variant == Variant::SurveyDraw {
        let blocks = TileBlocks::new(tiles, SURVEY_DRAW_WARPS, 1);
        return Survey { kernel: SURVEY_DRAW.of(kind, dtype), blocks };
    }
    let kernels = match (needs.edits, needs.sums) {
        (false, false) => SURVEY,
        (false, true) => SURVEY_SUMS,
        (true, false) => SURVEY_EDITED,
        (true, true) => SURVEY_EDITED_SUMS,
    };
    let (size, blocks) = blocks(limits, (rows, tiles), needs.edits, needs.sums);
    Survey { kernel: kernels.sized(size, kind, dtype), blocks }
}

/// Returns the survey of this rank's parts of rows, by the kernel that surveys whole rows without sums. It
/// may start before the kernel in front of it ends if that is `begin_drafts`, of `drafted` rows, or
/// `history_edits`.
pub(crate) fn survey_shards(
    limits: &DeviceLimits,
    (kind, dtype): (Kind, Dtype),
    needs: StepFeatures,
    shards: &ShardStep,
    drafted: bool,
) -> (ShardStep, Launch<ShardStep>) {
    let (rows, tiles) = (shards.step.rows as usize, shards.step.tiles as usize);
    let kernels = if needs.edits { SURVEY_EDITED_SHARDS } else { SURVEY_SHARDS };
    let (size, blocks) = blocks(limits, (rows, tiles), needs.edits, false);
    let step = shards.step.with_blocks_per_row(blocks.blocks_per_row as u32);
    // A row after drafts has its own number as a slot, and begin_drafts gives padding parameters too, but no
    // lists.
    let known_slots = if drafted && !needs.edits { flags::SLOT_IS_ROW } else { 0 };
    let step = Step { flags: step.flags | known_slots, ..step };
    let launch = Launch::new(kernels.sized(size, kind, dtype), blocks.grid(rows));
    (ShardStep { step, ..*shards }, launch.dependent_if(drafted || needs.history))
}

/// Returns how many tiles the warps of a survey take, and its blocks.
fn blocks(
    limits: &DeviceLimits,
    (rows, tiles): (usize, usize),
    edited: bool,
    sums: bool,
) -> (Size, TileBlocks) {
    let max_few_tiles = if edited || sums { MAX_FEW_TILES_WITH_MORE } else { MAX_FEW_TILES };
    let tiles_per_sm = (rows * tiles).div_ceil(limits.multiprocessors);
    let size = match tiles_per_sm {
        few if few <= max_few_tiles => Size::Few,
        medium if edited && medium <= MAX_MEDIUM_TILES => Size::Medium,
        _ => Size::Many,
    };
    let (warps, tiles_per_warp) = match (edited, size) {
        (false, Size::Few) => (SURVEY_BLOCK_WARPS, SURVEY_FEW_TILES),
        (false, _) => (SURVEY_BLOCK_WARPS, SURVEY_MANY_TILES),
        (true, Size::Few) => (EDITED_FEW_WARPS, EDITED_FEW_TILES),
        (true, Size::Medium) => (EDITED_MEDIUM_WARPS, EDITED_MEDIUM_TILES),
        (true, Size::Many) => (EDITED_MANY_WARPS, EDITED_MANY_TILES),
    };
    (size, TileBlocks::new(tiles, warps, tiles_per_warp))
}

/// Returns whether to survey each of `logits_rows` rows of logits once, rather than once for each of the
/// `rows` rows of a step that read them. That pays if it saves more reads than `records_from_shared_rows`
/// costs.
pub(crate) fn surveys_shared_rows(
    limits: &DeviceLimits,
    rows: usize,
    logits_rows: usize,
    tiles: usize,
) -> bool {
    rows.saturating_sub(logits_rows) * tiles >= limits.multiprocessors * MIN_SAVED_TILES
}

/// Returns the launch of `records_from_shared_rows`.
pub(crate) fn records_from_shared_rows(tiles: usize) -> Survey {
    let blocks = TileBlocks::new(tiles, SHARED_ROWS_THREADS / WARP, WARP);
    Survey { kernel: RECORDS_FROM_SHARED_ROWS.kernel(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: DeviceLimits = DeviceLimits::H200;
    /// The tiles of 151936 and of 32768 tokens.
    const TILES: usize = 594;
    const TILES_OF_32K: usize = 128;

    const F32: (Kind, Dtype) = (Kind::Logits, Dtype::F32);

    fn of(rows: usize, tiles: usize, edits: bool, sums: bool) -> (&'static str, usize) {
        let needs = StepFeatures { edits, sums, ..StepFeatures::SIMPLE };
        let Survey { kernel, blocks } = survey(&H200, (rows, tiles), F32, needs);
        (kernel.name(), blocks.tiles_per_block)
    }

    #[test]
    fn a_warp_takes_one_tile_while_multiprocessors_hold_all_tiles_at_once() {
        let plain = |rows, tiles| of(rows, tiles, false, false);
        assert_eq!(plain(10, TILES), ("survey_f32_few", 8));
        assert_eq!(plain(11, TILES), ("survey_f32_many", 32));
        assert_eq!(of(8, TILES, false, true), ("survey_sums_f32_few", 8));
        assert_eq!(of(9, TILES, false, true), ("survey_sums_f32_many", 32));
        // 132 * 48 = 6336 tiles.
        assert_eq!([6336, 6337].map(|rows| plain(rows, 1).1), [8, 32]);
        for tiles in [1, 2, 4, 5, TILES, 4096] {
            assert!(plain(1, tiles).1 <= 8 && plain(100_000, tiles).1 <= 32);
        }
    }

    #[test]
    fn with_edits_blocks_run_in_one_wave_while_they_can() {
        let tiles = |edits, sums| [8, 9, 35, 36, 512].map(|rows| of(rows, TILES, edits, sums).1);
        assert_eq!(tiles(true, false), [8, 16, 16, 32, 32]);
        assert_eq!(tiles(true, true), [8, 16, 16, 32, 32]);
        assert_eq!(of(9, TILES, true, true).0, "survey_edited_sums_f32_medium");
    }

    #[test]
    fn tokens_are_scored_in_the_survey_of_few_rows() {
        assert!(scores_in_survey(&H200, 5, TILES) && scores_in_survey(&H200, 24, TILES_OF_32K));
        assert!(!scores_in_survey(&H200, 6, TILES) && !scores_in_survey(&H200, 25, TILES_OF_32K));
        let draw = survey(&H200, (3, TILES), F32, StepFeatures::NONE);
        assert_eq!((draw.kernel.name(), draw.blocks.blocks_per_row), ("survey_draw_f32", 75));
    }

    #[test]
    fn shared_rows_are_surveyed_once_where_that_saves_enough_reads() {
        let pays = |rows, logits_rows| surveys_shared_rows(&H200, rows, logits_rows, TILES);
        // 28 rows of 594 tiles are 126 tiles per multiprocessor, 29 are 130.
        assert!(!pays(29, 1) && pays(30, 1) && pays(512, 128));
        assert!(!pays(64, 64) && !pays(64, 1_000));
        assert_eq!(
            [1, 256, 257].map(|tiles| records_from_shared_rows(tiles).blocks.blocks_per_row),
            [1, 1, 2]
        );
    }
}
