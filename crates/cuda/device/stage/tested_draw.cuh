// tested_draw.cuh: draws the token of a row without the cut of its top-p and its top-k (rules D1, F1, M4); device
// functions of the blocks of a row.
//
// Computes   the token of a row whose last filters are top-p, top-k or both, which min-p may follow
// Never      looks for the last token that top-p keeps; decides by an approximate sum what its error leaves open
// Twins      none: the token is the one that kept_set.cuh and race.cuh find | why docs/stages/draw.md
// Traffic    as of a race, for a short top-k a read of the row before it; then usually one read of the tiles that have
//            tokens before its winner
// Requires   the row's survey; all threads of the row's blocks, whole warps
//
// Both filters keep a prefix of the set that they are given. The winner of the race over that set also wins among any
// prefix that holds it, because scores do not depend on the prefix. So the winner is drawn first and tested afterwards:
// top-p keeps a token if the tokens before it weigh less than the goal, and top-k if they are fewer than k. Approximate
// weights decide, unless their sum is next to the goal; numbers of tokens are exact.
//
//     for a short top-k, or a top-p of the first k tokens: count tokens by levels; race down to the level of the kth
//     winner = the race's winner among the tokens that may be kept
//     one read: count and weigh the tokens before the winner
//     the winner is kept: it is the row's token
//     it is dropped: race again among the tokens before it. A block alone has weighed what is before the likely winner,
//         too, since another read would take it long
//     a sum is next to the goal: the caller finds the cut by a search, and draws from the kept tokens
//
// The share of the mass that lies before a winner is uniformly distributed between 0 and the share of the tokens raced.
// So the number of winners that are dropped has a Poisson distribution with mean -ln(share of the mass that is kept):
// at top-p 0.9, one row in ten drops its first winner. Of these, the likely winner spares all but some 4 % the second
// read.
//
// A row takes the latency of its dependent loads, and of the code that it meets for the first time. So what the request
// says is read before the survey ends, few functions are called, and blocks exchange words without a cluster's barrier.
#pragma once

#include "math/logprob_modes.cuh"
#include "block/race.cuh"
#include "stage/kept_set.cuh"

// How many winners are tested before the row is searched instead.
#define MOST_TESTS 6

// The mass of the tokens before a pivot is within 2^-16 of what `weigh_before` returns. Relative errors, at most:
//     2^-18.6    distances to the first token: four roundings, two of the rule's and two here, change a weight at a
//                distance of d octaves by d 2^-22.5 in all; weighted by mass, 2^20 tokens below a first one have a mean
//                d of at most 15.1
//     2^-16.6    additions of floats: 7 in a tile, 32 tiles, and one for every 32 tiles of a warp, at most 128
//     2^-23      what is cut off where the weights of edited tokens are added up as integers, at most 2^20 of them in
//                units of 2^-43
//     2^-20      the rule rounds weights to 2^-28 of their tile's largest; a tile has 256
//     2^-21      the device's exponential, and 2^-22 the rule's
#define WEIGHED_BITS 16

// The mass of the first k tokens is within 2^-12 of what levels of at most an octave give, the kth one's level aside:
// each token is rounded to 2^-15 of its level's largest weight.
#define LEVELLED_BITS 12

// The levels that tokens are counted by, and how often a level is divided again.
#define TEST_LEVELS 255
#define LEVEL_ROUNDS 5
// A level's word has the number of its tokens above this bit, and the sum of their parts below it.
#define LEVEL_COUNT_SHIFT 40
// A part is a token's weight in units of 2^-14 of the largest of its level.
#define LEVEL_PART_BITS 14
#define LEVEL_PARTS bits_float((127 + LEVEL_PART_BITS) << 23)
// How many tiles of a block's have parts that add up to less than 2^32.
#define MOST_WEIGHED_TILES 1000
// The words that a block sends of a range: of each level, and of its values.
#define TEST_WORDS (TEST_LEVELS + 1)
static_assert(TEST_WORDS * MAX_ROW_BLOCKS <= LIST_CAPACITY && 4 * TEST_LEVELS <= LEVELS,
              "they and their running sums lie where a search's do");

// Where the level of the kth token has more than this many times k tokens, the row is searched.
#define MOST_TIMES_TOP_K 4

// What `draw_and_test` takes from a row's request.
struct TestedChain {
    // Whether the row's token is drawn without the cut: its filters allow it, and no output shows what they keep.
    bool is_tested;
    // Whether top-p acts.
    bool by_mass;
    // Whether top-p takes its share of the mass of the first `top_k` tokens.
    bool of_first_tokens;
    // Whether top-p takes its share of the mass of the row, and the survey has summed that mass.
    bool has_sums;
    bool is_joint;
    // Whether min-p acts after top-p or beside it.
    bool has_min_p;
    // ~0 if top-k does not act.
    u32 top_k;
    u32 top_p;
    float min_p;
    // The filters that act before these, whose cut is found first.
    u64 before;

