// crossing.cuh: the listed tokens of a search: put in order, and walked to the one at which a mass is reached (M4).
//
// Computes   the token of the list that reaches the mass, and the mass with all of the list
// Never      sorts more of the list than the neighbours of that token, as a rule
// Traffic    none but logits where the order is another than theirs, and the list itself where it has to be sorted by tiles
// Requires   all threads of the block; scratch of the row
#pragma once

#include "block/histogram.cuh"

// Room for tokens on chip, whoever sorts some.
DEVICE u64* shared_keys() {
    // Aligned for whatever else takes the room.
    alignas(16) __shared__ u64 list[LIST_CAPACITY];
    return list;
}

// A row's room for two words for each listed token.
DEVICE u64* scratch_list(const Step& step, u32 row) {
    return step.scratch + (u64)row * step.scratch_words + 2ull * step.tiles;
}

// A tile's weight above the aim, and how many of its tokens lie in it: at most 256.
struct PackedTile {
    static DEVICE_MEMBER u64 of(u64 weights, u32 count) { return weights << 9 | count; }
    static DEVICE_MEMBER u64 weights(u64 word) { return word >> 9; }
    static DEVICE_MEMBER u32 count(u64 word) { return (u32)word & 511; }
};

// Sorts keys on chip, largest first; a power of two of them.
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
            // Without it a warp would compare keys that others are still exchanging.
            __syncthreads();
        }
    }
}

// Sorts `count` keys, padding them with zeros to a power of two.
DEVICE void pad_and_sort(u64* keys, u32 count) {
    u32 padded = 32;
    while (padded < count) {
        padded *= 2;
    }
#pragma unroll 1
    for (u32 i = count + threadIdx.x; i < padded; i += blockDim.x) {
        keys[i] = 0;
    }
    // Without it the sort would read keys that were not written yet.
    __syncthreads();
    sort_descending(keys, padded);
}

// How many tokens are put in their places one by one, which is less work than to sort them.
#define RANK_SORT_MAX 512

// Puts few keys in order, in room for as many.
DEVICE void rank_sort(const u64* keys, u64* sorted, u32 count) {
    // So many threads count the keys before one.
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
    // Without it keys would be read that are not in their places yet.
    __syncthreads();
}

// Puts the list in order; returns where.
DEVICE u64* sort_list(u32 count) {
    u64* list = shared_keys();
    if (count <= RANK_SORT_MAX) {
        rank_sort(list, list + LIST_CAPACITY / 2, count);
        return list + LIST_CAPACITY / 2;
    }
    pad_and_sort(list, count);
    return list;
}

// How many parts a list is cut into by value, and how many tokens of a part are put in order.
#define BUCKETS 256
#define BUCKET_CAPACITY 256

// A list by parts, in the room of the counts of levels, which have said what they can.
struct Buckets {
    // What the tokens of each add to the mass, each by itself and rounded down.
    u64 masses[BUCKETS];
    u64 keys[BUCKET_CAPACITY];
    u64 sorted[BUCKET_CAPACITY];
    u32 counts[BUCKETS];
    // What comes before the part in which the mass is reached.
    u64 mass_before;
    u32 count_before;
    u32 bucket;
    // How many of its tokens are there.
    u32 count;
};

DEVICE Buckets& shared_buckets() {
    static_assert(sizeof(Buckets) <= (LEVELS + 32) * sizeof(u32), "the room of the counts holds the parts");
    return *(Buckets*)shared_level_counts();
}

// How far a key lies below the ordered bits of a value that none exceeds. Of probabilities nearly all lie in the last of few parts
// that are equal by value: so theirs are equal by bits.
DEVICE float key_depth(u64 key, u32 top) {
#if GUMBALL_PROBABILITIES
    return u32_to_float(top - (u32)(key >> 32));
#else
    return from_ordered_bits(top) - key_logit(key);
#endif
}

// The part in which a key lies: rises as its value falls, as each step is monotone.
DEVICE u32 bucket_index(u64 key, u32 top, float scale) {
    return float_to_u32(fminf(key_depth(key, top) * scale, BUCKETS - 1));
}

// What a listed token adds to the mass, by itself: together they add less than a unit for each more (M4).
template <class V>
DEVICE u64 mass_gain(const SearchedRow<V>& set, u64 key) {
    const Search& search = set.search();
    u32 id = key_id(key);
    float z = search.order.nearest ? set.view.logit(id) : key_logit(key), maximum = search.maxima.of(id / TILE);
    return tile_mass(search.factor(maximum), TokenWeights(maximum, search.log2e_over_t).of(z));
}

