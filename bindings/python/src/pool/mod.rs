//! The pool: many requests, on the host or on a device, in one class.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `mod.rs` | the class: its construction, lock and streams |
//! | `backend.rs` | the engine's pool behind it, on the host or on a device |
//! | `requests.rs` | admission, release, fork, truncation, state |
//! | `steps.rs` | steps, assignments, outputs, scores |
//! | `verify.rs` | drafts: verified, and tokens taken away |
//! | `draft.rs` | drafts drawn from rows of a draft model, by batches on a device too |
//! | `drafts.rs` | drafts on a device: assigned, enqueued, captured, fetched |
//! | `graphs.rs` | captured and replayed steps |
//! | `graph_builder.rs` | graphs that draft, verify and advance |
//! | `hidden.rs` | steps, drafts and scores from hidden states |
//! | `device_hidden.rs` | steps and verifications from hidden states on a device, captured too |
//! | `variants.rs` | the variants of steps in graphs of the host program |

mod backend;
mod device_hidden;
mod draft;
mod draft_lists;
mod drafts;
mod graph_builder;
mod graphs;
mod hidden;
mod requests;
mod steps;
mod variants;
mod verify;

use gumball_engine::{
    CudaThreadState, Error, Gpu, Outputs as EngineOutputs, Place, Pool as EnginePool, PoolConfig, Result,
    Widths,
};
use pyo3::prelude::*;

use self::backend::{Backend, HostPool};
pub use self::draft::DraftBatch;
pub use self::draft_lists::{DraftLists, DraftProbs};
pub use self::drafts::{Arrays as DraftArrays, DraftReader, Given as GivenDrafts};
pub use self::graph_builder::GraphBuilder;
pub use self::steps::OutputPlace;
pub use self::verify::mode as verify_mode;
use crate::arrays::{Location, torch_stream};
use crate::devices;
use crate::errors::{InvalidValueError, out_of_range, to_py_err};
use crate::forks;
use crate::hooks::caught;
use crate::lists::extract_int;
use crate::streams::stream_handle;
use crate::turns::{Caller, Turns};

/// The state after a call that broke off, for the message. A host pool computes a whole step before it
/// appends any token.
const UNTOUCHED: &str = "no sequence has moved";
const UNMADE: &str = "no pool was made";
const UNKNOWN: &str = "which sequences have moved on the device is not known: release them";

/// The requests in flight, each in a slot that keeps its history, seed and position.
///
/// ::
///
///     pool = Pool(32000, device="cpu", slots=8)
///     slot = pool.admit(SamplingParams(temperature=0.8, seed=7), prompt=[1, 2])
///     tokens = pool.step(logits, [slot]).tokens
///
/// On a device, `enqueue` returns before the device has finished, `tokens` are the tokens in the device's
/// memory, and `fetch` waits. On the host the same methods exist and are done on return. The tokens are the
/// same on both.
///
/// vocab: the number of logits in a row. device: "cpu", "cuda" or "cuda:N", or a torch.device. slots: the
/// number of requests that can be in flight. rows: the number of rows that a step on a device can have.
/// top_n, ids: the number of most likely tokens, and of ids named by requests, whose logprobs can be
/// reported. kept: whether steps report the kept sets. history_growth: the number of tokens by which a
/// history on a device grows before it is moved. keep_histories: whether a device keeps the histories of all
/// requests; set it to replay steps without fetching each and still read the sequences back. threads, level:
/// for the host only: the number of threads for the rows (None: one per core), and the SIMD level. route:
/// "race", "probabilities" or "oracle", as for Sampler; on a device "race", or "probabilities", whose softmax
/// there edits nothing: penalties, biases, bans, masks, row_indices and rows of probabilities are refused. stream: the handle of the CUDA stream for all work,
/// which must live as long as the pool and every DeviceHead that it was used with. If None, each call uses torch's current stream if torch is loaded,
/// otherwise a stream of the pool's own.
///
/// Raises ValueError for a number outside its range or an unknown name, UnavailableError if the device, its
/// driver or NVRTC is missing or too old, or has not enough memory.
#[pyclass(frozen, weakref, module = "gumball")]
#[derive(Debug)]
pub struct Pool {
    inner: Turns<Inner>,
    /// The fork count of the process that made the pool.
    process: u32,
    vocab: usize,
    device: String,
    /// The memory that arrays must lie in to be read without a copy.
    location: Location,
    kept: bool,
    /// The stream that was named when the pool was made.
    stream: Option<usize>,
}

