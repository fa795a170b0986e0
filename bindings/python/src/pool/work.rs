//! Work in order: assigned, enqueued, fetched, captured and replayed.

use gumball_engine::unstable::DraftBatch as EngineDraftBatch;
use gumball_engine::{
    DeviceIntMatrix, DeviceIntMatrixMut, Head as EngineHead, IntType, Masks, Matrix as EngineMatrix,
    Pool as EnginePool, Result, Rows, Work,
};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::batch::{GivenBatch, read_masks};
use super::lists::{GivenDrafts, GivenInts, Reader, int_type};
use super::on_device::DraftBatch;
use super::rows::{GivenRows, HeadInUse, RowsPlace, TakenHeads, engine_rows};
use super::{Inner, Pool};
use crate::arguments::argument;
use crate::arrays::{self, Array, Location, Matrix};
use crate::device_head::DeviceHead;
use crate::errors::{InvalidValueError, draft_names, to_py_err, wrong_type};
use crate::graph::Graph;
use crate::operators::check_writable;
use crate::outputs::Outputs;
use crate::values::{CopyDrafts, Draft, Shorten, Step, Verify};

/// A piece of work, read.
enum Piece {
    Step(PieceRows),
    Verify(PieceRows, GivenDrafts),
    Draft(EngineDraftBatch, PieceRows, Option<DeviceIntMatrix<'static>>),
    CopyDrafts(EngineDraftBatch, DeviceIntMatrixMut<'static>, usize),
    Shorten(GivenInts),
}

/// Rows of a piece and their masks.
struct PieceRows {
    rows: RowsPlace,
    masks: Option<Matrix>,
    /// Whether rows and masks lie in the memory of the pool's device.
    is_there: [bool; 2],
    /// The number of their head among the heads of the work.
    head: usize,
}

/// The heads of the rows of pieces, in turn.
type Heads<'a> = [Option<EngineHead<'a>>];

/// Pieces of work, with the objects that keep their arrays alive.
struct GivenWork<'py> {
    pieces: Vec<Piece>,
    objects: Vec<Bound<'py, PyAny>>,
    rows: Vec<GivenRows<'py>>,
    arrays: Vec<Array<'py>>,
}

impl PieceRows {
    /// Returns rows and masks as the engine takes them.
    ///
    /// # Safety
    /// For `'a`, no code frees or writes the arrays, on a device while work on them runs.
    unsafe fn engine<'a>(&self, heads: &Heads<'a>) -> Result<(Rows<'a>, Masks<'a>)> {
        let [rows_there, masks_there] = self.is_there;
        // SAFETY: the caller's.
        let matrix: EngineMatrix<'a> = unsafe { self.rows.engine(rows_there) }?;
        let masks = self.masks.as_ref().map(|masks| match masks_there {
            // SAFETY: the masks lie on the device; the rest is the caller's.
            true => unsafe { masks.device_masks() }.map(Masks::Device),
            // SAFETY: the masks lie on the host; the rest is the caller's.
            false => unsafe { masks.masks(&[]) },
        });
        Ok((engine_rows(matrix, self.rows.kind, heads[self.head]), masks.transpose()?.unwrap_or(Masks::None)))
    }
}

impl Piece {
    /// Returns the piece as the engine takes it.
    ///
    /// # Safety
    /// For `'a`, no code frees or writes the arrays, on a device while work on them runs.
    unsafe fn engine<'a>(&'a self, heads: &Heads<'a>) -> Result<Work<'a>> {
        Ok(match self {
            Self::Step(rows) => {
                // SAFETY: the caller's.
                let (rows, masks) = unsafe { rows.engine(heads) }?;
                Work::Step(rows, masks)
            }
            Self::Verify(rows, drafts) => {
                // SAFETY: the caller's.
                let (rows, masks) = unsafe { rows.engine(heads) }?;
                // SAFETY: the caller's.
                Work::Verify(rows, masks, unsafe { drafts.engine() }?)
            }
            Self::Draft(batch, rows, paths) => {
                // SAFETY: the caller's.
                let (rows, masks) = unsafe { rows.engine(heads) }?;
                Work::Draft(*batch, rows, masks, *paths)
            }
            Self::CopyDrafts(batch, to, column) => Work::CopyDrafts(*batch, *to, *column),
            Self::Shorten(counts) => Work::Shorten(counts.ids()),
        })
    }

