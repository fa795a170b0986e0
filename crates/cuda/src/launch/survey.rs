//! The survey: chooses and launches its kernels, and decides how many tiles each warp takes.

use gumball_spec::{Kind, TILE};

use crate::abi::dtype::Dtype;
use crate::abi::kernels::{
    Kernel, RECORDS_FROM_SHARED_ROWS, SURVEY, SURVEY_DRAW, SURVEY_EDITED, SURVEY_EDITED_SUMS, SURVEY_SUMS,
    Size,
};
use crate::abi::{
    self, EDITED_FEW_TILES, EDITED_FEW_WARPS, EDITED_MANY_TILES, EDITED_MANY_WARPS, EDITED_SOME_TILES,
    EDITED_SOME_WARPS, SHARED_ROWS_THREADS, SURVEY_BLOCK_WARPS, SURVEY_DRAW_WARPS, SURVEY_FEW_TILES,
    SURVEY_MANY_TILES,
};
use crate::driver::runtime::{Grid, Runtime};
use crate::error::Result;
use crate::requests::variant::{Edits, StepFeatures};

/// A survey's launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    pub kernel: Kernel,
    /// Threads per block.
    pub threads: u32,
    /// Blocks per row.
    pub blocks_per_row: u32,
}

/// The work of a block: its number of warps, and the number of tiles that each warp takes.
#[derive(Clone, Copy, Debug)]
struct Block {
    warps: usize,
    tiles: usize,
}

impl Block {
    /// Returns the block of a kernel that surveys rows with or without edits.
    fn of(edited: bool, size: Size) -> Self {
        let (warps, tiles) = match (edited, size) {
            (false, Size::Few) => (SURVEY_BLOCK_WARPS, SURVEY_FEW_TILES),
            (false, _) => (SURVEY_BLOCK_WARPS, SURVEY_MANY_TILES),
            (true, Size::Few) => (EDITED_FEW_WARPS, EDITED_FEW_TILES),
            (true, Size::Some) => (EDITED_SOME_WARPS, EDITED_SOME_TILES),
            (true, Size::Many) => (EDITED_MANY_WARPS, EDITED_MANY_TILES),
        };
        Self { warps, tiles }
    }
}

/// The tiles that an SM holds at once in blocks for some tiles. Up to this number, a second wave would leave
/// SMs idle.
const TILES_OF_SOME: usize = 160;

/// The most tiles per SM at which a warp takes one tile: the tiles that an SM's resident blocks hold at once.
/// Index: without edits and sums, or with either. Above it, a warp takes several tiles, so that fewer warps
/// draw arrivals.
const TILES_OF_FEW: [usize; 2] = [48, 40];

/// The most tiles per SM at which the survey scores every token while logits load.
const TILES_OF_SURVEY_DRAW: usize = 16;

/// Returns whether the survey of rows that need only an unfiltered draw also scores their tokens. It does if
/// tiles are so few that SMs would otherwise idle while logits load.
pub(crate) fn draws_in_survey(multiprocessors: u32, rows: usize, vocab: usize) -> bool {
    rows * vocab.div_ceil(TILE) <= multiprocessors as usize * TILES_OF_SURVEY_DRAW
}

/// Returns the survey that also scores every token.
pub(crate) fn survey_draw(vocab: usize, dtype: Dtype) -> Survey {
    Survey {
        kernel: SURVEY_DRAW.of(Kind::Logits, dtype),
        threads: 32 * SURVEY_DRAW_WARPS as u32,
        blocks_per_row: vocab.div_ceil(TILE).div_ceil(SURVEY_DRAW_WARPS) as u32,
    }
}

/// Chooses a step's survey: a pure function of the features that its rows need, the shape and the device.
pub(crate) fn survey(
    multiprocessors: u32,
    rows: usize,
    vocab: usize,
    (kind, dtype): (Kind, Dtype),
    needs: StepFeatures,
) -> Survey {
    let tiles = vocab.div_ceil(TILE);
    let edited = needs.over > Edits::None;
    let many = rows * tiles > multiprocessors as usize * TILES_OF_FEW[usize::from(edited || needs.sums)];
    let some = many && edited && rows * tiles <= multiprocessors as usize * TILES_OF_SOME;
    let size = match (many, some) {
        (_, true) => Size::Some,
        (true, false) => Size::Many,
        (false, false) => Size::Few,
    };
    let block = Block::of(edited, size);
    let kernels = match (edited, needs.sums) {
        (false, false) => SURVEY,
        (false, true) => SURVEY_SUMS,
        (true, false) => SURVEY_EDITED,
        (true, true) => SURVEY_EDITED_SUMS,
    };
    Survey {
        kernel: kernels.sized(size, kind, dtype),
        threads: 32 * block.warps as u32,
        blocks_per_row: tiles.div_ceil(block.warps * block.tiles) as u32,
    }
}

