//! The arrays that an operator reads and writes, in the host's memory or in a device's.

use gumball_spec::{Error, Kind, Result};

use super::LogitsMut;
use crate::device::{DeviceMatrix, DeviceRows, DeviceSlice};
use crate::logits::Logits;
use crate::matrix::Matrix;
use crate::rows::Rows;

/// Rows that an operator reads and writes: into other memory, or in place.
#[derive(Debug)]
pub struct RowsInOut<'a> {
    /// The rows to read; `None`: the rows of `to`, which are replaced.
    pub from: Option<Rows<'a>>,
    /// The rows to write.
    pub to: RowsOut<'a>,
}

/// Rows that an operator writes.
#[derive(Debug)]
#[non_exhaustive]
pub enum RowsOut<'a> {
    /// In the memory of the host.
    Host(LogitsMut<'a>),
    /// In the memory of a device.
    Device(DeviceRows<'a>),
}

impl<'a> From<LogitsMut<'a>> for RowsOut<'a> {
    fn from(to: LogitsMut<'a>) -> Self {
        Self::Host(to)
    }
}

impl<'a> From<DeviceRows<'a>> for RowsOut<'a> {
    fn from(to: DeviceRows<'a>) -> Self {
        Self::Device(to)
    }
}

impl RowsInOut<'_> {
    /// Returns whether the rows to read hold logits or probabilities.
    pub(super) fn kind(&self) -> Kind {
        match (&self.from, &self.to) {
            (Some(from), _) => from.kind(),
            (None, RowsOut::Host(to)) => to.kind(),
            (None, RowsOut::Device(to)) => to.rows().kind(),
        }
    }
}

impl<'a, R: Into<Rows<'a>>, T: Into<RowsOut<'a>>> From<(R, T)> for RowsInOut<'a> {
    fn from((from, to): (R, T)) -> Self {
        Self { from: Some(from.into()), to: to.into() }
    }
}

impl<'a, T: Into<RowsOut<'a>>> From<T> for RowsInOut<'a> {
    fn from(to: T) -> Self {
        Self { from: None, to: to.into() }
    }
}

impl<'a> Rows<'a> {
    /// Returns the rows as an operator of the host reads them.
    pub(super) fn here(self) -> Result<Logits<'a>> {
        self.refuse_hidden("hidden states in operators", "make logits of them first")?;
        match self.matrix() {
            Matrix::Host(matrix) => Ok(Logits::of(matrix, self.kind())),
            Matrix::Device(_) => Err(wrong_memory("rows", "a device", "the host")),
        }
    }

    /// Returns the rows as an operator of a device reads them.
    pub(super) fn there(self) -> Result<DeviceMatrix<'a>> {
        self.refuse_hidden("hidden states in operators", "make logits of them first")?;
        match self.matrix() {
            Matrix::Host(_) => Err(wrong_memory("rows", "the host", "the device")),
            Matrix::Device(matrix) => Ok(matrix.with_kind(self.kind())),
        }
    }
}

/// A column that an operator writes, with one value per output.
#[derive(Debug)]
pub enum PerRowMut<'a, T> {
    /// In the host's memory.
    Host(&'a mut [T]),
    /// In the device's memory.
    Device(DeviceSlice<'a>),
}

impl<'a, T> From<&'a mut [T]> for PerRowMut<'a, T> {
    fn from(values: &'a mut [T]) -> Self {
        PerRowMut::Host(values)
    }
}

impl<'a, T> From<&'a mut Vec<T>> for PerRowMut<'a, T> {
    fn from(values: &'a mut Vec<T>) -> Self {
        PerRowMut::Host(values)
    }
}

impl<'a, T> PerRowMut<'a, T> {
    /// Returns a column of the host.
    pub(super) fn on_host(self, parameter: &'static str) -> Result<&'a mut [T]> {
        match self {
            PerRowMut::Host(values) => Ok(values),
            PerRowMut::Device(_) => Err(wrong_memory(parameter, "a device", "the host")),
        }
    }

    /// Returns a column of the device.
    pub(super) fn on_device(self, parameter: &'static str) -> Result<DeviceSlice<'a>> {
        match self {
            PerRowMut::Device(column) => Ok(column),
            PerRowMut::Host(_) => Err(wrong_memory(parameter, "the host", "the device")),
        }
    }
}

/// Returns a column of the device, if there is a column.
pub(super) fn device_column<'a, T>(
    parameter: &'static str,
    column: Option<PerRowMut<'a, T>>,
) -> Result<Option<DeviceSlice<'a>>> {
    column.map(|column| column.on_device(parameter)).transpose()
}

/// Returns a column of the host with one value for each of `outputs`, if there is a column.
pub(super) fn host_column<'a, T>(
    parameter: &'static str,
    column: Option<PerRowMut<'a, T>>,
    outputs: usize,
) -> Result<Option<&'a mut [T]>> {
    let column = column.map(|column| column.on_host(parameter)).transpose()?;
    match column {
        Some(column) if column.len() != outputs => {
            Err(Error::length(parameter, column.len(), format!("one per output, {outputs}")))
        }
        column => Ok(column),
    }
}

/// Returns the error for an argument that lies in the wrong memory.
pub(super) fn wrong_memory(parameter: &'static str, found: &str, wanted: &str) -> Error {
    let allowed = format!("on {wanted}, as the operators are");
    Error::out_of_range(parameter, format!("on {found}"), allowed)
}
