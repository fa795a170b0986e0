// filter.cuh: computes a row's cut from its survey, for any filter chain (rules F1 to F12); device functions of a
// block.
//
// Computes   the first and the last key that may be drawn; in every thread
// Never      compares a row's logits with a threshold one by one: y is monotone in the logit, so a search over the
//            floats finds the least logit that passes
// Twins      oracle spec/src/filter.rs | CPU cpu/src/filter | why docs/stages/filter.md
#pragma once

#include "math/arrival.cuh"
#include "math/kind.cuh"
#include "block/search.cuh"

// The temperature of a row and the scales that follow from it (F7, F8, N6).
struct Scales {
    // 0 if the row is greedy.
    float temperature;
    float log2e_over_t;
    float filter_log2e_over_t;
};

// The shared memory of a row's filters.
struct FilterStorage {
    SearchStorage search;
    // Per warp: its share of the row's mass, and of the mass of its tiles' first tokens; the complement of the least
    // maximum of its tiles, as ordered bits.
    u64 masses[32];
    u64 first_masses[32];
    u32 inverted_lows[32];
    // The set that the filters so far have left.
    GivenSet left;
    // The results: a row's scales under dynamic temperature, and what its filters keep.
    Scales scales;
    GivenSet kept;
};

// The data that the filters of a row read.
template <class V>
struct FilterContext {
    const Step& step;
    const Params& params;
    const State& state;
    u32 row;
    const V& view;
    // The scale log2(e) / T of the filters (N6); with dynamic temperature computed from the row (F7).
    float log2e_over_t;
    FilterStorage& storage;

    // The blocks that read the row.
    DEVICE_MEMBER RowBlocks blocks() const { return RowBlocks::of(storage.search.reduce); }

    // Upper bounds of the tile maxima of any set of the row's tokens; the maxima themselves if the set is a prefix.
    DEVICE_MEMBER Maxima bounds() const { return survey_maxima(step, row); }

    // The maximum of a given set's tokens in each tile.
    DEVICE_MEMBER Maxima maxima(const GivenSet& given) const { return maxima_of_set(step, row, blocks(), view, given); }
};

// Returns the prefix of a set down to the key `last`. It always contains the set's first token.
DEVICE GivenSet prefix_to_key(const GivenSet& given, u64 last) {
    last = last < given.cut.first ? last : given.cut.first;
    return GivenSet{Cut{given.cut.first, last > given.cut.last ? last : given.cut.last}, given.first_value,
                    given.is_prefix};
}

// Returns the prefix of a set whose logits pass, and at least its first token (F2). If a logit passes, so must all
// larger ones.
template <class Passes>
DEVICE GivenSet prefix_while(const GivenSet& given, Passes passes) {
    return prefix_to_key(given, passes(given.first_value) ? last_key_at(least_passing_logit(given.first_value, passes))
                                                          : given.cut.first);
}

// Returns the prefix of a set whose y, at the scale `log2e_over_t`, is at least `threshold`.
DEVICE GivenSet prefix_above(const GivenSet& given, float log2e_over_t, float threshold) {
    const Origin first(given.first_value);
    return prefix_while(given, [=](float z) INLINE { return exponent(z, first, log2e_over_t) >= threshold; });
}

// Returns the least key that min-p keeps in a row of probabilities, given the first token's probability (P1a). The
// first token passes. If the product rounds to 0, every token passes.
DEVICE u64 last_key_at_min_p(float first, float min_p) { return last_key_at(max_f32(min_p * first, MIN_TOKEN_VALUE)); }

// Returns the keys of the first and the last token in a cut, which must contain a token.
template <class V>
DEVICE Cut cut_ends(const FilterContext<V>& f, const Cut& cut) {
    u64 most = 0, least = 0;
    visit_tiles(
        f.view, f.bounds(), cut.low(),
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                u64 key = make_key(z[j], tile * TILE + f.view.offset(lane_id(), j));
                bool member = cut.contains(key);
                most = member && key > most ? key : most;
                least = member && ~key > least ? ~key : least;
            }
        },
        [](u32, float, bool) INLINE {}, f.blocks().tiles());
    u64 ends[] = {most, least};
    f.blocks().max(ends);
    return Cut{ends[0], ~ends[1]};
}

