// reduce.cuh: reductions and scans over the threads of a block.
//
// Requires   all threads of the block call together; blocks of whole warps, at most 32
#pragma once

#include "warp/reduce.cuh"

// The largest of the block's words, in every thread. `scratch` has a word a warp and serves one reduction:
// a second one in the same place could overwrite what a slower warp still reads.
DEVICE u64 block_max_in(u64 x, u64* scratch) {
    x = warp_max(x);
    if (lane_id() == 0) {
        scratch[warp_id()] = x;
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    return warp_max(lane_id() < warp_count() ? scratch[lane_id()] : 0);
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
    return warp_sum(lane_id() < warp_count() ? scratch[lane_id()] : 0);
}

// The largest of the block's words, in every thread; any number of times.
DEVICE u64 block_max(u64 x) {
    __shared__ u64 scratch[32];
    // Without it a warp could overwrite what a slower one still reads of the words before.
    __syncthreads();
    return block_max_in(x, scratch);
}

// The sum of what the threads before this one have, and of what all have.
struct BlockScan {
    u64 before;
    u64 total;
};

DEVICE BlockScan block_scan(u64 x) {
    __shared__ u64 scratch[32];
    u64 sum = x;
#pragma unroll
    for (u32 apart = 1; apart < 32; apart *= 2) {
        u64 other = __shfl_up_sync(FULL_MASK, sum, apart);
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
    return BlockScan{warps_before + sum - x, warp_sum(lane_id() < warp_count() ? scratch[lane_id()] : 0)};
}
