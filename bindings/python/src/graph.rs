//! Graphs: steps that are captured once and replayed with one call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gumball_engine::{DeviceGraph, Kind};
use pyo3::prelude::*;

use crate::arrays::Matrix;
use crate::device_head::DeviceHead;
use crate::pool::Pool;

/// Captured steps of a pool. A graph keeps the arrays alive that its steps read.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Graph {
    pool: Py<Pool>,
    recorded: Mutex<Recorded>,
    steps: usize,
    /// The heads whose memory its steps use.
    heads: Vec<Py<DeviceHead>>,
    /// The arrays and their loans, kept so that their memory stays valid.
    _held: Vec<Py<PyAny>>,
}

/// The captured steps.
#[derive(Debug)]
pub enum Recorded {
    /// On a host pool: the logits of each step, and what their rows hold.
    Host(Vec<Matrix>, Kind),
    /// On a device pool: the device's graph. Its owner keeps alive the arrays that it reads.
    Device(DeviceGraph<'static>),
}

/// Captured steps of a DistPool on a device. It keeps the arrays alive that its steps read.
#[pyclass(frozen, module = "gumball.dist")]
#[derive(Debug)]
pub struct DistGraph {
    pool: Py<PyAny>,
    recorded: Mutex<DeviceGraph<'static>>,
    steps: usize,
    _held: Vec<Py<PyAny>>,
}

impl DistGraph {
    pub fn new(pool: Py<PyAny>, recorded: DeviceGraph<'static>, held: Vec<Py<PyAny>>) -> Self {
        let steps = recorded.steps();
        Self { pool, recorded: Mutex::new(recorded), steps, _held: held }
    }

    /// Returns whether `pool` captured this graph.
    pub fn is_of(&self, pool: &Bound<'_, PyAny>) -> bool {
        self.pool.is(pool)
    }

    pub fn recorded(&self) -> MutexGuard<'_, DeviceGraph<'static>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl DistGraph {
    /// The number of steps that a replay takes.
    #[getter]
    fn steps(&self) -> usize {
        self.steps
    }

    fn __repr__(&self) -> String {
        format!("DistGraph(steps={})", self.steps)
    }
}

impl Graph {
    pub fn new(pool: Py<Pool>, recorded: Recorded, held: Vec<Py<PyAny>>) -> Self {
        let steps = match &recorded {
            Recorded::Host(matrices, _) => matrices.len(),
            Recorded::Device(graph) => graph.steps(),
        };
        Self { pool, recorded: Mutex::new(recorded), steps, heads: Vec::new(), _held: held }
    }

    /// Adds the heads whose memory the steps use.
    pub fn with_heads(self, mut heads: Vec<Py<DeviceHead>>) -> Self {
        // Each once, and in the same order in all graphs: a replay takes them one after the other, and so no two wait for each other.
        heads.sort_by_key(|head| head.as_ptr());
        heads.dedup_by_key(|head| head.as_ptr());
        Self { heads, ..self }
    }

    /// Returns the heads, each once, in the order in which they are to be taken.
    pub fn heads(&self) -> &[Py<DeviceHead>] {
        &self.heads
    }

    /// Returns whether `pool` captured this graph.
    pub fn is_of(&self, pool: &Bound<'_, Pool>) -> bool {
        self.pool.is(pool)
    }

    pub fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Graph {
    /// The number of steps that a replay takes.
    #[getter]
    fn steps(&self) -> usize {
        self.steps
    }

    fn __repr__(&self) -> String {
        format!("Graph(steps={})", self.steps)
    }
}
