//! Where a request's seed comes from: its parameters, or the system's entropy; never a fixed default.

use gumball_spec::{Error, Result, SamplingParams};

/// Returns the seed of the parameters, or a fresh one.
pub(crate) fn seed(params: &SamplingParams) -> Result<u64> {
    if let Some(seed) = params.seed {
        return Ok(seed);
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| Error::Unavailable {
        resource: "entropy for a seed",
        reason: format!("{error}; give a seed"),
    })?;
    Ok(u64::from_le_bytes(bytes))
}
