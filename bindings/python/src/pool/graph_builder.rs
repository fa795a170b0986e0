//! Graphs of several kinds of work: drafts of batches, verifications, steps and what takes tokens away, in the order in which a
//! replay runs them.

use std::sync::{Mutex, PoisonError};

use gumball_engine::{
    DeviceHead as EngineHead, DeviceIntMatrix, DeviceMatrix, DraftBatch as Batch, Masks, Rows, Work,
};
use pyo3::prelude::*;

use super::draft::DraftBatch;
use super::drafts::{Arrays, Given, on_device};
use super::{Pool, of_rows};
use crate::arrays::{self, Array, Matrix};
use crate::device_head::DeviceHead;
use crate::errors::{InvalidValueError, draft_names, to_py_err};
use crate::graph::{Graph, Recorded};
use crate::options;

/// Work, the heads that it uses, and the arrays that it reads or writes, with their loans.
#[derive(Debug, Default)]
struct Parts {
    work: Vec<Work<'static>>,
    heads: Vec<Py<DeviceHead>>,
    objects: Vec<Py<PyAny>>,
}

/// Work that a graph of a pool on a device will run, in the order of the calls. Pool.graph_builder makes one.
///
/// ::
///
///     chains = torch.zeros(len(slots), 2, dtype=torch.int32, device="cuda")
///     builder = pool.graph_builder()
///     builder.draft(first, first_logits).copy_drafts(first, chains)
///     builder.draft(second, second_logits, chains).copy_drafts(second, chains, 1)
///     graph = builder.verify(logits, chains).capture()
///     pool.replay(graph)                          # drafts, verifies and advances; waits for nothing
///
/// The methods return the builder, and raise ValueError or TypeError for an array of another type or device, and for a batch of
/// another pool. The graph keeps the arrays alive; their addresses must not change. A replay reads what lies there then, and
/// each piece of work reads what those before it have written.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct GraphBuilder {
    pool: Py<Pool>,
    stream: Option<usize>,
    parts: Mutex<Parts>,
}

impl GraphBuilder {
    /// Adds work over rows, of which a head makes logits if there is one.
    fn add(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Option<&'static EngineHead<'static>>) -> Work<'static> + Send,
        head: Option<&Bound<'_, DeviceHead>>,
        mut objects: Vec<Py<PyAny>>,
        arrays: Vec<Array<'_>>,
    ) {
        objects.extend(arrays.into_iter().filter_map(Array::into_loan));
        let mut heads: Vec<_> = head.map(|head| head.clone().unbind()).into_iter().collect();
        // Without the GIL: a capture on another thread may have the parts while it waits for the pool.
        py.detach(|| {
            // SAFETY: the builder and its graphs keep the head alive. `Pool.replay` takes the pool's lock and the head's before it reads the head.
            let work = work(heads.first().map(|head| unsafe { head.get().for_graph() }));
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            parts.work.push(work);
            parts.heads.append(&mut heads);
            parts.objects.append(&mut objects);
        });
    }

    /// Returns objects of the parts; as `add`, without the GIL while it waits.
    fn listed<T>(&self, py: Python<'_>, objects: impl Fn(&Parts) -> &[Py<T>]) -> Vec<Py<T>> {
        loop {
            if let Ok(parts) = self.parts.try_lock() {
                return objects(&parts).iter().map(|object| object.clone_ref(py)).collect();
            }
            py.detach(|| drop(self.parts.lock()));
        }
    }

    /// Returns a batch of the builder's pool.
    fn batch(&self, batch: &Bound<'_, DraftBatch>) -> PyResult<Batch> {
        batch.get().of(&self.pool).ok_or_else(|| {
            InvalidValueError::new_err(
                "batch is another pool's, but must be one of the pool that the graph is for",
            )
        })
    }
}

