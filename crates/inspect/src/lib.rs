//! Answers about a sampler: what it draws, what every stage did to a row, how long that takes, and what this machine offers.
//!
//! [`trace`] tells a row's way from logits to a token by the oracle's own functions; [`page`] and the terminal show it.
//! [`doctor`] examines the machine, [`sample`] draws from files of logits, [`bench`] measures, [`explore`] says where the explorer's
//! page is. They are subcommands, with the flags and files that they take, so that the `gumball` of the Python package is that of
//! Rust as far as it goes; `command` is these alone. Without the feature of that name there is the trace and its page alone, for
//! programs without files, devices and a terminal.
#![forbid(unsafe_code)]

pub mod error;

#[cfg(feature = "command")]
pub mod output;
pub mod shown;
pub mod text;

#[cfg(feature = "command")]
pub mod machine;
#[cfg(feature = "command")]
pub mod reading;

#[cfg(feature = "command")]
pub mod logits;
#[cfg(feature = "command")]
pub mod sampling;
pub mod settings;
#[cfg(feature = "command")]
pub mod state;

pub mod records;

#[cfg(feature = "command")]
pub mod engine;
pub mod trace;

pub mod page;

pub mod terminal;

#[cfg(feature = "command")]
pub mod self_test;

#[cfg(feature = "command")]
pub mod cuda;

#[cfg(feature = "command")]
pub mod bench;
#[cfg(feature = "command")]
pub mod doctor;
#[cfg(feature = "command")]
pub mod explore;
#[cfg(feature = "command")]
pub mod inspect;
#[cfg(feature = "command")]
pub mod sample;

#[cfg(feature = "command")]
pub mod command;

pub use error::{Error, Result};

/// Returns a seed nobody chose.
///
/// # Panics
/// If the system gives no entropy.
#[cfg(feature = "command")]
#[must_use]
pub fn fresh_seed() -> u64 {
    getrandom::u64().expect("the system gives entropy")
}
