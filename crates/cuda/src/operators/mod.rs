//! Operators: draws, renormalised probabilities and masks over rows in the machine's memory, without requests.
//!
//! For programs that bring parameters, seeds and positions themselves, as numbers or as columns that only the machine knows. A
//! kernel makes requests of them, for a step's own kernels; what comes out is what the oracle says of such rows, bit for bit. Everything
//! is checked before anything is enqueued; nothing waits, and all of it can be captured.

mod params;
mod room;
mod sample;
mod write;

use std::sync::Arc;

use gumball_spec::{Error, Result};

use crate::program::KernelModule;
use crate::runtime::Runtime;
use crate::softmax::Softmax;

pub use params::{Draws, PerRow, RowParams};
use room::WorkspaceLimits;

/// The operators of a machine, with room that grows with what they are asked.
///
/// Room is not taken while the host program captures the machine's stream: one call before, over as many rows of as many ids, takes
/// what a captured one needs. Room that a graph goes by stays as long as the operators do.
#[derive(Debug)]
pub struct Operators {
    machine: Arc<dyn Runtime>,
    room: WorkspaceLimits,
    /// What rows without filters take.
    softmax: Option<Softmax>,
}

impl Operators {
    /// Makes the operators of a machine.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the machine fails.
    pub fn new(machine: Arc<dyn Runtime>) -> Result<Self> {
        machine.prepare(KernelModule::Requests)?;
        Ok(Self { room: WorkspaceLimits::new(Arc::clone(&machine)), softmax: None, machine })
    }
}

/// Checks that there is one for each of so many rows.
fn check_rows(parameter: &'static str, rows: usize, wanted: usize) -> Result<()> {
    if rows == wanted {
        return Ok(());
    }
    Err(Error::length(parameter, rows, format!("one for each of {wanted} rows")))
}
