//! DLPack's structures, as its header lays them out in memory (versions 0.8, 1.x).
//!
//! A tensor is handed over in a capsule, with a function that ends the loan; or, where its type offers a table of functions,
//! described on the spot without one.

use std::ffi::{CStr, c_int, c_void};

/// The name of a capsule as handed out before version 1.
pub const CAPSULE: &CStr = c"dltensor";
/// The name of a capsule since.
pub const CAPSULE_VERSIONED: &CStr = c"dltensor_versioned";
/// The name of a capsule with the table of functions.
pub const EXCHANGE: &CStr = c"dlpack_exchange_api";

/// The version whose layout this is.
pub const VERSION: (u32, u32) = (1, 0);

/// The flag of a tensor that must not be written.
pub const READ_ONLY: u64 = 1;

/// Kinds of devices.
pub const CPU: i32 = 1;
/// A CUDA device's memory.
pub const CUDA: i32 = 2;
/// The host's memory that a CUDA device reaches too.
pub const CUDA_HOST: i32 = 3;

/// Kinds of elements: signed integers.
pub const INT: u8 = 0;
/// Unsigned integers.
pub const UINT: u8 = 1;
/// IEEE floats.
pub const FLOAT: u8 = 2;
/// Truncated floats.
pub const BFLOAT: u8 = 4;
/// Truth values.
pub const BOOL: u8 = 6;

/// Where a tensor lies.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub kind: i32,
    pub id: i32,
}

/// What its elements are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// A tensor in somebody's memory; strides in elements, null where it is contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub data: *mut c_void,
    pub device: Device,
    pub ndim: i32,
    pub dtype: DataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// A tensor on loan, as before version 1.
#[repr(C)]
#[derive(Debug)]
pub struct Managed {
    pub tensor: Tensor,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A tensor on loan since version 1.
#[repr(C)]
#[derive(Debug)]
pub struct ManagedVersioned {
    pub major: u32,
    pub minor: u32,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    pub flags: u64,
    pub tensor: Tensor,
}

/// The table of functions that a type offers.
#[repr(C)]
#[derive(Debug)]
pub struct Exchange {
    pub major: u32,
    pub minor: u32,
    pub previous: *const Exchange,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: *const c_void,
    /// Describes an object of the type, without a loan; 0, or -1 with an exception set. May be absent.
    pub describe: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    /// Tells the stream on which the framework enqueues at present.
    pub current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

// SAFETY: a table is a framework's constant.
unsafe impl Sync for Exchange {}

impl Tensor {
    /// Returns a tensor that describes nothing yet.
    pub const fn empty() -> Self {
        Self {
            data: std::ptr::null_mut(),
            device: Device { kind: 0, id: 0 },
            ndim: 0,
            dtype: DataType { code: 0, bits: 0, lanes: 1 },
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        }
    }
}
