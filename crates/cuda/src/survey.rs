//! The survey: the launches of `sweep.cu` and `survey.cu`, and how many tiles a warp takes.

use gumball_spec::TILE;

use crate::abi;
use crate::error::Result;
use crate::machine::{Kernel, Machine};
use crate::program::Program;
use crate::rows::Dtype;
use crate::variant::Variant;

/// The kernels.
pub(crate) const PROGRAM: Program = Program {
    name: "survey",
    source: include_str!("survey.cu"),
    kernels: &[
        "survey_f32_few",
        "survey_f32_many",
        "survey_sums_f32_few",
        "survey_sums_f32_many",
        "survey_edited_f32_few",
        "survey_edited_f32_many",
        "survey_edited_sums_f32_few",
        "survey_edited_sums_f32_many",
        "survey_bf16_few",
        "survey_bf16_many",
        "survey_sums_bf16_few",
        "survey_sums_bf16_many",
        "survey_edited_bf16_few",
        "survey_edited_bf16_many",
        "survey_edited_sums_bf16_few",
        "survey_edited_sums_bf16_many",
        "survey_f16_few",
        "survey_f16_many",
        "survey_sums_f16_few",
        "survey_sums_f16_many",
        "survey_edited_f16_few",
        "survey_edited_f16_many",
        "survey_edited_sums_f16_few",
        "survey_edited_sums_f16_many",
        "arrive",
    ],
};

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

/// Returns how rows are surveyed.
fn tuning(multiprocessors: u32, rows: usize, vocab: usize) -> Tuning {
    let few = rows * vocab.div_ceil(TILE) <= multiprocessors as usize * WARPS_AT_ONCE;
    Tuning { warps: 8, tiles_per_warp: if few { 1 } else { 4 } }
}

impl Tuning {
    fn blocks_per_row(self, vocab: usize) -> u32 {
        vocab.div_ceil(TILE).div_ceil(self.warps * self.tiles_per_warp) as u32
    }
}

/// Returns the survey that a variant of a step takes: a pure function of the variant, the shape and the device.
pub(crate) fn survey(
    multiprocessors: u32,
    rows: usize,
    vocab: usize,
    dtype: Dtype,
    variant: Variant,
) -> Survey {
    let tuning = tuning(multiprocessors, rows, vocab);
    let stage = match variant {
        Variant::Lean => "survey",
        Variant::Listed | Variant::Unedited => "survey_sums",
        Variant::Edited | Variant::Searching => "survey_edited_sums",
    };
    let shape = if tuning.tiles_per_warp == 1 { "few" } else { "many" };
    let name = format!("{stage}_{}_{shape}", dtype.name());
    Survey {
        kernel: Kernel::named(&name),
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
const ARRIVE_THREADS: usize = 256;

/// Returns what gives rows the arrivals that the records of their lines lack.
pub(crate) fn arrive(vocab: usize) -> Survey {
    Survey {
        kernel: Kernel::named("arrive"),
        threads: ARRIVE_THREADS as u32,
        blocks_per_row: vocab.div_ceil(TILE).div_ceil(ARRIVE_THREADS) as u32,
    }
}

/// Enqueues the survey of a step.
///
/// # Safety
/// As for [`Machine::launch`], `step` being cut as the survey says.
pub(crate) unsafe fn enqueue(machine: &dyn Machine, survey: Survey, step: &abi::Step) -> Result<()> {
    let blocks = step.rows * survey.blocks_per_row;
    // SAFETY: the grid is survey.cu's or sweep.cu's; for what `step` points to, the caller vouches; its layout
    // is held to the kernels' in tests/abi.rs.
    unsafe { machine.launch(survey.kernel, blocks, survey.threads, bytemuck::bytes_of(step)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_cover_every_tile() {
        for vocab in [1, 255, 256, 257, 1024, 1025, 151_936, 1 << 20] {
            for rows in [1, 8, 512, 100_000] {
                for tuning in [tuning(132, rows, vocab)] {
                    let tiles = tuning.blocks_per_row(vocab) as usize * tuning.warps * tuning.tiles_per_warp;
                    assert!(tiles >= vocab.div_ceil(TILE));
                }
                // Kernels of every name are there.
                for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
                    let threads = |variant| survey(132, rows, vocab, dtype, variant).threads;
                    assert_eq!(Variant::ALL.map(threads), [256; 5]);
                }
            }
        }
    }

    #[test]
    fn one_row_is_spread_and_many_are_not() {
        {
            assert_eq!(tuning(132, 1, 151_936).tiles_per_warp, 1);
            assert_eq!(tuning(132, 512, 151_936).tiles_per_warp, 4);
        }
        // On a device of 132 multiprocessors, measured.
        assert_eq!(tuning(132, 8, 151_936).tiles_per_warp, 1);
        assert_eq!(tuning(132, 32, 151_936).tiles_per_warp, 4);
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
