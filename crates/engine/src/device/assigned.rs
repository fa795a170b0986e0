//! The assignment of a pool's rows that lies on the device: the host copies one up only if it differs.

use std::sync::Arc;

use gumball_spec::NONE;

use crate::assignment::Assignment;
use crate::slot::Slot;

/// The assignment that lies on the device.
#[derive(Debug, Default)]
pub(super) struct Assigned {
    /// Whether the device's lists equal these. False after a failed copy, which leaves the device's lists
    /// unknown, and if there are masks, which are copied up each time.
    pub known: bool,
    pub of: Arc<Assignment>,
    /// In a pool of the route `probabilities` the temperature of the softmax of each slot's rows, `None` for
    /// padding.
    pub temperatures: Vec<Option<f32>>,
}

impl Assigned {
    /// Turns the rows of a slot into padding when its sequence ends.
    pub fn forget(&mut self, slot: Slot) {
        let temperatures = self.temperatures.iter_mut().zip(&self.of.slots);
        temperatures.filter(|(_, of)| **of == slot).for_each(|(temperature, _)| *temperature = None);
        Assignment::forget_in(&mut self.of, slot);
    }
}

/// Encodes a forced token for the device: its id, or `NONE`.
pub(super) fn code(forced: Option<u32>) -> i32 {
    forced.map_or(NONE, |id| id as i32)
}
