//! The ranks of a pool: their settings, and a pool's facts about them.

use std::ffi::c_void;
use std::time::Duration;

use gumball_engine::dist::{
    Address, DEFAULT_TIMEOUT, LogitsLayout, Ownership, PlannerConfig, Transport, TransportKind, VocabSplit,
    choose,
};
use gumball_engine::{Place, Pool as EnginePool, PoolConfig, ProgramCommunicator, Ranks, Result};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::by_torch::ByTorch;
use super::signals::Signals;
use super::{Pool, no_ranks};
use crate::devices;
use crate::errors::{InvalidValueError, out_of_range, to_py_err, wrong_type};
use crate::heads::named_counts;
use crate::lists::{extract_int, integers, number};

/// The settings of a gumball.Ranks, and the environment's where it has none.
pub struct Config {
    pub planner: PlannerConfig,
    rank: usize,
    world: usize,
    way: Way,
    transport: TransportKind,
    communicator: Option<ProgramCommunicator>,
    timeout: Duration,
}

/// How a rank reaches the others.
enum Way {
    Addresses(Vec<Address>),
    Torch(ByTorch),
}

/// A pool's place among its ranks.
#[pyclass(frozen, get_all, module = "gumball")]
#[derive(Clone, Debug)]
pub struct RanksInfo {
    /// The number of this process.
    rank: usize,
    /// How many processes there are.
    world: usize,
    /// The first id that this rank has the logits of, and the one after the last.
    ids: (usize, usize),
    /// The most ids of a rank: rows of logits may be padded to this width.
    width: usize,
    /// The transport that was taken: "unix" or "torch", on devices "onesided" or "nccl".
    transport: &'static str,
    /// Why rows on devices take another transport or fewer layouts than they would in another place, or None.
    warning: Option<String>,
    /// How many seconds a rank is waited for.
    timeout: f64,
}

/// Reads a variable of the environment.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Config {
    /// Reads a gumball.Ranks for a vocabulary.
    pub fn read(ranks: &Bound<'_, PyAny>, vocab: usize, signals: &Signals) -> PyResult<Self> {
        let py = ranks.py();
        let of = |name: &str| {
            let value = ranks.getattr(PyString::intern(py, name));
            Ok::<_, PyErr>(
                Some(value.map_err(|_| wrong_type("ranks", "a gumball.Ranks", ranks))?)
                    .filter(|it| !it.is_none()),
            )
        };
        let texts = |name: &str| of(name)?.map(|it| it.extract::<Vec<String>>()).transpose();
        let text = |name: &str| of(name)?.map(|it| it.extract::<String>()).transpose();
        let timeout = match of("timeout")? {
            None => DEFAULT_TIMEOUT,
            Some(given) => {
                let seconds = number(&given, "timeout")?;
                if !(0.001..=86_400.0).contains(&seconds) {
                    return Err(out_of_range("timeout", seconds, "in 0.001..=86400 seconds"));
                }
                Duration::from_millis((f64::from(seconds) * 1000.0).round() as u64)
            }
        };
        let (rank, world, way) = match (of("rank")?, texts("addresses")?, of("group")?) {
            (Some(rank), Some(addresses), None) => {
                let addresses = addresses.iter().map(|address| Address::parse(address).map_err(to_py_err));
                let addresses = addresses.collect::<PyResult<Vec<_>>>()?;
                (extract_int(&rank, "rank")?, addresses.len(), Way::Addresses(addresses))
            }
            (None, None, Some(group)) => {
                let torch = ByTorch::new(&group, timeout, signals)?;
                (torch.rank(), torch.world(), Way::Torch(torch))
            }
            _ => return Err(InvalidValueError::new_err("rank and addresses, or group alone, must be given")),
        };
        let split = match of("split")? {
            None => VocabSplit::even(vocab, world).map_err(to_py_err)?,
            Some(sizes) => {
                let sizes: Vec<u32> = integers(&sizes, "split")?;
                let sizes: Vec<usize> = sizes.into_iter().map(|size| size as usize).collect();
                if sizes.len() != world {
                    let allowed = format!("one number for each rank, {world}");
                    let found = format!("of {} numbers", sizes.len());
                    return Err(out_of_range("split", found, allowed));
                }
                VocabSplit::of_sizes(&sizes).map_err(to_py_err)?
            }
        };
        let mut planner = PlannerConfig::new(split).with_environment(variable).map_err(to_py_err)?;
        let layout = |name: &str| LogitsLayout::of_name(name).map_err(to_py_err);
        if let Some(names) = texts("layouts")? {
            planner.layouts = names.iter().map(|name| layout(name)).collect::<PyResult<_>>()?;
        }
        if let Some(name) = text("layout")?.filter(|name| name != "auto") {
            planner.forced = Some(layout(&name)?);
        }
        planner.ownership = match text("ownership")?.as_deref() {
            None | Some("blocks") => Ownership::Blocks,
            Some("modulo") => Ownership::Modulo,
            Some(other) => {
                return Err(out_of_range("ownership", format!("{other:?}"), "\"blocks\" or \"modulo\""));
            }
        };
        if let Some(given) = of("logit_bytes")? {
            planner.logit_bytes = extract_int(&given, "logit_bytes")?;
        }
        let transport = match text("transport")? {
            Some(name) => TransportKind::of_name(&name),
            None => TransportKind::of_environment(variable),
        };
        let communicator = match of("communicator")? {
            None => None,
            Some(given) => match extract_int::<usize>(&given, "communicator")? {
                0 => return Err(out_of_range("communicator", 0, "the address of an ncclComm_t")),
                // SAFETY: the docstring of gumball.Ranks asks the caller for what this does.
                address => Some(unsafe { ProgramCommunicator::new(address as *mut c_void) }),
            },
        };
        Ok(Self {
            planner,
            rank,
            world,
            way,
            transport: transport.map_err(to_py_err)?,
            communicator,
            timeout,
        })
    }

    /// Makes a pool, on a device or in host memory, over this rank and the others, once these have come.
    /// Returns what it says of them, too.
    pub fn pool(self, config: PoolConfig, signals: &Signals) -> Result<(EnginePool, RanksInfo)> {
        let (kind, on_device) = (self.transport, !matches!(config.place, Place::Host { .. }));
        let transport: Box<dyn Transport> = match self.way {
            Way::Addresses(addresses) => {
                choose(kind, on_device, self.rank, &addresses, signals.patience(self.timeout))?
            }
            Way::Torch(_) if kind == TransportKind::Threads || kind == TransportKind::Unix => {
                return Err(kind.refused("the ranks were given by a process group of torch"));
            }
            Way::Torch(ranks) => {
                kind.check(on_device)?;
                ranks.meet()?;
                Box::new(ranks)
            }
        };
        let (ids, width) = (self.planner.split.ids(self.rank), self.planner.split.width());
        let (rank, world, ids) = (self.rank, self.world, (ids.start, ids.end));
        let Self { planner, timeout, communicator, .. } = self;
        let pool =
            EnginePool::over(config, Ranks { planner, transport, devices: kind, communicator, timeout })?;
        let made = pool.ranks().expect("it was made over ranks");
        let (transport, warning) = (made.transport, made.warning.map(str::to_owned));
        warning.iter().for_each(|warning| devices::warn(warning));
        let info = RanksInfo { rank, world, ids, width, transport, warning, timeout: timeout.as_secs_f64() };
        Ok((pool, info))
    }
}

