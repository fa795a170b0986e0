//! Graphs: steps captured once, to be replayed with one call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gumball_engine::{DeviceGraph, DevicePool, Kind, Result};
use pyo3::prelude::*;

use crate::arrays::Matrix;
use crate::pool::Pool;

/// Steps of a pool that were captured. It holds the arrays that they read.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Graph {
    pool: Py<Pool>,
    recorded: Mutex<Recorded>,
    steps: usize,
    /// The arrays and what they lend, so that their memory stays.
    _held: Vec<Py<PyAny>>,
}

/// The steps.
#[derive(Debug)]
pub enum Recorded {
    /// Where the rows of each lie in the host's memory, and what they hold.
    Host(Vec<Matrix>, Kind),
    /// The device's graph.
    Device(Owned),
}

/// A device's graph whose arrays are held beside it.
#[derive(Debug)]
pub struct Owned(DeviceGraph<'static>);

// SAFETY: a graph of the driver may be launched and freed by any thread, one at a time; the locks of the graph and of its pool
// see to that.
unsafe impl Send for Owned {}

impl Owned {
    /// Enqueues the steps.
    pub fn replay(&self, pool: &mut DevicePool) -> Result<()> {
        pool.replay(&self.0)
    }
}

impl Recorded {
    /// Takes a device's graph.
    pub fn device(graph: DeviceGraph<'static>) -> Self {
        Self::Device(Owned(graph))
    }
}

impl Graph {
    pub fn new(pool: Py<Pool>, recorded: Recorded, held: Vec<Py<PyAny>>) -> Self {
        let steps = match &recorded {
            Recorded::Host(matrices, _) => matrices.len(),
            Recorded::Device(Owned(graph)) => graph.steps(),
        };
        Self { pool, recorded: Mutex::new(recorded), steps, _held: held }
    }

    /// Returns whether a pool captured it.
    pub fn is_of(&self, pool: &Bound<'_, Pool>) -> bool {
        self.pool.is(pool)
    }

    pub fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Graph {
    /// How many steps a replay takes.
    #[getter]
    fn steps(&self) -> usize {
        self.steps
    }

    fn __repr__(&self) -> String {
        format!("Graph(steps={})", self.steps)
    }
}
