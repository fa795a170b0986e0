//! Slots: the places of a pool in which its sequences are.

use gumball_spec::{Error, Result};

/// A place in a [`Pool`](crate::Pool), from 0; [`PADDING`] stands for none.
pub type Slot = i32;

/// The slot of a row that yields nothing and touches nothing.
pub const PADDING: Slot = -1;

/// Checks that the slots of a step are admitted, and none but padding stands there twice. `seen` holds for each slot
/// the number of the check that last saw it; this one's is `check`.
pub(crate) fn check_slots(
    slots: &[Slot],
    admitted: impl Fn(Slot) -> bool,
    seen: &mut [u64],
    check: u64,
) -> Result<()> {
    for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
        if !admitted(*slot) {
            let value = format!("{slot} in row {row}");
            return Err(Error::out_of_range("slots", value, "an admitted slot, or -1 for padding"));
        }
        let seen = &mut seen[*slot as usize];
        if *seen == check {
            let value = format!("{slot} in row {row} again");
            return Err(Error::out_of_range("slots", value, "a slot that stands in a step once"));
        }
        *seen = check;
    }
    Ok(())
}
