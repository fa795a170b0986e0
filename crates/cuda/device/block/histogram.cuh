// histogram.cuh: counts a set's tokens by levels of value, and guesses the level of a goal.
//
// Computes   how many tokens lie at each of 2048 levels of a range of values; a bracket of levels around a goal
// Never      takes a token's exponential; never decides where a mass is reached
// Twins      none: search.cuh proves what this file guesses
// Traffic    one read of the tiles that the range reaches; of one in up to four of them if the goal is a mass
// Requires   all threads of the blocks that search the row
//
// Counts are exact unless tiles are skipped, so a goal that is a number of tokens is reached at the level found. A mass
// is guessed: each token weighs as much as the middle of its level. The guess misses the exact mass of the range by the
// sum of the tokens' errors, and most of that stems from the heaviest tokens. So the difference is spread over the
// levels in proportion to the squares of the weights.
#pragma once

#include "block/search_state.cuh"

// If more blocks than these read a row together, they count all tiles: that takes them less time than the longer list
// takes that a guess leads to.
#define MAX_SAMPLING_BLOCKS 2

// How many tokens a bracket takes on either side of a guess from all tiles.
#define MARGIN 64

// How many tiles there are for each counted one, if the goal is a mass and `goal_fraction` its fraction p of the
// set's mass. A guess from the counted tiles misses the goal by a number of tokens. Its standard deviation is at most
// sqrt(tokens * stride * p * (1 - p)). The stride makes that some 280 tokens. With the margin of bracket_margin, the
// bracket then misses the goal in one row of many.
DEVICE u32 sampling_stride(u32 tiles, u32 goal_fraction) {
    u32 p = goal_fraction >> 16, spread = p == 0 ? 1 << 14 : (p * (65536 - p) >> 16) + 1,
        tile_stride = 20000000 / (tiles * spread);
    return tile_stride > 4 ? 4 : tile_stride > 1 && tiles >= 8 ? tile_stride : 1;
}

// How many tokens a bracket takes at least on either side of a guess.
DEVICE u32 bracket_margin(u32 tile_stride, u32 tiles) {
    return tile_stride == 1 ? MARGIN : tiles < 400 ? 256 + tiles * 5 / 4 : 756;
}

// Adds up the blocks' counts, so that each block has the sums. Each block adds up a part of the levels.
DEVICE void sum_level_counts(const RowBlocks& blocks, u32* counts) {
    // RAW on counts: all threads added to them; other blocks read them below, and all threads in bracket_goal.
    blocks.sync();
    if (blocks.count == 1) {
        return;
    }
    const u32 quads = LEVELS / 4, from = quads * blocks.rank / blocks.count,
              to = quads * (blocks.rank + 1) / blocks.count;
#pragma unroll 1
    for (u32 i = from + threadIdx.x; i < to; i += blockDim.x) {
        U32x4* own = (U32x4*)counts + i;
        U32x4 sum{{0, 0, 0, 0}};
        // Unrolled, so that all loads are in flight together.
#pragma unroll
        for (u32 other = 0; other < MAX_ROW_BLOCKS; other++) {
            U32x4 of_other = other < blocks.count ? *map_shared_rank(own, other) : U32x4{{0, 0, 0, 0}};
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                sum.word[j] += of_other.word[j];
            }
        }
#pragma unroll
        for (u32 other = 0; other < MAX_ROW_BLOCKS; other++) {
            if (other < blocks.count) {
                *map_shared_rank(own, other) = sum;
            }
        }
    }
    // RAW on counts: each block wrote a part of the sums to all blocks, all threads read them in bracket_goal.
    blocks.sync();
}

// Counts the tokens at each level. PLAIN requires a plain search whose levels divide a range from the first token
// down. Counts one tile in `tile_stride`, and each of its tokens `tile_stride` times. The first token of each tile,
// which is usually a heavy one, counts once in every tile.
template <bool PLAIN, class V>
DEVICE void count_levels(const SearchedRow<V> set, u32 tile_stride) {
    const Search& search = set.storage.search;
    const RowBlocks blocks = set.blocks();
    u32* counts = set.storage.level_counts;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < LEVELS; i += blockDim.x) {
        counts[i] = 0;
    }
    // RAW on counts: all threads cleared them, all threads add to them.
    __syncthreads();
    // Copied to registers: the atomics on the counts might write to the search, as far as the compiler knows. It
    // would then reload these values for every token.
    const Order order = search.order;
    const LevelDivision division = search.levels;
    const float from = search.levels.from.value, to = search.levels.to.value;
    const u32 most = search.last_level(), nobody = LEVELS + lane_id();
    auto add = [&](float z, u32 times) INLINE {
        float value = PLAIN ? z : order.value(z);
        u32 level = division.template level<PLAIN>(value, most);
        if (!PLAIN && order.nearest) {
            level = 2 * level + (order.excess(z) < 0.0f);
        }
        // A token outside the range adds to its lane's spare counter: a branch would cost more.
        bool inside = value >= to && (PLAIN || value < from);
        atomicAdd(&counts[inside ? level : nobody], times);
    };
    set.template visit<PLAIN>(
        to,
        [&](u32, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                add(z[j], tile_stride);
            }
        },
        [](u32, float, bool) INLINE {}, StridedTiles{blocks.rank * tile_stride, blocks.count * tile_stride});
    if (PLAIN && tile_stride > 1) {
#pragma unroll 1
        for (u32 tile = blocks.rank + blocks.count * threadIdx.x; tile < search.maxima.tiles;
             tile += blocks.count * blockDim.x) {
            // In a counted tile, this removes the first token's surplus, modulo 2^32.
            add(search.maxima.of(tile), tile % tile_stride == 0 ? 1 - tile_stride : 1);
        }
    }
    sum_level_counts(blocks, counts);
}

