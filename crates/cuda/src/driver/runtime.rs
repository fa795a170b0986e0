//! Runtimes: memory, copies and launches behind one interface, which a GPU and the emulator implement.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::abi::dtype::Dtype;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::peer_memory::MemoryHandle;
use crate::error::{Error, Result};
use crate::programs::kernels::Kernel;

/// How many blocks of how many threads a launch has, and what they need of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The number of blocks.
    pub blocks: u32,
    /// The number of threads of a block.
    pub threads: u32,
    /// Whether no two blocks may share a multiprocessor. The emulator ignores it.
    pub one_block_per_sm: bool,
    /// The number of neighbouring blocks of a cluster, which run concurrently; 0 for a launch without
    /// clusters. A kernel that uses cluster instructions needs clusters, of one block at least.
    pub cluster: u32,
    /// Bytes of dynamic shared memory of a block. A GPU ignores it if `one_block_per_sm` is set.
    pub dynamic_smem_bytes: u32,
}

impl Grid {
    /// Returns a grid of `blocks` blocks of `threads` threads, which the device may place on any
    /// multiprocessor.
    #[must_use]
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self { blocks, threads, one_block_per_sm: false, cluster: 0, dynamic_smem_bytes: 0 }
    }

    /// Returns this grid with [`Grid::one_block_per_sm`] set.
    #[must_use]
    pub fn one_block_per_sm(self, one_block_per_sm: bool) -> Self {
        Self { one_block_per_sm, ..self }
    }

    /// Returns this grid with bytes of dynamic shared memory of a block.
    #[must_use]
    pub fn with_dynamic_smem(self, dynamic_smem_bytes: u32) -> Self {
        Self { dynamic_smem_bytes, ..self }
    }

    /// Returns this grid in clusters of `cluster` blocks, each with `dynamic_smem_bytes` bytes of dynamic
    /// shared memory.
    #[must_use]
    pub fn clustered(self, cluster: u32, dynamic_smem_bytes: u32) -> Self {
        Self { cluster, dynamic_smem_bytes, ..self }
    }
}

/// A device with its own memory that runs kernels in the order in which they are enqueued: a GPU or the
/// emulator.
pub trait Runtime: Any + fmt::Debug + Send + Sync {
    /// Returns the runtime's name, for messages.
    fn name(&self) -> String;

    /// Returns the limits to which launches are fitted. Speed depends on them, results do not. They stay the
    /// same.
    fn limits(&self) -> DeviceLimits;

    /// Loads the kernels that a function launches on the calling thread, in parallel where they must be
    /// compiled. No kernel runs. Kernels that were not loaded so are loaded by their first launch.
    ///
    /// # Errors
    /// - The error of the function.
    /// - [`Error::Compile`](crate::Error::Compile) or [`Error::TooOld`](crate::Error::TooOld) if a program
    ///   does not compile.
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails.
    fn load(&self, _launch: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        Ok(())
    }

    /// Loads all programs that pools launch on rows of logits of some types, as [`Runtime::load`] does.
    ///
    /// # Errors
    /// The errors of [`Runtime::load`].
    fn load_for_pools(&self, _dtypes: &[Dtype]) -> Result<()> {
        Ok(())
    }

    /// Returns whether kernels are being compiled, which takes seconds and waits for no device.
    fn is_compiling(&self) -> bool {
        false
    }

    /// Allocates `bytes` bytes, filled with zeros. The address is a multiple of 256. The graph that a host
    /// program captures meanwhile does not contain the fill.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if there is not enough memory.
    fn alloc(&self, bytes: usize) -> Result<u64>;

    /// Frees memory, after all work enqueued before is complete.
    ///
    /// # Safety
    /// `address` came from [`Runtime::alloc`] of this runtime with `bytes`, and nobody uses the memory any
    /// more.
    unsafe fn free(&self, address: u64, bytes: usize);

