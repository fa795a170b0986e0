//! Shapes: an array as a matrix with a row stride, or as a list.

use gumball_engine::head::WeightsMut;
use gumball_engine::{
    DeviceMasks, DeviceMatrix, Dtype as DeviceDtype, Error, HostMasks, HostMatrix, LogitsMut, Masks, Result,
    Row, bf16, f16,
};
use pyo3::prelude::*;

use super::{Array, Dtype, Location};
use crate::errors::{InvalidTypeError, InvalidValueError, out_of_range};

/// Rows of equal width, `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub address: usize,
    pub location: Location,
    pub dtype: Dtype,
    pub rows: usize,
    pub width: usize,
    pub stride: usize,
}

/// A list of integers, numbers or booleans in the host's memory, `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    address: usize,
    dtype: Dtype,
    len: usize,
    stride: isize,
}

/// Returns whether a dimension is packed: its stride is `wanted`, or it has fewer than 2 elements.
fn follows(length: usize, stride: isize, wanted: usize) -> bool {
    length < 2 || stride == wanted as isize
}

/// Returns the number of rows and of elements in `outer` matrices, or `None` if it overflows.
fn products(outer: usize, rows: usize, width: usize) -> Option<(usize, usize)> {
    rows.checked_mul(width)?;
    let count = outer.checked_mul(rows)?;
    Some((count, count.checked_mul(width)?))
}

/// Evaluates an expression with the type of elements that are floats.
macro_rules! with_float {
    ($dtype:expr, $type:ident => $work:expr) => {
        match $dtype {
            Dtype::F32 => {
                type $type = f32;
                $work
            }
            Dtype::Bf16 => {
                type $type = bf16;
                $work
            }
            Dtype::F16 => {
                type $type = f16;
                $work
            }
            other => panic!("{other:?} was not refused"),
        }
    };
}

