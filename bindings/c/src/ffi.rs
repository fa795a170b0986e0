//! The boundary with C: checks of pointers that C hands in, and no panic that unwinds into C.
//!
//! The preamble of the header (`header.txt`) says what the C caller guarantees: handles are alive, and
//! pointers are NULL or point to as much as each function says. A SAFETY comment that says "the C caller
//! ensures" relies on that, by the [`Caller`] that it has.

use std::ffi::{CStr, c_char};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use gumball_engine::Error;

use crate::error::{Code, Failure, Result};

/// Constants as C hands them in, any number. cbindgen, which reads no macros, gives each its enum's name
/// (`tests/header.rs`).
macro_rules! numbers {
    ($($name:ident)*) => {
        $(pub(crate) type $name = i32;)*
    };
}

numbers! {
    DtypeNumber HeadKindNumber IntTypeNumber MemoryNumber RowLayoutNumber StepKindNumber VariantNumber
    VerifyModeNumber WhatNumber WorkKindNumber
}

/// The promise of the C program about each pointer that it hands in: it is NULL, or points to memory as the
/// header describes it. For `'a`, which is the call or as long as the header says, the program does not free
/// that memory, and writes it only if the header allows that.
///
/// Only the functions below make one, for the body of a function that C calls. A function that takes one
/// trusts the pointers and lengths that it is given, so these have to be C's: arguments, or fields of a
/// struct that C handed in, each with the length that the header names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a>(PhantomData<&'a ()>);

/// Runs the body of a function that returns a code; remembers its error.
pub(crate) fn call<'a>(body: impl FnOnce(Caller<'a>) -> Result<()>) -> Code {
    match guarded(body) {
        Ok(()) => Code::GUMBALL_OK,
        Err(failure) => failure.remember(),
    }
}

/// Runs the body of a function that returns a value; after an error it remembers that and returns
/// `otherwise`.
pub(crate) fn call_or<'a, T>(otherwise: T, body: impl FnOnce(Caller<'a>) -> Result<T>) -> T {
    guarded(body).unwrap_or_else(|failure| {
        failure.remember();
        otherwise
    })
}

/// Runs the body of a function that makes a handle; `None` after an error.
pub(crate) fn make<'a, T>(body: impl FnOnce(Caller<'a>) -> Result<T>) -> Option<Box<T>> {
    call_or(None, |c| Ok(Some(Box::new(body(c)?))))
}

pub(crate) fn end<T>(handle: Option<Box<T>>) {
    call_or((), |_| {
        drop(handle);
        Ok(())
    });
}

/// Turns a panic into an error. After a panic in the engine, sequences are unchanged and handles still work.
fn guarded<'a, T>(body: impl FnOnce(Caller<'a>) -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(|| body(Caller(PhantomData)))) {
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

impl<'a> Caller<'a> {
    /// Returns a handle in a struct, `None` for NULL.
    pub fn handle<T>(self, handle: *const T) -> Option<&'a T> {
        // SAFETY: the C caller ensures that `handle` is NULL or alive.
        unsafe { handle.as_ref() }
    }

    /// Returns the values of an array, which may be NULL if `len` is 0.
    pub fn slice<T>(self, parameter: &'static str, first: *const T, len: usize) -> Result<&'a [T]> {
        let first = check_array(parameter, first, len)?;
        // SAFETY: `check_array` found `first` and `len` sound. The C caller ensures that `len` initialised
        // values are there.
        Ok(unsafe { slice::from_raw_parts(first, len) })
    }

    /// Returns an array to be written, whose values may be uninitialised, and which may be NULL if `len` is
    /// 0.
    pub fn out_slice<T>(
        self,
        parameter: &'static str,
        first: *mut T,
        len: usize,
    ) -> Result<&'a mut [MaybeUninit<T>]> {
        let first = check_array(parameter, first, len)?.cast_mut();
        // SAFETY: `check_array` found `first` and `len` sound. The C caller ensures that memory for `len`
        // values is there, which nothing else reads or writes.
        Ok(unsafe { slice::from_raw_parts_mut(first.cast(), len) })
    }

    /// Returns numbers to be written, of a type for which any bits are a value.
    pub fn slice_mut<T>(self, parameter: &'static str, first: *mut T, len: usize) -> Result<&'a mut [T]> {
        let first = check_array(parameter, first, len)?.cast_mut();
        // SAFETY: `check_array` found `first` and `len` sound. The C caller ensures that `len` numbers are
        // there, which nothing else reads or writes.
        Ok(unsafe { slice::from_raw_parts_mut(first, len) })
    }

    /// Returns numbers to be written, which are zero before.
    pub fn zeroed_slice<T: Copy + Default>(
        self,
        parameter: &'static str,
        first: *mut T,
        len: usize,
    ) -> Result<&'a mut [T]> {
        let out = self.out_slice(parameter, first, len)?;
        out.fill(MaybeUninit::new(T::default()));
        // SAFETY: every value was just written.
        Ok(unsafe { out.assume_init_mut() })
    }

    pub fn list<T>(self, parameter: &'static str, first: *const T, len: usize) -> Result<Option<&'a [T]>> {
        if first.is_null() { Ok(None) } else { self.slice(parameter, first, len).map(Some) }
    }

    /// Returns a copy of a struct that stays as it is.
    pub fn plain<T: Copy>(self, parameter: &'static str, given: *const T) -> Result<T> {
        Ok(self.slice(parameter, given, 1)?[0])
    }

    pub fn text(self, parameter: &str, text: *const c_char) -> Result<&'a str> {
        require(parameter, self.optional_text(parameter, text)?)
    }

    pub fn optional_text(self, parameter: &str, text: *const c_char) -> Result<Option<&'a str>> {
        if text.is_null() {
            return Ok(None);
        }
        // SAFETY: `text` is not NULL, and the C caller ensures that it ends with a NUL.
        let text = unsafe { CStr::from_ptr(text) };
        let utf8 = text.to_str();
        utf8.map(Some)
            .map_err(|_| Failure::out_of_range(parameter, text.to_string_lossy(), "a text in UTF-8"))
    }
}

/// Returns the address of an array, aligned, not NULL, and of no more elements than memory has; of an empty
/// one any.
pub(crate) fn check_array<T>(parameter: &'static str, first: *const T, len: usize) -> Result<*const T> {
    if len == 0 {
        return Ok(ptr::dangling());
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
    Ok(first)
}

/// Returns the address of an array on a device; NULL is an error unless `len` is 0.
pub(crate) fn device_address<T>(parameter: &str, first: *const T, len: usize) -> Result<u64> {
    if first.is_null() && len > 0 {
        return Err(Failure::null(parameter));
    }
    Ok(first.addr() as u64)
}