// Returns the first level down to which there are more than `count` tokens, or the last level; by a warp. The counts
// must be running sums.
DEVICE u32 level_above(const u32* upto, u32 count) {
    const u32 EACH = LEVELS / 32;
    u32 lane = lane_id(), above = __ballot_sync(FULL_MASK, upto[(lane + 1) * EACH - 1] > count);
    if (above == 0) {
        return LEVELS - 1;
    }
    u32 start = ((u32)__ffs((int)above) - 1) * EACH;
#pragma unroll 1
    for (u32 i = 0; i < EACH; i += 32) {
        above = __ballot_sync(FULL_MASK, upto[start + i + lane] > count);
        if (above != 0) {
            return start + i + (u32)__ffs((int)above) - 1;
        }
    }
    return LEVELS - 1;
}

// The approximate sums of the threads before this one, and of all threads.
struct ApproxScan {
    ApproxSums before;
    ApproxSums total;
};

// Returns the sums of another lane.
DEVICE ApproxSums shuffle(const ApproxSums& own, u32 lane) {
    return ApproxSums{__shfl_sync(FULL_MASK, own.count, (int)lane), __shfl_sync(FULL_MASK, own.mass, (int)lane),
                      __shfl_sync(FULL_MASK, own.square, (int)lane)};
}

// Adds to each lane's sums the sums of the lanes before.
DEVICE void scan_warp(ApproxSums& sum) {
#pragma unroll 1
    for (u32 apart = 1; apart < 32; apart *= 2) {
        ApproxSums other{__shfl_up_sync(FULL_MASK, sum.count, apart), __shfl_up_sync(FULL_MASK, sum.mass, apart),
                         __shfl_up_sync(FULL_MASK, sum.square, apart)};
        sum.add(other, lane_id() >= apart);
    }
}

DEVICE ApproxScan scan_approx(ApproxSums (&scratch)[32], const ApproxSums& own) {
    ApproxSums sum = own;
    scan_warp(sum);
    // The sums before a lane are shuffled, not subtracted: next to a heavy mass, a difference would lose the light
    // ones.
    ApproxSums before{__shfl_up_sync(FULL_MASK, sum.count, 1), __shfl_up_sync(FULL_MASK, sum.mass, 1),
                      __shfl_up_sync(FULL_MASK, sum.square, 1)};
    // WAR on scratch: all threads read the previous scan's sums, each warp's last lane overwrites them.
    __syncthreads();
    if (lane_id() == 31) {
        scratch[warp_id()] = sum;
    }
    // RAW on scratch: each warp's last lane wrote its sum, all threads read all sums.
    __syncthreads();
    // Each warp scans the warps' sums, one in each lane.
    sum = lane_id() < warp_count() ? scratch[lane_id()] : ApproxSums{0, 0.0f, 0.0f};
    scan_warp(sum);
    ApproxScan scan{shuffle(sum, warp_id() > 0 ? warp_id() - 1 : 0), shuffle(sum, warp_count() - 1)};
    if (warp_id() == 0) {
        scan.before = ApproxSums{0, 0.0f, 0.0f};
    }
    scan.before.add(before, lane_id() > 0);
    return scan;
}