impl RanksInfo {
    /// Returns what a pool's representation says of its ranks.
    pub fn described(&self) -> String {
        format!("rank={} of {}, transport={:?}", self.rank, self.world, self.transport)
    }
}

#[pymethods]
impl RanksInfo {
    fn __repr__(&self) -> String {
        format!("RanksInfo({})", self.described())
    }
}

#[pymethods]
impl Pool {
    /// The pool's place among its ranks, a RanksInfo. Raises UnavailableError for a pool that was made
    /// without.
    #[getter]
    fn ranks(&self) -> PyResult<RanksInfo> {
        self.ranks.clone().ok_or_else(|| to_py_err(no_ranks()))
    }

    /// The work of the pool since it was made, as a dict of dicts. "heads", on the host: whole_rows, rows
    /// whose logits were all computed; certified_rows, rows that a part of their logits decided;
    /// certified_logits, how many these took in all; clustered_rows, rows of which the probed clusters alone
    /// were computed; clustered_logits, how many these took in all; weight_reads, screen_reads and
    /// centroid_reads, how often all weights, a screen, and centroids were read. DeviceHead.counts says it of
    /// heads on devices.
    ///
    /// "variants", on a device: how many steps each variant has served, in ascending order. Steps reserved
    /// for replays count under the variant that was named, all others under the one that was named or the
    /// smallest that serves their rows.
    ///
    /// Over ranks "layouts": {(layout, requests): steps}, by the number of requests that decided it; and
    /// "traffic", the exchanges of this rank by their purpose: {name: (exchanges, bytes sent, bytes
    /// received)}, without the 44 bytes in front of each message; on a device nothing is counted in steps,
    /// whose bytes the host does not see.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        let (heads, variants, of_ranks) = self.with(py, None, |inner| {
            let pool = inner.pool()?;
            let heads = pool.device().is_none().then(|| pool.head_counts());
            let variants = pool.on_device().ok().map(|there| there.variants());
            let ranks = pool.ranks();
            let of_ranks = ranks.map(|ranks| (ranks.planner.served().clone(), ranks.group.traffic().clone()));
            Ok((heads, variants, of_ranks))
        })?;
        if let Some(counts) = heads {
            let named = named_counts(py, &counts)?;
            named.set_item("weight_reads", counts.weight_reads)?;
            named.set_item("screen_reads", counts.screen_reads)?;
            named.set_item("centroid_reads", counts.centroid_reads)?;
            found.set_item("heads", named)?;
        }
        if let Some(variants) = variants {
            let named = PyDict::new(py);
            variants.iter().try_for_each(|(variant, steps)| named.set_item(variant.name(), steps))?;
            found.set_item("variants", named)?;
        }
        if let Some((served, traffic)) = of_ranks {
            let (layouts, exchanges) = (PyDict::new(py), PyDict::new(py));
            for ((layout, batch), steps) in served {
                layouts.set_item((layout.name(), batch), steps)?;
            }
            for (what, counted) in traffic {
                exchanges.set_item(
                    format!("{what:?}"),
                    (counted.exchanges, counted.sent_bytes, counted.received_bytes),
                )?;
            }
            found.set_item("layouts", layouts)?;
            found.set_item("traffic", exchanges)?;
        }
        Ok(found)
    }
}
