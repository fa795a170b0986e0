//! Drafts of a draft model: drawn in one call, or by batches whose rows, paths and drafts lie on a device.

use gumball_engine::{
    Batch as RowBatch, DeviceIntMatrix, DeviceIntMatrixMut, DraftBatch as Batch, DraftBatchLimits, Error,
    IntType, Kind, Proposals, Result, Slot, Work,
};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

use super::backend::Backend;
use super::draft_lists::PathLists;
use super::{Inner, Pool, backend, variants, verify};
use crate::arrays::{self, Array, Dtype, Matrix};
use crate::device_array::{DeviceArray, Owner};
use crate::errors::{InvalidTypeError, InvalidValueError, draft_names, to_py_err};
use crate::lists::{extract_int, integers};
use crate::modules;
use crate::options::{self, Keywords, Options};
use crate::turns::Caller;

/// The parts of a call that are needed without the GIL.
struct Call<'a> {
    logits: Matrix,
    kind: Kind,
    /// Slots, the lengths of paths, and how drafts will be judged.
    of_rows: RowBatch<'a>,
    paths: &'a [i32],
    options: &'a Options,
    /// The streams on which the owners of logits and masks write them, if they name one.
    others: [Option<usize>; 2],
    caller: Caller<'a>,
}

impl Inner {
    /// Draws drafts on the host or on the device, and waits for them.
    fn draft(&mut self, call: &Call<'_>, out: &mut Proposals) -> Result<()> {
        let Call { logits, kind, of_rows, paths, options, others, caller } = call;
        self.order_after(others)?;
        let backend = self.outside_a_capture()?;
        // SAFETY: the caller keeps the logits alive; Python's callers do not write them during the call, which waits for the drafts.
        let rows = unsafe { logits.rows_there(*kind) }?;
        let draft = |batch: &RowBatch<'_>| match backend {
            Backend::Host(host) => host.pool.draft(rows, batch, paths, out),
            Backend::Device(pool) => pool.draft(rows, batch, paths, out),
        };
        // SAFETY: the caller keeps the masks alive; Python's callers do not write them during the call.
        unsafe { options.with_hooks(caller, of_rows, draft) }
    }

    /// Returns the pool of a device; on the host there is none.
    fn device_pool(&mut self) -> Result<&mut gumball_engine::Pool> {
        match &mut self.backend {
            Backend::Device(pool) => Ok(pool),
            Backend::Host(_) => {
                let reason = "the pool is on cpu, where draft does all at once".to_owned();
                Err(Error::Unavailable { resource: "batches of drafts in the memory of a device", reason })
            }
        }
    }
}

/// Returns drafts as arrays: ids, and their probabilities if there are some.
pub fn to_arrays<'py>(
    py: Python<'py>,
    drafted: &Proposals,
    (rows, siblings): (usize, usize),
    vocab: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    modules::load_numpy(py)?;
    let ids = PyArray1::from_slice(py, drafted.ids()).reshape([rows, siblings])?;
    let Some(vocab) = vocab else { return Ok(ids.into_any()) };
    let probs = PyArray1::from_slice(py, drafted.probs()).reshape([rows, vocab])?;
    Ok((ids, probs).into_pyobject(py)?.into_any())
}

