//! Lists with one element per row or per output, in the host's memory or in a device's.

use std::mem::MaybeUninit;

use gumball_engine::{ColumnType, DeviceSlice, IntType, PerRow, PerRowMut, Status};
use gumball_spec::memory;

use crate::error::Result;
use crate::ffi::{check_array, device_address, out_slice, slice};
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

/// Returns a list with one value per row, or `None` for NULL.
///
/// # Safety
/// `first` is NULL or the address of `len` elements in that memory, which nobody frees or writes for `'a`; on
/// a device, until the enqueued work is done.
pub(crate) unsafe fn per_row<'a, T: Element>(
    memory: Memory,
    parameter: &'static str,
    first: *const T,
    len: usize,
) -> Result<Option<PerRow<'a, T>>> {
    Ok(match memory {
        _ if first.is_null() => None,
        // SAFETY: the caller ensures that `first` points to `len` elements, which nobody writes for `'a`.
        Memory::GUMBALL_HOST => Some(PerRow::Host(unsafe { slice(parameter, first, len) }?)),
        Memory::GUMBALL_DEVICE => {
            // SAFETY: the caller ensures that `len` elements stay at `first` on the device until the work is done.
            Some(PerRow::Device(unsafe { DeviceSlice::new(first.addr() as u64, T::DTYPE, len) }?))
        }
    })
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

impl<'a, T: Element + Default> ListOut<'a, T> {
    /// Takes an array of `len` elements to be written.
    ///
    /// # Safety
    /// `first` is NULL or the address of memory for `len` elements, which nobody else uses for `'a`; on a
    /// device, until the enqueued work is done.
    pub unsafe fn required(
        memory: Memory,
        parameter: &'static str,
        first: *mut T,
        len: usize,
    ) -> Result<Self> {
        if memory == Memory::GUMBALL_DEVICE {
            let address = device_address(parameter, first.cast_const(), len)?;
            // SAFETY: the caller ensures that `address` is that of memory for `len` elements on the device.
            return Ok(Self::Device(unsafe { DeviceSlice::new(address, T::DTYPE, len) }?));
        }
        check_array(parameter, first, len)?;
        let values = memory::filled("memory for outputs", T::default(), len)?;
        // SAFETY: the caller ensures that `first` points to memory for `len` elements that nobody else uses.
        Ok(Self::Host { values, out: unsafe { out_slice(parameter, first, len) }? })
    }

    /// Takes an array of `len` elements to be written, or NULL.
    ///
    /// # Safety
    /// That of [`ListOut::required`].
    pub unsafe fn optional(
        memory: Memory,
        parameter: &'static str,
        first: *mut T,
        len: usize,
    ) -> Result<Self> {
        if first.is_null() {
            return Ok(Self::Absent);
        }
        // SAFETY: the caller ensures what `required` asks for.
        unsafe { Self::required(memory, parameter, first, len) }
    }

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
            for (element, value) in out.iter_mut().zip(values) {
                element.write(value);
            }
        }
    }
}
