// params.cuh: what several stages derive from a request's parameters.
#pragma once

#include "abi/step.cuh"
#include "math/measure.cuh"

// Whether a request has edits of its own; a grammar's mask does not count.
DEVICE bool has_edits(const Params& params) {
    return params.features & (FEATURE_EDITS | FEATURE_BANNED_IDS | FEATURE_HISTORY_EDITS);
}

// The threshold of min-p for rows of this kind.
DEVICE float min_p_threshold(const Params& params) { return MIN_P_COMPARES_VALUES ? params.min_ratio : params.min_p; }
