//! The device operators of each stream, kept until the process ends.
//!
//! The launches of device operators share memory, in the order of one stream. Each stream therefore has
//! operators of its own, made in its first call, which may be under capture.

use std::sync::{Arc, Mutex, PoisonError};

use gumball_engine::unstable::CudaThreadState;
use gumball_engine::{Device, Operators, Result};
use pyo3::prelude::*;

use crate::arrays::Location;
use crate::devices;
use crate::errors::to_py_err;
use crate::forks;
use crate::hooks::{OUTPUTS, caught};

/// The memory and the stream that operators work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamKey {
    /// A CUDA device, or for the emulated device the host's memory.
    pub location: Location,
    /// The stream's handle.
    pub stream: usize,
}

/// The operators of a stream.
#[derive(Debug)]
struct Entry {
    key: StreamKey,
    /// The fork count of the process that made it.
    process: u32,
    device: Device,
    operators: Mutex<Operators>,
}

/// The operators of all streams; a short list.
static ENTRIES: Mutex<Vec<Arc<Entry>>> = Mutex::new(Vec::new());

/// Runs `work` with the operators of a stream, without the GIL; calls from several threads take turns.
pub fn run<R: Send>(
    py: Python<'_>,
    key: StreamKey,
    work: impl FnOnce(&Operators) -> Result<R> + Send,
) -> PyResult<R> {
    let entry = entry(py, key)?;
    if entry.device.gpu().is_some() {
        forks::refuse_gpu_of(entry.process)?;
    }
    let work = || {
        let gpu = entry.device.gpu();
        let _state = gpu.and_then(|_| CudaThreadState::save());
        let operators = entry.operators.lock().unwrap_or_else(PoisonError::into_inner);
        work(&operators)
    };
    py.detach(|| caught(OUTPUTS, work))?.map_err(to_py_err)
}

/// Opens the device of a location; returns the error if that fails.
pub fn check(py: Python<'_>, location: Location) -> PyResult<()> {
    entry(py, StreamKey { location, stream: 0 }).map(drop)
}

/// Returns the operators of a stream; makes them in the first call.
fn entry(py: Python<'_>, key: StreamKey) -> PyResult<Arc<Entry>> {
    let find = |entries: &[Arc<Entry>]| entries.iter().find(|entry| entry.key == key).cloned();
    if let Some(found) = find(&ENTRIES.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(found);
    }
    if matches!(key.location, Location::Cuda(_)) {
        devices::locate(py)?;
    }
    let device = py.detach(|| open(key)).map_err(to_py_err)?;
    let operators = Mutex::new(Operators::on_device(device.clone()));
    let made = Arc::new(Entry { key, process: forks::count(), device, operators });
    let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have made them meanwhile.
    Ok(find(&entries).unwrap_or_else(|| {
        entries.push(made.clone());
        made
    }))
}

/// Opens the device of a location, on the stream.
fn open(key: StreamKey) -> Result<Device> {
    let Location::Cuda(ordinal) = key.location else { return Device::open("emulated") };
    let _state = CudaThreadState::save();
    let gpu = devices::gpu(usize::try_from(ordinal).unwrap_or(usize::MAX))?;
    // SAFETY: torch's streams live until the process ends; `gumball.operators` requires it of a stream that
    // the caller names.
    Ok(Device::from(unsafe { gpu.on_stream(key.stream) }?))
}
