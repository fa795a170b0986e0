// tested_draw.cuh: draws the token of a row without the cut of its top-p or its long top-k (rules D1, F1, M4); device
// functions of the blocks of a row.
//
// Computes   the token of a row that ends with such a filter, which min-p may follow
// Never      looks for the last token that the filter keeps; decides by an approximate sum what its error leaves open
// Twins      none: the token is the one that kept_set.cuh and race.cuh find | why docs/stages/draw.md
// Traffic    as of a race; then usually one read of the tiles that have tokens before its winner
// Requires   the row's survey; all threads of the row's blocks, whole warps
//
// Both filters keep a prefix of the set that they are given. The winner of the race over that set also wins among any
// prefix that holds it, because scores do not depend on the prefix. So the winner is drawn first and tested afterwards:
// top-p keeps a token if the tokens before it weigh less than the goal. Approximate weights decide, unless their sum is
// next to the goal. For top-k each token weighs 1 and the goal is k, so the sums are exact.
//
//     winner = the race's winner among the tokens that may be kept
//     second = a token that likely wins among those before the winner
//     one read: add up the weights of the tokens before the winner, and of those before `second`
//     the winner is kept: it is the row's token
//     it is dropped: race again among the tokens before it. If the new winner is not after `second`, and that one is
//         kept, so
//                    is the new winner; otherwise read again
//     a sum is next to the goal: the caller finds the cut by a search, and draws from the kept tokens
//
// The share of the mass that lies before a winner is uniformly distributed between 0 and the share of the tokens raced.
// So the number of winners that are dropped has a Poisson distribution with mean -ln(share of the mass that is kept):
// at top-p 0.9, one row in ten drops its first winner. Of these, `second` spares all but some 4 % the second read.
#pragma once

#include "math/logprob_modes.cuh"
#include "block/race.cuh"
#include "stage/kept_set.cuh"

// How often a row is read before it is searched instead: for top-p, and for top-k.
#define MAX_TEST_READS 6
#define MAX_COUNT_READS 3

// A row is searched as well if top-k keeps less than this part of the vocabulary, most likely not the first winner; and
// once this many times k tokens lie before a winner.
#define NARROW_TOP_K_PART 64
#define MOST_TIMES_TOP_K 4

// The mass of the tokens before a pivot is within 2^-16 of what `weigh_before_pivots` returns. Relative errors, at
// most:
//     2^-18.6    distances to the first token: four roundings, two of the rule's and two here, change a weight at a
//                distance of d octaves by d 2^-22.5 in all; weighted by mass, 2^20 tokens below a first one have a mean
//                d of at most 15.1
//     2^-16.6    additions of floats: 7 in a tile, 32 tiles, and one for every 32 tiles of a warp, at most 128
//     2^-23      what is cut off where the weights of edited tokens are added up as integers, at most 2^20 of them in
//                units of 2^-43
//     2^-20      the rule rounds weights to 2^-28 of their tile's largest; a tile has 256
//     2^-21      the device's exponential, and 2^-22 the rule's
#define WEIGHED_BITS 16

// A token that others are compared with. Only in its own tile do ids decide about equal logits.
struct Pivot {
    float logit;
    // The next larger float.
    float next;
    u32 tile;

    DEVICE_MEMBER explicit Pivot(u64 key)
        : logit(key_logit(key)), next(from_ordered_bits(ordered_bits(logit) + 1)), tile(key_id(key) / TILE) {}

    // The least logit of a tile's tokens before the pivot; in its own tile tokens with an equal logit are left out.
    DEVICE_MEMBER float least(u32 of_tile) const { return of_tile < tile ? logit : next; }
};

// The knowledge of a block that tests a row's draw; in shared memory, because the functions below leave no registers
// for it.
struct TestedDraw {
    // The tokens that are raced, and the set that top-p is given.
    Cut cut;
    GivenSet given;
    Scales scales;
    // Whether tokens are counted, each with a weight of 1: for top-k.
    bool by_count;
    // Of the last race: the winner, and a token that may win the race among those before it, or the winner again.
    u64 winner;
    u64 second;
    // The best score of such a token, with its id.
    u64 second_leader;
    // The row's approximate mass by the survey's sums.
    u64 mass;
    // The pivots of a read, the first after the second, and the approximate masses before them, in the units of
    // SetMass.
    u64 pivots[2];
    u64 masses_before[2];
    // The token, once it is certain.
    u32 token;
};

