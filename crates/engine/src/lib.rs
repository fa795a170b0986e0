//! Samplers, request pools and routes: the crate that inference engines add.
//!
//! Logits go in, the next token comes out. The token is a function of the row's bits, the parameters, the
//! history, the seed, the position and the draw index. The batch, the slot, the stride, the thread count and
//! the processor's instructions do not change it.
//!
//! | to do | use |
//! | --- | --- |
//! | decode one sequence | [`Sampler`] |
//! | decode a batch of requests, step by step | [`Pool`] |
//! | go from hidden states to tokens | [`Rows::Hidden`], [`head`] |
//! | verify drafts of a batch, in chains or trees | [`Pool::verify`], [`Drafts`], [`Tree`] |
//! | draw drafts from the rows of a draft model | [`Pool::draft`], [`Proposals`] |
//! | decode a batch whose logits are spread over several processes | [`Pool::over`], [`Ranks`], [`dist`] |
//! | get the logprobs of given tokens | [`Pool::score`], [`Scored`] |
//! | softmax, renormalise, mask, draw from or verify rows without sequences, on the host or a GPU | [`Operators`] |
//! | move a sequence to another pool or another computer | [`State`], [`Pool::resume`] |
//! | do all that on a GPU, from logits in its memory | [`Place::Device`], [`Device`] |
//! | let another program capture graphs there, and draft in them | [`Pool::on_device`], [`unstable::OnDevice`] |
//! | choose the way from logits to a token | [`Route`] |
//!
//! A sampler draws from one row after the other:
//!
//! ```
//! use gumball_engine::{Sampler, SamplingParams};
//!
//! let params = SamplingParams { temperature: 0.8, top_p: 0.9, seed: Some(7), ..Default::default() };
//! let mut sampler = Sampler::new(params, 5)?.with_prompt(&[3, 1]);
//! let token = sampler.sample(&[0.5f32, 2.0, -1.0, 1.5, 0.0])?;
//! assert!(token.id.is_some_and(|id| id < 5));
//! assert_eq!(sampler.history().output(), [token.id.unwrap()]);
//! # Ok::<(), gumball_engine::Error>(())
//! ```
//!
//! A pool works on values: [`Rows`] say what a call reads, a [`Batch`] whose rows they are, with their masks
//! and forced tokens, [`Drafts`] what is verified, [`Work`] what is done in order. Rows, masks and drafts lie
//! in the memory of the host or of a device. The [`Place`] of the pool says where rows are computed, and
//! changes no call:
//!
//! ```
//! use gumball_engine::{Batch, Outputs, Pool, PoolConfig, Rows, SamplingParams, Work};
//!
//! let mut pool = Pool::new(PoolConfig::new(3))?;
//! let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[2])?;
//! let (slots, mut outputs) = ([slot], Outputs::new());
//! let batch = Batch::of(&slots);
//! // At once: the token is known on return.
//! pool.step(Rows::logits(&[0.0f32, 2.0, 1.0], 1, 3)?, &batch, &mut outputs)?;
//! assert_eq!(outputs.tokens(), [1]);
//! // In order: a device is not waited for until the outputs are fetched.
//! pool.assign(&batch)?;
//! pool.enqueue(&[Work::step(Rows::logits(&[3.0f32, 2.0, 1.0], 1, 3)?)])?;
//! pool.fetch(&mut outputs)?;
//! assert_eq!(pool.sequence(slot)?.history().output(), [1, 0]);
//! # Ok::<(), gumball_engine::Error>(())
//! ```
//!
//! | of a pool | methods |
//! | --- | --- |
//! | making it | [`new`](Pool::new), [`over`](Pool::over) ranks |
//! | requests | [`admit`](Pool::admit), [`resume`](Pool::resume), [`fork`](Pool::fork), [`release`](Pool::release); [`push`](Pool::push), [`shorten`](Pool::shorten), [`sequence`](Pool::sequence) |
//! | at once | [`step`](Pool::step), [`verify`](Pool::verify), [`draft`](Pool::draft), [`score`](Pool::score) |
//! | in order | [`assign`](Pool::assign), [`enqueue`](Pool::enqueue), [`fetch`](Pool::fetch); on a device `capture`, `replay` |
//! | on a device, [`unstable::OnDevice`] | graphs of the program: `record`, `needed_variant`, `before_replay`, `variants`; drafts: `add_draft_batch`, `assigned`, `fetch_drafts`, `drafts_address`, `draft_probs`, `remove_draft_batch`; outputs where they lie: `outputs`, `read_taken` |
//! | over ranks | [`shape`](Pool::shape), [`plan`](Pool::plan), [`ranks`](Pool::ranks) |
//! | what it is | [`len`](Pool::len), [`is_empty`](Pool::is_empty), [`capacity`](Pool::capacity), [`vocab`](Pool::vocab), [`level`](Pool::level), [`device`](Pool::device); of heads [`head_counts`](Pool::head_counts), [`needs_whole_row`](Pool::needs_whole_row) |
//!
//! `gumball-cpu` handles rows in host memory, `gumball-cuda` rows in a device's memory. Both draw the same
//! tokens, bit for bit. The crate loads no model and depends on no framework. The caller decides what ends a
//! sequence: stop ids, stop strings, lengths.
//!
//! The feature `cuda` is on by default and links nothing. A program built with it also runs where CUDA is not
//! installed; there [`Device::cuda`] returns an error that names what is missing. Without the features
//! `heads`, on by default too, and `cuda` there are no heads, and rows are no hidden states.
//!
//! Names stay as `docs/releases.md` promises, but for those in [`unstable`], which may change in any minor
//! version. The crates that this one is made of, `gumball-spec`, `gumball-cpu`, `gumball-cuda`,
//! `gumball-dist` and `gumball-head`, promise only the names that this crate shows outside of it.
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "heads and devices use it"))]

