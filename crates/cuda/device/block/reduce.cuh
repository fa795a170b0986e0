// reduce.cuh: reductions and scans over the threads of a block.
//
// Requires   all threads of the block call together; blocks of whole warps, at most 32
#pragma once

#include "warp/reduce.cuh"

// The shared memory of a block's reductions: one word per warp for each kind. Calls may follow each other without a
// barrier between them.
struct ReduceStorage {
    u64 maxima[32];
    u64 sums[32];
    u64 scans[32];
};

// Adds up a warp's numbers, modulo 2^64, and stores the sum in the warp's word of `sums`. A barrier must precede
// `total_of_warps`.
DEVICE void store_warp_sum(u64* sums, u64 own) {
    own = warp_sum(own);
    if (lane_id() == 0) {
        sums[warp_id()] = own;
    }
}

// Returns the sum of what `store_warp_sum` stored; by a warp, in every lane.
DEVICE u64 total_of_warps(const u64* sums) { return warp_sum(lane_id() < warp_count() ? sums[lane_id()] : 0); }

// Returns the sum of the block's numbers, modulo 2^64, in every thread.
DEVICE u64 block_sum(ReduceStorage& storage, u64 x) {
    // WAR on sums: warps may still read the previous call's sums, lane 0 of each warp overwrites them.
    __syncthreads();
    store_warp_sum(storage.sums, x);
    // RAW on sums: lane 0 of each warp wrote its warp's sum, all warps read all of them.
    __syncthreads();
    return total_of_warps(storage.sums);
}

// Returns the largest of the block's words in every thread.
DEVICE u64 block_max(ReduceStorage& storage, u64 x) {
    x = warp_max(x);
    // WAR on maxima: warps may still read the previous call's words, lane 0 of each warp overwrites them.
    __syncthreads();
    if (lane_id() == 0) {
        storage.maxima[warp_id()] = x;
    }
    // RAW on maxima: lane 0 of each warp wrote its warp's maximum, all warps read all of them.
    __syncthreads();
    return warp_max(lane_id() < warp_count() ? storage.maxima[lane_id()] : 0);
}

// The sum of the numbers of the threads before this one, and the sum of all threads of the block.
struct BlockScan {
    u64 before;
    u64 total;
};

// Returns the exclusive prefix sum over the block's threads, and the total, modulo 2^64.
DEVICE BlockScan block_scan(ReduceStorage& storage, u64 x) {
    const u64 sum = warp_scan(x);
    // WAR on scans: warps may still read the previous call's sums, lane 31 of each warp overwrites them.
    __syncthreads();
    if (lane_id() == 31) {
        storage.scans[warp_id()] = sum;
    }
    // RAW on scans: lane 31 of each warp wrote its warp's sum, all warps read all of them.
    __syncthreads();
    u64 warps_before = warp_sum(lane_id() < warp_id() ? storage.scans[lane_id()] : 0);
    return BlockScan{warps_before + sum - x, warp_sum(lane_id() < warp_count() ? storage.scans[lane_id()] : 0)};
}
