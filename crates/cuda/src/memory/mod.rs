//! Device memory: buffers that own some, and rows, columns and matrices that callers provide, checked when
//! they are made.
//!
//! Depends on `abi` and `driver`.

pub(crate) mod buffer;
pub(crate) mod columns;
pub(crate) mod int_matrix;
pub(crate) mod rows;
