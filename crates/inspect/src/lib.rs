//! The subcommands of `gumball` that need no model, and the trace of a row.
//!
//! [`trace`] tells a row's way from logits to a token by the oracle's own functions; [`page`] and the
//! terminal show it ([`inspect`]). [`sample`] draws from files of logits, [`doctor`] examines the machine,
//! [`explore`] finds the explorer's page. The command in Rust and the one of
//! the Python package both run them, so flags and words are the same; [`command`] is the latter's command
//! line. Without the feature `command` the crate has the trace and its page alone, for programs without
//! files, devices and a terminal.
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
mod one_slot;
#[cfg(feature = "command")]
pub mod self_test;

#[cfg(feature = "command")]
pub mod cuda;

#[cfg(feature = "command")]
pub mod detect;

#[cfg(feature = "command")]
pub mod doctor;
#[cfg(feature = "command")]
pub mod explore;
#[cfg(feature = "command")]
pub mod inspect;
#[cfg(feature = "command")]
pub mod receipt;
#[cfg(feature = "command")]
pub mod sample;

#[cfg(feature = "command")]
pub mod command;

pub use error::{Error, Result};

/// Returns a random seed.
///
/// # Panics
/// If the system gives no entropy.
#[cfg(feature = "command")]
#[must_use]
pub fn fresh_seed() -> u64 {
    getrandom::u64().expect("the system gives entropy")
}
