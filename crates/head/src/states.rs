//! Hidden states as f32, padded for the lanes.

use gumball_cpu::{padded_width, widen};
use gumball_spec::head::MAX_HIDDEN;
use gumball_spec::{Error, HostMatrix, Result};

/// Checks the width of hidden states.
pub(crate) fn check_width(width: usize) -> Result<()> {
    if (1..=MAX_HIDDEN).contains(&width) {
        return Ok(());
    }
    Err(Error::out_of_range("hidden.width", width, "in 1..=2^16"))
}

/// Hidden states as f32, in a buffer that is kept from batch to batch.
#[derive(Clone, Debug, Default)]
pub struct Widened {
    values: Vec<f32>,
    rows: usize,
    width: usize,
}

impl Widened {
    /// Makes a buffer that holds a batch.
    #[must_use]
    pub fn of(states: HostMatrix<'_>) -> Self {
        let mut widened = Self::default();
        widened.fill(states);
        widened
    }

    /// Takes in a batch in place of the last one. Allocates only where it is larger than any before.
    pub fn fill(&mut self, states: HostMatrix<'_>) {
        self.fill_rows(states, 0..states.rows());
    }

    /// Takes in some hidden states of a batch.
    ///
    /// # Panics
    /// If there is no such hidden state.
    pub fn fill_rows(&mut self, states: HostMatrix<'_>, rows: impl Iterator<Item = usize>) {
        self.values.clear();
        (self.rows, self.width) = (0, states.width());
        for row in rows {
            widen(states.row(row), &mut self.values);
            self.rows += 1;
        }
    }

    /// Returns how many hidden states there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the elements of one.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns neighbouring hidden states, padded.
    pub(crate) fn padded(&self, rows: std::ops::Range<usize>) -> &[f32] {
        let padded = padded_width(self.width.max(1));
        &self.values[rows.start * padded..rows.end * padded]
    }
}
