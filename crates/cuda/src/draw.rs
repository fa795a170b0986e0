//! The draw: the launch of `draw.cu`, one block a row.

use crate::abi::{self, Params};
use crate::error::Result;
use crate::machine::{Kernel, Machine};
use crate::program::Program;
use crate::step::Dtype;

/// The kernels of the stage.
pub(crate) const PROGRAM: Program = Program {
    name: "draw",
    source: include_str!("draw.cu"),
    kernels: &["draw_f32", "draw_bf16", "draw_f16"],
};

/// Returns parameters for one of the independent draws.
pub(crate) fn seeded(params: Params, seed: u64, draw: u32) -> Params {
    Params { seed, draw, ..params }
}

/// Returns the kernel of a type.
pub(crate) fn kernel(dtype: Dtype) -> Kernel {
    Kernel::named(&format!("draw_{}", dtype.name()))
}

/// Enqueues the draw of a step.
///
/// # Safety
/// As for [`Machine::launch`]; the survey of the step was enqueued before.
pub(crate) unsafe fn enqueue(machine: &dyn Machine, kernel: Kernel, step: &abi::Step) -> Result<()> {
    // SAFETY: the grid is draw.cu's; for what `step` points to, the caller vouches; its layout
    // is held to the kernels' in tests/abi.rs.
    unsafe { machine.launch(kernel, step.rows, machine.threads_per_row(), bytemuck::bytes_of(step)) }
}
