//! The parts of CUDA on this machine, for the doctor: which it has, which are missing, and how to get them.

use std::path::Path;
use std::time::Instant;

use gumball_cuda::{Cache, CudaInfo, Gpu};
use gumball_engine::Device;
use serde::Serialize;

use crate::self_test::{self, Item};

/// The parts that were found.
#[derive(Clone, Debug, Serialize)]
pub struct Cuda {
    /// The CUDA version that the driver serves, or what is wrong with it and what to do.
    pub driver: Result<String, String>,
    /// The version of the compiler of kernels, or what is wrong with it and what to do.
    pub nvrtc: Result<String, String>,
    /// What `GUMBALL_NVRTC` says, if set.
    pub nvrtc_variable: Option<String>,
    /// What `GUMBALL_KERNELS` says, if set: a folder of compiled kernels.
    pub kernels_variable: Option<String>,
    /// Where compiled kernels are kept, if anywhere.
    pub cache: Option<String>,
    /// Why nothing is read from there or kept, if so.
    pub cache_trouble: Option<String>,
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// The link from each device to each other one; empty for fewer than two.
    pub links: Vec<LinkInfo>,
}

/// The link from one device to another.
#[derive(Clone, Debug, Serialize)]
pub struct LinkInfo {
    /// The device that writes, as `--device` takes it.
    pub from: String,
    /// The device whose memory is written.
    pub to: String,
    /// Whether kernels of the first reach the memory of the second, as steps over ranks need; or why that is
    /// not known.
    pub reaches: Result<bool, String>,
    /// How many bytes a second a copy from the first device to the second takes, or why it was not made.
    pub bytes_per_second: Result<f64, String>,
}

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceInfo {
    /// What `--device` takes for it.
    pub device: String,
    /// Its name.
    pub name: String,
    /// Its compute capability.
    pub compute_capability: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// How long it took to open it, in milliseconds; or why it cannot be used.
    pub opened_ms: Result<f64, String>,
    /// Its self-test, if it was opened.
    pub self_test: Option<Item>,
}

impl Cuda {
    /// Looks for CUDA, and tests each device; `kernels` is the folder of compiled kernels that the program
    /// brings, if any.
    #[must_use]
    pub fn look(kernels: Option<&Path>) -> Self {
        let found = CudaInfo::probe();
        let version = |version: gumball_cuda::Result<(i32, i32)>| {
            version.map(|(major, minor)| format!("{major}.{minor}")).map_err(|error| error.to_string())
        };
        let cache = match kernels {
            Some(folder) => Cache::user().with_carried(folder),
            None => Cache::user(),
        };
        let devices = found.devices.iter().map(|device| {
            let began = Instant::now();
            let opened = Gpu::new(device.ordinal, &cache).map(Device::from);
            let opened_ms = began.elapsed().as_secs_f64() * 1e3;
            let test = |device: &Device| {
                self_test::on_device(device).unwrap_or_else(|error| Item {
                    name: format!("{} runs the kernels", device.name()),
                    holds: false,
                    detail: error.to_string(),
                })
            };
            DeviceInfo {
                device: format!("cuda:{}", device.ordinal),
                name: device.name.clone(),
                compute_capability: format!("{}.{}", device.arch.major, device.arch.minor),
                memory_bytes: device.memory_bytes as u64,
                multiprocessors: device.multiprocessors,
                self_test: opened.as_ref().ok().map(test),
                opened_ms: opened.map(|_| opened_ms).map_err(|error| error.to_string()),
            }
        });
        let links = found.peer_links().into_iter().map(|link| LinkInfo {
            from: format!("cuda:{}", link.from),
            to: format!("cuda:{}", link.to),
            reaches: link.reaches.map_err(|error| error.to_string()),
            bytes_per_second: link.bytes_per_second.map_err(|error| error.to_string()),
        });
        Self {
            devices: devices.collect(),
            links: links.collect(),
            driver: version(found.driver),
            nvrtc: version(found.nvrtc),
            nvrtc_variable: variable("GUMBALL_NVRTC"),
            kernels_variable: variable("GUMBALL_KERNELS"),
            cache: cache.folder().map(|folder| folder.display().to_string()),
            cache_trouble: cache.trouble(),
        }
    }

    /// Returns the self-tests of the devices that were opened.
    pub fn self_tests(&self) -> impl Iterator<Item = &Item> {
        self.devices.iter().filter_map(|device| device.self_test.as_ref())
    }
}

/// Returns the value of a variable of the environment, if it is set, with replacement characters where it is
/// no text.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}
