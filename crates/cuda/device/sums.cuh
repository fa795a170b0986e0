// sums.cuh: what a tile weighs (section 4).
//
// Computes   the sum of a tile's weights, relative to its maximum
// Requires   whole warps
#pragma once

#include "step.cuh"
#include "warp.cuh"

// The sum of the weights of a tile's cleaned logits, in every lane; 0 in a tile of nothing.
DEVICE u64 sum_of_weights(const float (&z)[PER_LANE], float maximum, float s) {
    // Eight weights of at most 2^28 fit.
    u32 sum = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        sum += weight((z[j] - maximum) * s);
    }
    return warp_sum_of_words(sum);
}