    TestedChain() = default;
    DEVICE_MEMBER TestedChain(const Step& step, const Params& params)
        : by_mass(false), of_first_tokens(false), is_joint(params.features & FEATURE_JOINT), has_min_p(false),
          top_k(~0u), top_p(params.filter_numbers[FILTER_TOP_P]), min_p(min_p_threshold(params)), before(0) {
        is_tested = params.features & FEATURE_TESTED_DRAW && step.kept_bits == nullptr &&
                    !(step.flags & STEP_NO_CANDIDATES) &&
                    (!(params.features & FEATURE_LOGPROBS) ||
                     (params.features & FEATURE_LOGPROB_SUMS && !has_second_logprob_mode(params)));
        if (!is_tested) {
            return;
        }
        u64 seen = 0;
        u32 shift = 0;
        for (u64 chain = params.filter_chain; chain != 0; chain >>= 4, shift += 4) {
            const u32 filter = (u32)chain & 15;
            seen |= (u64)filter << shift;
            if (filter == FILTER_TOP_P) {
                by_mass = true;
                of_first_tokens = !is_joint && top_k != ~0u;
            } else if (filter == FILTER_TOP_K && before == 0) {
                const u32 k = params.filter_numbers[FILTER_TOP_K];
                top_k = k < step.vocab ? k : ~0u;
            } else if (filter == FILTER_MIN_P && (is_joint || !has_filter(chain >> 4, FILTER_TOP_P))) {
                has_min_p = true;
            } else {
                before = seen;
                top_k = ~0u;
            }
        }
        has_sums = by_mass && !of_first_tokens && params.features & FEATURE_FILTER_SUMS && (before == 0 || is_joint);
    }

    static DEVICE_MEMBER bool has_filter(u64 chain, u32 filter) {
        bool has = false;
        for (; chain != 0; chain >>= 4) {
            has |= (chain & 15) == filter;
        }
        return has;
    }

    // Whether levels bound the tokens that are raced: where the first winner would likely be dropped, or top-p's mass
    // follows from them.
    DEVICE_MEMBER bool uses_levels(u32 vocab) const {
        return before == 0 && (of_first_tokens || (top_k < vocab / 4 && (!by_mass || has_sums)));
    }
};

// A range of tokens and its division into levels: by values, or where all tokens have the value `to`, by ids.
struct TestLevels : LevelRange {
    // How many neighbouring tiles a level has; 0 if levels divide values.
    u32 tiles_per_level;

    DEVICE_MEMBER bool contains(float z) const { return z < from.value && z >= to.value; }
    // Whether the roundings of a division into equal parts are as small as `least` and `least_above` take them.
    DEVICE_MEMBER bool has_bounds() const { return !linear || width < bits_float((127 + 100) << 23); }
    // Bounds of a level's values, the lower one certain.
    DEVICE_MEMBER float most(u32 level) const { return tiles_per_level != 0 ? to.value : top_of(level); }
    DEVICE_MEMBER float least(u32 level) const {
        return level == TEST_LEVELS - 1 || tiles_per_level != 0 ? to.value : max_f32(to.value, bound(level, true));
    }
    // A value that all tokens of a level lie below.
    DEVICE_MEMBER float least_above(u32 level) const {
        const float value = level == 0 ? from.value : bound(level - 1, false);
        return value < from.value ? value : from.value;
    }
    // The least value of the levels down to one; by a warp.
    DEVICE_MEMBER float exact_least(u32 level) const { return end(level, TEST_LEVELS - 1); }
    // No token down to a level has a smaller key.
    DEVICE_MEMBER u64 last_key(u32 level) const {
        return tiles_per_level != 0 ? make_key(to.value, (level + 1) * tiles_per_level * TILE - 1)
                                    : last_key_at(least(level));
    }
    // Each token with this key or a larger one lies above a level.
    DEVICE_MEMBER u64 last_key_above(u32 level) const {
        return tiles_per_level != 0 && level != 0 ? last_key(level - 1) : last_key_at(least_above(level));
    }
    // How much the weights within a level differ, in octaves.
    DEVICE_MEMBER float octaves(float log2e_over_t) const {
        return tiles_per_level != 0 ? 0.0f : LevelRange::octaves(log2e_over_t);
    }
    // Divides the range by values, once its ends are set; `by_values` and `value_bound` as `divide` has them.
    DEVICE_MEMBER void divide_values(bool by_values, float value_bound) {
        tiles_per_level = 0;
        divide(by_values, false, value_bound, TEST_LEVELS - 1);
    }
    // Makes it the range of the tokens of one value.
    DEVICE_MEMBER void divide_ids(float value, u32 tiles) {
        from.value = from_ordered_bits(ordered_bits(value) + 1);
        to.value = value;
        tiles_per_level = (tiles + TEST_LEVELS - 1) / TEST_LEVELS;
    }

  private:
    // A bound of the values down to a level: none of them is less, or with `below` unset, no value of the next level is
    // as large. `level` rounds distances to `top` by at most 2^-22, and the difference here is rounded by half a unit.
    DEVICE_MEMBER float bound(u32 level, bool below) const {
        if (!linear) {
            return from_ordered_bits(bits - ((level + 1) << shift) + 1);
        }
        const float slack = bits_float((127 - 20) << 23), distance = (int_to_float((int)level) + 0.5f) * width;
        const float value = top - distance * (below ? 1.0f + slack : 1.0f - slack);
        return from_ordered_bits(ordered_bits(value) + (below ? ~1u : 2u));
    }
};

