// kth_largest.cuh: the k-th largest of a row of floats, by a block.
//
// Computes   a histogram of the finite floats over bins of equal width, then the k-th among the floats of one bin; by
//            bytes where that bin has too many, or bins have no width
// Traffic    in: the floats, three times, or some times more; they should lie in a cache
#pragma once

#include "block/reduce.cuh"
#include "math/num.cuh"

// The bins of the histogram, and the most floats of a bin that are compared with each other.
#define KTH_BINS 1024
#define KTH_LIST 512
static_assert(KTH_BINS == 32 * 32, "a lane has 32 bins, and a warp has them all");

// The shared memory of the search below.
struct KthStorage {
    ReduceStorage reductions;
    u32 bins[KTH_BINS];
    // The sums of the bins of each warp's turn.
    u32 sums[KTH_BINS / 32];
    float list[KTH_LIST];
    u32 listed, bin, left;
    float result;
};

// Finds the bin with the k-th largest float, counted from the last bin on, and how many of that bin are sought. All
// threads of the block call it, with the bins written.
DEVICE void find_bin(KthStorage& storage, u32 k) {
    for (u32 group = warp_id(); group < KTH_BINS / 32; group += warp_count()) {
        const u32 sum = (u32)warp_sum_u32(storage.bins[group * 32 + lane_id()]);
        if (lane_id() == 0) {
            storage.sums[group] = sum;
        }
    }
    // RAW on sums: all warps wrote some, warp 0 reads them.
    __syncthreads();
    if (warp_id() == 0) {
        u32 sought = k, group = 0;
        // First among the groups of bins, then among the bins of one.
        for (u32 level = 0; level < 2; level++) {
            const u32 from_end = 31 - lane_id();
            const u32 own = level == 0 ? storage.sums[from_end] : storage.bins[group * 32 + from_end];
            const u32 through = warp_scan(own);
            const u32 reached = (u32)__ffs((int)__ballot_sync(FULL_MASK, through >= sought)) - 1;
            sought -= __shfl_sync(FULL_MASK, through - own, (int)reached);
            group = group * 32 + 31 - reached;
        }
        if (lane_id() == 0) {
            storage.bin = group;
            storage.left = sought;
            storage.listed = 0;
        }
    }
    // RAW on bin, left and listed: lane 0 wrote them, all threads read them.
    __syncthreads();
}

// Clears the bins. A barrier must follow before they are counted in.
DEVICE void clear_bins(KthStorage& storage) {
    for (u32 i = threadIdx.x; i < KTH_BINS; i += blockDim.x) {
        storage.bins[i] = 0;
    }
}

// Returns the `k`-th largest by its bytes, from the highest on: a histogram of each byte among the floats that have the
// bytes found before. All threads of the block call it.
template <class F>
DEVICE float kth_by_bytes(KthStorage& storage, u32 count, u32 k, F value) {
    // The bytes of the result, from the highest on, that are known; and how many of the values with these bytes are
    // sought.
    u32 prefix = 0, left = k;
    for (u32 shift = 32; shift > 0;) {
        shift -= 8;
        clear_bins(storage);
        // WAW on the bins: some threads cleared them, all count in them.
        __syncthreads();
        for (u32 start = 0; start < count; start += blockDim.x) {
            const u32 i = start + threadIdx.x;
            const u64 bits = i < count ? ordered_bits(value(i)) : 0;
            const bool counts = i < count && (bits ^ prefix) >> shift >> 8 == 0;
            // Most values share their high bytes, so a warp counts the lanes that have one byte at once.
            const u32 bin = counts ? bits >> shift & 255 : 256;
            const u32 peers = __match_any_sync(FULL_MASK, bin);
            if (counts && lane_id() == (u32)__ffs((int)peers) - 1) {
                atomicAdd(&storage.bins[bin], (u32)__popc(peers));
            }
        }
        // RAW on the bins: all threads counted, all warps read.
        __syncthreads();
        find_bin(storage, left);
        prefix |= storage.bin << shift;
        left = storage.left;
    }
    return from_ordered_bits(prefix);
}

// Returns the `k`-th largest of `count` floats, `value(0)` and so on, none of which is NaN; -inf if there are fewer
// that are larger. All threads of the block call it, with k of at least 1. `value` may be called several times for a
// float.
template <class F>
DEVICE float kth_largest(KthStorage& storage, u32 count, u32 k, F value) {
    u32 finite = 0;
    float lowest = INF_F32, highest = -INF_F32;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const float x = value(i);
        finite += x > -INF_F32;
        lowest = x > -INF_F32 && x < lowest ? x : lowest;
        highest = max_f32(highest, x);
    }
    clear_bins(storage);
    if (block_sum(storage.reductions, finite) < k) {
        return -INF_F32;
    }
    highest = from_ordered_bits((u32)block_max(storage.reductions, ordered_bits(highest)));
    lowest = from_ordered_bits(~(u32)block_max(storage.reductions, ~ordered_bits(lowest)));
    const float range = highest - lowest, scale = (KTH_BINS - 1) / range;
    bool is_found = range < INF_F32 && scale < INF_F32;
    if (is_found) {
        // Subtraction, product and conversion are monotonic, so a larger float is in no smaller bin.
        const auto bin_of = [&](float x) INLINE {
            const u32 bin = (u32)((x - lowest) * scale);
            return bin < KTH_BINS ? bin : KTH_BINS - 1;
        };
        // The bins were cleared before the barriers of the reductions.
#pragma unroll 4
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            const float x = value(i);
            if (x > -INF_F32) {
                atomicAdd(&storage.bins[bin_of(x)], 1u);
            }
        }
        // RAW on bins: all threads counted, all warps read.
        __syncthreads();
        find_bin(storage, k);
#pragma unroll 4
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            const float x = value(i);
            if (x > -INF_F32 && bin_of(x) == storage.bin) {
                const u32 place = atomicAdd(&storage.listed, 1u);
                if (place < KTH_LIST) {
                    storage.list[place] = x;
                }
            }
        }
        // RAW on list: all threads wrote some, all read all.
        __syncthreads();
        is_found = storage.listed <= KTH_LIST;
    }
    if (!is_found) {
        return kth_by_bytes(storage, count, k, value);
    }
    for (u32 i = threadIdx.x; i < storage.listed; i += blockDim.x) {
        const float x = storage.list[i];
        u32 larger = 0, equal = 0;
        for (u32 j = 0; j < storage.listed; j++) {
            larger += storage.list[j] > x;
            equal += storage.list[j] == x;
        }
        if (larger < storage.left && storage.left <= larger + equal) {
            storage.result = x;
        }
    }
    // RAW on result: the threads with that float wrote it, all read it.
    __syncthreads();
    return storage.result;
}
