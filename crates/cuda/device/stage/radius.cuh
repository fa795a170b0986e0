// radius.cuh: how far the logits of a row may move before another token is drawn (rule L7); by a block.
//
// Computes   the radius of a row whose token and kept set are known
// Never      scores a tile whose bound shows that no token of it comes nearer than one already met
// Twins      oracle spec/src/radius.rs | CPU cpu/src/radius.rs
// Traffic    16 bytes per tile; the tiles that reach the cut, with top-p twice; the tiles whose bound comes near
// Requires   the row's survey; all threads of the block, whole warps
//
// All distances are twice what a logit may move: where one moves up and another one down, they meet after half of what
// lies between them.
#pragma once

#include "math/sections.cuh"
#include "block/mass.cuh"
#include "block/race.cuh"
#include "stage/kept_set.cuh"

// What roundings take of a radius, relative to the numbers that are rounded.
#define RADIUS_ROUNDINGS bits_float((127 - 19) << 23)
// The logarithm of an arrival is not farther from 0.
#define MOST_LOG2_ARRIVAL 80.0f
// A part of top-p that is no less than the errors of sums of rounded weights, in units of 2^-32; and as much of a mass,
// as a power of two.
#define TOP_P_SLACK (1u << 14)
#define MASS_SLACK 16

// The error of a threshold that follows from masses, at most, in bits.
#define THRESHOLD_SLACK bits_float((127 - 13) << 23)

// Thresholds of y, which move by as much as two logits do, and by twice as much; of filters in a row the largest: from
// where they keep a token, also after other filters, and below which they keep none.
struct RadiusThresholds {
    float stay[2];
    float out[2];
};

// How far logits may move before the filters let another token win.
struct RadiusLimits {
    // Twice how far until the token itself may be cut off. If it alone is kept: twice how far until another one is the
    // row's first; else -inf.
    float leaves;
    float leads;
    float first;
    // The least kept logit; the largest one that is not kept.
    float least;
    float next;
    // Whether the kept tokens are as many as top-k keeps; whether top-p is on.
    bool is_full;
    bool has_top_p;
    // The thresholds of all filters; of those before top-p. With these, how many tokens top-k gives to top-p at most,
    // else 0; and the kept tokens' mass.
    RadiusThresholds thresholds;
    RadiusThresholds given;
    u32 given_most;
    u64 mass;
    // The scale of the filters, and 1 / s.
    float s;
    float h;

    // Returns twice how far logits may move before a token that is not kept may be.
    DEVICE_MEMBER float until_kept(float z) const {
        float by_count = is_full ? least - z : 0.0f;
        const float y = (z - first) * s;
        return max_f32(max_f32(by_count, (thresholds.out[0] - y) * h), (thresholds.out[1] - y) * h / 2.0f);
    }

    // Returns the logit of thresholds of y that have moved up by `by`, the second one by twice that.
    DEVICE_MEMBER float logit(const float (&y)[2], float by) const {
        return first + fmaxf(y[0] * h + by, y[1] * h + 2.0f * by);
    }

    // Returns the least logit of the tokens that top-p may be given before others have moved by half of `twice`.
    DEVICE_MEMBER float least_given(float twice) const { return given_most != 0 ? logit(given.out, -twice) : -INF_F32; }
};

// `stay`, where nothing is known of what top-p is given but the kept tokens.
#define UNKNOWN_MASS ~0ull

