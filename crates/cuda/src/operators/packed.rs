//! Sets of ids, given as bitmasks, packed one after the other by the kernels of `pack_kept.cu`.

use gumball_spec::{Error, Result};

use super::{Operators, check_column};
use crate::abi;
use crate::launch::{Launch, tuning};
use crate::memory::columns::{DeviceSlice, WORDS};
use crate::memory::rows::MaskRows;

/// What the kernels read at once: four words.
const QUAD: usize = 16;

impl Operators {
    /// Enqueues the packing of sets, in two launches: how many ids each has, then each one's ids, ascending,
    /// or, of a set with more ids than words, its words. Allocates nothing.
    ///
    /// # Shapes and units
    /// `sets`: R bitmasks, whose address, width and stride are multiples of 16 bytes. `packed`: R (1 + width)
    /// words, of which the last are not written unless every set has as many ids as words.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::OutOfRange`] if a shape or a type differs
    ///   from these.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    pub fn pack_kept(&self, sets: &MaskRows<'_>, packed: &DeviceSlice<'_>) -> Result<()> {
        let MaskRows { address, rows, width, stride, .. } = *sets;
        check_column("packed", Some(packed), WORDS, rows * (1 + width))?;
        for (parameter, bytes) in [
            ("sets.address", address as usize),
            ("sets.width", width * size_of::<u32>()),
            ("sets.stride", stride * size_of::<u32>()),
        ] {
            if !bytes.is_multiple_of(QUAD) {
                return Err(Error::out_of_range(
                    parameter,
                    format!("{bytes} bytes"),
                    "a multiple of 16 bytes",
                ));
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
        // SAFETY: the creators of sets and column guarantee their memory, whose sizes and alignment were
        // checked.
        let enqueue = |launch: Launch<_>| unsafe { launch.enqueue(&*self.passes.runtime, &argument) };
        Ok(tuning::pack_kept(rows).into_iter().try_for_each(enqueue)?)
    }
}
