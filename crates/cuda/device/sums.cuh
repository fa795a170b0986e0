// sums.cuh: about how much a tile weighs, for bounds of masses.
//
// Never      decides a token: what it computes is not the same everywhere
// Requires   whole warps
#pragma once

#include "step.cuh"
#include "warp.cuh"

// About the sum of a tile's weights, in units of 2^-23 of its maximum's; 0 in a tile of nothing.
DEVICE u32 about_sum_of_weights(const float (&z)[PER_LANE], float maximum, float s) {
    float sum = 0.0f;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        sum += about_exp2((z[j] - maximum) * s);
    }
    // A lane's eight weights are 2^26 at most. NaN, the sum in a tile of nothing, becomes 0.
    return __reduce_add_sync(ALL_LANES, float_to_u32(larger(sum, 0.0f) * 8388608.0f));
}
