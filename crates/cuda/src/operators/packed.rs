//! Sets of ids, given as bitmasks, packed one after the other by the kernels of `pack_kept.cu`.

use std::sync::Arc;

use gumball_spec::{Error, Result};

use super::check_column;
use crate::abi;
use crate::driver::runtime::Runtime;
use crate::launch::{Launch, tuning};
use crate::memory::columns::{DeviceSlice, WORDS};
use crate::memory::rows::MaskRows;

/// What the kernels read at once: four words.
const QUAD: usize = 16;

/// Enqueues the packing of sets; see [`super::Operators::pack_kept`].
pub(super) fn pack_kept(
    runtime: &Arc<dyn Runtime>,
    sets: &MaskRows<'_>,
    packed: &DeviceSlice<'_>,
) -> Result<()> {
    let MaskRows { address, rows, width, stride, .. } = *sets;
    check_column("packed", Some(packed), WORDS, rows * (1 + width))?;
    for (parameter, bytes) in [
        ("sets.address", address as usize),
        ("sets.width", width * size_of::<u32>()),
        ("sets.stride", stride * size_of::<u32>()),
    ] {
        if !bytes.is_multiple_of(QUAD) {
            return Err(Error::out_of_range(parameter, format!("{bytes} bytes"), "a multiple of 16 bytes"));
        }
    }
    if rows == 0 {
        return Ok(());
    }
    let argument = abi::PackKept {
        bits: address,
        lengths: packed.address,
        packed: packed.address + (rows * size_of::<u32>()) as u64,
        stride: stride as u32,
        words: width as u32,
    };
    // SAFETY: the creators of sets and column guarantee their memory, whose sizes and alignment were checked.
    let enqueue = |launch: Launch<_>| unsafe { launch.enqueue(&**runtime, &argument) };
    Ok(tuning::pack_kept(rows).into_iter().try_for_each(enqueue)?)
}
