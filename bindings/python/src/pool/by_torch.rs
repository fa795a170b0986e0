//! The caller's process group of torch as a transport: `python/gumball/torch_ranks.py` moves the bytes.

use std::time::Duration;

use gumball_engine::dist::{Bounds, Transport};
use gumball_engine::{RanksError, Result};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList};

use super::signals::Signals;
use crate::forks;

/// The message of each other rank; and a failure, its rank, and torch's words.
type Exchanged<'py> = (Vec<Option<Bound<'py, PyByteArray>>>, Option<(String, usize, String)>);

/// One rank of a process group of torch.
#[derive(Debug)]
pub struct ByTorch {
    /// A `TorchRanks`.
    ranks: Py<PyAny>,
    rank: usize,
    world: usize,
    timeout: Duration,
    signals: Signals,
    /// The fork count of the process that has the group.
    process: u32,
}

impl ByTorch {
    /// Takes a process group of torch, or the `TorchRanks` of one.
    pub fn new(group: &Bound<'_, PyAny>, timeout: Duration, signals: &Signals) -> PyResult<Self> {
        let class = group.py().import("gumball.torch_ranks")?.getattr("TorchRanks")?;
        let ranks = if group.is_instance(&class)? { group.clone() } else { class.call1((group,))? };
        let (rank, world) = (ranks.getattr("rank")?.extract()?, ranks.getattr("world")?.extract()?);
        let signals = signals.clone();
        Ok(Self { ranks: ranks.unbind(), rank, world, timeout, signals, process: forks::count() })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn world(&self) -> usize {
        self.world
    }

    /// Waits until all ranks make this pool.
    pub fn meet(&self) -> Result<()> {
        let patience = self.timeout.as_secs_f64();
        self.call(|ranks| ranks.call_method1("agree", ("", patience)).map(drop))
    }

    /// Calls Python; its exception ends the exchange, and reaches the caller of the pool.
    fn call<R>(&self, work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Result<R> {
        if forks::count() != self.process {
            let reason = "this process is a child of os.fork: start processes by spawn".to_owned();
            return Err(RanksError::Unavailable { what: "process group of torch".to_owned(), reason }.into());
        }
        match Python::try_attach(|py| work(self.ranks.bind(py))) {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) => {
                self.signals.keep(error);
                Err(RanksError::Interrupted.into())
            }
            None => Err(RanksError::Interrupted.into()),
        }
    }
}

impl Transport for ByTorch {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn name(&self) -> &'static str {
        "torch"
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [Vec<u8>], bounds: Bounds<'_>) -> Result<()> {
        receive.iter_mut().for_each(Vec::clear);
        receive[self.rank].extend_from_slice(send[self.rank]);
        let failure = self.call(|ranks| {
            let others = send.iter().enumerate();
            let messages = others.map(|(to, bytes)| if to == self.rank { &[] } else { *bytes });
            let messages =
                PyList::new(ranks.py(), messages.map(|bytes| PyByteArray::new(ranks.py(), bytes)))?;
            let bounds = (bounds.most_bytes.to_vec(), bounds.patience.as_secs_f64());
            let done = ranks.call_method1("exchange", (messages, bounds.0, bounds.1))?;
            let (received, failure): Exchanged<'_> = done.extract()?;
            for (to, message) in receive.iter_mut().zip(received) {
                if let Some(message) = message {
                    *to = message.to_vec();
                }
            }
            Ok(failure)
        })?;
        let Some((kind, rank, said)) = failure else { return Ok(()) };
        Err(match kind.as_str() {
            "late" => RanksError::Late { rank, waited: self.timeout },
            "long" => {
                let most = bounds.most_bytes[rank];
                let what = format!("a message of {said} bytes where at most {most} were due");
                RanksError::Corrupt { rank, what }
            }
            _ => RanksError::Lost { rank, reason: said },
        }
        .into())
    }

    /// Torch says nothing of a rank between exchanges.
    fn watch(&mut self, _: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        Ok(())
    }

    fn ask(&mut self) -> Result<()> {
        self.call(|ranks| ranks.py().check_signals())
    }
}

impl Drop for ByTorch {
    fn drop(&mut self) {
        let closed = self.call(|ranks| ranks.call_method0("close").map(drop));
        // Python may be at its end, and then the connections end with the process.
        drop(closed);
    }
}
