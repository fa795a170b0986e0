//! What a workspace and the operators promise on a device, on the emulator: one file a promise. `conformance`
//! tests what they compute.
#![cfg(feature = "emulator")]

mod captured;
mod histories;
#[cfg(feature = "testing")]
mod numeric_check;
mod operators;
mod sizes;
mod softmax;
mod verify;

use std::sync::Arc;

use gumball_bench_protocol::skipped::or_skip;
use gumball_cuda::{Cache, Emulator, Runtime};

/// Returns an emulator; none where its compiler is missing.
fn runtime() -> Option<Arc<dyn Runtime>> {
    Some(Arc::new(or_skip(Emulator::new(&Cache::user()))?))
}
