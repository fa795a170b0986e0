//! Operators over arrays, without requests: `python/gumball/operators.py` gives them the field's names.
//!
//! `host` reads rows of the host, `device` rows that lie on a GPU with the `columns` that go with them, by the operators that `rooms` keeps for each stream. Which of
//! them a call is for is where its rows lie.

mod columns;
mod device;
mod device_chains;
mod device_draws;
mod host;
mod rooms;

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use crate::errors::UnavailableError;

pub use device::{softmax_on_device, write_on_device};
pub use device_chains::verify_on_device;
pub use device_draws::{rows_on_device, sample_on_device};
pub use host::{describe, draw_rows, verify_chains, write_rows};

/// Whether rows of the host are taken for rows of the emulated device, whose memory is the host's.
static EMULATED: AtomicBool = AtomicBool::new(false);

/// Takes rows of the host for rows of the emulated device, or no longer: for tests, where that is built in.
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