// Brackets the goal by levels, and turns the counts into running sums. Returns whether the range reaches the goal; for
// a mass it returns true. The levels of a number of tokens are certain. The levels of a mass are guessed in floats:
// search.cuh proves the guess, or finds that it missed.
//
//     missing = the exact mass of the range - its guessed mass; spread it over the levels, unless it is too large
//     level = the first one down to which the tokens reach the goal
//     bracket = the levels around it that hold `margin` tokens on either side, or fewer if the list is too short
template <class V>
DEVICE bool bracket_goal(const SearchedRow<V>& set, u32 margin) {
    Search& search = set.storage.search;
    const LevelRange& levels = search.levels;
    u32* counts = set.storage.level_counts;
    const Order order = search.order;
    const bool by_mass = search.by_mass;
    // Each thread has an even number of levels, so that the two sides of an entropy stay together.
    u32 chunk = ((LEVELS + blockDim.x - 1) / blockDim.x + 1) & ~1u;
    u32 from = threadIdx.x * chunk < LEVELS ? threadIdx.x * chunk : LEVELS;
    u32 to = from + chunk < LEVELS ? from + chunk : LEVELS;
    auto add = [&](ApproxSums& sum, u32 level) INLINE {
        u32 own = counts[level];
        float weight = 0.0f;
        if (by_mass) {
            weight = order.weight(levels.middle(order.nearest ? level / 2 : level), order.nearest && level % 2 == 1);
        }
        float mass = int_to_float((int)own) * weight;
        sum.add(ApproxSums{own, mass, mass * weight}, true);
    };

    ApproxSums own{0, 0.0f, 0.0f};
#pragma unroll 1
    for (u32 level = from; level < to; level++) {
        add(own, level);
    }
    if (threadIdx.x == 0) {
        search.bracket.before = 0;
    }
    ApproxScan sums = scan_approx(set.storage.level_sums, own);
    float missing = relative_mass(levels.to.mass - levels.from.mass) - sums.total.mass;
    // A difference may stem from the widths of levels and from the choice of counted tiles. A larger one is the mass
    // of tokens below the range, and is not spread.
    float most_missing = 0.0f;
    if (levels.is_even()) {
        most_missing = sums.total.mass * max_f32(levels.octaves(search.log2e_over_t), margin > MARGIN ? 0.25f : 0.0f);
    }
    bool explained = sums.total.square != 0.0f && missing <= most_missing && missing >= -most_missing;
    float each = explained ? missing / sums.total.square : 0.0f;
    float wanted = relative_mass(search.goal - levels.from.mass);
    u32 wanted_count = (u32)(search.goal - levels.from.count);
    auto is_before = [&](const ApproxSums& sum)
                         INLINE { return by_mass ? sum.mass + each * sum.square < wanted : sum.count < wanted_count; };
    ApproxSums upto = sums.before;
    upto.add(own, true);
    u32 before = is_before(upto) ? to : 0;
    bool meets = before == 0 && is_before(sums.before);
    upto = sums.before;
#pragma unroll 1
    for (u32 level = from; level < to; level++) {
        if (meets) {
            add(upto, level);
            before = is_before(upto) ? level + 1 : before;
        } else {
            upto.count += counts[level];
        }
        counts[level] = upto.count;
    }
    atomicMax(&search.bracket.before, before);
    // RAW on bracket.before and the counts: all threads updated them, all threads read the former and two warps the
    // counts.
    __syncthreads();
    before = search.bracket.before;
    if (!by_mass && before == LEVELS) {
        return false;
    }
    // In the order of typical-p, a level's two counters stay together. One warp finds the bracket's upper end,
    // another one its lower end.
    u32 last_warp = warp_count() > 1 ? 1 : 0;
    if (warp_id() <= last_warp) {
        u32 side = order.nearest, at = (before < LEVELS ? before : LEVELS - 1) & ~side;
        auto upto = [&](u32 level) INLINE { return level == 0 ? 0 : counts[level - 1]; };
        u32 high = upto(at), low = counts[at | side], start = at, end = at | side;
        // The margin shrinks to no less than MARGIN / 2, until the bracket's tokens fit in the list.
#pragma unroll 1
        for (u32 few = margin; by_mass && few >= MARGIN / 2; few -= (few + 3) / 4) {
            u32 first = high >= few ? level_above(counts, high - few) & ~side : 0,
                last = level_above(counts, low + few - 1) | side;
            first = first < at ? first : at;
            last = last > at ? last : at | side;
            if (counts[last] - upto(first) <= LIST_CAPACITY) {
                start = first;
                end = last;
                break;
            }
        }
        if (warp_id() == 0) {
            float hi = start == 0 ? levels.from.value : levels.end((start >> side) - 1, search.last_level());
            if (lane_id() == 0) {
                search.bracket.hi = RangeEnd{hi, 0, levels.from.count + upto(start)};
                search.bracket.count = counts[end] - upto(start);
            }
        }
        if (warp_id() == last_warp) {
            float lo = levels.end(end >> side, search.last_level());
            if (lane_id() == 0) {
                search.bracket.lo = lo;
            }
        }
    }
    // RAW on the bracket: two warps wrote its ends, all threads read them.
    __syncthreads();
    return true;
}
