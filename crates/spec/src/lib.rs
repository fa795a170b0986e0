//! The definition of Gumball: what the next token is, as plain data and naive code.
//!
//! Everything else in the workspace is judged by this crate. It holds the parameters and their
//! ranges, the numbers every place computes alike (`num`), and for each stage an **oracle**: the
//! stage's rules written the obvious way, over a whole row, with sorts and copies wherever they make
//! the rule plainer. Speed is not a goal here; agreement with `docs/semantics.md` is. Rule names such
//! as `M4` or `F7` refer to that document.
//!
//! It does no I/O, draws no entropy and contains no `unsafe`.
#![forbid(unsafe_code)]

pub mod error;
pub mod hex;
pub mod layout;
pub mod memory;
pub mod near;
pub mod num;
pub mod params;
pub mod request;
pub mod row;
pub mod shape;

pub mod matrix;

pub mod head;

pub mod section;

pub mod watermark;

pub mod edit;
pub mod survey;

pub mod filter;

pub mod draw;

pub mod logprobs;

pub mod outputs;

pub mod verify;

pub mod oracle;

pub mod radius;

mod within;

pub mod adaptive;

mod rollout;

/// The version of the definition: it rises when a token, a kept set or a logprob changes that was drawn or
/// computed before.
pub const DEFINITION: u32 = 1;

pub use error::{Error, RanksError, Result};
pub use layout::{Layout, Widths};
pub use matrix::HostMatrix;
pub use params::{
    Chain, Dry, DynamicTemperature, Field, Filter, FilterKind, FilterOrder, Flag, LogprobMode, LogprobModes,
    LogprobsParams, Loops, MOST_LISTED, Mark, Mirostat, Parameter, Parameters, Range, Reading,
    SamplingParams, Scope, Section, Stage, Wanted, Watermark, WholeRow,
};
pub use request::{Forced, Request};
pub use rollout::{prompt_seed, sample_seed};
pub use row::{Kind, MAX_VOCAB, NONE, Row, Status, TILE};
