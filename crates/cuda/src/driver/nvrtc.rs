//! NVRTC: compiles a program's source to machine code for one architecture, without a GPU and without files.

use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::{result, sys};

use crate::driver::arch::{Arch, HOPPER};
use crate::driver::named;
use crate::error::{Error, Result};
use crate::programs::kernels::Program;
use crate::programs::sources::headers;

/// The oldest version that supports the language and the instructions of the kernels.
const OLDEST: (i32, i32) = (12, 0);

/// The language, and the arithmetic of the rules (N5): no contraction, subnormals kept, exact division and
/// square root.
pub(crate) const OPTIONS: [&str; 5] =
    ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The machine code, an ELF image.
    pub cubin: Vec<u8>,
    /// The compiler's messages; empty if it had no warning.
    pub log: String,
}

/// NVRTC, loaded into this process.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc {
    version: (i32, i32),
}

impl Nvrtc {
    /// Loads the compiler: the library that `GUMBALL_NVRTC` names, or the one the system finds.
    ///
    /// # Errors
    /// - [`Error::Missing`] if no library is found, or the named one does not load.
    /// - [`Error::TooOld`] if it is older than 12.0.
    pub fn load() -> Result<Self> {
        static NAMED: OnceLock<Result<Vec<libloading::Library>>> = OnceLock::new();
        NAMED.get_or_init(load_named).as_ref().map_err(Clone::clone)?;
        // SAFETY: this loads a library and runs its initialisers; those of NVRTC have no preconditions.
        if !unsafe { sys::is_culib_present() } {
            let remedy = "install CUDA's NVRTC, or let GUMBALL_NVRTC name the library (libnvrtc.so)";
            return Err(Error::Missing { library: "NVRTC", remedy: remedy.to_owned() });
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the check above found the library, and both pointers are to live integers.
        let status = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        status.result().map_err(|error| Error::call("nvrtcVersion", error))?;
        if (major, minor) < OLDEST {
            let needed = format!("{}.{} or newer", OLDEST.0, OLDEST.1);
            return Err(Error::TooOld { library: "NVRTC", found: format!("{major}.{minor}"), needed });
        }
        Ok(Self { version: (major, minor) })
    }

    /// Returns the compiler's version, major and minor.
    #[must_use]
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Compiles a program for an architecture.
    ///
    /// # Errors
    /// - [`Error::TooOld`] if this compiler does not know the architecture.
    /// - [`Error::Compile`] with the compiler's messages, if the program does not compile.
    /// - [`Error::Call`] if another call of NVRTC fails.
    pub fn compile(&self, program: Program, arch: Arch) -> Result<Compiled> {
        self.compile_with(program, arch, &[])
    }

    /// Compiles a program for an architecture with further options of NVRTC, which must not change what it
    /// computes.
    ///
    /// # Errors
    /// The errors of [`Nvrtc::compile`].
    pub fn compile_with(&self, program: Program, arch: Arch, extra_options: &[&str]) -> Result<Compiled> {
        if !self.knows(arch)? {
            let found = format!("{}.{}", self.version.0, self.version.1);
            let needed = format!("one that compiles for {arch}");
            return Err(Error::TooOld { library: "NVRTC", found, needed });
        }
        let handle = Handle::new(program)?;
        // Only sm_90a has the instructions by which warpgroups multiply; GPUs of sm_90 run its machine code.
        let suffix = if arch == HOPPER { "a" } else { "" };
        let target = format!("--gpu-architecture={arch}{suffix}");
        let options: Vec<&str> =
            OPTIONS.into_iter().chain([&*target]).chain(extra_options.iter().copied()).collect();
        // SAFETY: the program exists until the handle is dropped.
        let done = unsafe { result::compile_program(handle.0, &options) };
        let log = handle.log()?;
        if done.is_err() {
            return Err(Error::Compile { program: program.name(), target: arch.to_string(), log });
        }
        Ok(Compiled { cubin: handle.cubin()?, log })
    }

    fn knows(&self, arch: Arch) -> Result<bool> {
        let mut count = 0;
        // SAFETY: the pointer is to a live integer.
        let status = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
        status.result().map_err(|error| Error::call("nvrtcGetNumSupportedArchs", error))?;
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the list holds as many integers as the library said it writes.
        let status = unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
        status.result().map_err(|error| Error::call("nvrtcGetSupportedArchs", error))?;
        Ok(known.contains(&(arch.major * 10 + arch.minor)))
    }
}

/// Loads the library that `GUMBALL_NVRTC` names, if it names one: later the loader finds it, loaded, under
/// its own name. Before it loads the built-ins library of the same folder, which NVRTC opens by name when it
/// first compiles.
fn load_named() -> Result<Vec<libloading::Library>> {
    let missing = |remedy| Error::Missing { library: "NVRTC", remedy };
    let Some(path) = named::library("GUMBALL_NVRTC").map_err(missing)? else { return Ok(Vec::new()) };
    let folder = path.parent().filter(|folder| folder.is_absolute());
    let beside = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let builtins = beside.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libnvrtc-builtins.so")
    });
    let open = |path: PathBuf| {
        // SAFETY: the user names a library of CUDA, whose initialisers have no preconditions.
        let library = unsafe { libloading::Library::new(&path) };
        let leads = format!("GUMBALL_NVRTC leads to {}", path.display());
        library.map_err(|error| missing(format!("{leads}, which does not load: {error}")))
    };
    builtins.chain([path.clone()]).map(open).collect()
}

/// A program of NVRTC, destroyed when dropped.
struct Handle(sys::nvrtcProgram);

impl Handle {
    fn new(program: Program) -> Result<Self> {
        let c_string = |text: &str| CString::new(text).expect("sources and names hold no zero byte");
        let (source, name) = (c_string(&program.source()), c_string(&format!("{}.cu", program.name())));
        let names: Vec<CString> = headers().map(|(name, _)| c_string(name)).collect();
        let sources: Vec<CString> = headers().map(|(_, source)| c_string(source)).collect();
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (names, sources) = (pointers(&names), pointers(&sources));
        let mut handle = ptr::null_mut();
        // SAFETY: all strings end in zero and live until the call returns, which copies them; both lists have
        // as many pointers as there are headers; `handle` is live.
        let status = unsafe {
            sys::nvrtcCreateProgram(
                &raw mut handle,
                source.as_ptr(),
                name.as_ptr(),
                names.len() as i32,
                sources.as_ptr(),
                names.as_ptr(),
            )
        };
        status.result().map_err(|error| Error::call("nvrtcCreateProgram", error))?;
        Ok(Self(handle))
    }

    fn log(&self) -> Result<String> {
        // SAFETY: the program exists until the handle is dropped.
        let log = unsafe { result::get_program_log(self.0) };
        let log: Vec<c_char> = log.map_err(|error| Error::call("nvrtcGetProgramLog", error))?;
        let bytes: Vec<u8> = log.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program was compiled, and the pointer is to a live integer.
        let status = unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut bytes) };
        status.result().map_err(|error| Error::call("nvrtcGetCUBINSize", error))?;
        let mut cubin = vec![0u8; bytes];
        // SAFETY: the buffer has as many bytes as the library said it writes.
        let status = unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) };
        status.result().map_err(|error| Error::call("nvrtcGetCUBIN", error))?;
        Ok(cubin)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle's program exists, and this is its last use. A failure only leaks the program.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
