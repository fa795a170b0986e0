//! Devices: the process opens each GPU once, because loading its kernels takes a while.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gumball_engine::{Device, Gpu, Result};

/// The open GPUs by ordinal. They stay open until the process ends.
static OPEN: Mutex<BTreeMap<usize, &'static Device>> = Mutex::new(BTreeMap::new());

/// Returns an open GPU; opens it first if needed. It is not worked on itself: each user takes a stream of its
/// own, or one of the host program.
///
/// # Errors
/// Those of [`Device::cuda`].
pub fn gpu(ordinal: usize) -> Result<&'static Gpu> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let device = match open.get(&ordinal) {
        Some(device) => *device,
        None => {
            let device: &'static Device = Box::leak(Box::new(Device::cuda(ordinal)?));
            open.insert(ordinal, device);
            device
        }
    };
    Ok(device.gpu().expect("a CUDA device is a GPU"))
}

/// Returns the ordinal in the name of a CUDA device: `cuda` is 0, `cuda:N` is N; `None` for other names.
pub fn ordinal(name: &str) -> Option<usize> {
    match name.strip_prefix("cuda")? {
        "" => Some(0),
        rest => rest.strip_prefix(':')?.parse().ok(),
    }
}
