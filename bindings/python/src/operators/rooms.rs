//! Rooms: the operators of each stream that somebody works on, kept until the process ends.
//!
//! Operators on a device share memory from launch to launch, in the order of a stream. So each stream has its own, made at
//! its first call, also while it is captured: memory is then taken beside the capture, where no replay fills it anew.

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

/// Where operators work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Where the arrays lie: on a CUDA device, or on the emulated one, whose memory is the host's.
    pub location: Location,
    /// The stream's handle.
    pub stream: usize,
}

/// The operators of a site.
#[derive(Debug)]
struct Room {
    site: Site,
    /// The forks behind the process that made it.
    process: u32,
    operators: Mutex<DeviceOperators>,
    /// None where the device is emulated.
    machine: Option<Arc<OnStream>>,
}

/// All rooms; few.
static ROOMS: Mutex<Vec<Arc<Room>>> = Mutex::new(Vec::new());

fn known(site: Site) -> Option<Arc<Room>> {
    let rooms = ROOMS.lock().unwrap_or_else(PoisonError::into_inner);
    rooms.iter().find(|room| room.site == site).cloned()
}

/// Does something with the operators of a site, behind what lies on other streams, without the GIL; calls from several threads
/// take turns.
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
        // What is made at a first call is no part of a graph that is captured meanwhile.
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

/// Opens the device of a location, to see whether it is there.
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
        // SAFETY: torch's streams live until the process ends, and for others the caller vouches, as `gumball.operators` says.
        let here = unsafe { own.on_raw_stream(site.stream) }?;
        let mark = own.context().new_event(None).map_err(failed)?;
        let machine = Arc::new(OnStream { own, here, mark });
        let operators = Mutex::new(DeviceOperators::new(Device::new(machine.clone())));
        Ok(Room { site, process: forks::count(), operators, machine: Some(machine) })
    });
    Ok(keep(made.map_err(|error: cuda::Error| raised(Error::from(error)))?))
}

/// Keeps a room, unless another thread was faster.
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

/// A GPU on a stream of the host program, which takes memory on a stream of its own, whatever is captured.
#[derive(Debug)]
struct OnStream {
    own: Gpu,
    here: Gpu,
    /// Marks a place on another stream to wait for.
    mark: CudaEvent,
}

impl OnStream {
    /// Puts what is enqueued here from now on behind what lies on another stream.
    fn wait_for(&self, stream: usize) -> cuda::Result<()> {
        // SAFETY: the owner of an array names the stream on which it writes it; the wrapper does not own the stream.
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
        // The stream in use does not wait for this one, and a captured one could not.
        self.own.stream().synchronize().map_err(failed)?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        let _kept = (Current::for_device(self), Relaxed::new());
        // SAFETY: as the caller vouches; the call waits for the device, and so for the stream in use.
        unsafe { self.own.free(address, bytes) }
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> cuda::Result<()> {
        // SAFETY: as the caller vouches.
        unsafe { self.here.write(address, bytes) }
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> cuda::Result<()> {
        // SAFETY: the same.
        unsafe { self.here.read(address, bytes) }
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> cuda::Result<()> {
        // SAFETY: the same.
        unsafe { self.here.launch(kernel, grid, argument) }
    }

    unsafe fn launch_dependent(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> cuda::Result<()> {
        // SAFETY: the same.
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
