//! Devices: the process opens each GPU once, because loading its kernels takes a while. Each user gets a
//! stream.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, PoisonError};

use gumball_engine::cuda::{self, Cache, Gpu};

/// The open GPUs by ordinal. They stay open until the process ends.
static OPEN: Mutex<BTreeMap<usize, Gpu>> = Mutex::new(BTreeMap::new());

/// Returns an open GPU on a new stream; opens the GPU first if needed.
///
/// # Errors
/// Those of [`Gpu::new`], and the driver's if it cannot make a stream.
pub fn gpu(ordinal: usize) -> cuda::Result<Gpu> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let gpu = match open.entry(ordinal) {
        Entry::Occupied(found) => found.into_mut(),
        Entry::Vacant(place) => place.insert(Gpu::new(ordinal, &Cache::user())?),
    };
    let failed = |error| cuda::Error::Call { call: "cuStreamCreate", reason: format!("{error}") };
    gpu.on_stream(gpu.context().new_stream().map_err(failed)?)
}

/// Returns the ordinal in the name of a CUDA device: `cuda` is 0, `cuda:N` is N; `None` for other names.
pub fn ordinal(name: &str) -> Option<usize> {
    match name.strip_prefix("cuda")? {
        "" => Some(0),
        rest => rest.strip_prefix(':')?.parse().ok(),
    }
}
