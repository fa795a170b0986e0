//! Devices: each GPU is opened once a process, since its kernels take a while to load; whoever works on it gets a stream of his own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, PoisonError};

use gumball_engine::cuda::{self, Cache, Gpu};

/// The GPUs that are open, by their number. They stay until the process ends.
static OPEN: Mutex<BTreeMap<usize, Gpu>> = Mutex::new(BTreeMap::new());

/// Returns a GPU on a new stream.
///
/// # Errors
/// Those of [`Gpu::new`], and what the driver says.
pub fn gpu(ordinal: usize) -> cuda::Result<Gpu> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let gpu = match open.entry(ordinal) {
        Entry::Occupied(found) => found.into_mut(),
        Entry::Vacant(place) => place.insert(Gpu::new(ordinal, &Cache::user())?),
    };
    let failed = |error| cuda::Error::Call { call: "cuStreamCreate", reason: format!("{error}") };
    gpu.on_stream(gpu.context().new_stream().map_err(failed)?)
}

/// Returns the number of a CUDA device, by its name.
pub fn ordinal(name: &str) -> Option<usize> {
    match name.strip_prefix("cuda")? {
        "" => Some(0),
        rest => rest.strip_prefix(':')?.parse().ok(),
    }
}
