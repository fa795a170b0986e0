//! Steps over the devices of a group, over rows in their memory: enqueued, captured, replayed, and their results.

use gumball_engine::{Batch, Outputs as EngineOutputs, Slot, Work};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::{DistPlan, DistPool};
use crate::arrays::{self, Array, Matrix};
use crate::device_array::Owner;
use crate::errors::{InvalidValueError, out_of_range, to_py_err};
use crate::graph::DistGraph;
use crate::lists::{extract_int, integers};
use crate::options::{self, Keywords};
use crate::outputs::Outputs;
use crate::pool::{DraftReader, OutputPlace};

impl DistPool {
    /// Reads rows in the memory of the pool's device.
    fn read_rows<'py>(&self, py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<(Matrix, Array<'py>)> {
        let array = arrays::read(rows, "logits", self.on(py)?)?;
        let matrix = array.matrix("logits")?;
        matrix.check_float()?;
        if matrix.location != self.location {
            let allowed = format!("on {}, where the pool is", self.location);
            return Err(out_of_range("logits", format!("on {}", matrix.location), allowed));
        }
        Ok((matrix, array))
    }
}

#[pymethods]
impl DistPool {
    /// Assigns slots, a plan and options to the next steps on a device, those of captured graphs included. Waits for nothing.
    ///
    /// slots, plan, masks, mask_present, forced: as for step; masks lie on the host.
    ///
    /// Raises UnavailableError for a pool of the host, and the errors of step.
    #[pyo3(signature = (slots, *, plan=None, masks=None, mask_present=None, forced=None))]
    fn assign<'py>(
        &self,
        py: Python<'py>,
        slots: &Bound<'py, PyAny>,
        plan: Option<&Bound<'py, DistPlan>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let keywords = Keywords { masks, mask_present, forced, row_indices: None, hooks: None };
        let (options, _held) = keywords.read(None)?;
        options.masks_on_host()?;
        let plan = plan.map(|plan| plan.get().plan);
        self.with(py, |home| {
            home.device()?;
            // SAFETY: `_held` keeps the masks alive until the call has copied them; Python's callers do not write them meanwhile.
            let batch = unsafe { options.batch(&Batch { plan, ..Batch::of(&slots) }) }?;
            home.device()?.assign(&batch)
        })
    }

    /// Enqueues a step of what was assigned, and returns without waiting: the next token of each row, on all ranks. On a device only.
    ///
    /// logits: rows of this rank on the device, in the shape that step takes. kind: as for step. Until the work is done, write or free
    /// them only in stream order. A step in a graph of torch is captured like this, too.
    ///
    /// Raises UnavailableError for a pool of the host; ValueError or TypeError for another shape, type or device; BrokenError after an
    /// exchange that failed.
    #[pyo3(signature = (logits, *, kind="logits"))]
    fn enqueue<'py>(&self, py: Python<'py>, logits: &Bound<'py, PyAny>, kind: &str) -> PyResult<()> {
        let kind = options::kind(kind)?;
        self.with(py, |home| home.device().map(drop))?;
        let (matrix, array) = self.read_rows(py, logits)?;
        self.with(py, |home| {
            home.order_after(&[array.stream])?;
            // SAFETY: the rows lie on the device. Their owner reuses memory in stream order, so it is not reused before the step is
            // done. The caller ensures that nobody writes them until then.
            let rows = unsafe { matrix.device_logits() }?.with_kind(kind);
            home.device()?.enqueue(&[Work::step(rows)])
        })
    }

    /// Captures a step over rows on the device, or one for each array of a list, to be replayed in this order. Returns a DistGraph. On a
    /// device only. Nothing runs yet.
    ///
    /// A replay uses the assignment of that moment, which must have the layout and the number of rows of the one at the capture. The
    /// graph keeps the arrays alive; their addresses must not change.
    #[pyo3(signature = (logits, *, kind="logits"))]
    fn capture<'py>(slf: &Bound<'py, Self>, logits: &Bound<'py, PyAny>, kind: &str) -> PyResult<DistGraph> {
        let (py, this, kind) = (slf.py(), slf.get(), options::kind(kind)?);
        this.with(py, |home| home.device().map(drop))?;
        let several = logits.is_instance_of::<PyList>() || logits.is_instance_of::<PyTuple>();
        let objects: Vec<Bound<'py, PyAny>> =
            if several { logits.try_iter()?.collect::<PyResult<_>>()? } else { vec![logits.clone()] };
        let read = objects.iter().map(|object| this.read_rows(py, object)).collect::<PyResult<Vec<_>>>()?;
        let (matrices, arrays): (Vec<Matrix>, Vec<Array<'py>>) = read.into_iter().unzip();
        let mut work = Vec::new();
        for matrix in &matrices {
            // SAFETY: the graph keeps the array alive, and its documentation requires that the address does not change.
            work.push(Work::step(unsafe { matrix.device_logits() }.map_err(to_py_err)?.with_kind(kind)));
        }
        let captured = this.with(py, |home| home.device()?.capture(&work))?;
        let loans = arrays.into_iter().filter_map(Array::into_loan);
        let held = objects.into_iter().map(Bound::unbind).chain(loans).collect();
        Ok(DistGraph::new(slf.clone().into_any().unbind(), captured, held))
    }

    /// Enqueues the steps of a graph that this pool captured, and returns without waiting.
    fn replay(slf: &Bound<'_, Self>, graph: &Bound<'_, DistGraph>) -> PyResult<()> {
        let graph = graph.get();
        if !graph.is_of(slf.as_any()) {
            return Err(InvalidValueError::new_err(
                "graph is another pool's, but must be captured by this one",
            ));
        }
        slf.get().with(slf.py(), |home| home.device()?.replay(&graph.recorded()))
    }

    /// Prepares for replays of the program's own graph, one of torch say, that take steps steps or verifications of this pool in all, with the current
    /// assignment, whose plan must have the layout and the numbers of rows of ranks of that at the capture. On a device only. Call it again after
    /// each assignment. Waits for the device if histories need more memory, which happens once in history_growth tokens.
    #[pyo3(signature = (steps=None), text_signature = "($self, steps=1)")]
    fn reserve_replays(&self, py: Python<'_>, steps: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let steps = steps.map_or(Ok(1), |steps| extract_int(steps, "steps"))?;
        self.with(py, |home| home.device()?.reserve_replays(steps))
    }

    /// Takes the last output tokens of the assigned requests away again, as Pool.enqueue_shorten does, and returns without waiting. On a device
    /// only. Nothing is sent: all ranks make the call, with the same numbers. Raises ValueError if ranks own requests that are no neighbours.
    fn enqueue_shorten<'py>(&self, py: Python<'py>, counts: &Bound<'py, PyAny>) -> PyResult<()> {
        self.with(py, |home| home.device().map(drop))?;
        let reader = DraftReader { location: self.location, stream: self.on(py)? };
        let (column, array) = reader.integers(counts, "counts")?;
        self.with(py, |home| {
            home.order_after(&[array.stream])?;
            home.device()?.enqueue(&[Work::Shorten(column.into())])
        })
    }

    /// One of the last step's outputs on the device, of the whole batch, by its name in Outputs; of drafts also "rows" and "accepted": see
    /// Pool.outputs_on_device. Needs no wait. Valid until the pool is closed.
    ///
    /// Raises UnavailableError for a pool of the host, ValueError for another name.
    fn outputs_on_device<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let (address, layout, requests) = this.with(py, |home| {
            let pool = home.device()?;
            let (layout, requests) = pool.results_layout();
            Ok((pool.results_address(), layout, requests))
        })?;
        let place = OutputPlace::of(name, layout, requests)?;
        let array = place.array(Owner::Ranks(slf.clone().unbind()), address, this.location);
        Ok(Bound::new(py, array)?.into_any())
    }

    /// Waits for the enqueued steps, and returns the Outputs of the last one: the whole batch, on every rank. On a device only.
    ///
    /// Raises LateError if a rank was late or gone, DisagreeError if it took another step; the group is broken then.
    fn fetch(&self, py: Python<'_>) -> PyResult<Outputs> {
        self.with(py, |home| {
            let mut out = EngineOutputs::new();
            home.device()?.fetch(&mut out)?;
            Ok(Outputs::new(&out, false))
        })
    }
}