// Adds up the weights of the tokens before the pivots, and with `has_sums` the survey's sums, by the row's blocks. Not
// inlined, so that it has registers of its own.
template <class T, bool EDITED>
DEVICE_NOINLINE void weigh_before_pivots(const Step& step, u32 row, int slot, bool has_sums, RowReduceStorage& reduce,
                                         TestedDraw& draw) {
    const EditedRow<T, EDITED> view(step, row, slot);
    const RowBlocks blocks = RowBlocks::of(reduce);
    const float first = draw.given.first_value, log2e_over_t = draw.scales.filter_log2e_over_t;
    const ApproxWeights weights(first, log2e_over_t, draw.by_count);
    const Pivot low(draw.pivots[0]), high(draw.pivots[1]);
    const u64* survey_sums = step.filter_sums + (u64)row * step.tiles;
    // A lane's sums over 32 tiles of its warp, and over all of them.
    float low_part = 0.0f, high_part = 0.0f, low_sum = 0.0f, high_sum = 0.0f;
    u64 mass = 0;
    const UntouchedRow<T, EDITED> untouched{view};
    visit_tiles<true, 2>(
        untouched, survey_maxima(step, row), low.logit,
        [&](u32 tile, float maximum, float (&z)[ITEMS_PER_LANE], bool) INLINE {
            clamp_infinite(maximum, z);
            const float low_least = low.least(tile), high_least = high.least(tile);
            float low_own = 0.0f, high_own = 0.0f;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                float weight = weights.of(z[j]);
                low_own += z[j] >= low_least ? weight : 0.0f;
                high_own += z[j] >= high_least ? weight : 0.0f;
            }
            low_part += low_own;
            high_part += high_own;
        },
        [&](u32 tile, float maximum, bool) INLINE {
            if (has_sums && maximum > MASKED_VALUE) {
                mass += tile_mass(tile_factor(maximum, first, log2e_over_t), survey_sums[tile]);
            }
            low_sum += low_part;
            high_sum += high_part;
            low_part = high_part = 0.0f;
        },
        blocks.tiles());
    // A warp for each pivot: the tokens of its own tile with an equal logit and a smaller id.
    if (blocks.is_first() && warp_id() < 2) {
        const u64 key = draw.pivots[warp_id()];
        const float logit = key_logit(key);
        const u32 tile = key_id(key) / TILE, offset = key_id(key) % TILE;
        u32 before = 0;
        if (offset != 0 && tile < step.tiles) {
            float z[ITEMS_PER_LANE];
            u32 nonfinite_flags = 0;
            untouched.load(tile, lane_id(), z, nonfinite_flags);
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                before += clean(z[j]) == logit && view.offset(lane_id(), j) < offset;
            }
        }
        float tied = weights.of(logit) * int_to_float((int)before);
        low_part += warp_id() == 0 ? tied : 0.0f;
        high_part += warp_id() == 1 ? tied : 0.0f;
    }
    const float UNITS = bits_float((127 + MASS_BITS) << 23);
    u64 masses[] = {(u64)((low_sum + low_part) * UNITS), (u64)((high_sum + high_part) * UNITS), mass};
    if constexpr (EDITED) {
        const u64 low_key = draw.pivots[0], high_key = draw.pivots[1];
        each_touched(view, step.tiles, blocks.rank + blocks.count * warp_id(), blocks.count * warp_count(),
                     [&](float z, u32 id) INLINE {
                         const u64 key = make_key(z, id), weight = (u64)(weights.of(z) * UNITS);
                         masses[0] += key > low_key ? weight : 0;
                         masses[1] += key > high_key ? weight : 0;
                     });
    }
    blocks.sum(masses);
    if (threadIdx.x == 0) {
        draw.masses_before[0] = masses[0];
        draw.masses_before[1] = masses[1];
        draw.mass = masses[2];
    }
    // RAW on draw: thread 0 wrote it, all threads of the caller read it.
    __syncthreads();
}

