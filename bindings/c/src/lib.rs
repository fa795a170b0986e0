//! The C ABI over the engine: `gumball.h`, a shared library and a static one.
//!
//! Each function looks at what it is given, calls the engine, and returns a code; what went wrong is kept in words for the
//! thread. Handles are boxes that C owns. The header is made of these sources (`cargo run -p gumball-c --example header`), so
//! their comments are written for who reads it, and what callers owe stands there once, in `header.txt`.
//!
//! | file | holds |
//! | --- | --- |
//! | `border`, `error`, `sized` | what crosses: pointers, panics, errors, structs that grow |
//! | `version` | what a program was built with |
//! | `params`, `names` | parameters, by name and from JSON |
//! | `state`, `logits`, `options` | what goes in |
//! | `outputs` | what comes out |
//! | `sampler` | one sequence |
//! | `device`, `pool`, `step`, `graph` | many, on the host or on a device |
//! | `operators`, `matrix`, `draws`, `chains`; `device_operators` | whole matrices, without requests; the same on a device |
#![allow(clippy::missing_safety_doc, reason = "what callers owe stands once, at the top of the header")]

mod border;
mod error;
mod sized;
mod version;

mod names;
mod params;
mod state;

mod logits;
mod options;

mod outputs;

mod sampler;

mod device;
mod pool;

mod graph;
mod step;

mod chains;
mod device_operators;
mod draws;
mod matrix;
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

pub use graph::*;
pub use step::*;

pub use matrix::RowsOut;
pub use operators::*;

pub use chains::*;
pub use draws::*;

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_to_other_threads<T: Send>() {}
    fn is_shared<T: Sync>() {}

    /// What the header says about threads. A graph of the driver is left out: it may be used on any thread, which its
    /// wrapper does not say.
    #[test]
    fn handles_are_not_bound_to_a_thread() {
        goes_to_other_threads::<Params>();
        goes_to_other_threads::<Sampler>();
        goes_to_other_threads::<Pool>();
        goes_to_other_threads::<Outputs>();
        goes_to_other_threads::<Device>();
        goes_to_other_threads::<Buffer>();
        goes_to_other_threads::<Operators>();
        is_shared::<Params>();
        is_shared::<Outputs>();
        is_shared::<Device>();
        is_shared::<Operators>();
    }
}
