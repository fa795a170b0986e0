// reduce.cuh: reductions over the lanes of a warp.
//
// Requires   all 32 lanes of the warp call together; blocks of whole warps, at most 32
#pragma once

#include "math/num.cuh"

#define FULL_MASK 0xFFFFFFFFu

DEVICE u32 lane_id() { return threadIdx.x % 32; }
DEVICE u32 warp_id() { return threadIdx.x / 32; }
DEVICE u32 warp_count() { return blockDim.x / 32; }

// Whether this is the lowest lane in which `holds` is true.
DEVICE bool is_first_active_lane(bool holds) {
    return lane_id() == (u32)__ffs((int)__ballot_sync(FULL_MASK, holds)) - 1;
}

// The largest of the lanes' 64-bit words: reduces the high words, then the low words of the lanes that have the largest
// high word.
DEVICE u64 warp_max(u64 x) {
    u32 high = __reduce_max_sync(FULL_MASK, (u32)(x >> 32));
    u32 low = __reduce_max_sync(FULL_MASK, (u32)(x >> 32) == high ? (u32)x : 0);
    return ((u64)high << 32) | low;
}

// The sum of the lanes' 32-bit words, from the sums of their high halves and of their low halves: neither overflows.
DEVICE u64 warp_sum_u32(u32 x) {
    u64 high = __reduce_add_sync(FULL_MASK, x >> 16);
    return (high << 16) + __reduce_add_sync(FULL_MASK, x & 0xFFFF);
}

// The sum of the lanes' words, modulo 2^64. A word is split into parts of 27 bits: 32 such parts add up to 32 bits at
// most.
DEVICE u64 warp_sum(u64 x) {
    u64 low = __reduce_add_sync(FULL_MASK, (u32)x & 0x07FFFFFF);
    u64 middle = __reduce_add_sync(FULL_MASK, (u32)(x >> 27) & 0x07FFFFFF);
    u64 high = __reduce_add_sync(FULL_MASK, (u32)(x >> 54));
    return low + (middle << 27) + (high << 54);
}

// The sum of the numbers of the lanes up to this one.
template <class Number>
DEVICE Number warp_scan(Number x) {
#pragma unroll
    for (u32 apart = 1; apart < 32; apart *= 2) {
        const Number other = __shfl_up_sync(FULL_MASK, x, apart);
        x += lane_id() >= apart ? other : 0;
    }
    return x;
}
