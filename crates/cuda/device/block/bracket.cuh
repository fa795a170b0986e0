// bracket.cuh: the read that proves where a search reaches its goal.
//
// Computes   for each tile the sum of the weights above the bracket and the number of tokens in it; the mass above it;
//            the list of the tokens in it
// Never      decides where the goal is reached: search.cuh does
// Traffic    one read of the tiles whose maximum reaches the bracket; of all tiles while the goal is a fraction of an
//            unknown mass
// Requires   all threads of the blocks that search the row; the row's scratch memory
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
            u32 in = 0;
            u64 weights = 0;
            if (by_mass) {
                const TokenWeights token_weights(maximum, log2e_over_t);
                // Eight weights of at most 2^28 fit in 32 bits.
                u32 q = 0, all = 0;
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    float value = PLAIN ? z[j] : order.value(z[j]);
                    u32 own = token_weights.of(z[j]);
                    bool reaches = value >= hi;
                    q += reaches ? own : 0;
                    all += own;
                    in |= (value >= lo) & !reaches ? 1u << j : 0;
                }
                weights = warp_sum_u32(q);
                if (goal_fraction) {
                    u64 sum = warp_sum_u32(all);
                    own_all = owns_tile ? sum : own_all;
                }
            } else {
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    float value = PLAIN ? z[j] : order.value(z[j]);
                    in |= (value >= lo) & !(value >= hi) ? 1u << j : 0;
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
                u64 key =
                    make_key((PLAIN ? z_own : order.value(z_own)) + 0.0f, tile * TILE + set.view.offset(lane_id(), j));
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

// Appends the tokens that a block has listed to the first block's list, after the `before` tokens of the blocks
// before.
DEVICE void append_to_first_block(const RowBlocks& blocks, SearchStorage& storage, u32 before) {
    if (!blocks.is_first()) {
        const u32 own = storage.search.listed;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < own; i += blockDim.x) {
            *map_shared_rank(&storage.keys[before + i], 0) = storage.keys[i];
        }
    }
    // RAW on the first block's list: the other blocks wrote to it, its threads read it.
    blocks.sync();
}

// Reads a row's tokens down to the bracket's lower end and returns the mass above the bracket. Sets bracket.count to
// the exact number of tokens in the bracket if these are listed. If Search::goal_fraction is set, computes the exact
// goal and clears it.
template <bool PLAIN, class V>
DEVICE u64 read_bracket(const SearchedRow<V> set) {
    SearchStorage& storage = set.storage;
    Search& search = storage.search;
    const RowBlocks blocks = set.blocks();
    if (threadIdx.x == 0) {
        search.listed = 0;
    }
    // RAW on search.listed: thread 0 cleared it, all threads add to it.
    __syncthreads();
    BracketSums own = read_bracket_tiles<PLAIN>(set, blocks.tiles());
    // Only thread 0's number counts, as the number of listed tokens is the block's.
    // RAW on search.listed: all threads added to it, thread 0 reads it.
    __syncthreads();
    u64 found[] = {own.mass, own.total, threadIdx.x == 0 ? search.listed : 0, own.max_value_bits,
                   own.min_value_bits_inverted};
    blocks.reduce<3>(found);
    const bool fits_list = search.fits_list();
    if (blocks.count > 1) {
        const u32 before = (u32)blocks.sum_before(2);
        if (fits_list && found[2] <= LIST_CAPACITY) {
            append_to_first_block(blocks, storage, before);
        }
    }
    // WAR on search: all threads have read fits_list(), thread 0 overwrites what it depends on.
    __syncthreads();
    if (threadIdx.x == 0) {
        search.max_value_bits = (u32)found[3];
        search.min_value_bits_inverted = (u32)found[4];
        if (search.goal_fraction) {
            search.goal = target_mass(search.goal_fraction, found[1]);
            search.goal_slack = 0;
            search.lo.mass = found[1];
            search.goal_fraction = 0;
        }
        if (fits_list) {
            search.bracket.count = found[2];
        }
    }
    // RAW on search: thread 0 wrote it, all threads read it.
    __syncthreads();
    return found[0];
}
