// histogram.cuh: counts a set's tokens by levels of value, and guesses the level of a goal; by a block.
//
// Computes   how many tokens lie at each of 2048 levels of a range of values; a bracket of levels around a goal
// Never      takes a token's exponential; never decides where a mass is reached
// Twins      none: search.cuh proves what this file guesses
// Traffic    one read of the tiles that the range reaches; of one in up to four of them if the goal is a mass
// Requires   all threads of the block
//
// Counts are exact unless tiles are skipped, so a goal that is a number of tokens is reached at the level found. A mass
// is guessed: each token weighs as much as the middle of its level. The guess misses the exact mass of the range by the
// sum of the tokens' errors, and most of that stems from the heaviest tokens. So the difference is spread over the
// levels in proportion to the squares of the weights.
#pragma once

#include "block/mass.cuh"

#define LEVELS 2048
// How many tokens a bracket takes on either side of a guess from all tiles.
#define MARGIN 64

// Returns the least logit that passes, by a warp. `first` passes, and so does every logit above one that passes.
template <class Passes>
DEVICE float least_passing_logit(float first, Passes passes) {
    u32 fails = ordered_bits(MASKED_VALUE), high = ordered_bits(first);
    // Each round tests 32 logits at once: seven rounds suffice for all floats.
    while (high - fails > 32) {
        u64 width = high - fails;
        u32 lane = lane_id();
        u32 pivot = fails + (u32)(width * (lane + 1) / 33);
        u32 passing = __ballot_sync(FULL_MASK, passes(from_ordered_bits(pivot)));
        u32 low_fails = fails;
        if (passing != 0) {
            u32 least = __ffs((int)passing) - 1;
            high = low_fails + (u32)(width * (least + 1) / 33);
            fails = low_fails + (u32)(width * least / 33);
        } else {
            fails = low_fails + (u32)(width * 32 / 33);
        }
    }
    u32 candidate = fails + 1 + lane_id();
    u32 passing = __ballot_sync(FULL_MASK, candidate >= high || passes(from_ordered_bits(candidate)));
    return from_ordered_bits(fails + __ffs((int)passing));
}

// An order of tokens by a value, the largest first: by the logit, or by how near the surprise is to the entropy (F3).
struct Order {
    bool nearest;
    Origin origin;
    float log2e_over_t;
    float log2_z;
    float entropy;

    // How far the surprise lies above the entropy, in bits; it does not rise with the logit.
    DEVICE_MEMBER float excess(float z) const { return (log2_z - exponent(z, origin, log2e_over_t)) - entropy; }
    // The value of a logit. It is -inf if the distance exceeds all floats, as it is for a logit of -inf.
    DEVICE_MEMBER float value(float z) const {
        return nearest ? 0.0f - bits_float(float_bits(excess(z)) & 0x7FFFFFFF) : z;
    }
    // Approximately the weight of a value relative to the first token's; `early` if the surprise is below the
    // entropy.
    DEVICE_MEMBER float weight(float value, bool early) const {
#if GUMBALL_PROBABILITIES
        if (!nearest) {
            return fminf(max_f32(value, 0.0f) / origin.first, 1.0f);
        }
        return approx_exp2(fminf(log2_z - entropy + (early ? -value : value), 0.0f));
#else
        return approx_exp2(
            fminf(nearest ? log2_z - entropy + (early ? -value : value) : exponent(value, origin, log2e_over_t), 0.0f));
#endif
    }
};

// An end of a range of values: the value, and the mass and the number of the tokens at or above it.
struct RangeEnd {
    float value;
    u64 mass;
    u64 count;
};

// How a range of values is divided into levels. Level 0 has the largest values.
struct LevelDivision {
    // Whether levels are equal parts of the values from `top` down, or equal parts of their ordered bits from `bits`
    // down.
    bool linear;
    float top;
    float scale;
    // The height of a level: 1 / scale.
    float width;
    u32 bits;
    u32 shift;

