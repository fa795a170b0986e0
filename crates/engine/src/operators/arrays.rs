//! The arrays that an operator reads and writes, in the host's memory or in a device's.

use gumball_spec::{Error, Kind, Result};

use super::LogitsMut;
use crate::logits::Logits;
#[cfg(feature = "cuda")]
use gumball_cuda::{DeviceSlice, Rows, RowsOut};

/// Rows that an operator reads.
#[derive(Clone, Copy, Debug)]
pub enum RowsIn<'a> {
    /// Rows in the host's memory.
    Host(Logits<'a>),
    /// Rows in a device's memory.
    #[cfg(feature = "cuda")]
    Device(Rows<'a>),
}

impl<'a> From<Logits<'a>> for RowsIn<'a> {
    fn from(rows: Logits<'a>) -> Self {
        RowsIn::Host(rows)
    }
}

#[cfg(feature = "cuda")]
impl<'a> From<Rows<'a>> for RowsIn<'a> {
    fn from(rows: Rows<'a>) -> Self {
        RowsIn::Device(rows)
    }
}

/// Rows that an operator reads and writes: in place, or into other memory.
#[derive(Debug)]
pub enum RowsInOut<'a> {
    /// Rows in the host's memory.
    Host {
        /// The rows to read; `None`: those of `to`, which are replaced.
        from: Option<Logits<'a>>,
        /// The rows to write.
        to: LogitsMut<'a>,
    },
    /// Rows in a device's memory.
    #[cfg(feature = "cuda")]
    Device {
        /// The rows to read; `None`: those of `to`, which are replaced.
        from: Option<Rows<'a>>,
        /// The rows to write.
        to: RowsOut<'a>,
    },
}

impl RowsInOut<'_> {
    /// Returns whether the rows to read hold logits or probabilities.
    pub(super) fn kind(&self) -> Kind {
        match self {
            RowsInOut::Host { from, to } => from.map_or(to.kind(), |from| from.kind()),
            #[cfg(feature = "cuda")]
            RowsInOut::Device { from, to } => from.map_or(to.rows().kind(), |from| from.kind()),
        }
    }
}

impl<'a> From<(Logits<'a>, LogitsMut<'a>)> for RowsInOut<'a> {
    fn from((from, to): (Logits<'a>, LogitsMut<'a>)) -> Self {
        RowsInOut::Host { from: Some(from), to }
    }
}

impl<'a> From<LogitsMut<'a>> for RowsInOut<'a> {
    fn from(to: LogitsMut<'a>) -> Self {
        RowsInOut::Host { from: None, to }
    }
}

#[cfg(feature = "cuda")]
impl<'a> From<(Rows<'a>, RowsOut<'a>)> for RowsInOut<'a> {
    fn from((from, to): (Rows<'a>, RowsOut<'a>)) -> Self {
        RowsInOut::Device { from: Some(from), to }
    }
}

#[cfg(feature = "cuda")]
impl<'a> From<RowsOut<'a>> for RowsInOut<'a> {
    fn from(to: RowsOut<'a>) -> Self {
        RowsInOut::Device { from: None, to }
    }
}

/// A column that an operator writes, with one value per output.
#[derive(Debug)]
pub enum PerRowMut<'a, T> {
    /// In the host's memory.
    Host(&'a mut [T]),
    /// In the device's memory.
    #[cfg(feature = "cuda")]
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
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "there is no other memory"))]
    pub(super) fn on_host(self, parameter: &'static str) -> Result<&'a mut [T]> {
        match self {
            PerRowMut::Host(values) => Ok(values),
            #[cfg(feature = "cuda")]
            PerRowMut::Device(_) => Err(wrong_memory(parameter, "a device", "the host")),
        }
    }

    /// Returns a column of the device.
    #[cfg(feature = "cuda")]
    pub(super) fn on_device(self, parameter: &'static str) -> Result<DeviceSlice<'a>> {
        match self {
            PerRowMut::Device(column) => Ok(column),
            PerRowMut::Host(_) => Err(wrong_memory(parameter, "the host", "the device")),
        }
    }
}

/// Returns a column of the device, if there is a column.
#[cfg(feature = "cuda")]
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
#[cfg(feature = "cuda")]
pub(super) fn wrong_memory(parameter: &'static str, found: &str, wanted: &str) -> Error {
    let allowed = format!("on {wanted}, as the operators are");
    Error::out_of_range(parameter, format!("on {found}"), allowed)
}
