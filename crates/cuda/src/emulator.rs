//! The host as a machine: kernels built by the host's C++ compiler, one fiber a CUDA thread.
//!
//! It computes what a GPU computes, slowly, so that kernels are held to the oracle where there is none. It finds
//! wrong results and barriers that some threads miss; races inside a block it does not find. Blocks that wait for each other
//! run on two host threads.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use libloading::{Library, Symbol};

use crate::cache::{Cache, fnv1a};
use crate::error::{Error, Result};
use crate::program::{HEADERS, PROGRAMS, Source};
use crate::runtime::{CapturedLaunches, Grid, Kernel, Runtime};

const SOURCES: &[Source] = &[
    ("block.hpp", include_str!("../emulator/block.hpp")),
    ("cuda.hpp", include_str!("../emulator/cuda.hpp")),
    ("kernels.cpp", include_str!("../emulator/kernels.cpp")),
    ("probabilities.cpp", include_str!("../emulator/probabilities.cpp")),
];

/// Kernels must not be contracted, and the host's own fma is the only fast one.
const OPTIONS: [&str; 8] = [
    "-std=c++17",
    "-O2",
    "-mfma",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-pthread",
];

const ALIGNMENT: usize = 256;

/// The emulated device.
#[derive(Debug)]
pub struct Emulator {
    kernels: LoadedKernels,
    /// What each thread that records has launched so far.
    recording: Mutex<Vec<(ThreadId, Vec<Launch>)>>,
}

/// The kernels, built for the host.
#[derive(Clone, Debug)]
struct LoadedKernels {
    library: Arc<Library>,
}

/// A launch that was recorded.
#[derive(Clone, Debug)]
struct Launch {
    kernel: Kernel,
    grid: Grid,
    /// The argument in whole words, so that it is aligned.
    argument: Vec<u64>,
}

/// Launches that were recorded, and the kernels they run.
#[derive(Debug)]
struct Recorded {
    kernels: LoadedKernels,
    launches: Vec<Launch>,
}

type Run = unsafe extern "C" fn(*const c_void, *const u8, *const Spread);
/// How a grid is spread, as `block.hpp` has it.
#[repr(C)]
struct Spread {
    blocks: u32,
    threads: u32,
    dynamic_smem_bytes: u32,
    cluster: u32,
    side_by_side: u32,
}

type LayoutOf = unsafe extern "C" fn(*mut u64, u64) -> u64;

impl Emulator {
    /// Builds the kernels for the host, or finds them in the cache.
    ///
    /// # Errors
    /// - [`Error::Missing`] if there is no C++ compiler (`CXX`, or `c++`), or the processor is not x86-64 with fma.
    /// - [`Error::Compile`] with the compiler's words.
    pub fn new(cache: &Cache) -> Result<Self> {
        static LIBRARY: OnceLock<Result<Arc<Library>>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| build(cache).map(Arc::new)).clone()?;
        Ok(Self { kernels: LoadedKernels { library }, recording: Mutex::default() })
    }

    /// Returns the recordings under way.
    fn recording(&self) -> MutexGuard<'_, Vec<(ThreadId, Vec<Launch>)>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns sizes and offsets of what crosses between host and kernels, in the order of `kernels.cpp`.
    #[must_use]
    pub fn layout(&self) -> Vec<u64> {
        let mut out = vec![0; 256];
        let layout: Symbol<'_, LayoutOf> = self.kernels.symbol("gumball_layout");
        // SAFETY: the function writes at most as many words as there is room for.
        let count = unsafe { layout(out.as_mut_ptr(), out.len() as u64) };
        out.truncate(usize::try_from(count).expect("a count"));
        out
    }
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
    let text: String = PROGRAMS.iter().map(|program| program.text()).collect();
    let own: String = SOURCES.iter().map(|(_, source)| *source).collect();
    let key = format!("host {} {OPTIONS:?}\n{text}{own}", String::from_utf8_lossy(&version.stdout));

    let folder =
        std::env::temp_dir().join(format!("gumball-{}-{:x}", std::process::id(), fnv1a(&[key.as_bytes()])));
    std::fs::create_dir_all(&folder).map_err(|error| Error::call("create_dir_all", error))?;
    let loaded =
        cache.get_or_make(&key, || compile(&compiler, &folder)).and_then(|image| load(&folder, &image));
    // Once loaded the file is not needed; if it cannot be removed it lies in the folder for temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    loaded
}