// A token that others are compared with. Only in its own tile do ids decide about equal logits.
struct Pivot {
    float logit;
    // The next larger float.
    float next;
    u32 tile;
    u32 offset;

    DEVICE_MEMBER explicit Pivot(u64 key)
        : logit(key_logit(key)), next(from_ordered_bits(ordered_bits(logit) + 1)), tile(key_id(key) / TILE),
          offset(key_id(key) % TILE) {}

    // The least logit of a tile's tokens before the pivot; in its own tile tokens with an equal logit are left out.
    DEVICE_MEMBER float least(u32 of_tile) const { return of_tile < tile ? logit : next; }
};

// A set of first tokens: how many they are, and their approximate mass in the units of SetMass.
struct TokenSums {
    u64 count;
    u64 mass;
};

// Bounds of the set that a row's filters keep.
struct KeptBounds {
    // No kept token has a key below `last`. Each token whose key is at least `certain` is kept.
    u64 last;
    u64 certain;
    // Whether the bounds are known, and near.
    bool are_near;
};

// Bounds of the mass that the tokens before a kept one must not reach.
struct TestedGoal {
    u64 least;
    u64 most;

    TestedGoal() = default;
    // A goal that no mass reaches.
    static DEVICE_MEMBER TestedGoal none() {
        TestedGoal goal;
        goal.least = goal.most = 1ull << 63;
        return goal;
    }
    DEVICE_MEMBER TestedGoal(u32 top_p, u64 least_total, u64 most_total)
        : least(target_mass(top_p, least_total)), most(target_mass(top_p, most_total)) {}

    static DEVICE_MEMBER u64 error_of(u64 mass, u32 bits) { return (mass >> bits) + 1; }
    // Whether a token is certainly kept, or certainly dropped, if the tokens before it weigh this much, give or take a
    // relative error of 2^-bits.
    DEVICE_MEMBER bool keeps(u64 mass, u32 bits) const { return mass + error_of(mass, bits) < least; }
    DEVICE_MEMBER bool drops(u64 mass, u32 bits) const { return mass >= most + error_of(mass, bits); }
};

// The knowledge of a block that tests a row's draw; in shared memory, because the functions below leave no registers
// for it.
struct TestedDraw {
    // Known before the survey ends.
    TestedChain chain;
    RngStream rng;
    // The row's records; the id of its first token matters only if filters precede the tested ones.
    const TileRecord* records;
    const u64* filter_sums;
    u32 tiles;
    RowSummary summary;
    Scales scales;
    // The range whose levels are counted.
    TestLevels range;
    // The first level with tokens that may be dropped, and the last one with tokens that may be kept; TEST_LEVELS if no
    // level has any.
    u32 certain_level;
    u32 last_level;
    // The tokens above the range.
    TokenSums before;
    // Ordered bits of the largest and the least value of the range that was counted.
    u32 most_bits;
    u32 least_bits;
    KeptBounds bounds;
    // The row's mass by the survey's sums; 0 until the block knows it.
    u64 mass;
    // Where top-p acts.
    TestedGoal goal;
    // The best score of a token that may win the race among those before its winner, with its id.
    u64 second_leader;
    // The token, once it is certain.
    u32 token;
};

// The row's mass by the survey's sums, within 2^-19. Not inlined, so that its code is there once.
DEVICE_NOINLINE u64 survey_mass(const TestedDraw& draw, ReduceStorage& storage) {
    auto tile_sum_of = [&](u32 tile) INLINE { return TileSum{draw.filter_sums[tile], draw.records[tile].maximum, 0}; };
    return row_mass(storage, draw.tiles, key_logit(draw.summary.first_key), draw.scales.filter_log2e_over_t,
                    tile_sum_of);
}

// A row under test, as one of its blocks sees it. The referents lie in shared memory.
template <class T, bool EDITED>
struct TestedRow {
    const EditedRow<T, EDITED>& view;
    TestedDraw& draw;
    SearchStorage& search;

    DEVICE_MEMBER RowBlocks blocks() const { return RowBlocks::of(search.reduce); }
    DEVICE_MEMBER float first() const { return key_logit(draw.summary.first_key); }
    DEVICE_MEMBER ApproxWeights weights() const {
        return ApproxWeights(first(), draw.scales.filter_log2e_over_t, !draw.chain.by_mass);
    }
    DEVICE_MEMBER RowRecords records() const { return RowRecords(draw.records, draw.filter_sums, draw.tiles); }
    DEVICE_MEMBER Maxima maxima() const {
        return Maxima{&draw.records->maximum, sizeof(TileRecord) / sizeof(float), draw.tiles};
    }

