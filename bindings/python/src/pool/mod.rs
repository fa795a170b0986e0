//! The pool: many requests, on the host or on a device, in one process or over ranks, in one class.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `mod.rs` | the class: its construction, lock and streams |
//! | `requests.rs` | admission, release, fork, state |
//! | `batch.rs`, `rows.rs`, `lists.rs` | what a call is handed: batches, rows with their heads, drafts and paths |
//! | `calls.rs` | direct calls: steps, verifications, drafts, scores |
//! | `work.rs` | work in order: assigned, enqueued, fetched, captured, replayed |
//! | `on_device.rs` | what only a device can do |
//! | `ranks.rs`, `plan.rs`, `signals.rs` | ranks, their plans, and signals while they wait |
//! | `by_torch.rs` | the transport over the caller's process group of torch |

mod batch;
mod by_torch;
mod calls;
mod lists;
mod on_device;
mod plan;
mod ranks;
mod requests;
mod rows;
mod signals;
mod work;

use gumball_engine::unstable::{CudaThreadState, Gpu};
use gumball_engine::{
    Device, Error, Outputs as EngineOutputs, Place, Pool as EnginePool, PoolConfig, Result, Widths,
};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

pub use self::batch::Batch;
pub use self::on_device::{DraftBatch, OnDevice, Recorded};
pub use self::plan::Plan;
pub use self::ranks::RanksInfo;
use self::signals::Signals;
use crate::arguments::argument;
use crate::arrays::{Array, Location, Matrix, torch_stream};
use crate::devices;
use crate::errors::{InvalidValueError, out_of_range, pool_names, to_py_err, wrong_type};
use crate::forks;
use crate::hooks::caught;
use crate::lists::extract_int;
use crate::params;
use crate::streams::stream_handle;
use crate::turns::{Caller, Turns};

/// The state after a call that broke off, for the message. A host pool computes a whole step before it
/// appends any token.
const UNTOUCHED: &str = "no sequence has moved";
const UNMADE: &str = "no pool was made";
const UNKNOWN: &str = "which sequences have moved on the device is not known: release them";
const BROKEN: &str = "the group is broken: make new pools";

/// The requests in flight, each in a slot that keeps its history, seed and position.
///
/// ::
///
///     pool = Pool(32000, device="cpu", slots=8)
///     slot = pool.admit(SamplingParams(temperature=0.8, seed=7), prompt=[1, 2])
///     tokens = pool.step(logits, [slot]).tokens
///
/// step, verify, draft and score are done on return. Work in order is not waited for on a device: assign says
/// whose rows they are, enqueue returns before the device has finished, and fetch waits. On the host it is
/// done on return. The tokens are the same on both.
///
/// vocab: the number of logits in a row. device: "cpu", "cuda" or "cuda:N", or a torch.device. slots: the
/// number of requests that can be in flight. rows: the number of rows that a step on a device can have.
/// top_n, ids: the number of most likely tokens, and of ids named by requests, whose logprobs can be
/// reported. kept: whether steps report the kept sets. history_growth: the number of tokens by which a
/// history on a device grows before it is moved. keep_histories: whether a device keeps the histories of all
/// requests; set it to replay steps without fetching each and still read the sequences back. threads, level:
/// for the host only: the number of threads for the rows (None: one per core), and the SIMD level. route:
/// "race", "probabilities" or "oracle", as for Sampler; on a device "race", or "probabilities", whose softmax
/// there edits nothing: penalties, biases, bans, masks, row_indices and rows of probabilities are refused.
/// stream: the handle of the CUDA stream for all work, which must live as long as the pool and every
/// DeviceHead that it was used with. If None, each call uses torch's current stream if torch is loaded,
/// otherwise a stream of the pool's own.
///
/// ranks: a gumball.Ranks makes this a pool of every process of a group, each of which has the logits of a
/// part of the vocabulary. All ranks make the same calls in the same turn, and get what one process with
/// whole rows would. gumball.dist.join finds the addresses out. Signals are heard while ranks wait for each
/// other. With a device rows and results may lie there, and devices write into each other's memory: GPUs of
/// one host with peer access.
///
/// watermark: the Watermark of requests that name none; a request with watermark=False has none.
/// enforce_all: whether such a request is a ValueError.
///
/// Raises ValueError for a number outside its range or an unknown name, UnavailableError if the device, its
/// driver or NVRTC is missing or too old, or has not enough memory, for a transport that is not there, or an
/// address that cannot be listened at; LateError or LostError if a rank does not come or ends; DisagreeError
/// if ranks are made with different settings.
#[pyclass(frozen, weakref, module = "gumball")]
#[derive(Debug)]
pub struct Pool {
    inner: Turns<Inner>,
    /// The fork count of the process that made the pool.
    process: u32,
    /// The number of logits in a row.
    #[pyo3(get)]
    vocab: usize,
    /// The device's name: "cpu", "cuda:N".
    #[pyo3(get)]
    device: String,
    /// The memory that arrays must lie in to be read without a copy.
    location: Location,
    kept: bool,
    /// The stream that was named when the pool was made.
    stream: Option<usize>,
    ranks: Option<RanksInfo>,
    signals: Signals,
}

