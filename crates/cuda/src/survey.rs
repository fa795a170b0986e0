//! The survey: the launches of `sweep.cu` and `survey.cu`, and how many tiles a warp takes.

use gumball_spec::TILE;

use crate::abi;
use crate::error::Result;
use crate::machine::{ByDtype, Grid, Kernel, Machine, by_dtype};
use crate::program::Program;
use crate::rows::Dtype;
use crate::variant::{Needs, Variant};

/// The kernels for rows that may have edits, or share lines.
pub(crate) const PROGRAM: Program = Program {
    name: "survey",
    source: include_str!("survey.cu"),
    kernels: &[
        "survey_edited_f32_1",
        "survey_edited_f32_2",
        "survey_edited_f32_4",
        "survey_edited_bf16_1",
        "survey_edited_bf16_2",
        "survey_edited_bf16_4",
        "survey_edited_f16_1",
        "survey_edited_f16_2",
        "survey_edited_f16_4",
        "arrive_f32",
        "arrive_bf16",
        "arrive_f16",
    ],
};

/// The kernels for rows without edits.
pub(crate) const SWEEP: Program = Program {
    name: "sweep",
    source: include_str!("sweep.cu"),
    kernels: &[
        "sweep_f32_few",
        "sweep_f32_many",
        "sweep_sums_f32_few",
        "sweep_sums_f32_many",
        "sweep_bf16_few",
        "sweep_bf16_many",
        "sweep_sums_bf16_few",
        "sweep_sums_bf16_many",
        "sweep_f16_few",
        "sweep_f16_many",
        "sweep_sums_f16_few",
        "sweep_sums_f16_many",
    ],
};

const SWEEP_FEW: [ByDtype; 2] = [by_dtype!("sweep_", "_few"), by_dtype!("sweep_sums_", "_few")];
const SWEEP_MANY: [ByDtype; 2] = [by_dtype!("sweep_", "_many"), by_dtype!("sweep_sums_", "_many")];
/// By half the number of tiles a warp takes.
const EDITED: [ByDtype; 3] =
    [by_dtype!("survey_edited_", "_1"), by_dtype!("survey_edited_", "_2"), by_dtype!("survey_edited_", "_4")];
const ARRIVE: ByDtype = by_dtype!("arrive_", "");

/// A survey as it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    pub kernel: Kernel,
    /// How many threads a block has.
    pub threads: u32,
    /// Into how many blocks a row is cut.
    pub blocks_per_row: u32,
}

/// How the survey is cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuning {
    warps: usize,
    tiles_per_warp: usize,
}

/// How many warps of one tile a multiprocessor takes at once. Above it warps take more, so that few of them draw.
const WARPS_AT_ONCE: usize = 64;

/// Returns how rows without edits are swept.
fn sweep_tuning(multiprocessors: u32, rows: usize, vocab: usize) -> Tuning {
    let few = rows * vocab.div_ceil(TILE) <= multiprocessors as usize * WARPS_AT_ONCE;
    Tuning { warps: 8, tiles_per_warp: if few { 1 } else { 4 } }
}

/// Below this many warps a multiprocessor, warps take fewer tiles so that more of them load at once.
const WARPS_TO_FILL: usize = 16;

/// Returns how rows with edits are surveyed: with as many tiles a warp as still leave the device full.
fn edited_tuning(multiprocessors: u32, rows: usize, vocab: usize) -> Tuning {
    let tiles = rows * vocab.div_ceil(TILE);
    let full = multiprocessors as usize * WARPS_TO_FILL;
    let tiles_per_warp = [4, 2].into_iter().find(|per_warp| tiles / per_warp >= full).unwrap_or(1);
    Tuning { warps: 4, tiles_per_warp }
}

impl Tuning {
    fn blocks_per_row(self, vocab: usize) -> u32 {
        vocab.div_ceil(TILE).div_ceil(self.warps * self.tiles_per_warp) as u32
    }
}

/// Returns the survey that a step takes: a pure function of what its rows need, the shape and the device.
pub(crate) fn survey(multiprocessors: u32, rows: usize, vocab: usize, dtype: Dtype, needs: Needs) -> Survey {
    let (tuning, kernels) = if needs.variant >= Variant::Edited {
        let tuning = edited_tuning(multiprocessors, rows, vocab);
        (tuning, EDITED[tuning.tiles_per_warp / 2])
    } else {
        let tuning = sweep_tuning(multiprocessors, rows, vocab);
        let kernels = if tuning.tiles_per_warp == 1 { SWEEP_FEW } else { SWEEP_MANY };
        (tuning, kernels[usize::from(needs.sums)])
    };
    Survey {
        kernel: kernels.of(dtype),
        threads: 32 * tuning.warps as u32,
        blocks_per_row: tuning.blocks_per_row(vocab),
    }
}

/// How many tiles there must be to spare for each multiprocessor, before a kernel of its own pays.
const SPARED_TILES: usize = 128;

/// Returns whether to survey each line once instead of each row that reads one: where that spares more reading than
/// the kernel costs that gives the rows their arrivals.
pub(crate) fn by_line(multiprocessors: u32, rows: usize, lines: usize, vocab: usize) -> bool {
    rows.saturating_sub(lines) * vocab.div_ceil(TILE) >= multiprocessors as usize * SPARED_TILES
}

/// Threads of a block that gives rows their arrivals.
const ARRIVE_THREADS: usize = 128;

/// Returns what gives rows the arrivals that the records of their lines lack.
pub(crate) fn arrive(dtype: Dtype, vocab: usize) -> Survey {
    Survey {
        kernel: ARRIVE.of(dtype),
        threads: ARRIVE_THREADS as u32,
        blocks_per_row: vocab.div_ceil(TILE).div_ceil(ARRIVE_THREADS) as u32,
    }
}

/// Enqueues the survey of a step.
///
/// # Safety
/// As for [`Machine::launch`], `step` being cut as the survey says.
pub(crate) unsafe fn enqueue(machine: &dyn Machine, survey: Survey, step: &abi::Step) -> Result<()> {
    let grid = Grid::new(step.rows * survey.blocks_per_row, survey.threads);
    // SAFETY: the grid is survey.cu's or sweep.cu's; for what `step` points to, the caller vouches; its layout
    // is held to the kernels' in tests/abi.rs.
    unsafe { machine.launch(survey.kernel, grid, bytemuck::bytes_of(step)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_cover_every_tile() {
        for vocab in [1, 255, 256, 257, 1024, 1025, 151_936, 1 << 20] {
            for rows in [1, 8, 512, 100_000] {
                for tuning in [sweep_tuning, edited_tuning].map(|tuning| tuning(132, rows, vocab)) {
                    let tiles = tuning.blocks_per_row(vocab) as usize * tuning.warps * tuning.tiles_per_warp;
                    assert!(tiles >= vocab.div_ceil(TILE));
                }
            }
        }
    }

    #[test]
    fn one_row_is_spread_and_many_are_not() {
        for tuning in [sweep_tuning, edited_tuning] {
            assert_eq!(tuning(132, 1, 151_936).tiles_per_warp, 1);
            assert_eq!(tuning(132, 512, 151_936).tiles_per_warp, 4);
        }
        // On a device of 132 multiprocessors, measured.
        assert_eq!(sweep_tuning(132, 8, 151_936).tiles_per_warp, 1);
        assert_eq!(sweep_tuning(132, 32, 151_936).tiles_per_warp, 4);
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
