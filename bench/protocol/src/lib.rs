//! What the bench's runner and its engines say to each other, and the loop that times an engine.
//!
//! An engine is a program of its own: it reads one [`Request`] a line from its input and answers
//! one [`Reply`] a line on its output. A Rust engine implements [`Engine`] and calls [`serve`];
//! any other language writes the same lines. This crate knows no engine and starts no program.

#![forbid(unsafe_code)]

mod definition;
mod message;
mod parameters;
mod rows;
mod serve;
mod splitmix;

pub use definition::{Definition, Dtype, Residence, RowKind, Task};
pub use message::{Identity, Reply, Request};
pub use parameters::Parameters;
pub use rows::{Row, Rows};
pub use serve::{Draw, Engine, Prepared, serve};
pub use splitmix::SplitMix64;
