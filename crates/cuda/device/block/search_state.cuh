// search_state.cuh: the knowledge of a block that searches a row, and its shared memory.
//
// Computes   orders of tokens and levels of values; visits to the tiles that hold tokens at or above a value
// Twins      CPU cpu/src/filter/search.rs | why docs/stages/filter.md
// Requires   all threads of the block
#pragma once

#include "block/candidates.cuh"
#include "block/mass.cuh"

#define LEVELS 2048

// Returns the least float that passes, by a warp. `fails` and `high` are the ordered bits of one that fails and of one
// that passes. Every float above one that passes does, too.
template <class Passes>
DEVICE float least_passing_float(u32 fails, u32 high, Passes passes) {
    // Each round tests 32 floats at once: seven rounds suffice for all floats.
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

// Returns the least logit that passes, by a warp. `first` passes, and so does every logit above one that passes.
template <class Passes>
DEVICE float least_passing_logit(float first, Passes passes) {
    return least_passing_float(ordered_bits(MASKED_VALUE), ordered_bits(first), passes);
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

    // Whether the levels divide the numbers that the levels of a range from the first token down divide: values of
    // logits, bits of probabilities.
    DEVICE_MEMBER bool is_plain() const { return linear == LINEAR_LEVELS; }

    // Whether the levels may be the levels of a range whose lower end matters; for probabilities always true.
    DEVICE_MEMBER bool is_even() const { return linear || !LINEAR_LEVELS; }

    // By about how many powers of two weights differ within a level.
    DEVICE_MEMBER float octaves(float log2e_over_t) const {
        return linear ? log2e_over_t * width : bits_float(shift < 23 ? (127 - 23 + shift) << 23 : 127 << 23);
    }

    // A value that no value of a level exceeds, roundings aside: equal parts of values are rounded to the nearest
    // level.
    DEVICE_MEMBER float top_of(u32 level) const {
        return linear ? top - (int_to_float((int)level) - 0.5f) * width : from_ordered_bits(bits - (level << shift));
    }

    // The value in the middle of a level.
    DEVICE_MEMBER float middle(u32 level) const {
        return linear ? top - int_to_float((int)level) * width
                      : from_ordered_bits(bits - (level << shift) - ((1u << shift) >> 1));
    }
};

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
        if (found) {
            return from_ordered_bits(base + __ffs((int)passing) - 1);
        }
        return least_passing_float(ordered_bits(to.value) - 1, ordered_bits(top), passes);
    }

    // Divides the range into levels, by one thread, once its ends are set. `by_values` says that its lower end
    // matters, `signs` that values are signed. No value of the set exceeds `value_bound`; `most` is the last level.
    DEVICE_MEMBER void divide(bool by_values, bool signs, float value_bound, u32 most) {
        linear = by_values && (LINEAR_LEVELS || signs);
        if (linear) {
            top = from.value < value_bound ? from.value : value_bound;
            float range = top - to.value;
            scale = range > 1e-30f ? int_to_float((int)most) / range : 1.0f;
            width = 1.0f / scale;
        } else {
            bits = ordered_bits(from.value) - 1;
            // No value exceeds `value_bound`, so the levels begin there.
            bits = by_values && from.value > value_bound ? ordered_bits(value_bound) : bits;
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
    // plain if it needs no such test and its order is the order of the row's numbers.
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
    // No value of the set exceeds this one.
    float value_bound;
    // Guesses at how far down the goal is reached: hardly below `likely_floor`, and even less likely below
    // `safe_floor`. A wrong guess costs time only.
    float likely_floor;
    float safe_floor;
    // The proven bounds of the crossing: the tokens at or above `hi` do not reach the goal; those at or above `lo` do,
    // if the given set does.
    RangeEnd lo;
    RangeEnd hi;
    // The range whose levels are counted next, and the bracket that these counts lead to.
    LevelRange levels;
    Bracket bracket;
    // The next read of levels counts one tile in this many.
    u32 tile_stride;
    // How many brackets were tried.
    u32 rounds;
    // How many tokens were found for the list; it may hold fewer.
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
    DEVICE_MEMBER float least_logit(float value) const { return order.nearest ? given.cut.low() : value; }
};

// How many buckets a list has by value, and how many tokens of one bucket can be sorted.
#define BUCKETS 256
#define BUCKET_CAPACITY 256

// The list in buckets.
struct Buckets {
    // For each bucket, the sum of what its tokens add to the mass, each by itself and rounded down.
    u64 masses[BUCKETS];
    u64 keys[BUCKET_CAPACITY];
    u64 sorted[BUCKET_CAPACITY];
    u32 counts[BUCKETS];
    // The mass and the number of listed tokens before the bucket in which the goal may be reached, and its index.
    u64 mass_before;
    u32 count_before;
    u32 bucket;
    // How many tokens of that bucket are in `keys`.
    u32 count;
};

// How many tiles may be open.
#define MAX_OPEN_TILES 1536

// The weights of the tiles' first and second tokens by bins of their range, and the open tiles (nucleus_list.cuh).
struct NucleusBins {
    alignas(16) u32 bins[BINS];
    // The bin that holds the threshold.
    u32 bin;
    // `alone` counts the listed first tokens of tiles that are not open; `count` counts the open tiles.
    u32 alone;
    u32 count;
    u32 open[MAX_OPEN_TILES];
};

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

// The shared memory of a search. A block runs one search at a time. The blocks of a row each have a
// copy of the search and of the counts by levels, and all copies are equal; the first block alone has the list and what
// follows from it.
struct SearchStorage {
    Search search;
    RowReduceStorage reduce;
    // Per warp, the sums over its threads' levels.
    ApproxSums level_sums[32];
    // A bit for each token of a tile, set for the tokens of one value.
    u32 tied_tokens[MASK_WORDS];
    // The three are never needed at once: a short nucleus is listed before levels are counted, and a list is divided
    // into buckets once the counts are no longer needed.
    union {
        // The number of tokens at each level; after bracket_goal, the number down to each level. The last 32 counters,
        // one for each lane, take what lies outside the range.
        alignas(16) u32 level_counts[LEVELS + 32];
        NucleusBins nucleus;
        Buckets buckets;
    };
    // A row is searched only once it has no candidate list any more.
    union {
        // The keys of the tokens in the bracket.
        alignas(16) u64 keys[LIST_CAPACITY];
        CandidateList candidates;
    };
};

// A row under a search.
template <class V>
struct SearchedRow {
    const Step& step;
    u32 row;
    const V& view;
    SearchStorage& storage;

    // The blocks that search the row.
    DEVICE_MEMBER RowBlocks blocks() const { return RowBlocks::of(storage.reduce); }

    // Visits the ones of `tiles` that hold tokens at or above a value, as visit_tiles does. Logits outside the given
    // set become -inf or NaN.
    template <bool PLAIN, class Inside, class After>
    DEVICE_MEMBER void visit(float value, Inside inside, After after, StridedTiles tiles) const {
        const Search& search = storage.search;
        visit_tiles<true>(
            view, search.maxima, search.least_logit(value),
            [&](u32 tile, float maximum, float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
                clamp_infinite(maximum, z);
                if (!PLAIN && search.needs_key_test) {
#pragma unroll
                    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                        u64 key = make_key(z[j] + 0.0f, tile * TILE + view.offset(lane_id(), j));
                        z[j] = search.given.cut.contains(key) ? z[j] : -INF_F32;
                    }
                }
                inside(tile, maximum, z, owns_tile);
            },
            after, tiles);
    }
};
