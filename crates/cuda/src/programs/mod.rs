//! The programs of kernels: their table (`kernels`), and the texts that the compilers read (`sources`).
//!
//! Depends on `abi`.

pub(crate) mod kernels;
pub(crate) mod sources;
