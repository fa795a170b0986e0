//! Hidden states: a batch in the type the model left it in, and the same as f32, padded for the lanes.

use std::ops::Range;

use gumball_cpu::{padded_width, widen};
use gumball_spec::head::MAX_HIDDEN;
use gumball_spec::shape::check_stride;
use gumball_spec::{Error, Result, Row};

/// A batch of hidden states: f32, bf16 or f16, strided.
#[derive(Clone, Copy, Debug)]
pub struct HiddenStates<'a> {
    data: Row<'a>,
    rows: usize,
    width: usize,
    stride: usize,
}

impl<'a> HiddenStates<'a> {
    /// Takes `rows` hidden states of `width` elements that follow each other.
    ///
    /// # Errors
    /// Those of [`HiddenStates::strided`].
    pub fn new(data: impl Into<Row<'a>>, rows: usize, width: usize) -> Result<Self> {
        Self::strided(data, rows, width, width)
    }

    /// Takes `rows` hidden states of `width` elements, the next one `stride` elements on; what lies between is not read.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `width` is outside 1..=2^16, or `stride` less than it with several rows.
    /// - [`Error::Length`] if the data end before the last hidden state does.
    pub fn strided(data: impl Into<Row<'a>>, rows: usize, width: usize, stride: usize) -> Result<Self> {
        let data = data.into();
        check_width(width)?;
        if rows > 0 {
            check_stride("stride", rows, width, stride)?;
            let end = (rows - 1).checked_mul(stride).and_then(|start| start.checked_add(width));
            if end.is_none_or(|end| end > data.vocab()) {
                let allowed = format!("at least {rows} hidden states of {width} elements, {stride} apart");
                return Err(Error::length("hidden", data.vocab(), allowed));
            }
        }
        Ok(Self { data, rows, width, stride })
    }

    /// Returns how many there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the elements of one.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns all of them as they lie in memory, gaps included, and how many elements lie from one to the next.
    #[must_use]
    pub fn matrix(&self) -> (Row<'a>, usize) {
        (self.data, self.stride)
    }

    /// Returns neighbouring hidden states.
    ///
    /// # Panics
    /// If they are not all there.
    #[must_use]
    pub fn part(self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "hidden states {rows:?} of {}", self.rows);
        let length = self.data.vocab();
        let data = self.data.part((rows.start * self.stride).min(length)..length);
        Self { data, rows: rows.len(), ..self }
    }

    /// Returns one hidden state.
    ///
    /// # Panics
    /// If `row` is not below [`HiddenStates::rows`].
    #[must_use]
    pub fn row(&self, row: usize) -> Row<'a> {
        assert!(row < self.rows, "hidden state {row} of {}", self.rows);
        self.data.part(row * self.stride..row * self.stride + self.width)
    }
}

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
    pub fn of(states: HiddenStates<'_>) -> Self {
        let mut widened = Self::default();
        widened.fill(states);
        widened
    }

    /// Takes in a batch in place of the last one. Allocates only where it is larger than any before.
    pub fn fill(&mut self, states: HiddenStates<'_>) {
        self.fill_rows(states, 0..states.rows);
    }

    /// Takes in some hidden states of a batch.
    ///
    /// # Panics
    /// If there is no such hidden state.
    pub fn fill_rows(&mut self, states: HiddenStates<'_>, rows: impl Iterator<Item = usize>) {
        self.values.clear();
        (self.rows, self.width) = (0, states.width);
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
