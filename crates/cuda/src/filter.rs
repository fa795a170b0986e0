//! Filters: from parameters to what `filter.cu` reads. min-p has a kernel; the others are refused.

use gumball_spec::num::log2;
use gumball_spec::{Filter, Result, SamplingParams};

use crate::abi::{Params, asks};
use crate::prepared::refuse;

/// Refuses what has no kernel.
pub(crate) fn check(params: &SamplingParams, vocab: usize) -> Result<()> {
    refuse("mirostat", params.mirostat.is_some())?;
    refuse("dynamic_temperature", params.dynamic_temperature.is_some())?;
    params.filters(vocab).try_for_each(|filter| refuse(filter.name(), filter != Filter::MinP))
}

/// Writes what the filters of a request that is not greedy read.
pub(crate) fn prepare(params: &SamplingParams, vocab: usize, prepared: &mut Params) {
    if params.is_on(Filter::MinP, vocab) {
        prepared.asks |= asks::MIN_P;
        prepared.min_p_threshold = log2(params.min_p);
    }
}
