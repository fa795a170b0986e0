//! A drop-in for the `LogitsProcessor` of candle-transformers.
//!
//! Change one line, from `candle_transformers::generation::LogitsProcessor` to
//! `gumball_candle::generation::LogitsProcessor`: constructors and methods have candle 0.11's signatures, and
//! the rest of [`SamplingParams`](gumball_engine::SamplingParams) comes on top
//! ([`LogitsProcessor::from_params`]).
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use gumball_candle::generation::LogitsProcessor;
//!
//! let logits = Tensor::new(&[0.5f32, 2.0, -1.0, 1.5], &Device::Cpu)?;
//! let mut processor = LogitsProcessor::new(42, Some(0.8), Some(0.9));
//! let token = processor.sample(&logits)?;
//! assert!(token < 4);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! # What differs
//! | | candle | here |
//! | --- | --- | --- |
//! | tokens of a seed | by `rand`'s generator | Gumball's: the same on every machine |
//! | `GumbelSoftmax` | ignores the seed | is seeded; the same distribution as `All` |
//! | ties at a top-k or top-p cut | as the sort left them | the smaller id is kept |
//! | temperature 0 outside `new` | divides by it | greedy |
//! | a row that is all -inf or NaN | an error or some id | an error |
//! | a parameter outside its range | depends | an error that names it, from the first `sample` |
//! | bf16 and f16 tensors | converted to an f32 tensor first | read as they are |
//! | memory | none | the ids so far, which penalties read |
//! | vocabulary | any, at each call | the first row's |
#![forbid(unsafe_code)]

mod probabilities;
mod processor;
mod sampling;
mod tensor;

/// The names of `candle_transformers::generation`.
pub mod generation {
    pub use crate::{LogitsProcessor, Sampling};
}

pub use gumball_engine;
pub use processor::LogitsProcessor;
pub use sampling::Sampling;
