//! The `gumball` command.
//!
//! A command is a function of its arguments and of where it writes, so that tests call it without a process.
//! What several of them share stands beside them: the sampling flags, files of logits, the request state a
//! row is drawn for, and a real model, from a GGUF file to logits, so that the engine has something to choose
//! from. The reports on a row, the files and flags that name rows, and the report on the machine come from
//! `gumball-inspect`, which other programs use too, and have the same names here. Exit codes: 0 if the
//! command did its work, 1 if a check that it made fails, 2 if its arguments or files are wrong.
#![forbid(unsafe_code)]

pub mod threads;

pub mod model;

pub mod apart;

pub mod session;

pub mod section_texts;

pub mod grammar;

pub mod stop;

pub mod speculate;

pub mod head;

pub mod request_head;

pub mod positions;

pub mod interrupt;

pub mod waiting;

pub mod matrix;

pub mod decode;

pub mod continuation;

pub mod page_server;

pub mod check;

pub mod commands;

pub mod app;

pub use gumball_inspect::{
    Error, Result, cuda, detect, engine, error, explore, fresh_seed, logits, machine, output, page, reading,
    receipt, records, sample, sampling, self_test, state, text, trace,
};
