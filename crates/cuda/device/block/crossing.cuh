// crossing.cuh: finds, in the list of a search, the token at which the mass reaches the goal (M4); by a block.
//
// Computes   that token's key, or its index in the sorted list and the mass including the whole list
// Never      sorts more than one bucket of the list, if that bucket decides; it usually does
// Traffic    logits, in the order of typical-p only; the list in scratch memory, if it has to be sorted by tiles
// Requires   all threads of the block; scratch memory of the row
//
// The mass is floored per tile. Added up token by token, it is a lower bound, and at most one unit per token too low.
//
//     resolve_crossing: divide the list into 256 buckets by value; add each token's own gain to its bucket
//                       bucket = the first one in which the mass plus one unit per token reaches the goal
//                       sort its tokens; find the first one that reaches the goal by the upper and by the lower bound
//                       the two are equal: that token; otherwise: not resolved
//     walk_to_crossing: sort the list by tile; walk each tile for the exact gains; walk the list in order
#pragma once

#include "block/histogram.cuh"

// A row's scratch memory with two words for each listed token.
DEVICE u64* scratch_list(const Step& step, u32 row) {
    return step.scratch + (u64)row * step.scratch_words + 2ull * step.tiles;
}

// A tile's word in scratch memory: the sum of its weights above the bracket, and how many of its tokens lie in the
// bracket, at most 256.
struct PackedTile {
    static_assert(TILE < 1 << 9, "nine bits count the tokens of a tile");
    static DEVICE_MEMBER u64 of(u64 weights, u32 count) { return weights << 9 | count; }
    static DEVICE_MEMBER u64 weights(u64 word) { return word >> 9; }
    static DEVICE_MEMBER u32 count(u64 word) { return (u32)word & 511; }
};

// Sorts `count` keys in shared memory, largest first, by a bitonic network. `count` is a power of two.
DEVICE void sort_descending(u64* keys, u32 count) {
#pragma unroll 1
    for (u32 run = 2; run <= count; run *= 2) {
#pragma unroll 1
        for (u32 delta = run / 2; delta > 0; delta /= 2) {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < count / 2; i += blockDim.x) {
                u32 a = ((i & ~(delta - 1)) << 1) | (i & (delta - 1)), b = a | delta;
                u64 x = keys[a], y = keys[b];
                if ((x < y) == ((a & run) == 0)) {
                    keys[a] = y;
                    keys[b] = x;
                }
            }
            // RAW and WAR on keys: all threads exchanged pairs, the next step pairs the keys differently.
            __syncthreads();
        }
    }
}

// Sorts `count` keys in shared memory, largest first, after padding them with zeros to a power of two.
DEVICE void pad_and_sort(u64* keys, u32 count) {
    u32 padded = 32;
    while (padded < count) {
        padded *= 2;
    }
#pragma unroll 1
    for (u32 i = count + threadIdx.x; i < padded; i += blockDim.x) {
        keys[i] = 0;
    }
    // RAW on keys: all threads wrote keys or padding, all threads compare them.
    __syncthreads();
    sort_descending(keys, padded);
}

// Up to this number, keys are ranked by counting, which is less work than the network.
#define RANK_SORT_MAX 512

// Sorts a short list by rank: each key counts the keys before it. `sorted` has the capacity for `count` keys and does
// not overlap `keys`. All keys differ.
DEVICE void rank_sort(const u64* keys, u64* sorted, u32 count) {
    // The number of threads that count the keys before one key, each over a part of them.
    u32 threads_per_key = 1;
    while (threads_per_key < 32 && 2 * threads_per_key * count <= blockDim.x) {
        threads_per_key *= 2;
    }
    u32 part = threadIdx.x % threads_per_key;
#pragma unroll 1
    for (u32 start = 0; start < count; start += blockDim.x / threads_per_key) {
        u32 i = start + threadIdx.x / threads_per_key, before = 0;
        u64 own = i < count ? keys[i] : ~0ull;
#pragma unroll 1
        for (u32 j = part; j < count; j += threads_per_key) {
            before += keys[j] > own;
        }
#pragma unroll 1
        for (u32 delta = 1; delta < threads_per_key; delta *= 2) {
            before += __shfl_xor_sync(FULL_MASK, before, (int)delta);
        }
        if (i < count && part == 0) {
            sorted[before] = own;
        }
    }
    // RAW on sorted: all threads wrote keys, all threads read them.
    __syncthreads();
}

// Sorts a search's list. Returns the sorted keys: in its upper half if they were ranked, otherwise in the list
// itself.
DEVICE u64* sort_list(u64* list, u32 count) {
    if (count <= RANK_SORT_MAX) {
        rank_sort(list, list + LIST_CAPACITY / 2, count);
        return list + LIST_CAPACITY / 2;
    }
    pad_and_sort(list, count);
    return list;
}

