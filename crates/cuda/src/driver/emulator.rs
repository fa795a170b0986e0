//! A runtime on the host: the host's C++ compiler builds the kernels, and each CUDA thread is a fiber.
//!
//! It computes what a GPU computes, slowly, so that tests compare the kernels with the oracle where there is
//! no GPU. It finds wrong results, barriers that some threads miss, tiles read beyond a row, memory touched
//! beyond its end or that of an array, and, by chance, races between the blocks of a cluster. It does not
//! find races inside a block.
//!
//! Blocks run one after the other, except those of a cluster, which run on one host thread each.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use gumball_cpu::files::temporary_folder;
use gumball_spec::Kind;
use libloading::{Library, Symbol};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::abi::MAX_ROW_BLOCKS;
use crate::abi::launch::{LAUNCH, LaunchShape};
use crate::driver::cache::Cache;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::entry::Key;
use crate::driver::mailbox::Mailbox;
use crate::driver::peer_memory::{EMULATED, MemoryHandle};
use crate::driver::runtime::{CapturedLaunches, Grid, GroupId, Meeting, Message, Messenger, Runtime};
use crate::error::{Error, Result};
use crate::programs::kernels::{Kernel, source_files};
use crate::programs::sources::{Source, headers};

const SOURCES: &[Source] = &[
    ("block.hpp", include_str!("../../emulator/block.hpp")),
    ("cuda.hpp", include_str!("../../emulator/cuda.hpp")),
    ("logits.cpp", include_str!("../../emulator/logits.cpp")),
    ("probabilities.cpp", include_str!("../../emulator/probabilities.cpp")),
    ("run.cpp", include_str!("../../emulator/run.cpp")),
];

/// `-ffp-contract=off` keeps products and sums apart, as the rules write them. `-mfma` makes the rules' own
/// fma one instruction. An index beyond an array ends the process by an illegal instruction, also where the
/// array's neighbour in a struct would be read.
const OPTIONS: [&str; 10] = [
    "-std=c++17",
    "-O1",
    "-mfma",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fsanitize=bounds",
    "-fsanitize-undefined-trap-on-error",
    "-fPIC",
    "-shared",
    "-pthread",
];

const ALIGNMENT: usize = 256;

/// The size of a page of the only processors that it runs on.
const PAGE: usize = 4096;

/// The emulated device: a [`Runtime`] whose memory is the host's. A launch returns when the kernel is
/// complete.
#[derive(Debug)]
pub struct Emulator {
    kernels: LoadedKernels,
    capturing: Arc<Capturing>,
}

/// What was captured so far, by each thread that is capturing.
#[derive(Debug, Default)]
struct Capturing(Mutex<Vec<(ThreadId, Vec<Op>)>>);

/// What can be captured.
#[derive(Clone, Debug)]
enum Op {
    Launch(Launch),
    Exchange(Mailbox, Vec<Message>, Vec<Message>),
}

/// The kernels, built for the host.
#[derive(Clone, Debug)]
struct LoadedKernels {
    library: Arc<Library>,
}

/// A launch: what `gumball_run` needs to run it.
#[derive(Clone, Debug)]
struct Launch {
    kernel: Kernel,
    grid: Grid,
    /// The kernel's argument, in words of 64 bits so that it is aligned.
    argument: Vec<u64>,
}

/// What was captured, and the library of its kernels.
#[derive(Debug)]
struct Captured {
    kernels: LoadedKernels,
    ops: Vec<Op>,
}

/// Messages of an emulated device.
#[derive(Debug)]
struct Mail {
    mailbox: Mailbox,
    capturing: Arc<Capturing>,
}

type Run = unsafe extern "C" fn(*const c_void, *const u8, *const LaunchShape);

