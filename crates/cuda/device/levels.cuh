// levels.cuh: at which height the tokens of a set lie, by a block: where in an order a goal is met, about.
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

#include "mass.cuh"

#define LEVELS 2048
// How many tokens are sorted at once; how many at least are looked at on either side of a guess.
#define LISTED 2048
#define MARGIN 64

// The least logit that passes, given that `first` does and that what passes is monotone; by a warp.
template <class Passes>
DEVICE float least_logit(float first, Passes passes) {
    u32 fails = ordered_bits(-INFINITE), high = ordered_bits(first);
    // Each round tests 32 logits at once: seven rounds for all floats.
    while (high - fails > 32) {
        u64 width = high - fails;
        u32 lane = lane_id();
        u32 pivot = fails + (u32)(width * (lane + 1) / 33);
        u32 passing = __ballot_sync(ALL_LANES, passes(from_ordered_bits(pivot)));
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
    u32 passing = __ballot_sync(ALL_LANES, candidate >= high || passes(from_ordered_bits(candidate)));
    return from_ordered_bits(fails + __ffs((int)passing));
}

// An order of tokens by a value, the largest first: by the logit, or by how near the surprise is to the entropy (F3).
struct Order {
    bool nearest;
    float first;
    float s;
    float lz;
    float entropy;

    // How far above the entropy the surprise lies; falls as the logit rises.
    DEVICE_MEMBER float excess(float z) const { return (lz - (z - first) * s) - entropy; }
    // Of what is distant beyond all floats it is -inf, as of no token.
    DEVICE_MEMBER float value(float z) const {
        return nearest ? 0.0f - bits_float(float_bits(excess(z)) & 0x7FFFFFFF) : z;
    }
    // About y of a value; `early` if the surprise is less than the entropy.
    DEVICE_MEMBER float y(float value, bool early) const {
        return fminf(nearest ? lz - entropy + (early ? -value : value) : (value - first) * s, 0.0f);
    }
};

// An end of a range of values: what the tokens at or above a value come to.
struct Reached {
    float value;
    u64 mass;
    u64 count;
};

// How a range of values is divided.
struct Division {
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
        if (LINEAR || linear) {
            // Sums with 2^23 are whole.
            level = float_bits(fma_rn(top - value, scale, 8388608.0f)) - 0x4B000000u;
        } else {
            level = (bits - ordered_bits(value + 0.0f)) >> shift;
        }
        return level < most ? level : most;
    }

    // A value in the middle of a level.
    DEVICE_MEMBER float middle(u32 level) const {
        return linear ? top - int_to_float((int)level) * width
                      : from_ordered_bits(bits - (level << shift) - ((1u << shift) >> 1));
    }

};

// Parts of a range, the first with the largest values.
struct Levels : Division {
    // From its upper end, whose value is outside, to its lower one; masses may be guesses.
    Reached from;
    Reached to;
    // How many tokens each has; then how many there are in all down to it.
    u32 counts[LEVELS + 32];

    // The least value of the levels down to one, by a warp.
    DEVICE_MEMBER float end(u32 level, u32 most) const {
        if (level == most) {
            return to.value;
        }
        if (!linear) {
            return larger(to.value, from_ordered_bits(bits - ((level + 1) << shift) + 1));
        }
        auto passes = [&](float value) INLINE { return value >= to.value && this->level(value, most) <= level; };
        // Mostly one look at 32 values finds it.
        u32 base = ordered_bits(top - (int_to_float((int)level) + 0.5f) * width) - 16;
        u32 passing = __ballot_sync(ALL_LANES, passes(from_ordered_bits(base + lane_id())));
        bool found = passing != 0 && (passing & 1) == 0;
        return found ? from_ordered_bits(base + __ffs((int)passing) - 1) : least_logit(top, passes);
    }

    // Sets the range; by one thread, its ends being there.
    DEVICE_MEMBER void divide(bool by_values, float highest, u32 most) {
        linear = by_values;
        if (linear) {
            top = from.value < highest ? from.value : highest;
            float range = top - to.value;
            scale = range > 1e-30f ? int_to_float((int)most) / range : 1.0f;
            width = 1.0f / scale;
        } else {
            bits = ordered_bits(from.value) - 1;
            shift = 0;
            while ((bits - ordered_bits(to.value)) >> shift > most) {
                shift++;
            }
        }
    }
};

// The levels where a goal is guessed, and their ends.
struct Aim {
    Reached hi;
    float lo;
    // How many tokens lie between.
    u32 count;
    // How many levels come before the goal.
    u32 before;
};

