//! Arrays with one element per row or per output, in the host's memory or in a device's.

use std::mem::MaybeUninit;

use gumball_engine::{ColumnType, DeviceSlice, Error, IntType, PerRow, PerRowMut, Status};
use gumball_spec::memory;

use crate::error::Result;
use crate::ffi::{Caller, device_address};
use crate::matrix::Memory;

/// A type of list elements.
pub(crate) trait Element: Copy {
    /// The type that a device's column of them has.
    const DTYPE: ColumnType;
}

macro_rules! elements {
    ($($type:ty: $dtype:expr,)*) => {
        $(impl Element for $type {
            const DTYPE: ColumnType = $dtype;
        })*
    };
}

elements! {
    f32: ColumnType::F32,
    i32: ColumnType::Int(IntType::I32),
    u32: ColumnType::Int(IntType::U32),
    i64: ColumnType::Int(IntType::I64),
    u64: ColumnType::Int(IntType::U64),
    Status: ColumnType::Int(IntType::U32),
}

/// The word of the C caller for lists that lie in a memory; on a device they stay there, and nobody else uses
/// them, until the enqueued work is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrays<'a> {
    pub c: Caller<'a>,
    pub memory: Memory,
}

impl<'a> Arrays<'a> {
    /// Returns a list with one value per row, or `None` for NULL.
    pub fn per_row<T: Element>(
        self,
        parameter: &'static str,
        first: *const T,
        len: usize,
    ) -> Result<Option<PerRow<'a, T>>> {
        Ok(match self.memory {
            _ if first.is_null() => None,
            Memory::GUMBALL_HOST => Some(PerRow::Host(self.c.slice(parameter, first, len)?)),
            Memory::GUMBALL_DEVICE => {
                // SAFETY: the C caller ensures that `len` elements stay at `first` on the device until the
                // work is done.
                Some(PerRow::Device(unsafe { DeviceSlice::new(first.addr() as u64, T::DTYPE, len) }?))
            }
        })
    }

    /// Returns a value for all rows, which lies on the host, or a list with one per row, or `None` where both
    /// are NULL.
    pub fn for_all_or_each<T: Element>(
        self,
        (one, value): (&'static str, *const T),
        (each, first): (&'static str, *const T),
        len: usize,
    ) -> Result<Option<PerRow<'a, T>>> {
        if value.is_null() {
            return self.per_row(each, first, len);
        }
        if !first.is_null() {
            let reason = "one is for all outputs, the other for each";
            return Err(Error::Conflict { parameter: each, other: one, reason }.into());
        }
        Ok(Some(PerRow::All(self.c.slice(one, value, 1)?[0])))
    }

    /// Takes an array of `len` elements to be written, or NULL.
    pub fn out<T: Element + Default>(
        self,
        parameter: &'static str,
        first: *mut T,
        len: usize,
    ) -> Result<ListOut<'a, T>> {
        if first.is_null() { Ok(ListOut::Absent) } else { self.required(parameter, first, len) }
    }

    pub fn required<T: Element + Default>(
        self,
        parameter: &'static str,
        first: *mut T,
        len: usize,
    ) -> Result<ListOut<'a, T>> {
        if self.memory == Memory::GUMBALL_DEVICE {
            let address = device_address(parameter, first.cast_const(), len)?;
            // SAFETY: the C caller ensures that the device has memory for `len` elements at `address`.
            return Ok(ListOut::Device(unsafe { DeviceSlice::new(address, T::DTYPE, len) }?));
        }
        let out = self.c.out_slice(parameter, first, len)?;
        Ok(ListOut::Host { values: memory::filled("memory for outputs", T::default(), len)?, out })
    }
}

/// A list that an operator writes. On the host, where C's memory may be uninitialised, the operator writes
/// `values`, which [`ListOut::finish`] copies.
#[derive(Debug)]
pub(crate) enum ListOut<'a, T> {
    /// C handed in NULL.
    Absent,
    Host {
        values: Vec<T>,
        out: &'a mut [MaybeUninit<T>],
    },
    Device(DeviceSlice<'a>),
}

impl<T: Element> ListOut<'_, T> {
    /// Returns the column that the operator writes, if there is one.
    pub fn column(&mut self) -> Option<PerRowMut<'_, T>> {
        match self {
            Self::Absent => None,
            Self::Host { values, .. } => Some(PerRowMut::Host(values)),
            Self::Device(column) => Some(PerRowMut::Device(*column)),
        }
    }

    /// Copies what the operator wrote to C's memory, after it succeeded.
    pub fn finish(self) {
        if let Self::Host { values, out } = self {
            out.write_copy_of_slice(&values);
        }
    }
}
