//! One sampler over several processes: a pool on each, whose logits are a part of the vocabulary.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `mod.rs` | the class: how it joins its group, its requests, and what it says of the group |
//! | `home.rs` | the engine's pool behind it, on the host or on a device |
//! | `config.rs` | the arguments that a group is made with |
//! | `by_torch.rs` | the transport over the caller's process group of torch |
//! | `plan.rs` | the layout of a step, decided before its logits exist |
//! | `steps.rs` | steps and verifications |
//! | `on_device.rs` | steps over devices: enqueued, captured, replayed, fetched |
//! | `drafts_on_device.rs` | likewise verifications of drafts |
//! | `errors.rs` | what can go wrong between ranks |
//!
//! `python/gumball/dist.py` re-exports the classes, and says how processes find each other.

mod by_torch;
mod config;
mod drafts_on_device;
mod errors;
mod home;
mod on_device;
mod plan;
mod steps;

use std::time::Duration;

use gumball_engine::{CudaThreadState, Place, PoolConfig, Widths};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use self::config::{Given, Joined, Way};
use self::errors::Signals;
use self::home::{Home, either};
pub use self::plan::DistPlan;
use crate::arrays::{Location, torch_stream};
use crate::devices;
use crate::errors::to_py_err;
use crate::forks;
use crate::hooks::caught;
use crate::lists::{extract_int, integers};
use crate::params;
use crate::pool::device_name;
use crate::state::OwnedState;
use crate::streams::stream_handle;
use crate::turns::Turns;

/// The state after a call that broke off, for the message.
const UNKNOWN: &str = "the group is broken: make new pools";
const UNMADE: &str = "no pool was made";

/// A pool on every rank of a group, for logits of which each rank has a part. All ranks make the same calls in the same turn.
///
/// ::
///
///     pool = dist.DistPool(32000, rank=rank, addresses=["unix:/run/me/0", "unix:/run/me/1"])
///     slot = pool.admit(SamplingParams(temperature=0.8, seed=7), prompt=[1, 2])
///     start, end = pool.ids                       # the ids that this rank has the logits of
///     tokens = pool.step(logits, [slot]).tokens   # the same on all ranks, and what one process would draw
///
/// vocab: the number of logits in a whole row. rank: this process' number. addresses: where each rank listens, by rank:
/// "unix:PATH", on one host; or in place of both group: a process group of torch, whose ranks are those of the pool, on any hosts.
/// gumball.dist.join takes what fits. split: how many ids each rank has, one number for each; None:
/// evenly. slots, top_n, ids, kept, threads, level, route: as for Pool. layouts: which of "gather", "swap", "survey" and
/// "replicated" steps may take; "gather" always may. ownership: who samples which requests: "blocks", or "modulo" for request % world.
/// layout: forces one for all steps but prefill. swap_min_requests, survey_min_vocab, survey_min_rows: from where on a layout is
/// taken. transport: how rows travel: "auto"; "unix", by addresses; "torch", by a group; on devices "onesided". These five are otherwise what GUMBALL_DIST_LAYOUT, .._SWAP_MIN_REQUESTS,
/// .._SURVEY_MIN_VOCAB, .._SURVEY_MIN_ROWS and .._TRANSPORT say. timeout: how many seconds the other ranks are waited for: until
/// all are connected, until all have compared what they are made with, and in each step. Signals are heard meanwhile. device, rows, history_growth, keep_histories, stream: as for Pool. With a device rows and results may lie there, and devices
/// write into each other's memory: GPUs of one host with peer access. Then no kept sets are reported.
///
/// Waits until all ranks have come. Raises ValueError for a number outside its range or an unknown name; UnavailableError for a
/// transport that is not there, or an address that cannot be listened at; LateError or LostError if a rank does not come or ends;
/// DisagreeError if ranks differ in what they are made with.
#[pyclass(frozen, weakref, module = "gumball.dist")]
#[derive(Debug)]
pub struct DistPool {
    /// `None` once it is closed.
    inner: Turns<Option<Home>>,
    joined: Joined,
    kept: bool,
    /// The fork count of the process that made the pool.
    process: u32,
    /// The memory that rows on a device lie in.
    location: Location,
    /// The stream that was named when the pool was made.
    stream: Option<usize>,
    signals: Signals,
}

