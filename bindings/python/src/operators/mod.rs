//! Operators over arrays, without requests: `python/gumball/operators.py` gives them their public names.
//!
//! `host` handles rows on the host, `device` rows on a GPU, with their `columns` of parameters. `by_stream` keeps
//! the device operators of each stream. The rows' memory decides which of the two handles a call.

mod by_stream;
mod columns;
mod device;
mod device_chains;
mod device_draws;
mod host;

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::errors::UnavailableError;

pub use device::{softmax_on_device, write_on_device};
pub use device_chains::verify_on_device;
pub use device_draws::{rows_on_device, sample_on_device};
pub use host::{describe, draw_rows, verify_chains, write_rows};

/// Whether rows on the host count as rows of the emulated device, which uses the host's memory.
static EMULATED: AtomicBool = AtomicBool::new(false);

/// Makes rows on the host count as rows of the emulated device, or no longer; for tests. Raises
/// UnavailableError if the emulator is not built in.
#[pyfunction]
pub fn emulate(on: bool) -> PyResult<()> {
    if on && !cfg!(feature = "emulator") {
        return Err(UnavailableError::new_err("the emulated device is not built in"));
    }
    EMULATED.store(on, Ordering::Relaxed);
    Ok(())
}

fn is_emulated() -> bool {
    cfg!(feature = "emulator") && EMULATED.load(Ordering::Relaxed)
}
