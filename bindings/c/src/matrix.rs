//! Rows that operators read and write: into separate memory, or in place; on the host or on a device.

use std::ffi::c_void;
use std::mem::offset_of;
use std::slice;

use gumball_engine::Dtype as Type;
use gumball_engine::{DeviceMatrix, DeviceRows, LogitsMut, RowMut, RowsIn, RowsInOut};

use crate::columns::{Memory, device_address};
use crate::error::{Failure, Result};
use crate::ffi::check_array;
use crate::logits::{Logits, described, dtype, extent, kind};
use crate::versioned::{VersionedStruct, read};

/// Rows to be written, in the memory of the operators. Nobody else uses what lies between the first and the last element during the call;
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

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and a raw pointer, valid for all
// bytes.
unsafe impl VersionedStruct for RowsOut {
    const NAME: &'static str = "gumball_rows_out";
    const LEAST: usize = offset_of!(Self, dtype) + size_of::<i32>();
}

/// Returns rows to be read as the engine takes them, and their number.
///
/// # Safety
/// `given` is NULL or a struct with the size it states, whose rows are there, in that memory. Nobody writes
/// them for `'a`; on a device, until the enqueued work is done.
pub(crate) unsafe fn read_rows<'a>(memory: Memory, given: *const Logits) -> Result<(RowsIn<'a>, usize)> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read("logits", given) }?;
    let rows = match memory {
        // SAFETY: the caller ensures that the rows are there and that nobody writes them for `'a`.
        Memory::Host => unsafe { described(&given) }?.into(),
        // SAFETY: the caller ensures that the rows lie on the device until the work is done.
        Memory::Device => unsafe { device_rows(&given) }?.into(),
    };
    Ok((rows, given.rows))
}

/// Returns rows to be read and rows to be written as the engine takes them, and the number of rows. The rows
/// to be written may be the rows that are read, but must not overlap them otherwise.
///
/// # Safety
/// `rows` and `out` are NULL or structs with the sizes they state, whose rows are there, in that memory. For
/// `'a`, on a device until the enqueued work is done, nobody writes the rows that are read, and nobody else
/// uses the rows of `out`.
pub(crate) unsafe fn read_rows_in_out<'a>(
    memory: Memory,
    rows: *const Logits,
    out: *const RowsOut,
) -> Result<(RowsInOut<'a>, usize)> {
    // SAFETY: the caller ensures that `rows` is NULL or points to the bytes that its `struct_size` names.
    let from = unsafe { read("logits", rows) }?;
    // SAFETY: the caller ensures that `out` is NULL or points to the bytes that its `struct_size` names.
    let to = unsafe { read("out", out) }?;
    let (in_place, kind) = (is_same(&from, &to)?, kind(from.kind)?);
    let (stride, len) = extent(to.rows, to.vocab, to.stride)?;
    let to_type = dtype(to.dtype)?;
    if memory == Memory::Device {
        let address = device_address("out", to.data.cast_const(), len)?;
        // SAFETY: the caller ensures that `out.data` is the device address of this matrix, which only this work
        // uses; `is_same` found it equal to the read rows or apart.
        let to = unsafe { DeviceRows::new(address, to_type, to.rows, to.vocab, stride) }?.with_kind(kind);
        let read = match in_place {
            true => None,
            // SAFETY: the caller ensures that the rows lie on the device until the work is done.
            false => Some(unsafe { device_rows(&from) }?),
        };
        return Ok((RowsInOut::Device { from: read, to }, from.rows));
    }
    let read = match in_place {
        true => None,
        // SAFETY: the caller ensures that the rows are there and that nobody writes them for `'a`; `out` lies
        // apart from them.
        false => Some(unsafe { described(&from) }?),
    };
    // SAFETY: the caller ensures that `out.data` has `len` elements that nobody else uses. If they are the rows
    // that are read, only this slice of them is made; otherwise `is_same` found them apart.
    let written = unsafe { written(to.data, to_type, len) }?;
    let to = LogitsMut::strided(written, to.rows, to.vocab, stride)?.with_kind(kind);
    Ok((RowsInOut::Host { from: read, to }, from.rows))
}

/// Returns rows on a device that are read.
///
/// # Safety
/// `given.data` is NULL or the device address of the matrix that `given` describes. Nobody frees or writes it
/// until the enqueued work is done.
unsafe fn device_rows<'a>(given: &Logits) -> Result<DeviceMatrix<'a>> {
    let (stride, len) = extent(given.rows, given.vocab, given.stride)?;
    let address = device_address("logits", given.data, len)?;
    // SAFETY: the caller ensures that `given.data` is the device address of this matrix, unchanged until the
    // work is done.
    let rows = unsafe { DeviceMatrix::new(address, dtype(given.dtype)?, given.rows, given.vocab, stride) }?;
    Ok(rows.with_kind(kind(given.kind)?))
}

/// Returns whether the rows to be written are the rows that are read; refuses any other overlap.
fn is_same(from: &Logits, to: &RowsOut) -> Result<bool> {
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

/// Returns the addresses of the first byte and of the end of `len` elements.
fn span(first: *const c_void, len: usize, dtype: Type) -> (usize, usize) {
    let bytes = if dtype == Type::F32 { 4 } else { 2 };
    (first.addr(), first.addr().saturating_add(len.saturating_mul(bytes)))
}

/// Returns `len` elements of a type, to be written.
///
/// # Safety
/// `data` is NULL or points to `len` initialised elements of that type, which nobody else uses for `'a`.
unsafe fn written<'a>(data: *mut c_void, dtype: Type, len: usize) -> Result<RowMut<'a>> {
    Ok(match dtype {
        // SAFETY: the caller ensures that `data` is NULL or has `len` f32, which nobody else uses for `'a`.
        Type::F32 => RowMut::F32(unsafe { elements(data.cast(), len) }?),
        // SAFETY: the caller ensures that `data` is NULL or has `len` bf16, which nobody else uses for `'a`;
        // any u16 is a bf16.
        Type::Bf16 => RowMut::Bf16(unsafe { elements(data.cast(), len) }?),
        // SAFETY: the caller ensures that `data` is NULL or has `len` f16, which nobody else uses for `'a`;
        // any u16 is an f16.
        Type::F16 => RowMut::F16(unsafe { elements(data.cast(), len) }?),
    })
}

/// Returns numbers to be written.
///
/// # Safety
/// `first` is NULL or points to `len` numbers of a type for which all bits are valid. Nobody else uses them
/// for `'a`.
unsafe fn elements<'a, T>(first: *mut T, len: usize) -> Result<&'a mut [T]> {
    check_array("out", first, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: `check_array` found `first` aligned, not NULL, and `len` in range. The caller ensures that
    // `len` numbers are there, which nobody else uses for `'a`.
    Ok(unsafe { slice::from_raw_parts_mut(first, len) })
}