impl DistPool {
    /// Runs `work` on the pool without the GIL, on a GPU on the pool's stream or torch's current one; calls from several threads take
    /// turns.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Home) -> gumball_engine::Result<R> + Send,
    ) -> PyResult<R> {
        let stream = self.on(py)?;
        if matches!(self.location, Location::Cuda(_)) {
            forks::refuse_gpu_of(self.process)?;
        }
        let work = |home: &mut Option<Home>| {
            let home = home.as_mut().ok_or_else(|| gumball_engine::RanksError::Unavailable {
                what: "pool".to_owned(),
                reason: "this one was closed; make another".to_owned(),
            })?;
            let gpu = home.gpu();
            let _state = gpu.and_then(|_| CudaThreadState::save());
            if let (Some(gpu), Some(stream)) = (gpu, stream) {
                // SAFETY: torch's streams live until the process ends. The constructor requires that a stream the caller
                // names lives as long as the pool.
                unsafe { gpu.use_stream(stream) }?;
            }
            work(home)
        };
        self.inner.with(py, UNKNOWN, work)?.map_err(|error| self.signals.error(error))
    }

    /// Returns the handle of the stream in use; `None` on the host.
    pub fn stream(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.with(py, |home| Ok(home.gpu().map(gumball_engine::Gpu::stream)))
    }

    /// Makes later work on another stream wait for the work enqueued here.
    pub fn order_before(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.with(py, |home| match home.gpu() {
            // SAFETY: the reader of a device array names the live stream of this device on which it will read.
            Some(gpu) => Ok(unsafe { gpu.order_before(stream) }?),
            None => Ok(()),
        })
    }

    /// Returns the stream to work on: the pool's, otherwise torch's current one, if any.
    fn on(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        match (self.location, self.stream) {
            (Location::Cuda(ordinal), None) => torch_stream(py, ordinal),
            (Location::Cuda(_), named) => Ok(named),
            _ => Ok(None),
        }
    }
}

