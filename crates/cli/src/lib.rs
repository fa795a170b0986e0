//! The `gumball` command.
//!
//! A command is a function of its arguments and of where it writes, so that tests call it without a process.
//! What several of them share stands beside them: the sampling flags, files of logits, the request state a
//! row is drawn for, and a real model, from a GGUF file to logits, so that the engine has something to
//! choose from. Exit codes: 0 done, 1 done and found wanting, 2 a mistake in what was asked.
#![forbid(unsafe_code)]

pub mod error;

pub mod text;

pub mod output;

pub mod threads;

pub mod reading;

pub mod sampling;

pub mod logits;

pub mod state;

pub mod model;

pub mod apart;

pub mod session;

pub mod grammar;

pub mod stop;

pub mod speculate;

pub mod head;

pub mod interrupt;

pub mod matrix;

pub mod decode;

pub mod engine;

pub mod machine;

pub mod self_test;

pub mod cuda;

pub mod timing;

pub mod check;

pub mod trace;

pub mod page;

pub mod commands;

pub mod app;

pub use error::{Error, Result};
