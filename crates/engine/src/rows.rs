//! Rows: the numbers that a call of a pool reads, as values that borrow their memory.

use gumball_spec::{Error, HostMatrix, Kind, Result, Row};

use crate::batch::Batch;
use crate::device::DeviceMatrix;
use crate::lm_head::Head;
use crate::logits::{Logits, check_indices};
use crate::matrix::Matrix;

/// The rows that a call reads, and their kind. Several calls may read the same ones.
///
/// ```
/// # use gumball_engine::*;
/// let logits = [0.0f32, 2.0, 1.0];
/// let mut pool = Pool::new(PoolConfig::new(3))?;
/// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[])?;
/// let mut out = Outputs::new();
/// pool.step(Rows::logits(&logits, 1, 3)?, &Batch::of(&[slot]), &mut out)?;
/// assert_eq!(out.tokens(), [1]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Rows<'a> {
    /// Logits, a row of the vocabulary each.
    Logits(Matrix<'a>),
    /// Probabilities. They need not sum to 1. An id whose probability is not above 0 is never drawn; NaN and
    /// negative numbers count as 0 and set [`Status::NAN`](crate::Status::NAN).
    Probabilities(Matrix<'a>),
    /// Hidden states, of which the head computes the logits.
    Hidden(Head<'a>, Matrix<'a>),
}

impl<'a> Rows<'a> {
    /// Takes `rows` rows of `vocab` logits of the host that follow each other: [`Rows::Logits`] of
    /// [`Matrix::new`].
    ///
    /// # Errors
    /// The errors of [`Matrix::new`], under the names `vocab` and `logits`.
    pub fn logits(data: impl Into<Row<'a>>, rows: usize, vocab: usize) -> Result<Self> {
        Self::in_order(data, rows, vocab, Kind::Logits)
    }

    /// Takes `rows` rows of `vocab` probabilities of the host that follow each other: [`Rows::Probabilities`]
    /// of [`Matrix::new`].
    ///
    /// # Errors
    /// The errors of [`Rows::logits`].
    pub fn probabilities(data: impl Into<Row<'a>>, rows: usize, vocab: usize) -> Result<Self> {
        Self::in_order(data, rows, vocab, Kind::Probabilities)
    }

    fn in_order(data: impl Into<Row<'a>>, rows: usize, vocab: usize, kind: Kind) -> Result<Self> {
        let rows = HostMatrix::new(data, rows, vocab);
        Ok(Self::of(rows.map_err(|error| error.with_parameter(HostMatrix::of_logits))?, kind))
    }

    /// Takes hidden states.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// use gumball_engine::head::{Exact, HeadOptions};
    ///
    /// // A row of weights for each id.
    /// let weights = [1.0f32, 0.0, 0.0, 2.0];
    /// let head = Exact::new(&weights[..], 2, 2, HeadOptions::default())?;
    /// let mut pool = Pool::new(PoolConfig::new(2))?;
    /// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[])?;
    /// let mut out = Outputs::new();
    /// let rows = Rows::hidden(&head, Matrix::new(&[0.5f32, 1.0], 1, 2)?);
    /// pool.step(rows, &Batch::of(&[slot]), &mut out)?;
    /// assert_eq!(out.tokens(), [1]);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn hidden(head: impl Into<Head<'a>>, states: impl Into<Matrix<'a>>) -> Self {
        Self::Hidden(head.into(), states.into())
    }

    /// Takes rows of either kind of numbers: logits or probabilities.
    #[must_use]
    pub fn of(matrix: impl Into<Matrix<'a>>, kind: Kind) -> Self {
        match kind {
            Kind::Logits => Self::Logits(matrix.into()),
            Kind::Probabilities => Self::Probabilities(matrix.into()),
        }
    }

    /// Returns the matrix that the rows are in.
    #[must_use]
    pub fn matrix(&self) -> Matrix<'a> {
        match self {
            Self::Logits(matrix) | Self::Probabilities(matrix) | Self::Hidden(_, matrix) => *matrix,
        }
    }

    /// Returns whether they lie in the memory of the host.
    pub(crate) fn are_here(&self) -> bool {
        let (Self::Logits(matrix) | Self::Probabilities(matrix) | Self::Hidden(_, matrix)) = self;
        matches!(matrix, Matrix::Host(_))
    }

    /// Returns the same rows in another place.
    pub(crate) fn with_matrix(self, matrix: Matrix<'a>) -> Self {
        match self {
            Self::Hidden(head, _) => Self::Hidden(head, matrix),
            _ => Self::of(matrix, self.kind()),
        }
    }

    /// Returns what the numbers of rows are that come out of the head, if there is one.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Logits(_) | Self::Hidden(..) => Kind::Logits,
            Self::Probabilities(_) => Kind::Probabilities,
        }
    }

    /// Returns how many rows a batch reads.
    pub(crate) fn count(&self, batch: &Batch<'_>) -> usize {
        if batch.row_indices.is_empty() { self.matrix().rows() } else { batch.row_indices.len() }
    }

    /// Checks that the rows are of a pool's vocabulary, and that the rows that a batch names exist.
    pub(crate) fn check(&self, batch: &Batch<'_>, vocab: usize) -> Result<()> {
        let matrix = self.matrix();
        let Self::Hidden(head, _) = self else {
            check_vocab(vocab, matrix.width())?;
            return check_indices(batch.row_indices, matrix.rows());
        };
        if !batch.row_indices.is_empty() {
            let reason = "each row has a hidden state of its own";
            return Err(Error::Conflict { parameter: "row_indices", other: "hidden", reason });
        }
        check_vocab(vocab, head.vocab())?;
        head.check_width(matrix.width())
    }

    /// Returns the rows as a batch reads them on the host, once they are checked.
    pub(crate) fn read(self, batch: &Batch<'a>, vocab: usize) -> Result<Source<'a>> {
        self.check(batch, vocab)?;
        let Self::Hidden(head, matrix) = self else {
            let logits = Logits::of(self.matrix().on_host("logits")?, self.kind());
            let is_own = batch.row_indices.is_empty();
            return Ok(Source::Given(if is_own { logits } else { logits.select(batch.row_indices)? }));
        };
        Ok(Source::Hidden(head, head.states(matrix)?))
    }

    /// Checks that each of a rank's rows has a row of the batch.
    pub(crate) fn check_of_rank(&self, batch: &Batch<'_>) -> Result<()> {
        if batch.row_indices.is_empty() {
            return Ok(());
        }
        let reason = "each row of a step over ranks has logits of its own";
        Err(Error::Conflict { parameter: "row_indices", other: "ranks", reason })
    }

    /// Returns this rank's part of the rows, which are given and lie in the memory of the host.
    pub(crate) fn of_rank(self, batch: &Batch<'_>) -> Result<Logits<'a>> {
        self.check_of_rank(batch)?;
        Ok(Logits::of(self.matrix().on_host("logits")?, self.kind()))
    }

    /// Checks that rows are no hidden states, which nothing makes logits of.
    pub(crate) fn refuse_hidden(&self, resource: &'static str, remedy: &str) -> Result<()> {
        match self {
            Self::Hidden(..) => Err(Error::Unavailable { resource, reason: remedy.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Checks that there is a slot for each row of a batch.
    pub(crate) fn check_slots(&self, batch: &Batch<'_>) -> Result<()> {
        let rows = self.count(batch);
        let of = if matches!(self, Self::Hidden(..)) { "hidden state" } else { "row" };
        if batch.slots.len() == rows {
            return Ok(());
        }
        Err(Error::length("slots", batch.slots.len(), format!("one per {of}, {rows}")))
    }

    /// Checks that a batch has `rows` rows, one for each request and each draft.
    pub(crate) fn check_drafted(&self, batch: &Batch<'_>, rows: usize) -> Result<()> {
        let (parameter, of) = match self {
            Self::Hidden(..) => ("hidden", "hidden states"),
            _ => ("logits", "rows"),
        };
        if self.count(batch) == rows {
            return Ok(());
        }
        let allowed = format!("{rows} {of}, one per request and one per draft");
        Err(Error::length(parameter, self.count(batch), allowed))
    }
}

/// Logits or probabilities in a device's memory, of the kind that they say.
impl<'a> From<DeviceMatrix<'a>> for Rows<'a> {
    fn from(rows: DeviceMatrix<'a>) -> Self {
        Self::of(rows, rows.kind())
    }
}

/// Rows of the host as a call reads them.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Given(Logits<'a>),
    Hidden(Head<'a>, HostMatrix<'a>),
}

/// Checks that rows are of a pool's vocabulary.
fn check_vocab(vocab: usize, given: usize) -> Result<()> {
    if given == vocab {
        return Ok(());
    }
    Err(Error::length("logits", given, format!("{vocab} elements in a row, the vocabulary")))
}
