//! LM heads in a device's memory, for pools there.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gumball_engine::head::{HeadOptions, Scaling};
use gumball_engine::unstable::{CudaThreadState, Gpu};
use gumball_engine::{Device, DeviceHead as EngineHead, Error, HeadCounts, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::argument;
use crate::arrays::Location;
use crate::device_weights::{WeightsThere, refuse_host};
use crate::devices;
use crate::errors::{InvalidValueError, out_of_range, to_py_err};
use crate::forks;
use crate::head_weights::Borrowed;
use crate::heads::{UNMADE, named_counts, own_names, read_head_options};
use crate::hooks::caught;
use crate::lists::extract_int;
use crate::pool::device_name;

/// The rows of a step, unless a head says otherwise; a pool has as many.
pub const ROWS: usize = 256;

/// An LM head in a device's memory, for the pools of that device.
///
/// ::
///
///     head = Head.auto(weight.cpu()).to("cuda", weights=weight)
///     head = DeviceHead(model.lm_head.weight)                         # the same without a screen
///     head = DeviceHead(model.lm_head.weight, fast=True)              # the tensor cores compute the logits
///     out = pool.step(Hidden(head, hidden), slots)
///
/// Tokens and logprobs equal the ones of the Head of the same kind on the host, bit for bit, except for a
/// fast head's, which are the device's own: the same in any batch, perhaps others on another device. The head
/// keeps memory for the logits of rows hidden states, 4 bytes for each id of each. Several pools may share a
/// head: their steps then run one after the other, on any streams.
///
/// weights: [vocab, width] of float32, bfloat16 or float16 in the memory of a GPU, whose rows follow each
/// other. They are borrowed, and read in each step, so they may be written between steps. bias, logit_scale,
/// softcap: as for Head. rows: how many rows a step may have. fast: whether the tensor cores compute the
/// logits; not for float32. device: where the weights are said to lie, if they do not say it themselves.
///
/// Head.to makes one of a head on the host, of any kind.
///
/// Raises ValueError or TypeError for another shape, type or device, and for a number outside its range;
/// UnavailableError if the device has not enough memory.
#[pyclass(frozen, weakref, module = "gumball")]
#[derive(Debug)]
pub struct DeviceHead {
    head: Mutex<OnDevice>,
    /// The fork count of the process that made it.
    process: u32,
    kind: DeviceKind,
    /// The device's name: "cuda:N".
    #[pyo3(get)]
    device: String,
    location: Location,
    /// The type of the weights: "float32", "bfloat16" or "float16".
    #[pyo3(get)]
    dtype: &'static str,
    /// The number of ids.
    #[pyo3(get)]
    vocab: usize,
    /// The number of elements of a hidden state.
    #[pyo3(get)]
    width: usize,
    /// How many rows a step may have.
    #[pyo3(get)]
    rows: usize,
    /// The owner of borrowed weights, and whether a copy that was made of them must stay true to them.
    borrowed: Option<(Borrowed, bool)>,
}

/// What kind of head it is: "auto", "fast" or "clustered", and whether tensor cores compute the logits.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKind {
    pub kind: &'static str,
    pub fast: bool,
}

impl DeviceKind {
    /// Refuses a fast head of float32, and names a fast one that has all logits.
    pub fn of(self, dtype: &str) -> PyResult<Self> {
        let Self { kind, fast } = self;
        if fast && dtype == "float32" {
            let text = "weights is of float32, but must be of bfloat16 or float16 for a fast head";
            return Err(InvalidValueError::new_err(text));
        }
        Ok(Self { kind: if fast && kind == "auto" { "fast" } else { kind }, fast })
    }
}

#[derive(Debug)]
struct OnDevice {
    // Never moved or changed, as graphs refer to it.
    head: Box<EngineHead<'static>>,
    device: Device,
    /// The head's own stream, of a GPU.
    stream: Option<usize>,
    /// The devices of the pools that have used the head, so that their streams live as long as it.
    users: Vec<Device>,
}