// How far a key lies below `top`, the ordered bits of the largest listed value. Of equal parts by value, the last few
// would hold nearly all probabilities. So probabilities are divided by their ordered bits.
DEVICE float key_depth(u64 key, u32 top) {
#if GUMBALL_PROBABILITIES
    return u32_to_float(top - (u32)(key >> 32));
#else
    return from_ordered_bits(top) - key_logit(key);
#endif
}

// The bucket of a key. Each step is monotone, so a lower value has no lower bucket.
DEVICE u32 bucket_index(u64 key, u32 top, float scale) {
    return float_to_u32(fminf(key_depth(key, top) * scale, BUCKETS - 1));
}

// The amount that a listed token adds to the mass by itself, rounded down. The tokens of a prefix of the list add at
// most one unit per token more than the sum of their gains (M4).
template <class V>
DEVICE u64 mass_gain(const SearchedRow<V>& set, u64 key) {
    const Search& search = set.storage.search;
    u32 id = key_id(key);
    float z = search.order.nearest ? set.view.logit(id) : key_logit(key), maximum = search.maxima.of(id / TILE);
    return tile_mass(search.factor(maximum), TokenWeights(maximum, search.log2e_over_t).of(z));
}

// Finds the first bucket in which the mass may reach the goal: before it, the mass certainly does not. Sets
// Buckets::bucket to BUCKETS if the list does not reach the goal.
template <class V>
DEVICE void find_bucket(const SearchedRow<V>& set, u32 count, u32 top, float scale) {
    const Search& search = set.storage.search;
    Buckets& buckets = set.storage.buckets;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < BUCKETS; i += blockDim.x) {
        buckets.masses[i] = 0;
        buckets.counts[i] = 0;
    }
    if (threadIdx.x == 0) {
        buckets.bucket = BUCKETS;
        buckets.count = 0;
    }
    // RAW on buckets: all threads cleared masses and counts, all threads add to them.
    __syncthreads();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = set.storage.keys[i];
        u32 bucket = bucket_index(key, top, scale);
        atomicAdd(&buckets.masses[bucket], mass_gain(set, key));
        atomicAdd(&buckets.counts[bucket], 1u);
    }
    // RAW on buckets: all threads added to masses and counts, warp 0 reads them.
    __syncthreads();
    if (warp_id() == 0) {
        const u32 EACH = BUCKETS / 32;
        u32 lane = lane_id(), tokens = 0;
        u64 mass = 0;
#pragma unroll 1
        for (u32 i = lane * EACH; i < (lane + 1) * EACH; i++) {
            mass += buckets.masses[i];
            tokens += buckets.counts[i];
        }
        u64 own_mass = mass;
        u32 own_tokens = tokens;
#pragma unroll 1
        for (u32 delta = 1; delta < 32; delta *= 2) {
            u64 other_mass = __shfl_up_sync(FULL_MASK, mass, delta);
            u32 other_tokens = __shfl_up_sync(FULL_MASK, tokens, delta);
            mass += lane >= delta ? other_mass : 0;
            tokens += lane >= delta ? other_tokens : 0;
        }
        u32 reached = __ballot_sync(FULL_MASK, search.hi.mass + mass + tokens >= search.goal);
        if (reached != 0 && lane == (u32)__ffs((int)reached) - 1) {
            mass += search.hi.mass - own_mass;
            tokens -= own_tokens;
            u32 i = lane * EACH;
            while (mass + buckets.masses[i] + tokens + buckets.counts[i] < search.goal) {
                mass += buckets.masses[i];
                tokens += buckets.counts[i++];
            }
            buckets.mass_before = mass;
            buckets.count_before = tokens;
            buckets.bucket = i;
        }
    }
    // RAW on buckets: a lane of warp 0 wrote the bucket and what precedes it, all threads read them.
    __syncthreads();
}

// Returns the key of the listed token at which the mass reaches the goal. The tokens' own gains must decide it (M4),
// for every goal from `goal` to `goal + goal_slack`, in a bucket of at most BUCKET_CAPACITY tokens. Otherwise returns
// 0 and leaves the list as it was.
template <class V>
DEVICE u64 resolve_crossing(const SearchedRow<V>& set, u32 count) {
    const Search& search = set.storage.search;
    Buckets& buckets = set.storage.buckets;
    u32 top = search.max_value_bits;
    float range = key_depth((u64)~search.min_value_bits_inverted << 32, top);
    if (count == 0 || !(range < 1e30f)) {
        return 0;
    }
    float scale = range > 1e-30f ? int_to_float(BUCKETS) / range : 1.0f;
    find_bucket(set, count, top, scale);
    u32 bucket = buckets.bucket, own = bucket < BUCKETS ? buckets.counts[bucket] : 0;
    if (own == 0 || own > BUCKET_CAPACITY) {
        return 0;
    }
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = set.storage.keys[i];
        if (bucket_index(key, top, scale) == bucket) {
            buckets.keys[atomicAdd(&buckets.count, 1u)] = key;
        }
    }
    // RAW on buckets.keys: all threads copied the bucket's keys, all threads rank them.
    __syncthreads();
    rank_sort(buckets.keys, buckets.sorted, own);
    // Low word: how many of the bucket's tokens certainly do not reach the least goal. High word: how many may not
    // reach the largest goal.
    u64 reached = buckets.mass_before, short_of = 0, goal_at_most = search.goal + search.goal_slack;