// Returns the part of a set from the key `first` on, which must be the key of a token.
DEVICE GivenSet suffix_from(const GivenSet& given, u64 first) {
    return GivenSet{Cut{first, given.cut.last}, key_logit(first), given.is_prefix && first == given.cut.first};
}

// Returns whether XTC, which must be on, acts on a row (F4): a probability of 1 is prepared as 0.
DEVICE bool xtc_acts(const Params& params, const State& state) {
    return philox(params.seed, 0, state.position, TAG_XTC, params.draw).w[0] <= params.filter_numbers[FILTER_XTC] - 1;
}

// Drops all tokens at or above a threshold on y except the last of them, unless one of the others is exempt (F4).
template <class V>
DEVICE GivenSet xtc(const FilterContext<V>& f, const GivenSet& given, float threshold) {
    // The first token has y = 0, so no token reaches a threshold above 0.
    if (!(0.0f >= threshold)) {
        return given;
    }
    GivenSet top = prefix_above(given, f.log2e_over_t, threshold);
    u64 last = cut_ends(f, top.cut).last;
    const u32 exempt_count = f.params.xtc_exempt_count;
    if (exempt_count > 0) {
        const u32* exempt_ids = f.step.requests[f.step.slots[f.row]].xtc_exempt_ids;
        u64 drops_exempt[] = {0};
        for (u32 i = threadIdx.x; i < exempt_count; i += blockDim.x) {
            u64 key = make_key(f.view.logit(exempt_ids[i]), exempt_ids[i]);
            drops_exempt[0] |= key > last && given.cut.contains(key);
        }
        f.blocks().max(drops_exempt);
        if (drops_exempt[0]) {
            return given;
        }
    }
    return suffix_from(given, last);
}

// Returns how far a logit lies below the first, in units of 2^-12, at most 2^22 - 1 (F5).
DEVICE u32 deviation(float first, float z) {
    return float_to_u32(fminf(round_half_even((first - z) * 4096.0f), 4194303.0f));
}

// Returns the f64 nearest to a u128.
DEVICE double u128_to_double(u64 high, u64 low) {
    if (high == 0) {
        return u64_to_double(low);
    }
    int bits = 64 - leading_zeros(high);
    u64 top = bits == 64 ? high : (high << (64 - bits)) | (low >> bits);
    u64 rest = bits == 64 ? low : low << (64 - bits);
    // The bits cut off matter only if the rounding would tie, so one sticky bit stands for them.
    double power = u64_to_double(1ull << (bits / 2)) * u64_to_double(1ull << (bits - bits / 2));
    return u64_to_double(top | (rest != 0)) * power;
}

// Keeps the tokens within n standard deviations of the first logit (F5).
template <class V>
DEVICE GivenSet top_n_sigma(const FilterContext<V>& f, const GivenSet& given) {
    u64 count = 0, sum = 0, squares = 0;
    float first = given.first_value;
    visit_set(
        f.view, f.bounds(), given, given.cut,
        [&](u32, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                bool member = z[j] > MASKED_VALUE;
                u64 x = member ? deviation(first, z[j]) : 0;
                count += member;
                sum += x;
                squares += x * x;
            }
        },
        [](u32, float, bool) INLINE {}, f.blocks().tiles());
    u64 sums[] = {count, sum, squares};
    f.blocks().sum(sums);
    count = sums[0];
    sum = sums[1];
    squares = sums[2];
    u64 low = count * squares, square = sum * sum;
    u64 high = mul_hi_u64(count, squares) - mul_hi_u64(sum, sum) - (low < square);
    double sigma = double_ratio(double_sqrt(u128_to_double(high, low - square)), u64_to_double(count));
    double limit = double_product((double)filter_float(f.params, FILTER_TOP_N_SIGMA), sigma);
    return prefix_while(given, [=](float z) INLINE { return (double)deviation(first, z) <= limit; });
}

