//! Drafts in the memory of a pool's device: assigned, verified there without a wait, captured, fetched.

use gumball_engine::{
    Batch, DeviceMatrix, DeviceSlice, Drafts, Error, IntType, Masks, Matrix, Outputs as Verified, Result,
    Slot, Tree, Work,
};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::backend::Backend;
use super::{Inner, Pool, backend, check_location, of_rows, variants, verify};
use crate::arrays::{self, Array, Dtype, Location};
use crate::errors::{InvalidTypeError, InvalidValueError, draft_names, to_py_err};
use crate::graph::{Graph, Recorded};
use crate::lists::integers;
use crate::options::{self, Keywords};
use crate::verification::Verification;

/// The arrays of a verification on a device.
pub struct Arrays<'py> {
    pub rows: DeviceMatrix<'static>,
    pub masks: Masks<'static>,
    pub drafts: Drafts<'static>,
    /// The streams on which their owners write them, if they name one.
    pub others: Vec<Option<usize>>,
    /// Logits, masks, drafts, parents and the drafter's probabilities.
    pub arrays: Vec<Array<'py>>,
}

/// What Python hands over for a verification on a device.
#[derive(Clone, Copy)]
pub struct Given<'a, 'py> {
    /// Logits or hidden states, by that name.
    pub rows: (&'static str, &'a Bound<'py, PyAny>),
    pub drafts: &'a Bound<'py, PyAny>,
    pub parents: Option<&'a Bound<'py, PyAny>>,
    /// First children and next siblings.
    pub links: [Option<&'a Bound<'py, PyAny>>; 2],
    pub probs: Option<&'a Bound<'py, PyAny>>,
    pub masks: Option<&'a Bound<'py, PyAny>>,
}

impl Given<'_, '_> {
    /// Returns the objects, which a graph keeps alive.
    pub fn objects(&self) -> Vec<Py<PyAny>> {
        let Self { rows: (_, rows), drafts, parents, links: [first_child, next_sibling], probs, masks } =
            *self;
        let given = [Some(rows), masks, Some(drafts), parents, first_child, next_sibling, probs];
        let given = given.into_iter().flatten();
        given.map(|object| object.clone().unbind()).collect()
    }
}

/// Returns the pool of a device; on the host there is none.
pub(super) fn on_device(inner: &mut Inner) -> Result<&mut gumball_engine::Pool> {
    match &mut inner.backend {
        Backend::Device(pool) => Ok(pool),
        Backend::Host(_) => {
            let reason = "the pool is on cpu, where verify does all at once".to_owned();
            Err(Error::Unavailable { resource: "drafts in the memory of a device", reason })
        }
    }
}

/// Reads arrays of a verification, which lie where a pool on a device can read them.
#[derive(Clone, Copy, Debug)]
pub struct DraftReader {
    pub location: Location,
    /// The stream on which the pool reads them.
    pub stream: Option<usize>,
}

impl DraftReader {
    /// Reads an array of integers.
    pub fn integers<'py>(
        self,
        object: &Bound<'py, PyAny>,
        name: &str,
    ) -> PyResult<(DeviceSlice<'static>, Array<'py>)> {
        let array = arrays::read(object, name, self.stream)?.flat();
        check_location(name, array.location, self.location, "; verify takes lists of the host")?;
        let dtype = match array.dtype {
            Dtype::I32 => IntType::I32,
            Dtype::I64 => IntType::I64,
            other => {
                let text = format!("{name} is of {}, but must be of int32 or int64", other.name());
                return Err(InvalidTypeError::new_err(text));
            }
        };
        if array.ndim != 1 || (array.shape[0] > 1 && array.strides[0] != 1) {
            let text = format!("{name} must have one dimension, or two, without gaps");
            return Err(InvalidValueError::new_err(text));
        }
        // SAFETY: the array has as many numbers of this type. The caller keeps it alive; its owner reuses memory
        // in stream order, and the methods' documentation forbids other writes until the work is done.
        let column = unsafe { DeviceSlice::new(array.address as u64, dtype, array.shape[0]) };
        Ok((column.map_err(to_py_err)?, array))
    }