impl Array<'_> {
    /// Takes the array as a matrix: two dimensions, or one for a single row.
    ///
    /// # Errors
    /// - `ValueError` for other dimensions, rows whose elements are not adjacent, or a negative row stride.
    pub fn matrix(&self, name: &str) -> PyResult<Matrix> {
        let (rows, width, strides) = match self.ndim {
            1 => (1, self.shape[0], [0, self.strides[0]]),
            2 => (self.shape[0], self.shape[1], self.strides),
            ndim => {
                let text = format!("{name} has {ndim} dimensions, but must have 2, or 1 for a single row");
                return Err(InvalidValueError::new_err(text));
            }
        };
        if rows > 0 && width > 1 && strides[1] != 1 {
            let text = format!(
                "{name} has elements {} apart in a row, but must have them side by side; copy it first",
                strides[1]
            );
            return Err(InvalidValueError::new_err(text));
        }
        let stride = if rows > 1 { strides[0] } else { width as isize };
        let stride = usize::try_from(stride)
            .map_err(|_| out_of_range(&format!("{name}'s stride"), stride, "positive; copy it first"))?;
        if !self.address.is_multiple_of(self.dtype.bytes()) {
            let allowed = format!("a multiple of {} bytes", self.dtype.bytes());
            return Err(out_of_range(&format!("{name}'s address"), format!("{:#x}", self.address), allowed));
        }
        let Self { address, location, dtype, .. } = *self;
        self.check_memory(name, rows.saturating_mul(width))?;
        let end = rows.saturating_sub(1).checked_mul(stride).and_then(|start| start.checked_add(width));
        if end.and_then(|end| end.checked_mul(dtype.bytes())).is_none_or(|end| end > isize::MAX as usize) {
            return Err(out_of_range(&format!("{name}'s size"), "beyond 2^63 bytes", "what fits in memory"));
        }
        Ok(Matrix { address, location, dtype, rows, width, stride })
    }

    /// Checks that the lengths of the dimensions are among those that are allowed.
    ///
    /// # Errors
    /// - `ValueError` for others.
    pub fn check_shape(&self, name: &str, allowed: &[&[usize]]) -> PyResult<()> {
        let outer = self.outer.iter().map(|(length, _)| *length);
        let shape: Vec<usize> = outer.chain(self.shape.into_iter().take(self.ndim)).collect();
        if allowed.contains(&&*shape) && shape.len() == self.ndim {
            return Ok(());
        }
        let allowed: Vec<String> = allowed.iter().map(|shape| format!("{shape:?}")).collect();
        let found =
            if self.ndim > 3 { format!("{} dimensions", self.ndim) } else { format!("shape {shape:?}") };
        let text = format!("{name} has {found}, but must have shape {}", allowed.join(" or "));
        Err(InvalidValueError::new_err(text))
    }

    /// Merges the first two of three dimensions if they are packed; other arrays stay unchanged.
    pub fn joined(self) -> Self {
        let ([rows, width], Some((outer, stride))) = (self.shape, self.outer) else { return self };
        let Some((count, elements)) = products(outer, rows, width) else { return self };
        let follow = follows(width, self.strides[1], 1)
            && follows(rows, self.strides[0], width)
            && follows(outer, stride, rows * width);
        if !follow && elements > 0 {
            return self;
        }
        Self { ndim: 2, shape: [count, width], strides: [width as isize, 1], outer: None, ..self }
    }

    /// Merges two dimensions into one if they are packed; other arrays stay unchanged.
    pub fn flat(self) -> Self {
        let ([rows, width], [stride, one]) = (self.shape, self.strides);
        let follow = follows(width, one, 1) && follows(rows, stride, width);
        let Some(elements) = rows.checked_mul(width) else { return self };
        if self.ndim != 2 || !follow && elements > 0 {
            return self;
        }
        Self { ndim: 1, shape: [elements, 0], strides: [1, 0], ..self }
    }

    /// Takes two dimensions with one number a row, or one row, as one dimension; other arrays stay unchanged.
    pub fn column(self) -> Self {
        let (length, stride) = match (self.ndim, self.shape) {
            (2, [rows, 1]) => (rows, self.strides[0]),
            (2, [1, width]) => (width, self.strides[1]),
            _ => return self,
        };
        Self { ndim: 1, shape: [length, 0], strides: [stride, 0], ..self }
    }

    /// Returns an error if elements have the address 0.
    fn check_memory(&self, name: &str, elements: usize) -> PyResult<()> {
        if self.address == 0 && elements > 0 {
            let text =
                format!("{name} has no memory, as if it were a fake tensor of torch, but must have elements");
            return Err(InvalidTypeError::new_err(text));
        }
        Ok(())
    }

    /// Takes the array as one row's bitmask in the host's memory.
    ///
    /// # Errors
    /// - `TypeError` or `ValueError` if the array's type, shape or device differs.
    ///
    /// # Safety
    /// For `'a`, no code frees or writes the array's memory.
    pub unsafe fn mask_words<'a>(&self) -> PyResult<&'a [u32]> {
        let matrix = self.matrix("mask")?;
        if matrix.location != Location::Host {
            return Err(out_of_range("mask", format!("on {}", matrix.location), "on the host"));
        }
        if matrix.rows != 1 {
            return Err(out_of_range("mask's rows", matrix.rows, "1"));
        }
        matrix.check_words("mask")?;
        // SAFETY: the elements are 32-bit words on the host, as checked, and the caller ensures that no code
        // frees or writes them.
        Ok(unsafe { matrix.elements::<u32>() })
    }

    /// Takes the array as a list.
    ///
    /// # Errors
    /// - `ValueError` if it does not have one dimension, does not lie on the host, or is not aligned.
    pub fn vector(&self, name: &str) -> PyResult<Vector> {
        if self.ndim != 1 {
            let text = format!("{name} has {} dimensions, but must have 1", self.ndim);
            return Err(InvalidValueError::new_err(text));
        }
        if self.location != Location::Host {
            return Err(out_of_range(name, format!("on {}", self.location), "on the host"));
        }
        if !self.address.is_multiple_of(self.dtype.bytes()) {
            return Err(out_of_range(&format!("{name}'s address"), self.address, "aligned"));
        }
        self.check_memory(name, self.shape[0])?;
        Ok(Vector { address: self.address, dtype: self.dtype, len: self.shape[0], stride: self.strides[0] })
    }
}