    /// Returns whether all that the piece reads lies in the memory of the device.
    fn is_there(&self) -> bool {
        match self {
            Self::Step(rows) | Self::Draft(_, rows, _) => rows.is_there == [true, true],
            Self::Verify(rows, drafts) => rows.is_there == [true, true] && drafts.is_there(),
            Self::CopyDrafts(..) => true,
            Self::Shorten(counts) => matches!(counts, GivenInts::There(_)),
        }
    }
}

impl<'py> GivenWork<'py> {
    /// Returns the heads for a call.
    fn heads(&self, py: Python<'_>, device: &str) -> PyResult<Vec<HeadInUse<'_>>> {
        self.rows.iter().map(|rows| rows.head(py, device)).collect()
    }
}

impl Pool {
    /// Enqueues pieces of work by `enqueue`.
    pub(super) fn with_work<'py, T: Send>(
        slf: &Bound<'py, Self>,
        work: &Bound<'py, PyAny>,
        stream: Option<&Bound<'py, PyAny>>,
        enqueue: impl FnOnce(&mut EnginePool, &[Work<'_>]) -> Result<T> + Send,
    ) -> PyResult<T> {
        let (py, this) = (slf.py(), slf.get());
        let stream = this.on(py, stream)?;
        let given = Self::read_work(slf, work, stream)?;
        let (in_use, pieces) = (given.heads(py, &this.device)?, &given.pieces);
        let is_there = pieces.iter().all(Piece::is_there);
        this.with(py, stream, |inner| {
            // A graph of the host program would copy stale bytes.
            let pool = if is_there { inner.pool() } else { inner.outside_a_capture() }?;
            let taken = TakenHeads::take(&in_use, pool.device())?;
            let heads: Vec<_> = (0..in_use.len()).map(|head| taken.engine(head)).collect();
            // SAFETY: `given` keeps arrays of the host alive, which are read before the call returns. Owners
            // of memory on the device reuse it in stream order, so not before the work is done; the caller
            // ensures that nobody writes it until then.
            let work =
                pieces.iter().map(|piece| unsafe { piece.engine(&heads) }).collect::<Result<Vec<_>>>()?;
            enqueue(pool, &work).map_err(|error| draft_names(error, None))
        })
    }

    /// Reads a list of pieces of work.
    fn read_work<'py>(
        slf: &Bound<'py, Self>,
        work: &Bound<'py, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<GivenWork<'py>> {
        let (py, this) = (slf.py(), slf.get());
        if !(work.is_instance_of::<PyList>() || work.is_instance_of::<PyTuple>()) {
            return Err(wrong_type("work", "a list of Step, Verify, Draft, CopyDrafts and Shorten", work));
        }
        let there = Some(this.location).filter(|_| this.device != "cpu");
        let mut reader = Reader { there, stream, arrays: Vec::new() };
        let (mut pieces, mut rows) = (Vec::new(), Vec::new());
        let mut piece_rows = |object: &Py<PyAny>, masks: &Option<Py<PyAny>>, reader: &mut Reader<'py>| {
            let read = this.read_rows(object.bind(py), stream)?;
            let masks = masks.as_ref().map(|masks| read_masks(masks.bind(py), stream)).transpose()?;
            let is_there =
                |matrix: Option<&Matrix>| matrix.is_none_or(|matrix| there == Some(matrix.location));
            let (masks, array) = masks.unzip();
            if let Some(masks) = masks.filter(|masks| masks.location != Location::Host) {
                this.check_location("masks", masks.location, "")?;
            }
            reader.arrays.extend(array);
            let is_there = [is_there(Some(&read.place.matrix)), is_there(masks.as_ref())];
            let (place, head) = (read.place, rows.len());
            rows.push(read);
            Ok::<_, PyErr>(PieceRows { rows: place, masks, is_there, head })
        };
        let objects = work.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        for piece in &objects {
            pieces.push(if let Ok(step) = piece.cast::<Step>() {
                let Step { rows, masks } = step.get();
                Piece::Step(piece_rows(rows, masks, &mut reader)?)
            } else if let Ok(verify) = piece.cast::<Verify>() {
                let Verify { rows, drafts, masks } = verify.get();
                let rows = piece_rows(rows, masks, &mut reader)?;
                let drafts = reader.drafts(drafts.bind(py))?;
                if drafts.counts.as_ref().is_some_and(|counts| counts.windows(2).any(|pair| pair[0] != pair[1])) {
                    let text = "drafts in work must be one list, or as many for each request: Batch.counts says how many each has";
                    return Err(InvalidValueError::new_err(text));
                }
                Piece::Verify(rows, drafts)
            } else if let Ok(draft) = piece.cast::<Draft>() {
                let Draft { batch, rows, paths, masks } = draft.get();
                let (batch, rows) = (DraftBatch::of(batch.bind(py), slf)?, piece_rows(rows, masks, &mut reader)?);
                let paths = paths.as_ref().map(|paths| this.read_paths(paths.bind(py), &mut reader)).transpose()?;
                Piece::Draft(batch, rows, paths)
            } else if let Ok(copy) = piece.cast::<CopyDrafts>() {
                let CopyDrafts { batch, to, column } = copy.get();
                let batch = DraftBatch::of(batch.bind(py), slf)?;
                Piece::CopyDrafts(batch, this.read_chains(to.bind(py), &mut reader)?, *column)
            } else if let Ok(shorten) = piece.cast::<Shorten>() {
                Piece::Shorten(reader.ints(shorten.get().counts.bind(py), "counts")?.1)
            } else {
                return Err(wrong_type("work", "of Step, Verify, Draft, CopyDrafts and Shorten", piece));
            });
        }
        Ok(GivenWork { pieces, objects, rows, arrays: reader.arrays })
    }