impl Emulator {
    /// Builds the kernels for the host, or loads them from `cache`. A process does this once; later calls
    /// share the result, an error included.
    ///
    /// # Errors
    /// - [`Error::Missing`] if there is no C++ compiler (`CXX`, or `c++`), or the processor is not x86-64
    ///   with fma.
    /// - [`Error::Compile`] with the compiler's messages, if the kernels do not compile.
    /// - [`Error::Call`] if the sources cannot be written, or the library cannot be loaded.
    pub fn new(cache: &Cache) -> Result<Self> {
        static LIBRARY: OnceLock<Result<Arc<Library>>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| build(cache).map(Arc::new)).clone()?;
        Ok(Self { kernels: LoadedKernels { library }, capturing: Arc::default() })
    }

    /// Returns how many tiles steps and operators have read after the surveys of their rows since the last
    /// call, on all emulators of the process: what they read a second time or more often.
    ///
    /// # Errors
    /// - [`Error::Call`] if the library lacks the counter.
    pub fn take_tile_reads(&self) -> Result<u64> {
        let take: Symbol<'_, unsafe extern "C" fn() -> u64> =
            self.kernels.symbol("gumball_take_tile_reads")?;
        // SAFETY: it takes a number from a counter.
        Ok(unsafe { take() })
    }

    /// Lets the blocks of each cluster drift apart, on all emulators of the process, by pauses behind their
    /// barriers that a seed decides; 0 ends that. So races between blocks show that take a busy machine
    /// otherwise.
    ///
    /// # Errors
    /// - [`Error::Call`] if the library lacks the function.
    pub fn set_drift(&self, seed: u64) -> Result<()> {
        let set: Symbol<'_, unsafe extern "C" fn(u64)> = self.kernels.symbol("gumball_set_drift")?;
        // SAFETY: it stores a number.
        unsafe { set(seed) };
        Ok(())
    }
}

impl Capturing {
    fn lock(&self) -> MutexGuard<'_, Vec<(ThreadId, Vec<Op>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a thread would do, if it is capturing; returns it otherwise.
    fn note(&self, op: Op) -> Option<Op> {
        let this = thread::current().id();
        match self.lock().iter_mut().find(|(thread, _)| *thread == this) {
            Some((_, ops)) => {
                ops.push(op);
                None
            }
            None => Some(op),
        }
    }
}

/// Returns the sources that only the emulator has: its files, the shape of a launch, and for each kind of
/// rows the lines that include its kernels.
fn own_sources() -> Vec<(&'static str, String)> {
    let kernels = |kind| source_files(kind).map(|(path, _)| format!("#include \"{path}\"\n")).collect();
    let generated = [
        (LAUNCH.name, LAUNCH.text()),
        ("logits.inc", kernels(Kind::Logits)),
        ("probabilities.inc", kernels(Kind::Probabilities)),
    ];
    SOURCES.iter().map(|(name, text)| (*name, (*text).to_owned())).chain(generated).collect()
}

fn build(cache: &Cache) -> Result<Library> {
    #[cfg(target_arch = "x86_64")]
    let able = std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let able = false;
    if !able {
        let remedy = "the emulator runs on x86-64 with fma".to_owned();
        return Err(Error::Missing { library: "the processor's fma", remedy });
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let missing = |error: std::io::Error| Error::Missing {
        library: "a C++ compiler",
        remedy: format!("let CXX name one: {compiler}: {error}"),
    };
    let version = Command::new(&compiler).arg("--version").output().map_err(missing)?;
    let sources = headers().map(|(name, source)| (name, source.to_owned())).chain(own_sources());
    let sources: Vec<(&str, String)> = sources.collect();
    let text: String = sources.iter().map(|(name, source)| format!("{name}\n{source}")).collect();
    let version = String::from_utf8_lossy(&version.stdout);
    let key = Key::new("host", format!("{version} {OPTIONS:?}\n{text}"));

    let folder =
        temporary_folder("gumball-emulator").map_err(|error| Error::call("making a folder", error))?;
    let loaded = cache
        .get_or_make(&key, || compile(&compiler, &folder, &sources))
        .and_then(|image| load(&folder, &image));
    // A loaded library does not need its file. If the folder cannot be removed, it stays among temporary
    // files.
    let _ = std::fs::remove_dir_all(&folder);
    loaded
}

fn compile(compiler: &str, folder: &Path, sources: &[(&str, String)]) -> Result<Vec<u8>> {
    let io = |error: std::io::Error| Error::call("writing the sources", error);
    for (name, source) in sources {
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().unwrap_or(folder)).map_err(io)?;
        std::fs::write(file, source).map_err(io)?;
    }
    let library = folder.join("made.so");
    let mut command = Command::new(compiler);
    command
        .args(OPTIONS)
        .arg("-I")
        .arg(folder)
        .arg("-o")
        .arg(&library)
        .args(["logits.cpp", "probabilities.cpp", "run.cpp"].map(|file| folder.join(file)));
    let output = command.output().map_err(|error| Error::call("c++", error))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Compile {
            program: "the emulator".to_owned(),
            target: "the host".to_owned(),
            log,
        });
    }
    std::fs::read(&library).map_err(io)
}