impl Matrix {
    /// Returns the number of elements from the first one to the end of the last row.
    fn span(&self) -> usize {
        if self.rows == 0 { 0 } else { (self.rows - 1) * self.stride + self.width }
    }

    /// Returns the elements as a slice.
    ///
    /// # Safety
    /// The elements lie in the host's memory and have the type `T`. For `'a`, no code frees or writes them.
    pub unsafe fn elements<'a, T>(&self) -> &'a [T] {
        if self.span() == 0 {
            return &[];
        }
        // SAFETY: the array's owner gave its rows' memory, and `Array::matrix` checked the alignment. The
        // caller ensures that the elements are `T` on the host, neither freed nor written for `'a`.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.span()) }
    }

    /// Returns the elements as a mutable slice. The caller has checked that the array may be written.
    ///
    /// # Safety
    /// The elements lie in the host's memory and have the type `T`. For `'a`, no code frees them, or reads or
    /// writes them except through the slice.
    pub unsafe fn elements_mut<'a, T>(&self) -> &'a mut [T] {
        if self.span() == 0 {
            return &mut [];
        }
        // SAFETY: the array's owner gave its rows' memory, and `Array::matrix` checked the alignment. The
        // caller ensures that the elements are `T` on the host and used through this slice only.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut T, self.span()) }
    }

    /// Returns the rows as a matrix to be written.
    ///
    /// # Panics
    /// If the element type is not f32, bf16 or f16.
    ///
    /// # Safety
    /// The elements lie in the host's memory. For `'a`, no code frees them, or reads or writes them except
    /// through the matrix.
    pub unsafe fn logits_mut<'a>(&self) -> Result<LogitsMut<'a>> {
        let (rows, width, stride) = (self.rows, self.width, self.stride);
        // SAFETY: the elements have the type that is named, and the caller ensures that they lie on the host
        // and are used by no other code for `'a`.
        with_float!(self.dtype, T => LogitsMut::strided(unsafe { self.elements_mut::<T>() }, rows, width, stride))
    }

    /// Checks that the rows of logits do not overlap.
    fn check_stride(&self) -> Result<()> {
        if self.rows <= 1 || self.stride >= self.width {
            return Ok(());
        }
        let allowed = format!(
            "at least the width of a row, {}; name a row as often as it is wanted in indices of sample, in row_indices of a pool",
            self.width
        );
        Err(Error::out_of_range("stride", self.stride, allowed))
    }

    /// Returns whether the two matrices share a byte, from the first element of each to its last.
    pub fn overlaps(&self, other: &Matrix) -> bool {
        let end = |matrix: &Matrix| matrix.address + matrix.span() * matrix.dtype.bytes();
        self.span() > 0 && other.span() > 0 && self.address < end(other) && other.address < end(self)
    }

    /// Checks that the elements have a type of logits, of weights and of hidden states. wanted: those types,
    /// in words.
    pub fn check_float_of(&self, name: &str, wanted: &str) -> PyResult<()> {
        match self.dtype {
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 => Ok(()),
            other => Err(other.wrong(name, wanted)),
        }
    }

    /// Checks that the elements lie in the host's memory.
    pub fn check_host(&self, name: &str) -> PyResult<()> {
        if self.location == Location::Host {
            return Ok(());
        }
        Err(out_of_range(name, format!("on {}", self.location), "on cpu"))
    }

    /// Checks that the elements are float32.
    pub fn check_f32(&self, name: &str) -> PyResult<()> {
        if self.dtype == Dtype::F32 { Ok(()) } else { Err(self.dtype.wrong(name, "float32")) }
    }

