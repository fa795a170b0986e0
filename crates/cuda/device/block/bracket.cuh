// bracket.cuh: the read that proves where a search reaches its goal, by a row's block and its helpers.
//
// Computes   for each tile the sum of the weights above the bracket and the number of tokens in it; the mass above it;
//            the list of the tokens in it
// Never      decides where the goal is reached: search.cuh does
// Traffic    one read of the tiles whose maximum reaches the bracket; of all tiles while the goal is a fraction of an
//            unknown mass
// Requires   what work_sharing.cuh requires; the row's scratch memory
//
// A bracket is an interval of values, from `lo` up to but without `hi`, in which a search expects to reach its goal.
#pragma once

#include "block/crossing.cuh"

// A thread's sums over tiles that were read down to the bracket.
struct BracketSums {
    // The mass above the bracket; and the mass of the whole given set if Search::goal_fraction is set, otherwise 0.
    u64 mass;
    u64 total;
    // As in Search.
    u32 max_value_bits;
    u32 min_value_bits_inverted;

    DEVICE_MEMBER void add(const BracketSums& other) {
        mass += other.mass;
        total += other.total;
        max_value_bits = other.max_value_bits > max_value_bits ? other.max_value_bits : max_value_bits;
        min_value_bits_inverted = other.min_value_bits_inverted > min_value_bits_inverted
                                      ? other.min_value_bits_inverted
                                      : min_value_bits_inverted;
    }
};

// Reads some tiles down to the bracket's lower end. Writes for each tile the sum of the weights above the bracket and
// the number of tokens in it. Appends the keys of the tokens in the bracket, by value, to the shared list, up to its
// capacity. If Search::goal_fraction is set, reads and weighs all tokens of these tiles.
template <bool PLAIN, class V>
DEVICE BracketSums read_bracket_tiles(const SearchedRow<V> set, StridedTiles tiles) {
    Search& search = set.storage.search;
    u64* list = set.storage.keys;
    u64* above = scratch_tile_words(set.step, set.row);
    const float lo = search.bracket.lo, hi = search.bracket.hi.value, log2e_over_t = search.log2e_over_t;
    const bool fits_list = search.fits_list(), by_mass = search.by_mass, goal_fraction = search.goal_fraction != 0;
    const Order order = search.order;
    u64 own = 0, own_all = 0;
    BracketSums sums{0, 0, 0, 0};
    set.template visit<PLAIN>(
        goal_fraction ? MIN_TOKEN_VALUE : lo,
        [&](u32 tile, float maximum, const float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
            u32 in = 0, reached = 0;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                float value = PLAIN ? z[j] : order.value(z[j]);
                reached |= value >= hi ? 1u << j : 0;
                in |= value >= lo ? 1u << j : 0;
            }
            in &= ~reached;
            u64 weights = 0;
            if (by_mass) {
                const TokenWeights token_weights(maximum, log2e_over_t);
                // Eight weights of at most 2^28 fit in 32 bits.
                u32 q = 0, all = 0;
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    u32 own = token_weights.of(z[j]);
                    q += reached >> j & 1 ? own : 0;
                    all += own;
                }
                weights = warp_sum_u32(q);
                if (goal_fraction) {
                    u64 sum = warp_sum_u32(all);
                    own_all = owns_tile ? sum : own_all;
                }
            }
            u32 count = __popc(in), start = 0;
            if (fits_list && in != 0) {
                start = atomicAdd(&search.listed, count);
            }
        // A lane has few tokens in the bracket, if any.
#pragma unroll 1
            for (; in != 0; in &= in - 1) {
                u32 j = (u32)__ffs((int)in) - 1;
                float z_own = select_item(z, j);
                u64 key = make_key((PLAIN ? z_own : order.value(z_own)) + 0.0f,
                                   tile * TILE + set.view.offset(tile, lane_id(), j));
                u32 bits = (u32)(key >> 32);
                sums.max_value_bits = bits > sums.max_value_bits ? bits : sums.max_value_bits;
                sums.min_value_bits_inverted =
                    ~bits > sums.min_value_bits_inverted ? ~bits : sums.min_value_bits_inverted;
                if (fits_list && start < LIST_CAPACITY) {
                    list[start++] = key;
                }
            }
            count = __reduce_add_sync(FULL_MASK, count);
            own = owns_tile ? PackedTile::of(weights, count) : own;
        },
        [&](u32 tile, float maximum, bool visited) INLINE {
            above[tile] = visited ? own : 0;
            if (by_mass && visited) {
                float factor = search.factor(maximum);
                sums.mass += tile_mass(factor, PackedTile::weights(own));
                sums.total += goal_fraction ? tile_mass(factor, own_all) : 0;
            }
        },
        tiles);
    return sums;
}