/// The part of a pool that its lock protects.
#[derive(Debug)]
struct Inner {
    backend: Backend,
    /// The number of rows in the last assignment, and of its requests if these have drafts on a device.
    rows: usize,
    requests: usize,
    out: EngineOutputs,
    /// Whether these are of the last direct call of a device's pool: a step of rows of the host.
    has_stepped: bool,
}

impl Inner {
    /// Returns the pool for calls that copy to the device or wait for it; refuses them while the host program
    /// captures a graph. The graph would copy stale bytes, and a wait would invalidate the capture.
    fn outside_a_capture(&mut self) -> Result<&mut Backend> {
        if let Backend::Device(pool) = &self.backend
            && let Some(device) = pool.device()
            && device.runtime().is_capturing()?
        {
            let reason = "a graph holds enqueue, enqueue_hidden, enqueue_verify and enqueue_verify_hidden without slots, or enqueue of a batch of drafts; admit and assign before, fetch after a replay";
            return Err(Error::Conflict { parameter: "the call", other: "the capture of a graph", reason });
        }
        Ok(&mut self.backend)
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
            let gpu = inner.backend.gpu();
            let _state = gpu.and_then(|_| CudaThreadState::save());
            if let (Some(gpu), Some(stream)) = (gpu, stream) {
                // SAFETY: torch's streams live until the process ends. `Pool` and its methods require that a
                // stream the caller names lives as long as the pool.
                unsafe { gpu.use_stream(stream) }?;
            }
            work(inner)
        };
        let untouched = if self.device == "cpu" { UNTOUCHED } else { UNKNOWN };
        self.inner.with(py, untouched, work)?.map_err(to_py_err)
    }

    /// Returns the objects whose turns a call of this thread keeps while its hooks run.
    fn caller(&self) -> Caller<'_> {
        self.inner.caller()
    }

    /// Returns the stream to work on: the call's, otherwise the pool's, otherwise torch's current one, if any.
    fn on(&self, py: Python<'_>, named: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
        let Location::Cuda(ordinal) = self.location else { return Ok(None) };
        match (named, self.stream) {
            (Some(named), _) => stream_handle(named).map(Some),
            (None, Some(stream)) => Ok(Some(stream)),
            (None, None) => torch_stream(py, ordinal),
        }
    }

    /// Returns the handle of the stream in use; `None` on the host.
    pub fn stream(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.with(py, None, |inner| Ok(inner.backend.gpu().map(Gpu::stream)))
    }

    /// Makes later work on another stream wait for the work enqueued here.
    pub fn order_before(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.with(py, None, |inner| match inner.backend.gpu() {
            // SAFETY: the reader of a device array names the live stream of this device on which it will
            // read.
            Some(gpu) => unsafe { gpu.order_before(stream) }.map_err(Error::from),
            None => Ok(()),
        })
    }
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
        vocab, *, device=None, slots=None, rows=None, top_n=None, ids=None, kept=false, history_growth=None, keep_histories=false,
        threads=None, level=None, route=None, stream=None,
    ), text_signature = "(vocab, *, device='cpu', slots=256, rows=256, top_n=0, ids=0, kept=False, history_growth=4096, \
        keep_histories=False, threads=None, level=None, route='race', stream=None)")]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        vocab: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
        slots: Option<&Bound<'_, PyAny>>,
        rows: Option<&Bound<'_, PyAny>>,
        top_n: Option<&Bound<'_, PyAny>>,
        ids: Option<&Bound<'_, PyAny>>,
        kept: bool,
        history_growth: Option<&Bound<'_, PyAny>>,
        keep_histories: bool,
        threads: Option<&Bound<'_, PyAny>>,
        level: Option<&str>,
        route: Option<&str>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let number = |value: Option<&Bound<'_, PyAny>>, name: &str, default: usize| {
            value.map_or(Ok(default), |value| extract_int::<usize>(value, name))
        };
        let vocab = extract_int(vocab, "vocab")?;
        let device = device_name(device)?;
        let widths = Widths { top_n: number(top_n, "top_n", 0)?, ids: number(ids, "ids", 0)? };
        let slots = number(slots, "slots", 256)?;
        let stream = stream.map(stream_handle).transpose()?;
        let (backend, location) = if device == "cpu" {
            let mut config = PoolConfig { slots, widths, ..PoolConfig::new(vocab) };
            config.place = Place::Host {
                threads: threads.map(|threads| extract_int(threads, "threads")).transpose()?,
                level: level.map(|level| level.parse().map_err(to_py_err)).transpose()?,
            };
            config.route = route.map_or(Ok(config.route), str::parse).map_err(to_py_err)?;
            let pool = py.detach(|| caught(UNMADE, || EnginePool::new(config)))?.map_err(to_py_err)?;
            (Backend::Host(Box::new(HostPool::new(pool))), Location::Host)
        } else {
            if !(device.starts_with("cuda") || cfg!(feature = "emulator")) {
                return Err(out_of_range("device", format!("{device:?}"), "\"cpu\", \"cuda\" or \"cuda:N\""));
            }
            if let Some(name) = [("threads", threads.is_some()), ("level", level.is_some())]
                .iter()
                .find_map(|(name, is_set)| is_set.then_some(name))
            {
                let text = format!("{name} is for device=\"cpu\", but device is {device:?}");
                return Err(InvalidValueError::new_err(text));
            }
            let rows = number(rows, "rows", 256)?;
            let history_growth = number(history_growth, "history_growth", 4096)?;
            let default = PoolConfig::new(vocab);
            let route = route.map_or(Ok(default.route), str::parse).map_err(to_py_err)?;
            let place = |device| Place::Device { device, rows, history_growth, keep_histories };
            let config = |device| PoolConfig { vocab, slots, widths, kept, route, place: place(device) };
            let ordinal = devices::ordinal(&device);
            if ordinal.is_some() {
                devices::locate(py)?;
            }
            let opened = py.detach(|| caught(UNMADE, || backend::open(&device, config)))?;
            let pool = opened.map_err(to_py_err)?;
            let location = ordinal.map_or(Location::Host, |ordinal| Location::Cuda(ordinal as i32));
            (Backend::Device(Box::new(pool)), location)
        };
        let out = if kept { EngineOutputs::with_kept() } else { EngineOutputs::new() };
        Ok(Self {
            inner: Turns::new(Inner { backend, rows: 0, requests: 0, out, has_stepped: false }),
            process: forks::count(),
            vocab,
            device,
            location,
            kept,
            stream,
        })
    }

    /// The number of logits in a row.
    #[getter]
    fn vocab(&self) -> usize {
        self.vocab
    }

    /// The device's name: "cpu", "cuda:N".
    #[getter]
    fn device(&self) -> &str {
        &self.device
    }

    /// The number of requests that can be in flight.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, None, |inner| {
            Ok(match &inner.backend {
                Backend::Host(host) => host.pool.capacity(),
                Backend::Device(pool) => pool.capacity(),
            })
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, None, |inner| Ok(inner.backend.len()))
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (len, capacity) = (self.__len__(py)?, self.capacity(py)?);
        Ok(format!("Pool({}, device={:?}, {len} of {capacity} slots taken)", self.vocab, self.device))
    }
}

impl Pool {
    /// Returns an error if an array lies in memory that this pool cannot read.
    fn check_location(&self, name: &str, location: Location, remedy: &str) -> PyResult<()> {
        check_location(name, location, self.location, remedy)
    }
}

/// Returns an error if an array does not lie where a pool is.
pub fn check_location(name: &str, location: Location, pool: Location, remedy: &str) -> PyResult<()> {
    if location == pool {
        return Ok(());
    }
    Err(out_of_range(name, format!("on {location}"), format!("on {pool}{remedy}")))
}

/// Calls the shape of hidden states by their name, and not by that of logits.
fn of_rows(name: &str, error: Error) -> Error {
    error.with_parameter(|parameter| match parameter {
        "vocab" if name == "hidden" => "hidden.shape[1]",
        "stride" if name == "hidden" => "hidden.stride",
        other => other,
    })
}
