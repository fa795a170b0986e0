//! The draw: which of the independent draws a request makes. Its device functions, `draw.cu`, end a step.

use crate::abi::Params;

/// Returns parameters for one of the independent draws.
pub(crate) fn seeded(params: Params, seed: u64, draw: u32) -> Params {
    Params { seed, draw, ..params }
}
