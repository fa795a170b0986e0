//! The survey: the launch of `survey.cu`, and how many tiles a warp takes.

use gumball_spec::TILE;

use crate::abi;
use crate::error::Result;
use crate::machine::{Kernel, Machine};
use crate::program::Program;
use crate::rows::Dtype;

/// The kernels of the stage.
pub(crate) const PROGRAM: Program = Program {
    name: "survey",
    source: include_str!("survey.cu"),
    kernels: &[
        "survey_f32_1",
        "survey_edited_f32_1",
        "survey_f32_2",
        "survey_edited_f32_2",
        "survey_f32_4",
        "survey_edited_f32_4",
        "survey_bf16_1",
        "survey_edited_bf16_1",
        "survey_bf16_2",
        "survey_edited_bf16_2",
        "survey_bf16_4",
        "survey_edited_bf16_4",
        "survey_f16_1",
        "survey_edited_f16_1",
        "survey_f16_2",
        "survey_edited_f16_2",
        "survey_f16_4",
        "survey_edited_f16_4",
        "arrive_f32",
        "arrive_bf16",
        "arrive_f16",
    ],
};

const WARPS_PER_BLOCK: usize = 4;

/// How the survey is cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// How many tiles a warp takes: 1, 2 or 4.
    pub tiles_per_warp: usize,
}

/// Below this many warps a multiprocessor, warps take fewer tiles so that more of them load at once.
const WARPS_TO_FILL: usize = 16;

/// Returns the tuning of a shape: as many tiles a warp as still leave the device full.
pub(crate) fn tuning(multiprocessors: u32, rows: usize, vocab: usize) -> Tuning {
    let tiles = rows * vocab.div_ceil(TILE);
    let full = multiprocessors as usize * WARPS_TO_FILL;
    let tiles_per_warp = [4, 2].into_iter().find(|per_warp| tiles / per_warp >= full).unwrap_or(1);
    Tuning { tiles_per_warp }
}

impl Tuning {
    /// Returns how many blocks a row is cut into.
    pub fn blocks_per_row(self, vocab: usize) -> u32 {
        vocab.div_ceil(TILE).div_ceil(WARPS_PER_BLOCK * self.tiles_per_warp) as u32
    }

    /// Returns the kernel of a type, for rows that may have edits or not.
    pub fn kernel(self, dtype: Dtype, edited: bool) -> Kernel {
        let stage = if edited { "survey_edited" } else { "survey" };
        Kernel::named(&format!("{stage}_{}_{}", dtype.name(), self.tiles_per_warp))
    }
}

/// How many tiles there must be to spare for each multiprocessor, before a kernel of its own pays.
const SPARED_TILES: usize = 128;

/// Returns whether to survey each line once instead of each row that reads one: where that spares more reading than
/// the kernel costs that gives the rows their arrivals.
pub(crate) fn by_line(multiprocessors: u32, rows: usize, lines: usize, vocab: usize) -> bool {
    rows.saturating_sub(lines) * vocab.div_ceil(TILE) >= multiprocessors as usize * SPARED_TILES
}

/// Returns in how many blocks a row gets its arrivals, of a type's kernel.
pub(crate) fn arrive(dtype: Dtype, vocab: usize) -> (Kernel, u32) {
    let blocks = vocab.div_ceil(TILE).div_ceil(32 * WARPS_PER_BLOCK) as u32;
    (Kernel::named(&format!("arrive_{}", dtype.name())), blocks)
}

/// Enqueues the survey of a step.
///
/// # Safety
/// As for [`Machine::launch`], `step` being cut as its tuning says.
pub(crate) unsafe fn enqueue(machine: &dyn Machine, kernel: Kernel, step: &abi::Step) -> Result<()> {
    let blocks = step.rows * step.blocks_per_row;
    // SAFETY: the grid is survey.cu's; for what `step` points to, the caller vouches; its layout
    // is held to the kernels' in tests/abi.rs.
    unsafe { machine.launch(kernel, blocks, 32 * WARPS_PER_BLOCK as u32, bytemuck::bytes_of(step)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_cover_every_tile() {
        for vocab in [1, 255, 256, 257, 1024, 1025, 151_936, 1 << 20] {
            for rows in [1, 8, 512, 100_000] {
                let tuning = tuning(132, rows, vocab);
                let tiles = tuning.blocks_per_row(vocab) as usize * WARPS_PER_BLOCK * tuning.tiles_per_warp;
                assert!(tiles >= vocab.div_ceil(TILE));
                tuning.kernel(Dtype::Bf16, false);
            }
        }
    }

    #[test]
    fn lines_are_surveyed_once_where_many_rows_read_few() {
        assert!(by_line(132, 64, 1, 151_936));
        assert!(by_line(132, 512, 128, 151_936));
        assert!(!by_line(132, 4, 1, 151_936));
        assert!(!by_line(132, 64, 64, 151_936));
        assert!(!by_line(132, 64, 1_000, 151_936));
    }

    #[test]
    fn one_row_is_spread_and_many_are_not() {
        assert_eq!(tuning(132, 1, 151_936).tiles_per_warp, 1);
        assert_eq!(tuning(132, 512, 151_936).tiles_per_warp, 4);
    }
}
