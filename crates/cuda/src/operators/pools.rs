//! Columns that are pools: with an element for each of many requests, of which a call draws for some.

use gumball_spec::{Error, Result};

use super::params::{Draws, Numbers};
use crate::abi::{ParamColumns, columns, from_columns_flags};
use crate::memory::columns::{DeviceSlice, INTEGERS};

/// Which elements of the pools the rows of a call read.
#[derive(Clone, Copy, Debug)]
pub struct PoolSlots<'b> {
    /// The slot of each request: the index of its elements.
    pub slots: DeviceSlice<'b>,
    /// The elements of each pool.
    pub size: usize,
    /// How many neighbouring rows a request has. Its j-th row, from 0, is j positions on.
    pub rows_per_slot: usize,
    /// Whether the high words of 64-bit positions in a column are draw indices; then there are no others.
    pub high_draws: bool,
}

impl PoolSlots<'_> {
    /// Checks the slots of `rows` rows and adds them to the kernel's argument, which has the keys of the
    /// draws.
    pub(super) fn prepare(&self, rows: usize, draws: &Draws<'_>, prepared: &mut ParamColumns) -> Result<()> {
        let Self { slots, size, rows_per_slot, high_draws } = *self;
        // In the kernel's argument 32 bits count elements and rows.
        if size == 0 || u32::try_from(size).is_err() {
            return Err(Error::out_of_range("size", size, "in 1..2^32"));
        }
        if rows_per_slot == 0 || !rows.is_multiple_of(rows_per_slot) || u32::try_from(rows_per_slot).is_err()
        {
            let allowed = format!("at least 1, and divide the number of rows, {rows}");
            return Err(Error::out_of_range("rows_per_slot", rows_per_slot, allowed));
        }
        if high_draws && (draws.draws.is_some() || draws.offsets) {
            let other = if draws.offsets { "offsets" } else { "draws" };
            let reason = "the high word of a position says one thing";
            return Err(Error::Conflict { parameter: "high_draws", other, reason });
        }
        if high_draws && prepared.columns_64_bit & columns::POSITION == 0 {
            return Err(Error::out_of_range(
                "positions",
                "of 32 bits or none",
                "a column of 64 bits, for high_draws",
            ));
        }
        let slots = Numbers::of("slots", &slots, INTEGERS, (rows / rows_per_slot, "requests"))?;
        prepared.pool_slots = slots.mark(prepared, columns::SLOT);
        prepared.pool_size = size as u32;
        prepared.rows_per_slot = rows_per_slot as u32;
        prepared.flags |= if high_draws { from_columns_flags::HIGH_DRAWS } else { 0 };
        Ok(())
    }
}
