// search.cuh: finds the token at which a long set reaches a mass or a number of tokens; by the blocks of a row (F1, F3,
// M4).
//
// Computes   the key of that token, in the row's order or in typical-p's; exactly, for every row
// Never      sorts a row; never adds up a tile's tokens other than by their integer weights
// Twins      CPU cpu/src/filter/search.rs | why docs/stages/filter.md
// Traffic    usually two reads of the tiles reached: one counts tokens by levels, one proves what the levels guess
// Requires   all threads of the blocks that search the row (row_blocks.cuh); scratch memory of the row
//
//     hi, lo: the tokens at or above hi do not reach the goal, those at or above lo do
//     if the goal is a number of tokens and many tokens seem to have one value:
//         one read: count the tokens of that value and those above it, tile by tile; the bracket is the former if the
//         goal is reached among them
//     until the token is found:
//         one read: count the tokens at each level of a range; guess a bracket of levels in which the goal is reached
//         one read: sum the weights above the bracket, tile by tile; list the tokens in it
//         the goal is reached above the bracket: continue above it
//         the bracket's tokens fit in the list: sort them and walk to the token; continue below if they miss the goal
//         they are all equal: walk the tiles, and the ids of one tile; continue below if they miss the goal
//         otherwise: continue with levels of the bracket
//         after GUIDED_ROUNDS rounds for a mass, the bracket is the lower half of what remains, and no levels are
//             counted
//
// So the search ends for any row: for a number of tokens after at most 7 rounds, since levels divide ordered bits by
// 1024 or more; for a mass after at most 33 rounds of halves, or 17 for bfloat16, after the GUIDED_ROUNDS. A guided
// round reads the row once to count and once to weigh, or twice in typical-p's order; a round of halves only weighs.
//
// The search is written in six files, each of which includes the one above it:
//
//     search_state.cuh   Search, the block's knowledge; visits to the tiles that hold tokens at or above a value
//     histogram.cuh      first read:  count_levels, then bracket_goal guesses the bracket
//     crossing.cuh       in the list: resolve_crossing and walk_to_crossing find the token
//     bracket.cuh        second read: read_bracket proves the bracket and lists its tokens
//     nucleus_list.cuh   instead of both reads: list_nucleus lists a mid-length nucleus by the survey's records; it
//                        includes crossing.cuh
//     search.cuh         find_crossing: the loop above, and what happens among equal tokens
#pragma once

#include "block/bracket.cuh"
#include "block/nucleus_list.cuh"

// Finds, among tokens of one value, the one at which the goal is reached; of equal tokens the smaller id comes first.
// Sets found_index to its tile, or to `tiles` if the goal is not reached. Sets found_rank to the number of these
// tokens that the tile has up to and including it. Returns the mass, or the number of tokens, with all of them.
template <class V>
DEVICE u64 split_ties(const SearchedRow<V>& set, float value) {
    Search& search = set.storage.search;
    const u64* above = scratch_tile_words(set.step, set.row);
    const u32 tiles = search.maxima.tiles;
    if (threadIdx.x == 0) {
        search.found_index = tiles;
    }
    // The amount that the first `count` of a tile's equal tokens add to the mass or to the number.
    auto gain = [&](u32 tile, u32 count) INLINE {
        if (!search.by_mass) {
            return (u64)count;
        }
        float maximum = search.maxima.of(tile), factor = search.factor(maximum);
        u64 q = PackedTile::weights(above[tile]);
        return tile_mass(factor, q + (u64)count * TokenWeights(maximum, search.log2e_over_t).of(value)) -
               tile_mass(factor, q);
    };
    auto count = [&](u32 tile) INLINE { return PackedTile::count(above[tile]); };
    u32 chunk = (tiles + blockDim.x - 1) / blockDim.x, from = threadIdx.x * chunk;
    from = from < tiles ? from : tiles;
    u32 to = from + chunk < tiles ? from + chunk : tiles;
    u64 sum = 0;
    for (u32 tile = from; tile < to; tile++) {
        sum += count(tile) ? gain(tile, count(tile)) : 0;
    }
    BlockScan sums = block_scan(set.storage.reduce, sum);
    u64 base = search.by_mass ? search.hi.mass : search.hi.count, reached = base + sums.before;
    for (u32 tile = from; tile < to; tile++) {
        u32 own = count(tile);
        u64 after = reached + (own ? gain(tile, own) : 0);
        if (reached < search.goal && after >= search.goal) {
            u32 few = 1;
            while (reached + gain(tile, few) < search.goal) {
                few++;
            }
            search.found_index = tile;
            search.found_rank = few;
        }
        reached = after;
    }
    // RAW on found_index and found_rank: the thread that finds the crossing wrote them, all threads read them.
    __syncthreads();
    return base + sums.total;
}