    // Replaces the threads' numbers by their sums over all threads of the row's blocks, in their `nth` exchange.
    template <u32 N>
    DEVICE_MEMBER void add_up(TokenSums (&sums)[N], u32 nth) const {
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            store_warp_sum(search.reduce.parts[2 * i], sums[i].count);
            store_warp_sum(search.reduce.parts[2 * i + 1], sums[i].mass);
        }
        // RAW on parts: lane 0 of each warp wrote its warp's, all warps read all of them.
        __syncthreads();
        u64 words[2 * N];
#pragma unroll
        for (u32 i = 0; i < 2 * N; i++) {
            words[i] = total_of_warps(search.reduce.parts[i]);
        }
        blocks().share(words, nth);
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            sums[i] = TokenSums{warp_sum(words[2 * i]), warp_sum(words[2 * i + 1])};
        }
    }

    // Sets the goal, for all threads, whose total lies between two masses.
    DEVICE_MEMBER void set_goal(u64 least_total, u64 most_total) const {
        if (threadIdx.x == 0) {
            draw.goal = TestedGoal(draw.chain.top_p, least_total, most_total);
        }
        // RAW on draw.goal: thread 0 wrote it, all threads read it.
        __syncthreads();
    }

    // Returns the key of the token that wins the race among those down to the key `last`, in every thread; 0 if there
    // is none.
    DEVICE_MEMBER u64 race_among(RaceStorage& storage, u64 last, u32 nth) const {
        const GivenSet set{Cut{full_cut().first, last}, first(), true};
        const u64 leader =
            race_own_tiles(blocks().tiles(), storage, records(), view, draw.rng, set, draw.scales.log2e_over_t);
        u64 words[] = {leader, leader != 0 ? make_key(view.logit(key_id(leader)), key_id(leader)) : 0};
        blocks().share(words, nth);
        const u64 best = warp_max(words[0]);
        return __shfl_sync(FULL_MASK, words[1], __ffs((int)__ballot_sync(FULL_MASK, words[0] == best)) - 1);
    }

    // Returns the key of a token that likely wins the race among the tokens before its winner: the best of the tiles'
    // first tokens and first arrivals; the winner again if there is none. By a block alone.
    DEVICE_MEMBER u64 likely_second(u64 winner) const {
        const Origin origin(first());
        const float log2e_over_t = draw.scales.log2e_over_t;
        const RngStream rng = draw.rng;
        if (threadIdx.x == 0) {
            draw.second_leader = 0;
        }
        // RAW on second_leader: thread 0 cleared it, all threads raise it.
        __syncthreads();
        auto leader_of = [&](float z, u32 id, float log2_arrival) INLINE {
            return make_key(z, id) > winner ? make_leader(exponent(z, origin, log2e_over_t) - log2_arrival, id) : 0;
        };
        records().for_each([&](u32 tile, const TileRecord& record) INLINE {
            u64 best = 0;
            if (record.maximum >= key_logit(winner)) {
                best = leader_of(record.maximum, tile * TILE + (record.packed & 255), record.log2_max_arrival);
                const u32 id = tile * TILE + first_offset(tile_words(rng, tile));
                const u64 own = id < view.row.vocab ? leader_of(view.logit(id), id, record.log2_first_arrival) : 0;
                best = own > best ? own : best;
            }
            raise_by_warp(draw.second_leader, best);
        });
        // RAW on second_leader: all threads raised it, all threads read it.
        __syncthreads();
        const u32 id = key_id(draw.second_leader);
        return draw.second_leader == 0 ? winner : make_key(view.logit(id), id);
    }

    // Counts and weighs the tokens before each of N pivots, the first one after the others, in every thread; in the
    // `nth` exchange.
    template <u32 N>
    DEVICE_MEMBER void weigh_before(const u64 (&keys)[N], TokenSums (&sums)[N], u32 nth) const {
        const ApproxWeights weights = this->weights();
        const RowBlocks blocks = this->blocks();
        // A lane's sums over 32 tiles of its warp, and over all of them.
        float parts[N] = {}, sums_of_parts[N] = {};
        u32 counts[N] = {};
        const UntouchedRow<T, EDITED> untouched{view};
        visit_tiles<true, 2>(
            untouched, maxima(), key_logit(keys[0]),
            [&](u32 tile, float maximum, float (&z)[ITEMS_PER_LANE], bool) INLINE {
                clamp_infinite(maximum, z);
                float own_weights[ITEMS_PER_LANE];
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    own_weights[j] = weights.of(z[j]);
                }
#pragma unroll
                for (u32 i = 0; i < N; i++) {
                    const Pivot pivot(keys[i]);
                    const float least = pivot.least(tile);
                    float own = 0.0f;
#pragma unroll
                    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                        const bool is_before = z[j] >= least;
                        own += is_before ? own_weights[j] : 0.0f;
                        counts[i] += is_before;
                    }
                    if (tile == pivot.tile) {
                        u32 tied = 0;
#pragma unroll
                        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                            tied += z[j] + 0.0f == pivot.logit && view.offset(lane_id(), j) < pivot.offset;
                        }
                        own = fma_rn(weights.of(pivot.logit), int_to_float((int)tied), own);
                        counts[i] += tied;
                    }
                    parts[i] += own;
                }
            },
            [&](u32, float, bool) INLINE {
#pragma unroll
                for (u32 i = 0; i < N; i++) {
                    sums_of_parts[i] += parts[i];
                    parts[i] = 0.0f;
                }
            },
            blocks.tiles());
        const float UNITS = bits_float((127 + MASS_BITS) << 23);
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            sums[i] = TokenSums{counts[i], (u64)((sums_of_parts[i] + parts[i]) * UNITS)};
        }
        if constexpr (EDITED) {
            each_touched(view, draw.tiles, blocks.rank + blocks.count * warp_id(), blocks.count * warp_count(),
                         [&](float z, u32 id) INLINE {
                             const u64 key = make_key(z, id), mass = (u64)(weights.of(z) * UNITS);
#pragma unroll
                             for (u32 i = 0; i < N; i++) {
                                 sums[i].count += key > keys[i];
                                 sums[i].mass += key > keys[i] ? mass : 0;
                             }
                         });
        }
        add_up(sums, nth);
    }

    // Counts the row's tokens at each level of `draw.range`, and with `weighs` adds up their parts. The words of all
    // blocks are in `search.keys`.
    DEVICE_MEMBER void count_levels(u32 round) const {
        const RowBlocks blocks = this->blocks();
        const ApproxWeights weights = this->weights();
        const bool weighs = draw.chain.by_mass;
        const TestLevels range = draw.range;
        u32* counts = search.level_counts;
        u32* masses = counts + TEST_LEVELS;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < 2 * TEST_LEVELS; i += blockDim.x) {
            counts[i] = 0;
        }
        if (threadIdx.x == 0) {
            draw.most_bits = 0;
            draw.least_bits = ~0u;
        }
        // RAW on counts: all threads cleared them, all threads add to them. RAW on the values: thread 0 cleared them.
        __syncthreads();
        visit_tiles(
            view, maxima(), range.to.value,
            [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
                if (range.tiles_per_level != 0) {
                    u32 own = 0;
#pragma unroll
                    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                        own += range.contains(z[j]);
                    }
                    own = __reduce_add_sync(FULL_MASK, own);
                    if (lane_id() == 0) {
                        atomicAdd(&counts[tile / range.tiles_per_level], own);
                        atomicAdd(&masses[tile / range.tiles_per_level], own << LEVEL_PART_BITS);
                    }
                    return;
                }
                // The first range has many values.
                if (round != 0) {
                    u32 most_bits = 0, least_bits = ~0u;
#pragma unroll
                    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                        const u32 bits = ordered_bits(z[j] + 0.0f);
                        const bool is_inside = range.contains(z[j]);
                        most_bits = is_inside && bits > most_bits ? bits : most_bits;
                        least_bits = is_inside && bits < least_bits ? bits : least_bits;
                    }
                    most_bits = __reduce_max_sync(FULL_MASK, most_bits);
                    least_bits = __reduce_min_sync(FULL_MASK, least_bits);
                    if (lane_id() == 0) {
                        atomicMax(&draw.most_bits, most_bits);
                        atomicMin(&draw.least_bits, least_bits);
                    }
                }
                u32 levels[ITEMS_PER_LANE], least = TEST_LEVELS, most = 0;
                bool all = true;
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    levels[j] = range.level(z[j], TEST_LEVELS - 1);
                    all &= range.contains(z[j]);
                    least = levels[j] < least ? levels[j] : least;
                    most = levels[j] > most ? levels[j] : most;
                }
                auto part_of = [&](float z, u32 level)
                                   INLINE { return LEVEL_PARTS * weights.relative(z, range.top_of(level)); };
                least = __reduce_min_sync(FULL_MASK, least);
                if (__all_sync(FULL_MASK, all && most == least)) {
                    // All lanes would add to one counter, one after the other.
                    float own = 0.0f;
#pragma unroll
                    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                        own += weighs ? part_of(z[j], least) : 0.0f;
                    }
                    const u32 mass = __reduce_add_sync(FULL_MASK, float_to_u32(own));
                    if (lane_id() == 0) {
                        atomicAdd(&counts[least], (u32)TILE);
                        atomicAdd(&masses[least], mass);
                    }
                    return;
                }
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    if (range.contains(z[j])) {
                        atomicAdd(&counts[levels[j]], 1u);
                        if (weighs) {
                            atomicAdd(&masses[levels[j]], float_to_u32(part_of(z[j], levels[j])));
                        }
                    }
                }
            },
            [](u32, float, bool) INLINE {}, blocks.tiles());
        // RAW on counts and values: all threads added to them, all threads send them.
        __syncthreads();
        auto word = [&](u32 level) INLINE {
            return level == TEST_LEVELS ? (u64)draw.most_bits << 32 | draw.least_bits
                                        : (u64)counts[level] << LEVEL_COUNT_SHIFT | masses[level];
        };
        blocks.share_words<TEST_WORDS>(search.keys, round, word);
    }

    // Whether the tokens that `count_levels` counted, in any round but the first, have one value, which is then in
    // `value`.
    DEVICE_MEMBER bool has_one_value(float& value) const {
        u32 most_bits = 0, least_bits = ~0u;
        for (u32 block = 0; block < cluster_nctarank(); block++) {
            const u64 word = word_of_block(block, TEST_LEVELS);
            most_bits = (u32)(word >> 32) > most_bits ? (u32)(word >> 32) : most_bits;
            least_bits = (u32)word < least_bits ? (u32)word : least_bits;
        }
        value = from_ordered_bits(most_bits);
        return most_bits == least_bits;
    }

    // Finds the levels between which the filters' last token lies, by what `count_levels` left; sets
    // `draw.certain_level`, `draw.last_level` and the sums that `upto` returns, for all threads.
    DEVICE_MEMBER void find_levels() const {
        const TestLevels& range = draw.range;
        const TestedGoal& goal = draw.goal;
        const u64 k = draw.chain.top_k;
        const bool weighs = draw.chain.by_mass;
        const ApproxWeights weights = this->weights();
        const u32 chunk = (TEST_LEVELS + blockDim.x - 1) / blockDim.x, start = threadIdx.x * chunk;
        const u32 end = start + chunk < TEST_LEVELS ? start + chunk : TEST_LEVELS;
        const float UNITS = bits_float((127 + MASS_BITS - LEVEL_PART_BITS) << 23);
        if (threadIdx.x == 0) {
            draw.certain_level = draw.last_level = TEST_LEVELS;
        }
        TokenSums own{0, 0};
#pragma unroll 1
        for (u32 level = start; level < end; level++) {
            const u64 word = word_of(level);
            const float parts = u64_to_float(word & ((1ull << LEVEL_COUNT_SHIFT) - 1));
            own.count += word >> LEVEL_COUNT_SHIFT;
            own.mass += weighs ? (u64)(parts * weights.of(range.most(level)) * UNITS) : 0;
            upto(level) = own;
        }
        // The barriers inside also serve the levels: thread 0 set them, all threads lower them.
        const BlockScan counts = block_scan(search.reduce, own.count), masses = block_scan(search.reduce, own.mass);
        const TokenSums before{draw.before.count + counts.before, draw.before.mass + masses.before};
#pragma unroll 1
        for (u32 level = start; level < end; level++) {
            TokenSums& sums = upto(level);
            sums = TokenSums{before.count + sums.count, before.mass + sums.mass};
            if (sums.count >= k || !goal.keeps(sums.mass, LEVELLED_BITS)) {
                atomicMin(&draw.certain_level, level);
            }
            if (sums.count >= k || goal.drops(sums.mass, LEVELLED_BITS)) {
                atomicMin(&draw.last_level, level);
            }
        }
        // RAW on the levels and `upto`: all threads lowered and wrote them, all threads read them.
        __syncthreads();
    }

    // Bounds the set that the filters keep, by levels of values. Where top-p takes the mass of the first k tokens, sets
    // `draw.goal`, too.
    //
    //     divide the values from the first down to where the last token likely lies into levels
    //     count and weigh the tokens of each; find the levels that may hold the last one
    //     it lies below: continue there
    //     they have many tokens: divide them again; once all of these have one value, by their ids
    DEVICE_MEMBER KeptBounds bound_kept() const {
        const u64 all = full_cut().last, k = draw.chain.top_k;
        const bool weighs = draw.chain.by_mass, of_first_tokens = draw.chain.of_first_tokens;
        const float first = this->first(), log2e_over_t = draw.scales.filter_log2e_over_t;
        // The first k tokens reach the least maximum if k is at most the number of tiles.
        const GivenSet row_set{full_cut(), first, true};
        float low = draw.summary.least_maximum;
        low = k <= draw.tiles ? low : spread_low(row_set, low);
        TestLevels& range = draw.range;
        if (threadIdx.x == 0) {
            draw.before = TokenSums{0, 0};
            if (!weighs || of_first_tokens) {
                draw.goal = TestedGoal::none();
            }
            range.from.value = from_ordered_bits(ordered_bits(first) + 1);
            range.to.value = max_f32(low, MIN_TOKEN_VALUE);
            range.divide_values(true, first);
            if (draw.summary.least_maximum == first) {
                range.divide_ids(first, draw.tiles);
            }
        }
        KeptBounds bounds{all, ~0ull, false};
        bool knows_goal = !of_first_tokens, is_extended = false;
        // Whether the last token certainly lies in the range.
        bool is_inside = false;
#pragma unroll 1
        for (u32 round = 0; round < LEVEL_ROUNDS; round++) {
            // RAW on draw: thread 0 wrote the range and the sums of the tokens above it, all threads read both.
            __syncthreads();
            if (!range.has_bounds() ||
                (weighs && !is_inside &&
                 (range.octaves(log2e_over_t) > 1.0f || draw.tiles / cluster_nctarank() >= MOST_WEIGHED_TILES))) {
                return bounds;
            }
            count_levels(round);
            float value;
            if (is_inside && range.tiles_per_level == 0 && has_one_value(value)) {
                // WAR on the range and the words, as below.
                blocks().sync();
                if (threadIdx.x == 0) {
                    range.divide_ids(value, draw.tiles);
                }
                continue;
            }
            bool again = false;
#pragma unroll 1
            do {
                find_levels();
                // Without a goal, these are the levels of the kth token, from which the goal follows.
                again = !knows_goal && draw.last_level < TEST_LEVELS;
                if (again) {
                    set_goal_of_first_tokens();
                    knows_goal = true;
                }
            } while (again);
            const u32 certain = draw.certain_level, last = draw.last_level;
            const TokenSums before = draw.before;
            TokenSums above = upto(TEST_LEVELS - 1);
            float top = range.to.value, end;
            is_inside = last < TEST_LEVELS;
            if (is_inside) {
                const TokenSums down_to_last = upto(last);
                above = certain != 0 ? upto(certain - 1) : before;
                if (weighs && !draw.goal.keeps(before.mass, LEVELLED_BITS)) {
                    // The goal may be reached above the range.
                    return KeptBounds{range.last_key(last), ~0ull, true};
                }
                const TokenSums between{down_to_last.count - above.count, down_to_last.mass - above.mass};
                bounds = KeptBounds{range.last_key(last), range.last_key_above(certain),
                                    between.count / MOST_TIMES_TOP_K <= k};
                const bool are_few = weighs ? between.mass <= down_to_last.mass / 8 : between.count <= k / 2 + 32;
                if (are_few || range.tiles_per_level != 0) {
                    return bounds;
                }
                top = certain == 0 ? range.from.value : range.exact_least(certain - 1);
                end = range.exact_least(last);
            } else {
                if (top <= MIN_TOKEN_VALUE) {
                    return weighs ? bounds : KeptBounds{all, all, true};
                }
                if (weighs && is_extended) {
                    return bounds;
                }
                // A range four times as deep, then all values.
                end = is_extended ? MIN_TOKEN_VALUE : max_f32(spread_low(row_set, low), MIN_TOKEN_VALUE);
            }
            // WAR on draw and the words: all threads of all blocks read them, the next round overwrites them.
            blocks().sync();
            if (threadIdx.x == 0) {
                draw.before = above;
                range.from.value = top;
                range.to.value = end;
                range.divide_values(!is_inside && !is_extended, first);
            }
            is_extended |= !is_inside;
        }
        return bounds;
    }

  private:
    // The sums of the tokens above the range and those down to a level. They lie where the counters of the levels did.
    DEVICE_MEMBER TokenSums& upto(u32 level) const { return ((TokenSums*)search.level_counts)[level]; }

    // Sets the goal of a top-p of the first k tokens, of which `find_levels` found the last one's level.
    DEVICE_MEMBER void set_goal_of_first_tokens() const {
        const TestLevels& range = draw.range;
        const ApproxWeights weights = this->weights();
        const u32 level = draw.last_level;
        const TokenSums above = level != 0 ? upto(level - 1) : draw.before;
        const float inside = u64_to_float(draw.chain.top_k - above.count) * bits_float((127 + MASS_BITS) << 23);
        const float top = fminf(range.most(level), first()), end = range.least(level);
        const u64 least = above.mass + (u64)(inside * weights.of(end));
        const u64 most = above.mass + (u64)(inside * weights.of(top));
        // WAR on draw: all threads read the levels, which are found again afterwards.
        __syncthreads();
        set_goal(least - TestedGoal::error_of(least, LEVELLED_BITS), most + TestedGoal::error_of(most, LEVELLED_BITS));
    }

    // The number of a level's tokens, and below LEVEL_COUNT_SHIFT the sum of their parts; over all blocks.
    DEVICE_MEMBER u64 word_of(u32 level) const {
        u64 word = 0;
        for (u32 block = 0; block < cluster_nctarank(); block++) {
            word += word_of_block(block, level);
        }
        return word;
    }
    DEVICE_MEMBER u64 word_of_block(u32 block, u32 word) const { return search.keys[block * TEST_WORDS + word]; }
};

