//! The launches that pack kept sets for the host.

use crate::abi::PackKept;
use crate::driver::runtime::Runtime;
use crate::error::Result;
use crate::launch::tuning;
use crate::programs::kernels::{COUNT_KEPT, PACK_KEPT};

/// Enqueues `count_kept` and `pack_kept` over the kept sets of `rows` rows, one at least.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn pack(runtime: &dyn Runtime, rows: usize, argument: &PackKept) -> Result<()> {
    let (grid, argument) = (tuning::pack_kept(rows), bytemuck::bytes_of(argument));
    // SAFETY: the grid is the one that pack_kept.cu expects. The caller guarantees what the argument points
    // to.
    unsafe { runtime.launch(COUNT_KEPT.kernel(), grid, argument) }?;
    // SAFETY: as above; the lengths are there when this kernel starts.
    unsafe { runtime.launch(PACK_KEPT.kernel(), grid, argument) }
}