// Reads one of a row's chunks: the tiles from `chunk` on, Step::chunks apart. Not inlined, so that it has registers
// of its own.
template <class V>
DEVICE_NOINLINE BracketSums read_chunk(const Step& step, u32 row, u32 chunk, SearchStorage& storage) {
    const V view(step, row, step.slots[row]);
    return read_bracket_tiles<true>(SearchedRow<V>{step, row, view, storage}, StridedTiles{chunk, step.chunks});
}

// What a row's block and its helpers exchange, in the row's scratch memory: the search, then the helpers' results.
struct PublishedSearch {
    Search search;
    // How many chunks helpers have done, and their results for these chunks.
    u32 done;
    u32 listed;
    u32 max_value_bits;
    u32 min_value_bits_inverted;
    u64 mass;
    u64 total;
};

DEVICE PublishedSearch& published_search(const Step& step, u32 row) {
    static_assert(sizeof(PublishedSearch) <= PUBLISHED_WORDS * sizeof(u64),
                  "the scratch has space for what is handed on");
    return *(PublishedSearch*)(scratch_list(step, row) + 2 * LIST_CAPACITY);
}

// Copies a search by all threads of the block. A barrier must follow before the copy is read.
DEVICE void copy_search(Search& to, const Search& from) {
    for (u32 i = threadIdx.x; i < sizeof(Search) / sizeof(u32); i += blockDim.x) {
        ((u32*)&to)[i] = ((const u32*)&from)[i];
    }
}

// Reads a row's tiles while helpers take chunks of them. Thread 0 adds the helpers' sums to its own; their keys join
// the shared list. Not inlined, so that it has registers of its own.
template <class V>
DEVICE_NOINLINE BracketSums read_shared(const Step& step, u32 row, SearchStorage& storage) {
    Search& search = storage.search;
    PublishedSearch& published = published_search(step, row);
    copy_search(published.search, search);
    if (threadIdx.x == 0) {
        published.done = 0;
        published.listed = 0;
        published.max_value_bits = 0;
        published.min_value_bits_inverted = 0;
        published.mass = 0;
        published.total = 0;
    }
    // RAW on published: all threads wrote it, helpers read it once thread 0 has published the chunks.
    __syncthreads();
    publish_chunks(step, row);
    BracketSums sums{0, 0, 0, 0};
    u32 own = take_chunks(storage.work_sharing, step, row, 0,
                          [&](u32 chunk) INLINE { sums.add(read_chunk<V>(step, row, chunk, storage)); });
    if (own == step.chunks) {
        return sums;
    }
    wait_for_helpers(published.done, step.chunks - own);
    // Each of the block's chunks ended with a barrier, so the block has listed all its own tokens.
    u32 start = search.listed, count = published.listed;
    for (u32 i = threadIdx.x; i < count && start + i < LIST_CAPACITY; i += blockDim.x) {
        storage.keys[start + i] = scratch_list(step, row)[i];
    }
    // WAR on search.listed: all threads read it as `start`, thread 0 overwrites it.
    __syncthreads();
    if (threadIdx.x == 0) {
        search.listed = start + count;
        sums.add(
            BracketSums{published.mass, published.total, published.max_value_bits, published.min_value_bits_inverted});
    }
    return sums;
}

