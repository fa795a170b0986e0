//! The device operators of each stream, kept until the process ends.
//!
//! The launches of device operators share memory, in the order of one stream. Each stream therefore has
//! operators of its own, made in its first call. That call may be under capture: memory is then allocated on
//! another stream, outside the graph, so that no replay initialises it again.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaEvent, DriverError, sys};
use gumball_engine::cuda::{self, CapturedLaunches, Gpu, Grid, Kernel, KernelModule, Runtime};
use gumball_engine::{Device, DeviceOperators, Error, Result};
use pyo3::prelude::*;

use crate::arrays::Location;
use crate::devices;
use crate::errors::raised;
use crate::forks;
use crate::hooks::{OUTPUTS, caught};
use crate::streams::{Current, Relaxed};

/// The memory and the stream that operators work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// A CUDA device, or for the emulated device the host's memory.
    pub location: Location,
    /// The stream's handle.
    pub stream: usize,
}

/// The operators of a site.
#[derive(Debug)]
struct Room {
    site: Site,
    /// The fork count of the process that made it.
    process: u32,
    operators: Mutex<DeviceOperators>,
    /// The GPU; `None` if the device is emulated.
    machine: Option<Arc<OnStream>>,
}

/// The operators of all sites; a short list.
static ROOMS: Mutex<Vec<Arc<Room>>> = Mutex::new(Vec::new());

fn known(site: Site) -> Option<Arc<Room>> {
    let rooms = ROOMS.lock().unwrap_or_else(PoisonError::into_inner);
    rooms.iter().find(|room| room.site == site).cloned()
}

/// Runs `work` with the operators of a site, without the GIL; calls from several threads take turns. The
/// site's stream first waits for the streams `others`.
pub fn at<R: Send>(
    py: Python<'_>,
    site: Site,
    others: &[usize],
    work: impl FnOnce(&mut DeviceOperators) -> Result<R> + Send,
) -> PyResult<R> {
    let room = match known(site) {
        Some(room) => room,
        None => open(py, site)?,
    };
    if room.machine.is_some() {
        forks::refuse_gpu_of(room.process)?;
    }
    let work = || {
        // Allocations of a first call are not part of a graph that is captured meanwhile.
        let _kept = room.machine.as_deref().map(|machine| (Current::for_device(machine), Relaxed::new()));
        let mut operators = room.operators.lock().unwrap_or_else(PoisonError::into_inner);
        for other in others.iter().filter(|other| **other != site.stream) {
            if let Some(machine) = &room.machine {
                machine.wait_for(*other)?;
            }
        }
        work(&mut operators)
    };
    py.detach(|| caught(OUTPUTS, work))?.map_err(raised)
}

/// Opens the device of a location; returns the error if that fails.
pub fn check(py: Python<'_>, location: Location) -> PyResult<()> {
    open(py, Site { location, stream: 0 }).map(drop)
}

/// Makes the operators of a site.
fn open(py: Python<'_>, site: Site) -> PyResult<Arc<Room>> {
    let Location::Cuda(ordinal) = site.location else {
        let device = Device::open("emulated").map_err(raised)?;
        let operators = Mutex::new(DeviceOperators::new(device));
        return Ok(keep(Room { site, process: forks::count(), operators, machine: None }));
    };
    py.import("gumball.nvrtc")?.call_method0("locate")?;
    let made = py.detach(|| {
        let _kept = Current::if_there().map(|current| (current, Relaxed::new()));
        let own = devices::gpu(usize::try_from(ordinal).unwrap_or(usize::MAX))?;
        // SAFETY: torch's streams live until the process ends; `gumball.operators` requires that of a stream
        // that the caller names.
        let here = unsafe { own.on_raw_stream(site.stream) }?;
        let mark = own.context().new_event(None).map_err(failed)?;
        let machine = Arc::new(OnStream { own, here, mark });
        let operators = Mutex::new(DeviceOperators::new(Device::new(machine.clone())));
        Ok(Room { site, process: forks::count(), operators, machine: Some(machine) })
    });
    Ok(keep(made.map_err(|error: cuda::Error| raised(Error::from(error)))?))
}