// Returns by how many bits odds may change before the tokens in front of the drawn one reach top-p. `mass` is the kept
// tokens', `own` the token's logit.
//
// In front of it are at most all other kept tokens. What top-p is given weighs at least `stay`; without that, at least
// as much as the kept tokens, and so much that these reach p, but not without their last one.
DEVICE float bits_until_cut_off(u32 p, const RadiusLimits& limits, float own, u64 stay) {
    const u64 mass = limits.mass;
    const float first = limits.first, s = limits.s;
    if (p <= TOP_P_SLACK) {
        return 0.0f;
    }
    const u64 own_weight = (u64)weight((own - first) * s) << 15, least_weight = (u64)weight((limits.least - first) * s)
                                                                                << 15;
    const float before = u64_to_float((mass > own_weight ? mass - own_weight : 0) + (mass >> MASS_SLACK));
    const float at_least =
        u64_to_float(mass > least_weight ? mass - least_weight : 0) * (bits_float((127 + 32) << 23) / u32_to_float(p));
    const float given = stay == UNKNOWN_MASS ? max_f32(u64_to_float(mass), at_least) : u64_to_float(stay);
    const float after = given - before;
    if (after <= 0.0f) {
        return 0.0f;
    }
    const u64 less = p - TOP_P_SLACK;
    const float odds_of_p = log2_rule(u64_to_float(less)) - log2_rule(u64_to_float((1ull << 32) - less));
    return max_f32(odds_of_p - (log2_rule(before) - log2_rule(after)), 0.0f);
}

// Returns the mass and the number of the row's tokens whose logits are at least `least`, at the scale s.
template <class V>
DEVICE SetMass mass_above(const V& view, const Maxima& maxima, const RadiusLimits& limits, float least, float s,
                          RowReduceStorage& reduce) {
    const GivenSet whole{full_cut(), limits.first, true};
    return mass_of_set(RowBlocks::alone(reduce), view, maxima, whole,
                       intersect(whole.cut, Cut{~0ull, last_key_at(least)}), s);
}

// Takes a filter's threshold of y into the limits of a token with the logit `own`. `sees_all`: whether the filter is
// given the whole row.
template <class V>
DEVICE void add_threshold(const V& view, const Maxima& maxima, const Params& params, u32 filter, bool sees_all,
                          float own, RadiusLimits& limits, RowReduceStorage& reduce) {
    float stay = filter_float(params, filter), out = stay;
    u32 stay_place = 0, out_place = 0;
    if (filter != FILTER_MIN_P) {
        float lz[2] = {0.0f, 0.0f};
#pragma unroll 1
        for (u32 place = 0; place <= (filter == FILTER_P_LESS); place++) {
            lz[place] =
                log2_mass(mass_above(view, maxima, limits, -INF_F32, (float)(1 + place) * limits.s, reduce).mass);
        }
        const float of_all = filter == FILTER_TOP_A    ? stay - lz[0]
                             : filter == FILTER_P_LESS ? lz[1] - lz[0]
                                                       : stay + lz[0];
        out = of_all - THRESHOLD_SLACK;
        if (filter == FILTER_EPSILON_CUTOFF) {
            // The first token is kept in any case.
            out = sees_all ? fminf(out, 0.0f) : -INF_F32;
        } else {
            out_place = 1;
        }
        if (filter != FILTER_TOP_A || sees_all) {
            stay = of_all + THRESHOLD_SLACK;
            stay_place = out_place;
        }
    }
    RadiusThresholds& all = limits.thresholds;
    all.stay[stay_place] = fmaxf(all.stay[stay_place], stay);
    all.out[out_place] = fmaxf(all.out[out_place], out);
    const float leaves = ((own - limits.first) * limits.s - stay) * limits.h;
    limits.leaves = fminf(limits.leaves, leaves / (float)(1 + stay_place));
}

