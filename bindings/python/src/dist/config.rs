//! The arguments that a group is made with.

use std::time::Duration;

use gumball_engine::dist::{
    Address, DEFAULT_TIMEOUT, LogitsLayout, Ownership, Patience, PlannerConfig, Transport, TransportKind,
    VocabSplit, choose,
};
use pyo3::prelude::*;

use super::by_torch::ByTorch;
use super::errors::Signals;
use crate::errors::{InvalidValueError, out_of_range, to_py_err};
use crate::lists::{extract_int, integers, number};

/// What Python hands over.
pub struct Given<'a, 'py> {
    pub world: usize,
    pub split: Option<&'a Bound<'py, PyAny>>,
    pub layouts: Option<&'a [String]>,
    pub ownership: &'a str,
    /// The layout that is forced.
    pub layout: Option<&'a str>,
    /// Those of `Thresholds`, in turn.
    pub thresholds: [Option<&'a Bound<'py, PyAny>>; 3],
    pub transport: Option<&'a str>,
}

/// How a rank reaches the others.
pub enum Way {
    Addresses(usize, Vec<Address>),
    Torch(ByTorch),
}

impl Way {
    /// Reads what was given: the rank and the addresses, or a process group of torch.
    pub fn read(
        rank: Option<&Bound<'_, PyAny>>,
        addresses: Option<&[String]>,
        group: Option<&Bound<'_, PyAny>>,
        (timeout, signals): (Duration, &Signals),
    ) -> PyResult<Self> {
        match (rank, addresses, group) {
            (Some(rank), Some(addresses), None) => {
                let addresses = addresses.iter().map(|address| Address::parse(address).map_err(to_py_err));
                Ok(Self::Addresses(extract_int(rank, "rank")?, addresses.collect::<PyResult<_>>()?))
            }
            (None, None, Some(group)) => Ok(Self::Torch(ByTorch::new(group, timeout, signals)?)),
            _ => Err(InvalidValueError::new_err("rank and addresses, or group alone, must be given")),
        }
    }

    /// Returns the rank, and the number of ranks.
    pub fn place(&self) -> (usize, usize) {
        match self {
            Self::Addresses(rank, addresses) => (*rank, addresses.len()),
            Self::Torch(ranks) => (ranks.rank(), ranks.world()),
        }
    }

    /// Connects the rank with the others, for rows on a device or in host memory.
    pub fn connect(
        self,
        (kind, on_device): (TransportKind, bool),
        patience: Patience,
    ) -> gumball_engine::Result<Box<dyn Transport>> {
        match self {
            Self::Addresses(rank, addresses) => choose(kind, on_device, rank, &addresses, patience),
            Self::Torch(_) if kind == TransportKind::Threads || kind == TransportKind::Unix => {
                Err(kind.refused("the ranks were given by a process group of torch"))
            }
            Self::Torch(ranks) => {
                kind.check(on_device)?;
                ranks.meet()?;
                Ok(Box::new(ranks))
            }
        }
    }
}

/// What the arguments say.
pub struct Config {
    pub planner: PlannerConfig,
    pub transport: TransportKind,
}

/// What a pool keeps of it.
#[derive(Debug)]
pub struct Joined {
    pub vocab: usize,
    pub rank: usize,
    pub split: VocabSplit,
    /// The name of the transport.
    pub transport: &'static str,
    /// The name of the device.
    pub device: String,
    pub timeout: Duration,
}

/// Reads a variable of the environment.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Given<'_, '_> {
    /// Reads the arguments, and the environment for those that are not given.
    pub fn read(&self, vocab: usize) -> PyResult<Config> {
        let world = self.world;
        let split = match self.split {
            None => VocabSplit::even(vocab, world).map_err(to_py_err)?,
            Some(sizes) => {
                let sizes: Vec<u32> = integers(sizes, "split")?;
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
        if let Some(names) = self.layouts {
            let layouts = names.iter().map(|name| layout(name)).collect::<PyResult<Vec<_>>>()?;
            planner.layouts = layouts.into_iter().filter(|layout| *layout != LogitsLayout::Gather).collect();
        }
        if let Some(name) = self.layout.filter(|name| *name != "auto") {
            planner.forced = Some(layout(name)?);
        }
        planner.ownership = match self.ownership {
            "blocks" => Ownership::Blocks,
            "modulo" => Ownership::Modulo,
            other => {
                return Err(out_of_range("ownership", format!("{other:?}"), "\"blocks\" or \"modulo\""));
            }
        };
        let names = ["swap_min_requests", "survey_min_vocab", "survey_min_rows"];
        let thresholds = &mut planner.thresholds;
        let places = [
            &mut thresholds.swap_min_requests,
            &mut thresholds.survey_min_vocab,
            &mut thresholds.survey_min_rows,
        ];
        for ((given, name), place) in self.thresholds.iter().zip(names).zip(places) {
            if let Some(given) = given {
                *place = extract_int(given, name)?;
            }
        }
        let transport = match self.transport {
            Some(name) => TransportKind::of_name(name),
            None => TransportKind::of_environment(variable),
        };
        Ok(Config { planner, transport: transport.map_err(to_py_err)? })
    }
}

/// Reads how long ranks are waited for.
pub fn read_timeout(given: Option<&Bound<'_, PyAny>>) -> PyResult<Duration> {
    let Some(given) = given else { return Ok(DEFAULT_TIMEOUT) };
    let seconds = number(given, "timeout")?;
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err(out_of_range("timeout", seconds, "in 0.001..=86400 seconds"));
    }
    Ok(Duration::from_millis((f64::from(seconds) * 1000.0).round() as u64))
}
