//! The stages as CUDA kernels, compiled for the device found.
//!
//! Kernels are CUDA C++ beside the Rust that launches them. NVRTC compiles them for the device found, headers
//! passed in memory, and a disk cache keeps the result; each [`KernelModule`] of programs is loaded when something is made that
//! launches its kernels. Libraries are loaded at run time, so one binary also
//! runs where there is no CUDA: there, [`Gpu::new`] says what is missing.
//!
//! A [`Runtime`] is where kernels run: a [`Gpu`], or under the feature `emulator` the host. On it, a
//! [`Step`] takes rows from logits, or probabilities, to tokens: the survey reads each row once, the draw does the rest. It
//! allocates nothing, waits for nothing, and can be captured in a graph. What comes out equals the oracle of
//! `gumball-spec` bit for bit. An option that has no kernel yet is refused where parameters are [prepared](Prepared),
//! never ignored.

mod abi;
mod cache;
mod error;
mod kernel_table;
mod nvrtc;
mod private;
mod probe;
mod program;
mod runtime;

mod gpu;
mod graph;
mod modules;
mod transfer;
mod work_sharing;

#[cfg(feature = "emulator")]
mod emulator;

mod history_budget;
mod outputs;
mod prepared;
mod request_buffers;
mod request_table;
mod rows;
mod step;
mod variant;
mod workspace;

mod edit;
mod shared_rows;
mod survey;

mod filter;

mod logprobs;

mod score;

mod softmax;

mod operators;

mod chains;
mod int_matrix;
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
pub use gpu::Gpu;
pub use graph::Graph;
pub use int_matrix::{DeviceIntMatrix, DeviceIntMatrixMut};
pub use nvrtc::{Arch, Compiled, Nvrtc};
pub use operators::{Draws, Operators, PerRow, RowParams};
pub use outputs::Outputs;
pub use prepared::Prepared;
pub use probe::{CudaInfo, DeviceInfo};
pub use program::{KernelModule, PROGRAMS, Program};
pub use request_table::{InitialState, RequestState};
pub use rows::{DeviceIntSlice, DeviceSlice, Dtype, IntType, MaskRows, Rows, RowsOut};
pub use runtime::{Buffer, CapturedLaunches, Grid, Kernel, Runtime};
pub use score::KnownTokens;
pub use softmax::{Softmax, Temperature};
pub use step::Step;
pub use variant::Variant;
pub use verify::Verify;
pub use workspace::{Assignment, Workspace, WorkspaceLimits};
