// logprob_modes.cuh: the modes of a request's logprobs (L1), which the host packs into a word.
#pragma once

#include "abi/step.cuh"

// The mode of all that is reported.
DEVICE u32 first_logprob_mode(const Params& params) { return params.logprob_modes & 15; }

// The mode of which the token's logprob is reported besides; the first one if there is none.
DEVICE u32 second_logprob_mode(const Params& params) { return params.logprob_modes >> 4 & 15; }

DEVICE bool has_second_logprob_mode(const Params& params) {
    return second_logprob_mode(params) != first_logprob_mode(params);
}

DEVICE bool has_logprob_mode(const Params& params, u32 mode) {
    return first_logprob_mode(params) == mode || second_logprob_mode(params) == mode;
}

// Of the two the one whose members the survey sums, with FEATURE_LOGPROB_SUMS.
DEVICE u32 summed_logprob_mode(const Params& params) { return params.logprob_modes >> 8; }

// Whether the request asks for a logprob over the kept set whose mass the survey does not sum.
DEVICE bool needs_kept_logprob(const Params& params) {
    return params.features & FEATURE_LOGPROBS && has_logprob_mode(params, MODE_PROCESSED) &&
           !(params.features & FEATURE_LOGPROB_SUMS && summed_logprob_mode(params) == MODE_PROCESSED);
}
