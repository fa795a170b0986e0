// walk.cuh: the listed tokens of a search: put in order, and walked to the one at which a mass is reached (M4).
//
// Computes   the token of the list that reaches the mass, and the mass with all of the list
// Never      sorts more of the list than the neighbours of that token, as a rule
// Traffic    none but logits where the order is another than theirs, and the list itself where it has to be sorted by tiles
// Requires   all threads of the block; scratch of the row
#pragma once

#include "levels.cuh"

// Room for tokens on chip, whoever sorts some.
DEVICE u64* shared_list() {
    // Aligned for whatever else takes the room.
    alignas(16) __shared__ u64 list[LISTED];
    return list;
}

// A row's room for two words for each listed token.
DEVICE u64* room_for_list(const Step& step, u32 row) {
    return step.scratch + (u64)row * step.scratch_words + 2ull * step.tiles;
}

// A tile's weight above the aim, and how many of its tokens lie in it: at most 256.
struct Above {
    static DEVICE_MEMBER u64 of(u64 weights, u32 count) { return weights << 9 | count; }
    static DEVICE_MEMBER u64 weights(u64 word) { return word >> 9; }
    static DEVICE_MEMBER u32 count(u64 word) { return (u32)word & 511; }
};

// Sorts keys on chip, largest first; a power of two of them.
DEVICE void sort_descending(u64* keys, u32 count) {
#pragma unroll 1
    for (u32 run = 2; run <= count; run *= 2) {
#pragma unroll 1
        for (u32 apart = run / 2; apart > 0; apart /= 2) {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < count / 2; i += blockDim.x) {
                u32 a = ((i & ~(apart - 1)) << 1) | (i & (apart - 1)), b = a | apart;
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
#define PLACED 512

// Puts few keys in order, in room for as many.
DEVICE void place_keys(const u64* keys, u64* sorted, u32 count) {
    // So many threads count the keys before one.
    u32 share = 1;
    while (share < 32 && 2 * share * count <= blockDim.x) {
        share *= 2;
    }
    u32 part = threadIdx.x % share;
#pragma unroll 1
    for (u32 start = 0; start < count; start += blockDim.x / share) {
        u32 i = start + threadIdx.x / share, before = 0;
        u64 own = i < count ? keys[i] : ~0ull;
#pragma unroll 1
        for (u32 j = part; j < count; j += share) {
            before += keys[j] > own;
        }
#pragma unroll 1
        for (u32 apart = 1; apart < share; apart *= 2) {
            before += __shfl_xor_sync(ALL_LANES, before, (int)apart);
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
    u64* list = shared_list();
    if (count <= PLACED) {
        place_keys(list, list + LISTED / 2, count);
        return list + LISTED / 2;
    }
    pad_and_sort(list, count);
    return list;
}

// How many parts a list is cut into by value, and how many tokens of a part are put in order.
#define BUCKETS 256
#define NEIGHBOURS 256

// A list by parts, in the room of the counts of levels, which have said what they can.
struct Buckets {
    // What the tokens of each add to the mass, each by itself and rounded down.
    u64 masses[BUCKETS];
    u64 keys[NEIGHBOURS];
    u64 sorted[NEIGHBOURS];
    u32 counts[BUCKETS];
    // What comes before the part in which the mass is reached.
    u64 mass_before;
    u32 count_before;
    u32 bucket;
    // How many of its tokens are there.
    u32 count;
};

DEVICE Buckets& block_buckets() {
    static_assert(sizeof(Buckets) <= (LEVELS + 32) * sizeof(u32), "the room of the counts holds the parts");
    return *(Buckets*)level_counts();
}

// How far a key lies below the ordered bits of a value that none exceeds. Of probabilities nearly all lie in the last of few parts
// that are equal by value: so theirs are equal by bits.
DEVICE float depth_of(u64 key, u32 top) {
#if GUMBALL_PROBABILITIES
    return u32_to_float(top - (u32)(key >> 32));
#else
    return from_ordered_bits(top) - key_logit(key);
#endif
}

// The part in which a key lies: rises as its value falls, as each step is monotone.
DEVICE u32 bucket_of(u64 key, u32 top, float scale) { return float_to_u32(fminf(depth_of(key, top) * scale, BUCKETS - 1)); }

// What a listed token adds to the mass, by itself: together they add less than a unit for each more (M4).
template <class V>
DEVICE u64 gain_of(const Searched<V>& set, u64 key) {
    const Search& search = set.search();
    u32 id = key_id(key);
    float z = search.order.nearest ? set.view.logit(id) : key_logit(key), maximum = search.maxima.of(id / TILE);
    return tile_mass(search.factor(maximum), Weigher(maximum, search.s).of(z));
}

// Finds the part of the list in which the mass may first be reached: before it, it surely is not. BUCKETS if in none.
template <class V>
DEVICE void find_bucket(const Searched<V>& set, u32 count, u32 top, float scale) {
    const Search& search = set.search();
    Buckets& buckets = block_buckets();
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
        u64 key = shared_list()[i];
        u32 bucket = bucket_of(key, top, scale);
        atomicAdd(&buckets.masses[bucket], gain_of(set, key));
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
        for (u32 apart = 1; apart < 32; apart *= 2) {
            u64 other_mass = __shfl_up_sync(ALL_LANES, mass, apart);
            u32 other_tokens = __shfl_up_sync(ALL_LANES, tokens, apart);
            mass += lane >= apart ? other_mass : 0;
            tokens += lane >= apart ? other_tokens : 0;
        }
        u32 reached = __ballot_sync(ALL_LANES, search.hi.mass + mass + tokens >= search.goal);
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
DEVICE u64 settle(const Searched<V>& set, u32 count) {
    Search& search = set.search();
    Buckets& buckets = block_buckets();
    u32 top = search.most_bits;
    float range = depth_of((u64)~search.least_bits << 32, top);
    if (count == 0 || !(range < 1e30f)) {
        return 0;
    }
    float scale = range > 1e-30f ? int_to_float(BUCKETS) / range : 1.0f;
    find_bucket(set, count, top, scale);
    u32 bucket = buckets.bucket, own = bucket < BUCKETS ? buckets.counts[bucket] : 0;
    if (own == 0 || own > NEIGHBOURS) {
        return 0;
    }
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = shared_list()[i];
        if (bucket_of(key, top, scale) == bucket) {
            buckets.keys[atomicAdd(&buckets.count, 1u)] = key;
        }
    }
    // Without it keys would be put in order that are not there yet.
    __syncthreads();
    place_keys(buckets.keys, buckets.sorted, own);
    // How many of them do not reach the goal for sure, and how many perhaps do not.
    u64 reached = buckets.mass_before, short_of = 0, goal_at_most = search.goal + search.doubt;
#pragma unroll 1
    for (u32 start = 0; start < own; start += blockDim.x) {
        u32 i = start + threadIdx.x;
        u64 gain = i < own ? gain_of(set, buckets.sorted[i]) : 0;
        Scan gains = block_scan(gain);
        u64 upto = reached + gains.before + gain;
        short_of += i < own ? ((u64)(upto < goal_at_most) << 32) + (upto + buckets.count_before + i + 1 < search.goal) : 0;
        reached += gains.total;
    }
    short_of = block_sum(short_of);
    u32 place = (u32)short_of;
    return place == (u32)(short_of >> 32) && place < own ? buckets.sorted[place] : 0;
}

// Finds the place of that token among all in their order; it is `count` if the list does not reach the mass. The keys in order are
// left in the room for the list, and the list is given up. Returns the mass with all of it.
template <class V>
DEVICE u64 walk(const Searched<V>& set, u32 count) {
    Search& search = set.search();
    const u64* ordered = sort_list(count);
    u64* list = shared_list();
    const u64* above = room_for_sums(set.step, set.row);
    u64* gains = room_for_list(set.step, set.row);
    u64* keys = gains + LISTED;
    // By tile, and in a tile by the order: so a tile's tokens stand together, each with its weight.
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = ordered[i];
        u32 id = key_id(key), tile = id / TILE;
        float z = search.order.nearest ? set.view.logit(id) : key_logit(key);
        u32 q = Weigher(search.maxima.of(tile), search.s).of(z);
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
        u64 q = Above::weights(above[tile]), before = tile_mass(factor, q);
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
        search.place = count;
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
    Scan sums = block_scan(sum);
    u64 reached = search.hi.mass + sums.before, total = search.hi.mass + sums.total;
#pragma unroll 1
    for (u32 i = from; i < to; i++) {
        u64 after = reached + gains[i];
        if (reached < search.goal && after >= search.goal) {
            search.place = i;
        }
        reached = after;
    }
    // Without it the place would be read before the thread that finds it has.
    __syncthreads();
    return total;
}