    /// Checks that the elements are float32, and that the rows follow each other without gaps.
    pub fn check_packed(&self, name: &str) -> PyResult<()> {
        self.check_f32(name)?;
        if self.rows > 1 && self.stride != self.width {
            return Err(out_of_range(&format!("{name}'s stride"), self.stride, self.width));
        }
        Ok(())
    }

    /// Checks that the elements are 32-bit words, as bitmasks need.
    pub fn check_words(&self, name: &str) -> PyResult<()> {
        match self.dtype {
            Dtype::I32 | Dtype::U32 => Ok(()),
            other => Err(other.wrong(name, "int32 or uint32 words")),
        }
    }

    /// Returns the rows on the host, as errors call logits.
    ///
    /// # Panics
    /// If the element type is not f32, bf16 or f16.
    ///
    /// # Safety
    /// The elements lie in the host's memory. For `'a`, no code frees or writes them.
    pub unsafe fn logits<'a>(&self) -> Result<HostMatrix<'a>> {
        // SAFETY: the caller ensures that the elements lie on the host, neither freed nor written for `'a`.
        let row = unsafe { self.floats() };
        self.check_stride()?;
        HostMatrix::of_vocab(row, self.rows, self.width, self.stride)
    }

    /// Returns the elements from the first one to the end of the last row, as floats of their type.
    ///
    /// # Panics
    /// If the element type is not f32, bf16 or f16.
    ///
    /// # Safety
    /// The elements lie in the host's memory. For `'a`, no code frees or writes them.
    pub unsafe fn floats<'a>(&self) -> Row<'a> {
        // SAFETY: the elements have the type that is named, and the caller ensures that they lie on the host,
        // neither freed nor written for `'a`.
        with_float!(self.dtype, T => Row::from(unsafe { self.elements::<T>() }))
    }

    /// Returns the elements as [`Self::floats`] does, to be written.
    ///
    /// # Panics
    /// If the element type is not f32, bf16 or f16.
    ///
    /// # Safety
    /// The elements lie in the host's memory. For `'a`, no code frees them, or reads or writes them except
    /// through what is returned.
    pub unsafe fn weights_mut<'a>(&self) -> WeightsMut<'a> {
        // SAFETY: the elements have the type that is named, and the caller ensures that they lie on the host
        // and are used by no other code for `'a`.
        with_float!(self.dtype, T => unsafe { self.elements_mut::<T>() }.into())
    }

    /// Returns the only row as logits on the host.
    ///
    /// # Panics
    /// If the element type is not f32, bf16 or f16.
    ///
    /// # Safety
    /// The elements lie in the host's memory. For `'a`, no code frees or writes them.
    pub unsafe fn row<'a>(&self) -> Result<Row<'a>> {
        if self.rows != 1 {
            return Err(Error::length("logits", self.rows, "1 row; a batch is for a Pool"));
        }
        // SAFETY: the caller ensures that the elements lie on the host, neither freed nor written for `'a`.
        let logits = unsafe { self.logits() }?;
        Ok(logits.row(0))
    }

    /// Returns the elements' type as kernels know it.
    ///
    /// # Panics
    /// If the element type is not f32, bf16 or f16.
    pub fn device_dtype(&self) -> DeviceDtype {
        match self.dtype {
            Dtype::F32 => DeviceDtype::F32,
            Dtype::Bf16 => DeviceDtype::Bf16,
            Dtype::F16 => DeviceDtype::F16,
            other => panic!("{other:?} was not refused"),
        }
    }

    /// Returns the rows as logits on a device.
    ///
    /// # Panics
    /// If the element type is not f32, bf16 or f16.
    ///
    /// # Safety
    /// The elements lie in the device's memory. For `'b`, no code frees or writes them while a step on them
    /// runs.
    pub unsafe fn device_logits<'b>(&self) -> Result<DeviceMatrix<'b>> {
        self.check_stride()?;
        let dtype = self.device_dtype();
        // SAFETY: the caller ensures that the rows lie on the device, neither freed nor written while a step
        // on them runs.
        unsafe { DeviceMatrix::new(self.address as u64, dtype, self.rows, self.width, self.stride) }
    }

