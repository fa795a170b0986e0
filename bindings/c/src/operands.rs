//! Rows that operators read and write: into separate memory, or in place; on the host or on a device.

use std::ffi::c_void;
use std::slice;

use gumball_engine::{DeviceRows, Dtype as Type, Kind, Logits, LogitsMut, RowMut, RowsIn, RowsInOut};

use crate::error::{Failure, Result};
use crate::ffi::{check_array, device_address, plain};
use crate::matrix::{Matrix, Memory, dtype, extent, read_row};
use crate::rows::{Rows, What};

/// Why rows must lie in a memory.
pub(crate) const HERE: &str = "the operators work there";

/// Returns what rows are that no head makes.
pub(crate) fn kind(rows: &Rows) -> Result<Kind> {
    rows.refuse_head()?;
    match rows.what()? {
        What::GUMBALL_LOGITS => Ok(Kind::Logits),
        What::GUMBALL_PROBABILITIES => Ok(Kind::Probabilities),
        What::GUMBALL_HIDDEN => {
            Err(Failure::out_of_range("what", "GUMBALL_HIDDEN", "GUMBALL_LOGITS or GUMBALL_PROBABILITIES"))
        }
    }
}

/// Returns rows of the host.
///
/// # Safety
/// `data` is NULL or points to the rows that the matrix describes, which nobody writes for `'a`.
unsafe fn here<'a>(matrix: &Matrix, kind: Kind) -> Result<Logits<'a>> {
    let (stride, len) = extent(matrix.rows, matrix.width, matrix.stride)?;
    // SAFETY: the caller ensures that `data` has the described rows, which end after `len` elements.
    let data = unsafe { read_row("logits", matrix.data, matrix.dtype, len) }?;
    Ok(Logits::strided(data, matrix.rows, matrix.width, stride)?.with_kind(kind))
}

/// Returns rows to be read as the engine takes them, and their number.
///
/// # Safety
/// `given` is NULL or points to rows that are there, in that memory. Nobody writes
/// them for `'a`; on a device, until the enqueued work is done.
pub(crate) unsafe fn read_rows<'a>(memory: Memory, given: *const Rows) -> Result<(RowsIn<'a>, usize)> {
    // SAFETY: the caller ensures that `given` is NULL or points to rows.
    let given = unsafe { plain("logits", given) }?;
    let (kind, matrix) = (kind(&given)?, &given.matrix);
    matrix.check_memory(memory, HERE)?;
    let rows = match memory {
        // SAFETY: the caller ensures that the rows are there and that nobody writes them for `'a`.
        Memory::GUMBALL_HOST => unsafe { here(matrix, kind) }?.into(),
        // SAFETY: the caller ensures that the rows lie on the device until the work is done.
        Memory::GUMBALL_DEVICE => unsafe { matrix.on_device("logits") }?.with_kind(kind).into(),
    };
    Ok((rows, matrix.rows))
}

/// Returns rows to be read and rows to be written as the engine takes them, and the number of rows. The rows
/// to be written may be the rows that are read, but must not overlap them otherwise.
///
/// # Safety
/// `rows` and `out` are NULL or point to values whose rows are there, in that memory. For
/// `'a`, on a device until the enqueued work is done, nobody writes the rows that are read, and nobody else
/// uses the rows of `out`.
pub(crate) unsafe fn read_rows_in_out<'a>(
    memory: Memory,
    rows: *const Rows,
    out: *const Matrix,
) -> Result<(RowsInOut<'a>, usize)> {
    // SAFETY: the caller ensures that `rows` is NULL or points to rows.
    let from = unsafe { plain("logits", rows) }?;
    // SAFETY: the caller ensures that `out` is NULL or points to a matrix.
    let to = unsafe { plain("out", out) }?;
    let (kind, from) = (kind(&from)?, from.matrix);
    from.check_memory(memory, HERE)?;
    to.check_memory(memory, HERE)?;
    let in_place = is_same(&from, &to)?;
    let (stride, len) = extent(to.rows, to.width, to.stride)?;
    let to_type = dtype(to.dtype)?;
    if memory == Memory::GUMBALL_DEVICE {
        let address = device_address("out", to.data, len)?;
        // SAFETY: the caller ensures that `out.data` is the device address of this matrix, which only this work
        // uses; `is_same` found it equal to the read rows or apart.
        let to = unsafe { DeviceRows::new(address, to_type, to.rows, to.width, stride) }?.with_kind(kind);
        let read = match in_place {
            true => None,
            // SAFETY: the caller ensures that the rows lie on the device until the work is done.
            false => Some(unsafe { from.on_device("logits") }?.with_kind(kind)),
        };
        return Ok((RowsInOut::Device { from: read, to }, from.rows));
    }
    let read = match in_place {
        true => None,
        // SAFETY: the caller ensures that the rows are there and that nobody writes them for `'a`; `out` lies
        // apart from them.
        false => Some(unsafe { here(&from, kind) }?),
    };
    // SAFETY: the caller ensures that `out.data` has `len` elements that nobody else uses. If they are the rows
    // that are read, only this slice of them is made; otherwise `is_same` found them apart.
    let written = unsafe { written(to.data.cast_mut(), to_type, len) }?;
    let to = LogitsMut::strided(written, to.rows, to.width, stride)?.with_kind(kind);
    Ok((RowsInOut::Host { from: read, to }, from.rows))
}

/// Returns whether the rows to be written are the rows that are read; refuses any other overlap.
fn is_same(from: &Matrix, to: &Matrix) -> Result<bool> {
    let (from_stride, from_len) = extent(from.rows, from.width, from.stride)?;
    let (to_stride, to_len) = extent(to.rows, to.width, to.stride)?;
    let (from_type, to_type) = (dtype(from.dtype)?, dtype(to.dtype)?);
    let same = from.data.addr() == to.data.addr()
        && (from.rows, from.width, from_stride, from_type) == (to.rows, to.width, to_stride, to_type);
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