/// The tiles per SM whose survey must be saved before a kernel that only makes records from shared rows pays
/// off.
const SPARED_TILES: usize = 128;

/// Returns whether to survey each row of logits once, rather than once for each row of the step that reads
/// it. That pays if it saves more reads than the kernel that gives the rows their arrivals costs.
pub(crate) fn by_line(multiprocessors: u32, rows: usize, lines: usize, vocab: usize) -> bool {
    rows.saturating_sub(lines) * vocab.div_ceil(TILE) >= multiprocessors as usize * SPARED_TILES
}

/// Returns the launch of the kernel that makes rows' records from those of shared rows, and adds arrivals.
pub(crate) fn arrive(vocab: usize) -> Survey {
    Survey {
        kernel: RECORDS_FROM_SHARED_ROWS.kernel(),
        threads: SHARED_ROWS_THREADS as u32,
        blocks_per_row: vocab.div_ceil(TILE).div_ceil(SHARED_ROWS_THREADS) as u32,
    }
}

/// Enqueues a step's survey.
///
/// # Safety
/// As for [`Runtime::launch`]. `step` must have the survey's number of blocks per row.
pub(crate) unsafe fn enqueue(runtime: &dyn Runtime, survey: Survey, step: &abi::Step) -> Result<()> {
    let grid = Grid::new(step.rows * survey.blocks_per_row, survey.threads);
    // SAFETY: the grid is the one that survey.cu expects. The caller guarantees what `step` points to.
    unsafe { runtime.launch(survey.kernel, grid, bytemuck::bytes_of(step)) }
}

/// Enqueues a step's survey as a dependent launch: it may begin while the kernel launched last still makes
/// the requests of its rows.
///
/// # Safety
/// As for [`enqueue`].
pub(crate) unsafe fn enqueue_early(runtime: &dyn Runtime, survey: Survey, step: &abi::Step) -> Result<()> {
    let grid = Grid::new(step.rows * survey.blocks_per_row, survey.threads);
    // SAFETY: the caller guarantees what [`enqueue`] requires. Each block of survey_draw.cu, and of survey.cu
    // without edits, waits before it reads requests that the last kernel makes.
    unsafe { runtime.launch_dependent(survey.kernel, grid, bytemuck::bytes_of(step)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: (Kind, Dtype) = (Kind::Logits, Dtype::F32);

    /// Returns the number of tiles per block on a device of 132 SMs.
    fn tiles_per_block(rows: usize, vocab: usize) -> usize {
        let survey = survey(132, rows, vocab, F32, StepFeatures::NONE);
        vocab.div_ceil(TILE).div_ceil(survey.blocks_per_row as usize)
    }

    #[test]
    fn one_row_is_spread_and_many_are_not() {
        for vocab in [1, 255, 256, 257, 1024, 1025, 151_936, 1 << 20] {
            assert!(tiles_per_block(1, vocab) <= 8);
            assert!(tiles_per_block(100_000, vocab) <= 32);
        }
        // These counts of rows are measured.
        assert_eq!(tiles_per_block(10, 151_936), 8);
        assert_eq!(tiles_per_block(11, 151_936), 32);
    }

    #[test]
    fn rows_with_edits_take_a_second_round_where_blocks_wait_for_room() {
        let needs = StepFeatures { over: Edits::PerToken, ..StepFeatures::NONE };
        let blocks = |rows| survey(132, rows, 151_936, F32, needs).blocks_per_row;
        assert_eq!([1, 8, 32, 35, 36, 512].map(blocks), [75, 75, 38, 38, 19, 19]);
    }

    #[test]
    fn few_rows_are_raced() {
        assert!(draws_in_survey(132, 3, 151_936) && draws_in_survey(132, 8, 32_768));
        assert!(!draws_in_survey(132, 4, 151_936) && !draws_in_survey(132, 32, 32_768));
    }

    #[test]
    fn lines_are_surveyed_once_where_many_rows_read_few() {
        assert!(by_line(132, 64, 1, 151_936));
        assert!(by_line(132, 512, 128, 151_936));
        assert!(!by_line(132, 4, 1, 151_936));
        assert!(!by_line(132, 64, 64, 151_936));
        assert!(!by_line(132, 64, 1_000, 151_936));
    }
}
