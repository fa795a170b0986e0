//! The engine's pool: on the host or on a device, in one process or over ranks.

use std::ops::{Deref, DerefMut};

use gumball_engine::{
    Batch, CudaThreadState, Device, DeviceGraph, Error, Gpu, OnDevice, Outputs, Pool, Result, StepVariant,
    Work,
};

use crate::devices;

/// The pool and where it runs.
#[derive(Debug)]
pub enum Place {
    /// In one process, on the host or on a device.
    One(Box<Pool>),
    HostRanks(Box<Pool>),
    DeviceRanks(Box<Pool>),
}

impl Deref for Place {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        match self {
            Place::One(pool) | Place::HostRanks(pool) | Place::DeviceRanks(pool) => pool,
        }
    }
}

impl DerefMut for Place {
    fn deref_mut(&mut self) -> &mut Pool {
        match self {
            Place::One(pool) | Place::HostRanks(pool) | Place::DeviceRanks(pool) => pool,
        }
    }
}

/// Returns the error of what a pool does not have.
pub fn unavailable(resource: &'static str, reason: &str) -> Error {
    Error::Unavailable { resource, reason: reason.to_owned() }
}

impl Place {
    /// Returns the GPU that the pool works on, if it is on one.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.device().and_then(Device::gpu)
    }

    /// Returns the pool of one process.
    pub fn one(&mut self) -> Result<&mut Pool> {
        match self {
            Place::One(pool) => Ok(pool),
            _ => Err(unavailable("this call over ranks", "make a pool without ranks for it")),
        }
    }

    /// Returns what only a device can do, in one process.
    pub fn on_device(&mut self) -> Result<OnDevice<'_>> {
        self.one()?.on_device()
    }

    /// Returns what only a device can do, in one process or over ranks.
    pub fn there(&mut self) -> Result<OnDevice<'_>> {
        self.in_order()?.on_device()
    }

    /// Returns the pool over ranks.
    pub fn over_ranks(&mut self) -> Result<&mut Pool> {
        match self {
            Place::One(_) => Err(no_ranks()),
            Place::HostRanks(pool) | Place::DeviceRanks(pool) => Ok(pool),
        }
    }

    /// Returns the pool for work in order.
    fn in_order(&mut self) -> Result<&mut Pool> {
        match self {
            Place::HostRanks(_) => Err(at_once()),
            Place::One(pool) | Place::DeviceRanks(pool) => Ok(pool),
        }
    }

    pub fn assign(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.in_order()?.assign(batch)
    }

    /// Enqueues work, with the kernels of a variant if one is named.
    pub fn enqueue(&mut self, work: &[Work<'_>], variant: Option<StepVariant>) -> Result<()> {
        match variant {
            Some(variant) => self.there()?.enqueue_variant(work, variant),
            None => self.in_order()?.enqueue(work),
        }
    }

    pub fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        self.in_order()?.fetch(out)
    }

    pub fn capture(&mut self, work: &[Work<'static>]) -> Result<DeviceGraph<'static>> {
        self.in_order()?.capture(work)
    }

    pub fn replay(&mut self, graph: &DeviceGraph<'_>) -> Result<()> {
        self.in_order()?.replay(graph)
    }

    /// Returns the smallest variant that serves the assigned rows.
    pub fn needed_variant(&mut self) -> Result<StepVariant> {
        Ok(self.there()?.needed_variant())
    }

    pub fn reserve_replays(&mut self, steps: usize, variant: StepVariant) -> Result<()> {
        self.there()?.reserve_replays(steps, variant)
    }
}

/// Returns the error of a pool without ranks.
pub fn no_ranks() -> Error {
    unavailable("ranks", "the pool was made without; hand over ranks then")
}

fn at_once() -> Error {
    unavailable("work in order over ranks on cpu", "call step or verify, which do all at once")
}

/// Opens a device; a GPU gets a stream of its own.
pub fn open(name: &str) -> Result<(Device, Option<CudaThreadState>)> {
    let Some(ordinal) = devices::ordinal(name) else {
        // An emulated device, or an unknown name.
        return Ok((Device::open(name)?, None));
    };
    let state = CudaThreadState::save();
    Ok((Device::from(devices::gpu(ordinal)?.on_new_stream()?), state))
}
