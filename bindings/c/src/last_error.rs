//! What C reads of a thread's last error.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use crate::error::{Code, last, last_code};

/// The parts of an error. Texts stay until the thread's next error, and are empty where there is none. This struct stays as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ErrorParts {
    /// The parameter that it is about, or what is unavailable.
    pub parameter: *const c_char,
    /// Its value, its length, the unknown name, or the parameter it excludes.
    pub value: *const c_char,
    /// What is allowed, the names that are known, or the reason.
    pub allowed: *const c_char,
}

/// Returns this thread's last error in words: the parameter, its value and the allowed range. Never NULL; it stays until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_error_message() -> *const c_char {
    last(|last| &last.message)
}

/// Returns the code of this thread's last error, GUMBALL_OK if there was none, and writes its parts, unless `out` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_error(out: Option<&mut MaybeUninit<ErrorParts>>) -> Code {
    if let Some(out) = out {
        out.write(ErrorParts {
            parameter: last(|last| &last.parameter),
            value: last(|last| &last.value),
            allowed: last(|last| &last.allowed),
        });
    }
    last_code()
}
