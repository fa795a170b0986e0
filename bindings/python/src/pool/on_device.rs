//! What only a device can do: outputs where they lie, graphs of the host program, and batches of drafts.

use gumball_engine::unstable::{
    DeviceOutputs, DraftBatch as EngineDraftBatch, DraftBatchLimits, Recorded as EngineRecorded,
};
use gumball_engine::{Layout, Pool as EnginePool, Proposals, Work};
use pyo3::prelude::*;

use super::Pool;
use super::calls::to_arrays;
use crate::arguments::argument;
use crate::arrays::Dtype;
use crate::device_array::DeviceArray;
use crate::errors::{InvalidValueError, out_of_range, to_py_err, wrong_type};
use crate::lists::extract_int;

/// The calls that a pool on a device has, and none on the host. Pool.on_device makes it.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct OnDevice {
    pool: Py<Pool>,
}

#[pymethods]
impl Pool {
    /// What only a pool on a device can do. Raises UnavailableError for a pool of the host.
    fn on_device(slf: &Bound<'_, Self>) -> PyResult<OnDevice> {
        slf.get().with(slf.py(), None, |inner| inner.pool()?.on_device().map(drop))?;
        Ok(OnDevice { pool: slf.clone().unbind() })
    }
}

/// Returns where one of a batch's outputs lies among them, its type and its shape; `requests` are of a
/// verification.
fn section(name: &str, layout: Layout, requests: usize) -> PyResult<(usize, Dtype, Vec<usize>)> {
    let (rows, widths, end) = (layout.rows, layout.widths, layout.words());
    let (section, dtype, width) = match name {
        "tokens" => (layout.tokens(), Dtype::I32, None),
        "statuses" => (layout.statuses(), Dtype::U32, None),
        "logprobs" => (layout.logprobs(), Dtype::F32, None),
        "ranks" => (layout.ranks(), Dtype::U32, None),
        "temperatures" => (layout.temperatures(), Dtype::F32, None),
        "mirostat_mu" => (layout.mirostat_mu(), Dtype::F32, None),
        "second_logprobs" => (layout.second_logprobs(), Dtype::F32, None),
        "top_ids" => (layout.top_ids(), Dtype::I32, Some(widths.top_n)),
        "top_logprobs" => (layout.top_logprobs(), Dtype::F32, Some(widths.top_n)),
        "id_logprobs" => (layout.id_logprobs(), Dtype::F32, Some(widths.ids)),
        "id_ranks" => (layout.id_ranks(), Dtype::U32, Some(widths.ids)),
        // Of drafts, after the outputs.
        "rows" => (end..end + rows, Dtype::U32, None),
        "accepted" => (end + rows..end + rows + requests, Dtype::U32, None),
        _ => return Err(out_of_range("name", name, "an attribute of Outputs")),
    };
    let shape = std::iter::once(if name == "accepted" { requests } else { rows }).chain(width).collect();
    Ok((section.start, dtype, shape))
}

#[pymethods]
impl OnDevice {
    /// One of the last step's outputs, by its name in Outputs: a DeviceArray whose address stays, with as
    /// many rows as are assigned, over ranks the rows of the whole batch; it needs no copy and no wait. Of
    /// drafts also "rows", [rows] uint32, the row that each output comes from, 2^32 - 1 where no token was
    /// emitted, and "accepted", [requests] uint32. Of a pool with kept sets "kept", [rows, words] uint32, of
    /// which bit id % 32 of word id // 32 is 1 for a kept id; words beyond those of the vocabulary are 0.
    /// Over ranks that sample a share of the rows each, only the first of these are written: this rank's
    /// share.
    ///
    /// Raises ValueError for another name, and for "kept" without kept sets.
    fn outputs(&self, py: Python<'_>, #[pyo3(from_py_with = argument)] name: &str) -> PyResult<DeviceArray> {
        let pool = self.pool.get();
        let (outputs, requests) = pool.with(py, None, |inner| {
            let there = inner.pool()?.on_device()?;
            let shape = there.assigned(None)?;
            let outputs = there.outputs();
            let layout = Layout { rows: shape.rows, ..outputs.layout };
            Ok((DeviceOutputs { layout, ..outputs }, shape.requests))
        })?;
        let (address, dtype, shape) = if name == "kept" {
            if outputs.kept == 0 {
                return Err(out_of_range("name", name, "of a pool with kept sets"));
            }
            (outputs.kept as usize, Dtype::U32, vec![outputs.layout.rows, outputs.kept_words])
        } else {
            let (start, dtype, shape) = section(name, outputs.layout, requests)?;
            (outputs.address as usize + start * size_of::<u32>(), dtype, shape)
        };
        Ok(DeviceArray::new(self.pool.clone_ref(py), address, pool.location, dtype, shape))
    }

