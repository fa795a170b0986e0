//! Columns of numbers in device memory that a caller provides, one number per row.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::dtype::{ColumnType, IntType};
use crate::memory::buffer::Buffer;

/// One number per row, contiguous in device memory that lives as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'b> {
    pub(crate) memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) dtype: ColumnType,
    pub(crate) rows: usize,
}

impl<'b> DeviceSlice<'b> {
    /// Describes the numbers of `rows` rows that begin at a device address.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the address is not a multiple of a number's size.
    ///
    /// # Safety
    /// For `'b`, the numbers lie in memory that the device can read, and also write if kernels store results
    /// there. Nobody else writes them while work that was enqueued with them runs.
    pub unsafe fn new(address: u64, dtype: impl Into<ColumnType>, rows: usize) -> Result<Self> {
        let dtype = dtype.into();
        if !address.is_multiple_of(dtype.bytes() as u64) {
            let allowed = format!("a multiple of {} bytes", dtype.bytes());
            return Err(Error::out_of_range("column", format!("{address:#x}"), allowed));
        }
        Ok(Self { memory: PhantomData, address, dtype, rows })
    }

    /// Describes all numbers of a buffer.
    #[must_use]
    pub fn of(buffer: &'b Buffer, dtype: impl Into<ColumnType>) -> Self {
        let dtype = dtype.into();
        let rows = buffer.bytes() / dtype.bytes();
        Self { memory: PhantomData, address: buffer.address(), dtype, rows }
    }

    /// Returns the first `rows` numbers.
    ///
    /// # Errors
    /// - [`Error::Length`] if there are fewer.
    pub fn first(self, rows: usize) -> Result<Self> {
        if rows > self.rows {
            return Err(Error::length("column", self.rows, format!("{rows} numbers at least")));
        }
        Ok(Self { rows, ..self })
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the address of a row's number.
    pub(crate) fn at(&self, row: usize) -> u64 {
        self.address + (row * self.dtype.bytes()) as u64
    }

    /// Checks that the numbers have one of the types that a parameter takes.
    pub(crate) fn check_type(&self, parameter: &'static str, types: &[ColumnType]) -> Result<()> {
        if types.contains(&self.dtype) {
            return Ok(());
        }
        let names: Vec<&str> = types.iter().map(|dtype| dtype.name()).collect();
        let allowed = format!("a column of {}", names.join(" or "));
        Err(Error::out_of_range(parameter, format!("a column of {}", self.dtype.name()), allowed))
    }
}

/// The type of real parameters.
pub(crate) const FLOATS: &[ColumnType] = &[ColumnType::F32];
/// The types of top-k and of written tokens.
pub(crate) const SIGNED: &[ColumnType] = &[ColumnType::Int(IntType::I32), ColumnType::Int(IntType::I64)];
/// The types of statuses and counts, which libraries without unsigned types hold as signed integers.
pub(crate) const WORDS: &[ColumnType] = &[ColumnType::Int(IntType::I32), ColumnType::Int(IntType::U32)];
/// The types of the keys of draws and of row indices.
pub(crate) const INTEGERS: &[ColumnType] = &[
    ColumnType::Int(IntType::I32),
    ColumnType::Int(IntType::U32),
    ColumnType::Int(IntType::I64),
    ColumnType::Int(IntType::U64),
];
