//! The Python package: the engine's samplers and pools over the arrays of any library.
//!
//! The compiled module holds the classes of `gumball`. The plain Python package `python/gumball` re-exports
//! them and adds the plain data: parameters and states. This crate computes nothing itself. It reads
//! arguments, calls the engine without the GIL and returns the results as arrays. It uses numpy and torch
//! only if the program has imported them.
//!
//! | module | what is in it |
//! | --- | --- |
//! | `arrays`, `dlpack` | other libraries' memory as rows or lists |
//! | `arguments`, `lists`, `params`, `state`, `values` | Python's values as the engine's |
//! | `hooks`, `turns`, `signals` | Python's own edits of rows; one thread at a time in a sampler or a pool; Ctrl-C |
//! | `forks` | whether this process is a child of the one that made something |
//! | `sampler`, `pool`, `graph` | the classes |
//! | `heads`, `head_weights`, `clusters` | LM heads; the weights of others that they are over; where clusters come from |
//! | `device_head`, `device_weights`, `head_copies` | LM heads in a device's memory; weights that lie there; heads of the host, copied |
//! | `operators` | functions over rows without sequences |
//! | `devices`, `streams` | open GPUs; handles of streams |
//! | `receipts` | what texts were drawn from, and their replay |
//! | `outputs`, `device_array`, `kept_sets` | the engine's results as arrays; kept sets on their way out of an engine |
//!
//! `operators` holds functions over arrays for work without requests, such as softmax and draws from
//! probabilities.

mod modules;

mod dlpack;

mod arguments;
mod arrays;
mod errors;
mod lists;

mod forks;
mod hooks;
mod params;
mod state;

mod signals;
mod turns;

mod devices;
mod streams;

mod device_array;
mod device_head;
mod device_weights;
mod head_copies;
mod outputs;
mod values;

mod clusters;
mod command;
mod edited;
mod graph;
mod head_weights;
mod heads;
mod kept_sets;
mod marks;
mod operators;
mod pool;
mod receipts;
mod sampler;

use pyo3::prelude::*;

/// The compiled half of gumball; use the package.
#[pymodule]
mod _gumball {
    #[pymodule_export]
    use super::command::command;
    #[pymodule_export]
    use super::device_array::DeviceArray;
    #[pymodule_export]
    use super::device_head::DeviceHead;
    #[pymodule_export]
    use super::edited::edit_columns;
    #[pymodule_export]
    use super::forks::forked;
    #[pymodule_export]
    use super::graph::Graph;
    #[pymodule_export]
    use super::heads::Head;
    #[pymodule_export]
    use super::hooks::break_off;
    #[pymodule_export]
    use super::kept_sets::packed_sets;
    #[pymodule_export]
    use super::marks::{detect_mark, marked_parts};
    #[pymodule_export]
    use super::operators::{
        emulate, judge, logprobs_gradient, logprobs_of, mask_logits, pack_kept, probabilities, radii,
        row_count, sample, sample_from_pools, selected_logprobs, softmax,
    };
    #[pymodule_export]
    use super::outputs::{Emitted, Outputs};
    #[pymodule_export]
    use super::params::{
        add_watermark_keys, check_key_number, check_params, json_of_json, json_of_params, name_advice,
        nearest_name, prompt_seed, sample_seed, shown_text,
    };
    #[pymodule_export]
    use super::pool::{Batch, DraftBatch, OnDevice, Plan, Pool, RanksInfo, Recorded};
    #[pymodule_export]
    use super::receipts::{Receipt, verify_receipt};
    #[pymodule_export]
    use super::sampler::Sampler;
    #[pymodule_export]
    use super::turns::set_patience;
    #[pymodule_export]
    use super::values::{CopyDrafts, Draft, Drafts, Hidden, Probabilities, Scored, Shorten, Step, Verify};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::forks::watch(module)?;
        module.add("EMULATOR", cfg!(feature = "emulator"))
    }
}
