//! The seed of a request or call that gives none: from the system's entropy, never a fixed default.

use gumball_spec::{Error, Result, SamplingParams};

/// Returns the seed of the parameters, or a fresh one.
pub(crate) fn seed(params: &SamplingParams) -> Result<u64> {
    params.seed.map_or_else(fresh, Ok)
}

/// Returns a fresh seed.
pub(crate) fn fresh() -> Result<u64> {
    let mut bytes = [0; 8];
    fill(&mut bytes).map_err(|error| Error::Unavailable {
        resource: "entropy for a seed",
        reason: format!("{error}; give a seed"),
    })?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
fn fill(bytes: &mut [u8]) -> std::result::Result<(), getrandom::Error> {
    getrandom::fill(bytes)
}

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
fn fill(_: &mut [u8]) -> std::result::Result<(), &'static str> {
    Err("a WebAssembly module has none")
}