    /// Reads all arrays of a verification.
    pub fn arrays<'py>(self, given: &Given<'_, 'py>, kind: &str) -> PyResult<Arrays<'py>> {
        let Given { rows: (name, rows), drafts, parents, links, probs, masks } = *given;
        let kind = options::kind(kind)?;
        let matrix = |object: &Bound<'py, PyAny>, name: &str| {
            let array = arrays::read(object, name, self.stream)?;
            let matrix = array.matrix(name)?;
            let advice = match name {
                "logits" => "; verify copies rows of the host up",
                _ => "; copy it there first",
            };
            check_location(name, matrix.location, self.location, advice)?;
            match name {
                "logits" | "hidden" => matrix.check_float_of(name)?,
                "masks" => matrix.check_words()?,
                _ => matrix.check_f32(name)?,
            }
            Ok::<_, PyErr>((matrix, array))
        };
        let (rows, logits) = matrix(rows, name)?;
        let masks = masks.map(|masks| matrix(masks, "masks")).transpose()?;
        let (ids, drafts) = self.integers(drafts, "drafts")?;
        let (tree, tree_arrays) = match (parents, links) {
            (None, [None, None]) => (Tree::Chain, Vec::new()),
            (Some(parents), [None, None]) => {
                let (parents, array) = self.integers(parents, "parents")?;
                (Tree::Parents(parents.into()), vec![array])
            }
            (None, [Some(first_child), Some(next_sibling)]) => {
                let (first_child, first) = self.integers(first_child, "first_child")?;
                let (next_sibling, next) = self.integers(next_sibling, "next_sibling")?;
                let (first_child, next_sibling) = (first_child.into(), next_sibling.into());
                (Tree::Links { first_child, next_sibling }, vec![first, next])
            }
            (Some(_), [Some(_), Some(_)]) => {
                let reason = "a tree is held one way or the other";
                let error = Error::Conflict { parameter: "parents", other: "first_child", reason };
                return Err(to_py_err(error));
            }
            _ => return Err(InvalidValueError::new_err("first_child and next_sibling come together")),
        };
        let (probs, probs_array) = probs.map(|probs| matrix(probs, "draft_probs")).transpose()?.unzip();
        let probs = probs.map(|probs| {
            // SAFETY: the probabilities lie on the device; the rest is as of the logits.
            unsafe { probs.device_logits() }.map_err(to_py_err)
        });
        // SAFETY: the logits lie on the device. The caller keeps them alive; their owner reuses memory in stream
        // order, and the methods' documentation forbids other writes until the work is done.
        let rows = unsafe { rows.device_logits() }.map_err(|error| to_py_err(of_rows(name, error)))?;
        let rows = rows.with_kind(kind);
        let words = masks.as_ref().map(|(words, _)| {
            // SAFETY: the masks lie on the device; the rest is as of the logits.
            unsafe { words.device_masks() }
        });
        let words = words.transpose().map_err(to_py_err)?.map_or(Masks::None, Masks::Device);
        let masks = masks.map(|(_, array)| array);
        let arrays = [Some(logits), masks, Some(drafts), probs_array];
        let arrays: Vec<_> = arrays.into_iter().flatten().chain(tree_arrays).collect();
        let others = arrays.iter().map(|array| array.stream).collect();
        let probs = probs.transpose()?.map(Matrix::Device);
        Ok(Arrays { rows, masks: words, drafts: Drafts { ids: ids.into(), tree, probs }, others, arrays })
    }
}

impl Pool {
    /// Returns what reads arrays on the pool's device.
    pub(super) fn draft_reader(&self, stream: Option<usize>) -> DraftReader {
        DraftReader { location: self.location, stream }
    }
}

