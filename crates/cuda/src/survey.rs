//! The survey: the launches of `survey.cu`, and how many tiles a warp takes.

use gumball_spec::{Kind, TILE};

use crate::abi;
use crate::error::Result;
use crate::kernel_table::{ByDtype, ByRows, by_dtype, by_rows};
use crate::rows::Dtype;
use crate::runtime::{Grid, Kernel, Runtime};
use crate::variant::{Edits, StepFeatures};

/// For few rows and for many; first those without edits, then with them; first those that make no sums.
const SURVEYS: [[[ByRows; 2]; 2]; 2] = [
    [
        [by_rows!("survey_", "_few"), by_rows!("survey_sums_", "_few")],
        [by_rows!("survey_edited_", "_few"), by_rows!("survey_edited_sums_", "_few")],
    ],
    [
        [by_rows!("survey_", "_many"), by_rows!("survey_sums_", "_many")],
        [by_rows!("survey_edited_", "_many"), by_rows!("survey_edited_sums_", "_many")],
    ],
];

/// Under edits, for rows that are neither few nor many.
const OF_SOME_ROWS: [ByRows; 2] =
    [by_rows!("survey_edited_", "_some"), by_rows!("survey_edited_sums_", "_some")];

/// Of few rows that ask for nothing but a race.
const RACED: ByDtype = by_dtype!("survey_draw_", "");

const ARRIVE: Kernel = Kernel::named("records_from_shared_rows");

/// A survey as it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    pub kernel: Kernel,
    /// How many threads a block has.
    pub threads: u32,
    /// Into how many blocks a row is cut.
    pub blocks_per_row: u32,
}

/// How a block is made: its warps, and how many tiles each of them takes.
#[derive(Clone, Copy, Debug)]
struct Block {
    warps: usize,
    tiles: usize,
}

/// Where rows are few, and where they are many, first without edits, then with them.
const OF_FEW: Block = Block { warps: 8, tiles: 1 };
const OF_MANY: [Block; 2] = [Block { warps: 8, tiles: 4 }, Block { warps: 4, tiles: 8 }];

/// Between these, under edits: in one round.
const OF_SOME: Block = Block { warps: 4, tiles: 4 };

/// How many tiles a multiprocessor takes at once in such blocks. Where there are no more, a second round would leave
/// multiprocessors idle.
const TILES_OF_SOME: usize = 160;

/// How many tiles a multiprocessor has at most where a warp takes one: as many as its blocks take at once, without edits
/// and sums and with some. Above it warps take several, so that few of them draw.
const TILES_OF_FEW: [usize; 2] = [48, 40];

/// How many tiles a multiprocessor has at most where each token runs while the logits are read.
const TILES_OF_RACED: usize = 16;

/// Returns whether the survey of rows that ask for nothing but a race runs it too, as far as it can: where tiles are so few that
/// little else is done while their logits come.
pub(crate) fn is_raced(multiprocessors: u32, rows: usize, vocab: usize) -> bool {
    rows * vocab.div_ceil(TILE) <= multiprocessors as usize * TILES_OF_RACED
}

/// Returns that survey.
pub(crate) fn raced(vocab: usize, dtype: Dtype) -> Survey {
    Survey {
        kernel: RACED.of(dtype),
        threads: 32 * OF_FEW.warps as u32,
        blocks_per_row: vocab.div_ceil(TILE).div_ceil(OF_FEW.warps) as u32,
    }
}

/// Returns the survey that a step takes: a pure function of what its rows need, the shape and the device.
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
    let kernels = SURVEYS[usize::from(many)][usize::from(edited)];
    let (kernels, block) = match (many, some) {
        (_, true) => (OF_SOME_ROWS, OF_SOME),
        (true, false) => (kernels, OF_MANY[usize::from(edited)]),
        (false, false) => (kernels, OF_FEW),
    };
    Survey {
        kernel: kernels[usize::from(needs.sums)].of(kind, dtype),
        threads: 32 * block.warps as u32,
        blocks_per_row: tiles.div_ceil(block.warps * block.tiles) as u32,
    }
}

/// How many tiles there must be to spare for each multiprocessor, before a kernel of its own pays.
const SPARED_TILES: usize = 128;

/// Returns whether to survey each line once instead of each row that reads one: where that spares more reading than
/// the kernel costs that gives the rows their arrivals.
pub(crate) fn by_line(multiprocessors: u32, rows: usize, lines: usize, vocab: usize) -> bool {
    rows.saturating_sub(lines) * vocab.div_ceil(TILE) >= multiprocessors as usize * SPARED_TILES
}

/// Returns what gives rows the arrivals that the records of their lines lack.
pub(crate) fn arrive(vocab: usize) -> Survey {
    let threads = 256;
    Survey {
        kernel: ARRIVE,
        threads: threads as u32,
        blocks_per_row: vocab.div_ceil(TILE).div_ceil(threads) as u32,
    }
}

/// Enqueues the survey of a step.
///
/// # Safety
/// As for [`Runtime::launch`], `step` being cut as the survey says.
pub(crate) unsafe fn enqueue(machine: &dyn Runtime, survey: Survey, step: &abi::Step) -> Result<()> {
    let grid = Grid::new(step.rows * survey.blocks_per_row, survey.threads);
    // SAFETY: the grid is survey.cu's; for what `step` points to, the caller vouches; its layout
    // is held to the kernels' in tests/abi.rs.
    unsafe { machine.launch(survey.kernel, grid, bytemuck::bytes_of(step)) }
}

/// Enqueues the same so that it may begin while the requests of its rows are made, by the kernel launched last.
///
/// # Safety
/// The same.
pub(crate) unsafe fn enqueue_early(machine: &dyn Runtime, survey: Survey, step: &abi::Step) -> Result<()> {
    let grid = Grid::new(step.rows * survey.blocks_per_row, survey.threads);
    // SAFETY: as above; each block of survey.cu that has no edits, and of survey_draw.cu, waits before it reads what requests are made of.
    unsafe { machine.launch_dependent(survey.kernel, grid, bytemuck::bytes_of(step)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: (Kind, Dtype) = (Kind::Logits, Dtype::F32);

    /// Returns how many tiles a block takes on a device of 132 multiprocessors.
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
        // Measured.
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
        assert!(is_raced(132, 3, 151_936) && is_raced(132, 8, 32_768));
        assert!(!is_raced(132, 4, 151_936) && !is_raced(132, 32, 32_768));
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