#[pymethods]
impl Pool {
    /// Draws drafts from the rows of a draft model, and changes no sequence; returns them as [rows, siblings] int32,
    /// -1 where there are no more.
    ///
    /// A row stands behind the history of its sequence and a path of drafts. Its drafts are the first tokens that
    /// arrive in the request's race over the row, with all its parameters and with the path as output: the first is
    /// what the request would draw there if the row were the target's, the others, siblings of a tree, are the
    /// runners-up. mode is that which verify will judge the drafts by; drafts for "block" are drawn by random words
    /// of their own, as that mode requires.
    ///
    /// logits: [rows, vocab], as for step: on the host, or on the pool's device. slots: one per row, -1 for padding; a slot may stand there
    /// several times. paths: for each row a list or an integer array of up to 63 ids; an array [rows, n] if all have
    /// n; if omitted, all rows follow the histories. siblings: drafts of a row, 1 for chains, at most 64. probs: if True,
    /// returns a pair with the probabilities that the drafts are drawn from, [rows, vocab] float32, as rows of
    /// verify's draft_probs. masks, mask_present, forced, row_indices, hooks, kind: as for step; a forced token is the only
    /// draft of its row. stream: as for step.
    ///
    /// For drafts that nothing waits for, and in graphs, see draft_batch.
    ///
    /// Raises UnavailableError on a device for hooks and for the route "probabilities", and on the host on that route for
    /// several siblings, for mode "block" and for probs; ValueError for an id of a path outside the vocabulary, for a path that is too long and for
    /// a request with mirostat; and the errors of step.
    #[pyo3(
        signature = (
            logits, slots, *, paths=None, siblings=None, mode="coupled", probs=false, masks=None, mask_present=None,
            forced=None, row_indices=None, hooks=None, kind="logits", stream=None,
        ),
        text_signature = "($self, logits, slots, *, paths=None, siblings=1, mode='coupled', probs=False, masks=None, \
                          mask_present=None, forced=None, row_indices=None, hooks=None, kind='logits', \
                          stream=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn draft<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        paths: Option<&Bound<'py, PyAny>>,
        siblings: Option<&Bound<'py, PyAny>>,
        mode: &str,
        probs: bool,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        row_indices: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
        kind: &str,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mode = verify::mode(mode, None, None)?;
        let kind = options::kind(kind)?;
        let stream = self.on(py, stream)?;
        let (matrix, array) = self.read_logits(logits, stream)?;
        let slots = integers(slots, "slots")?;
        let siblings = siblings.map_or(Ok(1), |siblings| extract_int::<u32>(siblings, "siblings"))? as usize;
        let lists = PathLists::read(paths)?;
        let keywords = Keywords { masks, mask_present, forced, row_indices, hooks };
        let (options, masks) = keywords.read(stream)?;
        self.check_masks(&options, &matrix)?;
        let rows = if options.row_indices.is_empty() { matrix.rows } else { options.row_indices.len() };
        let vocab = self.vocab;
        let others = [array.stream, masks.as_ref().and_then(|masks| masks.stream)];
        let call = Call {
            logits: matrix,
            kind,
            of_rows: lists.of_rows(&slots, mode),
            paths: &lists.ids,
            options: &options,
            others,
            caller: self.caller(),
        };
        let drafted = self.with(py, stream, |inner| {
            let mut out = if probs { Proposals::with_probs(siblings) } else { Proposals::new(siblings) };
            inner.draft(&call, &mut out).map_err(draft_names)?;
            Ok(out)
        })?;
        to_arrays(py, &drafted, (rows, siblings), probs.then_some(vocab))
    }

    /// Makes a DraftBatch: rows of a draft model in the memory of the pool's device, from which drafts are drawn without a wait.
    /// On a device only.
    ///
    /// rows: the most rows it may have, at most the pool's. siblings: drafts of a row, 1 for chains, at most 64. probs: if True, the
    /// probabilities that drafts are drawn from are written as well, 4 bytes for each id of each row. Its memory is taken
    /// here; the pool keeps it until free is called.
    ///
    /// Raises UnavailableError for a pool of the host, on the route "probabilities", and if the device has not enough
    /// memory; ValueError for a number outside its range.
    #[pyo3(signature = (rows, *, siblings=None, probs=false), text_signature = "($self, rows, *, siblings=1, probs=False)")]
    fn draft_batch(
        slf: &Bound<'_, Self>,
        rows: &Bound<'_, PyAny>,
        siblings: Option<&Bound<'_, PyAny>>,
        probs: bool,
    ) -> PyResult<DraftBatch> {
        let (py, this) = (slf.py(), slf.get());
        let rows = extract_int::<u32>(rows, "rows")? as usize;
        let siblings = siblings.map_or(Ok(1), |siblings| extract_int::<u32>(siblings, "siblings"))? as usize;
        let limits = DraftBatchLimits { rows, siblings, probs };
        let inner = this.with(py, None, |inner| {
            inner.device_pool()?;
            inner.outside_a_capture()?;
            inner.device_pool()?.on_device()?.add_draft_batch(limits)
        })?;
        Ok(DraftBatch { pool: slf.clone().unbind(), inner })
    }
}

/// Rows of a draft model in the memory of a pool's device, with memory of their own for what is assigned to them and what is
/// drawn. A graph of torch may hold several, and the verification behind them.
///
/// ::
///
///     batch = pool.draft_batch(rows=len(slots))
///     batch.assign(slots)
///     batch.enqueue(logits)                       # on the device; waits for nothing
///     ids = torch.from_dlpack(batch.drafts)       # [rows, siblings], overwritten by the next enqueue
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct DraftBatch {
    pool: Py<Pool>,
    inner: Batch,
}