#pragma unroll 1
    for (u32 start = 0; start < own; start += blockDim.x) {
        u32 i = start + threadIdx.x;
        u64 gain = i < own ? mass_gain(set, buckets.sorted[i]) : 0;
        BlockScan gains = block_scan(set.storage.reduce, gain);
        u64 upto = reached + gains.before + gain;
        short_of +=
            i < own ? ((u64)(upto < goal_at_most) << 32) + (upto + buckets.count_before + i + 1 < search.goal) : 0;
        reached += gains.total;
    }
    short_of = block_sum(set.storage.reduce, short_of);
    u32 index = (u32)short_of;
    return index == (u32)(short_of >> 32) && index < own ? buckets.sorted[index] : 0;
}

// Finds the token at which the mass reaches the goal, and sets found_index to its index in the sorted list. The index
// is `count` if the list does not reach the goal. Leaves the sorted keys in the upper half of scratch_list and
// overwrites the shared list. Returns the mass including the whole list.
template <class V>
DEVICE u64 walk_to_crossing(const SearchedRow<V>& set, u32 count) {
    Search& search = set.storage.search;
    u64* list = set.storage.keys;
    const u64* ordered = sort_list(list, count);
    const u64* above = scratch_tile_words(set.step, set.row);
    u64* gains = scratch_list(set.step, set.row);
    u64* keys = gains + LIST_CAPACITY;
    static_assert(MAX_TILES <= 1 << 23 && LIST_CAPACITY <= 1 << 12 && (LIST_CAPACITY & (LIST_CAPACITY - 1)) == 0,
                  "a word has a tile, an index and a weight; the list is sorted by powers of two");
    // Each word holds tile, index in the sorted list and weight. Sorted, the tokens of a tile are neighbours, in
    // their order.
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = ordered[i];
        u32 id = key_id(key), tile = id / TILE;
        float z = search.order.nearest ? set.view.logit(id) : key_logit(key);
        u32 q = TokenWeights(search.maxima.of(tile), search.log2e_over_t).of(z);
        keys[i] = key;
        list[i] = ~(((u64)tile << 41) | ((u64)i << 29) | q);
    }
    pad_and_sort(list, count);
    // The thread that finds a tile's first listed token computes what each of the tile's tokens adds to the mass
    // (M4).
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 tile = (u32)(~list[i] >> 41);
        if (i > 0 && (u32)(~list[i - 1] >> 41) == tile) {
            continue;
        }
        float factor = search.factor(search.maxima.of(tile));
        u64 q = PackedTile::weights(above[tile]), before = tile_mass(factor, q);
#pragma unroll 1
        for (u32 next = i; next < count && (u32)(~list[next] >> 41) == tile; next++) {
            u64 word = ~list[next];
            q += word & 0x1FFFFFFF;
            u64 after = tile_mass(factor, q);
            gains[(word >> 29) & 0xFFF] = after - before;
            before = after;
        }
    }
    if (threadIdx.x == 0) {
        search.found_index = count;
    }
    // RAW on gains: the thread of each tile's first token wrote them, other threads read them. WAW on found_index:
    // thread 0 set it to `count`, the thread that finds the crossing overwrites it.
    __syncthreads();
    u32 chunk = (count + blockDim.x - 1) / blockDim.x, from = threadIdx.x * chunk;
    from = from < count ? from : count;
    u32 to = from + chunk < count ? from + chunk : count;
    u64 sum = 0;
#pragma unroll 1
    for (u32 i = from; i < to; i++) {
        sum += gains[i];
    }
    BlockScan sums = block_scan(set.storage.reduce, sum);
    u64 reached = search.hi.mass + sums.before, total = search.hi.mass + sums.total;
#pragma unroll 1
    for (u32 i = from; i < to; i++) {
        u64 after = reached + gains[i];
        if (reached < search.goal && after >= search.goal) {
            search.found_index = i;
        }
        reached = after;
    }
    // RAW on found_index: the thread that finds the crossing wrote it, all threads read it.
    __syncthreads();
    return total;
}
