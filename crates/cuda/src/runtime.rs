//! Machines: where kernels run. Memory, copies and launches, behind one interface.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use gumball_spec::memory;

use crate::error::Result;
use crate::program::KernelModule;

/// A kernel, by its place among all kernels of all programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(pub(crate) usize);

/// How a kernel is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// How many blocks there are.
    pub blocks: u32,
    /// How many threads a block has.
    pub threads: u32,
    /// Whether no two blocks shall share a multiprocessor, where the machine can see to that.
    pub one_block_per_sm: bool,
    /// Whether blocks may wait for others, which never wait for those.
    pub co_resident: bool,
    /// How many neighbouring blocks make a cluster, which run side by side; 0 for none. A kernel whose blocks tell each other
    /// something needs clusters, be they of one block each.
    pub cluster: u32,
    /// How many bytes of shared memory a block has besides what its kernel names.
    pub dynamic_smem_bytes: u32,
}

impl Grid {
    /// Returns blocks that lie wherever there is room.
    #[must_use]
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self {
            blocks,
            threads,
            one_block_per_sm: false,
            co_resident: false,
            cluster: 0,
            dynamic_smem_bytes: 0,
        }
    }

    /// Returns the same with one block a multiprocessor at a time, if `apart`.
    #[must_use]
    pub fn one_block_per_sm(self, one_block_per_sm: bool) -> Self {
        Self { one_block_per_sm, ..self }
    }

    /// Returns the same with blocks that may wait for others, if `co_resident`.
    #[must_use]
    pub fn co_resident(self, co_resident: bool) -> Self {
        Self { co_resident, ..self }
    }

    /// Returns the same in clusters of so many blocks, each with so many bytes of shared memory.
    #[must_use]
    pub fn clustered(self, cluster: u32, dynamic_smem_bytes: u32) -> Self {
        Self { cluster, dynamic_smem_bytes, ..self }
    }
}

/// A place with memory of its own where kernels run in the order they are enqueued.
pub trait Runtime: Any + fmt::Debug + Send + Sync {
    /// Returns its name.
    fn name(&self) -> String;

    /// Returns how many blocks can run side by side, roughly: the tuning goes by it.
    fn multiprocessors(&self) -> u32;

    /// Returns how many threads a block that takes a whole row shall have; kernels work with any number of warps.
    fn threads_per_row(&self) -> u32 {
        512
    }

    /// Returns how many bytes of shared memory a block can have, the kernel's own included, into which copies fly while its
    /// threads work; 0 where there is no such thing.
    fn shared_memory_per_block(&self) -> usize {
        0
    }

    /// Returns how many clusters of so many blocks, each with a multiprocessor to itself, run side by side; 0 where blocks have
    /// no clusters, or none so large, and before [`KernelModule::Softmax`] is ready.
    fn clusters(&self, _blocks: u32) -> u32 {
        0
    }

    /// Returns whether memory can be taken now. It cannot where the host program captures what would fill it, as each replay
    /// would do so again.
    ///
    /// # Errors
    /// What the machine says.
    fn can_alloc(&self) -> Result<bool> {
        Ok(!self.is_capturing()?)
    }

    /// Makes the kernels of a group ready, if they are not: what launches them does so first, when it is made or fixed. Takes long
    /// where they must be compiled.
    ///
    /// # Errors
    /// What the machine says.
    fn prepare(&self, _group: KernelModule) -> Result<()> {
        Ok(())
    }

    /// Takes memory, filled with zeros; the address is a multiple of 256.
    ///
    /// # Errors
    /// What the machine says, if there is not enough.
    fn alloc(&self, bytes: usize) -> Result<u64>;

    /// Gives memory back, once everything enqueued before is done.
    ///
    /// # Safety
    /// `address` came from [`Runtime::alloc`] of this machine, and nobody uses the memory any more.
    unsafe fn free(&self, address: u64, bytes: usize);

    /// Copies into the machine's memory, between what was enqueued before and what is enqueued later.
    ///
    /// The bytes are taken on return; whether the copy is done then is left open. It is no part of a recording.
    ///
    /// # Errors
    /// What the machine says; also if the host program is capturing the stream, whose graph would copy stale bytes.
    ///
    /// # Safety
    /// `address..address + bytes.len()` lies in memory taken from this machine.
    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()>;

