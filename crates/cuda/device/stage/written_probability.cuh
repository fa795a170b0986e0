// written_probability.cuh: the numbers of a row that is written as probabilities, from its cut (P4).
//
// Computes   the divisor of a row's probabilities; the probability of a kept token
// Twins      oracle spec/src/outputs.rs | CPU cpu/src/outputs.rs | why docs/probabilities.md
// Requires   the row's RowCut, as find_cut.cu writes it
#pragma once

#include "abi/operators.cuh"
#include "math/cut.cuh"
#include "warp/softmax.cuh"

// Returns the mass of a row's kept tokens, in units of the first one's weight.
DEVICE float cut_sum(const RowCut& cut) { return relative_mass(cut.mass); }

// Sets the divisor and the scale of a row's probabilities from its cut, which keeps several tokens.
DEVICE void set_probabilities(RowProbabilities& probabilities, const RowCut& cut) {
    probabilities.row_max.maximum = key_logit(cut.first_key);
    probabilities.scale.log2e_over_t = cut.log2e_over_t;
    probabilities.sum = cut_sum(cut);
    probabilities.quarter_sum = Divisor(probabilities.sum * 0.25f);
}

// Returns the probability of a kept token, given its clean logit or probability z (P4).
DEVICE float probability_of_key(float z, const RowCut& cut) {
    if (cut.flags & CUT_FIRST_ONLY) {
        return 1.0f;
    }
#if GUMBALL_PROBABILITIES
    return (z / key_logit(cut.first_key)) / cut_sum(cut);
#else
    return exp2_rule((z - key_logit(cut.first_key)) * cut.log2e_over_t) / cut_sum(cut);
#endif
}
