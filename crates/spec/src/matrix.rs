//! Matrices in the memory of the host: rows of logits, of probabilities, or hidden states.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::row::{MAX_VOCAB, Row};
use crate::shape::{check_stride, check_vocab};

/// A matrix of f32, bf16 or f16 numbers in host memory, whose rows may lie apart.
///
/// ```
/// # use gumball_spec::*;
/// let data = [1.0f32, 2.0, -0.0, 3.0, 4.0];
/// let matrix = HostMatrix::strided(&data, 2, 2, 3)?;
/// assert_eq!(matrix.row(1).logits(), [3.0, 4.0]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HostMatrix<'a> {
    data: Row<'a>,
    rows: usize,
    width: usize,
    stride: usize,
}

impl<'a> HostMatrix<'a> {
    /// Takes `rows` rows of `width` numbers that follow each other: a slice of f32, bf16 or f16 of as many
    /// rows or more.
    ///
    /// # Errors
    /// - The errors of [`HostMatrix::strided`].
    /// - [`Error::Length`] if the data are not whole rows: they may then be wider than this says.
    pub fn new(data: impl Into<Row<'a>>, rows: usize, width: usize) -> Result<Self> {
        let data = data.into();
        let matrix = Self::strided(data, rows, width, width)?;
        if rows > 0 && !data.vocab().is_multiple_of(width) {
            let allowed = format!("whole rows of {width} elements; rows that lie apart have a stride");
            return Err(Error::length("matrix", data.vocab(), allowed));
        }
        Ok(matrix)
    }

    /// Takes `rows` rows of `width` numbers, the next one `stride` numbers on; what lies between is not read.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `width` is outside 1..=2^20, or `stride` less than it with several rows.
    /// - [`Error::Length`] if the data end before the last row does.
    pub fn strided(data: impl Into<Row<'a>>, rows: usize, width: usize, stride: usize) -> Result<Self> {
        let data = data.into();
        if !(1..=MAX_VOCAB).contains(&width) {
            return Err(Error::out_of_range("width", width, "in 1..=2^20"));
        }
        check_matrix("matrix", data.vocab(), rows, width, stride)?;
        Ok(Self { data, rows, width, stride })
    }

    /// Takes `rows` rows of a vocabulary, the next one `stride` numbers on.
    ///
    /// # Errors
    /// The errors of [`HostMatrix::strided`], under the names `vocab` and `logits`.
    pub fn of_vocab(data: impl Into<Row<'a>>, rows: usize, vocab: usize, stride: usize) -> Result<Self> {
        Self::strided(data, rows, vocab, stride).map_err(|error| error.with_parameter(Self::of_logits))
    }

    /// Returns the name that a parameter of a matrix of logits has.
    #[must_use]
    pub fn of_logits(name: &'static str) -> &'static str {
        match name {
            "width" => "vocab",
            "matrix" => "logits",
            name => name,
        }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of elements in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the numbers of a row.
    ///
    /// # Panics
    /// If `row` is not below [`HostMatrix::rows`].
    #[must_use]
    pub fn row(&self, row: usize) -> Row<'a> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        self.data.part(row * self.stride..row * self.stride + self.width)
    }

    /// Returns neighbouring rows.
    ///
    /// # Panics
    /// If they are not all there.
    #[must_use]
    pub fn part(self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let length = self.data.vocab();
        let data = self.data.part((rows.start * self.stride).min(length)..length);
        Self { data, rows: rows.len(), ..self }
    }

    /// Returns the numbers as they lie in memory, from the first row to the end of the last, and how many lie
    /// from a row to the next.
    #[must_use]
    pub fn data(self) -> (Row<'a>, usize) {
        let end = if self.rows == 0 { 0 } else { (self.rows - 1) * self.stride + self.width };
        (self.data.part(0..end), self.stride)
    }
}

/// Checks that `rows` rows of a vocabulary, `stride` apart, lie inside `length` elements.
///
/// # Errors
/// The errors of [`check_vocab`] and of [`check_matrix`].
pub fn check_rows(
    parameter: &'static str,
    length: usize,
    rows: usize,
    vocab: usize,
    stride: usize,
) -> Result<()> {
    check_vocab(vocab)?;
    check_matrix(parameter, length, rows, vocab, stride)
}

/// Checks that `rows` rows of `width` elements, `stride` apart, lie inside `length` elements.
///
/// # Errors
/// The errors of [`check_stride`] under the name `stride`, and [`Error::Length`] of `parameter` if the data
/// end before the last row does.
pub fn check_matrix(
    parameter: &'static str,
    length: usize,
    rows: usize,
    width: usize,
    stride: usize,
) -> Result<()> {
    if rows == 0 {
        return Ok(());
    }
    check_stride("stride", rows, width, stride)?;
    let end = (rows - 1).checked_mul(stride).and_then(|start| start.checked_add(width));
    if end.is_none_or(|end| end > length) {
        let allowed = format!("at least {rows} rows of {width} elements, {stride} apart");
        return Err(Error::length(parameter, length, allowed));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn rows_that_lie_apart_need_a_stride() {
        let data = [0.0f32; 32];
        let error = HostMatrix::new(&data, 2, 10).unwrap_err().to_string();
        let whole = "whole rows of 10 elements; rows that lie apart have a stride";
        assert_eq!(error, format!("matrix has length 32, but must have {whole}"));
        assert_eq!(HostMatrix::new(&data, 1, 16).unwrap().row(0).vocab(), 16);
        assert!(HostMatrix::strided(&data, 2, 10, 16).is_ok() && HostMatrix::new(&data, 0, 10).is_ok());
    }

    #[test]
    fn the_last_row_needs_no_padding_after_it() {
        let data = vec![f16::ONE; 2 * 10 + 4];
        let matrix = HostMatrix::strided(&data, 3, 4, 10).unwrap();
        assert_eq!((matrix.rows(), matrix.row(2).vocab(), matrix.data().0.vocab()), (3, 4, 24));
        assert_eq!(matrix.part(1..3).row(1).vocab(), 4);
        let error = HostMatrix::of_vocab(&data[1..], 3, 4, 10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "logits has length 23, but must have at least 3 rows of 4 elements, 10 apart"
        );
    }

    #[test]
    fn a_product_beyond_the_address_space_is_refused() {
        assert!(HostMatrix::strided(&[0.0f32; 8], usize::MAX, 4, usize::MAX / 2).is_err());
    }
}
