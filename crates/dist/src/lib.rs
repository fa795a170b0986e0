//! One sampler over several ranks, each of which holds a part of the vocabulary.
#![forbid(unsafe_code)]

mod error;
mod group;
mod layout;
mod planner;
mod rows;
mod share;
mod survey;
mod transport;
mod words;

pub use error::{Error, Result};
pub use group::{Group, HEADER_BYTES, Traffic, What};
pub use layout::{LogitsLayout, MOST_LISTED, Needs, StepKind, StepShape, Thresholds, decide};
pub use planner::{Plan, Planner, PlannerConfig};
pub use rows::{WholeRows, whole_rows};
pub use share::{Ownership, Shares, VocabSplit};
pub use survey::{SurveyRow, Surveyed, survey_rows};
pub use transport::{
    Address, Chosen, DEFAULT_TIMEOUT, MOST_BYTES, Sockets, Threads, Transport, TransportKind, choose, threads,
};
pub use words::{bytes_of, words_of};
