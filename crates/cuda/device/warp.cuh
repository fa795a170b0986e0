// warp.cuh: reductions over the lanes of a warp, and from warps to the block.
//
// Requires   all lanes of a warp, or all threads of a block, call together; blocks of whole warps, at most 32
#pragma once

#include "num.cuh"

#define ALL_LANES 0xFFFFFFFFu

DEVICE u32 lane_id() { return threadIdx.x % 32; }
DEVICE u32 warp_id() { return threadIdx.x / 32; }
DEVICE u32 warps() { return blockDim.x / 32; }

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