// Returns how many of `count` tokens of a given set, whose keys are in order, top-H keeps (F12); by a warp, in every
// lane. `share`: its number. Not inlined, so that it has registers of its own.
DEVICE_NOINLINE u32 top_h_count(const u64* keys, u32 count, float log2e_over_t, u32 share) {
    const u32 TOKENS_PER_LANE = (COUNTED_TOP_H + 31) / 32;
    count = count < COUNTED_TOP_H ? count : COUNTED_TOP_H;
    const Origin first(key_logit(keys[0]));
    float weights[TOKENS_PER_LANE], y[TOKENS_PER_LANE];
    u64 sum = 0;
#pragma unroll
    for (u32 k = 0; k < TOKENS_PER_LANE; k++) {
        const u32 i = 32 * k + lane_id();
        const float z = key_logit(keys[i < count ? i : 0]);
        y[k] = exponent(z, first, log2e_over_t);
        weights[k] = i < count ? tile_factor(z, first.first, log2e_over_t) : 0.0f;
        sum += float_to_u32(weights[k] * 268435456.0f);
    }
    const float log2_z = log2_rule(u64_to_float(warp_sum(sum)) * bits_float((127 - 28) << 23));
    // The part of the entropy that each token adds.
    u64 parts[TOKENS_PER_LANE], all = 0;
#pragma unroll
    for (u32 k = 0; k < TOKENS_PER_LANE; k++) {
        const float part = weights[k] * max_f32(log2_z - y[k], 0.0f) * 1125899906842624.0f;
        // From 2^24 on floats are integers.
        parts[k] = !(weights[k] > 0.0f) ? 0 : part < 16777216.0f ? float_to_u32(part) : (u64)part;
        all += parts[k];
    }
    all = warp_sum(all);
    // A share of 1 is prepared as 0.
    const u64 most = share == 0 ? all : target_mass(share, all);
    u64 before = 0;
    u32 kept = count;
#pragma unroll
    for (u32 k = 0; k < TOKENS_PER_LANE; k++) {
        const u64 upto = before + warp_scan(parts[k]);
        before = __shfl_sync(FULL_MASK, upto, 31);
        const u32 i = 32 * k + lane_id();
        const u32 ends = __ballot_sync(FULL_MASK, i > 0 && i < kept && (parts[k] == 0 || upto > most));
        kept = ends != 0 ? 32 * k + (u32)__ffs((int)ends) - 1 : kept;
    }
    return kept;
}

// Returns what top-H keeps of its given set's first tokens, which are few.
template <class V>
DEVICE GivenSet top_h(const FilterContext<V>& f, const GivenSet& given) {
    SearchStorage& storage = f.storage.search;
    u64 last[] = {0};
    if (f.blocks().is_first()) {
        // WAR on storage: slower warps may still read what the search for the first tokens left, thread 0 and the list
        // overwrite it.
        __syncthreads();
        if (threadIdx.x == 0) {
            storage.search.listed = 0;
        }
        // RAW on search.listed: thread 0 cleared it, all warps add to it.
        __syncthreads();
        visit_set(
            f.view, f.bounds(), given, given.cut,
            [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
#pragma unroll 1
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    const float own = select_item(z, j);
                    const u32 index = own > MASKED_VALUE ? atomicAdd(&storage.search.listed, 1u) : LIST_CAPACITY;
                    if (index < LIST_CAPACITY) {
                        storage.keys[index] = make_key(clean(own), tile * TILE + f.view.offset(lane_id(), j));
                    }
                }
            },
            [](u32, float, bool) INLINE {}, StridedTiles{0, 1});
        // RAW on search.listed and the list: all warps listed tokens, all warps read them.
        __syncthreads();
        const u32 listed = storage.search.listed, count = listed < COUNTED_TOP_H ? listed : COUNTED_TOP_H;
        const u64* sorted = sort_list(storage.keys, count);
        const u32 kept = top_h_count(sorted, count, f.log2e_over_t, f.params.filter_numbers[FILTER_TOP_H]);
        last[0] = kept != 0 ? sorted[kept - 1] : given.cut.first;
    }
    f.blocks().broadcast(last);
    return prefix_to_key(given, last[0]);
}

// Returns a guess at a logit below which hardly any token lies. `low` is the least tile maximum; logits of models
// spread about four times as far below the first one. It only chooses the range that the search tries first.
DEVICE float spread_low(const GivenSet& given, float low) {
    const HeightScale height_scale(given.first_value);
    float top = height_scale.height(given.first_value);
    return height_scale.at(top - 4.0f * (top - height_scale.height(low)));
}

