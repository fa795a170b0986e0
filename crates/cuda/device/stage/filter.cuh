// filter.cuh: from a survey to a cut (rules F1 to F10); device functions that the draw's kernel includes.
//
// Computes   the keys between which tokens may be drawn; by a warp, in every lane
// Never      reads logits: a threshold on y is monotone in the logit, so the least logit that passes is searched
//            for among the floats
// Twins      oracle spec/src/filter.rs | CPU cpu/src/filter | why docs/stages/filter.md
#pragma once

#include "math/arrival.cuh"
#include "math/params.cuh"
#include "block/search.cuh"

// What a row's filters have to go by.
template <class V>
struct FilterContext {
    const Step& step;
    const Params& params;
    const State& state;
    u32 row;
    const V& view;
    // The scale of the filters, which dynamic temperature may have changed.
    float log2e_over_t;

    // Bounds of the maxima of any set of the row's tokens; those of a prefix themselves.
    DEVICE_MEMBER Maxima bounds() const { return survey_maxima(step, row); }

    // The maxima of a given set's tokens in each tile.
    DEVICE_MEMBER Maxima maxima(const GivenSet& given) const {
        return given.is_prefix ? bounds() : compute_maxima(view, bounds(), given.cut, scratch_maxima(step, row, 0));
    }
};

// The prefix of a set down to a key, but with its first token.
DEVICE GivenSet prefix_to_key(const GivenSet& given, u64 last) {
    last = last < given.cut.first ? last : given.cut.first;
    return GivenSet{Cut{given.cut.first, last > given.cut.last ? last : given.cut.last}, given.first_value,
                    given.is_prefix};
}

// The prefix of a set whose logits pass, which is monotone; the first token in any case (F2).
template <class Passes>
DEVICE GivenSet prefix_while(const GivenSet& given, Passes passes) {
    return prefix_to_key(given, passes(given.first_value) ? last_key_at(least_passing_logit(given.first_value, passes))
                                                          : given.cut.first);
}

// The prefix of a set whose y at a scale reaches a threshold.
DEVICE GivenSet prefix_above(const GivenSet& given, float log2e_over_t, float threshold) {
    const Origin first(given.first_value);
    return prefix_while(given, [=](float z) INLINE { return exponent(z, first, log2e_over_t) >= threshold; });
}

// The least key that min-p keeps beside a first token, where it compares numbers (P1a). The first token passes. Where the product
// rounds to 0 every token does.
DEVICE u64 last_key_at_min_p(float first, float min_p) { return last_key_at(max_f32(min_p * first, MIN_TOKEN_VALUE)); }

// The first and the last token of a cut, by their keys; there is one.
template <class V>
DEVICE Cut cut_ends(const FilterContext<V>& f, const Cut& cut) {
    u64 most = 0, least = 0;
    visit_tiles(
        f.view, f.bounds(), cut.low(),
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                u64 key = make_key(z[j], tile * TILE + f.view.offset(tile, lane_id(), j));
                bool member = cut.contains(key);
                most = member && key > most ? key : most;
                least = member && ~key > least ? ~key : least;
            }
        },
        [](u32, float, bool) INLINE {});
    return Cut{block_max(most), ~block_max(least)};
}

// What is left of a set from a key on, which is a token's.
DEVICE GivenSet suffix_from(const GivenSet& given, u64 first) {
    return GivenSet{Cut{first, given.cut.last}, key_logit(first), given.is_prefix && first == given.cut.first};
}

// Whether XTC acts on a row (F4).
DEVICE bool xtc_acts(const Params& params, const State& state) {
    return philox(params.seed, 0, state.position, TAG_XTC, params.draw).w[0] < params.xtc_probability;
}

// Drops the tokens at or above a threshold but the last of them (F4).
template <class V>
DEVICE GivenSet xtc(const FilterContext<V>& f, const GivenSet& given, float threshold) {
    if (!(0.0f >= threshold)) {
        return given;
    }
    GivenSet top = prefix_above(given, f.log2e_over_t, threshold);
    return suffix_from(given, cut_ends(f, top.cut).last);
}

// How far a logit lies below the first, in units of 2^-12 (F5).
DEVICE u32 deviation(float first, float z) {
    return float_to_u32(fminf(round_half_even((first - z) * 4096.0f), 4194303.0f));
}

