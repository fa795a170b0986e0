//! Matrices of numbers, in the memory of the host or of a device.

use gumball_spec::shape::{check_stride, check_vocab};
use gumball_spec::{Error, MAX_VOCAB, Result, Row};

#[cfg(feature = "cuda")]
use crate::device::DeviceMatrix;

/// A matrix of f32, bf16 or f16 numbers, whose rows may lie apart.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Matrix<'a> {
    /// In the memory of the host.
    Host(HostMatrix<'a>),
    /// In the memory of a device. What it says of its kind is not read: what the numbers are is said beside the matrix.
    #[cfg(feature = "cuda")]
    Device(DeviceMatrix<'a>),
}

impl<'a> Matrix<'a> {
    /// Takes `rows` rows of `width` numbers of the host that follow each other: [`HostMatrix::new`].
    ///
    /// # Errors
    /// Those of [`HostMatrix::new`].
    pub fn new(data: impl Into<Row<'a>>, rows: usize, width: usize) -> Result<Self> {
        HostMatrix::new(data, rows, width).map(Self::Host)
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Host(matrix) => matrix.rows(),
            #[cfg(feature = "cuda")]
            Self::Device(matrix) => matrix.rows(),
        }
    }

    /// Returns the number of elements in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        match self {
            Self::Host(matrix) => matrix.width(),
            #[cfg(feature = "cuda")]
            Self::Device(matrix) => matrix.vocab(),
        }
    }

    /// Returns the matrix, which must lie in the memory of the host.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it does not, under the name `parameter`.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "all memory is the host's"))]
    pub(crate) fn on_host(self, parameter: &'static str) -> Result<HostMatrix<'a>> {
        match self {
            Self::Host(matrix) => Ok(matrix),
            #[cfg(feature = "cuda")]
            Self::Device(_) => Err(on_a_device(parameter)),
        }
    }
}

/// Returns the error of a call that reads the memory of the host, for what lies in that of a device.
#[cfg(feature = "cuda")]
pub(crate) fn on_a_device(parameter: &'static str) -> Error {
    let allowed = "in that of the host, which this call reads";
    Error::out_of_range(parameter, "in the memory of a device", allowed)
}

impl<'a> From<HostMatrix<'a>> for Matrix<'a> {
    fn from(matrix: HostMatrix<'a>) -> Self {
        Self::Host(matrix)
    }
}

#[cfg(feature = "cuda")]
impl<'a> From<DeviceMatrix<'a>> for Matrix<'a> {
    fn from(matrix: DeviceMatrix<'a>) -> Self {
        Self::Device(matrix)
    }
}

/// A matrix of f32, bf16 or f16 numbers in host memory, whose rows may lie apart.
///
/// ```
/// # use gumball_engine::*;
/// let data = [1.0f32, 2.0, -0.0, 3.0, 4.0];
/// let matrix = HostMatrix::strided(&data, 2, 2, 3)?;
/// assert_eq!(matrix.row(1).logits(), [3.0, 4.0]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HostMatrix<'a> {
    pub(crate) data: Row<'a>,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl<'a> HostMatrix<'a> {
    /// Takes `rows` rows of `width` numbers that follow each other: a slice of f32, bf16 or f16.
    ///
    /// # Errors
    /// Those of [`HostMatrix::strided`].
    pub fn new(data: impl Into<Row<'a>>, rows: usize, width: usize) -> Result<Self> {
        Self::strided(data, rows, width, width)
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

    /// Takes rows of a vocabulary, which errors call logits.
    pub(crate) fn of_vocab(
        data: impl Into<Row<'a>>,
        rows: usize,
        vocab: usize,
        stride: usize,
    ) -> Result<Self> {
        let named = |name| match name {
            "width" => "vocab",
            "matrix" => "logits",
            name => name,
        };
        Self::strided(data, rows, vocab, stride).map_err(|error| error.with_parameter(named))
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

    /// Returns the rows as they lie in memory, to the end of the last, and their stride.
    #[cfg(feature = "cuda")]
    pub(crate) fn to_last(self) -> (Row<'a>, usize) {
        let end = if self.rows == 0 { 0 } else { (self.rows - 1) * self.stride + self.width };
        (self.data.part(0..end), self.stride)
    }

    /// Returns how many numbers lie from a row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Returns all numbers, of which rows are a part.
    pub(crate) fn data(&self) -> Row<'a> {
        self.data
    }
}

/// Checks that `rows` rows of a vocabulary, `stride` apart, lie inside `length` elements.
pub(crate) fn check_rows(
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
pub(crate) fn check_matrix(
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
