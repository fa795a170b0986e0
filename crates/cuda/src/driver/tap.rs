//! A tap: a runtime that takes down what is launched, on a machine or on none.
//!
//! With a machine it passes everything on, and can leave launches out, let them fail or be slow. Without a
//! machine it has addresses and no memory: writes are lost, reads give zeros, and no kernel runs. So a test
//! sees the launches for any device on any computer.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::driver::device_limits::DeviceLimits;
use crate::driver::peer_memory::MemoryHandle;
use crate::driver::runtime::{CapturedLaunches, Grid, GroupId, Meeting, Message, Messenger, Runtime};
use crate::error::{Error, Result};
use crate::programs::kernels::Kernel;

/// A launch as it was made.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Its grid.
    pub grid: Grid,
    /// The kernel's argument, in words of 64 bits so that it is aligned; zeros fill the last word up.
    pub argument: Vec<u64>,
    /// Whether it may start before the kernel before it is complete.
    pub is_dependent: bool,
}

/// The first address without a machine, far from any number that an argument has besides, and the bytes
/// between allocations: an address near one belongs to that one.
const FIRST_ADDRESS: u64 = 1 << 40;
const GAP: u64 = 1 << 20;

/// A runtime that takes down what is launched on it.
#[derive(Debug)]
pub struct Tap {
    machine: Option<Arc<dyn Runtime>>,
    limits: DeviceLimits,
    /// The launches since `launches_of` was called.
    launches: Arc<Mutex<Vec<Launch>>>,
    takes_down: AtomicBool,
    is_dry: AtomicBool,
    /// How many launches go well before all others fail.
    good_launches: AtomicUsize,
    /// A kernel's name, and how long the machine is busy after each launch of it.
    busy_behind: OnceLock<(&'static str, Duration)>,
    has_windows: AtomicBool,
    has_messages: AtomicBool,
    is_capturing: AtomicBool,
    /// The bytes of each allocation without a machine, by its address.
    allocations: Mutex<BTreeMap<u64, u64>>,
}

impl Tap {
    /// Taps a machine.
    #[must_use]
    pub fn on(machine: Arc<dyn Runtime>) -> Self {
        let limits = machine.limits();
        Self { machine: Some(machine), ..Self::without_machine(limits) }
    }

    /// Makes a tap for a device with the given limits that is not there.
    #[must_use]
    pub fn without_machine(limits: DeviceLimits) -> Self {
        Self {
            machine: None,
            limits,
            launches: Arc::default(),
            takes_down: AtomicBool::new(false),
            is_dry: AtomicBool::new(false),
            good_launches: AtomicUsize::new(usize::MAX),
            busy_behind: OnceLock::new(),
            has_windows: AtomicBool::new(true),
            has_messages: AtomicBool::new(true),
            is_capturing: AtomicBool::new(false),
            allocations: Mutex::default(),
        }
    }

    /// Returns the machine.
    #[must_use]
    pub fn machine(&self) -> Option<&Arc<dyn Runtime>> {
        self.machine.as_ref()
    }

    /// Leaves launches out if `is_dry`; everything else still goes to the machine.
    pub fn set_dry(&self, is_dry: bool) {
        self.is_dry.store(is_dry, Ordering::Relaxed);
    }

    /// Lets all launches fail after so many more, as on a device that breaks.
    pub fn fail_after(&self, launches: usize) {
        self.good_launches.store(launches, Ordering::Relaxed);
    }

    /// Keeps the machine busy for some time after each launch of a kernel, as other work on its stream does.
    /// The first call counts.
    pub fn keep_busy_behind(&self, kernel: &'static str, time: Duration) {
        let _ = self.busy_behind.set((kernel, time));
    }

    /// Keeps the machine apart from others: it maps their memory only if `has_windows`, and sends them
    /// messages only if `has_messages`.
    pub fn set_apart(&self, has_windows: bool, has_messages: bool) {
        self.has_windows.store(has_windows, Ordering::Relaxed);
        self.has_messages.store(has_messages, Ordering::Relaxed);
    }

    /// Does work and returns its launches, in order.
    ///
    /// # Errors
    /// The errors of the work.
    pub fn launches_of<E>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Vec<Launch>, E> {
        self.takes_down.store(true, Ordering::Relaxed);
        locked(&self.launches).clear();
        let done = work();
        self.takes_down.store(false, Ordering::Relaxed);
        let launches = std::mem::take(&mut *locked(&self.launches));
        done.map(|()| launches)
    }