    // The level of a value in the range, at most `most`. Each step is monotone, so a lower value has no lower level.
    template <bool LINEAR = false>
    DEVICE_MEMBER u32 level(float value, u32 most) const {
        u32 level;
        if (LINEAR ? LINEAR_LEVELS : linear) {
            // Floats from 2^23 to 2^24 are integers, whose low bits are the level.
            level = float_bits(fma_rn(top - value, scale, 8388608.0f)) - 0x4B000000u;
        } else {
            level = (bits - ordered_bits(value + 0.0f)) >> shift;
        }
        return level < most ? level : most;
    }

    // Whether the levels divide what those of a range from the first token down divide: values of logits, bits of
    // probabilities.
    DEVICE_MEMBER bool is_plain() const { return linear == LINEAR_LEVELS; }

    // Whether the levels may be those of a range whose lower end matters; for probabilities always true.
    DEVICE_MEMBER bool is_even() const { return linear || !LINEAR_LEVELS; }

    // By about how many powers of two weights differ within a level.
    DEVICE_MEMBER float octaves(float log2e_over_t) const {
        return linear ? log2e_over_t * width : bits_float(shift < 23 ? (127 - 23 + shift) << 23 : 127 << 23);
    }

    // The value in the middle of a level.
    DEVICE_MEMBER float middle(u32 level) const {
        return linear ? top - int_to_float((int)level) * width
                      : from_ordered_bits(bits - (level << shift) - ((1u << shift) >> 1));
    }
};

// The number of tokens at each level; after bracket_goal, the number down to each level. The last 32 counters, one
// for each lane, take what lies outside the range.
DEVICE u32* shared_level_counts() {
    // Aligned for NucleusBins and Buckets, which share this memory.
    alignas(16) __shared__ u32 counts[LEVELS + 32];
    return counts;
}

// A range of values and its division into levels.
struct LevelRange : LevelDivision {
    // The range starts below the value of `from` and includes that of `to`. Masses may be guesses.
    RangeEnd from;
    RangeEnd to;

    // Returns the least value of the levels down to `level`, by a warp.
    DEVICE_MEMBER float end(u32 level, u32 most) const {
        if (level == most) {
            return to.value;
        }
        if (!linear) {
            return max_f32(to.value, from_ordered_bits(bits - ((level + 1) << shift) + 1));
        }
        auto passes = [&](float value) INLINE { return value >= to.value && this->level(value, most) <= level; };
        // One test of 32 neighbouring values usually finds it.
        u32 base = ordered_bits(top - (int_to_float((int)level) + 0.5f) * width) - 16;
        u32 passing = __ballot_sync(FULL_MASK, passes(from_ordered_bits(base + lane_id())));
        bool found = passing != 0 && (passing & 1) == 0;
        return found ? from_ordered_bits(base + __ffs((int)passing) - 1) : least_passing_logit(top, passes);
    }

    // Divides the range into levels, by one thread, once its ends are set. `by_values` says that its lower end
    // matters, `signs` that values are signed. No value of the set exceeds `highest`; `most` is the last level.
    DEVICE_MEMBER void divide(bool by_values, bool signs, float highest, u32 most) {
        linear = by_values && (LINEAR_LEVELS || signs);
        if (linear) {
            top = from.value < highest ? from.value : highest;
            float range = top - to.value;
            scale = range > 1e-30f ? int_to_float((int)most) / range : 1.0f;
            width = 1.0f / scale;
        } else {
            bits = ordered_bits(from.value) - 1;
            // No value exceeds `highest`, so the levels begin there.
            bits = by_values && from.value > highest ? ordered_bits(highest) : bits;
            shift = 0;
            while ((bits - ordered_bits(to.value)) >> shift > most) {
                shift++;
            }
        }
    }
};

// The interval of values from `lo` up to but without `hi` in which the goal is expected. Its ends are ends of levels.
struct Bracket {
    RangeEnd hi;
    float lo;
    // How many tokens lie in it.
    u32 count;
    // How many levels lie above the one that reaches the goal.
    u32 before;
};