// Returns the key of a tile's n-th token of a value, n from 1, by ascending id; in every thread.
template <class V>
DEVICE u64 key_in_tile(const SearchedRow<V>& set, u32 tile, u32 n, float value) {
    u32* words = set.storage.tied_tokens;
    const Search& search = set.storage.search;
    if (threadIdx.x < MASK_WORDS) {
        words[threadIdx.x] = 0;
    }
    // RAW on words: the first threads cleared them, warp 0 sets bits in them.
    __syncthreads();
    if (warp_id() == 0) {
        float z[ITEMS_PER_LANE];
        set.view.load(tile, lane_id(), z);
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            u32 offset = set.view.offset(lane_id(), j);
            if (z[j] == value && search.given.cut.contains(make_key(z[j], tile * TILE + offset))) {
                atomicOr(&words[offset / 32], 1u << offset % 32);
            }
        }
    }
    // RAW on words: warp 0 set bits, all threads read them.
    __syncthreads();
    u32 word = 0;
    while (word + 1 < MASK_WORDS && n > (u32)__popc(words[word])) {
        n -= __popc(words[word++]);
    }
    u32 bits = words[word];
    for (; n > 1; n--) {
        bits &= bits - 1;
    }
    return make_key(value + 0.0f, tile * TILE + word * 32 + __ffs((int)bits) - 1);
}

// Returns whether a goal that is a number of tokens is reached among many tokens of one value, as far as one read
// tells. It is tried if tiles all over the row have first tokens of one value. Sets the bracket to the tokens of that
// value, and counts them by tile. Counting by levels instead would have all lanes add to one counter, which takes ten
// times as long.
template <class V>
DEVICE bool read_heap(const SearchedRow<V>& set) {
    Search& search = set.storage.search;
    const Maxima maxima = search.maxima;
    const float value = maxima.of(maxima.tiles / 2);
    bool is_likely = maxima.first != nullptr && maxima.tiles >= 8 && value > MASKED_VALUE;
#pragma unroll
    for (u32 part = 1; part < 8; part += 2) {
        is_likely &= maxima.of(maxima.tiles * part / 8) == value;
    }
    if (!is_likely) {
        return false;
    }
    const RowBlocks blocks = set.blocks();
    u64* words = scratch_tile_words(set.step, set.row);
    // Of the lane's own tile: the tokens above the value, and in the high half the tokens of it.
    u32 own = 0;
    u64 counts[] = {0, 0};
    set.template visit<true>(
        value,
        [&](u32, float, const float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
            u32 both = 0;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                both += (z[j] > value ? 1 : 0) + (z[j] == value ? 1 << 16 : 0);
            }
            both = __reduce_add_sync(FULL_MASK, both);
            own = owns_tile ? both : own;
        },
        [&](u32 tile, float, bool visited) INLINE {
            own = visited ? own : 0;
            words[tile] = PackedTile::of(0, own >> 16);
            counts[0] += own & 0xFFFF;
            counts[1] += own >> 16;
        },
        blocks.tiles());
    // RAW on words: all blocks wrote them, and the exchange lets the first block read them.
    blocks.sum(counts);
    if (!(counts[0] < search.goal && counts[0] + counts[1] >= search.goal)) {
        return false;
    }
    // WAR on search: all threads have read the goal, thread 0 writes to the search.
    __syncthreads();
    if (threadIdx.x == 0) {
        search.bracket = Bracket{RangeEnd{value, 0, (u32)counts[0]}, value, (u32)counts[1]};
        search.max_value_bits = ordered_bits(value + 0.0f);
        search.min_value_bits_inverted = ~search.max_value_bits;
    }
    // RAW on search: thread 0 wrote to it, all threads read it.
    __syncthreads();
    return true;
}