    /// Returns the start of the allocation that an address lies in or near, without a machine; `None` for a
    /// number that is no address.
    #[must_use]
    pub fn allocation(&self, address: u64) -> Option<u64> {
        let allocations = locked(&self.allocations);
        let (start, bytes) = allocations.range(..=address.checked_add(GAP / 2)?).next_back()?;
        (address < start + bytes + GAP / 2).then_some(*start)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime for Tap {
    fn name(&self) -> String {
        self.machine.as_ref().map_or("no machine".to_owned(), |machine| machine.name())
    }

    fn limits(&self) -> DeviceLimits {
        self.limits
    }

    fn load(&self, launch: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.machine.as_ref().map_or(Ok(()), |machine| machine.load(launch))
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        if let Some(machine) = &self.machine {
            return machine.alloc(bytes);
        }
        let mut allocations = locked(&self.allocations);
        let end = allocations.last_key_value().map_or(FIRST_ADDRESS, |(start, bytes)| start + bytes + GAP);
        let start = end.next_multiple_of(256);
        allocations.insert(start, bytes as u64);
        Ok(start)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        if let Some(machine) = &self.machine {
            // SAFETY: the caller vouches for the memory.
            unsafe { machine.free(address, bytes) }
        }
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        match &self.machine {
            // SAFETY: the caller vouches for the memory.
            Some(machine) => unsafe { machine.write(address, bytes) },
            None => Ok(()),
        }
    }

    unsafe fn write_at_once(&self, address: u64, word: u32) -> Result<()> {
        match &self.machine {
            // SAFETY: the caller vouches for the memory.
            Some(machine) => unsafe { machine.write_at_once(address, word) },
            None => Ok(()),
        }
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        if let Some(machine) = &self.machine {
            // SAFETY: the caller vouches for the memory.
            return unsafe { machine.read(address, bytes) };
        }
        bytes.fill(0);
        Ok(())
    }

    fn export(&self, address: u64, bytes: usize) -> Result<MemoryHandle> {
        match &self.machine {
            Some(machine) => machine.export(address, bytes),
            None => Ok(MemoryHandle::of_process(address, bytes, u32::MAX)),
        }
    }

    fn map(&self, handle: &MemoryHandle, bytes: usize) -> Result<u64> {
        if !self.has_windows.load(Ordering::Relaxed) {
            return Err(Error::call("map", "it is kept apart"));
        }
        match &self.machine {
            Some(machine) => machine.map(handle, bytes),
            None => Ok(handle.address_here(bytes)?.expect("a handle of this process")),
        }
    }

    unsafe fn unmap(&self, handle: &MemoryHandle, address: u64) {
        if let Some(machine) = &self.machine {
            // SAFETY: the caller vouches for the memory.
            unsafe { machine.unmap(handle, address) }
        }
    }

    fn new_group(&self, is_maker: bool) -> Result<GroupId> {
        if !self.has_messages.load(Ordering::Relaxed) {
            return Err(Error::call("new_group", "it is kept apart"));
        }
        self.machine.as_ref().map_or(Ok([0; _]), |machine| machine.new_group(is_maker))
    }

    fn join_group(
        &self,
        by: &Meeting,
        place: (usize, usize),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Arc<dyn Messenger>> {
        match &self.machine {
            Some(machine) => machine.join_group(by, place, goes_on),
            None => Ok(Arc::new(Unsent)),
        }
    }

    /// Passes the launch on, as the mode has it.
    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8], is_dependent: bool) -> Result<()> {
        if self.takes_down.load(Ordering::Relaxed) {
            let mut words = vec![0u64; argument.len().div_ceil(8)];
            bytemuck::cast_slice_mut(&mut words)[..argument.len()].copy_from_slice(argument);
            locked(&self.launches).push(Launch { kernel, grid, argument: words, is_dependent });
        }
        let left = |left: usize| left.checked_sub(1);
        if self.good_launches.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_err() {
            return Err(Error::call("launch", "it was let fail"));
        }
        match &self.machine {
            Some(machine) if !self.is_dry.load(Ordering::Relaxed) => {
                // SAFETY: the caller vouches for the launch.
                let launched = unsafe { machine.launch(kernel, grid, argument, is_dependent) };
                if let Some((_, time)) = self.busy_behind.get().filter(|(name, _)| *name == kernel.name()) {
                    std::thread::sleep(*time);
                }
                launched
            }
            _ => {
                black_box((kernel, grid, argument));
                Ok(())
            }
        }
    }

    fn is_capturing(&self) -> Result<bool> {
        match &self.machine {
            Some(machine) => machine.is_capturing(),
            None => Ok(self.is_capturing.load(Ordering::Relaxed)),
        }
    }

    fn capture(&self, launch: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn CapturedLaunches>> {
        if let Some(machine) = &self.machine {
            return machine.capture(launch);
        }
        let was_taking_down = self.takes_down.swap(true, Ordering::Relaxed);
        let before = std::mem::take(&mut *locked(&self.launches));
        self.is_capturing.store(true, Ordering::Relaxed);
        let launched = launch();
        self.is_capturing.store(false, Ordering::Relaxed);
        let captured = std::mem::replace(&mut *locked(&self.launches), before);
        self.takes_down.store(was_taking_down, Ordering::Relaxed);
        launched?;
        Ok(Box::new(Captured { launches: Arc::clone(&self.launches), captured }))
    }
}

/// Messages without a machine: they are lost.
#[derive(Debug)]
struct Unsent;

impl Messenger for Unsent {
    unsafe fn exchange(&self, _: &[Message], _: &[Message]) -> Result<()> {
        Ok(())
    }

    fn abort(&self) {}
}

/// Launches that a tap without a machine has captured; a replay notes them again.
#[derive(Debug)]
struct Captured {
    launches: Arc<Mutex<Vec<Launch>>>,
    captured: Vec<Launch>,
}

impl CapturedLaunches for Captured {
    unsafe fn replay(&self) -> Result<()> {
        locked(&self.launches).extend(self.captured.iter().cloned());
        Ok(())
    }
}
