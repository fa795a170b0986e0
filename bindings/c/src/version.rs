//! Versions: the header's that a program was built with, and the library's that it runs with.

use std::ffi::c_char;

/// The version of this interface, which changes when a function or a constant is removed or changed, not when
/// one is added or a struct grows.
pub const GUMBALL_ABI_VERSION: u32 = 1;

/// Returns GUMBALL_ABI_VERSION as the library was built with it: to be compared with the header's.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_abi_version() -> u32 {
    GUMBALL_ABI_VERSION
}

/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
