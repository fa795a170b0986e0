//! The launches of the kernels that write rows of probabilities, or masked rows: `find_cut`, then
//! `write_rows`.

use gumball_spec::Kind;

use crate::abi;
use crate::abi::dtype::Dtype;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::{Launch, tuning};
use crate::programs::kernels::{FIND_CUT, WRITE_ROWS};
use crate::requests::step_features::{StepFeatures, Variant};

/// Returns the launch of `find_cut`, which finds the cuts of the rows that the kernel before has surveyed.
pub(crate) fn find_cuts(
    limits: &DeviceLimits,
    (kind, dtype): (Kind, Dtype),
    needs: StepFeatures,
    step: &abi::Step,
) -> Launch<abi::FindCut> {
    let needs = StepFeatures { variant: Variant::Candidates, ..needs };
    let grid = tuning::finish(limits, step.rows as usize, step.tiles as usize, needs);
    Launch::dependent(FIND_CUT.of(kind, dtype), grid)
}

/// Enqueues `find_cut`, which finds the cuts of surveyed rows, and `write_rows`, which writes the rows of
/// these cuts to `(out, out_stride)`.
///
/// # Safety
/// As for [`Runtime::launch`]. The kernel before is the rows' survey, and it began after the requests were
/// made. The output rows have the shape of the rows that were surveyed.
pub(crate) unsafe fn write(
    runtime: &dyn Runtime,
    limits: &DeviceLimits,
    (kind, from, to): (Kind, Dtype, Dtype),
    needs: StepFeatures,
    cuts: &abi::FindCut,
    (out, out_stride): (u64, u64),
) -> Result<()> {
    let step = &cuts.step;
    // SAFETY: the caller guarantees what the argument points to.
    unsafe { find_cuts(limits, (kind, from), needs, step).enqueue(runtime, cuts) }?;
    let (rows, tiles) = (step.rows as usize, step.tiles as usize);
    let blocks = tuning::write_rows(limits, rows, tiles, step.prefill_out != 0);
    let argument = abi::WriteRows {
        logits: step.logits,
        out,
        stride: step.stride,
        out_stride,
        records: step.records,
        cuts: cuts.cuts,
        rows: step.rows,
        vocab: step.vocab,
        tiles: step.tiles,
        blocks_per_row: blocks.blocks_per_row as u32,
        tiles_per_block: blocks.tiles_per_block as u32,
        mask_only: cuts.mask_only,
    };
    let launch = Launch::dependent(WRITE_ROWS.to(kind, from, to), blocks.grid(rows));
    // SAFETY: the caller guarantees what the argument points to.
    unsafe { launch.enqueue(runtime, &argument) }
}
