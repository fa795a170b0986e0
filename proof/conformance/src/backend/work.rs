//! Work for a pool, whose rows lie on the host.

use gumball_engine::{Batch, Drafts, HostMatrix, Kind, Matrix, Row, Rows};
use gumball_spec::{Error, Result};

use crate::case::Dtype;

/// A step, or with drafts a verification.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Their type.
    pub dtype: Dtype,
    /// Whose they are, and their masks and forced tokens; hooks are not for work in order.
    pub batch: Batch<'a>,
    /// The drafts of a verification.
    pub drafts: Option<Drafts<'a>>,
}

impl<'a> Work<'a> {
    /// Returns all its rows, also the ones that the batch does not read.
    pub(super) fn all_rows(&self) -> HostMatrix<'a> {
        let Matrix::Host(matrix) = self.rows.matrix() else { unreachable!("cases lie on the host") };
        matrix
    }

    /// Returns what the numbers of its rows are.
    pub(super) fn kind(&self) -> Kind {
        if matches!(self.rows, Rows::Probabilities(_)) { Kind::Probabilities } else { Kind::Logits }
    }

    /// Returns the rows that the batch reads, in its order.
    pub(super) fn read(&self) -> Result<Vec<Row<'a>>> {
        let all = self.all_rows();
        let row = |row: u32| match row as usize {
            row if row < all.rows() => Ok(all.row(row)),
            _ => Err(Error::out_of_range("row_indices", row, "a row of the matrix")),
        };
        match self.batch.row_indices {
            [] => (0..all.rows() as u32).map(row).collect(),
            indices => indices.iter().copied().map(row).collect(),
        }
    }

    /// Returns how many rows each request has.
    pub(super) fn counts(&self) -> Vec<usize> {
        match self.drafts {
            None => vec![1; self.batch.slots.len()],
            Some(_) => self.batch.counts.iter().map(|count| *count as usize + 1).collect(),
        }
    }

    /// Returns it as the engine takes it, for an assignment of its batch.
    pub(super) fn of_engine(&self) -> gumball_engine::Work<'a> {
        match self.drafts {
            None => gumball_engine::Work::step(self.rows),
            Some(drafts) => gumball_engine::Work::verify(self.rows, drafts),
        }
    }
}
