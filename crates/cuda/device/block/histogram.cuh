// histogram.cuh: at which height the tokens of a set lie, by a block: where in an order a goal is met, about.
//
// Computes   how many tokens lie at each of many levels of a range of values; the neighbouring levels around a goal
// Never      takes a token's exponential; never decides where a mass is reached
// Twins      none: what is found here is proven by search.cuh
// Traffic    a read of the tiles that the range reaches
// Requires   all threads of the block
//
// Numbers of tokens are exact, so a goal that is one is met at the level found. A mass is only guessed, each token at the
// middle of its level; the guess misses the exact mass of the range by what its tokens miss theirs, and most of that by the
// heaviest: so the difference is dealt out by the squares of weights.
#pragma once

#include "block/mass.cuh"

#define LEVELS 2048
// How many tokens are listed at once; how many at least are looked at on either side of a guess from all tokens.
#define LIST_CAPACITY 2048
#define MARGIN 64

// The least logit that passes, given that `first` does and that what passes is monotone; by a warp.
template <class Passes>
DEVICE float least_passing_logit(float first, Passes passes) {
    u32 fails = ordered_bits(MASKED_VALUE), high = ordered_bits(first);
    // Each round tests 32 logits at once: seven rounds for all floats.
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

    // How far above the entropy the surprise lies; falls as the logit rises.
    DEVICE_MEMBER float excess(float z) const { return (log2_z - exponent(z, origin, log2e_over_t)) - entropy; }
    // Of what is distant beyond all floats it is -inf, as of no token.
    DEVICE_MEMBER float value(float z) const {
        return nearest ? 0.0f - bits_float(float_bits(excess(z)) & 0x7FFFFFFF) : z;
    }
    // About the weight of a value; `early` if the surprise is less than the entropy.
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

// An end of a range of values: what the tokens at or above a value come to.
struct RangeEnd {
    float value;
    u64 mass;
    u64 count;
};

// How a range of values is divided.
struct LevelDivision {
    // Equal parts of the values below `top`, or equal parts of their bits.
    bool linear;
    float top;
    float scale;
    // One over the scale.
    float width;
    u32 bits;
    u32 shift;

    // The level of a value in the range: rises as the value falls, as each step is monotone.
    template <bool LINEAR = false>
    DEVICE_MEMBER u32 level(float value, u32 most) const {
        u32 level;
        if (LINEAR ? LINEAR_LEVELS : linear) {
            // Sums with 2^23 are whole.
            level = float_bits(fma_rn(top - value, scale, 8388608.0f)) - 0x4B000000u;
        } else {
            level = (bits - ordered_bits(value + 0.0f)) >> shift;
        }
        return level < most ? level : most;
    }

    // Whether they are such as a range from the first token down has.
    DEVICE_MEMBER bool is_plain() const { return linear == LINEAR_LEVELS; }

    // Whether the levels are those of a range whose lower end matters.
    DEVICE_MEMBER bool is_even() const { return linear || !LINEAR_LEVELS; }

    // By how many powers of two weights differ in a level, about.
    DEVICE_MEMBER float octaves(float log2e_over_t) const {
        return linear ? log2e_over_t * width : bits_float(shift < 23 ? (127 - 23 + shift) << 23 : 127 << 23);
    }

    // A value in the middle of a level.
    DEVICE_MEMBER float middle(u32 level) const {
        return linear ? top - int_to_float((int)level) * width
                      : from_ordered_bits(bits - (level << shift) - ((1u << shift) >> 1));
    }
};

// How many tokens each level has; then how many there are in all down to it.
DEVICE u32* shared_level_counts() {
    // Aligned for whatever else takes the room.
    alignas(16) __shared__ u32 counts[LEVELS + 32];
    return counts;
}

// Parts of a range, the first with the largest values.
struct LevelRange : LevelDivision {
    // From its upper end, whose value is outside, to its lower one; masses may be guesses.
    RangeEnd from;
    RangeEnd to;

    // The least value of the levels down to one, by a warp.
    DEVICE_MEMBER float end(u32 level, u32 most) const {
        if (level == most) {
            return to.value;
        }
        if (!linear) {
            return max_f32(to.value, from_ordered_bits(bits - ((level + 1) << shift) + 1));
        }
        auto passes = [&](float value) INLINE { return value >= to.value && this->level(value, most) <= level; };
        // Mostly one look at 32 values finds it.
        u32 base = ordered_bits(top - (int_to_float((int)level) + 0.5f) * width) - 16;
        u32 passing = __ballot_sync(FULL_MASK, passes(from_ordered_bits(base + lane_id())));
        bool found = passing != 0 && (passing & 1) == 0;
        return found ? from_ordered_bits(base + __ffs((int)passing) - 1) : least_passing_logit(top, passes);
    }

    // Sets the range; by one thread, its ends being there. `by_values` says that its lower end matters, and `signs` that values
    // have signs.
    DEVICE_MEMBER void divide(bool by_values, bool signs, float highest, u32 most) {
        linear = by_values && (LINEAR_LEVELS || signs);
        if (linear) {
            top = from.value < highest ? from.value : highest;
            float range = top - to.value;
            scale = range > 1e-30f ? int_to_float((int)most) / range : 1.0f;
            width = 1.0f / scale;
        } else {
            bits = ordered_bits(from.value) - 1;
            // Of values from `highest` down there are levels in what they have.
            bits = by_values && from.value > highest ? ordered_bits(highest) : bits;
            shift = 0;
            while ((bits - ordered_bits(to.value)) >> shift > most) {
                shift++;
            }
        }
    }
};

// The levels where a goal is guessed, and their ends.
struct Bracket {
    RangeEnd hi;
    float lo;
    // How many tokens lie between.
    u32 count;
    // How many levels come before the goal.
    u32 before;
};

// What is searched: a given set with its maxima at a scale, in an order; and how far the search is. In shared memory: the
// kernel has no registers to spare for it.
struct Search {
    GivenSet given;
    Maxima maxima;
    Order order;
    float log2e_over_t;
    // Whether the given set is more than a bound of values; if it is not, and these are logits, the search is plain.
    bool needs_key_test;
    bool plain;
    // Whether the goal is a mass rather than a number of tokens.
    bool by_mass;
    u64 goal;
    // What share of the given set's mass the goal is, while that is only known about: then it is the least that the goal may be, and
    // `goal_slack` how much more it may be. Else both are 0.
    u32 goal_fraction;
    u64 goal_slack;
    // Values in the set are at most this. The goal is hardly met below `lowest`, and below `least` even less.
    float highest;
    float lowest;
    float least;
    // The tokens from `hi` on up do not reach the goal, those from `lo` on up do, if any.
    RangeEnd lo;
    RangeEnd hi;
    LevelRange levels;
    Bracket bracket;
    // Of how many tiles the next read of levels counts one.
    u32 tile_stride;
    u32 listed;
    // Ordered bits of values listed: the largest, and the least complemented.
    u32 max_value_bits;
    u32 min_value_bits_inverted;
    u32 found_index;
    u32 found_rank;

    // Whether the tokens of the aim are listed. Where their number is a guess, more may fit than it says.
    DEVICE_MEMBER bool fits_list() const { return bracket.count <= 2 * LIST_CAPACITY; }
    DEVICE_MEMBER float factor(float maximum) const { return tile_factor(maximum, given.first_value, log2e_over_t); }
    // Two levels for the two sides of an entropy.
    DEVICE_MEMBER u32 last_level() const { return order.nearest ? LEVELS / 2 - 1 : LEVELS - 1; }
    // The least logit of the tokens from a value on up.
    DEVICE_MEMBER float low(float value) const { return order.nearest ? given.cut.low() : value; }
};

// The one search of a block.
DEVICE Search& shared_search() {
    __shared__ Search search;
    return search;
}

// A row that is searched.
template <class V>
struct SearchedRow {
    const Step& step;
    u32 row;
    const V& view;

    DEVICE_MEMBER Search& search() const { return shared_search(); }

    // Visits the tiles that hold tokens from a value on up, as `visit_tiles` does; logits outside the set are -inf or NaN.
    template <bool PLAIN, class Inside, class After>
    DEVICE_MEMBER void visit(float value, Inside inside, After after, StridedTiles tiles = StridedTiles{0, 1}) const {
        const Search& search = this->search();
        visit_tiles<true>(
            view, search.maxima, search.low(value),
            [&](u32 tile, float maximum, float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
                // Else none is +inf.
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

// How many tiles there are for each that is counted, where a mass is only guessed, be `goal_fraction` the part of it that is looked for.
// What is guessed misses it by a number of tokens whose deviation is the root of tokens * every * p * (1 - p), or less, if p is
// that part: as many are counted as make that some 280, which with the margin below misses one row of many.
DEVICE u32 sampling_stride(u32 tiles, u32 goal_fraction) {
    u32 p = goal_fraction >> 16, spread = p == 0 ? 1 << 14 : (p * (65536 - p) >> 16) + 1,
        tile_stride = 20000000 / (tiles * spread);
    return tile_stride > 4 ? 4 : tile_stride > 1 && tiles >= 8 ? tile_stride : 1;
}

// How many tokens at least are looked at on either side of a guess.
DEVICE u32 bracket_margin(u32 tile_stride, u32 tiles) {
    return tile_stride == 1 ? MARGIN : tiles < 400 ? 256 + tiles * 5 / 4 : 756;
}

// Counts the tokens at each level; PLAIN where the set is a bound of logits, in linear levels from the first on. Of `tile_stride` tiles
// it counts one, each of its tokens so many times; but the first token of each tile, which the heavy ones are as a rule, once.
template <bool PLAIN, class V>
DEVICE void count_levels(const Step& step, u32 row, const V view, u32 tile_stride) {
    const SearchedRow<V> set{step, row, view};
    const Search& search = set.search();
    u32* counts = shared_level_counts();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < LEVELS; i += blockDim.x) {
        counts[i] = 0;
    }
    // Without it tokens could be counted before the counts are zero.
    __syncthreads();
    // In registers: counts could be anything, as far as a compiler sees, so that it would read all of this again and again.
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
        // One of these counts is nobody's: a branch would cost more.
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
            // Modulo 2^32 that takes away what was counted too much.
            add(search.maxima.of(tile), tile % tile_stride == 0 ? 1 - tile_stride : 1);
        }
    }
    // Without it counts would be read that others have not added to yet.
    __syncthreads();
}

// The first of the levels from which on up there are more than so many tokens, or the last; by a warp, the counts being sums.
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

// What levels come to, about; the masses in units of the first token's weight.
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

// What the threads before this one have, and what all have, about.
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
    // Of masses no difference is taken: the heavy ones would be all that is left of it.
    ApproxSums before{__shfl_up_sync(FULL_MASK, sum.count, 1), __shfl_up_sync(FULL_MASK, sum.mass, 1),
                      __shfl_up_sync(FULL_MASK, sum.square, 1)};
    // Without it a warp could overwrite what a slower one still reads of the scan before.
    __syncthreads();
    if (lane_id() == 31) {
        scratch[warp_id()] = sum;
    }
    // Without it a warp reads the words of warps that have not written theirs.
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

// Finds the levels where the goal is met: those of numbers for sure. Makes the counts sums. Says whether the range reaches
// the goal; masses always do. A mass is guessed in floats: it is proven, or missed, whatever comes out here.
template <class V>
DEVICE bool bracket_goal(const SearchedRow<V>& set, u32 margin) {
    Search& search = set.search();
    const LevelRange& levels = search.levels;
    u32* counts = shared_level_counts();
    const Order order = search.order;
    const bool by_mass = search.by_mass;
    const float UNIT = bits_float((127 - 43) << 23);
    // An even number of levels each, for the sides of an entropy.
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
    // More than the width of a level can explain, or the lot of the tiles that are counted, is the mass of tokens below the range.
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
    // Without it the levels would be read before all threads have said where they stand.
    __syncthreads();
    before = search.bracket.before;
    if (!by_mass && before == LEVELS) {
        return false;
    }
    // Neighbours that belong together: one warp finds their upper end, and one their lower.
    u32 last_warp = warp_count() > 1 ? 1 : 0;
    if (warp_id() <= last_warp) {
        u32 side = order.nearest, at = (before < LEVELS ? before : LEVELS - 1) & ~side;
        auto upto = [&](u32 level) INLINE { return level == 0 ? 0 : counts[level - 1]; };
        u32 high = upto(at), low = counts[at | side], start = at, end = at | side;
        // Fewer of them if there are too many to be listed.
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
    // Without it the aim would be read before it is there.
    __syncthreads();
    return true;
}
