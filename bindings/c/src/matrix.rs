//! Rows that operators write: in memory of their own, or where they are read.

use std::ffi::c_void;
use std::mem::offset_of;
use std::slice;

use gumball_engine::cuda::Dtype as Type;
use gumball_engine::{Logits as Rows, LogitsMut, RowMut};

use crate::border::check_array;
use crate::error::{Failure, Result};
use crate::logits::{Logits, described, dtype, extent, kind};
use crate::sized::{Grows, read};

/// Rows to be written, in host memory. Nobody else uses what lies between the first and the last element during the call;
/// elements between rows stay as they are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowsOut {
    /// sizeof(gumball_rows_out).
    pub struct_size: usize,
    /// The first element of the first row.
    pub data: *mut c_void,
    /// The number of rows.
    pub rows: usize,
    /// The number of elements in a row.
    pub vocab: usize,
    /// How many elements after a row the next one begins; 0: vocab.
    pub stride: usize,
    /// GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16. Each number is rounded to it once.
    pub dtype: i32,
}

// SAFETY: it is repr(C), begins with its size, and holds numbers and a raw pointer.
unsafe impl Grows for RowsOut {
    const NAME: &'static str = "gumball_rows_out";
    const LEAST: usize = offset_of!(Self, dtype) + size_of::<i32>();
}

/// Rows to be read, and where what they come to goes.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    /// Elsewhere.
    Apart(Rows<'a>, LogitsMut<'a>),
    /// To the same place.
    Same(LogitsMut<'a>),
}

impl Place<'_> {
    /// Returns how many rows are read.
    pub fn rows(&self) -> usize {
        match self {
            Place::Apart(rows, _) => rows.rows(),
            Place::Same(rows) => rows.rows(),
        }
    }
}

/// Looks at rows to be read and rows to be written. They may be the same, but not overlap in any other way.
///
/// # Safety
/// Each is NULL or points to a struct, whose elements are there, and nobody else's for `'a` where they are written.
pub(crate) unsafe fn read_place<'a>(rows: *const Logits, out: *const RowsOut) -> Result<Place<'a>> {
    // SAFETY: the caller vouches for the struct.
    let from = unsafe { read("logits", rows) }?;
    // SAFETY: the caller vouches for the struct.
    let to = unsafe { read("out", out) }?;
    let same = is_same(&from, &to)?;
    let (to_stride, to_len) = extent(to.rows, to.vocab, to.stride)?;
    let to_type = dtype(to.dtype)?;
    // SAFETY: the caller vouches for the elements, and the two have none in common or are not both made.
    let written = || unsafe { written(to.data, to_type, to_len) };
    if same {
        let kind = kind(from.kind)?;
        return Ok(Place::Same(
            LogitsMut::strided(written()?, to.rows, to.vocab, to_stride)?.with_kind(kind),
        ));
    }
    // SAFETY: the caller vouches for the rows, which nobody writes.
    let rows = unsafe { described(&from) }?;
    Ok(Place::Apart(rows, LogitsMut::strided(written()?, to.rows, to.vocab, to_stride)?))
}

/// Returns whether rows to be written are those that are read; refuses those that overlap in any other way.
pub(crate) fn is_same(from: &Logits, to: &RowsOut) -> Result<bool> {
    let (from_stride, from_len) = extent(from.rows, from.vocab, from.stride)?;
    let (to_stride, to_len) = extent(to.rows, to.vocab, to.stride)?;
    let (from_type, to_type) = (dtype(from.dtype)?, dtype(to.dtype)?);
    let same = from.data.addr() == to.data.addr()
        && (from.rows, from.vocab, from_stride, from_type) == (to.rows, to.vocab, to_stride, to_type);
    let (start, end) = span(from.data, from_len, from_type);
    let (out_start, out_end) = span(to.data, to_len, to_type);
    if !same && start < out_end && out_start < end {
        let allowed = "the very rows that are read, or memory that has nothing in common with theirs";
        return Err(Failure::out_of_range("out", format!("{:p}", to.data), allowed));
    }
    Ok(same)
}

/// Returns where elements begin and end.
fn span(first: *const c_void, len: usize, dtype: Type) -> (usize, usize) {
    let bytes = if dtype == Type::F32 { 4 } else { 2 };
    (first.addr(), first.addr().saturating_add(len.saturating_mul(bytes)))
}

/// Returns elements of a type that are written.
///
/// # Safety
/// `data` is NULL or points to that many elements, which are nobody else's for `'a`.
unsafe fn written<'a>(data: *mut c_void, dtype: Type, len: usize) -> Result<RowMut<'a>> {
    Ok(match dtype {
        // SAFETY: the caller vouches for the elements.
        Type::F32 => RowMut::F32(unsafe { elements(data.cast(), len) }?),
        // SAFETY: the caller vouches for the elements, and bf16 is a u16.
        Type::Bf16 => RowMut::Bf16(unsafe { elements(data.cast(), len) }?),
        // SAFETY: the caller vouches for the elements, and f16 is a u16.
        Type::F16 => RowMut::F16(unsafe { elements(data.cast(), len) }?),
    })
}

/// Returns numbers that are written.
///
/// # Safety
/// `first` is NULL or points to `len` numbers, of which any bits are a value, and which are nobody else's for `'a`.
unsafe fn elements<'a, T>(first: *mut T, len: usize) -> Result<&'a mut [T]> {
    check_array("out", first, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller vouches for the numbers; that the pointer is aligned and the size no more than there can be was
    // just seen.
    Ok(unsafe { slice::from_raw_parts_mut(first, len) })
}
