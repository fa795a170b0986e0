//! Structs that grow: a program built with an older or a newer header than this library's works with it.
//!
//! Each begins with its size as the program knows it. New fields come at the end, and zero is the default of every field, so
//! what an older program does not know is off. A newer program may set nothing that this library does not know. Padding never
//! becomes a field, as it may hold anything.

use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::error::{Failure, Result};

/// A struct that C and this library may know in different sizes.
///
/// # Safety
/// It is `repr(C)`, begins with `struct_size: usize`, and any bytes are a value of it: its fields are numbers, raw pointers
/// and optional functions.
pub(crate) unsafe trait Grows: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Where its last field ended when the ABI's version began: it stays when fields are added.
    const LEAST: usize;
}

/// Returns what C handed in; what it does not know is zero. The size of the copy is this library's, so that nobody reads the copy by
/// the size of what C has.
///
/// # Safety
/// `given` is NULL or points to as many bytes as its `struct_size` says.
pub(crate) unsafe fn read<T: Grows>(parameter: &str, given: *const T) -> Result<T> {
    // SAFETY: the caller vouches for the bytes.
    let size = unsafe { size_of_given(parameter, given) }?;
    let mut value = MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: there are as many bytes there, the caller says, and there is room for them here.
    unsafe { ptr::copy_nonoverlapping(given.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known) };
    let rest = given.cast::<u8>().wrapping_add(size_of::<T>());
    // SAFETY: the caller vouches for the bytes up to the given size.
    let rest = unsafe { slice::from_raw_parts(rest, size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        let allowed =
            "a struct whose fields beyond this library's are zero; the header is newer than the library";
        return Err(Failure::out_of_range(field::<T>(), size, allowed));
    }
    let own_size = value.as_mut_ptr().cast::<usize>();
    // SAFETY: the struct begins with its size, says the trait, and there is room for it here.
    unsafe { own_size.write(size_of::<T>()) };
    // SAFETY: any bytes are a value, says the trait.
    Ok(unsafe { value.assume_init() })
}

/// Returns what C handed in, or zeros for NULL.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_or_default<T: Grows>(parameter: &str, given: *const T) -> Result<T> {
    if given.is_null() {
        // SAFETY: any bytes are a value, says the trait.
        return Ok(unsafe { MaybeUninit::zeroed().assume_init() });
    }
    // SAFETY: the caller vouches for the bytes.
    unsafe { read(parameter, given) }
}

/// Writes a struct for C, as far as it knows it; what it knows beyond is zero then.
///
/// # Safety
/// `out` is NULL or points to as many bytes as its `struct_size` says, which are nobody else's.
pub(crate) unsafe fn write<T: Grows>(parameter: &str, out: *mut T, value: T) -> Result<()> {
    // SAFETY: the caller vouches for the bytes.
    let size = unsafe { size_of_given(parameter, out) }?;
    let (start, known) = (size_of::<usize>(), size.min(size_of::<T>()));
    let (from, to) = (ptr::from_ref(&value).cast::<u8>(), out.cast::<u8>());
    // SAFETY: both have as many bytes, as was just seen; the size stays as it is.
    unsafe { ptr::copy_nonoverlapping(from.wrapping_add(start), to.wrapping_add(start), known - start) };
    // SAFETY: the bytes up to the given size are the struct's.
    unsafe { ptr::write_bytes(to.wrapping_add(known), 0, size - known) };
    Ok(())
}

/// Returns the size that C says.
///
/// # Safety
/// `given` is NULL or points to a `struct_size` at least.
unsafe fn size_of_given<T: Grows>(parameter: &str, given: *const T) -> Result<usize> {
    if given.is_null() {
        return Err(Failure::null(parameter));
    }
    if !given.is_aligned() {
        let allowed = format!("an address that is a multiple of {}", align_of::<T>());
        return Err(Failure::out_of_range(parameter, format!("{given:p}"), &allowed));
    }
    // SAFETY: the struct begins with its size, says the trait, and that is there, says the caller.
    let size = unsafe { given.cast::<usize>().read() };
    // No struct of any version comes near the upper end: it finds sizes that were never set.
    if !(T::LEAST..=4096).contains(&size) {
        return Err(Failure::out_of_range(field::<T>(), size, &format!("sizeof({})", T::NAME)));
    }
    Ok(size)
}

fn field<T: Grows>() -> String {
    format!("{}.struct_size", T::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The struct as this library knows it: one field more than at first.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    struct Now {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: it is as the trait says, and holds numbers alone.
    unsafe impl Grows for Now {
        const NAME: &'static str = "now";
        const LEAST: usize = 16;
    }

    fn read_words<const N: usize>(words: [u64; N]) -> std::result::Result<(u64, u64), String> {
        // SAFETY: the words are at least as many bytes as the first of them says, in each test.
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
        // SAFETY: the words are as many bytes as the first of them says.
        let once = unsafe { read("now", words.as_ptr().cast::<Now>()) }.expect("its tail is zero");
        assert_eq!(once.struct_size, size_of::<Now>());
        // SAFETY: the copy has as many bytes as it says, as was just seen.
        let twice = unsafe { read("now", &raw const once) }.expect("it is this library's size");
        assert_eq!((twice.old, twice.new), (5, 6));
    }

    #[test]
    fn what_is_written_ends_where_the_programs_struct_does() {
        let value = Now { struct_size: 0, old: 5, new: 6 };
        let written = |mut words: [u64; 4]| {
            // SAFETY: the words are at least as many bytes as the first of them says.
            unsafe { write("now", words.as_mut_ptr().cast(), value) }.expect("it is a size");
            words
        };
        assert_eq!(written([16, 9, 9, 9]), [16, 5, 9, 9]);
        assert_eq!(written([24, 9, 9, 9]), [24, 5, 6, 9]);
        assert_eq!(written([32, 9, 9, 9]), [32, 5, 6, 0]);
    }
}
