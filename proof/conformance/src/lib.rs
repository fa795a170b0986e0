//! One test body per rule; the backend is its argument.
//!
//! A [`Backend`] turns a [`Case`] (a row and everything a draw depends on) into what it [`Observed`]. The
//! bodies in [`rules`] say what must be seen: each is named like a line of the semantics, expects what was
//! derived by hand or by the f64 [`mod@reference`], and holds every field to the oracle bit for bit besides.
//! [`fuzz`] holds bodies that are functions of bytes; [`golden`] pins draws; [`draws`] makes a great many.
#![forbid(unsafe_code)]

pub mod case;
#[cfg(feature = "cuda")]
pub mod decoder;
pub mod drafted;
pub mod head_case;
pub mod observed;
#[cfg(feature = "cuda")]
pub mod operators;

pub mod backend;
pub mod compare;

#[cfg(feature = "cuda")]
pub mod batch;
#[cfg(feature = "cuda")]
pub mod boundaries;
#[cfg(feature = "cuda")]
pub mod draft_trees;
#[cfg(feature = "cuda")]
pub mod few_values;
#[cfg(feature = "cuda")]
pub mod ranks;

pub mod reference;
pub mod rows;
pub mod statistics;

pub mod law;

pub mod draws;
#[cfg(feature = "cuda")]
pub mod verified_draws;

#[macro_use]
pub mod rules;
#[cfg(feature = "cuda")]
pub mod given_logprobs;
#[cfg(feature = "cuda")]
pub mod scores;
#[cfg(feature = "cuda")]
pub mod selected_logprobs;
#[cfg(feature = "cuda")]
pub mod softmax;

pub mod bytes;
pub mod generate;

pub mod scripts;

pub mod fuzz;
#[cfg(feature = "cuda")]
pub mod stream;
#[cfg(feature = "cuda")]
pub mod trained;

pub mod golden;

pub use backend::{Backend, Cpu, Oracle, by_name};
pub use case::{CallerEdit, Case, Logits};
pub use drafted::Drafted;
pub use observed::Observed;
pub use rules::{Check, Rule};