// Sets the range of the next levels to what remains between the ends of the search; by one thread.
DEVICE void divide_remaining(Search& search) {
    LevelRange& levels = search.levels;
    levels.from = search.hi;
    levels.to = search.lo;
    float floor = search.likely_floor < search.hi.value ? search.likely_floor : search.safe_floor;
    bool matters = floor < search.hi.value;
    levels.to.value = matters && floor > search.lo.value ? floor : search.lo.value;
    levels.divide(matters, search.order.nearest, search.value_bound, search.last_level());
}

// Rounds whose bracket is guessed from levels.
#define GUIDED_ROUNDS 4
// After 32 halves a range of 32 ordered bits has one value, and one round more finds the token.
#define MOST_ROUNDS (GUIDED_ROUNDS + 33)

// Sets the bracket to the lower half, by ordered bits, of what remains between the ends of the search; by one thread.
DEVICE void halve_remaining(Search& search) {
    const u32 hi = ordered_bits(search.hi.value), half = (hi - ordered_bits(search.lo.value)) / 2;
    search.bracket = Bracket{RangeEnd{from_ordered_bits(hi - half), 0, 0}, search.lo.value, 0};
}

// Returns the key, by value, of the listed token at which the goal is reached; 0 if there is none, or if the goal has
// to be exact to tell. In the first case, `mass` becomes the mass including the whole list. By the first block.
template <class V>
DEVICE u64 find_in_list(const SearchedRow<V>& set, u64& mass) {
    const Search& search = set.storage.search;
    const u32 count = search.bracket.count;
    if (!search.by_mass) {
        const u64 index = search.goal - search.bracket.hi.count - 1;
        const u64* sorted = sort_list(set.storage.keys, count);
        // The list ends before it if the row is written meanwhile.
        return index < count ? sorted[index] : 0;
    }
    u64 key = resolve_crossing(set, count);
    if (key != 0 || search.goal_fraction != 0) {
        return key;
    }
    mass = walk_to_crossing(set, count);
    return search.found_index < count ? scratch_list(set.step, set.row)[LIST_CAPACITY + search.found_index] : 0;
}

