//! Lists with one element per row or per output, in the host's memory or in a device's.

use std::mem::MaybeUninit;

use gumball_engine::{DeviceColumn, PerRow, PerRowMut, Status};
use gumball_engine::{DeviceIntSlice, DeviceSlice, IntType};
use gumball_spec::memory;

use crate::error::{Failure, Result};
use crate::ffi::{check_array, out_slice, slice};

/// The memory that the arrays of an operator's call lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Host,
    Device,
}

/// A type of list elements.
pub(crate) trait Element: Copy {
    /// The type that a device's column of parameters states; `None`: numbers of 32 bits, which state none.
    const INT: Option<IntType>;
}

impl Element for f32 {
    const INT: Option<IntType> = None;
}

impl Element for i64 {
    const INT: Option<IntType> = Some(IntType::I64);
}

impl Element for u64 {
    const INT: Option<IntType> = Some(IntType::U64);
}

impl Element for u32 {
    const INT: Option<IntType> = Some(IntType::U32);
}

/// Returns the address of an array on a device; NULL is an error unless `len` is 0.
pub(crate) fn device_address<T>(parameter: &str, first: *const T, len: usize) -> Result<u64> {
    if first.is_null() && len > 0 {
        return Err(Failure::null(parameter));
    }
    Ok(first.addr() as u64)
}

/// Returns a column on a device.
///
/// # Safety
/// `address` is that of `len` elements on the device, of type `int` if that is given, otherwise of 32 bits.
/// Until the enqueued work is done, nobody frees or writes them; elements that the work writes, nobody reads
/// either.
unsafe fn device_column<'a>(address: u64, int: Option<IntType>, len: usize) -> Result<DeviceColumn<'a>> {
    Ok(match int {
        // SAFETY: the caller ensures that `len` integers of this type stay at `address` until the work is done.
        Some(int) => unsafe { DeviceIntSlice::new(address, int, len) }?.into(),
        // SAFETY: the caller ensures that `len` elements of 32 bits stay at `address` until the work is done.
        None => unsafe { DeviceSlice::new(address, len) }?.into(),
    })
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
        Memory::Host => Some(PerRow::Host(unsafe { slice(parameter, first, len) }?)),
        // SAFETY: the caller ensures that `len` elements stay at `first` on the device until the work is done.
        Memory::Device => Some(PerRow::Device(unsafe { device_column(first.addr() as u64, T::INT, len) }?)),
    })
}

/// A type of list elements that operators write.
pub(crate) trait Written: Copy + Default {
    /// The type that a device's column states; `None`: words of 32 bits.
    const INT: Option<IntType>;
}

impl Written for i32 {
    const INT: Option<IntType> = Some(IntType::I32);
}

impl Written for u32 {
    const INT: Option<IntType> = None;
}

impl Written for Status {
    const INT: Option<IntType> = None;
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
    Device(DeviceColumn<'a>),
}

impl<'a, T: Written> ListOut<'a, T> {
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
        if memory == Memory::Device {
            let address = device_address(parameter, first.cast_const(), len)?;
            // SAFETY: the caller ensures that `address` is that of memory for `len` elements on the device.
            return Ok(Self::Device(unsafe { device_column(address, T::INT, len) }?));
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