fn compile(compiler: &str, folder: &Path) -> Result<Vec<u8>> {
    let io = |error: std::io::Error| Error::call("writing the sources", error);
    for (name, source) in HEADERS.iter().chain(SOURCES) {
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
        .arg(folder.join("kernels.cpp"))
        .arg(folder.join("probabilities.cpp"));
    let output = command.output().map_err(|error| Error::call("c++", error))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Compile { program: "kernels.cpp", target: "the host".to_owned(), log });
    }
    std::fs::read(&library).map_err(io)
}

fn load(folder: &Path, image: &[u8]) -> Result<Library> {
    let path: PathBuf = folder.join("kernels.so");
    std::fs::write(&path, image).map_err(|error| Error::call("writing the library", error))?;
    // SAFETY: the library was built of our sources, whose initialisers only make empty lists.
    unsafe { Library::new(&path) }.map_err(|error| Error::call("dlopen", error))
}

/// Returns the layout of memory of a size; none if that fits no address space.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()
}

impl Runtime for Emulator {
    fn name(&self) -> String {
        "emulated".to_owned()
    }

    fn multiprocessors(&self) -> u32 {
        2
    }

    /// Few, as each costs a fiber.
    fn threads_per_row(&self) -> u32 {
        64
    }

    /// Little, so that rows are cut into several blocks here too.
    fn shared_memory_per_block(&self) -> usize {
        16 << 10
    }

    fn clusters(&self, _blocks: u32) -> u32 {
        2
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let refused = || Error::call("alloc", format!("no {bytes} bytes"));
        let layout = layout(bytes).ok_or_else(refused)?;
        // SAFETY: the layout has a size above 0.
        let place = unsafe { alloc_zeroed(layout) };
        if place.is_null() { Err(refused()) } else { Ok(place as u64) }
    }

    unsafe fn free(&self, address: u64, bytes: usize) {
        let layout = layout(bytes).expect("`take` found one");
        // SAFETY: the caller says that it came from `alloc` with as many bytes, which used the same layout.
        unsafe { dealloc(address as *mut u8, layout) }
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller says that the place lies in memory taken from here; kernels are done on return.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        Ok(())
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the caller says that the place lies in memory taken from here; kernels are done on return.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, argument: &[u8]) -> Result<()> {
        let mut words = vec![0u64; argument.len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut words)[..argument.len()].copy_from_slice(argument);
        let launch = Launch { kernel, grid, argument: words };
        let this = thread::current().id();
        if let Some((_, launches)) = self.recording().iter_mut().find(|(thread, _)| *thread == this) {
            launches.push(launch);
            return Ok(());
        }
        // SAFETY: the caller vouches for the launch.
        unsafe { self.kernels.run(&launch) };
        Ok(())
    }

    fn record(&self, launch: &mut dyn FnMut() -> Result<()>) -> Result<Box<dyn CapturedLaunches>> {
        let this = thread::current().id();
        self.recording().push((this, Vec::new()));
        let launched = launch();
        let mut recording = self.recording();
        let place = recording.iter().position(|(thread, _)| *thread == this).expect("pushed above");
        let (_, launches) = recording.swap_remove(place);
        launched?;
        Ok(Box::new(Recorded { kernels: self.kernels.clone(), launches }))
    }
}

impl LoadedKernels {
    fn symbol<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the library is built of kernels.cpp, whose functions have the types they are asked for under.
        unsafe { self.library.get(name) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Runs a launch to its end.
    ///
    /// # Safety
    /// As for [`Runtime::launch`].
    unsafe fn run(&self, launch: &Launch) {
        let name = Kernel::all().nth(launch.kernel.0).expect("a kernel has a place");
        let function: Symbol<'_, *const c_void> = self.symbol(name);
        let run: Symbol<'_, Run> = self.symbol("gumball_run");
        let Grid { blocks, threads, dynamic_smem_bytes, co_resident, cluster, .. } = launch.grid;
        let side_by_side = cluster.max(1 + u32::from(co_resident));
        let spread = Spread { blocks, threads, dynamic_smem_bytes, cluster: cluster.max(1), side_by_side };
        // SAFETY: the function is a kernel of this library, which takes a reference here; that the argument is of its
        // type, and all it points to, the caller vouches for; what blocks have to themselves is of the host's thread.
        unsafe { run(*function, launch.argument.as_ptr().cast(), &raw const spread) };
    }
}

impl CapturedLaunches for Recorded {
    unsafe fn replay(&self) -> Result<()> {
        for launch in &self.launches {
            // SAFETY: the caller vouches for each launch.
            unsafe { self.kernels.run(launch) };
        }
        Ok(())
    }
}