#[pymethods]
impl Pool {
    /// Assigns slots with their numbers of drafts to the next verifications of drafts on the device, those of captured
    /// graphs included. On a device only.
    ///
    /// slots: one per request, -1 for padding. counts: for each slot how many drafts its request has, 0 to 64; it has one
    /// row more. mode, threshold_single, threshold_acc: as for verify. Other arguments: as for assign, with one element for
    /// each row: that at the end of a request's history, then one behind each of its drafts.
    ///
    /// The first mode but "coupled" and "greedy" takes memory of the device for the probabilities of the pool's rows.
    ///
    /// Raises UnavailableError for a pool of the host, and the errors of verify.
    #[pyo3(
        signature = (
            slots, counts, *, mode="coupled", threshold_single=None, threshold_acc=None, masks=None, mask_present=None,
            forced=None, row_indices=None, stream=None,
        ),
        text_signature = "($self, slots, counts, *, mode='coupled', threshold_single=1.0, threshold_acc=1.0, masks=None, \
                          mask_present=None, forced=None, row_indices=None, stream=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn assign_drafts<'py>(
        &self,
        py: Python<'py>,
        slots: &Bound<'py, PyAny>,
        counts: &Bound<'py, PyAny>,
        mode: &str,
        threshold_single: Option<&Bound<'py, PyAny>>,
        threshold_acc: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        row_indices: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let (stream, mode) = (self.on(py, stream)?, verify::mode(mode, threshold_single, threshold_acc)?);
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let counts: Vec<u32> = integers(counts, "counts")?;
        let keywords = Keywords { masks, mask_present, forced, row_indices, hooks: None };
        let (options, _held) = keywords.read(stream)?;
        options.masks_on_host()?;
        options.check_present().map_err(to_py_err)?;
        self.with(py, stream, |inner| {
            inner.outside_a_capture()?;
            let of = Batch { counts: &counts, mode, ..Batch::of(&slots) };
            // SAFETY: `_held` keeps the masks alive until the call has copied them; Python's callers do not write
            // them meanwhile.
            let batch = unsafe { options.batch(&of) }?;
            on_device(inner)?.assign(&batch).map_err(draft_names)?;
            inner.note_assigned()
        })
    }

    /// Enqueues the verification of drafts that lie on the device, for the requests that assign_drafts was given, and returns
    /// without waiting. On a device only.
    ///
    /// The device advances each request by its emitted tokens, so a step or another verification may follow at once. The
    /// call only launches kernels. To capture it with torch, call reserve_replays before replays; each replay reads the
    /// drafts that lie there then.
    ///
    /// logits: [requests + drafts, vocab]. drafts: int32 or int64, the drafts of all requests, one request after the other;
    /// or [requests, n] if all have n. Values that are no ids, such as -1, are never accepted. parents: in the same shape, as
    /// for verify. first_child, next_sibling: the trees as links instead, as for verify, one element for each row; or
    /// [requests, n + 1]. They are not checked: a request whose parents or links are no tree takes a step, with the status NO_TREE.
    /// draft_probs: [requests + drafts, vocab] float32, as for verify. masks: on the device, one for each row. Until the work is done, write or free the arrays only in stream order. kind, variant,
    /// stream: as for enqueue.
    ///
    /// Raises UnavailableError for a pool of the host; ValueError or TypeError for another shape, type or device, without
    /// drafts assigned, and for a variant that does not serve a request. No sequence has changed then.
    #[pyo3(
        signature = (
            logits, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, masks=None, kind="logits",
            variant=None, stream=None,
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn enqueue_verify<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        kind: &str,
        variant: Option<&str>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let (stream, variant) = (self.on(py, stream)?, variants::variant(variant)?);
        let given = Given {
            rows: ("logits", logits),
            drafts,
            parents,
            links: [first_child, next_sibling],
            probs: draft_probs,
            masks,
        };
        let Arrays { rows, masks, drafts, others, arrays: _held } =
            self.draft_reader(stream).arrays(&given, kind)?;
        self.with(py, stream, |inner| {
            inner.order_after(&others)?;
            let work = Work::Verify(rows.into(), masks, drafts);
            backend::enqueue(on_device(inner)?, work, None, variant).map_err(draft_names)
        })
    }

    /// Captures the verification of drafts on the device, to be replayed. Returns a Graph. On a device only.
    ///
    /// Nothing runs yet. A replay uses the assignment of that moment, and reads the drafts that lie there then. The numbers of
    /// requests and of rows, the mode, and whether row_indices and masks are given, must stay the same. The graph keeps the
    /// arrays alive; their addresses must not change. Arguments: as for enqueue_verify.
    #[pyo3(
        signature = (
            logits, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, masks=None, kind="logits",
            stream=None,
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn capture_verify<'py>(
        slf: &Bound<'py, Self>,
        logits: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        kind: &str,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Graph> {
        let (py, this) = (slf.py(), slf.get());
        let stream = this.on(py, stream)?;
        let given = Given {
            rows: ("logits", logits),
            drafts,
            parents,
            links: [first_child, next_sibling],
            probs: draft_probs,
            masks,
        };
        let Arrays { rows, masks, drafts, arrays, .. } = this.draft_reader(stream).arrays(&given, kind)?;
        let recorded = this.with(py, stream, |inner| {
            let captured = on_device(inner)?.capture(&[Work::Verify(rows.into(), masks, drafts)]);
            captured.map(Recorded::Device).map_err(draft_names)
        })?;
        let loans = arrays.into_iter().filter_map(Array::into_loan);
        Ok(Graph::new(slf.clone().unbind(), recorded, given.objects().into_iter().chain(loans).collect()))
    }

    /// Takes the last output tokens of the assigned requests away again, as many of each as an array on the device says, and returns
    /// without waiting. A following step or verification reads the shorter requests. On a device only.
    ///
    /// counts: int32 or int64 on the device, one for each slot of the last assignment; or a list, which is copied up. A number
    /// below 0 or above that of the output tokens takes nothing away, and so does one above 1 with mirostat. To capture it with
    /// torch, call it once before; a replay reads the numbers that lie there then. Pool.output and state read the sequence
    /// back: of a pool with keep_histories always, of others as long as the outputs of each step were fetched.
    ///
    /// Raises UnavailableError for a pool of the host, ValueError or TypeError for another length, type or device.
    #[pyo3(signature = (counts, *, stream=None))]
    fn enqueue_shorten<'py>(
        &self,
        py: Python<'py>,
        counts: &Bound<'py, PyAny>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let stream = self.on(py, stream)?;
        if let Ok(counts) = counts.cast::<PyList>() {
            let counts: Vec<u32> = integers(counts, "counts")?;
            let counts: Vec<i32> =
                counts.into_iter().map(|count| i32::try_from(count).unwrap_or(i32::MAX)).collect();
            return self.with(py, stream, |inner| {
                inner.outside_a_capture()?;
                on_device(inner)?.enqueue(&[Work::Shorten((&counts).into())])
            });
        }
        let (column, array) = self.draft_reader(stream).integers(counts, "counts")?;
        self.with(py, stream, |inner| {
            inner.order_after(&[array.stream])?;
            on_device(inner)?.enqueue(&[Work::Shorten(column.into())])
        })
    }

    /// Waits for the enqueued work and returns the Verification of the last drafts. On a device only.
    #[pyo3(signature = (*, stream=None))]
    fn fetch_verification(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Verification> {
        let (stream, kept) = (self.on(py, stream)?, self.kept);
        let verified = self.with(py, stream, |inner| {
            inner.outside_a_capture()?;
            let mut out = if kept { Verified::with_kept() } else { Verified::new() };
            on_device(inner)?.fetch(&mut out)?;
            Ok(out)
        })?;
        Verification::new(py, verified, kept)
    }
}
