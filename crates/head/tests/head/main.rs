//! What heads promise: their logits, their bounds and clusters, and files of them.

#[cfg(unix)]
#[path = "../../../cpu/tests/places/mod.rs"]
mod paths;

mod artefact;
mod artefact_clusters;
mod bounds;
mod certified;
mod clustered;
mod exact;
#[cfg(unix)]
mod places;

use gumball_spec::num::philox4x32_10;

/// Returns numbers in [-1, 1).
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let number = |i| (philox4x32_10(seed, [i, 0, 8, 0])[0] as i32) as f32 / (1u64 << 31) as f32;
    (0..count as u32).map(number).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|z| z.to_bits()).collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}
