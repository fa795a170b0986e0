//! The kernels that a GPU has loaded. The first launch of a kernel loads its program, from a carried folder,
//! from the cache or through the compiler. So nobody waits for kernels that nobody launches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{
    CudaContext, CudaFunction,
    sys::{self, CUfunction_attribute_enum as Function},
};
use cudarc::nvrtc::Ptx;

use crate::abi::MAX_CLUSTER_BLOCKS;
use crate::driver::ahead::on_all_cores;
use crate::driver::arch::{Arch, HOPPER};
use crate::driver::cache::Cache;
use crate::driver::entry::Key;
use crate::driver::nvrtc::Nvrtc;
use crate::driver::probe::driver_version;
use crate::driver::thread_state::RelaxedCapture;
use crate::error::{Error, Result, failed};
use crate::programs::kernels::{Kernel, Program};

/// A program with one kernel that does nothing, for which clusters are counted. The driver compiles it by
/// itself.
const EMPTY_PROGRAM: &str =
    ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry empty_kernel()\n{\n\tret;\n}\n";
const EMPTY_KERNEL: &str = "empty_kernel";

/// The errors of a driver that cannot run some machine code.
const REFUSALS: [sys::CUresult; 3] = [
    sys::CUresult::CUDA_ERROR_INVALID_IMAGE,
    sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
];

/// Returns why a driver refused what a compiler has just made; both versions are major and minor.
fn refused(error: Error, driver: (i32, i32), compiler: (i32, i32)) -> Error {
    if compiler.0 <= driver.0 {
        return error;
    }
    Error::TooOld {
        library: "the CUDA driver",
        found: format!("{}.{}", driver.0, driver.1),
        needed: format!(
            "one for CUDA {major} or newer, for which NVRTC {major}.{} compiles kernels (or NVRTC {}: pip \
             install 'gumball[cuda{}]')",
            compiler.1,
            driver.0,
            driver.0,
            major = compiler.0,
        ),
    }
}

/// Returns the launch attribute for clusters of `blocks` blocks.
pub(crate) fn in_clusters(blocks: u32) -> sys::CUlaunchAttribute {
    let of_blocks = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { clusterDim: of_blocks },
    }
}

/// Returns the configuration of a launch, which points to its attributes.
pub(crate) fn configuration(
    (blocks, threads, smem_bytes): (u32, u32, u32),
    stream: sys::CUstream,
    attributes: &mut [sys::CUlaunchAttribute],
) -> sys::CUlaunchConfig {
    sys::CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: smem_bytes,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    }
}

/// The kernels of a device, each loaded with its program.
#[derive(Debug)]
pub(crate) struct LoadedKernels {
    context: Arc<CudaContext>,
    cache: Cache,
    arch: Arch,
    /// Bytes of shared memory of a multiprocessor, and the most that a block can have.
    shared: i32,
    block: i32,
    /// The kernels by [`Kernel`] index.
    loaded: Box<[OnceLock<LoadedKernel>]>,
    /// How many clusters can run concurrently with one block per multiprocessor; element i is for clusters of
    /// i + 1 blocks.
    clusters: OnceLock<[usize; MAX_CLUSTER_BLOCKS]>,
    /// Held while programs are loaded, so that none is compiled twice.
    loading: Mutex<()>,
    /// How many programs are being compiled.
    compiling: AtomicUsize,
}

/// A loaded kernel.
#[derive(Debug)]
pub(crate) struct LoadedKernel {
    pub function: CudaFunction,
    /// Bytes of dynamic shared memory with which no two blocks of the kernel fit one multiprocessor.
    pub exclusive_smem_bytes: u32,
}

impl LoadedKernel {
    /// Prepares a kernel for launches: allows the most dynamic shared memory, and from sm_90 on the largest
    /// clusters. `shared` is the shared memory of a multiprocessor in bytes, `block` the most that a block
    /// can have.
    fn new(function: CudaFunction, arch: Arch, shared: i32, block: i32) -> Result<Self> {
        let own = function.shared_size_bytes().map_err(failed("cuFuncGetAttribute"))?;
        // The system reserves some shared memory for each block, so two blocks of half the memory do not fit.
        let rest = (shared / 2 - own).max(0);
        let most = Function::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(most, block - own).map_err(failed("cuFuncSetAttribute"))?;
        if arch >= HOPPER {
            let large = Function::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            function.set_attribute(large, 1).map_err(failed("cuFuncSetAttribute"))?;
        }
        Ok(Self { function, exclusive_smem_bytes: rest as u32 })
    }
}

impl LoadedKernels {
    /// Returns a device's kernels, none of them loaded. The last argument is the shared memory of a
    /// multiprocessor and the most of a block, in bytes.
    pub fn new(context: Arc<CudaContext>, cache: Cache, arch: Arch, (shared, block): (i32, i32)) -> Self {
        let loaded = (0..Kernel::COUNT).map(|_| OnceLock::new()).collect();
        let (clusters, loading, compiling) = (OnceLock::new(), Mutex::new(()), AtomicUsize::new(0));
        Self { context, cache, arch, shared, block, loaded, clusters, loading, compiling }
    }

    /// Returns a kernel; loads its program first if that is not loaded.
    pub fn loaded(&self, kernel: Kernel) -> Result<&LoadedKernel> {
        if let Some(loaded) = self.loaded[kernel.0].get() {
            return Ok(loaded);
        }
        self.load(&[kernel])?;
        Ok(self.loaded[kernel.0].get().expect("its program is loaded"))
    }

