//! Logprobs: turns parameters into what `logprobs.cuh` reads, and checks that a workspace can hold the
//! results.

use gumball_spec::num::LOG2_E;
use gumball_spec::radius::Edits;
use gumball_spec::{Error, LogprobMode, LogprobModes, Result, SamplingParams, Widths};

use crate::abi::{Params, features, logprob_modes};

/// Writes a request's logprob parameters into `prepared`, in which everything else is prepared already.
pub(crate) fn prepare(params: &SamplingParams, temperature: f32, vocab: usize, prepared: &mut Params) {
    let Some(logprobs) = &params.logprobs else { return };
    if logprobs.mode.contains(LogprobMode::Radius) {
        prepared.radius_size = Edits::of(params, temperature, vocab).map_or(-1.0, |edits| edits.size);
    }
    prepared.features |= features::LOGPROBS;
    prepared.top_n = logprobs.top_n;
    let code = |mode| match mode {
        LogprobMode::Raw => logprob_modes::RAW,
        LogprobMode::Edited => logprob_modes::EDITED,
        LogprobMode::Tempered => logprob_modes::TEMPERED,
        LogprobMode::Processed => logprob_modes::PROCESSED,
        LogprobMode::Radius => logprob_modes::RADIUS,
    };
    let LogprobModes { first, second } = logprobs.mode;
    let modes = [first, second.unwrap_or(first)];
    // Rows of the mode raw have maxima of their own, which the survey stores with the sums. A kept set is
    // weighed without sums, too.
    let mut raw_first = LogprobMode::ALL.into_iter().filter(|mode| modes.contains(mode));
    let summed = raw_first.find_map(|mode| Some((mode, survey_scale(prepared, mode)?)));
    if let Some((_, scale)) = summed {
        prepared.features |= features::LOGPROB_SUMS;
        prepared.logprob_log2e_over_t = scale;
    }
    let summed = summed.map(|(mode, _)| mode);
    prepared.logprob_modes = code(first) | code(modes[1]) << 4 | code(summed.unwrap_or(first)) << 8;
    let is_token_alone = logprobs.top_n == 0 && logprobs.ids.is_empty();
    let is_of_token = |mode| matches!(mode, LogprobMode::Processed | LogprobMode::Radius);
    if is_token_alone && modes.iter().all(|mode| Some(*mode) == summed || is_of_token(*mode)) {
        prepared.features |= features::TOKEN_LOGPROB_ONLY;
    }
}

/// Returns the scale at which the survey sums weights for a request's logprobs.
///
/// `None` if filters decide the set, the first token is certain, or the temperature depends on the row.
fn survey_scale(prepared: &Params, mode: LogprobMode) -> Option<f32> {
    let has = |bits: u32| prepared.features & bits != 0;
    match mode {
        LogprobMode::Radius => None,
        LogprobMode::Raw | LogprobMode::Edited => Some(LOG2_E),
        _ if has(features::GREEDY | features::DYNAMIC_TEMPERATURE) => None,
        LogprobMode::Processed if prepared.filter_chain != 0 || has(features::MIROSTAT) => None,
        LogprobMode::Tempered | LogprobMode::Processed => Some(prepared.log2e_over_t),
    }
}

/// Returns whether the request asks for radii.
pub(crate) fn needs_radius(params: &Params) -> bool {
    params.features & features::LOGPROBS != 0 && params.logprob_modes >> 4 & 15 == logprob_modes::RADIUS
}

/// Returns whether the request asks for a logprob over the kept set whose mass the survey does not sum: the
/// twin of `needs_kept_logprob` in `logprob_modes.cuh`.
pub(crate) fn needs_kept(params: &Params) -> bool {
    let modes = [0, 4, 8].map(|shift| params.logprob_modes >> shift & 15);
    let is_summed = params.features & features::LOGPROB_SUMS != 0 && modes[2] == logprob_modes::PROCESSED;
    params.features & features::LOGPROBS != 0 && modes[..2].contains(&logprob_modes::PROCESSED) && !is_summed
}

/// Checks that a workspace has capacity for a request's logprobs.
///
/// # Errors
/// - [`Error::OutOfRange`] if `top_n` exceeds the workspace's `widths.top_n`.
/// - [`Error::Length`] if there are more ids than the workspace's `widths.ids`.
pub(crate) fn check_widths(top_n: u32, ids: usize, widths: Widths) -> Result<()> {
    if top_n as usize > widths.top_n {
        let allowed = format!("in 0..={}, the workspace's widths.top_n", widths.top_n);
        return Err(Error::out_of_range("logprobs.top_n", top_n, allowed));
    }
    if ids > widths.ids {
        let allowed = format!("at most {} ids, the workspace's widths.ids", widths.ids);
        return Err(Error::length("logprobs.ids", ids, allowed));
    }
    Ok(())
}
