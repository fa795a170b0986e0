//! Logprobs: from parameters to what `logprobs.cuh` reads, and what a workspace must have room for.

use gumball_spec::num::LOG2_E;
use gumball_spec::{Error, LogprobMode, Result, SamplingParams, Widths};

use crate::abi::{Params, features};

/// Writes what a request asks to be told; all else of it is prepared already.
pub(crate) fn prepare(params: &SamplingParams, prepared: &mut Params) {
    let Some(logprobs) = &params.logprobs else { return };
    prepared.features |= features::LOGPROBS;
    prepared.top_n = logprobs.top_n;
    prepared.logprob_mode = match logprobs.mode {
        LogprobMode::Raw => 0,
        LogprobMode::Edited => 1,
        LogprobMode::Tempered => 2,
        LogprobMode::Processed => 3,
    };
    if logprobs.top_n == 0 && logprobs.ids.is_empty() {
        prepared.features |= features::TOKEN_LOGPROB_ONLY;
    }
    if let Some(s) = survey_scale(prepared, logprobs.mode) {
        prepared.features |= features::LOGPROB_SUMS;
        prepared.logprob_log2e_over_t = s;
    }
}

/// Returns the scale at which the survey weighs the row for a request's logprobs; nothing where they speak of what filters
/// leave, where the first token is certain, or where the temperature hangs on the row.
fn survey_scale(prepared: &Params, mode: LogprobMode) -> Option<f32> {
    let has = |bits: u32| prepared.features & bits != 0;
    match mode {
        LogprobMode::Raw | LogprobMode::Edited => Some(LOG2_E),
        _ if has(features::GREEDY | features::DYNAMIC_TEMPERATURE) => None,
        LogprobMode::Processed if prepared.filter_chain != 0 || has(features::MIROSTAT) => None,
        LogprobMode::Tempered | LogprobMode::Processed => Some(prepared.log2e_over_t),
    }
}

/// Checks that a workspace has room for what a request asks to be told.
///
/// # Errors
/// - [`Error::OutOfRange`] if it lists more of the most likely tokens than there is room for.
/// - [`Error::Length`] if it names more ids than there is room for.
pub(crate) fn check_widths(top_n: u32, ids: usize, widths: Widths) -> Result<()> {
    if top_n as usize > widths.top_n {
        let allowed = format!("in 0..={}, the room's widths.top_n", widths.top_n);
        return Err(Error::out_of_range("logprobs.top_n", top_n, allowed));
    }
    if ids > widths.ids {
        let allowed = format!("at most {} ids, the room's widths.ids", widths.ids);
        return Err(Error::length("logprobs.ids", ids, allowed));
    }
    Ok(())
}