fn load(folder: &Path, image: &[u8]) -> Result<Library> {
    let path: PathBuf = folder.join("kernels.so");
    std::fs::write(&path, image).map_err(|error| Error::call("writing the library", error))?;
    // SAFETY: the library was built from our sources, whose initialisers only make empty vectors.
    unsafe { Library::new(&path) }.map_err(|error| Error::call("dlopen", error))
}

/// Returns the size of an allocation, and that of its pages with one after them that nobody may touch;
/// `None` if the address space cannot hold them.
fn pages(bytes: usize) -> Option<(usize, usize)> {
    let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
    Some((bytes, bytes.checked_next_multiple_of(PAGE)?.checked_add(PAGE)?))
}

impl Runtime for Emulator {
    fn name(&self) -> String {
        "emulated".to_owned()
    }

    /// Few threads, because each costs a fiber, and little shared memory, so that the emulator splits rows
    /// over several blocks too. Few clusters, so that steps of few rows take clusters of each size.
    fn limits(&self) -> DeviceLimits {
        let clusters = std::array::from_fn(|less_one| (2 * MAX_ROW_BLOCKS / (less_one + 1)).max(2));
        DeviceLimits {
            multiprocessors: 2,
            threads_per_row: 64,
            shared_memory_per_block: 16 << 10,
            dynamic_smem_per_block: 128 << 10,
            clusters,
            warpgroups_multiply: false,
            least_saved: 0,
        }
    }

    /// The memory ends where a page begins that nobody may touch, so a kernel that goes beyond it ends the
    /// process.
    fn alloc(&self, bytes: usize) -> Result<u64> {
        let refused = || Error::call("alloc", format!("no {bytes} bytes"));
        let (used, all) = pages(bytes).ok_or_else(refused)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: these are new pages.
        let mapped = unsafe { mmap_anonymous(null_mut(), all, access, flags) };
        let start = mapped.map_err(|_| refused())?;
        let untouchable = start.wrapping_byte_add(all - PAGE);
        // SAFETY: it is the last of the new pages, which nobody uses yet.
        unsafe { mprotect(untouchable, PAGE, MprotectFlags::empty()) }.map_err(|_| refused())?;
        Ok(start as u64 + (all - PAGE - used) as u64)
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        let (used, all) = pages(bytes).expect("`alloc` counted them");
        let start = address - (all - PAGE - used) as u64;
        // SAFETY: the caller guarantees that `address` came from `alloc` with `bytes`, which mapped these
        // pages.
        unsafe { munmap(start as *mut c_void, all) }.expect("the pages are mapped");
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller guarantees that the range lies in memory of `alloc`; no kernel runs after its
        // launch.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the caller guarantees that the range lies in memory of `alloc`; no kernel runs after its
        // launch.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn write_at_once(&self, address: u64, word: u32) -> Result<()> {
        // SAFETY: the caller guarantees that the word lies in memory of `alloc`, aligned, and that kernels
        // load it atomically.
        unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(word, Ordering::Release);
        Ok(())
    }

    fn export(&self, address: u64, bytes: usize) -> Result<MemoryHandle> {
        Ok(MemoryHandle::of_process(address, bytes, EMULATED))
    }

    /// Returns the address, if the memory is that of an emulated device of this process.
    fn map(&self, handle: &MemoryHandle, bytes: usize) -> Result<u64> {
        let address = handle.address_here(bytes)?.filter(|_| handle.ordinal() == EMULATED);
        address.ok_or_else(|| Error::call("map", "emulated devices share memory within a process only"))
    }

