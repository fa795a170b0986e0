//! Matrices of token ids in device memory, of 32 or 64 bits, as a caller holds them.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::dtype::{ColumnType, IntType};
use crate::memory::buffer::Buffer;
use crate::memory::columns::{DeviceSlice, INTEGERS};
use crate::memory::rows::{check_rows, holds};

/// Rows of ids in device memory that lives as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIntMatrix<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) dtype: IntType,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl<'b> DeviceIntMatrix<'b> {
    /// Describes `rows` rows of `width` ids, `stride` ids apart, that begin at a device address.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there are several rows and `stride` is less than `width`.
    /// - [`Error::OutOfRange`] if the rows reach beyond the address space.
    /// - [`Error::OutOfRange`] if the address is not a multiple of an id's size.
    /// - [`Error::Length`] if there are 2^32 or more rows.
    ///
    /// # Safety
    /// For `'b`, all ids lie in memory that the device can read. Nobody writes them while work that was
    /// enqueued with them runs.
    pub unsafe fn new(
        address: u64,
        dtype: IntType,
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self> {
        check_rows(["ids", "stride"], address, dtype.bytes(), (rows, width, stride))?;
        Ok(Self { memory: PhantomData, address, dtype, rows, width, stride })
    }

    /// Describes rows that begin `start` ids into a buffer.
    ///
    /// # Errors
    /// - The errors of [`DeviceIntMatrix::new`].
    /// - [`Error::Length`] if the buffer ends before the last row does.
    pub fn of(
        buffer: &'b Buffer,
        dtype: IntType,
        start: usize,
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self> {
        if !holds(buffer, dtype.bytes(), start, (rows, width, stride)) {
            let allowed = format!("at least {rows} rows of {width} ids, {stride} apart, from {start}");
            return Err(Error::length("ids", buffer.bytes() / dtype.bytes(), allowed));
        }
        let address = buffer.address() + (start * dtype.bytes()) as u64;
        // SAFETY: the check above saw that the rows lie in the buffer. It stays borrowed for `'b`, so nobody
        // enqueues a write until then; freeing it waits for the work that was enqueued before.
        unsafe { Self::new(address, dtype, rows, width, stride) }
    }

    /// Takes a column of integers as `rows` rows of `width` ids without gaps.
    ///
    /// # Errors
    /// - [`Error::Length`] if the column has another length.
    /// - [`Error::OutOfRange`] if it is a column of f32.
    pub fn of_column(
        parameter: &'static str,
        column: DeviceSlice<'b>,
        rows: usize,
        width: usize,
    ) -> Result<Self> {
        column.check_type(parameter, INTEGERS)?;
        let DeviceSlice { memory, address, dtype: ColumnType::Int(dtype), rows: length } = column else {
            unreachable!("the check above refuses other types")
        };
        if rows.checked_mul(width) != Some(length) {
            return Err(Error::length(parameter, length, format!("{rows} rows of {width} ids")));
        }
        Ok(Self { memory, address, dtype, rows, width, stride: width })
    }

    /// Returns the ids of all rows as one column, row after row.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there are gaps between the rows.
    pub fn flat(&self) -> Result<DeviceSlice<'b>> {
        let Self { memory, address, dtype, rows, width, stride } = *self;
        if rows > 1 && stride != width {
            return Err(Error::out_of_range("stride", stride, format!("{width}, so that rows have no gaps")));
        }
        Ok(DeviceSlice { memory, address, dtype: ColumnType::Int(dtype), rows: rows * width })
    }

    /// Checks that the matrix has `rows` rows of `width` ids.
    pub(crate) fn check(&self, parameter: &'static str, rows: usize, width: usize) -> Result<()> {
        if self.rows != rows {
            return Err(Error::length(parameter, self.rows, format!("one row for each of {rows}")));
        }
        if self.width != width {
            return Err(Error::length(parameter, self.width, format!("{width} ids in a row")));
        }
        Ok(())
    }

    /// Returns the address of a row.
    pub(crate) fn row(&self, row: usize) -> u64 {
        self.address + (row * self.stride * self.dtype.bytes()) as u64
    }
}

/// Rows of ids that kernels write. The caller has exclusive access to them for `'b`; a copy names the same
/// rows.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIntMatrixMut<'b>(DeviceIntMatrix<'b>);

impl<'b> DeviceIntMatrixMut<'b> {
    /// Returns the address, type and shape of the ids.
    #[must_use]
    pub fn ids(&self) -> &DeviceIntMatrix<'b> {
        &self.0
    }

    /// Describes `rows` rows of `width` ids, `stride` ids apart, that begin at a device address.
    ///
    /// # Errors
    /// The errors of [`DeviceIntMatrix::new`].
    ///
    /// # Safety
    /// For `'b`, all ids lie in memory that the device can write. Nobody else reads or writes them while work
    /// that was enqueued with them runs, but work on the same stream that was enqueued before or after it.
    pub unsafe fn new(
        address: u64,
        dtype: IntType,
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self> {
        // SAFETY: the caller guarantees more than [`DeviceIntMatrix::new`] requires.
        unsafe { DeviceIntMatrix::new(address, dtype, rows, width, stride) }.map(Self)
    }

    /// Describes rows that begin `start` ids into a buffer.
    ///
    /// # Errors
    /// The errors of [`DeviceIntMatrix::of`].
    pub fn of(
        buffer: &'b mut Buffer,
        dtype: IntType,
        start: usize,
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self> {
        DeviceIntMatrix::of(buffer, dtype, start, rows, width, stride).map(Self)
    }
}