// The f64 nearest to a u128.
DEVICE double u128_to_double(u64 high, u64 low) {
    if (high == 0) {
        return u64_to_double(low);
    }
    int bits = 64 - leading_zeros(high);
    u64 top = bits == 64 ? high : (high << (64 - bits)) | (low >> bits);
    u64 rest = bits == 64 ? low : low << (64 - bits);
    // What was cut off only decides between halves.
    double power = u64_to_double(1ull << (bits / 2)) * u64_to_double(1ull << (bits - bits / 2));
    return u64_to_double(top | (rest != 0)) * power;
}

// Keeps the tokens within n standard deviations of the first logit (F5).
template <class V>
DEVICE GivenSet top_n_sigma(const FilterContext<V>& f, const GivenSet& given) {
    u64 count = 0, sum = 0, squares = 0;
    float first = given.first_value;
    visit_tiles(
        f.view, f.bounds(), given.cut.low(),
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                if (given.cut.contains(make_key(z[j], tile * TILE + f.view.offset(tile, lane_id(), j)))) {
                    u64 x = deviation(first, z[j]);
                    count++;
                    sum += x;
                    squares += x * x;
                }
            }
        },
        [](u32, float, bool) INLINE {});
    count = block_sum(count);
    sum = block_sum(sum);
    squares = block_sum(squares);
    u64 low = count * squares, square = sum * sum;
    u64 high = mul_hi_u64(count, squares) - mul_hi_u64(sum, sum) - (low < square);
    double sigma = double_ratio(double_sqrt(u128_to_double(high, low - square)), u64_to_double(count));
    double limit = double_product((double)f.params.top_n_sigma, sigma);
    return prefix_while(given, [=](float z) INLINE { return (double)deviation(first, z) <= limit; });
}

// As logits of models are spread, one that hardly any token is below, where tiles' maxima go down to `low`.
DEVICE float spread_low(const GivenSet& given, float low) {
    const HeightScale height_scale(given.first_value);
    float top = height_scale.height(given.first_value);
    return height_scale.at(top - 4.0f * (top - height_scale.height(low)));
}

// A logit that the k-th token of a set reaches: surely, if there are as many tiles; else as logits of models are spread.
DEVICE float likely_low(const Maxima& maxima, const GivenSet& given, u32 k) {
    u64 least = 0;
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < maxima.tiles; tile += blockDim.x) {
        float maximum = maxima.of(tile);
        u64 own = maximum > MASKED_VALUE ? ~ordered_bits(maximum) : 0;
        least = own > least ? own : least;
    }
    float low = from_ordered_bits(~(u32)block_max(least));
    return k <= maxima.tiles ? low : spread_low(given, low);
}

// What a row comes to before anything of it is weighed: its mass, about, from the survey's sums; that of the first tokens of its
// tiles; and its least maximum.
struct ApproxRow {
    u64 mass;
    u64 firsts_mass;
    float least_maximum;
};

template <class V>
DEVICE ApproxRow approximate_row(const FilterContext<V>& f, float first) {
    __shared__ u64 masses[32];
    __shared__ u64 all_firsts[32];
    __shared__ u32 lows[32];
    const TileRecord* records = f.step.records + (u64)f.row * f.step.tiles;
    const u64* sums = f.step.filter_sums + (u64)f.row * f.step.tiles;
    u64 mass = 0, lane_candidates = 0;
    u32 low = 0;
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < f.step.tiles; tile += blockDim.x) {
        float maximum = records[tile].maximum;
        u64 sum = sums[tile];
        if (maximum > MASKED_VALUE) {
            float factor = tile_factor(maximum, first, f.log2e_over_t);
            mass += tile_mass(factor, sum);
            lane_candidates += tile_mass(factor, 1u << 28);
            u32 own = ~ordered_bits(maximum);
            low = own > low ? own : low;
        }
    }
    mass = warp_sum(mass);
    lane_candidates = warp_sum(lane_candidates);
    low = __reduce_max_sync(FULL_MASK, low);
    // Without it a warp could overwrite what a slower one still reads of another filter's.
    __syncthreads();
    if (lane_id() == 0) {
        masses[warp_id()] = mass;
        all_firsts[warp_id()] = lane_candidates;
        lows[warp_id()] = low;
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    bool in_block = lane_id() < warp_count();
    mass = warp_sum(in_block ? masses[lane_id()] : 0);
    lane_candidates = warp_sum(in_block ? all_firsts[lane_id()] : 0);
    low = __reduce_max_sync(FULL_MASK, in_block ? lows[lane_id()] : 0);
    return ApproxRow{mass, lane_candidates, from_ordered_bits(~low)};
}

