//! Devices: the process opens each GPU once, because loading its kernels takes a while.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use gumball_engine::unstable::{CudaThreadState, Gpu};
use gumball_engine::{Device, Result};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;

/// The open GPUs by ordinal. They stay open until the process ends.
static OPEN: Mutex<BTreeMap<usize, &'static Device>> = Mutex::new(BTreeMap::new());

/// The folder of compiled kernels in the package, which an installation without them does not have.
static KERNELS: OnceLock<PathBuf> = OnceLock::new();

/// Finds what a GPU needs: the package's compiled kernels, the compiler for all others, and what carries
/// messages to other GPUs.
pub fn locate(py: Python<'_>) -> PyResult<()> {
    py.import("gumball.nvrtc")?.call_method0("locate")?;
    let package: PathBuf = py.import("gumball")?.getattr("__file__")?.extract()?;
    KERNELS.get_or_init(|| package.with_file_name("kernels"));
    Ok(())
}

/// Warns the Python program of a fact with which it can go on.
pub fn warn(notice: &str) {
    let text = CString::new(notice).unwrap_or_default();
    // If the program makes an error of warnings, its pool still works.
    Python::attach(|py| PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)).unwrap_or_default();
}

/// Returns an open GPU; opens it first if needed. It is not worked on itself: each user takes a stream of its
/// own, or one of the host program.
///
/// # Errors
/// As [`Device::cuda`].
pub fn gpu(ordinal: usize) -> Result<&'static Gpu> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = open.get(&ordinal).copied();
    let device = match (known, KERNELS.get()) {
        (Some(device), _) => device,
        (None, Some(kernels)) => Box::leak(Box::new(Device::cuda_with_kernels(ordinal, kernels)?)),
        (None, None) => Box::leak(Box::new(Device::cuda(ordinal)?)),
    };
    open.insert(ordinal, device);
    drop(open);
    let gpu = device.gpu().expect("a CUDA device is a GPU");
    if let (None, Some(notice)) = (known, gpu.notice()) {
        warn(notice);
    }
    Ok(gpu)
}

/// Returns the ordinal in the name of a CUDA device: `cuda` is 0, `cuda:N` is N; `None` for other names.
pub fn ordinal(name: &str) -> Option<usize> {
    match name.strip_prefix("cuda")? {
        "" => Some(0),
        rest => rest.strip_prefix(':')?.parse().ok(),
    }
}

/// Opens a device; a GPU gets a stream of its own.
pub fn open(name: &str) -> Result<(Device, Option<CudaThreadState>)> {
    let Some(ordinal) = ordinal(name) else {
        // An emulated device, or an unknown name.
        return Ok((Device::open(name)?, None));
    };
    let state = CudaThreadState::save();
    Ok((Device::from(gpu(ordinal)?.on_new_stream()?), state))
}
