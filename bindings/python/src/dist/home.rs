//! The engine's pool of a group, on the host or on a device.

use std::time::Duration;

use gumball_engine::dist::{PlannerConfig, StepKind, StepShape, Transport};
use gumball_engine::{
    CudaThreadState, Device, DeviceDistPool, DistPool, Gpu, PoolConfig, RanksError, Result, Slot,
};
use pyo3::prelude::*;

use crate::devices;
use crate::errors::{InvalidValueError, out_of_range};

/// The pool.
#[derive(Debug)]
pub enum Home {
    Host(Box<DistPool>),
    Device(Box<DeviceDistPool>),
}

/// Evaluates an expression with the pool of either kind, whose methods have the same names.
macro_rules! either {
    ($home:expr, $pool:ident => $body:expr) => {
        match $home {
            crate::dist::home::Home::Host($pool) => $body,
            crate::dist::home::Home::Device($pool) => $body,
        }
    };
}
pub(super) use either;

impl Home {
    /// Returns the pool of a device.
    pub fn device(&mut self) -> Result<&mut DeviceDistPool> {
        match self {
            Self::Device(pool) => Ok(pool),
            Self::Host(_) => {
                let reason = "the pool is on cpu, where step does all at once".to_owned();
                Err(RanksError::Unavailable { what: "steps in the memory of a device".to_owned(), reason }
                    .into())
            }
        }
    }

    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Self::Host(_) => None,
            Self::Device(pool) => pool.pool().device().and_then(Device::gpu),
        }
    }

    /// Makes the device's work wait for that of other streams, on which arrays are written.
    pub fn order_after(&self, streams: &[Option<usize>]) -> Result<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        for stream in streams.iter().flatten() {
            // SAFETY: the array's owner names the live stream of this device on which it writes the array.
            unsafe { gpu.order_after(if *stream == 1 { 0 } else { *stream }) }?;
        }
        Ok(())
    }

    /// Returns the name of the transport of the rows.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Host(pool) => pool.group().transport(),
            Self::Device(_) => "onesided",
        }
    }

    /// Returns the shape of a step of some slots.
    pub fn shape(&self, slots: &[Slot], drafts: usize, kind: StepKind) -> Result<StepShape> {
        match self {
            Self::Host(pool) => pool.shape(slots, drafts, kind),
            Self::Device(pool) => pool.shape(slots, drafts, kind),
        }
    }
}

/// Refuses an unknown device, and the arguments that only a pool of the host takes: threads, level and kept.
pub fn refuse_of_host(device: &str, given: [bool; 3]) -> PyResult<()> {
    if !(device.starts_with("cuda") || cfg!(feature = "emulator")) {
        return Err(out_of_range("device", format!("{device:?}"), "\"cpu\", \"cuda\" or \"cuda:N\""));
    }
    let names = ["threads", "level", "kept"];
    match names.iter().zip(given).find_map(|(name, is_given)| is_given.then_some(name)) {
        None => Ok(()),
        Some(name) => {
            let text = format!("{name} is for device=\"cpu\", but device is {device:?}");
            Err(InvalidValueError::new_err(text))
        }
    }
}

/// Makes the pool of a device; on a GPU it has a stream of its own.
pub fn join(
    name: &str,
    config: impl FnOnce(Device) -> PoolConfig,
    planner: PlannerConfig,
    connect: impl FnOnce() -> Result<Box<dyn Transport>>,
    timeout: Duration,
) -> Result<Home> {
    let (device, _state) = match devices::ordinal(name) {
        // An emulated device, or an unknown name.
        None => (Device::open(name)?, None),
        Some(ordinal) => {
            let state = CudaThreadState::save();
            let gpu = devices::gpu(ordinal)?.on_new_stream()?;
            (Device::from(gpu), state)
        }
    };
    let transport = connect()?;
    Ok(Home::Device(Box::new(DeviceDistPool::new(config(device), planner, transport, timeout)?)))
}
