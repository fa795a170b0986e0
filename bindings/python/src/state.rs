//! State: a sequence as plain data between two tokens, to Python's dataclass and back.

use gumball_engine::State;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::errors::{not_a, refuse_class};
use crate::lists::{extract_int, integers, number};
use crate::params::seed;

/// A state that owns its lists.
#[derive(Debug)]
pub struct OwnedState {
    prompt: Vec<u32>,
    output: Vec<u32>,
    seed: u64,
    position: u32,
    draw: u32,
    mu: f32,
}

impl OwnedState {
    /// Copies an engine's state.
    pub fn new(state: State<'_>) -> Self {
        let State { prompt, output, seed, position, draw, mu } = state;
        Self { prompt: prompt.to_vec(), output: output.to_vec(), seed, position, draw, mu }
    }

    /// Reads a `gumball.State`.
    pub fn read(state: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = state.py();
        refuse_class(state, "state", "a gumball.State")?;
        let of = |name| state.getattr(name).map_err(|error| not_a(error, "state", "a gumball.State", state));
        Ok(Self {
            prompt: integers(&of(intern!(py, "prompt"))?, "state.prompt")?,
            output: integers(&of(intern!(py, "output"))?, "state.output")?,
            seed: seed(&of(intern!(py, "seed"))?)?,
            position: extract_int(&of(intern!(py, "position"))?, "state.position")?,
            draw: extract_int(&of(intern!(py, "draw"))?, "state.draw")?,
            mu: number(&of(intern!(py, "mu"))?, "state.mu")?,
        })
    }

    /// Returns the state as the engine takes it.
    pub fn state(&self) -> State<'_> {
        let Self { prompt, output, seed, position, draw, mu } = self;
        State { prompt, output, seed: *seed, position: *position, draw: *draw, mu: *mu }
    }

    /// Returns the state as a `gumball.State`.
    pub fn python<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let class = CLASS.import(py, "gumball.params", "State")?;
        class.call1((self.prompt, self.output, self.seed, self.position, self.draw, f64::from(self.mu)))
    }
}
