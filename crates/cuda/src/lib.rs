//! The stages as CUDA kernels, compiled at run time for the device that is present.
//!
//! The kernels are CUDA C++ files beside the Rust files that launch them. NVRTC compiles them, with headers
//! from memory, and a disk cache keeps the result. An object that launches kernels loads the [`KernelModule`]
//! that holds them when it is made. Libraries are loaded at run time, so a binary also runs on hosts without
//! CUDA; there, [`Gpu::new`] returns an error that names what is missing.
//!
//! A [`Runtime`] runs kernels: a [`Gpu`], or the host if the feature `emulator` is on. On it, a [`Step`]
//! turns rows of logits or probabilities into tokens: the survey reads each row once, and a second kernel
//! finishes the rows. A step allocates nothing, waits for nothing, and can be captured in a graph. Its
//! results equal those of the oracle in `gumball-spec` bit for bit. An option without a kernel is an error
//! when parameters are [prepared](Prepared); it is never ignored.

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
