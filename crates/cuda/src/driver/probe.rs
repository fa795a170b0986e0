//! Finds the CUDA driver, the compiler and the devices of this system without using a device.

use std::fmt;

use cudarc::driver::result::{self, device};
use cudarc::driver::{DriverError, sys, sys::CUdevice_attribute_enum as Attribute};

use crate::driver::arch::Arch;
use crate::driver::nvrtc::Nvrtc;
use crate::driver::thread_state::driver_is_present;
use crate::error::{Error, Result, failed};

/// The oldest version of CUDA that the driver must support, 12.0, as the driver encodes it.
const OLDEST_DRIVER: i32 = 12_000;

/// The CUDA installation of this system.
#[derive(Clone, Debug)]
pub struct CudaInfo {
    /// The version of CUDA that the driver supports, major and minor; or why the driver cannot be used.
    pub driver: Result<(i32, i32)>,
    /// The version of NVRTC, major and minor; or why the compiler cannot be used.
    pub nvrtc: Result<(i32, i32)>,
    /// The devices that the driver lists; empty if `driver` is an error.
    pub devices: Vec<DeviceInfo>,
}

/// A device that the driver lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's number of the device, from 0.
    pub ordinal: usize,
    /// The driver's name of the device.
    pub name: String,
    /// The architecture; kernels need [`Arch::OLDEST`] or newer.
    pub arch: Arch,
    /// The size of the device's memory.
    pub memory_bytes: usize,
    /// The number of multiprocessors.
    pub multiprocessors: u32,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ordinal, name, arch, .. } = self;
        write!(f, "cuda:{ordinal} {name} ({arch})")
    }
}

impl CudaInfo {
    /// Queries the driver and NVRTC. Opens no context and compiles nothing.
    #[must_use]
    pub fn probe() -> Self {
        let driver = driver_version();
        let devices = driver.clone().and_then(|_| devices());
        let (driver, devices) = match devices {
            Ok(devices) => (driver, devices),
            Err(error) => (Err(error), Vec::new()),
        };
        Self { driver, nvrtc: Nvrtc::load().map(|nvrtc| nvrtc.version()), devices }
    }
}

/// Returns the version of CUDA that the driver supports, major and minor.
///
/// # Errors
/// - [`Error::Missing`] if there is no driver.
/// - [`Error::TooOld`] if the driver supports no version from `OLDEST_DRIVER` on.
/// - [`Error::Call`] if the driver does not return its version.
pub(crate) fn driver_version() -> Result<(i32, i32)> {
    if !driver_is_present() {
        let remedy = "install NVIDIA's driver (libcuda)".to_owned();
        return Err(Error::Missing { library: "the CUDA driver", remedy });
    }
    let mut version = 0;
    // SAFETY: the check above found the library, and the pointer is to a live integer.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    status.result().map_err(failed("cuDriverGetVersion"))?;
    if version < OLDEST_DRIVER {
        let words = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
        let needed = format!("one for CUDA {} or newer", words(OLDEST_DRIVER));
        return Err(Error::TooOld { library: "the CUDA driver", found: words(version), needed });
    }
    Ok((version / 1000, version % 1000 / 10))
}

fn devices() -> Result<Vec<DeviceInfo>> {
    result::init().map_err(failed("cuInit"))?;
    let count = device::get_count().map_err(failed("cuDeviceGetCount"))?;
    (0..count).map(|ordinal| found(ordinal).map_err(failed("cuDeviceGetAttribute"))).collect()
}

fn found(ordinal: i32) -> std::result::Result<DeviceInfo, DriverError> {
    let device = device::get(ordinal)?;
    let attribute = |attribute| {
        // SAFETY: the driver has just returned this device.
        unsafe { device::get_attribute(device, attribute) }
    };
    let arch = Arch {
        major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    // SAFETY: the driver has just returned this device.
    let memory_bytes = unsafe { device::total_mem(device) }?;
    Ok(DeviceInfo {
        ordinal: usize::try_from(ordinal).unwrap_or(0),
        name: device::get_name(device)?,
        arch,
        memory_bytes,
        multiprocessors: u32::try_from(multiprocessors).unwrap_or(1),
    })
}