// Returns the limits of a row of which `kept` is kept and a token with the logit `own` was drawn. Only tiles that reach
// the cut are read, none if nothing is cut off.
template <class V>
DEVICE RadiusLimits radius_limits(const Step& step, u32 row, const V& view, const Params& params, float first,
                                  float own, const GivenSet& kept, RowReduceStorage& reduce) {
    const Maxima maxima = survey_maxima(step, row);
    const bool is_cut = kept.cut.last != full_cut().last;
    u32 least = ~0u, next = ordered_bits(-INF_F32), count = 0;
    // Not by `visit_tiles`, which may leave logits below the cut unedited.
#pragma unroll 1
    for (u32 start = 32 * warp_id(); is_cut && start < maxima.tiles; start += 32 * warp_count()) {
        const u32 own_tile = start + lane_id();
        const float maximum = own_tile < maxima.tiles ? maxima.of(own_tile) : -INF_F32;
        const bool reaches = maximum >= kept.cut.low();
        next = !reaches && ordered_bits(maximum) > next ? ordered_bits(maximum) : next;
#pragma unroll 1
        for (u32 open = __ballot_sync(FULL_MASK, reaches); open != 0; open &= open - 1) {
            const u32 tile = start + __ffs((int)open) - 1;
            float z[ITEMS_PER_LANE];
            u32 nonfinite_flags = 0;
            view.load(tile, lane_id(), z, nonfinite_flags);
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                const float own_z = clean(z[j]);
                const u32 bits = ordered_bits(own_z);
                const bool is_kept = kept.cut.contains(make_key(own_z, tile * TILE + view.offset(lane_id(), j)));
                least = is_kept && bits < least ? bits : least;
                next = !is_kept && bits > next ? bits : next;
                count += is_kept;
            }
        }
    }
    const u64 kept_count = block_sum(reduce, count);
    RadiusLimits limits;
    limits.first = first;
    limits.least = from_ordered_bits(~(u32)block_max(reduce, ~least));
    limits.next = from_ordered_bits((u32)block_max(reduce, next));
    limits.s = params.filter_log2e_over_t;
    limits.h = 1.0f / limits.s;
    limits.leaves = INF_F32;
    limits.is_full = limits.has_top_p = false;
    limits.thresholds = {{-INF_F32, -INF_F32}, {-INF_F32, -INF_F32}};
    limits.given_most = 0;
    u32 most = ~0u;
    bool sees_all = true;
#pragma unroll 1
    for (u64 chain = params.filter_chain; chain != 0; chain >>= 4, sees_all = (params.features & FEATURE_JOINT) != 0) {
        const u32 filter = (u32)chain & 15;
        if (filter != FILTER_TOP_K && filter != FILTER_TOP_P) {
            add_threshold(view, maxima, params, filter, sees_all, own, limits, reduce);
            continue;
        }
        limits.leaves = fminf(limits.leaves, own - limits.next);
        if (filter == FILTER_TOP_K) {
            most = params.filter_numbers[FILTER_TOP_K];
            limits.is_full = kept_count >= most;
        } else {
            limits.has_top_p = true;
            limits.mass = mass_of_set(RowBlocks::alone(reduce), view, maxima, kept, kept.cut, limits.s).mass;
            limits.given = limits.thresholds;
            limits.given_most = fmaxf(limits.given.stay[0], limits.given.stay[1]) != -INF_F32 ? most : 0;
            if (limits.given_most == 0) {
                const float bits = bits_until_cut_off(params.filter_numbers[FILTER_TOP_P], limits, own, UNKNOWN_MASS);
                limits.leaves = fminf(limits.leaves, bits * limits.h);
            }
        }
    }
    // The filters of which a radius is known keep their first token.
    limits.leads = is_cut && kept_count == 1 ? own - limits.next : -INF_F32;
    limits.leaves = fmaxf(limits.leaves, limits.leads);
    return limits;
}

// The tokens that would win sooner than at some distance: the largest of their logits, and the distance of the first of
// them.
struct NearerTokens {
    float most;
    float nearest;
};