// Returns the key, by value, of the first token in the order at which the given set reaches the goal. If the set does
// not reach it, the key is at most the key of the set's last token. The caller sets up the search, except for its
// levels. `listed` says that the list holds a bracket with all tokens down to the goal.
template <class V>
DEVICE u64 find_crossing(const SearchedRow<V>& set, bool listed) {
    Search& search = set.storage.search;
    if (threadIdx.x == 0) {
        search.rounds = 0;
        divide_remaining(search);
    }
    // RAW on search: thread 0 set it up, all threads read it.
    __syncthreads();
    // Whether the bracket of this round is there from the start, so that no levels are counted: it is listed, or half
    // of what remains. The other states of a round, each set once in it:
    //     reaches     the bracket was found: the range reaches the goal as far as its levels say
    //     early       the goal is reached above the bracket: the guess was too low
    //     all_equal   the bracket's tokens have one value, so that no levels divide them
    // `listed` is true in the first round only: the list is there, and read_bracket is not called.
    bool bracketed = listed;
    // Whether the bracket is a heap of equal tokens in which the goal is reached.
    bool is_heap = !listed && !set.storage.search.by_mass && set.storage.search.plain && read_heap(set);
    while (true) {
        const bool plain = search.plain, nearest = search.order.nearest;
        // WAR on search.tile_stride: where the bracket is known without levels, no barrier separates this read from
        // thread 0's write below. So it is not read then.
        const bool is_known = bracketed || is_heap;
        u32 tile_stride = is_known ? 1 : search.tile_stride;
        if (is_known) {
            // There is nothing to count.
        } else if (plain && search.levels.is_plain() && search.levels.from.value == INF_F32) {
            count_levels<true>(set, tile_stride);
        } else {
            tile_stride = 1;
            count_levels<false>(set, tile_stride);
        }
        bool reaches = is_known || bracket_goal(set, bracket_margin(tile_stride, search.maxima.tiles));
        u64 mass = 0, next_mass = 0;
        if (reaches && !listed && !is_heap) {
            mass = plain ? read_bracket<true>(set) : read_bracket<false>(set);
        }
        bool early = search.by_mass && mass >= search.goal, all_equal = false;
        if (threadIdx.x == 0) {
            // A guess that missed is not repeated: later reads count all tiles.
            search.tile_stride = 1;
            if (reaches && !early) {
                search.hi = search.bracket.hi;
                search.hi.mass = mass;
            }
        }
        // RAW on search.hi and bracket.count: thread 0 wrote them, all threads read them.
        __syncthreads();
        const Bracket bracket = search.bracket;
        const RowBlocks blocks = set.blocks();
        float value = from_ordered_bits(search.max_value_bits);
        if (!reaches) {
            if (search.levels.to.value <= search.lo.value) {
                return last_key_at(search.lo.value);
            }
        } else if (!early && !listed && search.max_value_bits == ~search.min_value_bits_inverted &&
                   !(nearest && bracket.count <= LIST_CAPACITY)) {
            all_equal = true;
            if (!nearest) {
                u64 found[] = {0, 0};
                if (blocks.is_first()) {
                    found[1] = split_ties(set, value);
                    if (search.found_index < search.maxima.tiles) {
                        found[0] = key_in_tile(set, search.found_index, search.found_rank, value);
                    }
                }
                blocks.broadcast(found);
                if (found[0] != 0) {
                    return found[0];
                }
                next_mass = found[1];
            } else {
                // WAR on search.bracket: all threads copied it, thread 0 moves it.
                __syncthreads();
                // Tokens at one distance from the entropy are kept together (F3), so all of them are weighed.
                if (threadIdx.x == 0) {
                    search.bracket.hi.value = bracket.lo;
                    search.bracket.count = 0;
                }
                // RAW on search.bracket: thread 0 moved it, all threads read it.
                __syncthreads();
                next_mass = read_bracket<false>(set);
                if (!search.by_mass || next_mass >= search.goal) {
                    return last_key_at(value);
                }
            }
        } else if (!early && (listed || bracket.count <= LIST_CAPACITY)) {
            // The token's key, or 0 if the list does not hold it; then the mass with the whole list.
            u64 found[] = {0, 0};
            if (blocks.is_first()) {
                found[0] = find_in_list(set, found[1]);
            }
            blocks.broadcast(found);
            if (found[0] != 0) {
                return found[0];
            }
            if (search.goal_fraction != 0) {
                // The list is right, but the goal has to be exact: read_bracket makes it so.
                listed = false;
                // WAR on search: all threads read the bracket's largest and least value, thread 0 overwrites them in
                // read_bracket.
                __syncthreads();
                continue;
            }
            next_mass = found[1];
        }
        // WAR on search: all threads read its ends and its goal, thread 0 moves the ends.
        __syncthreads();
        if (threadIdx.x == 0) {
            LevelRange& levels = search.levels;
            if (!reaches) {
                search.hi = RangeEnd{levels.to.value, 0, levels.from.count + set.storage.level_counts[LEVELS - 1]};
                divide_remaining(search);
            } else if (early) {
                search.lo = RangeEnd{bracket.hi.value, mass, bracket.hi.count};
                divide_remaining(search);
            } else if (bracket.count <= LIST_CAPACITY || all_equal) {
                search.hi = RangeEnd{bracket.lo, next_mass, bracket.hi.count + bracket.count};
                divide_remaining(search);
            } else {
                // The goal is reached among these tokens or below them. Their mass is guessed as if each weighed as
                // much as the least.
                float least = from_ordered_bits(~search.min_value_bits_inverted);
                u64 approx_mass = bracket.count * tile_mass(search.order.weight(least, false), 1u << 28);
                levels.from = RangeEnd{from_ordered_bits(search.max_value_bits + 1), mass, bracket.hi.count};
                levels.to = RangeEnd{least, mass + approx_mass, 0};
                levels.divide(false, false, search.value_bound, search.last_level());
                // No token lies between the largest of the bracket and its upper end.
                search.hi.value = levels.from.value;
            }
            if (++search.rounds >= GUIDED_ROUNDS && search.by_mass) {
                halve_remaining(search);
            }
        }
        listed = false;
        // RAW on search: thread 0 moved its ends and levels, all threads read them.
        __syncthreads();
        bracketed = search.by_mass && search.rounds >= GUIDED_ROUNDS;
        if (search.rounds == MOST_ROUNDS) {
            // Only a row that is written meanwhile gets here.
            return last_key_at(search.lo.value);
        }
    }
}