// What is searched: a given set with its maxima at a scale, in an order; and how far the search is. In shared memory: the
// kernel has no registers to spare for it.
struct Search {
    Given given;
    Maxima maxima;
    Order order;
    float s;
    // Whether the given set is more than a bound of values; if it is not, and these are logits, the search is plain.
    bool masked;
    bool plain;
    // Whether the goal is a mass rather than a number of tokens.
    bool by_mass;
    u64 goal;
    // What share of the given set's mass the goal is, while that is only known about; else 0.
    u32 share;
    // Values in the set are at most this. The goal is hardly met below `lowest`, and below `least` even less.
    float highest;
    float lowest;
    float least;
    // The tokens from `hi` on up do not reach the goal, those from `lo` on up do, if any.
    Reached lo;
    Reached hi;
    Levels levels;
    Aim aim;
    u32 listed;
    // Ordered bits of values listed: the largest, and the least complemented.
    u32 most_bits;
    u32 least_bits;
    u32 place;
    u32 index;

    DEVICE_MEMBER float factor(float maximum) const { return exp2_rule((maximum - given.first) * s); }
    // Two levels for the two sides of an entropy.
    DEVICE_MEMBER u32 most_level() const { return order.nearest ? LEVELS / 2 - 1 : LEVELS - 1; }
    // The least logit of the tokens from a value on up.
    DEVICE_MEMBER float low(float value) const { return order.nearest ? given.cut.low() : value; }
};

// A row that is searched.
template <class V>
struct Searched {
    const Step& step;
    u32 row;
    const V& view;

    DEVICE_MEMBER Search& search() const {
        __shared__ Search shared;
        return shared;
    }

    // Visits the tiles that hold tokens from a value on up, as `visit_tiles` does; logits outside the set are -inf or NaN.
    template <bool PLAIN, class Inside, class After>
    DEVICE_MEMBER void visit(float value, Inside inside, After after) const {
        const Search& search = this->search();
        visit_tiles<true>(
            view, search.maxima, search.low(value),
            [&](u32 tile, float maximum, float(&z)[PER_LANE], bool mine) INLINE {
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    z[j] = smaller_or_nan(z[j], LARGEST);
                }
                if (!PLAIN && search.masked) {
#pragma unroll
                    for (u32 j = 0; j < PER_LANE; j++) {
                        u64 key = key_of(z[j] + 0.0f, tile * TILE + view.place(tile, lane_id(), j));
                        z[j] = search.given.cut.contains(key) ? z[j] : -INFINITE;
                    }
                }
                inside(tile, maximum, z, mine);
            },
            after);
    }
};

// Counts the tokens at each level; PLAIN where the set is a bound of logits, in linear levels from the first on.
template <bool PLAIN, class V>
DEVICE void count_levels(const Step& step, u32 row, const V view) {
    const Searched<V> set{step, row, view};
    Search& search = set.search();
    u32* counts = search.levels.counts;
    for (u32 i = threadIdx.x; i < LEVELS; i += blockDim.x) {
        counts[i] = 0;
    }
    // Without it tokens could be counted before the counts are zero.
    __syncthreads();
    // In registers: counts could be anything, as far as a compiler sees, so that it would read all of this again and again.
    const Order order = search.order;
    const Division division = search.levels;
    const float from = search.levels.from.value, to = search.levels.to.value;
    const u32 most = search.most_level(), nobody = LEVELS + lane_id();
    set.template visit<PLAIN>(
        to,
        [&](u32, float, const float(&z)[PER_LANE], bool) INLINE {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                float value = PLAIN ? z[j] : order.value(z[j]);
                u32 level = division.template level<PLAIN>(value, most);
                if (!PLAIN && order.nearest) {
                    level = 2 * level + (order.excess(z[j]) < 0.0f);
                }
                // One of these counts is nobody's: a branch would cost more.
                bool inside = value >= to && (PLAIN || value < from);
                atomicAdd(&counts[inside ? level : nobody], 1u);
            }
        },
        [](u32, float, bool) INLINE {});
    // Without it counts would be read that others have not added to yet.
    __syncthreads();
}

// The first of the levels from which on up there are more than so many tokens; by one thread, the counts being sums.
DEVICE u32 level_above(const Levels& levels, u32 count) {
    u32 from = 0, to = LEVELS - 1;
    while (from < to) {
        u32 middle = (from + to) / 2;
        bool above = levels.counts[middle] > count;
        to = above ? middle : to;
        from = above ? from : middle + 1;
    }
    return from;
}

