// bracket.cuh: the read that proves where a mass is reached, by a row's block and those that help it.
//
// Computes   the weights above an aim, tile by tile, and the tokens in it
// Never      decides anything: search.cuh does
// Traffic    one read of the tiles that the aim reaches, or of all if the mass of all is asked for
// Requires   as work_sharing.cuh; scratch of the row
#pragma once

#include "block/work_sharing.cuh"
#include "block/crossing.cuh"

// What a thread knows of an aim.
struct BracketSums {
    // The mass above it; and that of the whole set, where it is asked for.
    u64 mass;
    u64 total;
    // As in `Search`.
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

// Reads those of some tiles' tokens down to the aim's lower end: writes what each tile has above the aim and how many in it,
// and lists those, by value, as far as there is room. If the goal is not exact yet, all tokens are read and weighed.
template <bool PLAIN, class V>
DEVICE BracketSums read_bracket_tiles(const Step& step, u32 row, const V view, StridedTiles tiles) {
    const SearchedRow<V> set{step, row, view};
    Search& search = set.search();
    u64* list = shared_keys();
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
                // Eight weights of at most 2^28 fit.
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
        // A lane has few, if any.
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

// The same of a part of a row's tiles. Apart, so that its registers are its own.
template <class V>
DEVICE_NOINLINE BracketSums read_chunk(const Step& step, u32 row, u32 chunk) {
    return read_bracket_tiles<true>(step, row, V(step, row, step.slots[row]), StridedTiles{chunk, step.chunks});
}

// What a row's block and its helpers hand each other, in the row's scratch.
struct PublishedSearch {
    Search search;
    // How many parts helpers are done with, and what they found.
    u32 done;
    u32 listed;
    u32 max_value_bits;
    u32 min_value_bits_inverted;
    u64 mass;
    u64 total;
};

// How many words of scratch it takes; src/filter.rs has the same.
#define PUBLISHED_WORDS 64

DEVICE PublishedSearch& published_search(const Step& step, u32 row) {
    static_assert(sizeof(PublishedSearch) <= PUBLISHED_WORDS * sizeof(u64),
                  "the scratch has room for what is handed on");
    return *(PublishedSearch*)(scratch_list(step, row) + 2 * LIST_CAPACITY);
}

// Copies a search, by all threads; a barrier must follow.
DEVICE void copy_search(Search& to, const Search& from) {
    for (u32 i = threadIdx.x; i < sizeof(Search) / sizeof(u32); i += blockDim.x) {
        ((u32*)&to)[i] = ((const u32*)&from)[i];
    }
}

// Reads all of a row's tiles, but for those that helpers take; what they found is added in one thread, and to the list.
// Apart, so that its registers are its own.
template <class V>
DEVICE_NOINLINE BracketSums read_shared(const Step& step, u32 row) {
    Search& search = shared_search();
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
    // Without it helpers could see what slower warps have not written yet.
    __syncthreads();
    publish_chunks(step, row);
    BracketSums sums{0, 0, 0, 0};
    u32 own = take_chunks(step, row, 0, [&](u32 chunk) INLINE { sums.add(read_chunk<V>(step, row, chunk)); });
    if (own == step.chunks) {
        return sums;
    }
    wait_for_helpers(published.done, step.chunks - own);
    // Of its own tokens the block has listed all by now.
    u32 start = search.listed, count = published.listed;
    for (u32 i = threadIdx.x; i < count && start + i < LIST_CAPACITY; i += blockDim.x) {
        shared_keys()[start + i] = scratch_list(step, row)[i];
    }
    // Without it the count would change while slower warps still read it.
    __syncthreads();
    if (threadIdx.x == 0) {
        search.listed = start + count;
        sums.add(
            BracketSums{published.mass, published.total, published.max_value_bits, published.min_value_bits_inverted});
    }
    return sums;
}

// Reads a row's tokens down to the aim's lower end, whose count becomes that of those listed. Returns the mass above the aim. If
// the goal is not exact yet, it becomes so.
template <bool PLAIN, class V>
DEVICE u64 read_bracket(const Step& step, u32 row, const V view) {
    Search& search = shared_search();
    if (threadIdx.x == 0) {
        search.listed = 0;
        search.max_value_bits = 0;
        search.min_value_bits_inverted = 0;
    }
    // Without it tokens could be counted before the count is zero.
    __syncthreads();
    BracketSums sums = PLAIN && step.chunks != 0 ? read_shared<V>(step, row)
                                                 : read_bracket_tiles<PLAIN>(step, row, view, StridedTiles{0, 1});
    atomicMax(&search.max_value_bits, sums.max_value_bits);
    atomicMax(&search.min_value_bits_inverted, sums.min_value_bits_inverted);
    u32 goal_fraction = search.goal_fraction;
    if (goal_fraction) {
        u64 total = block_sum(sums.total);
        if (threadIdx.x == 0) {
            search.goal = target_mass(goal_fraction, total);
            search.goal_slack = 0;
            search.lo.mass = total;
            search.goal_fraction = 0;
        }
    }
    // Asked before the barriers, by all threads: some could otherwise still ask while one writes the count.
    const bool fits_list = search.fits_list();
    // Its barriers also complete the list, and let the goal be read.
    u64 mass = block_sum(sums.mass);
    if (threadIdx.x == 0 && fits_list) {
        search.bracket.count = search.listed;
    }
    return mass;
}

// Helps rows until none needs it any more. Apart, so that its registers are its own.
template <class V>
DEVICE_NOINLINE void help_rows(const Step& step) {
    while (true) {
        const ClaimedChunk claimed = claim_chunk(step);
        if (claimed.chunk >= step.chunks) {
            return;
        }
        Search& search = shared_search();
        PublishedSearch& published = published_search(step, claimed.row);
        copy_search(search, published.search);
        // Without it the search would be read before it is there.
        __syncthreads();
        BracketSums sums{0, 0, 0, 0};
        u32 chunks = take_chunks(step, claimed.row, claimed.chunk,
                                 [&](u32 chunk) INLINE { sums.add(read_chunk<V>(step, claimed.row, chunk)); });
        atomicMax(&search.max_value_bits, sums.max_value_bits);
        atomicMax(&search.min_value_bits_inverted, sums.min_value_bits_inverted);
        // Their barriers also complete the list.
        u64 mass = block_sum(sums.mass), total = block_sum(sums.total);
        u32 listed = search.listed < LIST_CAPACITY ? search.listed : LIST_CAPACITY;
        if (threadIdx.x == 0) {
            // More than there is room for are counted and not listed.
            search.found_index = atomicAdd(&published.listed, search.listed);
            atomicAdd(&published.mass, mass);
            atomicAdd(&published.total, total);
            atomicMax(&published.max_value_bits, search.max_value_bits);
            atomicMax(&published.min_value_bits_inverted, search.min_value_bits_inverted);
        }
        // Without it the place would be read before it is there.
        __syncthreads();
        for (u32 i = threadIdx.x; i < listed && search.found_index + i < LIST_CAPACITY; i += blockDim.x) {
            scratch_list(step, claimed.row)[search.found_index + i] = shared_keys()[i];
        }
        report_done(published.done, chunks);
    }
}
