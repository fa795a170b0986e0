// row_cut.cuh: what is kept of a row that is to be written, and how its numbers are written.
//
// Twins      src/abi.rs
// Requires   kept [rows]
#pragma once

#include "abi/operators.cuh"
#include "math/cut.cuh"
#include "warp/softmax.cuh"

// What a row's kept tokens share out among them, in units of the first one's weight.
DEVICE float cut_sum(const RowCut& cut) { return u64_to_float(cut.mass) * bits_float((127 - 43) << 23); }

// The probability of a kept token, by its clean number (P4).
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