// Returns a logit that the k-th token of a set likely reaches. If every tile has a token and k is at most the number of
// tiles, the least maximum is certainly such a logit. For larger k, spread_low guesses.
DEVICE float likely_low(ReduceStorage& storage, const Maxima& maxima, const GivenSet& given, u32 k) {
    u64 least = 0;
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < maxima.tiles; tile += blockDim.x) {
        float maximum = maxima.of(tile);
        u64 own = maximum > MASKED_VALUE ? ~ordered_bits(maximum) : 0;
        least = own > least ? own : least;
    }
    float low = from_ordered_bits(~(u32)block_max(storage, least));
    return k <= maxima.tiles ? low : spread_low(given, low);
}

// What follows from the survey's records and sums of a row, without a read of its logits.
struct ApproxRow {
    // The row's approximate mass, from sums within 2^-19 of the exact ones.
    u64 mass;
    // The mass of the tiles' first tokens, each floored by itself.
    u64 firsts_mass;
    // The least maximum of a tile that has a token.
    float least_maximum;
};

// Reads the row's records and filter sums; by the block, in every thread. `first` is the logit of the row's first
// token.
template <class V>
DEVICE ApproxRow approximate_row(const FilterContext<V>& f, float first) {
    FilterStorage& storage = f.storage;
    const TileRecord* records = f.step.records + (u64)f.row * f.step.tiles;
    const u64* sums = f.step.filter_sums + (u64)f.row * f.step.tiles;
    u64 mass = 0, first_tokens_mass = 0;
    u32 low = 0;
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < f.step.tiles; tile += blockDim.x) {
        float maximum = records[tile].maximum;
        u64 sum = sums[tile];
        if (maximum > MASKED_VALUE) {
            float factor = tile_factor(maximum, first, f.log2e_over_t);
            mass += tile_mass(factor, sum);
            first_tokens_mass += tile_mass(factor, 1u << 28);
            u32 own = ~ordered_bits(maximum);
            low = own > low ? own : low;
        }
    }
    mass = warp_sum(mass);
    first_tokens_mass = warp_sum(first_tokens_mass);
    low = __reduce_max_sync(FULL_MASK, low);
    // WAR on masses, first_masses, inverted_lows: slower warps may still read the values of an earlier call, each warp
    // overwrites its own.
    __syncthreads();
    if (lane_id() == 0) {
        storage.masses[warp_id()] = mass;
        storage.first_masses[warp_id()] = first_tokens_mass;
        storage.inverted_lows[warp_id()] = low;
    }
    // RAW on masses, first_masses, inverted_lows: each warp wrote its own, all warps read all of them.
    __syncthreads();
    bool in_block = lane_id() < warp_count();
    mass = warp_sum(in_block ? storage.masses[lane_id()] : 0);
    first_tokens_mass = warp_sum(in_block ? storage.first_masses[lane_id()] : 0);
    low = __reduce_max_sync(FULL_MASK, in_block ? storage.inverted_lows[lane_id()] : 0);
    return ApproxRow{mass, first_tokens_mass, from_ordered_bits(~low)};
}

