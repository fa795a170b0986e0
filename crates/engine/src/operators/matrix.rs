//! A batch of rows to be written: strided, in the caller's type.

use gumball_cpu::RowMut;
use gumball_spec::matrix::check_rows;
use gumball_spec::{Kind, Result, memory};

use super::MEMORY;

/// A batch of rows to be written, or to be changed in place.
#[derive(Debug)]
pub struct LogitsMut<'a> {
    data: RowMut<'a>,
    kind: Kind,
    rows: usize,
    vocab: usize,
    stride: usize,
}

impl<'a> LogitsMut<'a> {
    /// Takes `rows` contiguous rows of `vocab` numbers: a slice of f32, bf16 or f16.
    ///
    /// # Errors
    /// The errors of [`LogitsMut::strided`].
    pub fn new(data: impl Into<RowMut<'a>>, rows: usize, vocab: usize) -> Result<Self> {
        Self::strided(data, rows, vocab, vocab)
    }

    /// Takes `rows` rows of `vocab` numbers whose starts are `stride` elements apart; elements between rows
    /// stay untouched.
    ///
    /// # Errors
    /// - [`OutOfRange`](crate::Error::OutOfRange) if `vocab` is outside 1..=2^20, or if several rows have a
    ///   `stride` below `vocab`.
    /// - [`Length`](crate::Error::Length) if the data end before the last row does.
    pub fn strided(data: impl Into<RowMut<'a>>, rows: usize, vocab: usize, stride: usize) -> Result<Self> {
        let data = data.into();
        check_rows("out", data.vocab(), rows, vocab, stride)?;
        Ok(Self { data, kind: Kind::Logits, rows, vocab, stride: stride.max(vocab) })
    }

    /// Sets what the numbers of rows are that an operator changes in place. The default is [`Kind::Logits`].
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Returns whether the rows hold logits or probabilities.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of ids in a row.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Splits the matrix into its rows, each with its index.
    pub(super) fn into_rows(self) -> Result<Vec<(usize, RowMut<'a>)>> {
        let Self { data, rows, vocab, stride, .. } = self;
        macro_rules! rows {
            ($data:expr, $dtype:ident) => {
                memory::collected(
                    MEMORY,
                    $data
                        .chunks_mut(stride)
                        .take(rows)
                        .map(|row| RowMut::$dtype(&mut row[..vocab]))
                        .enumerate(),
                )
            };
        }
        match data {
            RowMut::F32(data) => rows!(data, F32),
            RowMut::Bf16(data) => rows!(data, Bf16),
            RowMut::F16(data) => rows!(data, F16),
        }
    }
}
