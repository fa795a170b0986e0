//! Structs that grow: programs built with an older or a newer header work with this library.
//!
//! Each struct begins with its size in the program's header. New fields are added at the end, and 0 is the
//! default of every field, so fields that an older program lacks are off. A newer program must leave fields
//! at 0 that this library lacks. A new field never takes the bytes of old padding, because padding may hold
//! anything.

use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::error::{Failure, Result};
use crate::ffi::{Caller, check_array};

/// A struct whose size may differ between the C program and this library.
///
/// # Safety
/// It is `repr(C)`, begins with `struct_size: usize`, and any bytes are a valid value: its fields are
/// numbers, raw pointers and optional functions.
pub(crate) unsafe trait VersionedStruct: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// The end of its last field in the ABI's first version, in bytes; it stays when fields are added.
    const LEAST: usize;
}

/// Gives a struct its name in C, and the last field that it had in the ABI's first version.
macro_rules! versioned {
    ($type:ty, $name:literal, $last:ident: $of:ty) => {
        // SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, raw pointers, optional
        // functions and structs of these, so any bytes are a value.
        unsafe impl crate::versioned::VersionedStruct for $type {
            const NAME: &'static str = $name;
            const LEAST: usize = std::mem::offset_of!(Self, $last) + size_of::<$of>();
        }
    };
}
pub(crate) use versioned;

pub(crate) fn zeroed<T: VersionedStruct>() -> T {
    // SAFETY: `VersionedStruct` ensures that any bytes are a valid `T`, zeros included.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

impl Caller<'_> {
    /// Returns a struct that C handed in; fields that C's header lacks are 0.
    pub fn read<T: VersionedStruct>(self, parameter: &'static str, given: *const T) -> Result<T> {
        let size = self.stated_size(parameter, given)?;
        let mut value = MaybeUninit::<T>::zeroed();
        let known = size.min(size_of::<T>());
        // SAFETY: the C caller ensures that `given` has `size` bytes, and `known` is at most that and the
        // size of `value`.
        unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known) };
        let rest = given.cast::<u8>().wrapping_add(size_of::<T>());
        // SAFETY: the C caller ensures that `given` has `size` bytes; the rest, empty if C's struct is
        // smaller, ends there.
        let rest = unsafe { slice::from_raw_parts(rest, size - known) };
        if rest.iter().any(|byte| *byte != 0) {
            let allowed =
                "a struct whose fields beyond this library's are zero; the header is newer than the library";
            return Err(Failure::out_of_range(field::<T>(), size, allowed));
        }
        // SAFETY: `VersionedStruct` ensures that any bytes are a valid `T`, and all bytes were zeroed above.
        Ok(unsafe { value.assume_init() })
    }

    /// Returns a struct that C handed in, or zeros for NULL.
    pub fn read_or_default<T: VersionedStruct>(self, parameter: &'static str, given: *const T) -> Result<T> {
        if given.is_null() { Ok(zeroed()) } else { self.read(parameter, given) }
    }

    /// Returns the structs of an array, which all state one size.
    pub fn read_each<T: VersionedStruct>(
        self,
        parameter: &'static str,
        first: *const T,
        len: usize,
    ) -> Result<Vec<T>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let size = self.stated_size(parameter, first)?;
        let read_one = |index: usize| {
            let given = first.wrapping_byte_add(index * size);
            let other = self.stated_size(parameter, given)?;
            if other != size {
                let allowed = format!("{size}, as in the first of the array");
                return Err(Failure::out_of_range(field::<T>(), other, &allowed));
            }
            self.read(parameter, given)
        };
        (0..len).map(read_one).collect()
    }

    /// Writes a struct for C, up to the size that C's header knows. Fields that only C's header knows become
    /// 0.
    pub fn write<T: VersionedStruct>(self, parameter: &'static str, out: *mut T, value: T) -> Result<()> {
        let size = self.stated_size(parameter, out)?;
        let (start, known) = (size_of::<usize>(), size.min(size_of::<T>()));
        let (from, to) = (ptr::from_ref(&value).cast::<u8>(), out.cast::<u8>());
        // SAFETY: `known` is at most the size of `value` and the `size` bytes that the C caller ensures at
        // `out`. The copy begins after `struct_size`, which stays.
        unsafe { ptr::copy_nonoverlapping(from.wrapping_add(start), to.wrapping_add(start), known - start) };
        // SAFETY: the C caller ensures that `out` has `size` bytes, of which these are the last
        // `size - known`.
        unsafe { ptr::write_bytes(to.wrapping_add(known), 0, size - known) };
        Ok(())
    }

    fn stated_size<T: VersionedStruct>(self, parameter: &'static str, given: *const T) -> Result<usize> {
        check_array(parameter, given, 1)?;
        // SAFETY: `given` is aligned and not NULL; `VersionedStruct` puts `struct_size` first, and the C
        // caller ensures that it is there.
        let size = unsafe { given.cast::<usize>().read() };
        // No version's struct comes near 4096 bytes; the upper limit catches sizes that were never set.
        if !(T::LEAST..=4096).contains(&size) {
            return Err(Failure::out_of_range(field::<T>(), size, &format!("sizeof({})", T::NAME)));
        }
        Ok(size)
    }
}

fn field<T: VersionedStruct>() -> String {
    format!("{}.struct_size", T::NAME)
}
