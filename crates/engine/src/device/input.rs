//! Arguments of a step on a device: rows in the device's memory, and options from the host.

use std::sync::Arc;

use gumball_cuda::{Buffer, Dtype, MaskRows, Rows, Runtime, StepInput};
use gumball_spec::{Result, Row};

use crate::batch::{Batch, Masks};

/// The arrays in the device's memory that a step reads.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInput<'b> {
    /// The rows: logits or probabilities.
    pub logits: Rows<'b>,
    /// The grammar bitmasks of all rows. If given, they replace those of [`DeviceOptions`].
    pub masks: Option<MaskRows<'b>>,
}

impl<'b> DeviceInput<'b> {
    /// Returns the input of a step over these rows, and nothing else.
    pub(super) fn of_step<'a>(&self) -> StepInput<'a, 'b> {
        StepInput { masks: self.masks, ..StepInput::of(&self.logits) }
    }
}

impl<'b> From<Rows<'b>> for DeviceInput<'b> {
    fn from(logits: Rows<'b>) -> Self {
        Self { logits, masks: None }
    }
}

/// Options of a step's rows that the host supplies; `default()` sets none.
///
/// Hooks are missing because a hook runs on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceOptions<'a> {
    /// The grammar bitmasks. The pool copies them to the device.
    pub masks: Masks<'a>,
    /// For each row the token to emit whatever is drawn, or `None`. An empty list forces no row.
    pub forced: &'a [Option<u32>],
    /// For each row the index of the matrix row that it reads; several may read one. If empty, row i reads
    /// matrix row i.
    pub row_indices: &'a [u32],
}

impl<'a> DeviceOptions<'a> {
    /// Returns the options of a batch.
    pub(super) fn of(batch: &Batch<'a>) -> Self {
        Self { masks: batch.masks, forced: batch.forced, row_indices: batch.row_indices }
    }

    /// Returns the options in the form that the host's checks take.
    pub(super) fn on_host(&self) -> Batch<'a> {
        let Self { masks, forced, row_indices } = *self;
        Batch { masks, forced, row_indices, ..Batch::default() }
    }
}

/// Copies logits of the host to the device, into `memory` if it is large enough, otherwise into new memory.
pub(super) fn copy_up(
    runtime: &Arc<dyn Runtime>,
    memory: &mut Option<Buffer>,
    data: Row<'_>,
) -> Result<(Buffer, Dtype)> {
    let (dtype, bytes): (_, &[u8]) = match data {
        Row::F32(data) => (Dtype::F32, bytemuck::cast_slice(data)),
        Row::Bf16(data) => (Dtype::Bf16, bytemuck::cast_slice(data)),
        Row::F16(data) => (Dtype::F16, bytemuck::cast_slice(data)),
    };
    Ok((copy_bytes_up(runtime, memory, bytes)?, dtype))
}

/// Copies bytes of the host to the device, into `memory` if it is large enough, otherwise into new memory.
pub(super) fn copy_bytes_up(
    runtime: &Arc<dyn Runtime>,
    memory: &mut Option<Buffer>,
    bytes: &[u8],
) -> Result<Buffer> {
    let mut buffer = match memory.take().filter(|buffer| buffer.bytes() >= bytes.len()) {
        Some(buffer) => buffer,
        None => Buffer::zeroed(runtime, bytes.len())?,
    };
    buffer.write(0, bytes)?;
    Ok(buffer)
}