// Returns the tokens of a row, besides its own, that would win at a distance below `until`: kept tokens, or tokens
// that are not kept. `won` is the own token's score, s the scale of the race and h 1 / s.
//
//     the tiles' first tokens: their arrivals are in the survey's records
//     each warp, of 32 tiles at a time:
//         for each tile of which another token may come near enough: score the tokens that may
template <bool KEPT, class V>
DEVICE NearerTokens nearer_tokens(const V& view, const RowRecords& records, const RngStream& rng,
                                  const RadiusLimits& limits, const Cut& kept, u32 token, float won, float s, float h,
                                  float until, RowReduceStorage& reduce) {
    const Origin origin(limits.first);
    NearerTokens found{-INF_F32, until};
    auto meet = [&](float z, u32 id, float log2_arrival) INLINE {
        if (z > MASKED_VALUE && id != token && kept.contains(make_key(z, id)) == KEPT) {
            const float wins = (won - (exponent(z, origin, s) - log2_arrival)) * h;
            const float after = KEPT ? wins : max_f32(wins, limits.until_kept(z));
            found.most = after < until ? max_f32(found.most, z) : found.most;
            found.nearest = fminf(found.nearest, after);
        }
    };
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        meet(record.maximum, tile * TILE + (record.packed & 255), record.log2_max_arrival);
    });
    found.nearest = from_ordered_bits(~(u32)block_max(reduce, ~ordered_bits(found.nearest)));
    records.for_each([&](u32 own, const TileRecord& record) INLINE {
        const float others = fminf(record_others_bound(record), record.maximum);
        const float bound = exponent(others, origin, s) - record.log2_first_arrival;
        // No kept token matters that is farther than the nearest so far.
        auto reaches = [&](float score) INLINE { return (won - score) * h < (KEPT ? found.nearest : until); };
        const bool may_be = others > MASKED_VALUE && (!KEPT || others >= kept.low());
        u32 open = __ballot_sync(FULL_MASK, may_be && reaches(bound));
#pragma unroll 1
        for (; open != 0; open &= open - 1) {
            const int lane = __ffs((int)open) - 1;
            const float first_log2 = __shfl_sync(FULL_MASK, record.log2_first_arrival, lane);
            if (!reaches(__shfl_sync(FULL_MASK, bound, lane))) {
                continue;
            }
            const u32 tile = own - lane_id() + lane;
            float z[ITEMS_PER_LANE];
            u32 nonfinite_flags = 0;
            view.load(tile, lane_id(), z, nonfinite_flags);
            const FirstArrival first = first_arrival(rng, tile);
#pragma unroll 1
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                const float own_z = clean(select_item(z, j));
                if (reaches(exponent(own_z, origin, s) - first_log2)) {
                    const u32 offset = view.offset(lane_id(), j);
                    meet(own_z, tile * TILE + offset, log2_of_normal(token_arrival(rng, first, tile, offset)));
                }
            }
            found.nearest = from_ordered_bits(__reduce_min_sync(FULL_MASK, ordered_bits(found.nearest)));
        }
    });
    found.most = from_ordered_bits((u32)block_max(reduce, ordered_bits(found.most)));
    found.nearest = from_ordered_bits(~(u32)block_max(reduce, ~ordered_bits(found.nearest)));
    return found;
}

// With thresholds before top-p, returns twice how far logits may move before top-p may cut the token off, or `until` if
// that is less. By the mass of the tokens that these keep until logits have moved by half of `until`.
template <class V>
DEVICE float until_cut_off(const V& view, const Maxima& maxima, const RadiusLimits& limits, u32 top_p, float own,
                           float until, RowReduceStorage& reduce) {
    const float least = limits.logit(limits.given.stay, until);
    SetMass above{0, 0};
    if (least <= limits.first) {
        above = mass_above(view, maxima, limits, least, limits.s, reduce);
    }
    const u64 stay = above.count < limits.given_most ? above.mass - (above.mass >> MASS_SLACK) : UNKNOWN_MASS;
    return fmaxf(fminf(until, bits_until_cut_off(top_p, limits, own, stay) * limits.h), limits.leads);
}

