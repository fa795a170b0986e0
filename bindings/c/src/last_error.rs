//! What C reads of a thread's last error.

use std::ffi::c_char;

use crate::error::{Code, last, last_code};
use crate::versioned::{versioned, write};

/// The parts of an error. Texts stay until the thread's next error, and are empty where there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorParts {
    /// sizeof(gumball_error_parts), also where it is to be written.
    pub struct_size: usize,
    /// The parameter that it is about, or what is unavailable.
    pub parameter: *const c_char,
    /// Its value, its length, the unknown name, or the parameter it excludes.
    pub value: *const c_char,
    /// What is allowed, the names that are known, or the reason.
    pub allowed: *const c_char,
}

versioned!(ErrorParts, "gumball_error_parts", allowed: *const c_char);

/// Returns this thread's last error in words: the parameter, its value and the allowed range. Never NULL; it stays until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_error_message() -> *const c_char {
    last(|last| &last.message)
}

/// Returns the code of this thread's last error, GUMBALL_OK if there was none, and writes its parts, unless `out` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_error(out: *mut ErrorParts) -> Code {
    let code = last_code();
    if out.is_null() {
        return code;
    }
    let parts = ErrorParts {
        struct_size: 0,
        parameter: last(|last| &last.parameter),
        value: last(|last| &last.value),
        allowed: last(|last| &last.allowed),
    };
    // SAFETY: the C caller ensures that `out` points to the bytes that its `struct_size` names.
    match unsafe { write("out", out, parts) } {
        Ok(()) => code,
        Err(failure) => failure.remember(),
    }
}