// Races the tokens of `draw.cut`. Sets `winner` and `second` for all threads of the row's blocks.
template <class T, bool EDITED>
DEVICE_NOINLINE void race_and_guess(const Step& step, u32 row, int slot, RowReduceStorage& reduce,
                                    RaceStorage& race_storage, TestedDraw& draw) {
    RowContext<T, EDITED> context(step, row, slot);
    const RngStream rng = race_stream(context.params, context.state);
    const RowRecords records(step, row, false);
    const float first = draw.given.first_value, log2e_over_t = draw.scales.log2e_over_t;
    if (threadIdx.x == 0) {
        draw.second_leader = 0;
    }
    // WAR on race_storage: threads may still read the results of the last race. RAW on draw.cut: thread 0 wrote it.
    __syncthreads();
    const u32 token = race(RowBlocks::of(reduce), race_storage, records, context.view, rng,
                           GivenSet{draw.cut, first, true}, log2e_over_t);
    const u64 winner = make_key(context.view.logit(token), token);
    const Origin origin(first);
    // The best of the tiles' first tokens and first arrivals before the winner. It usually wins among all of those.
    auto leader_of = [&](float z, u32 id, float log2_arrival) INLINE {
        return make_key(z, id) > winner ? make_leader(exponent(z, origin, log2e_over_t) - log2_arrival, id) : 0;
    };
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        u64 best = 0;
        if (record.maximum >= key_logit(winner)) {
            best = leader_of(record.maximum, tile * TILE + (record.packed & 255), record.log2_max_arrival);
            u32 id = tile * TILE + first_offset(tile_words(rng, tile));
            u64 arriving = id < step.vocab ? leader_of(context.view.logit(id), id, record.log2_first_arrival) : 0;
            best = arriving > best ? arriving : best;
        }
        raise_by_warp(draw.second_leader, best);
    });
    // RAW on draw.second_leader: all threads raised it, all threads read it.
    __syncthreads();
    const u32 second = key_id(draw.second_leader);
    // As the first block has read them: a row that is written meanwhile must not part the blocks.
    u64 keys[] = {winner, draw.second_leader == 0 ? winner : make_key(context.view.logit(second), second)};
    RowBlocks::of(reduce).broadcast(keys);
    if (threadIdx.x == 0) {
        draw.winner = keys[0];
        draw.second = keys[1];
    }
    // RAW on draw: thread 0 wrote it, all threads of the caller read it.
    __syncthreads();
}

// Bounds of the weight that the kept tokens must reach: the mass of top-p, or the number of tokens of top-k.
struct TestedGoal {
    u64 least;
    u64 most;
    bool by_count;

    DEVICE_MEMBER TestedGoal() : least(0), most(0), by_count(false) {}
    DEVICE_MEMBER explicit TestedGoal(u32 top_k)
        : least((u64)top_k << MASS_BITS), most((u64)top_k << MASS_BITS), by_count(true) {}
    DEVICE_MEMBER TestedGoal(u32 top_p, u64 least_total, u64 most_total)
        : least(target_mass(top_p, least_total)), most(target_mass(top_p, most_total)), by_count(false) {}

    DEVICE_MEMBER u64 error_of(u64 before) const { return by_count ? 0 : (before >> WEIGHED_BITS) + 1; }
    // Whether a token is certainly kept, or certainly dropped, if the tokens before it weigh approximately this much.
    DEVICE_MEMBER bool keeps(u64 before) const { return before + error_of(before) < least; }
    DEVICE_MEMBER bool drops(u64 before) const { return before >= most + error_of(before); }
};

// The filters of a request with FEATURE_TESTED_DRAW.
struct TestedChain {
    // The filters before the tested one.
    u64 before;
    // Whether that one is top-k, not top-p.
    bool by_count;
    bool has_min_p_behind;

    DEVICE_MEMBER explicit TestedChain(const Params& params)
        : before(0), by_count(params.features & FEATURE_TESTED_COUNT), has_min_p_behind(false) {
        const u64 tested = by_count ? FILTER_TOP_K : FILTER_TOP_P;
        u64 chain = params.filter_chain;
        for (u32 shift = 0; chain != 0 && (chain & 15) != tested; chain >>= 4, shift += 4) {
            before |= (chain & 15) << shift;
        }
        has_min_p_behind = chain >> 4 == FILTER_MIN_P;
    }
};

// Whether a row's token is drawn without the cut: its filters allow it, and no output shows what they keep.
DEVICE bool draws_without_cut(const Step& step, const Params& params) {
    return params.features & FEATURE_TESTED_DRAW && step.kept_bits == nullptr && !(step.flags & STEP_NO_CANDIDATES) &&
           (!(params.features & FEATURE_TESTED_COUNT) ||
            params.filter_numbers[FILTER_TOP_K] >= step.vocab / NARROW_TOP_K_PART) &&
           (!(params.features & FEATURE_LOGPROBS) ||
            (params.features & FEATURE_LOGPROB_SUMS && !has_second_logprob_mode(params)));
}

