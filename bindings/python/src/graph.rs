//! Graphs: work that is captured once and replayed with one call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gumball_engine::unstable::DeviceGraph;
use pyo3::prelude::*;

use crate::device_head::DeviceHead;
use crate::pool::Pool;

/// Captured work of a pool on a device. A graph keeps the arrays alive that its work reads.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Graph {
    pool: Py<Pool>,
    recorded: Mutex<DeviceGraph<'static>>,
    /// The number of steps that a replay takes.
    #[pyo3(get)]
    steps: usize,
    /// The heads whose memory its steps use.
    heads: Vec<Py<DeviceHead>>,
    /// The work, and the loans of its arrays, kept so that their memory stays valid.
    _held: Vec<Py<PyAny>>,
}

impl Graph {
    pub fn new(
        pool: Py<Pool>,
        recorded: DeviceGraph<'static>,
        heads: Vec<Py<DeviceHead>>,
        held: Vec<Py<PyAny>>,
    ) -> Self {
        let steps = recorded.steps();
        Self { pool, recorded: Mutex::new(recorded), steps, heads, _held: held }
    }

    /// Returns the heads that the work uses.
    pub fn heads(&self) -> &[Py<DeviceHead>] {
        &self.heads
    }

    /// Returns whether `pool` captured this graph.
    pub fn is_of(&self, pool: &Bound<'_, Pool>) -> bool {
        self.pool.is(pool)
    }

    pub fn recorded(&self) -> MutexGuard<'_, DeviceGraph<'static>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Graph {
    fn __repr__(&self) -> String {
        format!("Graph(steps={})", self.steps)
    }
}