// A search: the given set with its maxima, a scale and an order; the goal; and the state of the search. It is in
// shared memory because the kernel has no registers to spare for it.
struct Search {
    GivenSet given;
    Maxima maxima;
    Order order;
    float log2e_over_t;
    // Whether a token's key has to be tested, because no lower bound of values describes the given set. A search is
    // plain if it needs no such test and its order is that of the row's numbers.
    bool needs_key_test;
    bool plain;
    // Whether the goal is a mass rather than a number of tokens.
    bool by_mass;
    u64 goal;
    // The fraction of the given set's mass that the goal is, in units of 2^-32, while only bounds of that mass are
    // known. `goal` is then the least possible goal, and `goal_slack` is how much larger the goal may be. Otherwise
    // both are 0.
    u32 goal_fraction;
    u64 goal_slack;
    // No value of the set exceeds `highest`. The goal is hardly reached below `lowest`, and even less likely below
    // `least`.
    float highest;
    float lowest;
    float least;
    // The tokens at or above `hi` do not reach the goal. Those at or above `lo` do, if the given set does.
    RangeEnd lo;
    RangeEnd hi;
    LevelRange levels;
    Bracket bracket;
    // The next read of levels counts one tile in this many.
    u32 tile_stride;
    u32 listed;
    // Ordered bits of the values in the bracket: the largest, and the complement of the least.
    u32 max_value_bits;
    u32 min_value_bits_inverted;
    // The crossing: its index in the sorted list or its tile, and its number among that tile's equal tokens, from 1.
    u32 found_index;
    u32 found_rank;

    // Whether the bracket's tokens are listed. A guessed count may be too high, so up to twice the capacity is tried.
    DEVICE_MEMBER bool fits_list() const { return bracket.count <= 2 * LIST_CAPACITY; }
    DEVICE_MEMBER float factor(float maximum) const { return tile_factor(maximum, given.first_value, log2e_over_t); }
    // The last level of a value. In the order of typical-p, each has two counters, one for each side of the entropy.
    DEVICE_MEMBER u32 last_level() const { return order.nearest ? LEVELS / 2 - 1 : LEVELS - 1; }
    // The least logit that a token at or above a value may have.
    DEVICE_MEMBER float low(float value) const { return order.nearest ? given.cut.low() : value; }
};

// The block's search. A block runs one search at a time.
DEVICE Search& shared_search() {
    __shared__ Search search;
    return search;
}

// A row under a search.
template <class V>
struct SearchedRow {
    const Step& step;
    u32 row;
    const V& view;

    DEVICE_MEMBER Search& search() const { return shared_search(); }

    // Visits the tiles that hold tokens at or above a value, as visit_tiles does. Logits outside the given set become
    // -inf or NaN.
    template <bool PLAIN, class Inside, class After>
    DEVICE_MEMBER void visit(float value, Inside inside, After after, StridedTiles tiles = StridedTiles{0, 1}) const {
        const Search& search = this->search();
        visit_tiles<true>(
            view, search.maxima, search.low(value),
            [&](u32 tile, float maximum, float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
                // A tile with a smaller maximum holds no +inf.
                if (maximum >= MAX_F32) {
#pragma unroll
                    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                        z[j] = min_or_nan(z[j], MAX_F32);
                    }
                }
                if (!PLAIN && search.needs_key_test) {
#pragma unroll
                    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                        u64 key = make_key(z[j] + 0.0f, tile * TILE + view.offset(tile, lane_id(), j));
                        z[j] = search.given.cut.contains(key) ? z[j] : -INF_F32;
                    }
                }
                inside(tile, maximum, z, owns_tile);
            },
            after, tiles);
    }
};

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

// Counts the tokens at each level. PLAIN requires a plain search whose levels divide a range from the first token
// down. Counts one tile in `tile_stride`, and each of its tokens `tile_stride` times. The first token of each tile,
// which is usually a heavy one, counts once in every tile.
template <bool PLAIN, class V>
DEVICE void count_levels(const Step& step, u32 row, const V view, u32 tile_stride) {
    const SearchedRow<V> set{step, row, view};
    const Search& search = set.search();
    u32* counts = shared_level_counts();
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
        [](u32, float, bool) INLINE {}, StridedTiles{0, tile_stride});
    if (PLAIN && tile_stride > 1) {
#pragma unroll 1
        for (u32 tile = threadIdx.x; tile < search.maxima.tiles; tile += blockDim.x) {
            // In a counted tile, this removes the first token's surplus, modulo 2^32.
            add(search.maxima.of(tile), tile % tile_stride == 0 ? 1 - tile_stride : 1);
        }
    }
    // RAW on counts: all threads added to them, all threads read them in bracket_goal.
    __syncthreads();
}