// Draws a row's token and tests it. Returns whether the token is certain, in all threads of the row's blocks; then it
// is in `draw.token`. `first` is the key of the row's first token, of which the id may be 0 if no filter precedes the
// tested one.
template <class T, bool EDITED>
DEVICE bool draw_and_test(const Step& step, u32 row, int slot, u64 first, const Scales& scales, FilterStorage& storage,
                          RaceStorage& race_storage, TestedDraw& draw) {
    const Params& params = step.params[slot];
    const TestedChain chain(params);
    if (chain.before != 0) {
        find_kept_set<T, EDITED>(step, row, slot, first, chain.before, scales.filter_log2e_over_t, storage);
    }
    const GivenSet full_set{Cut{first, full_cut().last}, key_logit(first), true};
    const float log2e_over_t = scales.filter_log2e_over_t;
    if (!ApproxWeights(full_set.first_value, log2e_over_t, chain.by_count).are_bounded()) {
        return false;
    }
    bool has_sums = !chain.by_count && params.features & FEATURE_FILTER_SUMS &&
                    (chain.before == 0 || params.features & FEATURE_JOINT);
    u64 last = chain.before != 0 ? storage.kept.cut.last : full_set.cut.last;
    u64 cut_last = last;
    if (chain.has_min_p_behind) {
        u64 of_min_p = min_p_cut(full_set.first_value, log2e_over_t, min_p_threshold(params)).last;
        cut_last = of_min_p > last ? of_min_p : last;
    }
    if (threadIdx.x == 0) {
        draw.cut = Cut{first, cut_last};
        draw.given = GivenSet{Cut{first, params.features & FEATURE_JOINT ? full_set.cut.last : last},
                              full_set.first_value, true};
        draw.scales = scales;
        draw.by_count = chain.by_count;
    }
    // RAW on draw: thread 0 wrote it, all threads read it.
    __syncthreads();
    TestedGoal goal = chain.by_count ? TestedGoal(params.filter_numbers[FILTER_TOP_K]) : TestedGoal();
    // Whether the goal is known. For top-p without the survey's sums the first read adds up the mass of the given set.
    bool knows_goal = has_sums || chain.by_count;
    // The filter keeps the tokens from this key on.
    u64 kept = ~0ull;
    const u32 most_reads = chain.by_count ? MAX_COUNT_READS : MAX_TEST_READS;
#pragma unroll 1
    for (u32 read = 0; read < most_reads; read++) {
        race_and_guess<T, EDITED>(step, row, slot, storage.search.reduce, race_storage, draw);
        const u64 winner = draw.winner, second = knows_goal ? draw.second : winner;
        if (threadIdx.x == 0) {
            draw.token = key_id(winner);
            draw.pivots[0] = knows_goal ? winner : draw.given.cut.last - 1;
            draw.pivots[1] = second;
        }
        // RAW on draw: thread 0 wrote it, all threads read it.
        __syncthreads();
        // Nothing before it competes if the winner is the row's first token, which every filter keeps.
        if (winner >= kept || draw.second == winner) {
            // WAR on the request's edits: every block has read them since the last exchange, and the first one advances
            // the request.
            sync_blocks(EDITED ? cluster_nctarank() : 1);
            return true;
        }
        weigh_before_pivots<T, EDITED>(step, row, slot, has_sums, storage.search.reduce, draw);
        u64 before = draw.masses_before[0], before_second = draw.masses_before[1];
        if (has_sums) {
            goal = TestedGoal(step.params[slot].filter_numbers[FILTER_TOP_P], mass_lower_bound(draw.mass),
                              mass_upper_bound(draw.mass));
        } else if (!knows_goal) {
            u64 slack = (before >> WEIGHED_BITS) + 1;
            goal = TestedGoal(step.params[slot].filter_numbers[FILTER_TOP_P], before - slack, before + slack);
            before = before_second;
        }
        if (goal.keeps(before)) {
            return true;
        }
        if (!goal.drops(before) || (chain.by_count && before / MOST_TIMES_TOP_K >= goal.most)) {
            return false;
        }
        kept = goal.keeps(before_second) ? second : kept;
        if (threadIdx.x == 0) {
            draw.cut.last = (goal.drops(before_second) ? second : winner) + 1;
        }
        knows_goal = true;
    }
    return false;
}
