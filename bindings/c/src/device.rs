//! Devices, and buffers in their memory.

use std::ffi::{c_char, c_void};
use std::ptr;

use gumball_engine::{DeviceBuffer, Error};

use crate::error::{Code, Result};
use crate::ffi::{call, call_or, end, make, require};

#[derive(Debug)]
pub struct Device {
    pub(crate) inner: gumball_engine::Device,
}

#[derive(Debug)]
pub struct Buffer {
    memory: DeviceBuffer,
}

/// Opens a device by its name, cuda or cuda:N, on a stream of its own, in the primary context, which the CUDA
/// runtime and libraries built on it share. GUMBALL_UNAVAILABLE, which names the missing part, where there is
/// no CUDA. A kernel is loaded by its first launch: from the folder that GUMBALL_KERNELS names, or from the
/// user's cache (GUMBALL_CACHE), into which it is compiled once.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_device_open(name: *const c_char) -> Option<Box<Device>> {
    make(|c| {
        let name = c.text("device", name)?;
        Ok(Device { inner: gumball_engine::Device::open(name)? })
    })
}

/// Opens the same device on a stream of the program, a cudaStream_t or CUstream of the primary context (NULL:
/// the default one), in turn with the program's own work there. The stream lives longer than the returned
/// device and all that is made with it.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_device_on_stream(
    device: Option<&Device>,
    stream: *mut c_void,
) -> Option<Box<Device>> {
    make(|_| {
        let Some(gpu) = require("device", device)?.inner.gpu() else {
            let reason = "the device is emulated, and has none".to_owned();
            return Err(Error::Unavailable { resource: "streams", reason }.into());
        };
        // SAFETY: the C caller ensures that `stream` belongs to the device's primary context and outlives
        // what is made with it.
        let gpu = unsafe { gpu.on_stream(stream as usize) }.map_err(Error::from)?;
        Ok(Device { inner: gpu.into() })
    })
}

/// Ends a handle of a device; pools and operators that were made with it go on.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_device_free(device: Option<Box<Device>>) {
    end(device);
}

/// Takes memory of a device, filled with zeros: for a program that has none of its own.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_buffer_new(device: Option<&Device>, bytes: usize) -> Option<Box<Buffer>> {
    make(|_| {
        let memory = DeviceBuffer::zeroed(require("device", device)?.inner.runtime(), bytes);
        Ok(Buffer { memory: memory.map_err(Error::from)? })
    })
}

/// Gives memory back. No step may read it any more.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_buffer_free(buffer: Option<Box<Buffer>>) {
    end(buffer);
}

/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_buffer_address(buffer: Option<&Buffer>) -> *mut c_void {
    call_or(ptr::null_mut(), |_| {
        // The address is one of the device's, so the pointer has no provenance on the host.
        Ok(ptr::without_provenance_mut(require("buffer", buffer)?.memory.address() as usize))
    })
}

/// Copies bytes to a place in a buffer, in turn with the work on the device's stream. They are taken on
/// return.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_buffer_write(
    buffer: Option<&mut Buffer>,
    start: usize,
    data: *const c_void,
    bytes: usize,
) -> Code {
    call(|c| {
        let buffer = require("buffer", buffer)?;
        buffer.check(start, bytes)?;
        let data = c.slice("data", data.cast::<u8>(), bytes)?;
        Ok(buffer.memory.write(start, data).map_err(Error::from)?)
    })
}

/// Copies bytes from a place in a buffer, once the work that is on the device's stream before is done; `data`
/// has `bytes` bytes.
///
/// Cost: wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_buffer_read(
    buffer: Option<&Buffer>,
    start: usize,
    data: *mut c_void,
    bytes: usize,
) -> Code {
    call(|c| {
        let buffer = require("buffer", buffer)?;
        buffer.check(start, bytes)?;
        let data = c.zeroed_slice("data", data.cast::<u8>(), bytes)?;
        Ok(buffer.memory.read(start, data).map_err(Error::from)?)
    })
}

impl Buffer {
    fn check(&self, start: usize, bytes: usize) -> Result<()> {
        let all = self.memory.bytes();
        if start.checked_add(bytes).is_some_and(|end| end <= all) {
            return Ok(());
        }
        Err(Error::length("buffer", all, format!("at least {bytes} bytes from {start}")).into())
    }
}
