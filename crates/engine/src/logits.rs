//! Rows of the host as they are read: logits or probabilities, each the row of a matrix that a batch names
//! for it.

use gumball_spec::{Error, HostMatrix, Kind, Result, Row};

/// Rows of logits or probabilities. Row i is row i of a matrix, or after [`Logits::select`] the one that a
/// list names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logits<'a> {
    matrix: HostMatrix<'a>,
    kind: Kind,
    select: Option<&'a [u32]>,
}

impl<'a> Logits<'a> {
    pub fn of(matrix: HostMatrix<'a>, kind: Kind) -> Self {
        Self { matrix, kind, select: None }
    }

    /// Returns what the numbers of the rows are.
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

    /// Returns all numbers, of which rows are a part.
    pub fn data(&self) -> Row<'a> {
        self.matrix.data().0
    }

    /// Returns the number of rows of the matrix.
    pub fn lines(&self) -> usize {
        self.matrix.rows()
    }

    /// Returns the row of the matrix that an output row reads.
    pub fn line(&self, row: usize) -> usize {
        self.select.map_or(row, |select| select[row] as usize)
    }

    /// Returns the number of output rows.
    pub fn rows(&self) -> usize {
        self.select.map_or(self.matrix.rows(), <[u32]>::len)
    }

    /// Returns the number of ids in a row.
    pub fn vocab(&self) -> usize {
        self.matrix.width()
    }

    /// Returns the numbers of an output row.
    ///
    /// # Panics
    /// If `row` is not below [`Logits::rows`].
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
    #[test]
    fn output_rows_read_the_lines_that_were_named() {
        let data: Vec<f32> = (0..6).map(|z| z as f32).collect();
        let all = Logits::of(HostMatrix::new(&data, 3, 2).unwrap(), Kind::Logits);
        let logits = all.select(&[2, 0, 2, 2]).unwrap();
        assert_eq!(logits.rows(), 4);
        assert_eq!(logits.row(3).logits(), [4.0, 5.0]);
        let error = all.select(&[3]).unwrap_err();
        assert_eq!(error.to_string(), "row_indices is 3, but must be a row in 0..3");
    }
}
