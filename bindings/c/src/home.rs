//! The engine's pool, with errors that name what C has.

use std::ops::{Deref, DerefMut};

use gumball_engine::dist::{Group, Planner};
use gumball_engine::{DeviceGraph, Error, Layout, OnDevice, Pool, Result, StepVariant, Work};

/// A pool of the engine's.
#[derive(Debug)]
pub(crate) struct Home(pub Pool);

impl Deref for Home {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.0
    }
}

impl DerefMut for Home {
    fn deref_mut(&mut self) -> &mut Pool {
        &mut self.0
    }
}

fn unavailable<T>(resource: &'static str, reason: &str) -> Result<T> {
    Err(Error::Unavailable { resource, reason: reason.to_owned() })
}

impl Home {
    pub fn capture(&mut self, work: &[Work<'static>]) -> Result<DeviceGraph<'static>> {
        self.on_device()?;
        self.0.capture(work)
    }

    pub fn replay(&mut self, graph: &DeviceGraph<'static>) -> Result<()> {
        self.on_device()?;
        self.0.replay(graph)
    }

    /// Returns what a pool does on a device.
    pub fn on_device(&mut self) -> Result<OnDevice<'_>> {
        if self.device().is_none() {
            return unavailable(
                "device of this pool",
                "the pool is on the host; name one in gumball_pool_config",
            );
        }
        self.0.on_device()
    }

    /// Returns the address and the layout of the last outputs on a device, and the addresses of the rows that these
    /// come from and of the numbers of accepted drafts.
    pub fn outputs(&mut self) -> Result<(u64, Layout, [u64; 2])> {
        let there = self.on_device()?;
        Ok((there.outputs_address(), there.outputs_layout(), there.walks_addresses()))
    }

    /// Returns the sequences in flight, the most there can be, and the number of ids.
    pub fn sizes(&self) -> [usize; 3] {
        [self.len(), self.capacity(), self.vocab()]
    }

    /// Returns how many steps each variant has served.
    pub fn variant_steps(&mut self) -> [u64; StepVariant::ALL.len()] {
        self.on_device().map_or([0; _], |there| there.variants().map(|(_, steps)| steps))
    }

    /// Returns what decides the layouts of steps over ranks, and the group.
    pub fn ranks(&self) -> Result<(&Planner, &Group)> {
        match self.0.ranks() {
            Some(ranks) => Ok((ranks.planner, ranks.group)),
            None => {
                unavailable("ranks of this pool", "it was made without; name them in gumball_pool_config")
            }
        }
    }
}