    /// Returns the value of [`DeviceLimits::clusters`](crate::DeviceLimits::clusters).
    pub fn clusters(&self) -> [usize; MAX_CLUSTER_BLOCKS] {
        *self.clusters.get_or_init(|| match self.arch >= HOPPER {
            true => self.count_clusters().unwrap_or_default(),
            false => Default::default(),
        })
    }

    /// Loads the programs of kernels, as [`LoadedKernels::load_programs`] does.
    pub fn load(&self, kernels: &[Kernel]) -> Result<()> {
        let missing = kernels.iter().filter(|kernel| self.loaded[kernel.0].get().is_none());
        self.load_programs(missing.map(|kernel| kernel.program()))
    }

    /// Loads the programs that are not loaded, and compiles missing ones in parallel. Another
    /// thread that loads programs is waited for.
    pub fn load_programs(&self, programs: impl Iterator<Item = Program>) -> Result<()> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let is_loaded = |(kernel, _): (Kernel, String)| self.loaded[kernel.0].get().is_some();
        let missing = programs.filter(|program| !program.kernels().all(is_loaded));
        let programs: BTreeMap<String, Program> = missing.map(|program| (program.name(), program)).collect();
        let found = programs.values().map(|program| (*program, self.cache.find(*program, self.arch)));
        let (found, unknown): (Vec<_>, Vec<_>) = found.partition(|(_, cubin)| cubin.is_some());
        let mut unknown: Vec<Program> = unknown.into_iter().map(|(program, _)| program).collect();
        for (program, cubin) in found {
            // What another compiler made may be too new for this driver.
            if self.load_cubin(program, cubin.unwrap_or_default())?.is_some() {
                unknown.push(program);
            }
        }
        let cubins = on_all_cores(unknown, |program| Ok((program, self.compile(program)?)))?;
        cubins.into_iter().try_for_each(|(program, cubin)| match self.load_cubin(program, cubin)? {
            Some(error) => Err(refused(error, driver_version()?, Nvrtc::load()?.version())),
            None => Ok(()),
        })
    }

    /// Returns whether a program is being compiled, on any thread.
    pub fn is_compiling(&self) -> bool {
        self.compiling.load(Ordering::Relaxed) > 0
    }

    /// Compiles a program for the device, and keeps it in the cache.
    fn compile(&self, program: Program) -> Result<Vec<u8>> {
        self.compiling.fetch_add(1, Ordering::Relaxed);
        let compiled = Nvrtc::load().and_then(|nvrtc| nvrtc.compile(program, self.arch));
        self.compiling.fetch_sub(1, Ordering::Relaxed);
        let cubin = compiled?.cubin;
        // If it cannot be kept, the next process compiles it again.
        let _ = self.cache.keep(&Key::of(program, self.arch), &cubin);
        Ok(cubin)
    }

    /// Loads a program's machine code. Returns the driver's error if it refuses such code.
    fn load_cubin(&self, program: Program, cubin: Vec<u8>) -> Result<Option<Error>> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        // The host program may be capturing a stream; loading enqueues nothing on any stream.
        let _relaxed = RelaxedCapture::begin();
        let module = match self.context.load_module(Ptx::from_binary(cubin)) {
            Ok(module) => module,
            Err(error) if REFUSALS.contains(&error.0) => return Ok(Some(failed("cuModuleLoadData")(error))),
            Err(error) => return Err(failed("cuModuleLoadData")(error)),
        };
        for (kernel, name) in program.kernels() {
            let function = module.load_function(&name).map_err(failed("cuModuleGetFunction"))?;
            let loaded = LoadedKernel::new(function, self.arch, self.shared, self.block)?;
            self.loaded[kernel.0].get_or_init(|| loaded);
        }
        Ok(None)
    }

    /// Counts the clusters that can run concurrently, for each size up to `MAX_CLUSTER_BLOCKS`. Each block
    /// takes the most shared memory that a block can have, and so a multiprocessor to itself.
    fn count_clusters(&self) -> Result<[usize; MAX_CLUSTER_BLOCKS]> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        // The host program may be capturing a stream; loading enqueues nothing on any stream.
        let _relaxed = RelaxedCapture::begin();
        let module =
            self.context.load_module(Ptx::from_src(EMPTY_PROGRAM)).map_err(failed("cuModuleLoadData"))?;
        let function = module.load_function(EMPTY_KERNEL).map_err(failed("cuModuleGetFunction"))?;
        let loaded = LoadedKernel::new(function, self.arch, self.shared, self.block)?;
        let mut counts = [0; MAX_CLUSTER_BLOCKS];
        for (less_one, found) in counts.iter_mut().enumerate() {
            let blocks = less_one as u32 + 1;
            let mut attributes = [in_clusters(blocks)];
            let shape = (blocks, 32, self.block as u32);
            let config = configuration(shape, std::ptr::null_mut(), &mut attributes);
            let mut count = 0;
            // SAFETY: the function's module is loaded; the call reads the live configuration and writes
            // `count`.
            let status = unsafe {
                sys::cuOccupancyMaxActiveClusters(
                    &raw mut count,
                    loaded.function.cu_function(),
                    &raw const config,
                )
            };
            // The call fails for sizes that the device does not support: there are no such clusters.
            *found = if status == sys::CUresult::CUDA_SUCCESS { count.max(0) as usize } else { 0 };
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_older_than_the_compiler_is_told_what_to_install() {
        let error = Error::call("cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE");
        assert_eq!(refused(error.clone(), (13, 0), (13, 1)), error);
        let text = refused(error, (12, 4), (13, 1)).to_string();
        assert_eq!(
            text,
            "the CUDA driver is version 12.4, but one for CUDA 13 or newer, for which NVRTC 13.1 compiles \
             kernels (or NVRTC 12: pip install 'gumball[cuda12]') is needed"
        );
    }
}