// The shortest prefix of a set that has so many tokens (top-k) or its share of the mass (top-p, F1), or the tokens whose
// surprise is nearest to the entropy that have it (typical-p, F3). `is_approx` says that the mass is not exact.
template <class V>
DEVICE GivenSet prefix_reaching_goal(const FilterContext<V>& f, u32 filter, const Maxima& maxima, const GivenSet& given,
                                     const SetEntropy& sums, bool is_approx, const ApproxRow& row) {
    bool nearest = filter == FILTER_TYPICAL_P, by_mass = filter != FILTER_TOP_K;
    float likely =
        is_approx ? spread_low(given, row.least_maximum) : likely_low(maxima, given, by_mass ? ~0u : f.params.top_k);
    SearchedRow<V> set{f.step, f.row, f.view};
    const Order order{nearest, Origin(given.first_value), f.log2e_over_t, log2_mass(sums.mass), sums.entropy};
    if (threadIdx.x == 0) {
        Search& search = set.search();
        u32 goal_fraction = nearest ? f.params.typical_p : f.params.top_p;
        u64 goal =
            by_mass ? target_mass(goal_fraction, is_approx ? mass_lower_bound(sums.mass) : sums.mass) : f.params.top_k;
        search.given = given;
        search.maxima = maxima;
        search.order = order;
        search.log2e_over_t = f.log2e_over_t;
        // Of no mass the first token has enough.
        search.by_mass = by_mass && goal != 0;
        search.goal = goal != 0 ? goal : 1;
        search.goal_fraction = is_approx && search.by_mass ? goal_fraction : 0;
        search.goal_slack = search.goal_fraction ? target_mass(goal_fraction, mass_upper_bound(sums.mass)) - goal : 0;
        float low = given.cut.low();
        bool all = given.cut.last == full_cut().last;
        search.needs_key_test = !given.is_prefix || !(all || (!nearest && given.cut.last == last_key_at(low)));
        search.plain = !nearest && !search.needs_key_test;
        search.tile_stride = search.plain && search.by_mass ? sampling_stride(maxima.tiles, search.goal_fraction) : 1;
        search.lo = RangeEnd{nearest ? -MAX_F32 : low, sums.mass, sums.count};
        search.hi = RangeEnd{INF_F32, 0, 0};
        // All tokens with y below this weigh 2^-6 of what the goal leaves, if each weighs as much as one can.
        float y = log2_mass(sums.mass - search.goal + 1) - log2_rule(u64_to_float(f.step.vocab)) - 6.0f;
        if (nearest) {
            float early = bits_float(float_bits(order.excess(given.first_value)) & 0x7FFFFFFF);
            search.highest = 0.0f;
            search.least = -max_f32(early, search.by_mass ? order.log2_z - order.entropy - y : 0.0f);
            search.lowest = max_f32(search.least, -max_f32(early, order.excess(likely)));
        } else {
            search.highest = given.first_value;
            search.least = search.by_mass
                               ? apply_threshold_offset(given.first_value, threshold_offset(y, f.log2e_over_t))
                               : likely;
            search.lowest = max_f32(search.least, likely);
        }
    }
    // As many second tokens weigh no more than the first.
    bool may = is_approx && row.firsts_mass >= target_mass(f.params.top_p, row.mass) / 2;
    u64 reached = find_crossing(set, may && list_nucleus<V>(f.step, f.row, row.least_maximum));
    if (!nearest) {
        return prefix_to_key(given, reached);
    }
    float delta = -key_logit(reached);
    // Along the row's order the excess rises: the tokens near enough are those not too late and not too early.
    Cut cut{given.cut.first, last_key_at(least_passing_logit(
                                 given.first_value, [=](float z) INLINE { return order.excess(z) <= delta; }))};
    cut.last = cut.last > given.cut.last ? cut.last : given.cut.last;
    if (order.excess(given.first_value) < -delta) {
        float early = least_passing_logit(given.first_value, [=](float z) INLINE { return order.excess(z) < -delta; });
        cut.first = cut_ends(f, Cut{last_key_at(early) - 1, cut.last}).first;
    }
    return GivenSet{cut, key_logit(cut.first), given.is_prefix && cut.first == given.cut.first};
}