    /// Copies bytes into the runtime's memory, in stream order.
    ///
    /// The caller may change `bytes` on return, though the copy may not be complete then. A capture does
    /// not include the copy.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails, or the host program captures the stream:
    ///   its graph would copy stale bytes.
    ///
    /// # Safety
    /// `address..address + bytes.len()` lies in memory that this runtime has allocated.
    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()>;

    /// Copies bytes out of the runtime's memory, in stream order, and waits until the copy is complete.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails, or work that was enqueued before has
    ///   failed.
    ///
    /// # Safety
    /// `address..address + bytes.len()` lies in memory that this runtime has allocated.
    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()>;

    /// Copies bytes as [`Runtime::read`] does, and calls `meanwhile` again and again as long as the work
    /// enqueued before is not complete.
    ///
    /// # Errors
    /// The errors of [`Runtime::read`].
    ///
    /// # Safety
    /// As for [`Runtime::read`].
    unsafe fn read_meanwhile(
        &self,
        address: u64,
        bytes: &mut [u8],
        _meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        // SAFETY: the caller guarantees it.
        unsafe { self.read(address, bytes) }
    }

    /// Writes a word into the runtime's memory at once, beside the work that is enqueued, which may be
    /// running.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails.
    ///
    /// # Safety
    /// `address` is a multiple of 4 and lies in memory that this runtime has allocated. Kernels load the word
    /// as one that changes at any time.
    unsafe fn write_at_once(&self, _address: u64, _word: u32) -> Result<()> {
        Err(Error::call("write_at_once", format!("{} has one order of work", self.name())))
    }

    /// Returns the handle by which runtimes of the same host map memory that [`Runtime::alloc`] returned,
    /// with so many bytes.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the runtime's memory cannot be mapped by others.
    fn export(&self, address: u64, bytes: usize) -> Result<MemoryHandle>;

    /// Maps memory of another runtime, of at least so many bytes, so that this runtime's kernels can read and
    /// write it. Returns its address here.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the device cannot reach that memory, it is smaller, or it is
    ///   said to be this process's and is not shared.
    fn map(&self, handle: &MemoryHandle, bytes: usize) -> Result<u64>;

    /// Undoes [`Runtime::map`], after all work enqueued before is complete.
    ///
    /// # Safety
    /// `address` came from `map` with this handle, and nobody uses it any more.
    unsafe fn unmap(&self, _handle: &MemoryHandle, _address: u64) {}

    /// Returns the id of a new group of runtimes that send each other messages, on the rank that makes it,
    /// and zeros on the others.
    ///
    /// # Errors
    /// - [`Error::Missing`](crate::Error::Missing) or [`Error::TooOld`](crate::Error::TooOld) if the library
    ///   is missing or too old that carries messages.
    /// - [`Error::Call`](crate::Error::Call) if it fails.
    fn new_group(&self, is_maker: bool) -> Result<GroupId>;

    /// Joins a group as `rank` of `world`, once all its ranks have come; waits for them as long as `goes_on`
    /// returns true, which is asked again and again.
    ///
    /// # Errors
    /// The errors of [`Runtime::new_group`], and [`Error::Call`](crate::Error::Call) if a rank does not come.
    fn join_group(
        &self,
        by: &Meeting,
        rank_and_world: (usize, usize),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Arc<dyn Messenger>>;

    /// Enqueues a kernel over a grid; `argument` holds the bytes of its one argument and is copied.
    ///
    /// A dependent launch may start before the preceding kernel is complete: once all blocks of that one have
    /// triggered their dependents or ended. On a device without dependent launches it starts when that kernel
    /// is complete.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails.
    ///
    /// # Safety
    /// The kernel accepts the grid, and the argument is of its type. Everything that the argument points to
    /// is as the kernel's header requires, and stays so until the kernel is complete. If the launch is
    /// dependent, each block of the kernel waits for the preceding kernels, and until then neither reads what
    /// they write nor writes what they use.
    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8], is_dependent: bool) -> Result<()>;

    /// Returns whether the host program is capturing this runtime's stream in a graph of its own.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails.
    fn is_capturing(&self) -> Result<bool>;

    /// Captures the kernels that a function launches on the calling thread, for later replays. No kernel
    /// runs.
    ///
    /// # Errors
    /// - The error of the function.
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails.
    fn capture(&self, launch: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn CapturedLaunches>>;
}

