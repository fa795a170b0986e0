//! Logprobs. No kernel computes them yet, so requests that ask for some are refused.

use gumball_spec::{Result, SamplingParams};

use crate::prepared::refuse;

/// Refuses what has no kernel.
pub(crate) fn check(params: &SamplingParams) -> Result<()> {
    refuse("logprobs", params.logprobs.is_some())
}