/// The part of a pool that its lock protects.
#[derive(Debug)]
struct Inner {
    /// `None` once the pool is closed.
    pool: Option<Box<EnginePool>>,
    /// The last results, in memory that is kept.
    out: EngineOutputs,
}

impl Inner {
    /// Returns the engine's pool.
    fn pool(&mut self) -> Result<&mut EnginePool> {
        let closed = || unavailable("pool", "this one was closed; make another");
        self.pool.as_deref_mut().ok_or_else(closed)
    }

    /// Returns the GPU that the pool works on, if it is on one.
    fn gpu(&mut self) -> Result<Option<&Gpu>> {
        Ok(self.pool()?.device().and_then(Device::gpu))
    }

    /// Returns the pool for calls that copy to the device or wait for it; refuses them while the host program
    /// captures a graph. The graph would copy stale bytes, and a wait would invalidate the capture.
    fn outside_a_capture(&mut self) -> Result<&mut EnginePool> {
        let pool = self.pool()?;
        if let Some(device) = pool.device()
            && device.runtime().is_capturing()?
        {
            let reason = "a graph holds what enqueue launches; admit and assign before, fetch after a replay";
            return Err(Error::Conflict { parameter: "the call", other: "the capture of a graph", reason });
        }
        Ok(pool)
    }
}

impl Pool {
    /// Runs `work` on the pool, on a stream if one is named, without the GIL; calls from several threads take
    /// turns.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        stream: Option<usize>,
        work: impl FnOnce(&mut Inner) -> Result<R> + Send,
    ) -> PyResult<R> {
        if matches!(self.location, Location::Cuda(_)) {
            forks::refuse_gpu_of(self.process)?;
        }
        let work = |inner: &mut Inner| {
            let gpu = inner.gpu()?;
            let _state = gpu.and_then(|_| CudaThreadState::save());
            if let (Some(gpu), Some(stream)) = (gpu, stream) {
                // SAFETY: torch's streams live until the process ends. `Pool` and its methods require that a
                // stream the caller names lives as long as the pool.
                unsafe { gpu.use_stream(stream) }?;
            }
            work(inner)
        };
        let untouched = match (&self.ranks, &*self.device) {
            (Some(_), _) => BROKEN,
            (None, "cpu") => UNTOUCHED,
            (None, _) => UNKNOWN,
        };
        self.inner.with(py, untouched, work)?.map_err(|error| self.signals.error(pool_names(error)))
    }

    /// Returns the objects whose turns a call of this thread keeps while its hooks run.
    fn caller(&self) -> Caller<'_> {
        self.inner.caller()
    }

    /// Returns the stream to work on: the call's, otherwise the pool's, otherwise torch's current one, if
    /// any.
    fn on(&self, py: Python<'_>, named: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
        let Location::Cuda(ordinal) = self.location else { return Ok(None) };
        match (named, self.stream) {
            (Some(named), _) => stream_handle(named).map(Some),
            (None, Some(stream)) => Ok(Some(stream)),
            (None, None) => torch_stream(py, ordinal),
        }
    }

    /// Makes later work on another stream wait for the work enqueued here.
    pub fn order_before(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.with(py, None, |inner| match inner.gpu()? {
            // SAFETY: the reader of a device array names the live stream of this device on which it will
            // read.
            Some(gpu) => unsafe { gpu.order_before(stream) }.map_err(Error::from),
            None => Ok(()),
        })
    }
}

