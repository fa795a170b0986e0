//! Arrays: the memory of other libraries, described in few instructions and, except for plain buffers, never copied.
//!
//! | object | read through |
//! | --- | --- |
//! | numpy's arrays, also of `ml_dtypes.bfloat16` | numpy's C structure |
//! | torch's tensors, and others whose type offers DLPack's table of functions | the table |
//! | tensors of older torch | their attributes |
//! | CuPy, and others with `__cuda_array_interface__` | that attribute |
//! | objects with `__dlpack__` | a capsule, held during the call |
//! | objects with `__array_interface__` | that attribute |
//! | other objects with a buffer, such as `memoryview` and `array.array` | a copy, since Python 3.10's stable interface shows no address |
//!
//! An [`Array`] holds a loan, which keeps its memory alive; a capsule may even own memory that was copied for
//! it. Code that keeps an address must therefore keep the array for as long as it reads the memory.

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

/// The type of an array's elements; types that no function here takes are `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    Bool,
    /// Any other type.
    Other,
}

impl Dtype {
    /// Returns the type's name in numpy and torch.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F64 => "float64",
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::I8 => "int8",
            Dtype::U8 => "uint8",
            Dtype::I16 => "int16",
            Dtype::U16 => "uint16",
            Dtype::I32 => "int32",
            Dtype::U32 => "uint32",
            Dtype::I64 => "int64",
            Dtype::U64 => "uint64",
            Dtype::Bool => "bool",
            Dtype::Other => "another type",
        }
    }

    /// Returns whether the elements are integers.
    pub fn is_integer(self) -> bool {
        use Dtype::{I8, I16, I32, I64, U8, U16, U32, U64};
        matches!(self, I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64)
    }

    /// Returns the size of an element in bytes; 1 for unknown types.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
            Dtype::Bool | Dtype::I8 | Dtype::U8 | Dtype::Other => 1,
        }
    }
}

/// The memory that holds an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The host's memory.
    Host,
    /// The memory of a CUDA device.
    Cuda(i32),
    /// Another device's memory.
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

/// An array of one or two dimensions. Of other arrays only the number of dimensions is known, and for some of
/// three dimensions `outer`.
#[derive(Debug)]
pub struct Array<'py> {
    pub address: usize,
    pub location: Location,
    pub dtype: Dtype,
    pub ndim: usize,
    pub shape: [usize; 2],
    /// In elements; may be negative.
    pub strides: [isize; 2],
    /// For three dimensions: length and stride of the first one. `shape` and `strides` describe the other
    /// two.
    pub outer: Option<(usize, isize)>,
    /// The stream on which the array's owner writes it, if the owner names one.
    pub stream: Option<usize>,
    /// Whether the owner forbids writing.
    pub readonly: bool,
    /// What keeps the memory alive besides the object itself.
    loan: Option<Bound<'py, PyAny>>,
}

impl Array<'_> {
    /// Returns what keeps the memory alive besides the object itself, for code that reads the memory after
    /// the call.
    pub fn into_loan(self) -> Option<Py<PyAny>> {
        self.loan.map(Bound::unbind)
    }
}

/// Reads an object as an array. `stream` is the stream that will read the memory, for owners that order their
/// work before it.
///
/// # Errors
/// - `TypeError` if the object is no array; the exceptions of its own protocol.
pub fn read<'py>(object: &Bound<'py, PyAny>, name: &str, stream: Option<usize>) -> PyResult<Array<'py>> {
    if let Some(array) = numpy::read(object, name)? {
        return Ok(array);
    }
    let tensor = match exchange::read(object, name)? {
        Some(array) => Some(array),
        None => torch::read(object)?,
    };
    if let Some(array) = tensor {
        if array.address == 0 && object.get_type().name()? == "DTensor" {
            return Err(wrong_type(
                name,
                "a tensor of this process: full_tensor(), or to_local() for gumball.dist",
                object,
            ));
        }
        return Ok(array);
    }
    let found = protocols::read(object, name, stream);
    if let Some(array) = found.map_err(|cause| unreadable(object.py(), name, cause))? {
        return Ok(array);
    }
    let wanted = "an array: numpy's, torch's, a buffer, or one with __dlpack__, __cuda_array_interface__ or __array_interface__";
    Err(wrong_type(name, wanted, object))
}

/// Reads a matrix of floats on the host; the caller keeps the array alive while it reads the matrix.
pub fn host_floats<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<(Array<'py>, Matrix)> {
    let array = read(object, name, None)?;
    let matrix = array.matrix(name)?;
    matrix.check_host(name)?;
    matrix.check_float_of(name)?;
    Ok((array, matrix))
}