// Reads a row's tokens down to the bracket's lower end and returns the mass above the bracket. Sets bracket.count to
// the exact number of tokens in the bracket if these are listed. If Search::goal_fraction is set, computes the exact
// goal and clears it.
template <bool PLAIN, class V>
DEVICE u64 read_bracket(const SearchedRow<V> set) {
    const Step& step = set.step;
    SearchStorage& storage = set.storage;
    Search& search = storage.search;
    if (threadIdx.x == 0) {
        search.listed = 0;
        search.max_value_bits = 0;
        search.min_value_bits_inverted = 0;
    }
    // RAW on search.listed and the value bits: thread 0 cleared them, all threads update them by atomics.
    __syncthreads();
    BracketSums sums = PLAIN && step.chunks != 0 ? read_shared<V>(step, set.row, storage)
                                                 : read_bracket_tiles<PLAIN>(set, StridedTiles{0, 1});
    atomicMax(&search.max_value_bits, sums.max_value_bits);
    atomicMax(&search.min_value_bits_inverted, sums.min_value_bits_inverted);
    u32 goal_fraction = search.goal_fraction;
    if (goal_fraction) {
        u64 total = block_sum(storage.reduce, sums.total);
        if (threadIdx.x == 0) {
            search.goal = target_mass(goal_fraction, total);
            search.goal_slack = 0;
            search.lo.mass = total;
            search.goal_fraction = 0;
        }
    }
    // WAR on bracket.count: all threads read it here, thread 0 overwrites it after the barriers of block_sum.
    const bool fits_list = search.fits_list();
    // RAW on the shared list and on search.goal: the barriers of block_sum separate their writers from all later
    // readers.
    u64 mass = block_sum(storage.reduce, sums.mass);
    if (threadIdx.x == 0 && fits_list) {
        search.bracket.count = search.listed;
    }
    return mass;
}

// Helps rows until all rows are retired. Not inlined, so that it has registers of its own.
template <class V>
DEVICE_NOINLINE void help_rows(const Step& step, SearchStorage& storage) {
    while (true) {
        const ClaimedChunk claimed = claim_chunk(storage.work_sharing, step);
        if (claimed.chunk >= step.chunks) {
            return;
        }
        Search& search = storage.search;
        PublishedSearch& published = published_search(step, claimed.row);
        copy_search(search, published.search);
        // RAW on search: all threads copied it, all threads read it.
        __syncthreads();
        BracketSums sums{0, 0, 0, 0};
        u32 chunks = take_chunks(storage.work_sharing, step, claimed.row, claimed.chunk,
                                 [&](u32 chunk) INLINE { sums.add(read_chunk<V>(step, claimed.row, chunk, storage)); });
        atomicMax(&search.max_value_bits, sums.max_value_bits);
        atomicMax(&search.min_value_bits_inverted, sums.min_value_bits_inverted);
        // RAW on the shared list and search.listed: all threads appended keys; the barriers of block_sum precede the
        // reads below.
        u64 mass = block_sum(storage.reduce, sums.mass), total = block_sum(storage.reduce, sums.total);
        u32 listed = search.listed < LIST_CAPACITY ? search.listed : LIST_CAPACITY;
        if (threadIdx.x == 0) {
            // Counts every token in the bracket, also those that exceed the list's capacity. `found_index` is where
            // the helper's keys begin in the row's list.
            search.found_index = atomicAdd(&published.listed, search.listed);
            atomicAdd(&published.mass, mass);
            atomicAdd(&published.total, total);
            atomicMax(&published.max_value_bits, search.max_value_bits);
            atomicMax(&published.min_value_bits_inverted, search.min_value_bits_inverted);
        }
        // RAW on search.found_index: thread 0 reserved the indices, all threads write keys there.
        __syncthreads();
        for (u32 i = threadIdx.x; i < listed && search.found_index + i < LIST_CAPACITY; i += blockDim.x) {
            scratch_list(step, claimed.row)[search.found_index + i] = storage.keys[i];
        }
        report_done(published.done, chunks);
    }
}
