//! Logits: a batch of rows in one buffer, strided, in the type the model left them in; or of probabilities.

use gumball_spec::{Error, Kind, Result, Row};

use crate::matrix::HostMatrix;

/// Rows that operators read: logits, or, made by [`Logits::probabilities`], probabilities.
///
/// Output row i reads row i of a matrix, or, after [`Logits::select`], the row that a list names. For pools see [`Rows`](crate::Rows).
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    matrix: HostMatrix<'a>,
    kind: Kind,
    select: Option<&'a [u32]>,
}

impl<'a> Logits<'a> {
    /// Takes `rows` rows of `vocab` logits that follow each other: a slice of f32, bf16 or f16.
    ///
    /// # Errors
    /// Those of [`Logits::strided`].
    pub fn new(data: impl Into<Row<'a>>, rows: usize, vocab: usize) -> Result<Self> {
        Self::strided(data, rows, vocab, vocab)
    }

    /// Takes `rows` rows of `vocab` logits, the next one `stride` elements on; what lies between is not read.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20, or `stride` less than it with several rows.
    /// - [`Error::Length`] if the data end before the last row does.
    pub fn strided(data: impl Into<Row<'a>>, rows: usize, vocab: usize, stride: usize) -> Result<Self> {
        Ok(Self::of(HostMatrix::of_vocab(data, rows, vocab, stride)?, Kind::Logits))
    }

    /// Takes `rows` rows of `vocab` probabilities that follow each other, as of [`Rows::Probabilities`](crate::Rows::Probabilities).
    ///
    /// # Errors
    /// Those of [`Logits::strided`].
    pub fn probabilities(data: impl Into<Row<'a>>, rows: usize, vocab: usize) -> Result<Self> {
        Ok(Self::new(data, rows, vocab)?.with_kind(Kind::Probabilities))
    }

    /// Takes the rows of a matrix.
    #[must_use]
    pub fn of(matrix: HostMatrix<'a>, kind: Kind) -> Self {
        Self { matrix, kind, select: None }
    }

    /// Says what the numbers of the rows are; [`Kind::Logits`] if not said.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Returns what the numbers of the rows are.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Names the row of the matrix that each output row reads; one may be named any number of times.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such row.
    pub fn select(self, lines: &'a [u32]) -> Result<Self> {
        check_indices(lines, self.matrix.rows())?;
        Ok(Self { select: Some(lines), ..self })
    }

    /// Returns the matrix that the rows are in.
    #[must_use]
    pub fn matrix(&self) -> HostMatrix<'a> {
        self.matrix
    }

    /// Returns whether [`Logits::select`] chose the rows.
    pub(crate) fn is_selection(&self) -> bool {
        self.select.is_some()
    }

    /// Returns all numbers, of which rows are a part.
    pub(crate) fn data(&self) -> Row<'a> {
        self.matrix.data()
    }

    /// Returns the number of rows of the matrix.
    pub(crate) fn lines(&self) -> usize {
        self.matrix.rows()
    }

    /// Returns the row of the matrix that an output row reads.
    pub(crate) fn line(&self, row: usize) -> usize {
        self.select.map_or(row, |select| select[row] as usize)
    }

    /// Returns the number of output rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.select.map_or(self.matrix.rows(), <[u32]>::len)
    }

    /// Returns the number of ids in a row.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.matrix.width()
    }

    /// Returns the numbers of an output row.
    ///
    /// # Panics
    /// If `row` is not below [`Logits::rows`].
    #[must_use]
    pub fn row(&self, row: usize) -> Row<'a> {
        assert!(row < self.rows(), "row {row} of {}", self.rows());
        self.matrix.row(self.line(row))
    }
}

/// Checks that a matrix has the rows that a list names.
pub(crate) fn check_indices(lines: &[u32], rows: usize) -> Result<()> {
    match lines.iter().find(|line| **line as usize >= rows) {
        Some(line) => Err(Error::out_of_range("row_indices", line, format!("a row in 0..{rows}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn the_last_row_needs_no_padding_after_it() {
        let data = vec![f16::ONE; 2 * 10 + 4];
        let logits = Logits::strided(&data, 3, 4, 10).unwrap();
        assert_eq!((logits.rows(), logits.row(2).vocab()), (3, 4));
        let error = Logits::strided(&data[1..], 3, 4, 10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "logits has length 23, but must have at least 3 rows of 4 elements, 10 apart"
        );
    }

    #[test]
    fn a_product_beyond_the_address_space_is_refused() {
        assert!(Logits::strided(&[0.0f32; 8], usize::MAX, 4, usize::MAX / 2).is_err());
    }

    #[test]
    fn output_rows_read_the_lines_that_were_named() {
        let data: Vec<f32> = (0..6).map(|z| z as f32).collect();
        let logits = Logits::new(&data, 3, 2).unwrap().select(&[2, 0, 2, 2]).unwrap();
        assert_eq!(logits.rows(), 4);
        assert_eq!(logits.row(3).logits(), [4.0, 5.0]);
        let error = Logits::new(&data, 3, 2).unwrap().select(&[3]).unwrap_err();
        assert_eq!(error.to_string(), "row_indices is 3, but must be a row in 0..3");
    }
}