// Returns the part of a given set that reaches a filter's goal:
//     top-k        the first `k` tokens
//     top-p        the shortest prefix with its share of the mass (F1)
//     typical-p    the tokens whose surprise is nearest to the entropy, as many as have its share of the mass (F3)
// `sums` are the set's. With `is_approx` their mass is the survey's approximation; `row` is valid only then.
//
//     thread 0 describes the search: goal, order of the tokens, range of values in which the goal likely lies
//     if the nucleus is likely short: list its tokens, so that the search need not count levels
//     key = the token at which the goal is reached in that order
//     top-k, top-p: the prefix down to this key
//     typical-p: the interval of all tokens that are no farther from the entropy than this one
template <class V>
DEVICE GivenSet prefix_reaching_goal(const FilterContext<V>& f, u32 filter, const Maxima& maxima, const GivenSet& given,
                                     const SetEntropy& sums, bool is_approx, const ApproxRow& row, u32 k) {
    bool nearest = filter == FILTER_TYPICAL_P, by_mass = filter != FILTER_TOP_K;
    float likely = is_approx ? spread_low(given, row.least_maximum)
                             : likely_low(f.storage.search.reduce, maxima, given, by_mass ? ~0u : k);
    SearchedRow<V> set{f.step, f.row, f.view, f.storage.search};
    const Order order{nearest, Origin(given.first_value), f.log2e_over_t, log2_mass(sums.mass), sums.entropy};
    if (threadIdx.x == 0) {
        Search& search = set.storage.search;
        u32 goal_fraction = f.params.filter_numbers[nearest ? FILTER_TYPICAL_P : FILTER_TOP_P];
        u64 goal = by_mass ? target_mass(goal_fraction, is_approx ? mass_lower_bound(sums.mass) : sums.mass) : k;
        search.given = given;
        search.maxima = maxima;
        search.order = order;
        search.log2e_over_t = f.log2e_over_t;
        // The first token reaches a goal of mass 0, so such a goal becomes a count of 1.
        search.by_mass = by_mass && goal != 0;
        search.goal = goal != 0 ? goal : 1;
        search.goal_fraction = is_approx && search.by_mass ? goal_fraction : 0;
        search.goal_slack = search.goal_fraction ? target_mass(goal_fraction, mass_upper_bound(sums.mass)) - goal : 0;
        float low = given.cut.low();
        bool all = given.cut.last == full_cut().last;
        search.needs_key_test = !given.is_prefix || !(all || (!nearest && given.cut.last == last_key_at(low)));
        search.plain = !nearest && !search.needs_key_test;
        bool samples = search.plain && search.by_mass && f.blocks().count <= MAX_SAMPLING_BLOCKS;
        search.tile_stride = samples ? sampling_stride(maxima.tiles, search.goal_fraction) : 1;
        search.lo = RangeEnd{nearest ? -MAX_F32 : low, sums.mass, sums.count};
        search.hi = RangeEnd{INF_F32, 0, 0};
        // The tokens with y below this weigh together at most 2^-6 of the mass that the goal leaves out, even if
        // all `vocab` tokens are among them.
        float y = log2_mass(sums.mass - search.goal + 1) - log2_rule(u64_to_float(f.step.vocab)) - 6.0f;
        if (nearest) {
            float early = bits_float(float_bits(order.excess(given.first_value)) & 0x7FFFFFFF);
            search.value_bound = 0.0f;
            search.safe_floor = -max_f32(early, search.by_mass ? order.log2_z - order.entropy - y : 0.0f);
            search.likely_floor = max_f32(search.safe_floor, -max_f32(early, order.excess(likely)));
        } else {
            search.value_bound = given.first_value;
            search.safe_floor = search.by_mass
                                    ? apply_threshold_offset(given.first_value, threshold_offset(y, f.log2e_over_t))
                                    : likely;
            search.likely_floor = max_f32(search.safe_floor, likely);
        }
    }
    // A short list consists mostly of the tiles' first and second tokens. The second ones weigh no more than the first,
    // so both reach the goal only if the first ones reach half of it.
    bool may = is_approx && row.firsts_mass >= target_mass(f.params.filter_numbers[FILTER_TOP_P], row.mass) / 2;
    u64 reached = find_crossing(set, may && list_nucleus_on_first_block(set, row.least_maximum));
    if (!nearest) {
        return prefix_to_key(given, reached);
    }
    float delta = -key_logit(reached);
    // Along the order the surprise's excess over the entropy rises. So the tokens within delta of the entropy are an
    // interval: it ends with excess delta, and begins with excess -delta.
    Cut cut{given.cut.first, last_key_at(least_passing_logit(
                                 given.first_value, [=](float z) INLINE { return order.excess(z) <= delta; }))};
    cut.last = cut.last > given.cut.last ? cut.last : given.cut.last;
    if (order.excess(given.first_value) < -delta) {
        float early = least_passing_logit(given.first_value, [=](float z) INLINE { return order.excess(z) < -delta; });
        cut.first = cut_ends(f, Cut{last_key_at(early) - 1, cut.last}).first;
    }
    return GivenSet{cut, key_logit(cut.first), given.is_prefix && cut.first == given.cut.first};
}

