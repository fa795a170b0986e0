// ranks.cuh: counts and lists the tokens of a cut, by a block that reads only tiles that can hold them.
//
// Computes   how many of a cut's tokens come before given keys; lists of a cut's tokens
// Never      loads a tile whose maximum is below the least logit that counts
// Requires   all threads of the block; whole warps; a barrier between two uses of the same shared memory
#pragma once

#include "block/mass.cuh"

// The members of a logprob mode: an interval of a row's order. Callers keep it in shared memory, as the kernel has no
// registers to spare for it.
struct SetWithMaxima {
    GivenSet given;
    // The maxima of the members in each tile.
    Maxima maxima;
};

// Visits the tiles whose maximum is at least `low`, one warp per tile. All lanes call `inside(keys)` with the keys of
// their tokens in `part`, and 0 for their other tokens.
template <class V, class Inside>
DEVICE void visit_keys(const V& row, const Maxima& maxima, const Cut& part, float low, Inside inside) {
    visit_tiles(
        row, maxima, low,
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
            u64 keys[ITEMS_PER_LANE];
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                u64 key = make_key(z[j], tile * TILE + row.offset(lane_id(), j));
                keys[j] = part.contains(key) ? key : 0;
            }
            inside(keys);
        },
        [](u32, float, bool) INLINE {});
}

// How many keys one pass over the tiles serves.
#define MAX_QUERIES 16

// Keys, and how many members come before each; in shared memory.
struct RankQueries {
    u64 keys[MAX_QUERIES];
    u32 before[MAX_QUERIES];
};

// Counts the tokens of a cut before each of the first `count` of queries.keys. A key must be inside the cut, or all
// ones: no token comes before that. The barriers inside order the caller's writes of keys and its reads of counts.
template <class V>
DEVICE void count_before(const V& row, const SetWithMaxima& members, const Cut& cut, RankQueries& queries, u32 count) {
    if (threadIdx.x < count) {
        queries.before[threadIdx.x] = 0;
    }
    // RAW on queries: some threads wrote keys and cleared counts, all warps read the keys and add to the counts.
    __syncthreads();
    u64 least = ~0ull;
    for (u32 i = 0; i < count; i++) {
        least = queries.keys[i] < least ? queries.keys[i] : least;
    }
    // If no key is inside the cut, no tile is visited: no maximum reaches infinity.
    float low = least == ~0ull ? INF_F32 : key_logit(least);
    visit_keys(row, members.maxima, cut, low, [&](const u64(&keys)[ITEMS_PER_LANE]) INLINE {
        for (u32 i = 0; i < count; i++) {
            u64 key = queries.keys[i];
            u32 before = 0;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                before += keys[j] > key;
            }
            before = __reduce_add_sync(FULL_MASK, before);
            if (before != 0 && lane_id() == 0) {
                atomicAdd(&queries.before[i], before);
            }
        }
    });
    // RAW on queries.before: all warps added to the counts, all threads may read them.
    __syncthreads();
}

// How many tokens a list holds.
#define KEY_LIST_CAPACITY 1024
static_assert(FINISH_GENERAL_THREADS <= KEY_LIST_CAPACITY, "each thread may list a key");

// An unordered list of keys, in shared memory; `count` may exceed the capacity.
struct KeyList {
    u64 keys[KEY_LIST_CAPACITY];
    u32 count;
};

// Lists the members in a cut, unordered, up to the list's capacity. Returns how many members the cut has.
template <class V>
DEVICE u32 list_members(const V& row, const SetWithMaxima& members, const Cut& cut, KeyList& list) {
    // WAR on list: threads may still read an older list, this call overwrites it.
    __syncthreads();
    if (threadIdx.x == 0) {
        list.count = 0;
    }
    // RAW on list.count: thread 0 set it to 0, all threads add to it.
    __syncthreads();
    visit_keys(row, members.maxima, cut, cut.low(), [&](const u64(&keys)[ITEMS_PER_LANE]) INLINE {
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            if (keys[j] != 0) {
                u32 index = atomicAdd(&list.count, 1u);
                if (index < KEY_LIST_CAPACITY) {
                    list.keys[index] = keys[j];
                }
            }
        }
    });
    // RAW on list: all threads appended keys, all threads may read them.
    __syncthreads();
    return list.count;
}

// Returns a logit that at least n members reach, in every thread; -inf if the maxima yield none. Each thread takes the
// largest maximum of its tiles; the result is the n-th largest of these. The list serves as scratch memory.
DEVICE float threshold_from_maxima(const SetWithMaxima& members, u32 n, KeyList& list) {
    if (n > blockDim.x) {
        return -INF_F32;
    }
    const u32 own = members.maxima.own_bits();
    list.keys[threadIdx.x] = own;
    if (threadIdx.x == 0) {
        list.count = ordered_bits(-INF_F32);
    }
    // RAW on list.keys: each thread wrote its maximum, all threads read all of them. WAW on list.count: thread 0 wrote
    // -inf, threads below overwrite it.
    __syncthreads();
    u32 above = 0, level = 0;
    for (u32 i = 0; i < blockDim.x; i++) {
        above += list.keys[i] > own;
        level += list.keys[i] == own;
    }
    if (above < n && n <= above + level) {
        // All threads that get here write equal values.
        list.count = own;
    }
    // RAW on list.count: some threads wrote the result, all threads read it.
    __syncthreads();
    return from_ordered_bits(list.count);
}

// Returns a key inside a cut that has more members than a list holds. The members from the start of the cut to that key
// fill a list at least half, and fit it. Each round counts the members before 16 pivots in one pass over the tiles.
template <class V>
DEVICE u64 narrow_cut(const V& row, const SetWithMaxima& members, const Cut& cut, RankQueries& queries) {
    // Invariant: more members than a list holds are above `many`; `fits` members, at most its capacity, are above
    // `few`.
    u64 many = cut.last - 1, few = (u64)ordered_bits(members.given.first_value) << 32 | 0xFFFFFFFFu;
    few = few < cut.first ? few : cut.first;
    u32 fits = 0;
    while (few - many > 1 && fits < KEY_LIST_CAPACITY / 2) {
        u64 width = few - many;
        auto pivot = [=](u32 i) INLINE {
            u64 parts = MAX_QUERIES + 1;
            return many + width / parts * (i + 1) + width % parts * (i + 1) / parts;
        };
        if (threadIdx.x < MAX_QUERIES) {
            queries.keys[threadIdx.x] = pivot(threadIdx.x);
        }
        count_before(row, members, cut, queries, MAX_QUERIES);
        // The pivots rise with their index, so their counts fall.
        u32 first_fit = 0;
        while (first_fit < MAX_QUERIES && queries.before[first_fit] > KEY_LIST_CAPACITY) {
            first_fit++;
        }
        u64 below = first_fit == 0 ? many : pivot(first_fit - 1);
        if (first_fit < MAX_QUERIES) {
            fits = queries.before[first_fit];
            few = pivot(first_fit);
        }
        many = below;
        // WAR on queries: all threads read the counts, the next round overwrites keys and counts.
        __syncthreads();
    }
    return few + 1;
}
