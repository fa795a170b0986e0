//! Logits in host memory: one row, or a strided batch of them.

use std::ffi::c_void;
use std::mem::offset_of;

use gumball_engine::cuda::Dtype as Type;
use gumball_engine::{MAX_VOCAB, Row};

use crate::border::slice;
use crate::error::{Failure, Result};
use crate::sized::{Grows, read};

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

/// Returns the type that a number of C stands for.
pub(crate) fn dtype(given: i32) -> Result<Type> {
    match given {
        0 => Ok(Type::F32),
        1 => Ok(Type::Bf16),
        2 => Ok(Type::F16),
        other => Err(Failure::out_of_range("dtype", other, "GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16")),
    }
}

/// A batch of rows of logits in host memory.
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
}

// SAFETY: it is repr(C), begins with its size, and holds numbers and a raw pointer.
unsafe impl Grows for Logits {
    const NAME: &'static str = "gumball_logits";
    const LEAST: usize = offset_of!(Self, dtype) + size_of::<i32>();
}

/// Returns elements of a type.
///
/// # Safety
/// `data` is NULL or points to that many elements, which nobody writes for `'a`.
pub(crate) unsafe fn read_row<'a>(data: *const c_void, given: i32, len: usize) -> Result<Row<'a>> {
    Ok(match dtype(given)? {
        // SAFETY: the caller vouches for the elements.
        Type::F32 => Row::F32(unsafe { slice("logits", data.cast(), len) }?),
        // SAFETY: the caller vouches for the elements, and bf16 is a u16.
        Type::Bf16 => Row::Bf16(unsafe { slice("logits", data.cast(), len) }?),
        // SAFETY: the caller vouches for the elements, and f16 is a u16.
        Type::F16 => Row::F16(unsafe { slice("logits", data.cast(), len) }?),
    })
}

/// Returns a batch as the engine takes it.
///
/// # Safety
/// `given` is NULL or points to a struct whose rows nobody writes for `'a`.
pub(crate) unsafe fn read_logits<'a>(given: *const Logits) -> Result<gumball_engine::Logits<'a>> {
    // SAFETY: the caller vouches for the struct.
    let given = unsafe { read("logits", given) }?;
    let (rows, vocab) = (given.rows, given.vocab);
    if !(1..=MAX_VOCAB).contains(&vocab) {
        return Err(Failure::out_of_range("vocab", vocab, "in 1..=2^20"));
    }
    let stride = stride(given.stride, vocab);
    let end = rows.saturating_sub(1).checked_mul(stride).and_then(|start| start.checked_add(vocab));
    let Some(end) = end.filter(|_| rows <= 1 || stride >= vocab) else {
        return Err(Failure::out_of_range("stride", stride, &format!("at least {vocab}, inside memory")));
    };
    // SAFETY: the caller vouches for the rows, which end there.
    let data = unsafe { read_row(given.data, given.dtype, if rows == 0 { 0 } else { end }) }?;
    Ok(gumball_engine::Logits::strided(data, rows, vocab, stride)?)
}

/// Returns a stride, which is the width where none is given.
pub(crate) fn stride(given: usize, width: usize) -> usize {
    if given == 0 { width } else { given }
}
