//! What a step on a device goes by: rows in the device's memory, and what the host says about them.

use gumball_cuda::{MaskRows, Rows};

use crate::options::{BatchOptions, Masks};

/// What a step reads of the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInput<'b> {
    /// The logits.
    pub logits: Rows<'b>,
    /// The grammar bitmasks of all rows, in place of those of [`DeviceOptions`].
    pub masks: Option<MaskRows<'b>>,
}

impl<'b> From<Rows<'b>> for DeviceInput<'b> {
    fn from(logits: Rows<'b>) -> Self {
        Self { logits, masks: None }
    }
}

/// What the host says about the rows of a step; `default()` is nothing.
///
/// There are no hooks: a hook runs on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceOptions<'a> {
    /// The grammar bitmasks, to be copied to the device.
    pub masks: Masks<'a>,
    /// For each row the token to emit whatever is drawn; empty: none for any row.
    pub forced: &'a [Option<u32>],
    /// For each row the line of the logits that it reads, each any number of times; empty: line i for row i.
    pub lines: &'a [u32],
}

impl<'a> DeviceOptions<'a> {
    /// Returns what is checked as on the host.
    pub(super) fn on_host(&self) -> BatchOptions<'a> {
        BatchOptions { masks: self.masks, forced: self.forced, hooks: &[] }
    }
}