    /// Returns the rows as bitmasks on the host. The caller has checked that the elements are 32-bit words.
    ///
    /// # Safety
    /// The elements lie in the host's memory. For `'a`, no code frees or writes them.
    pub unsafe fn masks<'a>(&self, present: &'a [bool]) -> Result<Masks<'a>> {
        // SAFETY: the caller ensures that the words lie on the host, neither freed nor written for `'a`. i32
        // is read as u32.
        let words = unsafe { self.elements::<u32>() };
        let masks = HostMasks::new(words, self.rows, self.width, self.stride)?;
        Ok(if present.is_empty() { masks } else { masks.with_present(present)? }.into())
    }

    /// Returns the rows as bitmasks on a device. The caller has checked that the elements are 32-bit words.
    ///
    /// # Safety
    /// The elements lie in the device's memory. For `'b`, no code frees or writes them while a step on them
    /// runs.
    pub unsafe fn device_masks<'b>(&self) -> Result<DeviceMasks<'b>> {
        // SAFETY: the caller ensures that the masks lie on the device, neither freed nor written while a step
        // on them runs.
        unsafe { DeviceMasks::new(self.address as u64, self.rows, self.width, self.stride) }
    }
}

impl Vector {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the elements as i64. An element that is no integer, or does not fit, gives an error.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PyResult<i64>> + 'a {
        (0..self.len as isize).map(|index| self.value(name, index))
    }

    /// Returns the elements as words: the bits of an i64, or a number of up to 2^64.
    pub fn words<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PyResult<u64>> + 'a {
        (0..self.len as isize).map(|index| match self.dtype {
            Dtype::U64 => Ok(self.read::<u64>(index)),
            _ => self.value(name, index).map(i64::cast_unsigned),
        })
    }

    /// Returns the elements as f32. An element that is no number gives an error.
    pub fn numbers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PyResult<f32>> + 'a {
        (0..self.len as isize).map(|index| self.number(name, index))
    }

    fn number(&self, name: &str, index: isize) -> PyResult<f32> {
        Ok(match self.dtype {
            Dtype::F32 => self.read::<f32>(index),
            Dtype::F64 => self.read::<f64>(index) as f32,
            Dtype::F16 => self.read::<f16>(index).to_f32(),
            Dtype::Bf16 => self.read::<bf16>(index).to_f32(),
            Dtype::Other => return Err(self.dtype.wrong(name, "numbers")),
            _ => self.value(name, index)? as f32,
        })
    }

    /// Reads an element of the list's own type.
    fn read<T: Copy>(&self, index: isize) -> T {
        debug_assert!(size_of::<T>() == self.dtype.bytes() && (0..self.len as isize).contains(&index));
        let offset = index.wrapping_mul(self.stride).wrapping_mul(size_of::<T>() as isize);
        // SAFETY: the array's owner gave its memory, whose object the call keeps alive; `Array::vector`
        // checked the alignment. Callers name the type of the elements, and a boolean is a byte.
        unsafe { *(self.address.wrapping_add_signed(offset) as *const T) }
    }

    fn value(&self, name: &str, index: isize) -> PyResult<i64> {
        Ok(match self.dtype {
            Dtype::I8 => i64::from(self.read::<i8>(index)),
            Dtype::U8 => i64::from(self.read::<u8>(index)),
            Dtype::I16 => i64::from(self.read::<i16>(index)),
            Dtype::U16 => i64::from(self.read::<u16>(index)),
            Dtype::I32 => i64::from(self.read::<i32>(index)),
            Dtype::U32 => i64::from(self.read::<u32>(index)),
            Dtype::I64 => self.read::<i64>(index),
            Dtype::U64 => i64::try_from(self.read::<u64>(index))
                .map_err(|_| out_of_range(name, "beyond 2^63", "less"))?,
            Dtype::Bool => i64::from(self.read::<u8>(index) != 0),
            other => return Err(other.wrong(name, "integers")),
        })
    }
}