// Finds the part of the list in which the mass may first be reached: before it, it surely is not. BUCKETS if in none.
template <class V>
DEVICE void find_bucket(const SearchedRow<V>& set, u32 count, u32 top, float scale) {
    const Search& search = set.search();
    Buckets& buckets = shared_buckets();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < BUCKETS; i += blockDim.x) {
        buckets.masses[i] = 0;
        buckets.counts[i] = 0;
    }
    if (threadIdx.x == 0) {
        buckets.bucket = BUCKETS;
        buckets.count = 0;
    }
    // Without it tokens would be added before the parts are empty.
    __syncthreads();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = shared_keys()[i];
        u32 bucket = bucket_index(key, top, scale);
        atomicAdd(&buckets.masses[bucket], mass_gain(set, key));
        atomicAdd(&buckets.counts[bucket], 1u);
    }
    // Without it parts would be read that others have not added to yet.
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
    // Without it the part would be read before it is found.
    __syncthreads();
}

// The key of the listed token at which the mass is reached, if that takes few neighbours to find and what each token adds, but
// for a unit, settles it (M4), wherever in its doubt the goal is; else 0, and the list is as it was.
template <class V>
DEVICE u64 resolve_crossing(const SearchedRow<V>& set, u32 count) {
    Search& search = set.search();
    Buckets& buckets = shared_buckets();
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
        u64 key = shared_keys()[i];
        if (bucket_index(key, top, scale) == bucket) {
            buckets.keys[atomicAdd(&buckets.count, 1u)] = key;
        }
    }
    // Without it keys would be put in order that are not there yet.
    __syncthreads();
    rank_sort(buckets.keys, buckets.sorted, own);
    // How many of them do not reach the goal for sure, and how many perhaps do not.
    u64 reached = buckets.mass_before, short_of = 0, goal_at_most = search.goal + search.goal_slack;
#pragma unroll 1
    for (u32 start = 0; start < own; start += blockDim.x) {
        u32 i = start + threadIdx.x;
        u64 gain = i < own ? mass_gain(set, buckets.sorted[i]) : 0;
        BlockScan gains = block_scan(gain);
        u64 upto = reached + gains.before + gain;
        short_of +=
            i < own ? ((u64)(upto < goal_at_most) << 32) + (upto + buckets.count_before + i + 1 < search.goal) : 0;
        reached += gains.total;
    }
    short_of = block_sum(short_of);
    u32 index = (u32)short_of;
    return index == (u32)(short_of >> 32) && index < own ? buckets.sorted[index] : 0;
}

// Finds the place of that token among all in their order; it is `count` if the list does not reach the mass. The keys in order are
// left in the room for the list, and the list is given up. Returns the mass with all of it.
template <class V>
DEVICE u64 walk_to_crossing(const SearchedRow<V>& set, u32 count) {
    Search& search = set.search();
    const u64* ordered = sort_list(count);
    u64* list = shared_keys();
    const u64* above = scratch_tile_words(set.step, set.row);
    u64* gains = scratch_list(set.step, set.row);
    u64* keys = gains + LIST_CAPACITY;
    // By tile, and in a tile by the order: so a tile's tokens stand together, each with its weight.
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
    // What each token adds to the mass, from the first of its tile down (M4).
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
    // Without it gains would be read that were not written yet, and the place be set after it was found.
    __syncthreads();
    u32 chunk = (count + blockDim.x - 1) / blockDim.x, from = threadIdx.x * chunk;
    from = from < count ? from : count;
    u32 to = from + chunk < count ? from + chunk : count;
    u64 sum = 0;
#pragma unroll 1
    for (u32 i = from; i < to; i++) {
        sum += gains[i];
    }
    BlockScan sums = block_scan(sum);
    u64 reached = search.hi.mass + sums.before, total = search.hi.mass + sums.total;
#pragma unroll 1
    for (u32 i = from; i < to; i++) {
        u64 after = reached + gains[i];
        if (reached < search.goal && after >= search.goal) {
            search.found_index = i;
        }
        reached = after;
    }
    // Without it the place would be read before the thread that finds it has.
    __syncthreads();
    return total;
}
