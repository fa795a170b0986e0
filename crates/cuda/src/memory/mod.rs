//! Descriptions of device memory that callers provide: rows, columns and matrices, checked when they are made.
//!
//! Depends on `abi` and `driver`.

pub(crate) mod int_matrix;
pub(crate) mod rows;
