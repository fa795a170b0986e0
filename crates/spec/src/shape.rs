//! Checks of shapes that callers name: the size of a vocabulary, and how far apart rows lie.

use crate::error::{Error, Result};
use crate::row::MAX_VOCAB;

/// Checks the number of ids in a vocabulary.
///
/// # Errors
/// - [`Error::OutOfRange`] if it is outside 1..=2^20.
pub fn check_vocab(vocab: usize) -> Result<()> {
    if (1..=MAX_VOCAB).contains(&vocab) {
        return Ok(());
    }
    Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"))
}

/// Checks that `rows` rows of `width` elements, which begin `stride` elements apart, do not overlap.
///
/// # Errors
/// - [`Error::OutOfRange`] of `parameter` if there are several rows and `stride` is less than `width`.
pub fn check_stride(parameter: &'static str, rows: usize, width: usize, stride: usize) -> Result<()> {
    if rows <= 1 || stride >= width {
        return Ok(());
    }
    Err(Error::out_of_range(parameter, stride, format!("at least the width of a row, {width}")))
}
