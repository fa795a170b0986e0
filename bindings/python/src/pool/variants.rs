//! The variants of steps that the host program captures in graphs of its own.

use gumball_engine::{Result, StepVariant};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::Pool;
use super::backend::Backend;
use crate::errors::to_py_err;
use crate::lists::extract_int;

impl Backend {
    /// Returns the smallest variant that serves the assigned rows.
    fn needed_variant(&mut self) -> StepVariant {
        match self {
            Backend::Host(host) => host.needed_variant(),
            Backend::Device(pool) => pool.on_device().expect("it is on a device").needed_variant(),
        }
    }

    /// Returns how many steps each variant has served.
    fn variants(&mut self) -> Vec<(StepVariant, u64)> {
        match self {
            Backend::Host(host) => StepVariant::ALL.into_iter().zip(host.served).collect(),
            Backend::Device(pool) => pool.on_device().expect("it is on a device").variants().to_vec(),
        }
    }

    fn reserve_replays(&mut self, steps: usize, variant: StepVariant) -> Result<()> {
        match self {
            Backend::Host(host) => host.check_variant(variant),
            Backend::Device(pool) => pool.on_device()?.reserve_replays(steps, variant),
        }
    }
}

/// Reads the name of a variant, if one is given.
pub fn variant(name: Option<&str>) -> PyResult<Option<StepVariant>> {
    name.map(|name| name.parse().map_err(to_py_err)).transpose()
}

#[pymethods]
impl Pool {
    /// Returns the variants of a step that a program can capture in a graph of its own, in ascending order: a list of
    /// Variant, with the number of steps that each has served.
    ///
    /// Each serves the requests of those before it, too. Steps reserved for replays count under the variant that was
    /// named, all others under the one that was named or the smallest that serves their rows.
    fn variants<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let class = CLASS.import(py, "gumball.params", "Variant")?;
        let served = self.with(py, None, |inner| Ok(inner.backend.variants()))?;
        let made =
            |(variant, steps): (StepVariant, u64)| class.call1((variant.name(), variant.serves(), steps));
        served.into_iter().map(made).collect()
    }

    /// The name of the smallest variant that serves the assigned rows: the one whose graph to replay.
    fn needed_variant(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.with(py, None, |inner| Ok(inner.backend.needed_variant().name()))
    }

    /// Prepares for replays of the program's own graph that take steps steps of this pool in all, with the current
    /// assignment.
    ///
    /// variant: the one that the steps were captured under; "full" if none was named. Call it again after each
    /// assignment: no other call compares the rows with the graph's variant. Waits for the device if histories need more
    /// memory, which happens once in history_growth tokens.
    ///
    /// Raises ValueError if the variant does not serve an assigned row, with the row, its slot and the variants that
    /// do. Nothing has changed then.
    #[pyo3(signature = (steps=None, *, variant="full", stream=None), text_signature = "($self, steps=1, *, variant='full', stream=None)")]
    fn reserve_replays(
        &self,
        py: Python<'_>,
        steps: Option<&Bound<'_, PyAny>>,
        variant: &str,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let steps = steps.map_or(Ok(1), |steps| extract_int(steps, "steps"))?;
        let variant = variant.parse().map_err(to_py_err)?;
        let stream = self.on(py, stream)?;
        self.with(py, stream, |inner| inner.backend.reserve_replays(steps, variant))
    }
}