// What one filter keeps of a given set.
template <class V>
DEVICE GivenSet apply_filter(const FilterContext<V>& f, u32 filter, const GivenSet& given) {
    const Params& params = f.params;
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
    // The others go by what the given set comes to, but for top-k: it counts on its way.
    Maxima maxima = f.bounds();
    SetEntropy sums{0, f.step.vocab, 0.0f};
    ApproxRow row{0, 0, 0.0f};
    // What the survey knows about does: the search reads all tiles anyway.
    bool is_approx = filter == FILTER_TOP_P && params.features & FEATURE_FILTER_SUMS && given.is_prefix &&
                     given.cut.last == full_cut().last;
    if (filter != FILTER_TOP_K) {
        maxima = f.maxima(given);
        if (is_approx) {
            row = approximate_row(f, given.first_value);
            sums.mass = row.mass;
        } else if (filter == FILTER_ETA || filter == FILTER_TYPICAL_P) {
            sums = entropy_of_set(f.view, maxima, given, f.log2e_over_t);
        } else {
            SetMass set_mass = mass_of_set(f.view, maxima, given, given.cut, f.log2e_over_t);
            sums.mass = set_mass.mass;
            sums.count = set_mass.count;
        }
    }
    float log2_z = log2_mass(sums.mass);
    switch (filter) {
    case FILTER_TOP_K:
    case FILTER_TYPICAL_P:
    case FILTER_TOP_P:
        return prefix_reaching_goal(f, filter, maxima, given, sums, is_approx, row);
    case FILTER_EPSILON:
        return prefix_above(given, f.log2e_over_t, params.epsilon + log2_z);
    case FILTER_ETA:
        return prefix_above(given, f.log2e_over_t, fminf(params.eta, params.eta / 2.0f - sums.entropy) + log2_z);
    default:
        return xtc(f, given, params.xtc_threshold + log2_z);
    }
}

// What the filters of a request keep of a row that is not empty, by a block, in every thread; `first` is its first key.
template <class V>
DEVICE GivenSet apply_filters(const FilterContext<V>& f, u64 first) {
    const GivenSet full_set{Cut{first, full_cut().last}, key_logit(first), true};
    if (f.params.features & FEATURE_MIROSTAT) {
        float log2_z = log2_mass(mass_of_set(f.view, f.bounds(), full_set, full_set.cut, f.log2e_over_t).mass);
        float log2e_over_t = f.log2e_over_t, mu = f.state.mirostat_mu;
        const Origin first(full_set.first_value);
        return prefix_while(full_set, [=](float z) INLINE { return log2_z - exponent(z, first, log2e_over_t) <= mu; });
    }
    // What is left of the row; not in registers, of which the filters have too few.
    __shared__ GivenSet kept;
    if (threadIdx.x == 0) {
        kept = full_set;
    }
    bool joint = f.params.features & FEATURE_JOINT;
    for (u32 chain = f.params.filter_chain; chain != 0; chain >>= 4) {
        // Without it the set would be read before it is there.
        __syncthreads();
        GivenSet left = apply_filter(f, chain & 15, joint ? GivenSet{full_set} : GivenSet{kept});
        // Without it the set would be overwritten before it is read.
        __syncthreads();
        if (threadIdx.x == 0) {
            if (joint) {
                left.cut = intersect(left.cut, kept.cut);
                left.first_value = key_logit(left.cut.first);
                left.is_prefix = left.cut.first == first;
            }
            kept = left;
        }
    }
    // The same as in the loop.
    __syncthreads();
    // Each of the intervals joined has its first token, but they may have none in common (F9).
    return kept.cut.is_empty() ? GivenSet{Cut{first, first}, full_set.first_value, true} : GivenSet{kept};
}

// The temperature of a row and the scales that follow from it (F7, F8, N6).
struct Scales {
    // 0 where the row is greedy.
    float temperature;
    float log2e_over_t;
    float filter_log2e_over_t;
};

// The temperature of a row that is not empty; dynamic temperature is worked out here.
template <class V>
DEVICE Scales compute_scales(const FilterContext<V>& f, u64 first) {
    const Params& params = f.params;
    Scales scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
    if (!(params.features & FEATURE_DYNAMIC_TEMPERATURE)) {
        return scales;
    }
    const GivenSet full_set{Cut{first, full_cut().last}, key_logit(first), true};
    SetEntropy sums = entropy_of_set(f.view, f.bounds(), full_set, log2_e());
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

// Mirostat's limit after a token was drawn from a kept set (F6).
template <class V>
DEVICE float next_mu(const FilterContext<V>& f, const GivenSet& kept, u32 token) {
    float log2_z = log2_mass(mass_of_set(f.view, f.bounds(), kept, kept.cut, f.log2e_over_t).mass);
    float surprise = log2_z - exponent(f.view.logit(token), Origin(kept.first_value), f.log2e_over_t);
    return f.state.mirostat_mu - f.params.mirostat_eta * (surprise - f.params.mirostat_tau);
}
