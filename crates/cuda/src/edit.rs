//! Edits: penalties, bias and bans. No kernel does them yet, so requests that ask for some are refused.

use gumball_spec::{Result, SamplingParams};

use crate::prepared::refuse;

/// Refuses what has no kernel.
pub(crate) fn check(params: &SamplingParams) -> Result<()> {
    refuse("repetition_penalty", params.repetition_penalty != 1.0)?;
    refuse("frequency_penalty", params.frequency_penalty != 0.0)?;
    refuse("presence_penalty", params.presence_penalty != 0.0)?;
    refuse("dry", params.dry.multiplier != 0.0)?;
    refuse("no_repeat_ngram", params.no_repeat_ngram != 0)?;
    refuse("logit_bias", !params.logit_bias.is_empty())?;
    refuse("allowed_ids", params.allowed_ids.is_some())?;
    refuse("banned_ids", !params.banned_ids.is_empty())?;
    refuse("bad_words", !params.bad_words.is_empty())?;
    refuse("min_tokens", params.min_tokens > 0 && !params.stop_ids.is_empty())
}