// Returns what one filter keeps of a given set; in every thread. `k`: of top-k, or how many tokens top-H looks at.
template <class V>
DEVICE GivenSet apply_filter(const FilterContext<V>& f, u32 filter, const GivenSet& given, u32 k) {
    const Params& params = f.params;
    const bool is_top_h = filter == FILTER_TOP_H;
    filter = is_top_h ? FILTER_TOP_K : filter;
    if (filter == FILTER_TOP_N_SIGMA) {
        return top_n_sigma(f, given);
    }
    if (filter == FILTER_MIN_P) {
        float min_p = min_p_threshold(params);
        return MIN_P_COMPARES_VALUES ? prefix_to_key(given, last_key_at_min_p(given.first_value, min_p))
                                     : prefix_above(given, f.log2e_over_t, min_p);
    }
    if (filter == FILTER_XTC && !xtc_acts(params, f.state)) {
        return given;
    }
    // All filters below but top-k need the mass of the given set; eta and typical-p need its entropy too.
    Maxima maxima = f.bounds();
    SetEntropy sums{0, f.step.vocab, 0.0f};
    ApproxRow row{0, 0, 0.0f};
    // Of the weights of the given set, for p-less.
    u64 squares = 0;
    // For top-p over the whole row the survey's approximate mass suffices. Unless a list decides, the search reads all
    // tiles anyway and computes the exact mass on the way.
    bool is_approx = filter == FILTER_TOP_P && params.features & FEATURE_FILTER_SUMS && given.is_prefix &&
                     given.cut.last == full_cut().last;
    if (filter != FILTER_TOP_K) {
        maxima = f.maxima(given);
        if (is_approx) {
            row = approximate_row(f, given.first_value);
            sums.mass = row.mass;
        } else if (filter == FILTER_ETA_CUTOFF || filter == FILTER_TYPICAL_P) {
            sums = entropy_of_set(f.blocks(), f.view, maxima, given, f.log2e_over_t);
        } else {
            // p-less takes two masses. That at twice the scale is the sum of the squares of the weights.
            float scale = filter == FILTER_P_LESS ? 2.0f : 1.0f;
#pragma unroll 1
            for (bool last = false; !last; scale = 1.0f) {
                last = scale == 1.0f;
                squares = sums.mass;
                SetMass set_mass = mass_of_set(f.blocks(), f.view, maxima, given, given.cut, scale * f.log2e_over_t);
                sums.mass = set_mass.mass;
                sums.count = set_mass.count;
            }
        }
    }
    const float log2_z = log2_mass(sums.mass), threshold = filter_float(params, filter);
    switch (filter) {
    case FILTER_TOP_K:
    case FILTER_TYPICAL_P:
    case FILTER_TOP_P: {
        const GivenSet kept = prefix_reaching_goal(f, filter, maxima, given, sums, is_approx, row, k);
        return is_top_h ? top_h(f, kept) : kept;
    }
    case FILTER_TOP_A:
        return prefix_above(given, f.log2e_over_t, threshold - log2_z);
    case FILTER_P_LESS:
        return prefix_above(given, f.log2e_over_t, log2_mass(squares) - log2_z);
    case FILTER_EPSILON_CUTOFF:
        return prefix_above(given, f.log2e_over_t, threshold + log2_z);
    case FILTER_ETA_CUTOFF:
        return prefix_above(given, f.log2e_over_t, fminf(threshold, threshold / 2.0f - sums.entropy) + log2_z);
    default:
        return xtc(f, given, params.xtc_threshold + log2_z);
    }
}