// The steps of `draw_and_test`, not inlined, so that each has registers of its own.
template <class T, bool EDITED>
DEVICE_NOINLINE u64 race_among(const EditedRow<T, EDITED>& view, TestedDraw& draw, SearchStorage& search,
                               RaceStorage& race_storage, u64 last, u32 nth) {
    return TestedRow<T, EDITED>{view, draw, search}.race_among(race_storage, last, nth);
}
template <class T, bool EDITED>
DEVICE_NOINLINE TokenSums weigh_before(const EditedRow<T, EDITED>& view, TestedDraw& draw, SearchStorage& search,
                                       u64 key, u32 nth) {
    const u64 keys[] = {key};
    TokenSums sums[1];
    TestedRow<T, EDITED>{view, draw, search}.weigh_before(keys, sums, nth);
    return sums[0];
}
struct PairSums {
    TokenSums of_later;
    TokenSums of_other;
};
template <class T, bool EDITED>
DEVICE_NOINLINE PairSums weigh_before_both(const EditedRow<T, EDITED>& view, TestedDraw& draw, SearchStorage& search,
                                           u64 later, u64 other, u32 nth) {
    const u64 keys[] = {later, other};
    TokenSums sums[2];
    TestedRow<T, EDITED>{view, draw, search}.weigh_before(keys, sums, nth);
    return PairSums{sums[0], sums[1]};
}
template <class T, bool EDITED>
DEVICE_NOINLINE u64 likely_second(const EditedRow<T, EDITED>& view, TestedDraw& draw, SearchStorage& search,
                                  u64 winner) {
    return TestedRow<T, EDITED>{view, draw, search}.likely_second(winner);
}
template <class T, bool EDITED>
DEVICE_NOINLINE void bound_kept(const EditedRow<T, EDITED>& view, TestedDraw& draw, SearchStorage& search) {
    const KeptBounds bounds = TestedRow<T, EDITED>{view, draw, search}.bound_kept();
    if (threadIdx.x == 0) {
        draw.bounds = bounds;
    }
    // RAW on draw: thread 0 wrote it, all threads of the caller read it.
    __syncthreads();
}

