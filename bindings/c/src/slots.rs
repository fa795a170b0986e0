//! Where in pools of numbers the rows of a call find theirs.

use std::mem::offset_of;

use gumball_engine::{Error, PerRow};

use crate::columns::{Memory, per_row};
use crate::error::Result;
use crate::versioned::VersionedStruct;

/// Which elements of pools the rows of a call read; a pool is a list with an element for each of many requests. All lists lie where the
/// rows do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolSlots {
    /// sizeof(gumball_pool_slots).
    pub struct_size: usize,
    /// The slot of each request: the index of its elements.
    pub slots: *const u32,
    /// The elements of each pool, which are all lists of gumball_row_params and gumball_draws.
    pub size: usize,
    /// How many neighbouring rows a request has, of which each is one position on; 0: one.
    pub rows_per_slot: usize,
    /// A pool of 64-bit words whose low halves are positions and whose high halves are draw indices, instead of `positions` and
    /// `draws` of gumball_draws. NULL: there is none.
    pub offsets: *const i64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for PoolSlots {
    const NAME: &'static str = "gumball_pool_slots";
    const LEAST: usize = offset_of!(Self, offsets) + size_of::<*const i64>();
}

/// The positions and draw indices of offsets that lie on the host.
#[derive(Default)]
pub(crate) struct Halves {
    positions: Vec<u32>,
    draws: Vec<u32>,
}

impl PoolSlots {
    /// Returns the keys of draws with positions and draw indices by `offsets`, if there are any, and whether the high words of positions
    /// are draw indices for the engine as well: on the host `halves` takes them.
    ///
    /// # Safety
    /// `offsets` is NULL or has `size` elements in that memory, which nobody frees or writes for `'a`.
    pub(crate) unsafe fn offset<'a>(
        &self,
        memory: Memory,
        keys: gumball_engine::Draws<'a>,
        halves: &'a mut Halves,
    ) -> Result<(gumball_engine::Draws<'a>, bool)> {
        // SAFETY: the caller ensures that `offsets` is NULL or has an element for each slot.
        match unsafe { per_row(memory, "offsets", self.offsets, self.size) }? {
            None => Ok((keys, false)),
            Some(_) if keys.draws.is_some() || !matches!(keys.positions, PerRow::All(_)) => {
                let other = if keys.draws.is_some() { "draws" } else { "positions" };
                let reason = "an offset holds both";
                Err(Error::Conflict { parameter: "offsets", other, reason }.into())
            }
            Some(PerRow::Device(words)) => {
                Ok((gumball_engine::Draws { positions: PerRow::Device(words), ..keys }, true))
            }
            Some(words) => {
                let PerRow::Host(words) = words else { unreachable!("a list of the host") };
                halves.positions = words.iter().map(|word| *word as u32).collect();
                halves.draws = words.iter().map(|word| (*word >> 32) as u32).collect();
                let (positions, draws) = (PerRow::Host(&halves.positions[..]), &halves.draws[..]);
                Ok((gumball_engine::Draws { positions, draws: Some(draws.into()), ..keys }, false))
            }
        }
    }
}
