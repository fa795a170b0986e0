//! Shapes: an array as rows that lie some stride apart, or as a list.

use gumball_engine::cuda::{Dtype as DeviceDtype, MaskRows, Rows};
use gumball_engine::{Error, Logits, LogitsMut, Masks, Result, Row, bf16, f16};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{Array, Dtype, Location};
use crate::errors::out_of_range;

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

/// A list of integers or truth values in the host's memory, `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    address: usize,
    dtype: Dtype,
    len: usize,
    stride: isize,
}

/// Returns whether so many elements that lie so far apart lie as they would if they followed each other `wanted` apart.
fn follows(length: usize, stride: isize, wanted: usize) -> bool {
    length < 2 || stride == wanted as isize
}

/// Returns how many rows and how many elements rows of rows have in all, where a number can say it.
fn products(outer: usize, rows: usize, width: usize) -> Option<(usize, usize)> {
    rows.checked_mul(width)?;
    let count = outer.checked_mul(rows)?;
    Some((count, count.checked_mul(width)?))
}

impl Array<'_> {
    /// Takes the array as rows: two dimensions, or one for a single row.
    ///
    /// # Errors
    /// - `ValueError` for other dimensions, rows whose elements are not adjacent, or rows that go backwards.
    pub fn matrix(&self, name: &str) -> PyResult<Matrix> {
        let (rows, width, strides) = match self.ndim {
            1 => (1, self.shape[0], [0, self.strides[0]]),
            2 => (self.shape[0], self.shape[1], self.strides),
            ndim => {
                let text = format!("{name} has {ndim} dimensions, but must have 2, or 1 for a single row");
                return Err(PyValueError::new_err(text));
            }
        };
        if rows > 0 && width > 1 && strides[1] != 1 {
            let text = format!(
                "{name} has elements {} apart in a row, but must have them side by side; copy it first",
                strides[1]
            );
            return Err(PyValueError::new_err(text));
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

    /// Takes rows of rows as rows, one after the other: the first two of three dimensions, where their elements follow each other.
    /// Others stay as they are.
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

    /// Takes two dimensions as one, where their elements follow each other. Others stay as they are.
    pub fn flat(self) -> Self {
        let ([rows, width], [stride, one]) = (self.shape, self.strides);
        let follow = follows(width, one, 1) && follows(rows, stride, width);
        let Some(elements) = rows.checked_mul(width) else { return self };
        if self.ndim != 2 || !follow && elements > 0 {
            return self;
        }
        Self { ndim: 1, shape: [elements, 0], strides: [1, 0], ..self }
    }

    /// Refuses elements that lie nowhere.
    fn check_memory(&self, name: &str, elements: usize) -> PyResult<()> {
        if self.address == 0 && elements > 0 {
            let text =
                format!("{name} has no memory, as if it were a fake tensor of torch, but must have elements");
            return Err(PyTypeError::new_err(text));
        }
        Ok(())
    }

    /// Takes the array as one row's bitmask in the host's memory.
    ///
    /// # Errors
    /// - `TypeError` or `ValueError` if it is none.
    ///
    /// # Safety
    /// As for [`Matrix::logits`].
    pub unsafe fn mask_words<'a>(&self) -> PyResult<&'a [u32]> {
        let matrix = self.matrix("mask")?;
        if matrix.location != Location::Host {
            return Err(out_of_range("mask", format!("on {}", matrix.location), "on the host"));
        }
        if matrix.rows != 1 {
            return Err(out_of_range("mask's rows", matrix.rows, "1"));
        }
        matrix.check_words()?;
        // SAFETY: the caller vouches for the memory; signed and unsigned words have the same bits.
        Ok(unsafe { matrix.elements::<u32>() })
    }

    /// Takes the array as a list.
    ///
    /// # Errors
    /// - `ValueError` if it has not one dimension, is not the host's, or is not aligned.
    pub fn vector(&self, name: &str) -> PyResult<Vector> {
        if self.ndim != 1 {
            let text = format!("{name} has {} dimensions, but must have 1", self.ndim);
            return Err(PyValueError::new_err(text));
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
    /// Returns how many elements there are from the first to the end of the last row.
    fn span(&self) -> usize {
        if self.rows == 0 { 0 } else { (self.rows - 1) * self.stride + self.width }
    }

    /// Returns the elements as a slice.
    ///
    /// # Safety
    /// They lie in the host's memory, which nobody frees or writes for `'a`; `T` is their type.
    pub unsafe fn elements<'a, T>(&self) -> &'a [T] {
        if self.span() == 0 {
            return &[];
        }
        // SAFETY: the array's owner says that its rows lie there; the address is aligned, as `Array::matrix` saw.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.span()) }
    }

    /// Returns the elements as a slice to write; the caller checked their type and that they may be written.
    ///
    /// # Safety
    /// They lie in the host's memory, which nobody frees, reads or writes beside the slice for `'a`; `T` is their type.
    pub unsafe fn elements_mut<'a, T>(&self) -> &'a mut [T] {
        if self.span() == 0 {
            return &mut [];
        }
        // SAFETY: as in `elements`, and nobody else uses them, as the caller vouches.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut T, self.span()) }
    }

    /// Returns the rows as a matrix to write.
    ///
    /// # Panics
    /// If the type was not checked.
    ///
    /// # Safety
    /// As for [`Matrix::elements_mut`].
    pub unsafe fn logits_mut<'a>(&self) -> Result<LogitsMut<'a>> {
        let (rows, width, stride) = (self.rows, self.width, self.stride);
        match self.dtype {
            // SAFETY: the caller vouches for the memory, the type is as was just seen.
            Dtype::F32 => LogitsMut::strided(unsafe { self.elements_mut::<f32>() }, rows, width, stride),
            // SAFETY: the same.
            Dtype::Bf16 => LogitsMut::strided(unsafe { self.elements_mut::<bf16>() }, rows, width, stride),
            // SAFETY: the same.
            Dtype::F16 => LogitsMut::strided(unsafe { self.elements_mut::<f16>() }, rows, width, stride),
            other => panic!("{other:?} was not refused"),
        }
    }

    /// Returns whether any byte between the first and the last element is also one of another matrix.
    pub fn overlaps(&self, other: &Matrix) -> bool {
        let end = |matrix: &Matrix| matrix.address + matrix.span() * matrix.dtype.bytes();
        self.span() > 0 && other.span() > 0 && self.address < end(other) && other.address < end(self)
    }

    /// Checks that the elements are of a type that logits have.
    pub fn check_float(&self) -> PyResult<()> {
        match self.dtype {
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 => Ok(()),
            other => {
                let text =
                    format!("logits is of {}, but must be of float32, bfloat16 or float16", other.name());
                Err(PyTypeError::new_err(text))
            }
        }
    }

    /// Checks that the elements are words of bitmasks.
    pub fn check_words(&self) -> PyResult<()> {
        match self.dtype {
            Dtype::I32 | Dtype::U32 => Ok(()),
            other => {
                let text = format!("masks is of {}, but must be of int32 or uint32 words", other.name());
                Err(PyTypeError::new_err(text))
            }
        }
    }

    /// Returns the rows as logits of the host.
    ///
    /// # Panics
    /// If the type was not checked.
    ///
    /// # Safety
    /// They lie in the host's memory, which nobody frees or writes for `'a`.
    pub unsafe fn logits<'a>(&self, lines: &'a [u32]) -> Result<Logits<'a>> {
        let row = match self.dtype {
            // SAFETY: the caller vouches for the memory, the type is as was just seen.
            Dtype::F32 => Row::F32(unsafe { self.elements::<f32>() }),
            // SAFETY: the same.
            Dtype::Bf16 => Row::Bf16(unsafe { self.elements::<bf16>() }),
            // SAFETY: the same.
            Dtype::F16 => Row::F16(unsafe { self.elements::<f16>() }),
            other => panic!("{other:?} was not refused"),
        };
        let logits = Logits::strided(row, self.rows, self.width, self.stride)?;
        if lines.is_empty() { Ok(logits) } else { logits.select(lines) }
    }

    /// Returns the only row as logits of the host.
    ///
    /// # Panics
    /// If the type was not checked.
    ///
    /// # Safety
    /// As for [`Matrix::logits`].
    pub unsafe fn row<'a>(&self) -> Result<Row<'a>> {
        if self.rows != 1 {
            return Err(Error::length("logits", self.rows, "1 row; a batch is for a Pool"));
        }
        // SAFETY: as the caller vouches.
        let logits = unsafe { self.logits(&[]) }?;
        Ok(logits.row(0))
    }

    /// Returns the rows as logits of a device.
    ///
    /// # Panics
    /// If the type was not checked.
    ///
    /// # Safety
    /// They lie in the device's memory, which nobody frees or writes for `'b` while a step on them runs.
    pub unsafe fn device_logits<'b>(&self) -> Result<Rows<'b>> {
        let dtype = match self.dtype {
            Dtype::F32 => DeviceDtype::F32,
            Dtype::Bf16 => DeviceDtype::Bf16,
            Dtype::F16 => DeviceDtype::F16,
            other => panic!("{other:?} was not refused"),
        };
        // SAFETY: as the caller vouches.
        unsafe { Rows::new(self.address as u64, dtype, self.rows, self.width, self.stride) }
    }

    /// Returns the rows as bitmasks of the host; the type was checked.
    ///
    /// # Safety
    /// As for [`Matrix::logits`].
    pub unsafe fn masks<'a>(&self, present: &'a [bool]) -> Result<Masks<'a>> {
        // SAFETY: the caller vouches for the memory; signed and unsigned words have the same bits.
        let words = unsafe { self.elements::<u32>() };
        let masks = Masks::new(words, self.rows, self.width, self.stride)?;
        if present.is_empty() { Ok(masks) } else { masks.with_present(present) }
    }

    /// Returns the words of all rows, one after the other.
    ///
    /// # Safety
    /// As for [`Matrix::logits`]; the elements are words.
    pub unsafe fn rows_of_words(&self) -> impl Iterator<Item = u32> {
        // SAFETY: the caller vouches for the memory; signed and unsigned words have the same bits.
        let words = unsafe { self.elements::<u32>() };
        let (stride, width) = (self.stride, self.width);
        (0..self.rows).flat_map(move |row| words[row * stride..][..width].iter().copied())
    }

    /// Returns the rows as bitmasks of a device; the type was checked.
    ///
    /// # Safety
    /// As for [`Matrix::device_logits`].
    pub unsafe fn device_masks<'b>(&self) -> Result<MaskRows<'b>> {
        // SAFETY: as the caller vouches.
        unsafe { MaskRows::new(self.address as u64, self.rows, self.width, self.stride) }
    }
}