    /// Reads rows of ids on the pool's device.
    fn read_paths<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        reader: &mut Reader<'py>,
    ) -> PyResult<DeviceIntMatrix<'static>> {
        let (address, dtype, [rows, width, stride]) = self.read_ids(object, "paths", false, reader)?;
        // SAFETY: the array has as many rows of this type. The caller keeps it alive; its owner reuses memory
        // in stream order, and the methods' documentation forbids other writes until the work is done.
        let paths = unsafe { DeviceIntMatrix::new(address, dtype, rows, width, stride) };
        paths.map_err(|error| to_py_err(error.with_parameter(|_| "paths")))
    }

    /// Reads rows of ids on the pool's device that drafts are copied to.
    fn read_chains<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        reader: &mut Reader<'py>,
    ) -> PyResult<DeviceIntMatrixMut<'static>> {
        let (address, dtype, [rows, width, stride]) = self.read_ids(object, "to", true, reader)?;
        // SAFETY: as of `read_paths`; and it is writable.
        let to = unsafe { DeviceIntMatrixMut::new(address, dtype, rows, width, stride) };
        to.map_err(|error| to_py_err(error.with_parameter(|_| "to")))
    }

    /// Reads a matrix of ids on the pool's device: where it lies, of which type, how many rows of how many
    /// ids, and how far apart these are.
    fn read_ids<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        name: &str,
        is_written: bool,
        reader: &mut Reader<'py>,
    ) -> PyResult<(u64, IntType, [usize; 3])> {
        let array = arrays::read(object, name, reader.stream)?;
        self.check_location(name, array.location, "; Pool.draft takes lists of the host")?;
        let ([rows, width], is_matrix) =
            (array.shape, array.ndim == 2 && (array.shape[1] <= 1 || array.strides[1] == 1));
        let stride = usize::try_from(array.strides[0]).ok().filter(|_| is_matrix);
        let Some(stride) = stride else {
            let text = format!("{name} must have two dimensions, the ids of a row without gaps");
            return Err(InvalidValueError::new_err(text));
        };
        check_writable(is_written && array.readonly, name)?;
        let (dtype, address) = (int_type(&array, name)?, array.address as u64);
        reader.arrays.push(array);
        Ok((address, dtype, [rows, width, stride.max(width)]))
    }
}