// Returns whether top-p holds out all tokens whose logits are at most `most` until others have moved by half of
// `twice`. By the mass of the tokens whose logits are at least `most + twice`, relative to that of all tokens that
// top-p may be given.
template <class V>
DEVICE bool top_p_holds_out(const V& view, const Maxima& maxima, const RadiusLimits& limits, u32 top_p, float most,
                            float twice, RowReduceStorage& reduce) {
    const float least = most + twice;
    const u64 p = (u64)top_p + TOP_P_SLACK;
    if (!(least <= limits.first) || p >= 1ull << 32) {
        return false;
    }
    u64 above = mass_above(view, maxima, limits, least, limits.s, reduce).mass;
    const u64 total = mass_above(view, maxima, limits, limits.least_given(twice), limits.s, reduce).mass;
    above = above > total >> MASS_SLACK ? above - (total >> MASS_SLACK) : 0;
    const u64 rest = total > above ? total - above : 0;
    const float odds = log2_rule(u64_to_float(above)) - log2_rule(u64_to_float(rest)),
                odds_of_p = log2_rule(u64_to_float(p)) - log2_rule(u64_to_float((1ull << 32) - p));
    return above > 0 && odds - odds_of_p >= twice * limits.s;
}

// Returns the radius of a row; the same in all threads. `temperature` is the draw's, `first` the logit of the row's
// first token.
template <class T>
DEVICE_NOINLINE float row_radius(const Step& step, u32 row, int slot, int token, float temperature, float first,
                                 GivenSet kept, RowReduceStorage& reduce) {
    const RowContext<T, true> context(step, row, slot);
    const Params& params = context.params;
    const ForcedToken forced = forced_token(step, row, slot, params.features);
    if (token == NO_TOKEN) {
        return -INF_F32;
    }
    if (forced.is_kept()) {
        return INF_F32;
    }
    if (GUMBALL_PROBABILITIES || forced.id >= 0 || params.radius_size < 0.0f) {
        return 0.0f;
    }
    const float own = context.view.logit((u32)token);
    const RadiusLimits limits = radius_limits(step, row, context.view, params, first, own, kept, reduce);
    float twice, size;
    if (temperature == 0.0f) {
        twice = first - limits.next;
        size = fabsf(first);
    } else {
        const float s = params.log2e_over_t, h = 1.0f / s;
        const RngStream rng = race_stream(params, context.state);
        const u32 tile = (u32)token / TILE;
        const float arrival = token_arrival(rng, first_arrival(rng, tile), tile, (u32)token % TILE);
        const float won = exponent(own, Origin(first), s) - log2_of_normal(arrival);
        const RowRecords records(step, row, false);
        twice = nearer_tokens<true>(context.view, records, rng, limits, kept.cut, (u32)token, won, s, h, limits.leaves,
                                    reduce)
                    .nearest;
        if (limits.given_most != 0) {
            twice = until_cut_off(context.view, survey_maxima(step, row), limits, params.filter_numbers[FILTER_TOP_P],
                                  own, twice, reduce);
        }
        if (limits.next > MASKED_VALUE) {
            const NearerTokens others = nearer_tokens<false>(context.view, records, rng, limits, kept.cut, (u32)token,
                                                             won, s, h, twice, reduce);
            if (others.nearest < twice &&
                !(limits.has_top_p &&
                  top_p_holds_out(context.view, survey_maxima(step, row), limits, params.filter_numbers[FILTER_TOP_P],
                                  others.most, twice, reduce))) {
                twice = others.nearest;
            }
        }
        size = fmaxf(fabsf(first), fabsf(own)) + (fabsf(won) + MOST_LOG2_ARRIVAL) * fmaxf(h, limits.h);
    }
    // No other token is there, or all are too far for a float.
    if (twice == INF_F32) {
        return mass_above(context.view, survey_maxima(step, row), limits, -MAX_F32, limits.s, reduce).count == 1
                   ? INF_F32
                   : 0.0f;
    }
    const float r = params.repetition_penalty, shrink = 1.0f / fmaxf(fmaxf(r, 1.0f / r), 1.0f);
    const float reach = twice * 0.5f;
    const float radius = (reach - ((reach + size) + params.radius_size) * RADIUS_ROUNDINGS) * shrink;
    return radius > 0.0f ? radius : 0.0f;
}