// Returns the first level down to which there are more than `count` tokens, or the last level; by a warp. The counts
// must be running sums.
DEVICE u32 level_above(u32 count) {
    const u32 EACH = LEVELS / 32;
    const u32* upto = shared_level_counts();
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

// Approximate sums over levels: the tokens, their mass, and the sum of their squared weights. Weights are relative to
// the first token's.
struct alignas(16) ApproxSums {
    u32 count;
    float mass;
    float square;

    DEVICE_MEMBER void add(const ApproxSums& other, bool really) {
        count += really ? other.count : 0;
        mass += really ? other.mass : 0.0f;
        square += really ? other.square : 0.0f;
    }
};

// The approximate sums of the threads before this one, and of all threads.
struct ApproxScan {
    ApproxSums before;
    ApproxSums total;
};

DEVICE ApproxScan scan_approx(const ApproxSums& own) {
    __shared__ ApproxSums scratch[32];
    ApproxSums sum = own;
#pragma unroll 1
    for (u32 apart = 1; apart < 32; apart *= 2) {
        ApproxSums other{__shfl_up_sync(FULL_MASK, sum.count, apart), __shfl_up_sync(FULL_MASK, sum.mass, apart),
                         __shfl_up_sync(FULL_MASK, sum.square, apart)};
        sum.add(other, lane_id() >= apart);
    }
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
    ApproxScan scan{{0, 0.0f, 0.0f}, {0, 0.0f, 0.0f}};
#pragma unroll 1
    for (u32 warp = 0; warp < warp_count(); warp++) {
        ApproxSums other = scratch[warp];
        scan.before.add(other, warp < warp_id());
        scan.total.add(other, true);
    }
    scan.before.add(before, lane_id() > 0);
    return scan;
}

// Brackets the goal by levels, and turns the counts into running sums. Returns whether the range reaches the goal; for
// a mass it returns true. The levels of a number of tokens are certain. Those of a mass are guessed in floats:
// search.cuh proves the guess, or finds that it missed.
//
//     missing = the exact mass of the range - its guessed mass; spread it over the levels, unless it is too large
//     level = the first one down to which the tokens reach the goal
//     bracket = the levels around it that hold `margin` tokens on either side, or fewer if the list is too short
template <class V>
DEVICE bool bracket_goal(const SearchedRow<V>& set, u32 margin) {
    Search& search = set.search();
    const LevelRange& levels = search.levels;
    u32* counts = shared_level_counts();
    const Order order = search.order;
    const bool by_mass = search.by_mass;
    const float UNIT = bits_float((127 - 43) << 23);
    // Each thread has an even number of levels, so that the two sides of an entropy stay together.
    u32 chunk = ((LEVELS + blockDim.x - 1) / blockDim.x + 1) & ~1u;
    u32 from = threadIdx.x * chunk < LEVELS ? threadIdx.x * chunk : LEVELS;
    u32 to = from + chunk < LEVELS ? from + chunk : LEVELS;
    auto add = [&](ApproxSums& sum, u32 level) INLINE {
        u32 own = counts[level];
        float weight = order.weight(levels.middle(order.nearest ? level / 2 : level), order.nearest && level % 2 == 1);
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
    ApproxScan sums = scan_approx(own);
    float missing = u64_to_float(levels.to.mass - levels.from.mass) * UNIT - sums.total.mass;
    // A difference may stem from the widths of levels and from the choice of counted tiles. A larger one is the mass
    // of tokens below the range, and is not spread.
    float most_missing = 0.0f;
    if (levels.is_even()) {
        most_missing = sums.total.mass * max_f32(levels.octaves(search.log2e_over_t), margin > MARGIN ? 0.25f : 0.0f);
    }
    bool explained = sums.total.square != 0.0f && missing <= most_missing && missing >= -most_missing;
    float each = explained ? missing / sums.total.square : 0.0f;
    float wanted = u64_to_float(search.goal - levels.from.mass) * UNIT;
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
            u32 first = high >= few ? level_above(high - few) & ~side : 0, last = level_above(low + few - 1) | side;
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
