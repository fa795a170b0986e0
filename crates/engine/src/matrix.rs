//! Matrices of numbers, in the memory of the host or of a device.

use gumball_spec::{Error, HostMatrix, Result, Row};

use crate::device::DeviceMatrix;

/// A matrix of f32, bf16 or f16 numbers, whose rows may lie apart.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Matrix<'a> {
    /// In the memory of the host.
    Host(HostMatrix<'a>),
    /// In the memory of a device. Its own kind is not read: the kind of the numbers is given beside
    /// the matrix.
    Device(DeviceMatrix<'a>),
}

impl<'a> Matrix<'a> {
    /// Takes `rows` rows of `width` numbers of the host that follow each other: [`HostMatrix::new`].
    ///
    /// # Errors
    /// The errors of [`HostMatrix::new`].
    pub fn new(data: impl Into<Row<'a>>, rows: usize, width: usize) -> Result<Self> {
        HostMatrix::new(data, rows, width).map(Self::Host)
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Host(matrix) => matrix.rows(),
            Self::Device(matrix) => matrix.rows(),
        }
    }

    /// Returns the number of elements in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        match self {
            Self::Host(matrix) => matrix.width(),
            Self::Device(matrix) => matrix.vocab(),
        }
    }

    /// Returns the matrix, which must lie in the memory of the host.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it does not, under the name `parameter`.
    pub(crate) fn on_host(self, parameter: &'static str) -> Result<HostMatrix<'a>> {
        match self {
            Self::Host(matrix) => Ok(matrix),
            Self::Device(_) => Err(on_a_device(parameter)),
        }
    }
}

/// Returns the error of a call that reads the memory of the host, for rows that lie in a device's.
pub(crate) fn on_a_device(parameter: &'static str) -> Error {
    let allowed = "in that of the host, which this call reads";
    Error::out_of_range(parameter, "in the memory of a device", allowed)
}

impl<'a> From<HostMatrix<'a>> for Matrix<'a> {
    fn from(matrix: HostMatrix<'a>) -> Self {
        Self::Host(matrix)
    }
}

impl<'a> From<DeviceMatrix<'a>> for Matrix<'a> {
    fn from(matrix: DeviceMatrix<'a>) -> Self {
        Self::Device(matrix)
    }
}
