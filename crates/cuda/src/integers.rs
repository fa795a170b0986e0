//! Whole numbers in a machine's memory, of 32 or of 64 bits: ids, seeds, positions, as a caller has them.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::machine::Buffer;

/// The type of whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Int {
    /// 32 bits.
    I32,
    /// 64 bits.
    I64,
}

impl Int {
    /// Returns the size of a number.
    #[must_use]
    pub fn bytes(self) -> usize {
        if self == Int::I32 { 4 } else { 8 }
    }
}

/// Rows of whole numbers in the machine's memory, which live as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct Integers<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) int: Int,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl<'b> Integers<'b> {
    /// Takes `rows` rows of `width` numbers, `stride` numbers apart, at an address of the machine.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `stride` is less than `width` with several rows, or the address no multiple of a number's
    ///   size.
    ///
    /// # Safety
    /// For `'b`, all numbers lie in memory that the machine can read, and nobody writes them while what is enqueued with
    /// them runs.
    pub unsafe fn new(address: u64, int: Int, rows: usize, width: usize, stride: usize) -> Result<Self> {
        if rows > 1 && stride < width {
            let allowed = format!("at least the width of a row, {width}");
            return Err(Error::out_of_range("stride", stride, allowed));
        }
        if !address.is_multiple_of(int.bytes() as u64) {
            let allowed = format!("a multiple of {} bytes", int.bytes());
            return Err(Error::out_of_range("integers", format!("{address:#x}"), allowed));
        }
        Ok(Self { memory: PhantomData, address, int, rows, width, stride })
    }

    /// Takes a number for each of `rows` rows, side by side.
    ///
    /// # Errors
    /// Those of [`Integers::new`].
    ///
    /// # Safety
    /// As for [`Integers::new`].
    pub unsafe fn column(address: u64, int: Int, rows: usize) -> Result<Self> {
        // SAFETY: the caller vouches for the memory.
        unsafe { Self::new(address, int, rows, 1, 1) }
    }

    /// Takes rows that begin `start` numbers into a buffer.
    ///
    /// # Errors
    /// - Those of [`Integers::new`].
    /// - [`Error::Length`] if the buffer ends before the last row does.
    pub fn of(
        buffer: &'b Buffer,
        int: Int,
        start: usize,
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self> {
        let room = buffer.bytes() / int.bytes();
        let end = |rows: usize| (rows - 1).checked_mul(stride)?.checked_add(width)?.checked_add(start);
        if rows > 0 && end(rows).is_none_or(|end| end > room) {
            let allowed = format!("at least {rows} rows of {width} numbers, {stride} apart, from {start}");
            return Err(Error::length("integers", room, allowed));
        }
        let address = buffer.address() + (start * int.bytes()) as u64;
        // SAFETY: the rows lie in the buffer, as was just seen, which is borrowed for `'b`: until then nothing enqueues a
        // write, and its end waits for what was enqueued before.
        unsafe { Self::new(address, int, rows, width, stride) }
    }

    /// Checks that there are rows of a shape.
    pub(crate) fn check(&self, parameter: &'static str, rows: usize, width: usize) -> Result<()> {
        if self.rows != rows {
            return Err(Error::length(parameter, self.rows, format!("one row for each of {rows}")));
        }
        if self.width != width {
            return Err(Error::length(parameter, self.width, format!("{width} numbers in a row")));
        }
        Ok(())
    }

    /// Returns the address of a row.
    pub(crate) fn row(&self, row: usize) -> u64 {
        self.address + (row * self.stride * self.int.bytes()) as u64
    }
}

/// Rows of whole numbers that are written; they are nobody else's as long as `'b`.
#[derive(Debug)]
pub struct IntegersMut<'b>(Integers<'b>);

impl<'b> IntegersMut<'b> {
    /// Returns where the numbers are and what they are like.
    #[must_use]
    pub fn integers(&self) -> &Integers<'b> {
        &self.0
    }

    /// Takes `rows` rows of `width` numbers, `stride` numbers apart, at an address of the machine.
    ///
    /// # Errors
    /// Those of [`Integers::new`].
    ///
    /// # Safety
    /// For `'b`, all numbers lie in memory that the machine can write, and while what is enqueued on them runs nobody else
    /// reads or writes them.
    pub unsafe fn new(address: u64, int: Int, rows: usize, width: usize, stride: usize) -> Result<Self> {
        // SAFETY: the caller vouches for more than it takes.
        unsafe { Integers::new(address, int, rows, width, stride) }.map(Self)
    }

    /// Takes rows that begin `start` numbers into a buffer.
    ///
    /// # Errors
    /// Those of [`Integers::of`].
    pub fn of(
        buffer: &'b mut Buffer,
        int: Int,
        start: usize,
        rows: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self> {
        Integers::of(buffer, int, start, rows, width, stride).map(Self)
    }
}

/// One whole number for all rows, or one for each.
#[derive(Clone, Copy, Debug)]
pub enum Each<'b, T> {
    /// The same for all.
    All(T),
    /// One for each, in the machine's memory. Where fewer bits are meant than there are, the low ones count; 32 are taken
    /// to have no sign.
    Rows(Integers<'b>),
}

impl<T: Copy + Into<u64>> Each<'_, T> {
    /// Checks that there is one for each of `rows` rows, or one for all.
    pub(crate) fn check(&self, parameter: &'static str, rows: usize) -> Result<()> {
        match self {
            Self::All(_) => Ok(()),
            Self::Rows(column) if column.width > 1 || column.rows > 1 && column.stride != 1 => {
                Err(Error::length(parameter, column.width, "a number for each row, side by side"))
            }
            Self::Rows(column) => column.check(parameter, rows, 1),
        }
    }

    /// Returns the number for all, the address of the column or 0, and whether its numbers have 64 bits.
    pub(crate) fn parts(&self) -> (u64, u64, bool) {
        match self {
            Self::All(number) => ((*number).into(), 0, false),
            Self::Rows(column) => (0, column.address, column.int == Int::I64),
        }
    }
}
