//! The Python package: the engine's samplers and pools over anybody's arrays.
//!
//! The classes here are those of `gumball`, which `python/gumball` re-exports beside what is plain data (parameters, states),
//! which is plain Python. Nothing is computed here: arguments are read, the engine is called without the GIL, and what it says
//! becomes arrays. numpy and torch are looked for only where somebody has loaded them.
//!
//! | module | what is in it |
//! | --- | --- |
//! | `arrays`, `dlpack` | anybody's memory as rows or lists |
//! | `lists`, `params`, `state`, `options` | Python's values as the engine's |
//! | `hooks`, `turns` | Python's own edits of rows; who has a sampler or a pool, and who waits for it |
//! | `forks` | whether this process is a child of the one that made something |
//! | `sampler`, `pool`, `graph` | the classes |
//! | `operators` | functions over rows without sequences |
//! | `devices`, `streams`, `place` | GPUs that are open; the stream that one works on; a pool of the host or of a device |
//! | `outputs`, `device_array` | the engine's answers as arrays |
//!
//! Operators without requests (softmax, sampling from probabilities, and the like) are functions over arrays in `operators`;
//! `python/gumball/operators.py` gives them their names and allocates. What other samplers' callers know under their names is
//! plain Python over these, in `python/gumball/compat`.

mod modules;

mod dlpack;

mod arrays;
mod errors;
mod lists;

mod forks;
mod hooks;
mod options;
mod params;
mod state;

mod turns;

mod devices;
mod place;
mod streams;

mod device_array;
mod outputs;

mod graph;
mod operators;
mod pool;
mod sampler;

use pyo3::prelude::*;

/// The compiled half of gumball; use the package.
#[pymodule]
mod _gumball {
    #[pymodule_export]
    use super::device_array::DeviceArray;
    #[pymodule_export]
    use super::errors::UnavailableError;
    #[pymodule_export]
    use super::forks::forked;
    #[pymodule_export]
    use super::graph::Graph;
    #[pymodule_export]
    use super::hooks::break_off;
    #[pymodule_export]
    use super::operators::{
        describe, draw_rows, emulate, rows_on_device, sample_on_device, softmax_on_device, verify_chains,
        verify_on_device, write_on_device, write_rows,
    };
    #[pymodule_export]
    use super::outputs::Outputs;
    #[pymodule_export]
    use super::params::check_params;
    #[pymodule_export]
    use super::pool::Pool;
    #[pymodule_export]
    use super::sampler::Sampler;
    #[pymodule_export]
    use super::turns::set_patience;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::forks::watch(module)?;
        module.add("EMULATOR", cfg!(feature = "emulator"))
    }
}