/// The bytes of a [`GroupId`].
pub const GROUP_ID_BYTES: usize = 128;

/// The id of a group, which one of its ranks makes.
pub type GroupId = [u8; GROUP_ID_BYTES];

/// A communicator of NCCL that the program has made (`ncclComm_t`). The ranks of a pool make one of their own
/// from it, by `ncclCommSplit`, and leave it as it is: the program uses it afterwards as before, and ends it
/// whenever it wants.
#[derive(Clone, Copy, Debug)]
pub struct ProgramCommunicator(pub(crate) usize);

impl ProgramCommunicator {
    /// Takes the handle of a communicator with the ranks of the pool, each on the device of its pool. It must
    /// block, and so must its calls.
    ///
    /// # Safety
    /// It is a live communicator of the library that `GUMBALL_NCCL` names, or that the loader finds as
    /// `libnccl.so.2`; until the pool is made nobody ends it, and nothing else is under way on it.
    #[must_use]
    pub unsafe fn new(communicator: *mut std::ffi::c_void) -> Self {
        Self(communicator as usize)
    }
}

/// By what the ranks of a group find each other.
#[derive(Clone, Copy, Debug)]
pub enum Meeting {
    /// An id that all of them have.
    Id(GroupId),
    /// A communicator that the program has made for them. Only GPUs take it.
    Communicator(ProgramCommunicator),
}

/// Bytes that travel to the runtime of another rank, or come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub peer: usize,
    /// Where the bytes begin in the runtime's memory.
    pub address: u64,
    /// How many there are.
    pub bytes: usize,
}

/// Sends messages between the runtimes of a group, in the order of each runtime's work; a capture includes
/// them.
pub trait Messenger: fmt::Debug + Send + Sync {
    /// Enqueues messages, all of which travel at once.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails.
    ///
    /// # Safety
    /// The ranges lie in memory of the runtime, and stay there until the messages have travelled. Each peer
    /// enqueues the other end of each message, of the same size, in the same order.
    unsafe fn exchange(&self, send: &[Message], receive: &[Message]) -> Result<()>;

    /// Returns why messages travel no more, if that is known.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns whether the last messages that were enqueued outside a capture have yet to travel.
    fn is_pending(&self) -> bool {
        false
    }

    /// Ends messages that are under way, which do not arrive then; later ones do nothing. Any thread may call
    /// it, and waits for nothing.
    fn abort(&self);

    /// Returns whether all messages have ended after [`Messenger::abort`], so that no rank writes this one's
    /// memory; waits for that as long.
    fn has_ended(&self, _patience: Duration) -> bool {
        true
    }
}

/// How often a wait for other ranks asks whether it is to go on.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Returns what another thread sends; `None` if it ends without, or if `goes_on`, which is asked again and
/// again, returns false before.
pub(crate) fn received_while<T>(from: &Receiver<T>, goes_on: &mut dyn FnMut() -> bool) -> Option<T> {
    loop {
        match from.recv_timeout(LOOK) {
            Ok(received) => return Some(received),
            Err(RecvTimeoutError::Timeout) if goes_on() => {}
            Err(_) => return None,
        }
    }
}

/// Launches that [`Runtime::capture`] has captured.
pub trait CapturedLaunches: fmt::Debug + Send {
    /// Enqueues the launches in the order in which they were captured. Allocates no memory and does not wait.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if the runtime fails.
    ///
    /// # Safety
    /// Everything that the arguments of the launches point to is as their kernels require, and stays so until
    /// the kernels are complete.
    unsafe fn replay(&self) -> Result<()>;
}
