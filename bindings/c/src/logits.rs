//! Logits, or probabilities, in host memory: one row, or a strided batch of them.

use std::ffi::c_void;
use std::mem::offset_of;

use gumball_engine::{Dtype as Type, Kind as Holds, MAX_VOCAB, Row};

use crate::error::{Failure, Result};
use crate::ffi::slice;
use crate::versioned::{VersionedStruct, read};

/// The type of a row's elements.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "constants of C")]
pub enum Dtype {
    /// Single precision.
    GUMBALL_F32 = 0,
    /// Truncated single precision.
    GUMBALL_BF16 = 1,
    /// Half precision.
    GUMBALL_F16 = 2,
}

/// Returns the element type that C's number stands for.
pub(crate) fn dtype(given: i32) -> Result<Type> {
    match given {
        0 => Ok(Type::F32),
        1 => Ok(Type::Bf16),
        2 => Ok(Type::F16),
        other => Err(Failure::out_of_range("dtype", other, "GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16")),
    }
}

/// What the numbers of a row are.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "constants of C")]
pub enum Kind {
    /// Logits.
    GUMBALL_LOGITS = 0,
    /// Probabilities, which need not sum to 1. What is not above 0 is never drawn; NaN and negative numbers count as 0 and set
    /// GUMBALL_STATUS_NAN. Parameters that speak of logits must be off.
    GUMBALL_PROBABILITIES = 1,
}

/// Returns the kind that C's number stands for.
pub(crate) fn kind(given: i64) -> Result<Holds> {
    match given {
        0 => Ok(Holds::Logits),
        1 => Ok(Holds::Probabilities),
        other => Err(Failure::out_of_range("kind", other, "GUMBALL_LOGITS or GUMBALL_PROBABILITIES")),
    }
}

/// A batch of rows of logits, or of probabilities, in host memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Logits {
    /// sizeof(gumball_logits).
    pub struct_size: usize,
    /// The first logit of the first row.
    pub data: *const c_void,
    /// The number of rows.
    pub rows: usize,
    /// The number of logits in a row.
    pub vocab: usize,
    /// How many elements after a row the next one begins; 0: vocab.
    pub stride: usize,
    /// GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16.
    pub dtype: i32,
    /// GUMBALL_LOGITS or GUMBALL_PROBABILITIES. So wide that no padding of the struct as it was becomes it.
    pub kind: i64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and a raw pointer, valid for all
// bytes.
unsafe impl VersionedStruct for Logits {
    const NAME: &'static str = "gumball_logits";
    const LEAST: usize = offset_of!(Self, dtype) + size_of::<i32>();
}

/// Returns `len` elements of the type that `given` stands for.
///
/// # Safety
/// `data` is NULL or points to `len` elements of that type, which nobody writes for `'a`.
pub(crate) unsafe fn read_row<'a>(
    parameter: &'static str,
    data: *const c_void,
    given: i32,
    len: usize,
) -> Result<Row<'a>> {
    Ok(match dtype(given)? {
        // SAFETY: the caller ensures that `data` is NULL or has `len` f32, which nobody writes for `'a`.
        Type::F32 => Row::F32(unsafe { slice(parameter, data.cast(), len) }?),
        // SAFETY: the caller ensures that `data` is NULL or has `len` bf16, which nobody writes for `'a`; any
        // u16 is a bf16.
        Type::Bf16 => Row::Bf16(unsafe { slice(parameter, data.cast(), len) }?),
        // SAFETY: the caller ensures that `data` is NULL or has `len` f16, which nobody writes for `'a`; any
        // u16 is an f16.
        Type::F16 => Row::F16(unsafe { slice(parameter, data.cast(), len) }?),
    })
}

/// Returns a batch as the engine takes it.
///
/// # Safety
/// `given` is NULL or a struct with the size it states, whose rows nobody writes for `'a`.
pub(crate) unsafe fn read_logits<'a>(given: *const Logits) -> Result<gumball_engine::Logits<'a>> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read("logits", given) }?;
    // SAFETY: the caller ensures that the struct's rows are there and that nobody writes them for `'a`.
    unsafe { described(&given) }
}

/// Returns the batch that a struct describes.
///
/// # Safety
/// `given.data` is NULL or points to the rows that the struct describes, which nobody writes for `'a`.
pub(crate) unsafe fn described<'a>(given: &Logits) -> Result<gumball_engine::Logits<'a>> {
    let (rows, vocab, kind) = (given.rows, given.vocab, kind(given.kind)?);
    let (stride, len) = extent(rows, vocab, given.stride)?;
    // SAFETY: the caller ensures that `data` has the rows that the struct describes, which end after `len`
    // elements.
    let data = unsafe { read_row("logits", given.data, given.dtype, len) }?;
    Ok(gumball_engine::Logits::strided(data, rows, vocab, stride)?.with_kind(kind))
}

/// Returns the stride of a matrix in elements, and the number of elements to the end of its last row.
pub(crate) fn extent(rows: usize, vocab: usize, given: usize) -> Result<(usize, usize)> {
    if !(1..=MAX_VOCAB).contains(&vocab) {
        return Err(Failure::out_of_range("vocab", vocab, "in 1..=2^20"));
    }
    let stride = stride(given, vocab);
    let end = rows.saturating_sub(1).checked_mul(stride).and_then(|start| start.checked_add(vocab));
    let Some(end) = end.filter(|_| rows <= 1 || stride >= vocab) else {
        return Err(Failure::out_of_range("stride", stride, &format!("at least {vocab}, inside memory")));
    };
    Ok((stride, if rows == 0 { 0 } else { end }))
}

/// Returns a stride in elements: `width` if `given` is 0.
pub(crate) fn stride(given: usize, width: usize) -> usize {
    if given == 0 { width } else { given }
}