    /// Copies out of the machine's memory, after what was enqueued before; done on return.
    ///
    /// # Errors
    /// What the machine says, and failures of what was enqueued before.
    ///
    /// # Safety
    /// `address..address + bytes.len()` lies in memory taken from this machine.
    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()>;

    /// Enqueues a kernel over a grid, with the bytes of its one argument.
    ///
    /// # Errors
    /// What the machine says.
    ///
    /// # Safety
    /// The grid is the kernel's, the argument of its type, and everything it points to is as the kernel's header
    /// requires, and stays so until the kernel is done.
    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> Result<()>;

    /// Enqueues a kernel, as [`Runtime::launch`] does, that may begin before the kernel launched last is done.
    ///
    /// It begins once all blocks of that kernel allow it; where the machine knows no such thing, when that kernel is done.
    ///
    /// # Errors
    /// What the machine says.
    ///
    /// # Safety
    /// As for [`Runtime::launch`]; each block of the kernel waits for the kernels before it, and reads and writes nothing
    /// of theirs until then.
    unsafe fn launch_dependent(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> Result<()> {
        // SAFETY: the caller vouches for more than it takes.
        unsafe { self.launch(kernel, grid, argument) }
    }

    /// Returns whether the host program captures what is enqueued in a graph of its own.
    ///
    /// # Errors
    /// What the machine says.
    fn is_capturing(&self) -> Result<bool> {
        Ok(false)
    }

    /// Records what a function launches on the calling thread, to be replayed; none of it runs.
    ///
    /// # Errors
    /// Those of the function, and what the machine says.
    fn record(&self, launch: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn CapturedLaunches>>;
}

/// Launches that a machine recorded.
pub trait CapturedLaunches: fmt::Debug {
    /// Enqueues them in their order. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// What the machine says.
    ///
    /// # Safety
    /// What each launch points to is still as its kernel requires, and stays so until it is done.
    unsafe fn replay(&self) -> Result<()>;
}

/// What memory is for, as errors name it: requests by slot, and rows of steps.
pub(crate) const SLOTS: &str = "memory for slots";
pub(crate) const ROWS: &str = "memory for rows";

/// Memory of a machine.
#[derive(Debug)]
pub struct Buffer {
    machine: Arc<dyn Runtime>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Takes `bytes` bytes, filled with zeros.
    ///
    /// # Errors
    /// Those of [`Runtime::alloc`].
    pub fn zeroed(machine: &Arc<dyn Runtime>, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1);
        Ok(Self { address: machine.alloc(bytes)?, machine: Arc::clone(machine), bytes })
    }

    /// Takes as many bytes as the product of some sizes, filled with zeros.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] for `resource` if no machine has as many; else those of [`Runtime::alloc`].
    pub(crate) fn sized(
        machine: &Arc<dyn Runtime>,
        resource: &'static str,
        sizes: &[usize],
    ) -> gumball_spec::Result<Self> {
        Ok(Self::zeroed(machine, memory::product(resource, sizes)?)?)
    }

    /// Takes memory for some values and copies them there.
    ///
    /// # Errors
    /// Those of [`Runtime::alloc`] and [`Runtime::write`].
    pub fn of<T: Pod>(machine: &Arc<dyn Runtime>, values: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(machine, size_of_val(values))?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check(&self, start: usize, bytes: usize) {
        let inside = start.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes} bytes from {start} of a buffer of {}", self.bytes);
    }

    /// Copies values to a place in bytes.
    ///
    /// # Errors
    /// Those of [`Runtime::write`].
    ///
    /// # Panics
    /// If they do not fit there.
    pub fn write<T: Pod>(&mut self, start: usize, values: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(values);
        self.check(start, bytes.len());
        // SAFETY: `check` saw that the place lies inside this buffer, which is memory of its machine.
        unsafe { self.machine.write(self.address + start as u64, bytes) }
    }

    /// Copies values from a place in bytes.
    ///
    /// # Errors
    /// Those of [`Runtime::read`].
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn read<T: Pod>(&self, start: usize, values: &mut [T]) -> Result<()> {
        let bytes = bytemuck::cast_slice_mut(values);
        self.check(start, bytes.len());
        // SAFETY: `check` saw that the place lies inside this buffer, which is memory of its machine.
        unsafe { self.machine.read(self.address + start as u64, bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the address came from `alloc` of this machine, and the buffer, its only owner, ends here.
        unsafe { self.machine.free(self.address, self.bytes) }
    }
}