/// Returns the error of a pool without ranks.
fn no_ranks() -> Error {
    unavailable("ranks", "the pool was made without; hand over ranks then")
}

/// Returns the error of a thing that a pool does not have.
fn unavailable(resource: &'static str, reason: &str) -> Error {
    Error::Unavailable { resource, reason: reason.to_owned() }
}

/// Returns a device's name: a str, or the str of a torch.device.
pub fn device_name(device: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
    let Some(device) = device else { return Ok("cpu".to_owned()) };
    let name = device.str()?.to_string();
    let ordinal = name.strip_prefix("cuda:").and_then(|rest| rest.parse::<usize>().ok());
    // "cuda" is device 0 here, not CUDA's current device.
    Ok(if name == "cuda" { "cuda:0".to_owned() } else { ordinal.map_or(name, |n| format!("cuda:{n}")) })
}

#[pymethods]
impl Pool {
    #[new]
    #[pyo3(signature = (
        vocab, *more, device=None, slots=None, rows=None, top_n=None, ids=None, kept=false, history_growth=None, keep_histories=false,
        threads=None, level=None, route=None, stream=None, ranks=None, watermark=None, enforce_all=false,
    ), text_signature = "(vocab, *, device='cpu', slots=256, rows=256, top_n=0, ids=0, kept=False, history_growth=4096, \
        keep_histories=False, threads=None, level=None, route='race', stream=None, ranks=None, watermark=None, enforce_all=False)")]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        vocab: &Bound<'_, PyAny>,
        more: &Bound<'_, PyTuple>,
        device: Option<&Bound<'_, PyAny>>,
        slots: Option<&Bound<'_, PyAny>>,
        rows: Option<&Bound<'_, PyAny>>,
        top_n: Option<&Bound<'_, PyAny>>,
        ids: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] kept: bool,
        history_growth: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] keep_histories: bool,
        threads: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] level: Option<&str>,
        #[pyo3(from_py_with = argument)] route: Option<&str>,
        stream: Option<&Bound<'_, PyAny>>,
        ranks: Option<&Bound<'_, PyAny>>,
        watermark: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] enforce_all: bool,
    ) -> PyResult<Self> {
        let number = |value: Option<&Bound<'_, PyAny>>, name: &str, default: usize| {
            value.map_or(Ok(default), |value| extract_int::<usize>(value, name))
        };
        let many = |value: Option<&Bound<'_, PyAny>>, name: &str, default: i64| match value
            .map_or(Ok(default), |value| extract_int(value, name))?
        {
            many @ 1..0x8000_0000 => Ok(many as usize),
            many => Err(out_of_range(name, many, "in 1..2^31")),
        };
        let slots = many(slots, "slots", 256)?;
        // Checked on the host too, though a device alone uses them: a script is often first run there.
        let (rows, history_growth) =
            (many(rows, "rows", 256)?, many(history_growth, "history_growth", 4096)?);
        let vocab = params::vocab(vocab)?;
        if let Ok(other) = more.get_item(0) {
            return Err(wrong_type("what follows vocab in Pool(vocab)", "named", &other));
        }
        let device = device_name(device)?;
        let widths = Widths { top_n: number(top_n, "top_n", 0)?, ids: number(ids, "ids", 0)? };
        let stream = stream.map(stream_handle).transpose()?;
        let signals = Signals::default();
        let config = ranks.map(|ranks| ranks::Config::read(ranks, vocab, &signals)).transpose()?;
        let route = route.map(|name| name.parse().map_err(to_py_err)).transpose()?;
        let watermark = watermark.map(params::watermark).transpose()?;
        let ordinal = devices::ordinal(&device);
        let place: Box<dyn FnOnce() -> Result<(Place, Option<CudaThreadState>)> + Send> = if device == "cpu" {
            let threads = threads.map(|threads| extract_int(threads, "threads")).transpose()?;
            let level = level.map(|level| level.parse().map_err(to_py_err)).transpose()?;
            Box::new(move || Ok((Place::Host { threads, level }, None)))
        } else {
            if !(device.starts_with("cuda") || cfg!(feature = "emulator")) {
                return Err(out_of_range("device", format!("{device:?}"), "\"cpu\", \"cuda\" or \"cuda:N\""));
            }
            let of_host = [("threads", threads.is_some()), ("level", level.is_some())];
            if let Some((name, _)) = of_host.iter().find(|(_, is_set)| *is_set) {
                let text = format!("{name} is for device=\"cpu\", but device is {device:?}");
                return Err(InvalidValueError::new_err(text));
            }
            if ordinal.is_some() {
                devices::locate(py)?;
            }
            let name = device.clone();
            Box::new(move || {
                let (device, state) = devices::open(&name)?;
                Ok((Place::Device { device, rows, history_growth, keep_histories }, state))
            })
        };
        let make = || -> Result<(EnginePool, Option<RanksInfo>)> {
            let (place, _state) = place()?;
            let default = PoolConfig::new(vocab);
            let mut own = PoolConfig { slots, widths, kept, watermark, enforce_all, place, ..default };
            own.route = route.unwrap_or(own.route);
            let Some(ranks) = config else { return Ok((EnginePool::new(own)?, None)) };
            let (pool, info) = ranks.pool(own, &signals)?;
            Ok((pool, Some(info)))
        };
        let made = py.detach(|| caught(UNMADE, make))?.map_err(|error| signals.error(error))?;
        let (pool, ranks) = (Some(Box::new(made.0)), made.1);
        let location = ordinal.map_or(Location::Host, |ordinal| Location::Cuda(ordinal as i32));
        Ok(Self {
            inner: Turns::new(Inner { pool, out: EngineOutputs::new() }),
            process: forks::count(),
            vocab,
            device,
            location,
            kept,
            stream,
            ranks,
            signals,
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, None, |inner| Ok(inner.pool()?.len()))
    }

    fn __bool__(&self) -> bool {
        true
    }

    /// Ends the pool with its sequences, and frees its memory. A step of other ranks is a LostError then; on
    /// devices it waits for them to end theirs, for timeout at most, since they may still write here.
    /// Deleting the pool does the same.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.with(py, BROKEN, |inner| drop(inner.pool.take()))?;
        self.signals.raised().map_or(Ok(()), Err)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let ranks = self.ranks.iter().map(|ranks| format!(", {}", ranks.described()));
        format!("Pool({}, device={:?}{})", self.vocab, self.device, ranks.collect::<String>())
    }
}

impl Drop for Pool {
    /// Ends a pool over ranks without the GIL: the rank that it waits for may be a thread of this process.
    fn drop(&mut self) {
        if self.ranks.is_some() {
            Python::try_attach(|py| self.close(py).ok());
        }
    }
}

impl Pool {
    /// Returns an error if an array lies in memory that this pool cannot read.
    fn check_location(&self, name: &str, location: Location, remedy: &str) -> PyResult<()> {
        if location == self.location {
            return Ok(());
        }
        Err(out_of_range(name, format!("on {location}"), format!("on {}{remedy}", self.location)))
    }

    /// Reads a batch's masks, which lie on the host or on the pool's device.
    fn read_masks<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        stream: Option<usize>,
    ) -> PyResult<(Option<Matrix>, Option<Array<'py>>)> {
        let (masks, array): (Option<Matrix>, _) = batch.masks(py, stream)?.unzip();
        if let Some(masks) = masks.filter(|masks| masks.location != Location::Host) {
            self.check_location("masks", masks.location, "")?;
        }
        Ok((masks, array))
    }
}
