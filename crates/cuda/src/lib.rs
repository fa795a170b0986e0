//! The stages as CUDA kernels, compiled ahead of time, or at run time for the device that is present.
//!
//! The kernels are the CUDA C++ files of the folder `kernels`; the code that they share is in `device`. NVRTC
//! compiles them, with headers from memory, and a disk cache keeps the result ([`Cache`]). The first launch
//! of a kernel loads its [`Program`]. Libraries are loaded at run time, so a binary also runs on hosts
//! without CUDA; there, [`Gpu::new`] returns an error that names what is missing.
//!
//! A [`Runtime`] runs kernels: a [`Gpu`], or the host if the feature `emulator` is on. On it, a [`Step`]
//! turns rows of logits or probabilities into tokens: the survey reads each row once, and a second kernel
//! finishes the rows. To enqueue a step allocates nothing and waits for nothing, and it can be captured. Its
//! results equal those of the oracle in `gumball-spec` bit for bit. An option without a kernel is an error
//! when parameters are [prepared](Prepared); it is never ignored.

mod error;

mod abi;
mod driver;
mod launch;
mod memory;
mod operators;
mod pipeline;
mod programs;
mod requests;

pub use abi::Slot;
pub use abi::dtype::{ColumnType, Dtype, IntType};
pub use driver::ahead::{Destination, Progress, compile_ahead};
pub use driver::arch::Arch;
pub use driver::cache::Cache;
pub use driver::device_limits::DeviceLimits;
#[cfg(feature = "emulator")]
pub use driver::emulator::Emulator;
pub use driver::gpu::Gpu;
pub use driver::nvrtc::{Compiled, Nvrtc};
pub use driver::peer_links::PeerLink;
pub use driver::peer_memory::MemoryHandle;
pub use driver::probe::{CudaInfo, DeviceInfo};
pub use driver::runtime::{
    CapturedLaunches, GROUP_ID_BYTES, Grid, GroupId, Meeting, Message, Messenger, ProgramCommunicator,
    Runtime,
};
#[cfg(feature = "testing")]
pub use driver::tap::{Launch, Tap};
pub use driver::thread_state::CudaThreadState;
pub use error::{Error, Result};
pub use memory::buffer::Buffer;
pub use memory::columns::DeviceSlice;
pub use memory::int_matrix::{DeviceIntMatrix, DeviceIntMatrixMut};
pub use memory::rows::{MaskRows, Rows, RowsOut};
pub use operators::draft_trees::{DraftTreeRows, DraftTrees, Judged};
pub use operators::judge::Judge;
#[cfg(feature = "testing")]
pub use operators::numeric_check;
pub use operators::softmax::Softmax;
pub use operators::{
    Draws, GivenLogprobs, GivenTokens, LossDerivatives, Operators, Output, PerRow, PoolSlots, RowParams,
    SelectedLogprobs,
};
pub use pipeline::assignment::{Assignment, DraftBatchId, WorkspaceLimits};
pub use pipeline::copied_drafts::DraftCopyLaunch;
pub use pipeline::draft_rows::{DraftCounts, DraftIds, DraftRule};
pub use pipeline::gathered_rows::GatheredRows;
pub use pipeline::graph::{Graph, Recorded, Work, WorkTerms};
pub use pipeline::head::{Head, HeadCounts};
pub use pipeline::head_screen::HeadScreen;
pub use pipeline::known_tokens::KnownTokens;
pub use pipeline::outputs::Outputs;
pub use pipeline::proposals::{DraftBatchLimits, Proposals};
pub use pipeline::rank_rows::{ExchangeFailure, ExchangeLayout, MAX_SURVEYED_RANKS, RankRows};
pub use pipeline::results::Results;
pub use pipeline::row_batch::RowBatch;
pub use pipeline::shorten::ShortenLaunch;
pub use pipeline::step::{Step, StepInput, StepTerms};
pub use pipeline::windows::{GivingUp, SharedMemory, Windows};
pub use pipeline::workspace::Workspace;
pub use programs::kernels::{Kernel, Program};
#[doc(hidden)]
pub use programs::sources::generated_headers;
pub use requests::prepared::Prepared;
pub use requests::request_table::{InitialState, RequestState, Requests};
pub use requests::step_features::Variant;
pub use requests::step_variant::StepVariant;