/// A head that a call uses, alone.
pub struct HeadTurn<'a>(MutexGuard<'a, OnDevice>);

impl HeadTurn<'_> {
    pub fn head(&self) -> &EngineHead<'static> {
        &self.0.head
    }

    /// Makes work that a pool enqueues from now on come after the work of pools that used the head before, on
    /// other streams.
    pub fn order(&mut self, pool: &Device) -> Result<()> {
        let OnDevice { device, users, .. } = &mut *self.0;
        let (Some(own), Some(gpu)) = (device.gpu(), pool.gpu()) else { return Ok(()) };
        let stream = gpu.stream();
        if !users.iter().any(|user| std::sync::Arc::ptr_eq(user.runtime(), pool.runtime())) {
            users.push(pool.clone());
        }
        // SAFETY: the stream is the pool's own, which `users` keeps alive, or one of which the pool's caller
        // has promised that it lives as long as the pool and the heads that it was used with; torch's live
        // until the process ends.
        unsafe { own.use_stream(stream) }.map_err(Into::into)
    }

    /// Waits for the work of all who used the head, and returns its counts; refuses during a capture, which a
    /// wait would end.
    fn counts(&mut self) -> Result<HeadCounts> {
        let OnDevice { head, device, stream, .. } = &mut *self.0;
        if device.runtime().is_capturing()? {
            let reason = "it waits for the device; call it after a replay";
            return Err(Error::Conflict { parameter: "counts", other: "the capture of a graph", reason });
        }
        if let (Some(own), Some(stream)) = (device.gpu(), *stream) {
            // SAFETY: it is the head's own stream, which `device` keeps alive.
            unsafe { own.use_stream(stream) }?;
        }
        head.counts()
    }
}