#[pymethods]
impl Pool {
    /// Assigns a batch to the rows of the next work, that of captured graphs included: of steps, or with
    /// Batch.counts of verifications.
    ///
    /// batch: as for step and verify; masks lie on the host and are copied. The call does not wait for the
    /// device, and it copies nothing that is unchanged. The first mode but "coupled" and "greedy" takes
    /// memory of the device for the probabilities of the pool's rows.
    ///
    /// Raises the errors of step and verify, and ValueError for hooks.
    #[pyo3(signature = (batch, *, stream=None))]
    fn assign(
        &self,
        py: Python<'_>,
        batch: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.assign_to(py, None, batch, stream)
    }

    /// Does work for the assigned rows, in this order, without waiting for the device; on a host pool it is
    /// done on return. Each piece reads what those before it have written.
    ///
    /// While the batch stays the same, the call only launches kernels. Until the work is done, write or free
    /// arrays on the device only in stream order; rows and drafts of the host are copied up. work: a list of
    /// Step, Verify, Draft, CopyDrafts and Shorten. For a graph of torch see OnDevice.record.
    ///
    /// Raises the errors of step and verify, ValueError for masks of the host, without an assignment, for a
    /// step if drafts were assigned and the other way round, and while a graph is captured on the stream. No
    /// sequence has changed then.
    #[pyo3(signature = (work, *, stream=None))]
    fn enqueue<'py>(
        slf: &Bound<'py, Self>,
        work: &Bound<'py, PyAny>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        Self::with_work(slf, work, stream, |pool, work| pool.enqueue(work))
    }

    /// Waits for the enqueued work and returns the Outputs of the last step or verification, over ranks of
    /// the whole batch. The outputs of a direct call it has returned. Over ranks it raises LateError if a
    /// rank was late or gone, DisagreeError if it took another step; the group is broken then.
    #[pyo3(signature = (*, stream=None))]
    fn fetch(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Outputs> {
        let (stream, kept) = (self.on(py, stream)?, self.kept);
        self.with(py, stream, |inner| {
            inner.outside_a_capture()?;
            let Inner { pool, out } = inner;
            pool.as_mut().expect("there outside of `close`").fetch(out)?;
            Ok(Outputs::new(out, kept))
        })
    }

    /// Captures work, to be replayed in this order. Returns a Graph. On a device only. Nothing runs yet.
    ///
    /// A replay uses what was assigned at that moment, and reads what lies in the arrays then: it drafts,
    /// verifies and advances without the host. Requests may be admitted, released and assigned in between.
    /// The numbers of requests and rows, the modes, over ranks the layout, and whether row_indices and masks
    /// are given, must stay the same. The graph keeps heads and arrays alive; the arrays' addresses must not
    /// change. Steps and verifications share one assignment, so a graph has either of them. For a graph with
    /// kernels of a model between ours see OnDevice.record.
    ///
    /// work: as for enqueue, all in the memory of the device. Raises the errors of enqueue, and
    /// UnavailableError for a pool of the host.
    #[pyo3(signature = (work, *, stream=None))]
    fn capture<'py>(
        slf: &Bound<'py, Self>,
        work: &Bound<'py, PyAny>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Graph> {
        let (py, this) = (slf.py(), slf.get());
        let stream = this.on(py, stream)?;
        let given = Self::read_work(slf, work, stream)?;
        if this.device != "cpu" && !given.pieces.iter().all(Piece::is_there) {
            let text = format!("work reads memory of cpu, but a graph must read that of {}", this.device);
            return Err(InvalidValueError::new_err(text));
        }
        given.heads(py, &this.device)?;
        let heads: Vec<Option<&DeviceHead>> =
            given.rows.iter().map(|rows| rows.device_head().map(|head| head.get())).collect();
        let pieces = &given.pieces;
        let recorded = this.with(py, stream, |inner| {
            let pool = inner.outside_a_capture()?;
            // SAFETY: the graph keeps the heads alive. `Pool.replay` takes the pool's lock and the head's
            // before it reads the head.
            let heads: Vec<_> =
                heads.iter().map(|head| head.map(|head| unsafe { head.for_graph() }.into())).collect();
            // SAFETY: pieces borrow lists alone, of which there is none, as all lies on a device.
            let pieces: &'static [Piece] = unsafe { &*std::ptr::from_ref(&pieces[..]) };
            // SAFETY: the graph keeps the arrays alive, and its documentation requires that their addresses
            // do not change.
            let work =
                pieces.iter().map(|piece| unsafe { piece.engine(&heads) }).collect::<Result<Vec<_>>>()?;
            pool.capture(&work).map_err(|error| draft_names(error, None))
        })?;
        let heads = given
            .rows
            .iter()
            .filter_map(|rows| rows.device_head())
            .map(|head| head.clone().unbind())
            .collect();
        let arrays = given.rows.into_iter().map(|rows| rows.array).chain(given.arrays);
        let held = given.objects.into_iter().map(Bound::unbind).chain(arrays.filter_map(Array::into_loan));
        Ok(Graph::new(slf.clone().unbind(), recorded, heads, held.collect()))
    }

    /// Enqueues the work of a graph, with one call for however much it is.
    ///
    /// Raises ValueError if another pool captured the graph, or if the assignment's shape differs from the
    /// capture's.
    #[pyo3(signature = (graph, *, stream=None))]
    fn replay(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = argument)] graph: Bound<'_, Graph>,
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
        let in_use: Vec<_> = graph.heads().iter().map(|head| HeadInUse::Device(head.get())).collect();
        this.with(py, stream, |inner| {
            let pool = inner.pool()?;
            // Held until all is enqueued, so that no other pool's step comes between.
            let _taken = TakenHeads::take(&in_use, pool.device())?;
            pool.replay(&graph.recorded())
        })
    }
}

impl Pool {
    /// Assigns a batch to the pool's rows, or to the rows of a batch of drafts.
    pub(super) fn assign_to(
        &self,
        py: Python<'_>,
        of: Option<EngineDraftBatch>,
        batch: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stream = self.on(py, stream)?;
        let batch = GivenBatch::read(batch)?;
        batch.refuse_hooks()?;
        let (masks, _held) = self.read_masks(py, &batch, stream)?;
        if let Some(masks) = &masks {
            masks.check_host("masks")?;
        }
        // Rows of a batch of drafts are always said to have some in front of them, or none.
        let none = vec![0; if of.is_some() && batch.counts.is_empty() { batch.slots.len() } else { 0 }];
        let batch = &*batch;
        self.with(py, stream, |inner| {
            let pool = inner.outside_a_capture()?;
            // SAFETY: `_held` keeps the masks alive until the call has copied them; Python's callers do not
            // write them meanwhile.
            let batch = unsafe { batch.engine(masks.as_ref(), &[]) }?;
            let counts = if none.is_empty() { batch.counts } else { &none };
            pool.assign(&gumball_engine::Batch { of, counts, ..batch })
        })
    }
}
