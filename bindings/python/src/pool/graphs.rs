//! Graphs of a pool: steps that are captured once and replayed with one call.

use gumball_engine::{Error, Masks, Work};
use pyo3::prelude::*;

use super::Pool;
use super::backend::Backend;
use super::device_hidden::listed;
use crate::arrays;
use crate::errors::{InvalidValueError, to_py_err};
use crate::graph::{Graph, Recorded};
use crate::options;

#[pymethods]
impl Pool {
    /// Captures a step over logits, or one step for each array of a list, to be replayed in this order.
    /// Returns a Graph.
    ///
    /// Nothing runs yet. A replay uses the assignment of that moment. Requests may be admitted, released and
    /// assigned in between; the number of rows, and whether row_indices and masks are given, must stay the
    /// same. The graph keeps the arrays alive; their addresses must not change. masks: on the device, one
    /// array per array of logits. kind: for all of them, as for step.
    #[pyo3(signature = (logits, *, masks=None, kind="logits", stream=None))]
    fn capture<'py>(
        slf: &Bound<'py, Self>,
        logits: &Bound<'py, PyAny>,
        masks: Option<&Bound<'py, PyAny>>,
        kind: &str,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Graph> {
        let (py, this) = (slf.py(), slf.get());
        let kind = options::kind(kind)?;
        let logits = listed(logits)?;
        let masks: Vec<_> = masks.map_or(Ok(Vec::new()), listed)?;
        if !masks.is_empty() && masks.len() != logits.len() {
            let text = format!(
                "masks has length {}, but must have one for each of logits, {}",
                masks.len(),
                logits.len()
            );
            return Err(InvalidValueError::new_err(text));
        }
        let stream = this.on(py, stream)?;
        let matrix = |object: &Bound<'py, PyAny>, name: &str| {
            let array = arrays::read(object, name, stream)?;
            let matrix = array.matrix(name)?;
            this.check_location(name, matrix.location, "")?;
            if name == "logits" { matrix.check_float() } else { matrix.check_words() }?;
            Ok::<_, PyErr>((matrix, array.into_loan()))
        };
        let read = |objects: &[Bound<'py, PyAny>], name| {
            let read = objects.iter().map(|object| matrix(object, name)).collect::<PyResult<Vec<_>>>()?;
            Ok::<(Vec<_>, Vec<_>), PyErr>(read.into_iter().unzip())
        };
        let (matrices, loans) = read(&logits, "logits")?;
        let (mask_matrices, mask_loans) = read(&masks, "masks")?;
        let mut work = Vec::new();
        for (index, matrix) in matrices.iter().enumerate() {
            // SAFETY: the graph keeps the array alive, and its documentation requires that the address does
            // not change.
            let logits = unsafe { matrix.device_logits() }.map_err(to_py_err)?.with_kind(kind);
            // SAFETY: the graph keeps the array alive, and its documentation requires that the address does
            // not change.
            let masks = mask_matrices.get(index).map(|masks| unsafe { masks.device_masks() });
            let masks = masks.transpose().map_err(to_py_err)?.map_or(Masks::None, Masks::Device);
            work.push(Work::Step(logits.into(), masks));
        }
        let recorded = this.with(py, stream, |inner| match &inner.backend {
            Backend::Host(_) if !mask_matrices.is_empty() => {
                let reason = "on the host masks come by assign";
                Err(Error::Conflict { parameter: "masks", other: "capture", reason })
            }
            Backend::Host(_) => Ok(Recorded::Host(matrices, kind)),
            Backend::Device(pool) => pool.capture(&work).map(Recorded::Device),
        })?;
        let loans = loans.into_iter().chain(mask_loans).flatten();
        let held = logits.into_iter().chain(masks).map(Bound::unbind).chain(loans).collect();
        Ok(Graph::new(slf.clone().unbind(), recorded, held))
    }

    /// Enqueues the steps of a graph, with one call for any number of steps.
    ///
    /// Raises ValueError if another pool captured the graph, or if the assignment's shape differs from that
    /// of the capture.
    #[pyo3(signature = (graph, *, stream=None))]
    fn replay(
        slf: &Bound<'_, Self>,
        graph: &Bound<'_, Graph>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (py, this, graph) = (slf.py(), slf.get(), graph.get());
        if !graph.is_of(slf) {
            return Err(InvalidValueError::new_err(
                "graph is another pool's, but must be captured by this one",
            ));
        }
        let stream = this.on(py, stream)?;
        graph.heads().iter().try_for_each(|head| head.get().check(py, &this.device))?;
        this.with(py, stream, |inner| match (&mut inner.backend, &*graph.recorded()) {
            (Backend::Device(pool), Recorded::Device(recorded)) => {
                // Held until all is enqueued, so that no other pool's step comes between.
                let mut turns: Vec<_> = graph.heads().iter().map(|head| head.get().take()).collect();
                turns
                    .iter_mut()
                    .try_for_each(|turn| turn.order(pool.device().expect("it is on a device")))?;
                pool.replay(recorded)
            }
            (Backend::Host(host), Recorded::Host(matrices, kind)) => matrices.iter().try_for_each(|matrix| {
                // SAFETY: the graph keeps the array alive; Python's callers do not write it during this call.
                let rows = unsafe { matrix.rows_of(*kind) }?;
                host.step(rows, &[], None, &mut inner.out)
            }),
            _ => unreachable!("a graph is of its pool's kind"),
        })
    }
}
