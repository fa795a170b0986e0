//! Copies of the host's memory to a device.

use std::sync::Arc;

use gumball_cuda::{Buffer, Dtype, Runtime};
use gumball_spec::{Error, Result, Row};

/// Copies numbers of the host to the device, as [`copy_up`] does, and returns their type as well.
pub(super) fn copy_row_up<'a>(
    runtime: &Arc<dyn Runtime>,
    memory: &'a mut Option<Buffer>,
    data: Row<'_>,
) -> Result<(&'a Buffer, Dtype)> {
    let (dtype, bytes): (_, &[u8]) = match data {
        Row::F32(data) => (Dtype::F32, bytemuck::cast_slice(data)),
        Row::Bf16(data) => (Dtype::Bf16, bytemuck::cast_slice(data)),
        Row::F16(data) => (Dtype::F16, bytemuck::cast_slice(data)),
    };
    Ok((copy_up(runtime, memory, bytes)?, dtype))
}

/// Copies bytes of the host to the device, into `memory` if it is large enough, otherwise into new memory.
///
/// # Errors
/// - [`Error::Conflict`] while the host program captures the stream.
pub(super) fn copy_up<'a>(
    runtime: &Arc<dyn Runtime>,
    memory: &'a mut Option<Buffer>,
    bytes: &[u8],
) -> Result<&'a Buffer> {
    if runtime.is_capturing()? {
        let reason = "a replay would read what lay there at the capture; hand over memory of the device";
        return Err(Error::Conflict {
            parameter: "memory of the host",
            other: "the capture of a graph",
            reason,
        });
    }
    if memory.as_ref().is_none_or(|buffer| buffer.bytes() < bytes.len()) {
        *memory = None;
        *memory = Some(Buffer::zeroed(runtime, bytes.len())?);
    }
    let buffer = memory.as_mut().expect("just made");
    buffer.write(0, bytes)?;
    Ok(buffer)
}
