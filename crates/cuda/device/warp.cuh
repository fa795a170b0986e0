// warp.cuh: reductions over the lanes of a warp, and from warps to the block.
//
// Requires   all lanes of a warp, or all threads of a block, call together; blocks of whole warps, at most 32
#pragma once

#include "num.cuh"

#define ALL_LANES 0xFFFFFFFFu

DEVICE u32 lane_id() { return threadIdx.x % 32; }
DEVICE u32 warp_id() { return threadIdx.x / 32; }
DEVICE u32 warps() { return blockDim.x / 32; }

// Whether this is the first lane of those of which something holds.
DEVICE bool is_first_of(bool holds) { return lane_id() == (u32)__ffs((int)__ballot_sync(ALL_LANES, holds)) - 1; }

// The largest of the lanes' words: high words first, then the low words of those that lead.
DEVICE u64 warp_max(u64 x) {
    u32 high = __reduce_max_sync(ALL_LANES, (u32)(x >> 32));
    u32 low = __reduce_max_sync(ALL_LANES, (u32)(x >> 32) == high ? (u32)x : 0);
    return ((u64)high << 32) | low;
}

// The largest of the block's words, in every thread. `scratch` has a word a warp and serves one reduction:
// a second one in the same place could overwrite what a slower warp still reads.
DEVICE u64 block_max(u64 x, u64* scratch) {
    x = warp_max(x);
    if (lane_id() == 0) {
        scratch[warp_id()] = x;
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    return warp_max(lane_id() < warps() ? scratch[lane_id()] : 0);
}

// The sum of the lanes' words.
DEVICE u64 warp_sum_of_words(u32 x) {
    u64 high = __reduce_add_sync(ALL_LANES, x >> 16);
    return (high << 16) + __reduce_add_sync(ALL_LANES, x & 0xFFFF);
}

// The sum of the lanes' numbers, modulo 2^64: in parts of 27 bits, so that 32 of them fit a word.
DEVICE u64 warp_sum(u64 x) {
    u64 low = __reduce_add_sync(ALL_LANES, (u32)x & 0x07FFFFFF);
    u64 middle = __reduce_add_sync(ALL_LANES, (u32)(x >> 27) & 0x07FFFFFF);
    u64 high = __reduce_add_sync(ALL_LANES, (u32)(x >> 54));
    return low + (middle << 27) + (high << 54);
}

// The sum of the block's numbers, modulo 2^64, in every thread.
DEVICE u64 block_sum(u64 x) {
    __shared__ u64 scratch[32];
    x = warp_sum(x);
    // Without it a warp could overwrite what a slower one still reads of the sum before.
    __syncthreads();
    if (lane_id() == 0) {
        scratch[warp_id()] = x;
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    return warp_sum(lane_id() < warps() ? scratch[lane_id()] : 0);
}

// The largest of the block's words, in every thread; any number of times.
DEVICE u64 block_largest(u64 x) {
    __shared__ u64 scratch[32];
    // Without it a warp could overwrite what a slower one still reads of the words before.
    __syncthreads();
    return block_max(x, scratch);
}

// The sum of what the threads before this one have, and of what all have.
struct Scan {
    u64 before;
    u64 total;
};

DEVICE Scan block_scan(u64 x) {
    __shared__ u64 scratch[32];
    u64 sum = x;
#pragma unroll
    for (u32 apart = 1; apart < 32; apart *= 2) {
        u64 other = __shfl_up_sync(ALL_LANES, sum, apart);
        sum += lane_id() >= apart ? other : 0;
    }
    // Without it a warp could overwrite what a slower one still reads of the scan before.
    __syncthreads();
    if (lane_id() == 31) {
        scratch[warp_id()] = sum;
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    u64 warps_before = warp_sum(lane_id() < warp_id() ? scratch[lane_id()] : 0);
    return Scan{warps_before + sum - x, warp_sum(lane_id() < warps() ? scratch[lane_id()] : 0)};
}