/// Returns hidden states with the head that `GraphBuilder::add` was given.
fn of_head(head: Option<&'static EngineHead<'static>>, states: DeviceMatrix<'static>) -> Rows<'static> {
    Rows::hidden(head.expect("handed to `add`"), states)
}

#[pymethods]
impl Pool {
    /// Returns a GraphBuilder: calls its methods in the order in which a replay shall run them, then capture. On a device only.
    ///
    /// For a graph with kernels of a model between ours capture the calls of the same names with torch instead.
    ///
    /// Raises UnavailableError for a pool of the host.
    #[pyo3(signature = (*, stream=None))]
    fn graph_builder<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<GraphBuilder> {
        let (py, this) = (slf.py(), slf.get());
        let stream = this.on(py, stream)?;
        this.with(py, stream, |inner| on_device(inner).map(drop))?;
        Ok(GraphBuilder { pool: slf.clone().unbind(), stream, parts: Mutex::default() })
    }
}

#[pymethods]
impl GraphBuilder {
    /// Adds a step of the rows that are assigned, as Pool.enqueue takes it.
    #[pyo3(signature = (logits, *, masks=None, kind="logits"))]
    fn step<'py>(
        slf: Bound<'py, Self>,
        logits: &Bound<'py, PyAny>,
        masks: Option<&Bound<'py, PyAny>>,
        kind: &str,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        let ((rows, words), arrays) =
            this.pool.get().read_input(("logits", logits, masks), kind, this.stream)?;
        let objects = [Some(logits), masks].into_iter().flatten().map(|object| object.clone().unbind());
        let work = move |_| Work::Step(rows.into(), words);
        this.add(slf.py(), work, None, objects.collect(), arrays);
        Ok(slf)
    }

    /// Adds a step from hidden states, as Pool.enqueue_hidden takes it.
    #[pyo3(signature = (head, hidden, *, masks=None))]
    fn step_hidden<'py>(
        slf: Bound<'py, Self>,
        head: &Bound<'py, DeviceHead>,
        hidden: &Bound<'py, PyAny>,
        masks: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let (py, this) = (slf.py(), slf.get());
        head.get().check(py, &this.pool.get().device)?;
        let ((rows, words), arrays) =
            this.pool.get().read_input(("hidden", hidden, masks), "logits", this.stream)?;
        let objects = [Some(hidden), masks].into_iter().flatten().map(|object| object.clone().unbind());
        let work = move |head| Work::Step(of_head(head, rows), words);
        this.add(slf.py(), work, Some(head), objects.collect(), arrays);
        Ok(slf)
    }

    /// Adds the verification of drafts from hidden states, as Pool.enqueue_verify_hidden takes it.
    #[pyo3(
        signature = (
            head, hidden, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, masks=None,
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn verify_hidden<'py>(
        slf: Bound<'py, Self>,
        head: &Bound<'py, DeviceHead>,
        hidden: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Self>> {
        let (py, this) = (slf.py(), slf.get());
        head.get().check(py, &this.pool.get().device)?;
        let links = [first_child, next_sibling];
        let given = Given { rows: ("hidden", hidden), drafts, parents, links, probs: draft_probs, masks };
        let Arrays { rows, masks, drafts, arrays, .. } =
            this.pool.get().draft_reader(this.stream).arrays(&given, "logits")?;
        let work = move |head| Work::Verify(of_head(head, rows), masks, drafts);
        this.add(slf.py(), work, Some(head), given.objects(), arrays);
        Ok(slf)
    }

    /// Adds the verification of drafts on the device, as Pool.enqueue_verify takes it.
    #[pyo3(
        signature = (
            logits, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, masks=None, kind="logits",
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn verify<'py>(
        slf: Bound<'py, Self>,
        logits: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        kind: &str,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        let given = Given {
            rows: ("logits", logits),
            drafts,
            parents,
            links: [first_child, next_sibling],
            probs: draft_probs,
            masks,
        };
        let Arrays { rows, masks, drafts, arrays, .. } =
            this.pool.get().draft_reader(this.stream).arrays(&given, kind)?;
        let work = move |_| Work::Verify(rows.into(), masks, drafts);
        this.add(slf.py(), work, None, given.objects(), arrays);
        Ok(slf)
    }

    /// Adds drafts of a DraftBatch, as its enqueue takes them.
    #[pyo3(signature = (batch, logits, paths=None, *, masks=None, kind="logits"))]
    fn draft<'py>(
        slf: Bound<'py, Self>,
        batch: &Bound<'py, DraftBatch>,
        logits: &Bound<'py, PyAny>,
        paths: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        kind: &str,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        let (pool, of) = (this.pool.get(), this.batch(batch)?);
        let ((rows, words), mut arrays) = pool.read_input(("logits", logits, masks), kind, this.stream)?;
        let (there, array): (Option<DeviceIntMatrix<'static>>, _) =
            paths.map(|paths| pool.read_paths(paths, "paths", this.stream)).transpose()?.unzip();
        arrays.extend(array);
        let objects = [Some(logits), paths, masks].into_iter().flatten();
        let objects = objects.map(|object| object.clone().unbind()).collect();
        this.add(slf.py(), move |_| Work::Draft(of, rows.into(), words, there), None, objects, arrays);
        Ok(slf)
    }

    /// Adds a copy of the drafts of a DraftBatch, as its copy takes it.
    #[pyo3(signature = (batch, to, column=0))]
    fn copy_drafts<'py>(
        slf: Bound<'py, Self>,
        batch: &Bound<'py, DraftBatch>,
        to: &Bound<'py, PyAny>,
        column: usize,
    ) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        let of = this.batch(batch)?;
        let (matrix, array) = this.pool.get().read_chains(to, this.stream)?;
        let work = move |_| Work::CopyDrafts(of, matrix, column);
        this.add(slf.py(), work, None, vec![to.clone().unbind()], vec![array]);
        Ok(slf)
    }

    /// Adds taking the last output tokens of the assigned requests away, as Pool.enqueue_shorten does with counts on the device.
    fn shorten<'py>(slf: Bound<'py, Self>, counts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        let (column, array) = this.pool.get().draft_reader(this.stream).integers(counts, "counts")?;
        let objects = vec![counts.clone().unbind()];
        this.add(slf.py(), move |_| Work::Shorten(column.into()), None, objects, vec![array]);
        Ok(slf)
    }

    /// Captures the work for Pool.replay, and returns a Graph. Nothing runs yet. The builder may go on, for a longer graph.
    ///
    /// A replay uses what assign or assign_drafts, and assign of each batch, said last. The numbers of requests and rows, the modes,
    /// and whether row_indices and masks are given, must stay the same. Steps and verifications go by one assignment, so a graph
    /// has either of them.
    ///
    /// Raises ValueError if shapes do not match what is assigned.
    fn capture(&self, py: Python<'_>) -> PyResult<Graph> {
        let pool = self.pool.get();
        let heads = self.listed(py, |parts| &parts.heads);
        heads.iter().try_for_each(|head| head.get().check(py, &pool.device))?;
        let recorded = pool.with(py, self.stream, |inner| {
            inner.outside_a_capture()?;
            let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            on_device(inner)?.capture(&parts.work).map(Recorded::Device).map_err(draft_names)
        })?;
        let held = self.listed(py, |parts| &parts.objects);
        Ok(Graph::new(self.pool.clone_ref(py), recorded, held).with_heads(heads))
    }
}