impl DeviceHead {
    /// Takes the head for a call; others wait. Not to be called with the GIL, which the one that has the head
    /// may wait for.
    ///
    /// # Panics
    /// Never: a head that a panic left is whole.
    pub fn take(&self) -> HeadTurn<'_> {
        HeadTurn(self.head.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Refuses the head for pools of another device, and a head whose copy of weights is no longer one of the
    /// weights.
    pub fn check(&self, py: Python<'_>, pool: &str) -> PyResult<()> {
        if self.device != pool {
            return Err(out_of_range(
                "head",
                format!("on {}", self.device),
                format!("on {pool}, as the pool"),
            ));
        }
        match &self.borrowed {
            Some((borrowed, true)) => borrowed.check(py),
            _ => Ok(()),
        }
    }

    /// Returns the head for a graph.
    ///
    /// # Safety
    /// The graph keeps this object alive, and its owner uses it under the lock of its pool.
    pub unsafe fn for_graph(&self) -> &'static EngineHead<'static> {
        let head = self.take();
        // SAFETY: the box is never moved or changed, and lives as long as this object.
        unsafe { &*std::ptr::from_ref(head.head()) }
    }

    /// Makes a head on a device, and waits for the copies that this starts.
    pub fn made(
        py: Python<'_>,
        device: String,
        kind: DeviceKind,
        dtype: &'static str,
        borrowed: Option<(Borrowed, bool)>,
        stream: Option<usize>,
        make: impl FnOnce(&Device) -> Result<EngineHead<'static>> + Send,
    ) -> PyResult<Self> {
        let ordinal = devices::ordinal(&device);
        if ordinal.is_some() {
            devices::locate(py)?;
        }
        let name = device.as_str();
        let made = py.detach(|| {
            caught(UNMADE, || {
                let _state = ordinal.and_then(|_| CudaThreadState::save());
                let device = match ordinal {
                    Some(ordinal) => Device::from(devices::gpu(ordinal)?.on_new_stream()?),
                    None => Device::open(name)?,
                };
                if let (Some(gpu), Some(stream)) = (device.gpu(), stream) {
                    // SAFETY: torch's streams live until the process ends.
                    unsafe { gpu.order_after(stream) }?;
                }
                let head = make(&device)?;
                let head = Box::new(if kind.fast { head.fast()? } else { head });
                // Waits for the weights and the copies.
                head.counts()?;
                let stream = device.gpu().map(Gpu::stream);
                Ok(OnDevice { head, device, stream, users: Vec::new() })
            })
        })?;
        let there = made.map_err(own_names).map_err(to_py_err)?;
        let (vocab, width, rows) = (there.head.vocab(), there.head.width(), there.head.capacity());
        let head = Mutex::new(there);
        let location = ordinal.map_or(Location::Host, |ordinal| Location::Cuda(ordinal as i32));
        let process = forks::count();
        Ok(Self { head, process, kind, device, location, dtype, vocab, width, rows, borrowed })
    }
}

#[pymethods]
impl DeviceHead {
    #[new]
    #[pyo3(
        signature = (weights, *, bias=None, logit_scale=None, softcap=None, rows=None, fast=false, device=None),
        text_signature = "(weights, *, bias=None, logit_scale=1.0, softcap=0.0, rows=256, fast=False, device=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        bias: Option<&Bound<'_, PyAny>>,
        logit_scale: Option<&Bound<'_, PyAny>>,
        softcap: Option<&Bound<'_, PyAny>>,
        rows: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] fast: bool,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let HeadOptions { bias, scaling, .. } = read_head_options(bias, logit_scale, softcap, None)?;
        let rows = rows.map_or(Ok(ROWS), |rows| extract_int(rows, "rows"))?;
        let device = device.map(|device| device_name(Some(device))).transpose()?;
        device.as_deref().map_or(Ok(()), refuse_host)?;
        let there = WeightsThere::read(py, weights, device.as_deref())?;
        let (rows_there, dtype) = (there.rows()?, there.matrix.dtype.name());
        let kind = DeviceKind { kind: "auto", fast }.of(dtype)?;
        let (stream, device) = (there.stream, there.device);
        let borrowed = Some((Borrowed::of(weights, there.array)?, false));
        let scaling: Scaling = scaling;
        let make =
            move |device: &Device| EngineHead::over(device, rows_there, bias.as_deref(), scaling, rows);
        Self::made(py, device, kind, dtype, borrowed, stream, make)
    }

    /// "auto", "clustered", or "fast" for a fast head that is not clustered.
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind.kind
    }

    /// Whether tensor cores compute the logits.
    #[getter]
    fn fast(&self) -> bool {
        self.kind.fast
    }

    /// Whether the weights are another library's memory; False if they were copied.
    #[getter]
    fn is_borrowed(&self) -> bool {
        self.borrowed.is_some()
    }

    /// Whether logits are left out, so that tokens, kept sets and logprobs may be others, as of a clustered
    /// head.
    #[getter]
    fn is_approximate(&self) -> bool {
        self.kind.kind == "clustered"
    }

    /// The work of the head since it was made, for all pools, as a dict: whole_rows, certified_rows,
    /// certified_logits, clustered_rows and clustered_logits, as Pool.counts says. Waits for the enqueued
    /// work, but not for replays of torch's graphs.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if matches!(self.location, Location::Cuda(_)) {
            forks::refuse_gpu_of(self.process)?;
        }
        let counts: Result<HeadCounts> = py.detach(|| {
            let _state = CudaThreadState::save();
            self.take().counts()
        });
        named_counts(py, &counts.map_err(to_py_err)?)
    }

    fn __repr__(&self) -> String {
        let memory = if self.is_borrowed() { "borrowed" } else { "copied" };
        let (vocab, width) = (self.vocab, self.width);
        let DeviceKind { kind, fast } = self.kind;
        let fast = if fast && kind != "fast" { ", fast=True" } else { "" };
        format!(
            "DeviceHead([{vocab}, {width}] {} {memory}, kind={kind:?}{fast}, device={:?})",
            self.dtype, self.device
        )
    }
}
