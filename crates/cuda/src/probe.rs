//! What of CUDA there is on this machine, found without taking any of it.

use std::fmt;

use cudarc::driver::result::{self, device};
use cudarc::driver::{DriverError, sys::CUdevice_attribute_enum as Attribute};

use crate::error::{Error, Result};
use crate::gpu::driver_version;
use crate::nvrtc::{Arch, Nvrtc};

/// What was found.
#[derive(Clone, Debug)]
pub struct CudaInfo {
    /// The driver's interface, major and minor, or what is wrong with it.
    pub driver: Result<(i32, i32)>,
    /// The compiler's version, major and minor, or what is wrong with it.
    pub nvrtc: Result<(i32, i32)>,
    /// The devices that the driver tells of.
    pub devices: Vec<DeviceInfo>,
}

/// A device that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its architecture; kernels need [`Arch::OLDEST`] or newer.
    pub arch: Arch,
    /// Its memory.
    pub memory_bytes: usize,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ordinal, name, arch, .. } = self;
        write!(f, "cuda:{ordinal} {name} ({arch})")
    }
}

impl CudaInfo {
    /// Looks. Opens no context, compiles nothing.
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

fn devices() -> Result<Vec<DeviceInfo>> {
    let failed = |call| move |error: DriverError| Error::call(call, error);
    result::init().map_err(failed("cuInit"))?;
    let count = device::get_count().map_err(failed("cuDeviceGetCount"))?;
    (0..count).map(|ordinal| found(ordinal).map_err(failed("cuDeviceGetAttribute"))).collect()
}

fn found(ordinal: i32) -> std::result::Result<DeviceInfo, DriverError> {
    let device = device::get(ordinal)?;
    let attribute = |attribute| {
        // SAFETY: the device was given by the driver just now.
        unsafe { device::get_attribute(device, attribute) }
    };
    let arch = Arch {
        major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    // SAFETY: the device was given by the driver just now.
    let memory_bytes = unsafe { device::total_mem(device) }?;
    Ok(DeviceInfo {
        ordinal: usize::try_from(ordinal).unwrap_or(0),
        name: device::get_name(device)?,
        arch,
        memory_bytes,
        multiprocessors: u32::try_from(multiprocessors).unwrap_or(1),
    })
}
