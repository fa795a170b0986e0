//! The gumball command.
//!
//! The library holds what the commands share: a real model, from a GGUF file to logits, so that the
//! engine has something to choose from.
#![forbid(unsafe_code)]

pub mod model;