    fn new_group(&self, is_maker: bool) -> Result<GroupId> {
        if is_maker { Ok(Mailbox::new_id()) } else { Ok([0; _]) }
    }

    fn join_group(
        &self,
        by: &Meeting,
        place: (usize, usize),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Arc<dyn Messenger>> {
        let Meeting::Id(id) = by else {
            return Err(Error::call("communicator", "emulated devices take none"));
        };
        let mailbox = Mailbox::join(id, place, goes_on)?;
        Ok(Arc::new(Mail { mailbox, capturing: Arc::clone(&self.capturing) }))
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8], _is_dependent: bool) -> Result<()> {
        let mut words = vec![0u64; argument.len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut words)[..argument.len()].copy_from_slice(argument);
        if let Some(op) = self.capturing.note(Op::Launch(Launch { kernel, grid, argument: words })) {
            // SAFETY: the caller guarantees what `Runtime::launch` requires.
            unsafe { self.kernels.run(&op) };
        }
        Ok(())
    }

    fn is_capturing(&self) -> Result<bool> {
        let this = thread::current().id();
        Ok(self.capturing.lock().iter().any(|(thread, _)| *thread == this))
    }

    fn capture(&self, launch: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn CapturedLaunches>> {
        let this = thread::current().id();
        self.capturing.lock().push((this, Vec::new()));
        let launched = launch();
        let mut capturing = self.capturing.lock();
        let place = capturing.iter().position(|(thread, _)| *thread == this).expect("pushed above");
        let (_, ops) = capturing.swap_remove(place);
        launched?;
        Ok(Box::new(Captured { kernels: self.kernels.clone(), ops }))
    }
}

impl Messenger for Mail {
    unsafe fn exchange(&self, send: &[Message], receive: &[Message]) -> Result<()> {
        let op = Op::Exchange(self.mailbox.clone(), send.to_vec(), receive.to_vec());
        if let Some(Op::Exchange(mailbox, ..)) = self.capturing.note(op) {
            // SAFETY: the caller guarantees the messages; no kernel runs after its launch.
            unsafe { mailbox.exchange(send, receive) };
        }
        Ok(())
    }

    fn abort(&self) {
        self.mailbox.end();
    }
}

impl LoadedKernels {
    fn symbol<T>(&self, name: &str) -> Result<Symbol<'_, T>> {
        // SAFETY: the library is built from the kernels' sources and run.cpp; callers name its functions with
        // their types.
        unsafe { self.library.get(name) }.map_err(|error| Error::call("dlsym", error))
    }

    /// Runs a launch, or an exchange of messages, to its end.
    ///
    /// # Safety
    /// The conditions of [`Runtime::launch`] or [`Messenger::exchange`].
    unsafe fn run(&self, op: &Op) {
        let launch = match op {
            Op::Launch(launch) => launch,
            // SAFETY: the caller guarantees the messages.
            Op::Exchange(mailbox, send, receive) => return unsafe { mailbox.exchange(send, receive) },
        };
        let function: Symbol<'_, *const c_void> = self.symbol(launch.kernel.name()).expect("built");
        let run: Symbol<'_, Run> = self.symbol("gumball_run").expect("built");
        let Grid { blocks, threads, dynamic_smem_bytes, cluster, .. } = launch.grid;
        let shape = LaunchShape { blocks, threads, dynamic_smem_bytes, cluster: cluster.max(1) };
        // SAFETY: the function is a kernel of this library, which takes its argument by reference. The caller
        // guarantees the argument's type and all that it points to. Shared memory is thread-local, so
        // launches do not share it.
        unsafe { run(*function, launch.argument.as_ptr().cast(), &raw const shape) };
    }
}

impl CapturedLaunches for Captured {
    unsafe fn replay(&self) -> Result<()> {
        for op in &self.ops {
            // SAFETY: the caller guarantees what each launch points to.
            unsafe { self.kernels.run(op) };
        }
        Ok(())
    }
}