    /// The name of the smallest variant that serves the assigned rows: the one whose graph to replay. All
    /// ranks replay the same. Pool.counts lists all, in ascending order; each serves the requests of those
    /// before it, too.
    fn needed_variant(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.pool.get().with(py, None, |inner| Ok(inner.pool()?.on_device()?.needed_variant().name()))
    }

    /// Enqueues work as Pool.enqueue does, with the kernels of a variant, by its name. Returns a Recorded, by
    /// which replays are announced.
    ///
    /// While torch, say, captures a graph on the stream, the work does not run, but becomes part of that
    /// graph, which serves later assignments that the variant serves. Otherwise it runs: call it so once
    /// before the capture, which loads the kernels. Keep a head as long as a graph of torch that has it, and
    /// replay that on one stream with the other steps of the head: nothing here sees its replays.
    ///
    /// Raises the errors of Pool.enqueue, and ValueError if the variant does not serve a row. No sequence has
    /// changed then.
    #[pyo3(signature = (work, *, variant="full", stream=None))]
    fn record<'py>(
        &self,
        py: Python<'py>,
        work: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = argument)] variant: &str,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Recorded> {
        let variant = variant.parse().map_err(to_py_err)?;
        let record = |pool: &mut EnginePool, work: &[Work<'_>]| pool.on_device()?.record(work, variant);
        Ok(Recorded(Pool::with_work(self.pool.bind(py), work, stream, record)?))
    }

    /// Prepares for the replay of the program's own graph, one of torch say, with the current assignments.
    ///
    /// recorded: the Recorded that the graph holds, or a list of them in the order in which they run; for
    /// several replays, that many times. Call it before each replay: nothing else compares the rows with what
    /// was recorded. Waits for the device if histories need more memory, which happens once in history_growth
    /// tokens.
    ///
    /// Raises ValueError if a variant does not serve an assigned row, with the row, its slot and the variants
    /// that do, if the assignment has another shape, and for what another pool recorded. Nothing has changed
    /// then.
    #[pyo3(signature = (recorded, *, stream=None))]
    fn before_replay(
        &self,
        py: Python<'_>,
        recorded: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let wrong = || wrong_type("recorded", "a Recorded, or a list of them", recorded);
        let given: Vec<PyRef<'_, Recorded>> = match recorded.extract() {
            Ok(one) => vec![one],
            Err(_) => recorded.extract().map_err(|_| wrong())?,
        };
        let recorded: Vec<&EngineRecorded> = given.iter().map(|recorded| &recorded.0).collect();
        let pool = self.pool.get();
        let stream = pool.on(py, stream)?;
        pool.with(py, stream, |inner| inner.pool()?.on_device()?.before_replay(&recorded))
    }

    /// Makes a DraftBatch: rows of a draft model in the memory of the pool's device, from which drafts are
    /// drawn without a wait.
    ///
    /// rows: the most rows it may have, at most the pool's. siblings: drafts of a row, 1 for chains, at
    /// most 64. probs: if True, the probabilities that drafts are drawn from are written as well, 4 bytes for
    /// each id of each row. Its memory is taken here; the pool keeps it until free is called.
    ///
    /// Raises UnavailableError on the route "probabilities", and if the device has not enough memory;
    /// ValueError for a number outside its range.
    #[pyo3(signature = (rows, *, siblings=None, probs=false), text_signature = "($self, rows, *, siblings=1, probs=False)")]
    fn add_draft_batch(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        siblings: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] probs: bool,
    ) -> PyResult<DraftBatch> {
        let rows = extract_int::<u32>(rows, "rows")? as usize;
        let siblings = siblings.map_or(Ok(1), |siblings| extract_int::<u32>(siblings, "siblings"))? as usize;
        let limits = DraftBatchLimits { rows, siblings, probs };
        let inner = self
            .pool
            .get()
            .with(py, None, |inner| inner.outside_a_capture()?.on_device()?.add_draft_batch(limits))?;
        Ok(DraftBatch { pool: self.pool.clone_ref(py), inner })
    }
}

/// Work that lies in a graph of the program's own. OnDevice.record makes it, OnDevice.before_replay announces
/// its replays.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Recorded(EngineRecorded);