impl Pool {
    /// Reads the rows of a step on the pool's device, logits or hidden states, and their masks. The first argument names the rows in errors.
    pub(super) fn read_input<'py>(
        &self,
        (name, logits, masks): (&str, &Bound<'py, PyAny>, Option<&Bound<'py, PyAny>>),
        kind: &str,
        stream: Option<usize>,
    ) -> PyResult<((DeviceMatrix<'static>, Masks<'static>), Vec<Array<'py>>)> {
        let kind = options::kind(kind)?;
        let matrix = |object: &Bound<'py, PyAny>, name: &str| {
            let array = arrays::read(object, name, stream)?;
            let matrix = array.matrix(name)?;
            let advice = match name {
                "hidden" => "; Pool.step_hidden copies hidden states of the host up",
                _ => "; Pool.draft copies rows of the host up",
            };
            self.check_location(name, matrix.location, advice)?;
            if name == "masks" { matrix.check_words() } else { matrix.check_float_of(name) }?;
            Ok::<_, PyErr>((matrix, array))
        };
        let (rows, logits) = matrix(logits, name)?;
        let (words, masks) = masks.map(|masks| matrix(masks, "masks")).transpose()?.unzip();
        // SAFETY: the logits lie on the device. The caller keeps them alive; their owner reuses memory in stream order, and the
        // methods' documentation forbids other writes until the work is done.
        let logits_there = unsafe { rows.device_logits() }.map_err(|error| of_rows(name, error));
        let logits_there = logits_there.map_err(to_py_err)?.with_kind(kind);
        let words = words.map(|words: Matrix| {
            // SAFETY: the masks lie on the device; the rest is as of the logits.
            unsafe { words.device_masks() }
        });
        let words = words.transpose().map_err(to_py_err)?.map_or(Masks::None, Masks::Device);
        Ok(((logits_there, words), [Some(logits), masks].into_iter().flatten().collect()))
    }
}
