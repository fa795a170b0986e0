// ranks.cuh: the tokens of a cut, found by a block in the tiles that can hold them.
//
// Computes   how many of a cut's tokens come before some keys; lists of its first tokens
// Never      loads a tile whose maximum is below what is looked for
// Requires   all threads of the block; whole warps; barriers between two uses of the same shared words
#pragma once

#include "block/mass.cuh"

// The members of a mode: an interval of the order of a row. It is kept in shared memory: the kernel has no registers to
// spare for it.
struct SetWithMaxima {
    GivenSet given;
    // The maxima of the members in each tile.
    Maxima maxima;
};

// Visits the tiles that a part of the members reaches, a warp each: `inside(keys)` in all lanes, with the keys of its
// tokens and 0 for others.
template <class V, class Inside>
DEVICE void visit_keys(const V& row, const Maxima& maxima, const Cut& part, float low, Inside inside) {
    visit_tiles(
        row, maxima, low,
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
            u64 keys[ITEMS_PER_LANE];
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                u64 key = make_key(z[j], tile * TILE + row.offset(tile, lane_id(), j));
                keys[j] = part.contains(key) ? key : 0;
            }
            inside(keys);
        },
        [](u32, float, bool) INLINE {});
}

// How many keys are looked for at once.
#define MAX_QUERIES 16

// Keys in shared memory, and how many members come before each.
struct RankQueries {
    u64 keys[MAX_QUERIES];
    u32 before[MAX_QUERIES];
};

// Counts the tokens of a cut before each of `count` keys inside it; of a key that is all ones there are none. Begins
// and ends with a barrier: before the first, some threads write what others then read; after the last, the same.
template <class V>
DEVICE void count_before(const V& row, const SetWithMaxima& members, const Cut& cut, RankQueries& queries, u32 count) {
    if (threadIdx.x < count) {
        queries.before[threadIdx.x] = 0;
    }
    __syncthreads();
    u64 least = ~0ull;
    for (u32 i = 0; i < count; i++) {
        least = queries.keys[i] < least ? queries.keys[i] : least;
    }
    // No maximum reaches infinity.
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
    __syncthreads();
}

// How many tokens are listed at once.
#define KEY_LIST_CAPACITY 1024

// A list in shared memory.
struct KeyList {
    u64 keys[KEY_LIST_CAPACITY];
    u32 count;
};

// Lists the members in a cut, in no order, as far as there is room; returns how many there are. Begins and ends
// with a barrier: before it an older list may still be read, after it this one may.
template <class V>
DEVICE u32 list_members(const V& row, const SetWithMaxima& members, const Cut& cut, KeyList& list) {
    __syncthreads();
    if (threadIdx.x == 0) {
        list.count = 0;
    }
    // Without it a thread adds to the count before it is 0.
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
    __syncthreads();
    return list.count;
}

// A logit that at least n members reach, if the maxima tell of one; else -inf. In every thread. The list is only
// room for it.
DEVICE float threshold_from_maxima(const SetWithMaxima& members, u32 n, KeyList& list) {
    if (n > blockDim.x) {
        return -INF_F32;
    }
    float own_maximum = -INF_F32;
    for (u32 tile = threadIdx.x; tile < members.maxima.tiles; tile += blockDim.x) {
        own_maximum = max_f32(own_maximum, members.maxima.of(tile));
    }
    u32 own = ordered_bits(own_maximum);
    list.keys[threadIdx.x] = own;
    if (threadIdx.x == 0) {
        list.count = ordered_bits(-INF_F32);
    }
    // Without it a thread compares with what others have not written yet.
    __syncthreads();
    u32 above = 0, level = 0;
    for (u32 i = 0; i < blockDim.x; i++) {
        above += list.keys[i] > own;
        level += list.keys[i] == own;
    }
    if (above < n && n <= above + level) {
        // Whoever comes here writes the same.
        list.count = own;
    }
    // Without it a thread reads the bound before it is written.
    __syncthreads();
    return from_ordered_bits(list.count);
}

// A key inside a cut of more members than a list has room for, so that those from it on fill much of a list.
template <class V>
DEVICE u64 narrow_cut(const V& row, const SetWithMaxima& members, const Cut& cut, RankQueries& queries) {
    // Above the key `many` are more members than fit, above `few` only `fits`.
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
        // Pivots rise, so counts fall.
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
        // Without it a fast thread seeks other keys while a slow one still reads these counts.
        __syncthreads();
    }
    return few + 1;
}