#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../../../docs/gpu.md")]
struct OnAGpu;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct OwnReadme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/scaling.md")]
struct SeveralProcesses;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/speculation.md")]
struct Speculation;

mod entropy;
mod probabilities;
mod route;
mod sequence;
mod stages;
mod state;

mod sampler;

mod ahead;
mod assignment;
mod backend;
mod batch;
mod config;
mod drafts;
#[cfg(feature = "heads")]
mod head_counts;
mod host;
mod in_order;
#[cfg_attr(not(feature = "heads"), path = "no_heads.rs")]
mod lm_head;
mod logits;
mod masks;
mod matrix;
mod outputs;
mod rows;
mod sink;
mod slot;
mod slots;
mod verify_mode;
mod work;
mod workers;

mod operators;

mod calls;
mod draft;
mod edited;
mod enqueue;
#[cfg(feature = "heads")]
mod hidden;
#[cfg(feature = "heads")]
mod hidden_drafts;
#[cfg(feature = "heads")]
mod hidden_rows;
#[cfg(feature = "heads")]
mod hidden_score;
mod on_host;
mod pool;
mod ranks;
mod score;
mod step;
mod verify;
mod walk;

#[cfg_attr(not(feature = "cuda"), path = "no_device.rs")]
mod device;

pub mod unstable;

/// Ranks: how several processes share the rows and the vocabulary of a pool ([`Pool::over`]).
pub mod dist {
    #[cfg(unix)]
    pub use gumball_dist::Sockets;
    pub use gumball_dist::{
        Address, Bounds, Costs, DEFAULT_TIMEOUT, LogitsLayout, Needs, Ownership, Patience, Plan, Planner,
        PlannerConfig, Shares, StepKind, StepShape, Threads, Transport, TransportKind, VocabSplit, choose,
        threads,
    };
}

/// LM heads, which make logits of hidden states ([`Rows::Hidden`]).
#[cfg(feature = "heads")]
pub mod head {
    pub use crate::lm_head::Auto;
    pub use gumball_head::{
        Artefact, ArtefactError, Bytes, Certified, ClusterBuild, ClusterProgress, Clustered,
        ClusteredOptions, Clusters, Exact, HeadOptions, HostMatrix, MAX_HIDDEN, MappedFile, Scaling, Weights,
        WeightsMut, artefact,
    };
}

pub use gumball_cpu::{History, Level};
pub use gumball_spec::edit::Hook;
pub use gumball_spec::layout::set_ids;
pub use gumball_spec::logprobs::{Logprobs, TokenLogprob};
pub use gumball_spec::verify::by_probabilities::Judgement;
pub use gumball_spec::watermark::{
    add_key as add_watermark_key, add_keys as add_watermark_keys, key as watermark_key,
};
pub use gumball_spec::{
    Dry, DynamicTemperature, Error, Filter, FilterOrder, HostMatrix, Kind, Layout, LogprobMode, LogprobModes,
    LogprobsParams, Loops, MAX_VOCAB, Mark, Mirostat, NONE, RanksError, Result, Row, SamplingParams, Scope,
    Section, Status, Watermark, Widths, prompt_seed, sample_seed,
};
pub use half::{bf16, f16};

pub use backend::RanksInfo;
pub use batch::{Batch, RowHook, StepOptions};
pub use config::{Place, PoolConfig, Ranks};
#[cfg(feature = "cuda")]
pub use device::{ColumnType, DeviceBuffer, Dtype, IntType};
pub use device::{
    Device, DeviceHead, DeviceIntMatrix, DeviceIntMatrixMut, DeviceMasks, DeviceMatrix, DeviceRows,
    DeviceSlice, DraftTreeRows, ProgramCommunicator,
};
pub use draft::Proposals;
pub use drafts::{Drafts, Ids, Tree};
pub use edited::edit_columns;
#[cfg(feature = "heads")]
pub use head_counts::HeadCounts;
pub use lm_head::Head;
#[cfg(feature = "heads")]
pub use lm_head::build_clusters;
pub use masks::{HostMasks, Masks};
pub use matrix::Matrix;
pub use operators::{
    DraftTreeCounts, DraftTrees, Draws, GivenLogprobs, GivenTokens, HostDraftTrees, LogitsMut,
    LossDerivatives, Operators, PerRow, PerRowMut, PoolSlots, RowParams, RowsInOut, RowsOut, WEIGHED_NUMBERS,
};
pub use outputs::{Emitted, Outputs};
pub use pool::Pool;
pub use route::Route;
pub use rows::Rows;
pub use sampler::{Sampler, Token};
pub use score::Scored;
pub use sequence::Sequence;
pub use slot::{PADDING, Slot};
pub use state::State;
pub use verify_mode::VerifyMode;
pub use work::Work;
