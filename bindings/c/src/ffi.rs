//! The boundary with C: checks of pointers that C hands in, and no panic that unwinds into C.
//!
//! The preamble of the header (`header.txt`) says what the C caller guarantees: handles are alive, and
//! pointers are NULL or point to as much as each function says. A SAFETY comment that says "the C caller
//! ensures" relies on that.

use std::ffi::{CStr, c_char};
use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use gumball_engine::Error;

use crate::error::{Code, Failure, Result};

/// Runs the body of a function that returns a code; remembers its error.
pub(crate) fn call(body: impl FnOnce() -> Result<()>) -> Code {
    match guarded(body) {
        Ok(()) => Code::GUMBALL_OK,
        Err(failure) => failure.remember(),
    }
}

/// Runs the body of a function that returns a value; after an error it remembers that and returns
/// `otherwise`.
pub(crate) fn call_or<T>(otherwise: T, body: impl FnOnce() -> Result<T>) -> T {
    guarded(body).unwrap_or_else(|failure| {
        failure.remember();
        otherwise
    })
}

/// Runs the body of a function that makes a handle; `None` after an error.
pub(crate) fn make<T>(body: impl FnOnce() -> Result<T>) -> Option<Box<T>> {
    call_or(None, || Ok(Some(Box::new(body()?))))
}

/// Frees a handle.
pub(crate) fn end<T>(handle: Option<Box<T>>) {
    call_or((), || {
        drop(handle);
        Ok(())
    });
}

/// Turns a panic into an error. After a panic in the engine, sequences are unchanged and handles still work.
fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => Err(Failure::panic(&*payload)),
    }
}

/// Returns a handle or a pointer that must not be NULL.
pub(crate) fn require<T>(parameter: &str, pointer: Option<T>) -> Result<T> {
    pointer.ok_or_else(|| Failure::null(parameter))
}

/// Returns what one of C's constants stands for; `all` has them from 0 on.
pub(crate) fn constant<C: Debug, T: Copy>(parameter: &str, given: i32, all: &[(C, T)]) -> Result<T> {
    if let Some((_, found)) = usize::try_from(given).ok().and_then(|given| all.get(given)) {
        return Ok(*found);
    }
    let names: Vec<String> = all.iter().map(|(name, _)| format!("{name:?}")).collect();
    let (last, others) = names.split_last().expect("several");
    Err(Failure::out_of_range(parameter, given, &format!("{} or {last}", others.join(", "))))
}

/// Returns the values of an array, which may be NULL if `len` is 0.
///
/// # Safety
/// `first` is NULL or points to `len` initialised values, which nobody writes for `'a`.
pub(crate) unsafe fn slice<'a, T>(parameter: &'static str, first: *const T, len: usize) -> Result<&'a [T]> {
    check_array(parameter, first, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: `check_array` found `first` aligned, not NULL, and `len` in range. The caller ensures that
    // `len` initialised values are there, which nobody writes for `'a`.
    Ok(unsafe { slice::from_raw_parts(first, len) })
}

/// Returns an array to be written, whose values may be uninitialised.
///
/// # Safety
/// `first` is NULL or points to memory for `len` values, which nobody else uses for `'a`.
pub(crate) unsafe fn out_slice<'a, T>(
    parameter: &'static str,
    first: *mut T,
    len: usize,
) -> Result<&'a mut [MaybeUninit<T>]> {
    check_array(parameter, first, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: `check_array` found `first` aligned, not NULL, and `len` in range. The caller ensures that
    // memory for `len` values is there, which nobody else uses for `'a`.
    Ok(unsafe { slice::from_raw_parts_mut(first.cast(), len) })
}

/// Returns an array, or `None` for NULL.
///
/// # Safety
/// `first` is NULL or points to `len` initialised values, which nobody writes for `'a`.
pub(crate) unsafe fn list<'a, T>(
    parameter: &'static str,
    first: *const T,
    len: usize,
) -> Result<Option<&'a [T]>> {
    if first.is_null() {
        return Ok(None);
    }
    // SAFETY: `first` is not NULL, and the caller ensures what `slice` asks for.
    unsafe { slice(parameter, first, len) }.map(Some)
}

/// Returns a copy of a struct that stays as it is.
///
/// # Safety
/// `given` is NULL or points to an initialised value.
pub(crate) unsafe fn plain<T: Copy>(parameter: &'static str, given: *const T) -> Result<T> {
    // SAFETY: the caller ensures that there is one value.
    Ok(unsafe { slice(parameter, given, 1) }?[0])
}

pub(crate) fn check_array<T>(parameter: &'static str, first: *const T, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    if first.is_null() {
        return Err(Failure::null(parameter));
    }
    if !first.is_aligned() {
        let allowed = format!("an address that is a multiple of {}", align_of::<T>());
        return Err(Failure::out_of_range(parameter, format!("{first:p}"), &allowed));
    }
    let most = isize::MAX as usize / size_of::<T>();
    if len > most {
        return Err(Error::length(parameter, len, format!("at most {most} elements")).into());
    }
    Ok(())
}

/// Returns the address of an array on a device; NULL is an error unless `len` is 0.
pub(crate) fn device_address<T>(parameter: &str, first: *const T, len: usize) -> Result<u64> {
    if first.is_null() && len > 0 {
        return Err(Failure::null(parameter));
    }
    Ok(first.addr() as u64)
}

/// Returns a text; NULL is an error.
///
/// # Safety
/// `text` is NULL or points to a text that ends with a NUL and that nobody writes for `'a`.
pub(crate) unsafe fn text<'a>(parameter: &str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(Failure::null(parameter));
    }
    // SAFETY: `text` is not NULL, and the caller ensures that it ends with a NUL and that nobody writes it
    // for `'a`.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::out_of_range(parameter, text.to_string_lossy(), "a text in UTF-8"))
}

/// Returns a text, or `None` for NULL.
///
/// # Safety
/// `given` is NULL or points to a text that ends with a NUL and that nobody writes for `'a`.
pub(crate) unsafe fn optional_text<'a>(parameter: &str, given: *const c_char) -> Result<Option<&'a str>> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: `given` is not NULL, and the caller ensures that it ends with a NUL and that nobody writes it
    // for `'a`.
    unsafe { text(parameter, given) }.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::last_code;

    #[test]
    fn the_last_error_is_the_threads_own() {
        call(|| Err(Failure::null("here")));
        std::thread::spawn(|| assert_eq!(last_code(), Code::GUMBALL_OK)).join().expect("no panic");
        assert_eq!(last_code(), Code::GUMBALL_OUT_OF_RANGE);
    }
}
