//! The stages as CUDA kernels, compiled for the device found.
//!
//! Kernels are CUDA C++ beside the Rust that launches them. NVRTC compiles them for the device found, headers
//! passed in memory, and a disk cache keeps the result; each [`Group`] of programs is loaded when something is made that
//! launches its kernels. Libraries are loaded at run time, so one binary also
//! runs where there is no CUDA: there, [`Gpu::new`] says what is missing.
//!
//! A [`Machine`] is where kernels run: a [`Gpu`], or under the feature `emulator` the host. On it, a
//! [`Step`] takes rows from logits, or probabilities, to tokens: the survey reads each row once, the draw does the rest. It
//! allocates nothing, waits for nothing, and can be captured in a graph. What comes out equals the oracle of
//! `gumball-spec` bit for bit. An option that has no kernel yet is refused where parameters are [prepared](Prepared),
//! never ignored.

mod abi;
mod cache;
mod error;
mod found;
mod kernels;
mod machine;
mod nvrtc;
mod private;
mod program;

mod gpu;
mod graph;
mod help;
mod loaded;
mod staging;

#[cfg(feature = "emulator")]
mod emulator;

mod ledger;
mod lists;
mod outputs;
mod prepared;
mod residents;
mod rows;
mod step;
mod variant;
mod workspace;

mod edit;
mod lines;
mod survey;

mod filter;

mod logprobs;

mod score;

mod softmax;

mod operators;

mod chains;
mod ids;
mod verify;

pub mod numbers;

pub use abi::Slot;
#[cfg(feature = "emulator")]
pub use abi::layout;
pub use cache::Cache;
pub use chains::{ChainRows, Chains, Verified};
#[cfg(feature = "emulator")]
pub use emulator::Emulator;
pub use error::{Error, Result};
pub use found::{Found, FoundDevice};
pub use gpu::Gpu;
pub use graph::Graph;
pub use ids::{Ids, IdsMut};
pub use machine::{Buffer, Grid, Kernel, Machine, Recording};
pub use nvrtc::{Arch, Compiled, Nvrtc};
pub use operators::{Draws, Each, Operators, RowParams};
pub use outputs::Outputs;
pub use prepared::Prepared;
pub use program::{Group, PROGRAMS, Program};
pub use residents::{Standing, Start};
pub use rows::{Column, Dtype, IntType, Integers, MaskRows, Rows, RowsMut};
pub use score::Known;
pub use softmax::{Softmax, Temperature};
pub use step::Step;
pub use variant::Variant;
pub use verify::Verify;
pub use workspace::{Assignment, Room, Workspace};
