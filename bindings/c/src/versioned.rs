//! Structs that grow: programs built with an older or a newer header work with this library.
//!
//! Each struct begins with its size in the program's header. New fields are added at the end, and 0 is the
//! default of every field, so fields that an older program lacks are off. A newer program must leave fields
//! at 0 that this library lacks. A new field never takes the bytes of old padding, because padding may hold
//! anything.

use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::error::{Failure, Result};

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
        // SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, raw pointers, optional functions and structs of these,
        // so any bytes are a value.
        unsafe impl crate::versioned::VersionedStruct for $type {
            const NAME: &'static str = $name;
            const LEAST: usize = std::mem::offset_of!(Self, $last) + size_of::<$of>();
        }
    };
}
pub(crate) use versioned;

/// Returns a struct that C handed in; fields that C's header lacks are 0. The copy's `struct_size` is this
/// library's size, so that the copy can itself be read with `read`.
///
/// # Safety
/// `given` is NULL or points to the bytes that its `struct_size` names.
pub(crate) unsafe fn read<T: VersionedStruct>(parameter: &str, given: *const T) -> Result<T> {
    // SAFETY: the caller ensures that `given` is NULL or begins with its `struct_size`.
    let size = unsafe { stated_size(parameter, given) }?;
    let mut value = MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: the caller ensures that `given` has `size` bytes, and `known` is at most that and the size of
    // `value`.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known) };
    let rest = given.cast::<u8>().wrapping_add(size_of::<T>());
    // SAFETY: the caller ensures that `given` has `size` bytes; the rest, empty if C's struct is smaller,
    // ends there.
    let rest = unsafe { slice::from_raw_parts(rest, size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        let allowed =
            "a struct whose fields beyond this library's are zero; the header is newer than the library";
        return Err(Failure::out_of_range(field::<T>(), size, allowed));
    }
    let own_size = value.as_mut_ptr().cast::<usize>();
    // SAFETY: `VersionedStruct` ensures that `T` begins with its size, a `usize`; `value` is aligned and large enough.
    unsafe { own_size.write(size_of::<T>()) };
    // SAFETY: `VersionedStruct` ensures that any bytes are a valid `T`, and all bytes were zeroed above.
    Ok(unsafe { value.assume_init() })
}

/// Returns a struct that C handed in, or zeros for NULL.
///
/// # Safety
/// `given` is NULL or points to the bytes that its `struct_size` names.
pub(crate) unsafe fn read_or_default<T: VersionedStruct>(parameter: &str, given: *const T) -> Result<T> {
    if given.is_null() {
        // SAFETY: `VersionedStruct` ensures that any bytes are a valid `T`, zeros included.
        return Ok(unsafe { MaybeUninit::zeroed().assume_init() });
    }
    // SAFETY: the caller ensures that `given` points to the bytes that its `struct_size` names.
    unsafe { read(parameter, given) }
}

/// Returns the structs of an array, which all state one size.
///
/// # Safety
/// `first` is NULL or points to `len` structs of the bytes that the first one's `struct_size` names.
pub(crate) unsafe fn read_each<T: VersionedStruct>(
    parameter: &'static str,
    first: *const T,
    len: usize,
) -> Result<Vec<T>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller ensures that `first` is NULL or begins with its `struct_size`.
    let size = unsafe { stated_size(parameter, first) }?;
    let read_one = |index: usize| {
        let given = first.wrapping_byte_add(index * size);
        // SAFETY: the caller ensures that as many structs of `size` bytes are there.
        let other = unsafe { stated_size(parameter, given) }?;
        if other != size {
            let allowed = format!("{size}, as in the first of the array");
            return Err(Failure::out_of_range(field::<T>(), other, &allowed));
        }
        // SAFETY: the caller ensures that `given` points to the bytes that its `struct_size` names.
        unsafe { read(parameter, given) }
    };
    (0..len).map(read_one).collect()
}

