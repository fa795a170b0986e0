//! The C ABI over the engine: `gumball.h`, a shared library and a static one.
//!
//! Each function checks its arguments, calls the engine and returns a code; the thread keeps a description of
//! the last error. Handles are boxes that C owns. The header is generated from these sources by
//! `GUMBALL_BLESS=1 cargo test -p gumball-c --test header`. Their public comments therefore address C
//! programmers, and `header.txt` holds the duties of callers, once.
//!
//! | file | holds |
//! | --- | --- |
//! | `ffi`, `error`, `versioned` | the boundary: pointers, panics, errors, structs that grow |
//! | `version` | what a program was built with |
//! | `params`, `marks` | parameters, by name and from JSON; looking for watermarks |
//! | `matrix`, `rows`, `batch`, `drafts`, `state`, `ranks` | the values that calls take |
//! | `pool`, `calls`, `work`, `draft_batches`, `plans` | many sequences: requests, direct calls, work in order |
//! | `outputs`, `info` | outputs; descriptions and counts of pools |
//! | `sampler` | one sequence |
//! | `device` | devices, and memory there |
//! | `head`, `head_config`, `clustered` | LM heads |
//! | `operators`, `judged`; `operands`, `columns`, `draws` | operators over whole matrices, without requests; their arguments |
#![allow(clippy::missing_safety_doc, reason = "what callers owe stands once, at the top of the header")]
#![allow(missing_docs, reason = "fields that need no words have none")]
#![allow(non_camel_case_types, reason = "constants of C")]

mod error;
mod ffi;
mod version;
mod versioned;

mod device;
mod marks;
mod params;
mod state;

mod head_config;
mod matrix;
mod ranks;
mod rows;

mod batch;
mod drafts;

mod outputs;
mod pool;

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

pub use {
    batch::*, calls::*, device::*, draft_batches::*, drafts::*, draws::*, error::*, head::*, head_config::*,
    info::*, judged::*, matrix::*, operators::*, outputs::*, params::*, plans::*, pool::*, ranks::*, rows::*,
    sampler::*, state::*, version::*, work::*,
};

/// The header's promises about threads.
const _: () = {
    const fn goes_to_other_threads<T: Send>() {}
    const fn is_shared<T: Sync>() {}
    goes_to_other_threads::<(Params, Sampler, Pool, Outputs, Device, Buffer, Operators, Head, Graph, Recorded)>(
    );
    is_shared::<(Params, Outputs, Device, Operators, Head)>();
};
