//! The C ABI over the engine: `gumball.h`, a shared library and a static one.
//!
//! Each function checks its arguments, calls the engine and returns a code; the thread keeps a description of
//! the last error. Handles are boxes that C owns. The header is generated from these sources (`cargo run -p
//! gumball-c --example header`). Their public comments therefore address C programmers, and `header.txt`
//! holds the duties of callers, once.
//!
//! | file | holds |
//! | --- | --- |
//! | `ffi`, `error`, `versioned` | the boundary: pointers, panics, errors, structs that grow |
//! | `version` | what a program was built with |
//! | `params`, `names` | parameters, by name and from JSON |
//! | `state`, `logits`, `options` | inputs |
//! | `outputs` | outputs |
//! | `sampler` | one sequence |
//! | `device`, `pool`, `step`, `verify`, `graph`, `variants`, `device_drafts`, `draft_batches` | many sequences, on the host or on a device |
//! | `head`, `clustered`, `hidden` | LM heads, those of clusters, and what pools do from hidden states |
//! | `dist`, `dist_config`, `dist_steps` | one pool over several processes |
//! | `operators`, `judged`; `matrix`, `columns`, `row_params`, `draws` | operators over whole matrices, without
//! requests; their arguments |
#![allow(clippy::missing_safety_doc, reason = "what callers owe stands once, at the top of the header")]

mod error;
mod ffi;
mod version;
mod versioned;

mod names;
mod params;
mod slots;
mod state;

mod logits;
mod options;

mod outputs;

mod sampler;

mod device;
mod pool;

mod device_drafts;
mod device_head;
mod draft_batches;
mod graph;
mod graph_work;
mod step;
mod variants;
mod verify;

mod head;

mod clustered;

mod hidden;

mod dist;
mod dist_config;
mod dist_steps;

mod columns;

mod draft_rows;
mod draws;
mod matrix;
mod row_params;

mod judged;
mod operators;

pub use error::*;
pub use version::*;

pub use params::*;
pub use state::State;

pub use logits::{Dtype, Kind, Logits};
pub use options::{Hook, StepOptions};

pub use outputs::*;

pub use sampler::*;

pub use device::*;
pub use pool::*;

pub use device_drafts::*;
pub use device_head::*;
pub use draft_batches::*;
pub use graph::*;
pub use graph_work::*;
pub use step::*;
pub use variants::*;
pub use verify::*;

pub use clustered::*;
pub use head::*;
pub use hidden::*;

pub use dist::*;
pub use dist_config::{DistConfig, DistDecision, DistLayout, DistShape, StepKind};
pub use dist_steps::*;

pub use draws::Draws;
pub use matrix::RowsOut;
pub use row_params::RowParams;

pub use judged::*;
pub use operators::*;

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_to_other_threads<T: Send>() {}
    fn is_shared<T: Sync>() {}

    /// The header's promises about threads. `Graph` and `DeviceHead` are missing: any thread may use them, but the engine's types
    /// are not `Send`.
    #[test]
    fn handles_are_not_bound_to_a_thread() {
        goes_to_other_threads::<Params>();
        goes_to_other_threads::<Sampler>();
        goes_to_other_threads::<Pool>();
        goes_to_other_threads::<Outputs>();
        goes_to_other_threads::<Verification>();
        goes_to_other_threads::<Device>();
        goes_to_other_threads::<Buffer>();
        goes_to_other_threads::<Operators>();
        goes_to_other_threads::<Head>();
        is_shared::<Params>();
        is_shared::<Outputs>();
        is_shared::<Verification>();
        is_shared::<Device>();
        is_shared::<Operators>();
        is_shared::<Head>();
    }
}
