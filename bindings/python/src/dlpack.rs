//! DLPack's structures with the memory layout of its header (versions 0.8 and 1.x).
//!
//! A producer hands over a tensor in a capsule, together with a function that ends the loan. A type may
//! instead offer a table of functions, one of which describes a tensor without a loan.

use std::ffi::{CStr, c_int, c_void};

/// The name of a capsule in versions before 1.
pub const CAPSULE: &CStr = c"dltensor";
/// The name of a capsule from version 1 on.
pub const CAPSULE_VERSIONED: &CStr = c"dltensor_versioned";
/// The name of a capsule that holds the table of functions.
pub const EXCHANGE: &CStr = c"dlpack_exchange_api";

/// The version that these structures follow.
pub const VERSION: (u32, u32) = (1, 0);

/// The flag of a tensor that must not be written.
pub const READ_ONLY: u64 = 1;

/// Kind of device: the host's memory.
pub const CPU: i32 = 1;
/// Kind of device: a CUDA device's memory.
pub const CUDA: i32 = 2;
/// Kind of device: page-locked host memory that CUDA devices can read.
pub const CUDA_HOST: i32 = 3;

/// Kind of element: signed integers.
pub const INT: u8 = 0;
/// Kind of element: unsigned integers.
pub const UINT: u8 = 1;
/// Kind of element: IEEE floats.
pub const FLOAT: u8 = 2;
/// Kind of element: bfloat16.
pub const BFLOAT: u8 = 4;
/// Kind of element: booleans, one byte each.
pub const BOOL: u8 = 6;

/// The device whose memory holds a tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub kind: i32,
    pub id: i32,
}

/// The type of a tensor's elements.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// A tensor in another library's memory. Strides count elements; a null `strides` means that it is
/// contiguous.
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

/// A lent tensor, in versions before 1.
#[repr(C)]
#[derive(Debug)]
pub struct Managed {
    pub tensor: Tensor,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// A lent tensor, from version 1 on.
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

/// The table of functions that a type offers. Each function may be missing.
#[repr(C)]
#[derive(Debug)]
pub struct Exchange {
    pub major: u32,
    pub minor: u32,
    pub previous: *const Exchange,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: *const c_void,
    /// Describes an object of the type without a loan. Returns 0, or -1 with a Python exception set.
    pub describe: Option<unsafe extern "C" fn(*mut c_void, *mut Tensor) -> c_int>,
    /// Writes the stream on which the framework enqueues at present. Returns 0, or -1 with a Python exception
    /// set.
    pub current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

// SAFETY: a framework's table is constant, and its functions may be called from any thread that holds the
// GIL.
unsafe impl Sync for Exchange {}

impl Tensor {
    /// Returns a tensor to be filled in: no memory, no dimensions.
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
