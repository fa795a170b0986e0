//! Steps and verifications from hidden states on a device, by a head in its memory.

use gumball_engine::{Batch, DeviceMatrix, Masks, Result, Rows, Slot, Work};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::drafts::{Arrays, Given, on_device};
use super::steps::split_masks;
use super::{Inner, Pool, backend};
use crate::arrays::{self, Array, Location};
use crate::device_head::DeviceHead;
use crate::errors::{InvalidTypeError, InvalidValueError, draft_names, to_py_err};
use crate::graph::{Graph, Recorded};
use crate::heads::Hidden;
use crate::lists::integers;
use crate::options::{Keywords, Options};
use crate::outputs::Outputs;

/// A step from hidden states on a device.
struct Step<'a> {
    head: &'a DeviceHead,
    hidden: DeviceMatrix<'static>,
    masks: Masks<'static>,
    slots: Option<&'a [Slot]>,
    options: &'a Options,
    /// The streams on which the owners of hidden states and masks write them, if they name one.
    others: Vec<Option<usize>>,
}

impl Inner {
    /// Enqueues a step from hidden states.
    fn enqueue_hidden(&mut self, step: &Step<'_>) -> Result<()> {
        let Step { head, hidden, masks, slots, options, others } = step;
        self.order_after(others)?;
        if slots.is_some() {
            self.outside_a_capture()?;
        }
        let pool = on_device(self)?;
        let mut turn = head.take();
        turn.order(pool.device().expect("it is on a device"))?;
        let of = Batch::of(slots.unwrap_or_default());
        // SAFETY: masks on the host are copied up before the call returns; the caller keeps their array alive until then.
        let (batch, _) = split_masks(unsafe { options.batch(&of) }?);
        let work = Work::Step(Rows::hidden(turn.head(), *hidden), *masks);
        let enqueued = backend::enqueue(pool, work, slots.map(|_| &batch), None);
        // An error may have left the new assignment.
        self.note_assigned().and(enqueued)
    }
}

impl Pool {
    /// Takes a step from hidden states on the device or on the host, and waits for it.
    pub(super) fn step_hidden_there<'py>(
        &self,
        py: Python<'py>,
        head: &Bound<'py, DeviceHead>,
        hidden: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        keywords: &Keywords<'_, 'py>,
    ) -> PyResult<Outputs> {
        let head = head.get();
        head.check(py, &self.device)?;
        let stream = self.on(py, None)?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let (mut options, masks) = keywords.read(stream)?;
        options.refuse_hooks().map_err(to_py_err)?;
        options.check_present().map_err(to_py_err)?;
        let kept = self.kept;
        if self.location != Location::Host && lies_on_the_host(hidden)? {
            let hidden = Hidden::read(hidden)?;
            options.masks_on_host()?;
            let states = hidden.states()?;
            return self.with(py, stream, |inner| {
                inner.outside_a_capture()?;
                let mut out = std::mem::take(&mut inner.out);
                // SAFETY: the caller keeps the masks alive; Python's callers do not write them during the call.
                let stepped = unsafe { options.batch(&Batch::of(&slots)) }.and_then(|batch| {
                    let pool = on_device(inner)?;
                    let mut turn = head.take();
                    turn.order(pool.device().expect("it is on a device"))?;
                    pool.step(Rows::hidden(turn.head(), states), &batch, &mut out)
                });
                inner.out = out;
                inner.note_assigned()?;
                stepped?;
                Ok(Outputs::new(&inner.out, kept))
            });
        }
        // Masks in the device's memory come with the rows.
        let there = options.has_device_masks();
        let device_masks = keywords.masks.filter(|_| there);
        let ((hidden, device_masks), held) =
            self.read_input(("hidden", hidden, device_masks), "logits", stream)?;
        if there {
            options.masks = None;
        }
        let others = held.iter().chain(&masks).map(|array| array.stream).collect();
        let step = Step { head, hidden, masks: device_masks, slots: Some(&slots), options: &options, others };
        self.with(py, stream, |inner| {
            inner.outside_a_capture()?;
            inner.enqueue_hidden(&step)?;
            inner.outputs(kept)
        })
    }
}

