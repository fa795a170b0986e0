//! Columns of numbers in device memory that a caller provides, one number per row.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::dtype::IntType;
use crate::memory::buffer::Buffer;

/// One 32-bit number per row, contiguous in device memory that lives as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) rows: usize,
}

impl<'b> DeviceSlice<'b> {
    /// Describes the numbers of `rows` rows that begin at a device address.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the address is not a multiple of 4 bytes.
    ///
    /// # Safety
    /// For `'b`, the numbers lie in memory that the device can read, and also write if kernels store results
    /// there. Nobody else writes them while work that was enqueued with them runs.
    pub unsafe fn new(address: u64, rows: usize) -> Result<Self> {
        if !address.is_multiple_of(4) {
            return Err(Error::out_of_range("column", format!("{address:#x}"), "a multiple of 4 bytes"));
        }
        Ok(Self { memory: PhantomData, address, rows })
    }

    /// Describes all numbers of a buffer.
    #[must_use]
    pub fn of(buffer: &'b Buffer) -> Self {
        Self { memory: PhantomData, address: buffer.address(), rows: buffer.bytes() / size_of::<u32>() }
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
}

/// Integers that are contiguous in device memory, which lives as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIntSlice<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) dtype: IntType,
    pub(crate) rows: usize,
}

impl<'b> DeviceIntSlice<'b> {
    /// Describes the integers of `rows` rows that begin at a device address.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the address is not a multiple of an integer's size.
    ///
    /// # Safety
    /// The conditions of [`DeviceSlice::new`].
    pub unsafe fn new(address: u64, dtype: IntType, rows: usize) -> Result<Self> {
        if !address.is_multiple_of(dtype.bytes() as u64) {
            let allowed = format!("a multiple of {} bytes", dtype.bytes());
            return Err(Error::out_of_range("integers", format!("{address:#x}"), allowed));
        }
        Ok(Self { memory: PhantomData, address, dtype, rows })
    }

    /// Describes all integers of a buffer.
    #[must_use]
    pub fn of(buffer: &'b Buffer, dtype: IntType) -> Self {
        let rows = buffer.bytes() / dtype.bytes();
        Self { memory: PhantomData, address: buffer.address(), dtype, rows }
    }

    /// Returns the first `rows` integers.
    ///
    /// # Errors
    /// - [`Error::Length`] if there are fewer.
    pub fn first(self, rows: usize) -> Result<Self> {
        if rows > self.rows {
            return Err(Error::length("column", self.rows, format!("{rows} numbers at least")));
        }
        Ok(Self { rows, ..self })
    }

    /// Returns the number of integers.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the type of the integers.
    #[must_use]
    pub fn dtype(&self) -> IntType {
        self.dtype
    }
}
