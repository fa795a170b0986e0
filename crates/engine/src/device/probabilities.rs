//! The route `probabilities` on a device: the parameters that draw there, and the ones that it refuses.
//!
//! The softmax edits nothing: penalties, biases, bans, bitmasks, row indices and dynamic temperature are
//! refused, and so are rows that hold probabilities already.

use gumball_spec::{Error, Parameter, Result, SamplingParams, Stage};

use crate::probabilities::Parts;

/// Returns the error for an argument that the softmax of a device cannot take into account.
pub(super) fn refused(parameter: &'static str) -> Error {
    let reason = "on a device the softmax of the route probabilities takes logits as they are; take the route race, or \
                  a pool of the host";
    Error::Conflict { parameter, other: "route", reason }
}

/// Returns the parameters with which a request draws from the probabilities that its temperature makes of
/// logits.
///
/// # Errors
/// - [`Error::Conflict`] for a parameter that the route does not know, or that acts on logits.
pub(super) fn drawing_params(whole: &SamplingParams) -> Result<SamplingParams> {
    let Parts { draw, .. } = Parts::of(whole)?;
    let acts_on_logits = |switch: &&Parameter| match switch.name {
        "min_tokens" => !whole.stop_ids.is_empty(),
        _ => matches!(switch.stage, Stage::Edit | Stage::Temperature),
    };
    if let Some(switch) = whole.switched_on().find(acts_on_logits) {
        return Err(refused(switch.name));
    }
    let temperature = if SamplingParams::is_greedy(whole.temperature) { 0.0 } else { 1.0 };
    // They end walks through drafts, and ban nothing without `min_tokens`.
    let stop_ids = whole.stop_ids.clone();
    Ok(SamplingParams { temperature, stop_ids, ..draw })
}