#[pymethods]
impl Pool {
    /// Enqueues a decoding step from hidden states and returns without waiting for the device. On a device only.
    ///
    /// While slots and options stay the same, the call only launches kernels. To capture a step with torch, call assign first, omit slots here, and call
    /// reserve_replays before replays. Keep the head as long as a graph of torch that has it, and replay that on one stream with the other steps of the head:
    /// nothing here sees its replays.
    ///
    /// head: a DeviceHead of the pool's device and vocabulary. hidden: [rows, width], or [width] for one row, on the pool's device; float32, bfloat16 or float16; rows may
    /// be strided. Until the step is done, write or free them only in stream order. Other arguments: as for enqueue.
    ///
    /// Raises the errors of enqueue; ValueError for a head of another vocabulary or device, or for more rows than it was made for. No sequence has changed then.
    #[pyo3(signature = (head, hidden, slots=None, *, masks=None, mask_present=None, forced=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn enqueue_hidden<'py>(
        &self,
        py: Python<'py>,
        head: &Bound<'py, DeviceHead>,
        hidden: &Bound<'py, PyAny>,
        slots: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let head = head.get();
        head.check(py, &self.device)?;
        let stream = self.on(py, stream)?;
        let slots = slots.map(|slots| integers(slots, "slots")).transpose()?;
        let keywords = Keywords { masks, mask_present, forced, ..Keywords::default() };
        if slots.is_none() {
            keywords.refuse_without_slots()?;
        }
        let (options, host_masks) = keywords.read(stream)?;
        options.check_present().map_err(to_py_err)?;
        let there = options.has_device_masks();
        if !there && masks.is_some() && slots.is_none() {
            return Err(InvalidTypeError::new_err(
                "masks of the host come with slots: name them, or hand them to assign",
            ));
        }
        let ((hidden, masks), held) =
            self.read_input(("hidden", hidden, masks.filter(|_| there)), "logits", stream)?;
        let others = held.iter().chain(&host_masks).map(|array| array.stream).collect();
        let step = Step { head, hidden, masks, slots: slots.as_deref(), options: &options, others };
        self.with(py, stream, |inner| inner.enqueue_hidden(&step))
    }

    /// Enqueues the verification of drafts that lie on the device, from hidden states, for the requests that assign_drafts was given, and returns without waiting.
    /// On a device only; fetch_verification waits.
    ///
    /// head, hidden: as for enqueue_hidden, with [requests + drafts, width] hidden states in the order of enqueue_verify's rows. Other arguments: as for enqueue_verify. Graphs of torch: as for enqueue_hidden.
    ///
    /// Raises the errors of enqueue_verify and of enqueue_hidden. No sequence has changed then.
    #[pyo3(
        signature = (
            head, hidden, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, masks=None, stream=None,
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn enqueue_verify_hidden<'py>(
        &self,
        py: Python<'py>,
        head: &Bound<'py, DeviceHead>,
        hidden: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let head = head.get();
        head.check(py, &self.device)?;
        let stream = self.on(py, stream)?;
        let links = [first_child, next_sibling];
        let given = Given { rows: ("hidden", hidden), drafts, parents, links, probs: draft_probs, masks };
        let Arrays { rows, masks, drafts, others, arrays: _held } =
            self.draft_reader(stream).arrays(&given, "logits")?;
        self.with(py, stream, |inner| {
            inner.order_after(&others)?;
            let pool = on_device(inner)?;
            let mut turn = head.take();
            turn.order(pool.device().expect("it is on a device"))?;
            let rows = Rows::hidden(turn.head(), rows);
            pool.enqueue(&[Work::Verify(rows, masks, drafts)]).map_err(draft_names)
        })
    }

    /// Captures a step from hidden states, or one step for each array of a list, to be replayed in this order. Returns a Graph. On a device only.
    ///
    /// Nothing runs yet; see capture. The graph keeps head and arrays alive; the arrays' addresses must not change. masks: on the device, one array for each of hidden.
    #[pyo3(signature = (head, hidden, *, masks=None, stream=None))]
    fn capture_hidden<'py>(
        slf: &Bound<'py, Self>,
        head: &Bound<'py, DeviceHead>,
        hidden: &Bound<'py, PyAny>,
        masks: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Graph> {
        let (py, this) = (slf.py(), slf.get());
        head.get().check(py, &this.device)?;
        let stream = this.on(py, stream)?;
        let (hidden, masks) = (listed(hidden)?, masks.map_or(Ok(Vec::new()), listed)?);
        if !masks.is_empty() && masks.len() != hidden.len() {
            let text = format!(
                "masks has length {}, but must have one for each of hidden, {}",
                masks.len(),
                hidden.len()
            );
            return Err(InvalidValueError::new_err(text));
        }
        let read = |(index, rows)| this.read_input(("hidden", rows, masks.get(index)), "logits", stream);
        let read: Vec<_> = hidden.iter().enumerate().map(read).collect::<PyResult<_>>()?;
        let (inputs, arrays): (Vec<_>, Vec<_>) = read.into_iter().unzip();
        let device_head = head.get();
        // SAFETY: the graph keeps the head alive. `Pool.replay` takes the pool's lock and the head's before it reads the head.
        let there = py.detach(|| unsafe { device_head.for_graph() });
        let recorded = this.with(py, stream, |inner| {
            inner.outside_a_capture()?;
            let step = |(hidden, masks): &(_, _)| Work::Step(Rows::hidden(there, *hidden), *masks);
            on_device(inner)?.capture(&inputs.iter().map(step).collect::<Vec<_>>()).map(Recorded::Device)
        })?;
        let loans = arrays.into_iter().flatten().filter_map(Array::into_loan);
        let held = hidden.into_iter().chain(masks).map(Bound::unbind).chain(loans).collect();
        Ok(Graph::new(slf.clone().unbind(), recorded, held).with_heads(vec![head.clone().unbind()]))
    }
}

fn lies_on_the_host(hidden: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(arrays::read(hidden, "hidden", None)?.matrix("hidden")?.location == Location::Host)
}

/// Returns the arrays of a list, or the one array that there is.
pub(super) fn listed<'py>(object: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let several = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
    if several { object.try_iter()?.collect() } else { Ok(vec![object.clone()]) }
}
