//! Rows: what a call of a pool reads, as values that borrow their memory.

use gumball_head::HiddenStates;
use gumball_spec::{Error, Kind, Result, Row};

use crate::batch::Batch;
#[cfg(feature = "cuda")]
use crate::device::DeviceHead;
use crate::lm_head::Head;
use crate::logits::Logits;
use crate::matrix::Matrix;
use crate::slot::Slot;

/// The rows that a call reads, and what they are. Several calls may read the same ones.
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
    /// Probabilities. They need not sum to 1. What is not above 0 is never drawn; NaN and negative numbers count as 0 and set
    /// [`Status::NAN`](crate::Status::NAN).
    Probabilities(Matrix<'a>),
    /// Hidden states, of which the head computes the logits.
    Hidden(Head<'a>, Matrix<'a>),
}

impl<'a> Rows<'a> {
    /// Takes `rows` rows of `vocab` logits that follow each other: [`Rows::Logits`] of [`Matrix::new`].
    ///
    /// # Errors
    /// Those of [`Matrix::new`], under the names `vocab` and `logits`.
    pub fn logits(data: impl Into<Row<'a>>, rows: usize, vocab: usize) -> Result<Self> {
        Matrix::of_vocab(data, rows, vocab, vocab).map(Self::Logits)
    }

    /// Takes `rows` rows of `vocab` probabilities that follow each other: [`Rows::Probabilities`] of [`Matrix::new`].
    ///
    /// # Errors
    /// Those of [`Rows::logits`].
    pub fn probabilities(data: impl Into<Row<'a>>, rows: usize, vocab: usize) -> Result<Self> {
        Matrix::of_vocab(data, rows, vocab, vocab).map(Self::Probabilities)
    }

    /// Takes hidden states: a [`Matrix`], or [`HiddenStates`].
    ///
    /// ```
    /// # use gumball_engine::*;
    /// use gumball_engine::head::{Exact, HeadOptions, HiddenStates};
    ///
    /// // A row of weights for each id.
    /// let weights = [1.0f32, 0.0, 0.0, 2.0];
    /// let head = Exact::new(&weights[..], 2, 2, HeadOptions::default())?;
    /// let mut pool = Pool::new(PoolConfig::new(2))?;
    /// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[])?;
    /// let mut out = Outputs::new();
    /// let rows = Rows::hidden(&head, HiddenStates::new(&[0.5f32, 1.0], 1, 2)?);
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
    pub fn of(matrix: Matrix<'a>, kind: Kind) -> Self {
        match kind {
            Kind::Logits => Self::Logits(matrix),
            Kind::Probabilities => Self::Probabilities(matrix),
        }
    }

    /// Returns the matrix that the rows are in.
    #[must_use]
    pub fn matrix(&self) -> Matrix<'a> {
        match self {
            Self::Logits(matrix) | Self::Probabilities(matrix) | Self::Hidden(_, matrix) => *matrix,
        }
    }

    /// Returns what the numbers of rows are that come out of the head, if there is one.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Logits(_) | Self::Hidden(..) => Kind::Logits,
            Self::Probabilities(_) => Kind::Probabilities,
        }
    }

    /// Returns the rows as a batch reads them, once their width is checked.
    pub(crate) fn read(self, batch: &Batch<'a>, vocab: usize) -> Result<Source<'a>> {
        if let Self::Hidden(head, matrix) = self {
            if !batch.row_indices.is_empty() {
                let reason = "each row has a hidden state of its own";
                return Err(Error::Conflict { parameter: "row_indices", other: "hidden", reason });
            }
            check_vocab(vocab, head.vocab())?;
            head.check_width(matrix.width())?;
            let (rows, width, stride) = (matrix.rows(), matrix.width(), matrix.stride());
            let states = HiddenStates::strided(matrix.data(), rows, width, stride)?;
            return Ok(Source::Hidden(head, states));
        }
        let logits = Logits::of(self.matrix(), self.kind());
        check_vocab(vocab, logits.vocab())?;
        let is_own = batch.row_indices.is_empty();
        Ok(Source::Given(if is_own { logits } else { logits.select(batch.row_indices)? }))
    }

    /// Returns this rank's part of the rows, once it is checked that there is a row for each row of the batch.
    pub(crate) fn of_rank(self, batch: &Batch<'_>) -> Result<Logits<'a>> {
        if let Self::Hidden(..) = self {
            let reason = "step them in a pool of one process".to_owned();
            return Err(Error::Unavailable { resource: "hidden states over ranks", reason });
        }
        if !batch.row_indices.is_empty() {
            let reason = "each row of a step over ranks has logits of its own";
            return Err(Error::Conflict { parameter: "row_indices", other: "ranks", reason });
        }
        Ok(Logits::of(self.matrix(), self.kind()))
    }
}

/// Rows as a call reads them.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Given(Logits<'a>),
    Hidden(Head<'a>, HiddenStates<'a>),
}

impl Source<'_> {
    /// Returns how many rows are read.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Given(logits) => logits.rows(),
            Self::Hidden(_, states) => states.rows(),
        }
    }

    /// Checks that the host can compute the rows.
    pub(crate) fn on_host(self) -> Result<Self> {
        if let Self::Hidden(head, _) = self {
            head.refuse_device()?;
        }
        Ok(self)
    }

    /// Returns the head that lies on a device, if the rows are hidden states.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] for a head of the host.
    #[cfg(feature = "cuda")]
    pub(crate) fn device_head(&self) -> Result<Option<&DeviceHead<'_>>> {
        match self {
            Self::Given(_) => Ok(None),
            Self::Hidden(Head::Device(head), _) => Ok(Some(head)),
            Self::Hidden(..) => {
                let reason = "copy it there: DeviceHead::new".to_owned();
                Err(Error::Unavailable { resource: "head of the host on a device", reason })
            }
        }
    }

    /// Checks that rows are no hidden states, which nothing makes logits of.
    #[cfg(feature = "cuda")]
    pub(crate) fn refuse_hidden(&self, resource: &'static str) -> Result<()> {
        match self {
            Self::Given(_) => Ok(()),
            Self::Hidden(..) => {
                let reason = "make logits of them first, or take a pool of the host".to_owned();
                Err(Error::Unavailable { resource, reason })
            }
        }
    }

    /// Checks that there is a slot for each row.
    pub(crate) fn check_slots(&self, slots: &[Slot]) -> Result<()> {
        let (rows, of) = match self {
            Self::Given(logits) => (logits.rows(), "row"),
            Self::Hidden(_, states) => (states.rows(), "hidden state"),
        };
        if slots.len() == rows {
            return Ok(());
        }
        Err(Error::length("slots", slots.len(), format!("one per {of}, {rows}")))
    }

    /// Checks that there is a row for each request and each draft.
    pub(crate) fn check_drafted(&self, rows: usize) -> Result<()> {
        let (parameter, of) = match self {
            Self::Given(_) => ("logits", "rows"),
            Self::Hidden(..) => ("hidden", "hidden states"),
        };
        if self.rows() == rows {
            return Ok(());
        }
        let allowed = format!("{rows} {of}, one per request and one per draft");
        Err(Error::length(parameter, self.rows(), allowed))
    }
}

/// Checks that rows are of a pool's vocabulary.
fn check_vocab(vocab: usize, given: usize) -> Result<()> {
    if given == vocab {
        return Ok(());
    }
    Err(Error::length("logits", given, format!("{vocab} elements in a row, the vocabulary")))
}
