//! What a step on a device goes by: rows in the device's memory, and what the host says about them.

use std::sync::Arc;

use gumball_cuda::{Buffer, Dtype, MaskRows, Rows, Runtime};
use gumball_spec::{Result, Row};

use crate::options::{BatchOptions, Masks};

/// What a step reads of the device's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInput<'b> {
    /// The logits, or probabilities.
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
    pub row_indices: &'a [u32],
}

impl<'a> DeviceOptions<'a> {
    /// Returns what is checked as on the host.
    pub(super) fn on_host(&self) -> BatchOptions<'a> {
        BatchOptions { masks: self.masks, forced: self.forced, hooks: &[] }
    }
}

/// Copies logits of the host to memory of a machine: to `memory` if it is large enough, else to more that is taken.
pub(super) fn copy_up(
    machine: &Arc<dyn Runtime>,
    memory: &mut Option<Buffer>,
    data: Row<'_>,
) -> Result<(Buffer, Dtype)> {
    let (dtype, bytes): (_, &[u8]) = match data {
        Row::F32(data) => (Dtype::F32, bytemuck::cast_slice(data)),
        Row::Bf16(data) => (Dtype::Bf16, bytemuck::cast_slice(data)),
        Row::F16(data) => (Dtype::F16, bytemuck::cast_slice(data)),
    };
    let mut buffer = match memory.take().filter(|buffer| buffer.bytes() >= bytes.len()) {
        Some(buffer) => buffer,
        None => Buffer::zeroed(machine, bytes.len())?,
    };
    buffer.write(0, bytes)?;
    Ok((buffer, dtype))
}
