//! Arrays: the memory of other libraries, described in few instructions and, except for plain buffers, never
//! copied.
//!
//! | object | read through |
//! | --- | --- |
//! | numpy's arrays, also of `ml_dtypes.bfloat16` | numpy's C structure |
//! | torch's tensors, and others whose type offers DLPack's table of functions | the table |
//! | tensors of older torch | their attributes |
//! | CuPy, and others with `__dlpack__` | a capsule, held during the call |
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

use crate::errors::{InvalidTypeError, InvalidValueError, unreadable, wrong_type};

pub use exchange::torch_stream;
pub use shape::{Matrix, Vector};

/// The types of rows, in words.
pub const FLOATS: &str = "float32, bfloat16 or float16";

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

/// Each type that functions take, in the enum's order: its name in numpy and torch, the kind of its elements
/// as numpy writes it, and their size in bytes. numpy has no kind of bfloat16; V is what `ml_dtypes` gives
/// it.
const DTYPES: [(Dtype, &str, char, usize); 13] = [
    (Dtype::F64, "float64", 'f', 8),
    (Dtype::F32, "float32", 'f', 4),
    (Dtype::F16, "float16", 'f', 2),
    (Dtype::Bf16, "bfloat16", 'V', 2),
    (Dtype::I8, "int8", 'i', 1),
    (Dtype::U8, "uint8", 'u', 1),
    (Dtype::I16, "int16", 'i', 2),
    (Dtype::U16, "uint16", 'u', 2),
    (Dtype::I32, "int32", 'i', 4),
    (Dtype::U32, "uint32", 'u', 4),
    (Dtype::I64, "int64", 'i', 8),
    (Dtype::U64, "uint64", 'u', 8),
    (Dtype::Bool, "bool", 'b', 1),
];

impl Dtype {
    /// Returns the type of a kind and a size in bytes.
    pub fn of(kind: char, bytes: usize) -> Self {
        let found = DTYPES.iter().find(|(_, _, of, size)| (*of, *size) == (kind, bytes));
        found.map_or(Dtype::Other, |(dtype, ..)| *dtype)
    }

    /// Returns the type of a name in numpy and torch.
    pub fn of_name(name: &str) -> Self {
        DTYPES.iter().find(|(_, of, ..)| *of == name).map_or(Dtype::Other, |(dtype, ..)| *dtype)
    }

    /// Returns the type's name in numpy and torch.
    pub fn name(self) -> &'static str {
        DTYPES.get(self as usize).map_or("another type", |(_, name, ..)| name)
    }

    /// Returns a `TypeError` for elements of this type in the place of others.
    pub fn wrong(self, name: &str, wanted: &str) -> PyErr {
        let rounded = if self == Dtype::F64 && wanted.contains("float32") {
            format!("; {name}.astype(\"float32\") rounds an array, {name}.float() a tensor")
        } else {
            String::new()
        };
        InvalidTypeError::new_err(format!("{name} is of {}, but must be of {wanted}{rounded}", self.name()))
    }

    /// Returns whether the elements are integers.
    pub fn is_integer(self) -> bool {
        DTYPES.get(self as usize).is_some_and(|(_, _, kind, _)| matches!(kind, 'i' | 'u'))
    }

    /// Returns the size of an element in bytes; 1 for unknown types.
    pub fn bytes(self) -> usize {
        DTYPES.get(self as usize).map_or(1, |(.., bytes)| *bytes)
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

/// An array of one or two dimensions, or of three by `outer`. Of other arrays only the number of dimensions
/// is known.
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
    /// Whether the owner forbids writing.
    pub readonly: bool,
    /// What keeps the memory alive besides the object itself.
    loan: Option<Bound<'py, PyAny>>,
}

impl<'py> Array<'py> {
    /// Describes an array of the host's memory that may be written. Without strides, which count elements,
    /// there are no gaps.
    fn new(address: usize, dtype: Dtype, lengths: &[usize], strides: Option<&[isize]>) -> Self {
        let (location, readonly, loan) = (Location::Host, false, None);
        let (ndim, shape, zeros, outer) = (lengths.len(), [0; 2], [0; 2], None);
        let mut made = Self { address, location, dtype, ndim, shape, strides: zeros, outer, readonly, loan };
        if ndim > 3 {
            return made;
        }
        let (mut packed, outer_axes) = (1_isize, ndim.saturating_sub(2));
        for axis in (0..ndim).rev() {
            let (length, stride) = (lengths[axis], strides.map_or(packed, |strides| strides[axis]));
            match axis.checked_sub(outer_axes) {
                Some(axis) => (made.shape[axis], made.strides[axis]) = (length, stride),
                None => made.outer = Some((length, stride)),
            }
            packed = packed.wrapping_mul(length as isize);
        }
        made
    }

    /// Describes an array whose strides count bytes.
    fn strided(
        name: &str,
        address: usize,
        dtype: Dtype,
        lengths: &[usize],
        strides: &[isize],
    ) -> PyResult<Self> {
        let (bytes, mut elements) = (dtype.bytes() as isize, [0; 3]);
        if strides.len() != lengths.len() {
            let (found, ndim) = (strides.len(), lengths.len());
            let text = format!("{name} has {found} strides, but must have one a dimension, {ndim}");
            return Err(InvalidValueError::new_err(text));
        }
        for (elements, stride) in elements.iter_mut().zip(strides) {
            if stride % bytes != 0 {
                let text = format!(
                    "{name} has a stride of {stride} bytes, no multiple of an element's {bytes}; copy it first"
                );
                return Err(InvalidValueError::new_err(text));
            }
            *elements = stride / bytes;
        }
        Ok(Self::new(address, dtype, lengths, Some(&elements)))
    }

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
        // Of classes that hold their numbers in other tensors.
        let wanted = match object.get_type().name()?.to_str()? {
            _ if array.address != 0 => return Ok(array),
            "DTensor" => "a tensor of this process: full_tensor(), or to_local() for gumball.dist",
            "MaskedTensor" => "a tensor without masked elements: to_tensor(value) fills them",
            _ => return Ok(array),
        };
        return Err(wrong_type(name, wanted, object));
    }
    let found = protocols::read(object, stream);
    if let Some(array) = found.map_err(|cause| unreadable(object.py(), name, cause))? {
        return Ok(array);
    }
    let wanted = format!(
        "an array: numpy's, torch's, a buffer, or one with __dlpack__; numpy.asarray({name}, \"float32\") makes one"
    );
    Err(wrong_type(name, &wanted, object))
}

/// Reads a matrix of floats on the host; the caller keeps the array alive while it reads the matrix.
pub fn host_floats<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<(Array<'py>, Matrix)> {
    let array = read(object, name, None)?;
    let matrix = array.matrix(name)?;
    matrix.check_host(name)?;
    matrix.check_float_of(name, FLOATS)?;
    Ok((array, matrix))
}
