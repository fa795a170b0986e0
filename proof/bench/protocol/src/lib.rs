//! The messages of the bench's runner and its engines, the loop that times an engine, and code that the
//! command and the tests share with them: rows made from a seed, chi-square, and the list of tests that are
//! skipped.
//!
//! An engine is a program of its own: it reads one [`Request`] a line from its input and answers
//! one [`Reply`] a line on its output. A Rust engine implements [`Engine`] and calls [`serve`];
//! any other language writes the same lines. This crate has
//! no engine, and starts no program.

#![forbid(unsafe_code)]

#[cfg(feature = "statistics")]
mod chi_square;
mod definition;
pub mod generated;
mod message;
mod parameters;
mod rows;
mod serve;
pub mod skipped;
mod words;

#[cfg(feature = "statistics")]
pub use chi_square::{ChiSquare, chi_square};
pub use definition::{Definition, Dtype, Residence, RowKind, Task};
pub use message::{Identity, Reply, Request};
pub use parameters::Parameters;
pub use rows::{Row, Rows};
pub use serve::{Draw, Engine, Prepared, serve};
pub use words::Words;