impl Pool {
    /// Reads rows of ids on the pool's device.
    pub(super) fn read_paths<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        name: &str,
        stream: Option<usize>,
    ) -> PyResult<(DeviceIntMatrix<'static>, Array<'py>)> {
        let ((dtype, rows, width, stride), array) = self.read_ids(object, name, stream)?;
        // SAFETY: the array has as many rows of this type. The caller keeps it alive; its owner reuses memory in stream order,
        // and the methods' documentation forbids other writes until the work is done.
        let matrix = unsafe { DeviceIntMatrix::new(array.address as u64, dtype, rows, width, stride) };
        Ok((matrix.map_err(to_py_err)?, array))
    }

    /// Reads rows of ids on the pool's device that drafts are copied to.
    pub(super) fn read_chains<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<(DeviceIntMatrixMut<'static>, Array<'py>)> {
        let ((dtype, rows, width, stride), array) = self.read_ids(object, "to", stream)?;
        if array.readonly {
            return Err(InvalidValueError::new_err("to is read-only, but must be an array to write to"));
        }
        // SAFETY: as of `read_paths`; and it is writable.
        let matrix = unsafe { DeviceIntMatrixMut::new(array.address as u64, dtype, rows, width, stride) };
        Ok((matrix.map_err(to_py_err)?, array))
    }

    /// Reads the type of the ids, and how many rows there are, how wide, and how many ids apart.
    fn read_ids<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        name: &str,
        stream: Option<usize>,
    ) -> PyResult<((IntType, usize, usize, usize), Array<'py>)> {
        let array = arrays::read(object, name, stream)?;
        self.check_location(name, array.location, "; Pool.draft takes lists of the host")?;
        let dtype = match array.dtype {
            Dtype::I32 => IntType::I32,
            Dtype::I64 => IntType::I64,
            other => {
                let text = format!("{name} is of {}, but must be of int32 or int64", other.name());
                return Err(InvalidTypeError::new_err(text));
            }
        };
        let is_matrix = array.ndim == 2 && (array.shape[1] <= 1 || array.strides[1] == 1);
        let stride = usize::try_from(array.strides[0]).ok().filter(|_| is_matrix);
        let Some(stride) = stride else {
            let text = format!("{name} must have two dimensions, the ids of a row without gaps");
            return Err(InvalidValueError::new_err(text));
        };
        let (rows, width) = (array.shape[0], array.shape[1]);
        Ok(((dtype, rows, width, stride.max(width)), array))
    }
}

impl DraftBatch {
    /// Returns the engine's batch, if it is one of a pool.
    pub(super) fn of(&self, pool: &Py<Pool>) -> Option<Batch> {
        self.pool.is(pool).then_some(self.inner)
    }

    fn array(&self, py: Python<'_>, address: usize, dtype: Dtype, shape: Vec<usize>) -> DeviceArray {
        DeviceArray::new(
            Owner::Pool(self.pool.clone_ref(py)),
            address,
            self.pool.get().location,
            dtype,
            shape,
        )
    }
}

#[pymethods]
impl DraftBatch {
    /// Assigns slots and options to the rows, for the next drafts, those of captured graphs included.
    ///
    /// slots: one per row, -1 for padding; a slot may stand there several times. counts: for each row how many drafts are in
    /// front of it, 0 to 63; None: none of any. mode: that which verify will judge the drafts by. masks, mask_present, forced,
    /// row_indices: as for Pool.assign, one for each row; a forced token is the only draft of its row. Waits for nothing,
    /// and copies nothing if it is what was assigned already. The rows of a slot that is released are padding until they
    /// are assigned again.
    ///
    /// Raises the errors of Pool.draft.
    #[pyo3(
        signature = (
            slots, counts=None, *, mode="coupled", masks=None, mask_present=None, forced=None, row_indices=None, stream=None,
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn assign<'py>(
        &self,
        py: Python<'py>,
        slots: &Bound<'py, PyAny>,
        counts: Option<&Bound<'py, PyAny>>,
        mode: &str,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        row_indices: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let pool = self.pool.get();
        let (stream, mode) = (pool.on(py, stream)?, verify::mode(mode, None, None)?);
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let counts: Vec<u32> =
            counts.map_or_else(|| Ok(vec![0; slots.len()]), |counts| integers(counts, "counts"))?;
        let of = RowBatch { counts: &counts, mode, of: Some(self.inner), ..RowBatch::of(&slots) };
        let keywords = Keywords { masks, mask_present, forced, row_indices, hooks: None };
        let (options, _held) = keywords.read(stream)?;
        options.masks_on_host()?;
        options.check_present().map_err(to_py_err)?;
        pool.with(py, stream, |inner| {
            inner.outside_a_capture()?;
            // SAFETY: `_held` keeps the masks alive until the call has copied them; Python's callers do not write them
            // meanwhile.
            let batch = unsafe { options.batch(&of) }?;
            inner.device_pool()?.assign(&batch).map_err(draft_names)
        })
    }