/// Writes a struct for C, up to the size that C's header knows. Fields that only C's header knows become 0.
///
/// # Safety
/// `out` is NULL or points to the bytes that its `struct_size` names, which nobody else uses.
pub(crate) unsafe fn write<T: VersionedStruct>(parameter: &str, out: *mut T, value: T) -> Result<()> {
    // SAFETY: the caller ensures that `out` is NULL or begins with its `struct_size`.
    let size = unsafe { stated_size(parameter, out) }?;
    let (start, known) = (size_of::<usize>(), size.min(size_of::<T>()));
    let (from, to) = (ptr::from_ref(&value).cast::<u8>(), out.cast::<u8>());
    // SAFETY: `known` is at most the size of `value` and the `size` bytes that the caller ensures at `out`.
    // The copy begins after `struct_size`, which stays.
    unsafe { ptr::copy_nonoverlapping(from.wrapping_add(start), to.wrapping_add(start), known - start) };
    // SAFETY: the caller ensures that `out` has `size` bytes, of which these are the last `size - known`.
    unsafe { ptr::write_bytes(to.wrapping_add(known), 0, size - known) };
    Ok(())
}

/// Returns the size that C states.
///
/// # Safety
/// `given` is NULL or points to at least its `struct_size`.
unsafe fn stated_size<T: VersionedStruct>(parameter: &str, given: *const T) -> Result<usize> {
    if given.is_null() {
        return Err(Failure::null(parameter));
    }
    if !given.is_aligned() {
        let allowed = format!("an address that is a multiple of {}", align_of::<T>());
        return Err(Failure::out_of_range(parameter, format!("{given:p}"), &allowed));
    }
    // SAFETY: `given` is aligned and not NULL; `VersionedStruct` puts `struct_size` first, and the caller ensures that
    // it is there.
    let size = unsafe { given.cast::<usize>().read() };
    // No version's struct comes near 4096 bytes; the upper limit catches sizes that were never set.
    if !(T::LEAST..=4096).contains(&size) {
        return Err(Failure::out_of_range(field::<T>(), size, &format!("sizeof({})", T::NAME)));
    }
    Ok(size)
}

fn field<T: VersionedStruct>() -> String {
    format!("{}.struct_size", T::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A struct that has gained one field since its first version.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    struct Now {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, valid for all bytes.
    unsafe impl VersionedStruct for Now {
        const NAME: &'static str = "now";
        const LEAST: usize = 16;
    }

    fn read_words<const N: usize>(words: [u64; N]) -> std::result::Result<(u64, u64), String> {
        // SAFETY: in each test that is not refused, there are at least as many bytes of words as the first
        // word names.
        let now = unsafe { read("now", words.as_ptr().cast::<Now>()) };
        now.map(|now| (now.old, now.new)).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn an_older_program_knows_less_and_a_newer_one_may_not_use_more() {
        assert_eq!(read_words([16, 5]), Ok((5, 0)));
        assert_eq!(read_words([24, 5, 6]), Ok((5, 6)));
        assert_eq!(read_words([32, 5, 6, 0]), Ok((5, 6)));
        assert!(read_words([32, 5, 6, 7]).unwrap_err().contains("the header is newer than the library"));
        assert!(read_words([0, 5]).unwrap_err().contains("now.struct_size is 0, but must be sizeof(now)"));
        assert!(read_words([1 << 40, 5]).is_err());
    }

    #[test]
    fn what_was_read_of_a_newer_program_can_be_read_again() {
        let words = [32u64, 5, 6, 0];
        // SAFETY: `words` has the 32 bytes that its first word names.
        let once = unsafe { read("now", words.as_ptr().cast::<Now>()) }.expect("its tail is zero");
        assert_eq!(once.struct_size, size_of::<Now>());
        // SAFETY: `once` has the bytes that its `struct_size` names, as asserted before.
        let twice = unsafe { read("now", &raw const once) }.expect("it is this library's size");
        assert_eq!((twice.old, twice.new), (5, 6));
    }

    #[test]
    fn what_is_written_ends_where_the_programs_struct_does() {
        let value = Now { struct_size: 0, old: 5, new: 6 };
        let written = |mut words: [u64; 4]| {
            // SAFETY: `words` has 32 bytes, and its first word names at most that.
            unsafe { write("now", words.as_mut_ptr().cast(), value) }.expect("it is a size");
            words
        };
        assert_eq!(written([16, 9, 9, 9]), [16, 5, 9, 9]);
        assert_eq!(written([24, 9, 9, 9]), [24, 5, 6, 9]);
        assert_eq!(written([32, 9, 9, 9]), [32, 5, 6, 0]);
    }
}
