//! The C ABI over the engine: `gumball.h`, a shared library and a static one.
//!
//! Each function checks its arguments, calls the engine and returns a code; the thread keeps a description of
//! the last error. Handles are boxes that C owns. The header is generated from these sources by
//! `GUMBALL_BLESS=1 cargo test -p gumball-c --test header`. Their public comments therefore address C programmers, and `header.txt`
//! holds the duties of callers, once.
//!
//! | file | holds |
//! | --- | --- |
//! | `ffi`, `error`, `versioned` | the boundary: pointers, panics, errors, structs that grow |
//! | `version` | what a program was built with |
//! | `params`, `names` | parameters, by name and from JSON |
//! | `matrix`, `rows`, `batch`, `drafts`, `state`, `ranks` | the values that calls take |
//! | `pool`, `calls`, `work`, `draft_batches`, `plans` | many sequences: requests, direct calls, work in order |
//! | `outputs`, `info` | what came out, what is known and counted |
//! | `sampler` | one sequence |
//! | `device` | devices, and memory there |
//! | `head`, `head_config`, `clustered` | LM heads |
//! | `operators`, `judged`; `operands`, `columns`, `draws` | operators over whole matrices, without requests; their arguments |
#![allow(clippy::missing_safety_doc, reason = "what callers owe stands once, at the top of the header")]

mod error;
mod ffi;
mod version;
mod versioned;

mod device;
mod names;
mod params;
mod state;

mod matrix;

mod head_config;
mod ranks;

mod rows;

mod batch;
mod drafts;

mod pool;

mod outputs;

mod calls;
mod draft_batches;
mod info;
mod plans;
mod work;

mod sampler;

mod clustered;
mod head;

mod columns;
mod draws;
mod operands;

mod judged;
mod operators;

pub use error::{Code, ErrorParts, gumball_error, gumball_error_message};
pub use version::*;

pub use params::*;
pub use state::State;

pub use batch::{Batch, Hook, VerifyMode, VerifyModeNumber};
pub use drafts::{Drafts, Proposals};
pub use matrix::{Dtype, DtypeNumber, IntType, IntTypeNumber, Ints, Masks, Matrix, Memory, MemoryNumber};
pub use rows::{Rows, What, WhatNumber};

pub use sampler::*;

pub use ranks::{Plan, Ranks, RowLayout, RowLayoutNumber, StepKind, StepKindNumber};

pub use pool::*;

pub use calls::*;
pub use outputs::*;

pub use draft_batches::*;
pub use info::*;
pub use plans::*;
pub use work::*;

pub use device::*;

pub use head::*;
pub use head_config::{ClusterProgressFn, Head, HeadConfig, HeadKind, HeadKindNumber};

pub use draws::{Draws, RowParams};

pub use judged::*;
pub use operators::*;

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_to_other_threads<T: Send>() {}
    fn is_shared<T: Sync>() {}

    /// The header's promises about threads.
    #[test]
    fn handles_are_not_bound_to_a_thread() {
        goes_to_other_threads::<Params>();
        goes_to_other_threads::<Sampler>();
        goes_to_other_threads::<Pool>();
        goes_to_other_threads::<Outputs>();
        goes_to_other_threads::<Device>();
        goes_to_other_threads::<Buffer>();
        goes_to_other_threads::<Operators>();
        goes_to_other_threads::<Head>();
        goes_to_other_threads::<Graph>();
        is_shared::<Params>();
        is_shared::<Outputs>();
        is_shared::<Device>();
        is_shared::<Operators>();
        is_shared::<Head>();
    }
}