// Finds the levels where the goal is met: those of numbers for sure. Makes the counts sums. Says whether the range reaches
// the goal; masses always do.
template <class V>
DEVICE bool take_aim(const Searched<V>& set) {
    Search& search = set.search();
    Levels& levels = search.levels;
    const Order order = search.order;
    // An even number of levels each, for the sides of an entropy.
    u32 chunk = ((LEVELS + blockDim.x - 1) / blockDim.x + 1) & ~1u;
    u32 from = threadIdx.x * chunk < LEVELS ? threadIdx.x * chunk : LEVELS;
    u32 to = from + chunk < LEVELS ? from + chunk : LEVELS;
    auto y = [&](u32 level) INLINE {
        return order.y(levels.middle(order.nearest ? level / 2 : level), order.nearest && level % 2 == 1);
    };
    // What so many tokens of a weight come to, at half the size, so that all differences fit a signed number.
    auto half_mass = [](float weight, u32 count) INLINE { return count * (tile_mass(weight, 1u << 28) >> 1); };

    u64 count = 0, mass = 0, square = 0;
    for (u32 level = from; level < to; level++) {
        u32 own = levels.counts[level];
        count += own;
        if (search.by_mass && own != 0) {
            float weight = exp2_rule(y(level));
            mass += half_mass(weight, own);
            square += half_mass(weight * weight, own);
        }
    }
    if (threadIdx.x == 0) {
        search.aim.before = 0;
    }
    Scan counts = block_scan(count), masses = block_scan(mass), squares = block_scan(square);
    i64 missing = (i64)((levels.to.mass >> 1) - (levels.from.mass >> 1)) - (i64)masses.total;
    // More than the width of a level can explain is the mass of tokens below the range.
    float most_missing = levels.linear ? u64_to_float(masses.total) * (search.s * levels.width) : 0.0f;
    bool explained = squares.total != 0 && (float)missing <= most_missing && (float)missing >= -most_missing;
    float each = explained ? (float)missing / u64_to_float(squares.total) : 0.0f;
    u64 wanted = search.by_mass ? (search.goal >> 1) - (levels.from.mass >> 1) : search.goal - levels.from.count;
    auto is_before = [&](u64 count, u64 mass, u64 square) INLINE {
        return search.by_mass ? (i64)mass + (i64)(each * u64_to_float(square)) < (i64)wanted : count < wanted;
    };
    u32 before = is_before(counts.before + count, masses.before + mass, squares.before + square) ? to : 0;
    bool meets = before == 0 && is_before(counts.before, masses.before, squares.before);
    count = counts.before;
    mass = masses.before;
    square = squares.before;
    for (u32 level = from; level < to; level++) {
        u32 own = levels.counts[level];
        count += own;
        if (meets) {
            if (search.by_mass && own != 0) {
                float weight = exp2_rule(y(level));
                mass += half_mass(weight, own);
                square += half_mass(weight * weight, own);
            }
            before = is_before(count, mass, square) ? level + 1 : before;
        }
        levels.counts[level] = (u32)count;
    }
    atomicMax(&search.aim.before, before);
    // Without it the levels would be read before all threads have said where they stand.
    __syncthreads();
    before = search.aim.before;
    if (!search.by_mass && before == LEVELS) {
        return false;
    }
    // Neighbours that belong together, by the first warp.
    if (warp_id() == 0) {
        u32 side = order.nearest, at = (before < LEVELS ? before : LEVELS - 1) & ~side;
        auto upto = [&](u32 level) INLINE { return level == 0 ? 0 : levels.counts[level - 1]; };
        u32 margin = search.by_mass ? MARGIN : 0, high = upto(at), low = levels.counts[at | side];
        u32 start = search.by_mass && high >= margin ? level_above(levels, high - margin) & ~side : search.by_mass ? 0 : at;
        u32 end = search.by_mass ? level_above(levels, low + margin - 1) | side : at | side;
        start = start < at ? start : at;
        end = end > at ? end : at | side;
        if (levels.counts[end] - upto(start) > LISTED) {
            start = at;
            end = at | side;
        }
        float hi = start == 0 ? levels.from.value : levels.end((start >> side) - 1, search.most_level());
        float lo = levels.end(end >> side, search.most_level());
        if (lane_id() == 0) {
            search.aim.hi = Reached{hi, 0, levels.from.count + upto(start)};
            search.aim.lo = lo;
            search.aim.count = levels.counts[end] - upto(start);
        }
    }
    // Without it the aim would be read before it is there.
    __syncthreads();
    return true;
}