/// Rows of a draft model in the memory of a pool's device, with memory of their own for their assignment and
/// for drafts that are drawn. A graph may hold several, and the verification after them.
///
/// ::
///
///     batch = pool.on_device().add_draft_batch(len(slots))
///     batch.assign(slots)
///     pool.enqueue([Draft(batch, logits)])        # on the device; waits for nothing
///     ids = torch.from_dlpack(batch.drafts)       # [rows, siblings], overwritten by the next drafts
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct DraftBatch {
    pool: Py<Pool>,
    inner: EngineDraftBatch,
}

impl DraftBatch {
    /// Returns the engine's batch, which must be one of a pool.
    pub(super) fn of(batch: &Bound<'_, PyAny>, pool: &Bound<'_, Pool>) -> PyResult<EngineDraftBatch> {
        let batch = batch.cast::<Self>().map_err(|_| wrong_type("batch", "a DraftBatch", batch))?.get();
        if batch.pool.is(pool) {
            return Ok(batch.inner);
        }
        Err(InvalidValueError::new_err(
            "batch is another pool's, but must be one of the pool that the work is for",
        ))
    }

    fn array(&self, py: Python<'_>, address: usize, dtype: Dtype, shape: Vec<usize>) -> DeviceArray {
        DeviceArray::new(self.pool.clone_ref(py), address, self.pool.get().location, dtype, shape)
    }
}

#[pymethods]
impl DraftBatch {
    /// Assigns a batch to the rows, for the next drafts, also of captured graphs.
    ///
    /// batch: as for Pool.assign, with one slot for each row; a slot may stand there several times.
    /// Batch.counts: for each row how many drafts are in front of it, 0 to 63; None: none of any. A forced
    /// token is the only draft of its row. Waits for nothing, and copies nothing if it is what was assigned
    /// already. The rows of a slot that is released are padding until they are assigned again.
    ///
    /// Raises the errors of Pool.draft.
    #[pyo3(signature = (batch, *, stream=None))]
    fn assign(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.pool.get().assign_to(py, Some(self.inner), batch, stream)
    }

    /// Waits for the enqueued work and returns the last drafts, [rows, siblings] int32, -1 where there are no
    /// more; of a batch with probabilities a pair with these, [rows, vocab] float32, zeros for padding.
    #[pyo3(signature = (*, stream=None))]
    fn fetch<'py>(&self, py: Python<'py>, stream: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let pool = self.pool.get();
        let stream = pool.on(py, stream)?;
        let DraftBatchLimits { siblings, probs, .. } = self.inner.limits();
        let drafted = pool.with(py, stream, |inner| {
            let mut out = if probs { Proposals::with_probs(siblings) } else { Proposals::new(siblings) };
            inner.outside_a_capture()?.on_device()?.fetch_drafts(self.inner, &mut out)?;
            Ok(out)
        })?;
        to_arrays(py, &drafted, siblings, probs.then_some(pool.vocab))
    }

    /// The drafts of the assigned rows in the device's memory: a DeviceArray [rows, siblings] of int32. Its
    /// address stays the same; the next drafts overwrite it.
    #[getter]
    fn drafts(&self, py: Python<'_>) -> PyResult<DeviceArray> {
        let (address, rows) = self.pool.get().with(py, None, |inner| {
            let there = inner.pool()?.on_device()?;
            Ok((there.drafts_address(self.inner)?, there.assigned(Some(self.inner))?.rows))
        })?;
        Ok(self.array(py, address as usize, Dtype::I32, vec![rows, self.inner.limits().siblings]))
    }

    /// The probabilities that the drafts were drawn from, in the device's memory: a DeviceArray [rows,
    /// stride] of float32, of which the first vocab numbers of a row count, as rows of Drafts.probs. Rows of
    /// padding are not written.
    ///
    /// Raises ValueError if the batch was made without.
    #[getter]
    fn probs(&self, py: Python<'_>) -> PyResult<DeviceArray> {
        let (address, rows, stride) = self.pool.get().with(py, None, |inner| {
            let rows = inner.pool()?.on_device()?.draft_probs(self.inner)?;
            Ok((rows.address(), rows.rows(), rows.stride()))
        })?;
        Ok(self.array(py, address as usize, Dtype::F32, vec![rows, stride]))
    }

    /// Removes the batch and frees its memory. Graphs that hold it must not run any more.
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        self.pool
            .get()
            .with(py, None, |inner| inner.outside_a_capture()?.on_device()?.remove_draft_batch(self.inner))
    }
}