impl Vector {
    /// Returns how many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the elements, whatever their type: an error for what is no integer, or beyond an i64.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PyResult<i64>> + 'a {
        (0..self.len as isize).map(|place| self.value(name, place))
    }

    /// Returns the elements as numbers in float32: an error for what is none.
    pub fn numbers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PyResult<f32>> + 'a {
        (0..self.len as isize).map(|place| self.number(name, place))
    }

    fn number(&self, name: &str, place: isize) -> PyResult<f32> {
        let address = self.place(place);
        Ok(match self.dtype {
            // SAFETY: as in `value`.
            Dtype::F32 => unsafe { *(address as *const f32) },
            // SAFETY: the same.
            Dtype::F64 => unsafe { *(address as *const f64) as f32 },
            // SAFETY: the same.
            Dtype::F16 => unsafe { *(address as *const f16) }.to_f32(),
            // SAFETY: the same.
            Dtype::Bf16 => unsafe { *(address as *const bf16) }.to_f32(),
            Dtype::Other => {
                let text = format!("{name} is of {}, but must be of numbers", self.dtype.name());
                return Err(PyTypeError::new_err(text));
            }
            _ => self.value(name, place)? as f32,
        })
    }

    fn place(&self, place: isize) -> usize {
        let bytes = self.dtype.bytes() as isize;
        self.address.wrapping_add_signed(place.wrapping_mul(self.stride).wrapping_mul(bytes))
    }

    fn value(&self, name: &str, place: isize) -> PyResult<i64> {
        let address = self.place(place);
        Ok(match self.dtype {
            // SAFETY: the array's owner says that the element lies there and has this type; it is aligned, as `Array::vector`
            // saw, and the object is held by the call that reads it here.
            Dtype::I32 => i64::from(unsafe { *(address as *const i32) }),
            // SAFETY: the same.
            Dtype::U32 => i64::from(unsafe { *(address as *const u32) }),
            // SAFETY: the same.
            Dtype::I64 => unsafe { *(address as *const i64) },
            // SAFETY: the same.
            Dtype::U64 => i64::try_from(unsafe { *(address as *const u64) })
                .map_err(|_| out_of_range(name, "beyond 2^63", "less"))?,
            // SAFETY: the same; a truth value is a byte.
            Dtype::Bool => i64::from(unsafe { *(address as *const u8) } != 0),
            other => {
                let text = format!("{name} is of {}, but must be of integers", other.name());
                return Err(PyTypeError::new_err(text));
            }
        })
    }
}
