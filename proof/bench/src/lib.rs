//! Definitions, engines and records: how fast each way from logits to a token is.
//!
//! A [`Definition`](gumball_bench_protocol::Definition) says which time is measured, an engine is a program
//! that does it, a [`record`] has the results of one run on one machine. The runner starts all engines at
//! once and lets them take turns, sample by sample, so that every ratio compares neighbours in time. Rivals
//! are packages of their own under `proof/bench/rivals`; rivals that are not built are skipped.
//! `proof/bench/README.md` says how to run it and how each engine does its tasks.
//!
//! In the order data flows:

#![deny(unsafe_code)]

pub mod definitions;

pub mod staging;

#[allow(unsafe_code, reason = "vectors of one processor")]
pub mod floor;

pub mod engines;

pub mod rivals;

pub mod process;

pub mod plausible;

pub mod runner;

pub mod stats;

pub mod machine;

pub mod record;

pub mod table;
