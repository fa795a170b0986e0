//! One sampler over several ranks, each of which holds a part of the vocabulary.
#![forbid(unsafe_code)]

mod error;
mod layout;
mod planner;
mod share;
mod transport;

pub use error::{Error, Result};
pub use layout::{LogitsLayout, MOST_LISTED, Needs, StepKind, StepShape, Thresholds, decide};
pub use planner::{Plan, Planner, PlannerConfig};
pub use share::{Ownership, Shares, VocabSplit};
pub use transport::{
    Address, Chosen, DEFAULT_TIMEOUT, MOST_BYTES, Sockets, Threads, Transport, TransportKind, choose, threads,
};