// Draws a row's token and tests it. Returns whether the token is certain, in all threads of the row's blocks; then it
// is in `draw.token`.
template <class T, bool EDITED>
DEVICE_NOINLINE bool draw_and_test(const Step& step, u32 row, int slot, const EditedRow<T, EDITED>& view,
                                   FilterStorage& storage, RaceStorage& race_storage, TestedDraw& draw) {
    const TestedChain& chain = draw.chain;
    const TestedRow<T, EDITED> tested{view, draw, storage.search};
    u64 last = full_cut().last;
    u32 exchanges = 0;
    if (chain.before != 0) {
        find_kept_set<T, EDITED>(step, row, slot, draw.summary.first_key, chain.before, draw.scales.filter_log2e_over_t,
                                 storage);
        last = storage.kept.cut.last;
    }
    if (!tested.weights().are_bounded()) {
        return false;
    }
    // Without the survey's sums, the first read of weights adds up the mass of the tokens that top-p is given.
    bool knows_goal = !chain.by_mass || chain.of_first_tokens || chain.has_sums;
    const u64 given_last = chain.is_joint ? full_cut().last : last;
    if (chain.has_sums) {
        const u64 mass = draw.mass != 0 ? draw.mass : survey_mass(draw, storage.search.reduce);
        tested.set_goal(mass_lower_bound(mass), mass_upper_bound(mass));
    }
    u64 certain = ~0ull;
    if (chain.uses_levels(view.row.vocab)) {
        bound_kept(view, draw, storage.search);
        if (!draw.bounds.are_near) {
            return false;
        }
        last = draw.bounds.last > last ? draw.bounds.last : last;
        certain = draw.bounds.certain;
    }
    if (chain.has_min_p) {
        const u64 of_min_p = min_p_cut(tested.first(), draw.scales.filter_log2e_over_t, chain.min_p).last;
        last = of_min_p > last ? of_min_p : last;
    }
#pragma unroll 1
    for (u32 test = 0; test < MOST_TESTS; test++) {
        const u64 winner = race_among(view, draw, storage.search, race_storage, last, exchanges++);
        if (winner == 0) {
            // Only where no token of the row may be kept, or a row is written meanwhile.
            return false;
        }
        if (threadIdx.x == 0) {
            draw.token = key_id(winner);
        }
        bool is_kept = winner >= certain;
        u64 dropped = winner;
        if (!is_kept) {
            auto keeps = [&](const TokenSums& before) INLINE {
                return before.count < chain.top_k && (!chain.by_mass || draw.goal.keeps(before.mass, WEIGHED_BITS));
            };
            auto drops = [&](const TokenSums& before) INLINE {
                return before.count >= chain.top_k || (chain.by_mass && draw.goal.drops(before.mass, WEIGHED_BITS));
            };
            TokenSums before;
            if (!knows_goal) {
                const PairSums sums =
                    weigh_before_both(view, draw, storage.search, given_last - 1, winner, exchanges++);
                const u64 mass = sums.of_later.mass, error = TestedGoal::error_of(mass, WEIGHED_BITS);
                tested.set_goal(mass - error, mass + error);
                before = sums.of_other;
                knows_goal = true;
            } else if (tested.blocks().count == 1) {
                const u64 second = likely_second(view, draw, storage.search, winner);
                const PairSums sums = weigh_before_both(view, draw, storage.search, winner, second, 0);
                before = sums.of_later;
                certain = second != winner && keeps(sums.of_other) && second < certain ? second : certain;
                dropped = drops(sums.of_other) ? second : winner;
            } else {
                before = weigh_before(view, draw, storage.search, winner, exchanges++);
            }
            is_kept = keeps(before);
            if (!is_kept && !drops(before)) {
                return false;
            }
        }
        if (is_kept) {
            // WAR on the request's edits: every block has read them, and the first one advances the request. RAW on
            // draw.token: thread 0 wrote it, all threads of the caller read it.
            sync_blocks(EDITED ? cluster_nctarank() : 1);
            return true;
        }
        last = dropped + 1;
    }
    return false;
}