#[pymethods]
impl DistPool {
    #[new]
    #[pyo3(signature = (
        vocab, *, rank=None, addresses=None, group=None, split=None, slots=None, top_n=None, ids=None, kept=false, threads=None, level=None, route=None,
        layouts=None, ownership="blocks", layout=None, swap_min_requests=None, survey_min_vocab=None, survey_min_rows=None,
        transport=None, timeout=None, device=None, rows=None, history_growth=None, keep_histories=false, stream=None,
    ), text_signature = "(vocab, *, rank=None, addresses=None, group=None, split=None, slots=256, top_n=0, ids=0, kept=False, threads=None, \
        level=None, route='race', layouts=('gather', 'swap', 'survey'), ownership='blocks', layout=None, \
        swap_min_requests=None, survey_min_vocab=None, survey_min_rows=None, transport=None, timeout=30.0, device='cpu', \
        rows=256, history_growth=4096, keep_histories=False, stream=None)")]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        vocab: &Bound<'_, PyAny>,
        rank: Option<&Bound<'_, PyAny>>,
        addresses: Option<Vec<String>>,
        group: Option<&Bound<'_, PyAny>>,
        split: Option<&Bound<'_, PyAny>>,
        slots: Option<&Bound<'_, PyAny>>,
        top_n: Option<&Bound<'_, PyAny>>,
        ids: Option<&Bound<'_, PyAny>>,
        kept: bool,
        threads: Option<&Bound<'_, PyAny>>,
        level: Option<&str>,
        route: Option<&str>,
        layouts: Option<Vec<String>>,
        ownership: &str,
        layout: Option<&str>,
        swap_min_requests: Option<&Bound<'_, PyAny>>,
        survey_min_vocab: Option<&Bound<'_, PyAny>>,
        survey_min_rows: Option<&Bound<'_, PyAny>>,
        transport: Option<&str>,
        timeout: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
        rows: Option<&Bound<'_, PyAny>>,
        history_growth: Option<&Bound<'_, PyAny>>,
        keep_histories: bool,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let number = |value: Option<&Bound<'_, PyAny>>, name: &str, default: usize| {
            value.map_or(Ok(default), |value| extract_int::<usize>(value, name))
        };
        let vocab = extract_int(vocab, "vocab")?;
        let (timeout, signals) = (config::read_timeout(timeout)?, Signals::default());
        let way = Way::read(rank, addresses.as_deref(), group, (timeout, &signals))?;
        let (rank, world) = way.place();
        let given = Given {
            world,
            split,
            layouts: layouts.as_deref(),
            ownership,
            layout,
            thresholds: [swap_min_requests, survey_min_vocab, survey_min_rows],
            transport,
        };
        let config::Config { planner, transport } = given.read(vocab)?;
        let widths = Widths { top_n: number(top_n, "top_n", 0)?, ids: number(ids, "ids", 0)? };
        let slots = number(slots, "slots", 256)?;
        let device = device_name(device)?;
        let stream = stream.map(stream_handle).transpose()?;
        let split = planner.split.clone();
        let patience = signals.patience(timeout);
        let connect = || way.connect((transport, device != "cpu"), patience);
        let failed = |error| signals.error(error);
        let (home, location) = if device == "cpu" {
            let mut config = PoolConfig { slots, widths, ..PoolConfig::new(vocab) };
            config.place = Place::Host {
                threads: threads.map(|threads| extract_int(threads, "threads")).transpose()?,
                level: level.map(|level| level.parse().map_err(to_py_err)).transpose()?,
            };
            config.route = route.map_or(Ok(config.route), str::parse).map_err(to_py_err)?;
            let join = || -> gumball_engine::Result<Home> {
                Ok(Home::Host(Box::new(gumball_engine::DistPool::new(config, planner, connect()?)?)))
            };
            (py.detach(|| caught(UNMADE, join))?.map_err(failed)?, Location::Host)
        } else {
            home::refuse_of_host(&device, [threads.is_some(), level.is_some(), kept])?;
            let rows = number(rows, "rows", 256)?;
            let history_growth = number(history_growth, "history_growth", 4096)?;
            let default = PoolConfig::new(vocab);
            let route = route.map_or(Ok(default.route), str::parse).map_err(to_py_err)?;
            let place = |device| Place::Device { device, rows, history_growth, keep_histories };
            let config =
                |device| PoolConfig { vocab, slots, widths, kept: false, route, place: place(device) };
            let ordinal = devices::ordinal(&device);
            if ordinal.is_some() {
                devices::locate(py)?;
            }
            let join = || home::join(&device, config, planner, connect, timeout);
            let home = py.detach(|| caught(UNMADE, join))?.map_err(failed)?;
            (home, ordinal.map_or(Location::Host, |ordinal| Location::Cuda(ordinal as i32)))
        };
        let joined = Joined { vocab, rank, split, transport: home.transport(), device, timeout };
        let (inner, process) = (Turns::new(Some(home)), forks::count());
        Ok(Self { inner, joined, kept, process, location, stream, signals })
    }

    /// The number of logits in a whole row.
    #[getter]
    fn vocab(&self) -> usize {
        self.joined.vocab
    }

    /// This process' number in the group.
    #[getter]
    fn rank(&self) -> usize {
        self.joined.rank
    }

    /// The number of processes in the group.
    #[getter]
    fn world(&self) -> usize {
        self.joined.split.world()
    }

    /// The ids that this rank has the logits of: the first one, and the end.
    #[getter]
    fn ids(&self) -> (usize, usize) {
        let ids = self.joined.split.ids(self.joined.rank);
        (ids.start, ids.end)
    }

    /// The most ids of a rank: rows of logits may be padded to this width.
    #[getter]
    fn width(&self) -> usize {
        self.joined.split.width()
    }

    /// The device's name: "cpu", "cuda:N".
    #[getter]
    fn device(&self) -> &str {
        &self.joined.device
    }

    /// The transport that was taken: "unix" or "torch", on devices "onesided".
    #[getter]
    fn transport(&self) -> &'static str {
        self.joined.transport
    }

    /// How many seconds a rank is waited for.
    #[getter]
    fn timeout(&self) -> f64 {
        Duration::as_secs_f64(&self.joined.timeout)
    }

    /// How many steps each layout has served, by the number of requests that decided it: {(layout, requests): steps}.
    fn served<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let served = self.with(py, |home| Ok(either!(home, pool => pool.planner().served().clone())))?;
        let found = PyDict::new(py);
        for ((layout, batch), steps) in served {
            found.set_item((layout.name(), batch), steps)?;
        }
        Ok(found)
    }

    /// The exchanges of this rank, by their purpose: {name: (exchanges, bytes sent, bytes received)}, without the 44 bytes in front of
    /// each message. reset: counts from nothing afterwards; on a device nothing is counted in steps, whose bytes the host does not see.
    #[pyo3(signature = (*, reset=false))]
    fn traffic<'py>(&self, py: Python<'py>, reset: bool) -> PyResult<Bound<'py, PyDict>> {
        let traffic = self.with(py, |home| {
            let traffic = either!(home, pool => pool.group().traffic().clone());
            match home {
                Home::Host(pool) if reset => pool.reset_traffic(),
                _ => {}
            }
            Ok(traffic)
        })?;
        let found = PyDict::new(py);
        for (what, counted) in traffic {
            let name = format!("{what:?}");
            found.set_item(name, (counted.exchanges, counted.sent_bytes, counted.received_bytes))?;
        }
        Ok(found)
    }

    /// Admits a request and returns its slot, as Pool.admit does. It must have a seed: ranks that each took one would draw different
    /// tokens.
    #[pyo3(signature = (params, prompt=None), text_signature = "($self, params, prompt=())")]
    fn admit(
        &self,
        py: Python<'_>,
        params: &Bound<'_, PyAny>,
        prompt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<i32> {
        let params = params::read(params)?;
        let prompt: Vec<u32> =
            prompt.map(|prompt| integers(prompt, "prompt")).transpose()?.unwrap_or_default();
        self.with(py, |home| either!(home, pool => pool.admit(params, &prompt)))
    }

    /// Continues a sequence from a state of this or any other pool, as Pool.resume does.
    fn resume(&self, py: Python<'_>, params: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> PyResult<i32> {
        let (params, state) = (params::read(params)?, OwnedState::read(state)?);
        self.with(py, |home| either!(home, pool => pool.resume(params, state.state())))
    }

    /// Copies a sequence to another slot, with another draw index, as Pool.fork does.
    fn fork(&self, py: Python<'_>, slot: &Bound<'_, PyAny>, draw: &Bound<'_, PyAny>) -> PyResult<i32> {
        let (slot, draw) = (extract_int(slot, "slot")?, extract_int(draw, "draw")?);
        self.with(py, |home| either!(home, pool => pool.fork(slot, draw)))
    }

    /// Ends a sequence.
    fn release(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<()> {
        let slot = extract_int(slot, "slot")?;
        self.with(py, |home| either!(home, pool => pool.release(slot)))
    }

    /// Restores a sequence's state after output_len output tokens, as Pool.truncate does.
    fn truncate(
        &self,
        py: Python<'_>,
        slot: &Bound<'_, PyAny>,
        output_len: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (slot, output_len) = (extract_int(slot, "slot")?, extract_int(output_len, "output_len")?);
        self.with(py, |home| {
            either!(home, pool => {
                let behind = pool.sequence(slot)?.tokens_behind(output_len)?;
                pool.shorten(&[slot], &[behind])
            })
        })
    }

    /// Appends a token that the caller chose.
    fn push(&self, py: Python<'_>, slot: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let (slot, id) = (extract_int(slot, "slot")?, extract_int(id, "id")?);
        self.with(py, |home| either!(home, pool => pool.push(slot, id)))
    }

    /// Takes the last output tokens away again, as Pool.shorten does; on a device this waits, see enqueue_shorten.
    fn shorten(&self, py: Python<'_>, slots: &Bound<'_, PyAny>, counts: &Bound<'_, PyAny>) -> PyResult<()> {
        let slots: Vec<i32> = integers(slots, "slots")?;
        let counts: Vec<u32> = integers(counts, "counts")?;
        let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
        self.with(py, |home| either!(home, pool => pool.shorten(&slots, &counts)))
    }

    /// What the next token of a slot depends on besides its row and the parameters: a gumball.State, the same on all ranks.
    fn state<'py>(&self, py: Python<'py>, slot: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let slot = extract_int(slot, "slot")?;
        self.with(py, |home| Ok(either!(home, pool => OwnedState::new(pool.sequence(slot)?.state()))))?
            .python(py)
    }

    /// The ids of a slot's prompt and output, a list of int.
    fn history(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let slot = extract_int(slot, "slot")?;
        self.with(py, |home| Ok(either!(home, pool => pool.sequence(slot)?.history().ids().to_vec())))
    }

    /// The ids that a slot generated, a list of int.
    fn output(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let slot = extract_int(slot, "slot")?;
        self.with(py, |home| Ok(either!(home, pool => pool.sequence(slot)?.history().output().to_vec())))
    }

    /// Ends the pool with its sequences; a step of the other ranks is a LostError then. On devices it waits for the other ranks to end
    /// theirs, for timeout at most, since they may still write here. Deleting the pool does the same.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.with(py, UNKNOWN, |home| drop(home.take()))?;
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
        let (vocab, rank, world) = (self.vocab(), self.rank(), self.world());
        format!("DistPool({vocab}, rank={rank} of {world}, transport={:?})", self.transport())
    }
}

impl Drop for DistPool {
    /// Ends the pool without the GIL: the rank that it waits for may be a thread of this process.
    fn drop(&mut self) {
        Python::try_attach(|py| self.close(py).ok());
    }
}