    /// Draws drafts from the rows of a draft model for what was assigned, and returns without waiting. It only launches kernels.
    /// No sequence changes; the requests are as the device has them when it gets there.
    ///
    /// To capture it with torch, call Pool.reserve_replays before replays. logits: [rows, vocab] on the device. paths: int32 or
    /// int64 [rows, n] on the device, the ids of a row without gaps; of each row the first ids are in front of it, as many as
    /// were assigned. Behind a path that has an id outside the vocabulary, such as -1, there are no drafts. masks: on the device,
    /// one for each row. Until the work is done, write or free the arrays only in stream order. kind, variant, stream: as for
    /// Pool.enqueue.
    ///
    /// Raises ValueError or TypeError for another shape, type or device, and for a variant that does not serve a request.
    #[pyo3(signature = (logits, paths=None, *, masks=None, kind="logits", variant=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn enqueue<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        paths: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        kind: &str,
        variant: Option<&str>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let pool = self.pool.get();
        let (stream, variant) = (pool.on(py, stream)?, variants::variant(variant)?);
        let ((rows, masks), mut held) = pool.read_input(("logits", logits, masks), kind, stream)?;
        let paths = paths.map(|paths| pool.read_paths(paths, "paths", stream)).transpose()?;
        let (paths, ids) = paths.unzip();
        held.extend(ids);
        let others: Vec<_> = held.iter().map(|array| array.stream).collect();
        pool.with(py, stream, |inner| {
            inner.order_after(&others)?;
            let work = Work::Draft(self.inner, rows.into(), masks, paths);
            backend::enqueue(inner.device_pool()?, work, None, variant).map_err(draft_names)
        })
    }

    /// Copies the drafts of the assigned rows into an array on the device, and returns without waiting: the siblings of a row to columns
    /// from column on. So the drafts of several batches come together in chains, which the next batch takes as paths, and
    /// enqueue_verify as drafts. It may be captured with torch.
    ///
    /// to: int32 or int64 [rows, n], the ids of a row without gaps.
    ///
    /// Raises ValueError or TypeError for another shape, type or device.
    #[pyo3(signature = (to, column=0, *, stream=None))]
    fn copy(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        column: usize,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let pool = self.pool.get();
        let stream = pool.on(py, stream)?;
        let (to, array) = pool.read_chains(to, stream)?;
        pool.with(py, stream, |inner| {
            inner.order_after(&[array.stream])?;
            inner.device_pool()?.enqueue(&[Work::CopyDrafts(self.inner, to, column)])
        })
    }

    /// Waits for the enqueued work and returns the last drafts, [rows, siblings] int32, -1 where there are no more; of a batch
    /// with probabilities a pair with these, [rows, vocab] float32, zeros for padding.
    #[pyo3(signature = (*, stream=None))]
    fn fetch<'py>(&self, py: Python<'py>, stream: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let pool = self.pool.get();
        let stream = pool.on(py, stream)?;
        let DraftBatchLimits { siblings, probs, .. } = self.inner.limits();
        let (drafted, rows) = pool.with(py, stream, |inner| {
            inner.outside_a_capture()?;
            let mut out = if probs { Proposals::with_probs(siblings) } else { Proposals::new(siblings) };
            let there = inner.device_pool()?;
            there.on_device()?.fetch_drafts(self.inner, &mut out)?;
            Ok((out, there.on_device()?.assigned(Some(self.inner))?.rows))
        })?;
        to_arrays(py, &drafted, (rows, siblings), probs.then_some(pool.vocab))
    }

    /// The drafts of the assigned rows in the device's memory: a DeviceArray [rows, siblings] of int32. Its address stays the
    /// same; each enqueue overwrites it.
    #[getter]
    fn drafts(&self, py: Python<'_>) -> PyResult<DeviceArray> {
        let (address, rows) = self.pool.get().with(py, None, |inner| {
            let there = inner.device_pool()?;
            Ok((
                there.on_device()?.drafts_address(self.inner)?,
                there.on_device()?.assigned(Some(self.inner))?.rows,
            ))
        })?;
        Ok(self.array(py, address as usize, Dtype::I32, vec![rows, self.inner.limits().siblings]))
    }

    /// The probabilities that the drafts were drawn from, in the device's memory: a DeviceArray [rows, stride] of float32, of which
    /// the first vocab numbers of a row count, as rows of enqueue_verify's draft_probs. Rows of padding are not written.
    ///
    /// Raises ValueError if the batch was made without.
    #[getter]
    fn probs(&self, py: Python<'_>) -> PyResult<DeviceArray> {
        let (address, rows, stride) = self.pool.get().with(py, None, |inner| {
            let rows = inner.device_pool()?.on_device()?.draft_probs(self.inner)?;
            Ok((rows.address(), rows.rows(), rows.stride()))
        })?;
        Ok(self.array(py, address as usize, Dtype::F32, vec![rows, stride]))
    }

    /// Frees the batch's memory. Graphs that hold it must not run any more.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        self.pool.get().with(py, None, |inner| {
            inner.outside_a_capture()?;
            inner.device_pool()?.on_device()?.remove_draft_batch(self.inner)
        })
    }
}
