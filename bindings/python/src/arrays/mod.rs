//! Arrays: anybody's memory, described once, in few instructions, and never copied.
//!
//! | object | read through |
//! | --- | --- |
//! | numpy's arrays, also of `ml_dtypes.bfloat16` | numpy's own structure |
//! | torch's tensors, and others whose type offers DLPack's table of functions | that table |
//! | tensors of older torch | their attributes |
//! | CuPy, and others with `__cuda_array_interface__` | that |
//! | anything with `__dlpack__` | a capsule, held while the call lasts |
//! | anything with `__array_interface__` | that |
//!
//! An [`Array`] holds what keeps its memory alive, a loan: memory may be the loan's own, as a copy that was made for it. So it is
//! held for as long as its memory is read, by whoever has taken the address out of it.

mod exchange;
mod numpy;
mod protocols;
mod shape;
mod torch;

use pyo3::prelude::*;

use crate::errors::{unreadable, wrong_type};

pub use exchange::torch_stream;
pub use protocols::interface;
pub use shape::Matrix;

/// The type of an array's elements, as far as anything here takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    I32,
    U32,
    I64,
    U64,
    Bool,
    /// Anything else.
    Other,
}

impl Dtype {
    /// Returns the name, as numpy and torch have it.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F64 => "float64",
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::I32 => "int32",
            Dtype::U32 => "uint32",
            Dtype::I64 => "int64",
            Dtype::U64 => "uint64",
            Dtype::Bool => "bool",
            Dtype::Other => "another type",
        }
    }

    /// Returns the size of an element; 1 where it is not known.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
            Dtype::Bool | Dtype::Other => 1,
        }
    }
}

/// Where an array lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The host's memory.
    Host,
    /// The memory of a CUDA device.
    Cuda(i32),
    /// Anywhere else.
    Elsewhere,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Location::Host => f.write_str("cpu"),
            Location::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Location::Elsewhere => f.write_str("another device"),
        }
    }
}

/// An array of one or two dimensions. More are counted, not described, but for the first of three where a reader looks at it.
#[derive(Debug)]
pub struct Array<'py> {
    pub address: usize,
    pub location: Location,
    pub dtype: Dtype,
    pub ndim: usize,
    pub shape: [usize; 2],
    /// In elements.
    pub strides: [isize; 2],
    /// Of three dimensions the first one's length and stride, the others being those above.
    pub outer: Option<(usize, isize)>,
    /// The stream on which the array's owner works, if it says so.
    pub stream: Option<usize>,
    /// Whether the owner says that nobody may write it.
    pub readonly: bool,
    /// What keeps the memory alive besides the object itself.
    loan: Option<Bound<'py, PyAny>>,
}

impl Array<'_> {
    /// Returns what keeps the memory alive besides the object itself, for whoever reads it when the call is over.
    pub fn into_loan(self) -> Option<Py<PyAny>> {
        self.loan.map(Bound::unbind)
    }
}

/// Reads an object as an array. `stream` is where its memory will be read, for owners that want to know.
///
/// # Errors
/// - `TypeError` if it is none; what its own protocol raises.
pub fn read<'py>(object: &Bound<'py, PyAny>, name: &str, stream: Option<usize>) -> PyResult<Array<'py>> {
    if let Some(array) = numpy::read(object, name)? {
        return Ok(array);
    }
    if let Some(array) = exchange::read(object, name)? {
        return Ok(array);
    }
    if let Some(array) = torch::read(object)? {
        return Ok(array);
    }
    let found = protocols::read(object, name, stream);
    if let Some(array) = found.map_err(|cause| unreadable(object.py(), name, cause))? {
        return Ok(array);
    }
    let wanted =
        "an array: numpy's, torch's, or one with __dlpack__, __cuda_array_interface__ or __array_interface__";
    Err(wrong_type(name, wanted, object))
}
