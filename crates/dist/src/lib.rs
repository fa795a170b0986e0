//! One sampler over several ranks, each of which holds a part of the vocabulary.
//!
//! A rank is a process, or a thread, and its number in a group of them. The result of the rows of a step is
//! the same on all ranks, and equals the result that one process gets from whole rows, bit for bit, for any
//! split of the vocabulary.
//!
//! | to | use |
//! | --- | --- |
//! | say which ids and which requests a rank has | [`VocabSplit`], [`Shares`] |
//! | decide what is exchanged in a step, before its logits exist | [`Planner`], by [`Costs`] |
//! | move bytes between ranks | [`Transport`]; [`Sockets`], [`threads()`]; [`choose`] |
//! | agree at start, and take the same turns | [`Group`] |
//! | gather or swap logits | [`whole_rows`] |
//! | sample from parts of rows where they are | [`survey_rows`] |
//!
//! The crate knows ranks and no requests: `Pool::over` of `gumball-engine` is what engines use. Rows lie in
//! host memory; a pool on devices decides and agrees through this crate, and exchanges rows between GPUs
//! itself.
#![forbid(unsafe_code)]

mod costs;
mod digest;
mod group;
mod layout;
mod planner;
mod rows;
mod share;
mod survey;
mod transport;
mod words;

pub use costs::Costs;
pub use digest::{Digest, HEADER_BYTES, StepDigest, StepPart};
pub use group::{Group, Lookout, Traffic, What};
pub use layout::{LogitsLayout, Needs, StepKind, StepShape};
pub use planner::{Plan, Planner, PlannerConfig};
pub use rows::{WholeRows, whole_rows};
pub use share::{Ownership, Shares, VocabSplit};
pub use survey::{Spread, SurveyRow, Surveyed, survey_rows};
#[cfg(unix)]
pub use transport::Sockets;
pub use transport::{
    Address, Bounds, DEFAULT_TIMEOUT, Patience, Threads, Transport, TransportKind, choose, threads,
};
pub use words::{bytes_of, words_of};