/// Adds the operators of a site, unless another thread has added them already.
fn keep(room: Room) -> Arc<Room> {
    let mut rooms = ROOMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = rooms.iter().find(|known| known.site == room.site) {
        return found.clone();
    }
    let room = Arc::new(room);
    rooms.push(room.clone());
    room
}

fn failed(error: DriverError) -> cuda::Error {
    cuda::Error::Call { call: "ordering streams", reason: error.to_string() }
}

/// A GPU on the host program's stream `here`. It allocates on its own stream `own`, so that a capture does
/// not matter.
#[derive(Debug)]
struct OnStream {
    own: Gpu,
    here: Gpu,
    /// An event for `here` to wait for another stream.
    mark: CudaEvent,
}

impl OnStream {
    /// Makes later work on this stream wait for the work on another stream.
    fn wait_for(&self, stream: usize) -> cuda::Result<()> {
        // SAFETY: `stream` is live: the owner of an array names it as the one that writes the array. The
        // wrapper does not own it.
        let earlier = unsafe { self.own.context().wrap_borrowed_stream(stream as sys::CUstream) };
        self.mark.record(&earlier).map_err(failed)?;
        self.here.stream().wait(&self.mark).map_err(failed)
    }
}

impl Runtime for OnStream {
    fn name(&self) -> String {
        Runtime::name(&self.here)
    }

    fn multiprocessors(&self) -> u32 {
        self.here.multiprocessors()
    }

    fn threads_per_row(&self) -> u32 {
        self.here.threads_per_row()
    }

    fn shared_memory_per_block(&self) -> usize {
        self.here.shared_memory_per_block()
    }

    fn clusters(&self, blocks: u32) -> u32 {
        self.here.clusters(blocks)
    }

    fn prepare(&self, group: KernelModule) -> cuda::Result<()> {
        self.here.prepare(group)
    }

    fn can_alloc(&self) -> cuda::Result<bool> {
        Ok(true)
    }

    fn alloc(&self, bytes: usize) -> cuda::Result<u64> {
        let _relaxed = Relaxed::new();
        let address = self.own.alloc(bytes)?;
        // `here` does not wait for `own`, and under capture it could not, so wait on the host until the
        // memory is initialised.
        self.own.stream().synchronize().map_err(failed)?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        let _kept = (Current::for_device(self), Relaxed::new());
        // SAFETY: the caller ensures that `address` came from `alloc` and is unused; `free` waits for the
        // device, `here` included.
        unsafe { self.own.free(address, bytes) }
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> cuda::Result<()> {
        // SAFETY: the caller ensures that `address..address + bytes.len()` lies in memory from this device's
        // `alloc`.
        unsafe { self.here.write(address, bytes) }
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> cuda::Result<()> {
        // SAFETY: the caller ensures that `address..address + bytes.len()` lies in memory from this device's
        // `alloc`.
        unsafe { self.here.read(address, bytes) }
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> cuda::Result<()> {
        // SAFETY: the caller ensures that grid and argument are the kernel's, and that what the argument
        // points to stays valid.
        unsafe { self.here.launch(kernel, grid, argument) }
    }

    unsafe fn launch_dependent(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> cuda::Result<()> {
        // SAFETY: the caller ensures that grid and argument are the kernel's, and that its blocks wait before
        // they use memory.
        unsafe { self.here.launch_dependent(kernel, grid, argument) }
    }

    fn is_capturing(&self) -> cuda::Result<bool> {
        self.here.is_capturing()
    }

    fn record(
        &self,
        launch: &mut dyn FnMut() -> cuda::Result<()>,
    ) -> cuda::Result<Box<dyn CapturedLaunches>> {
        self.here.record(launch)
    }
}