// Returns what the filters of a chain, or mirostat, keep of a row that is not empty; in every thread. `first` is the
// key of the row's first token.
template <class V>
DEVICE GivenSet apply_filters(const FilterContext<V>& f, u64 first, u64 filter_chain) {
    const GivenSet full_set{Cut{first, full_cut().last}, key_logit(first), true};
    if (f.params.features & FEATURE_MIROSTAT) {
        float log2_z =
            log2_mass(mass_of_set(f.blocks(), f.view, f.bounds(), full_set, full_set.cut, f.log2e_over_t).mass);
        float log2e_over_t = f.log2e_over_t, mu = f.state.mirostat_mu;
        const Origin first(full_set.first_value);
        return prefix_while(full_set, [=](float z) INLINE { return log2_z - exponent(z, first, log2e_over_t) <= mu; });
    }
    // In shared memory, because the filters leave no registers for it.
    GivenSet& kept = f.storage.left;
    if (threadIdx.x == 0) {
        kept = full_set;
    }
    // The set that the filter itself keeps, to which min_keep may add tokens.
    GivenSet& alone = f.storage.kept;
    bool joint = f.params.features & FEATURE_JOINT, widens = f.params.min_keep > 1, is_widening = false;
    for (u64 chain = filter_chain; chain != 0;) {
        // RAW on kept and alone: thread 0 wrote them, all threads read them.
        __syncthreads();
        GivenSet given = joint ? GivenSet{full_set} : GivenSet{kept};
        if (is_widening) {
            given = suffix_from(given, alone.cut.first);
        }
        const u32 filter = is_widening ? FILTER_TOP_K : (u32)chain & 15;
        const u32 k = filter == FILTER_TOP_H ? COUNTED_TOP_H : f.params.filter_numbers[FILTER_TOP_K];
        GivenSet left = apply_filter(f, filter, given, is_widening ? f.params.min_keep : k);
        // WAR on kept and alone: all threads read them, thread 0 overwrites them.
        __syncthreads();
        // With min_keep, each filter is followed by top-k, of its given set from the first token that it keeps on
        // (F11).
        is_widening = widens && !is_widening;
        chain >>= is_widening ? 0 : 4;
        if (threadIdx.x == 0 && is_widening) {
            alone = left;
        } else if (threadIdx.x == 0) {
            if (widens) {
                left.cut.last = left.cut.last < alone.cut.last ? left.cut.last : alone.cut.last;
            }
            if (joint) {
                left.cut = intersect(left.cut, kept.cut);
                left.first_value = key_logit(left.cut.first);
                left.is_prefix = left.cut.first == first;
            }
            kept = left;
        }
    }
    // RAW on kept: thread 0 wrote it, all threads read it.
    __syncthreads();
    // No filter keeps an empty interval, but in a joint chain the intersection can be empty; the first token then stays
    // (F9).
    return kept.cut.is_empty() ? GivenSet{Cut{first, first}, full_set.first_value, true} : GivenSet{kept};
}

// Returns the scales of a row that is not empty. With dynamic temperature it reads the whole row (F7).
template <class V>
DEVICE Scales compute_scales(const FilterContext<V>& f, u64 first) {
    const Params& params = f.params;
    Scales scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
    if (!(params.features & FEATURE_DYNAMIC_TEMPERATURE)) {
        return scales;
    }
    const GivenSet full_set{Cut{first, full_cut().last}, key_logit(first), true};
    SetEntropy sums = entropy_of_set(f.blocks(), f.view, f.bounds(), full_set, log2_e());
    float power = 0.0f;
    if (sums.entropy > 0.0f && sums.count > 1) {
        float ratio = fminf(sums.entropy / log2_rule(u64_to_float(sums.count)), 1.0f);
        power = exp2_rule(params.dynamic_exponent * log2_rule(ratio));
    }
    float t = params.dynamic_min + (params.dynamic_max - params.dynamic_min) * power;
    scales.temperature = t < bits_float((127 - 100) << 23) ? 0.0f : t;
    scales.log2e_over_t = log2_e() / t;
    bool apart = (params.features & FEATURE_TEMPERATURE_LAST) && !(params.features & FEATURE_MIROSTAT);
    scales.filter_log2e_over_t = apart ? log2_e() : scales.log2e_over_t;
    return scales;
}

// Returns mirostat's mu after `token` was drawn from the kept set (F6), tau being `mu_target` and eta `mu_rate`.
template <class V>
DEVICE float next_mu(const FilterContext<V>& f, const GivenSet& kept, u32 token) {
    float log2_z = log2_mass(mass_of_set(f.blocks(), f.view, f.bounds(), kept, kept.cut, f.log2e_over_t).mass);
    float surprise = log2_z - exponent(f.view.logit(token), Origin(kept.first_value), f.log2e_over_t);
    return f.state.mirostat_mu - f.params.mu_rate * (surprise - f.params.mu_target);
}
