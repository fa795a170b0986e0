// reduce.cuh: reductions and scans over the threads of a block.
//
// Requires   all threads of the block call together; blocks of whole warps, at most 32
#pragma once

#include "warp/reduce.cuh"

// Returns the largest of the block's words in every thread. `scratch` holds one word per warp. A second reduction in
// the same scratch memory needs a barrier before it (WAR).
DEVICE u64 block_max_in(u64 x, u64* scratch) {
    x = warp_max(x);
    if (lane_id() == 0) {
        scratch[warp_id()] = x;
    }
    // RAW on scratch: lane 0 of each warp wrote its warp's maximum, all warps read all of them.
    __syncthreads();
    return warp_max(lane_id() < warp_count() ? scratch[lane_id()] : 0);
}

// Returns the sum of the block's numbers, modulo 2^64, in every thread.
DEVICE u64 block_sum(u64 x) {
    __shared__ u64 scratch[32];
    x = warp_sum(x);
    // WAR on scratch: warps may still read the previous call's sums, lane 0 of each warp overwrites them.
    __syncthreads();
    if (lane_id() == 0) {
        scratch[warp_id()] = x;
    }
    // RAW on scratch: lane 0 of each warp wrote its warp's sum, all warps read all of them.
    __syncthreads();
    return warp_sum(lane_id() < warp_count() ? scratch[lane_id()] : 0);
}

// Returns the largest of the block's words in every thread. Calls may follow each other without a barrier between them.
DEVICE u64 block_max(u64 x) {
    __shared__ u64 scratch[32];
    // WAR on scratch: warps may still read the previous call's words, lane 0 of each warp overwrites them.
    __syncthreads();
    return block_max_in(x, scratch);
}

// The sum of the numbers of the threads before this one, and that of all threads of the block.
struct BlockScan {
    u64 before;
    u64 total;
};

// Returns the exclusive prefix sum over the block's threads, and the total, modulo 2^64.
DEVICE BlockScan block_scan(u64 x) {
    __shared__ u64 scratch[32];
    u64 sum = x;
#pragma unroll
    for (u32 apart = 1; apart < 32; apart *= 2) {
        u64 other = __shfl_up_sync(FULL_MASK, sum, apart);
        sum += lane_id() >= apart ? other : 0;
    }
    // WAR on scratch: warps may still read the previous call's sums, lane 31 of each warp overwrites them.
    __syncthreads();
    if (lane_id() == 31) {
        scratch[warp_id()] = sum;
    }
    // RAW on scratch: lane 31 of each warp wrote its warp's sum, all warps read all of them.
    __syncthreads();
    u64 warps_before = warp_sum(lane_id() < warp_id() ? scratch[lane_id()] : 0);
    return BlockScan{warps_before + sum - x, warp_sum(lane_id() < warp_count() ? scratch[lane_id()] : 0)};
}
