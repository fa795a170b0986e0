//! Two answers about a sampler: what every stage did to a row, and what this machine offers.
//!
//! [`trace`] tells a row's way from logits to a token by the oracle's own functions; [`page`] and the terminal show it.
//! [`doctor`] examines the machine. Both are subcommands, with the flags and files that they take, so that the `gumball`
//! command and `python -m gumball` say the same in the same words; [`command`] is these two alone.
#![forbid(unsafe_code)]

pub mod error;

pub mod output;
pub mod text;

pub mod machine;
pub mod reading;

pub mod logits;
pub mod sampling;
pub mod state;

pub mod records;

pub mod engine;
pub mod trace;

pub mod page;

pub mod terminal;

pub mod self_test;

pub mod cuda;

pub mod doctor;
pub mod inspect;

pub mod command;

pub use error::{Error, Result};

/// Returns a seed nobody chose.
///
/// # Panics
/// If the system gives no entropy.
#[must_use]
pub fn fresh_seed() -> u64 {
    getrandom::u64().expect("the system gives entropy")
}
