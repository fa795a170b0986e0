// filter.cu: from a survey to a cut (rules F1 to F10); device functions that the draw's kernel includes.
//
// Computes   the keys between which tokens may be drawn; by a warp, in every lane
// Never      reads logits: a threshold on y is monotone in the logit, so the least logit that passes is searched
//            for among the floats
// Twins      oracle spec/src/filter.rs | CPU cpu/src/filter | why docs/stages/filter.md
#pragma once

#include "search.cuh"

// What a row's filters have to go by.
template <class V>
struct Filtering {
    const Step& step;
    const Params& params;
    const State& state;
    u32 row;
    const V& view;
    // The scale of the filters, which dynamic temperature may have changed.
    float s;

    // Bounds of the maxima of any set of the row's tokens; those of a prefix themselves.
    DEVICE_MEMBER Maxima bounds() const { return surveyed_maxima(step, row); }

    // The maxima of a given set's tokens in each tile.
    DEVICE_MEMBER Maxima maxima(const Given& given) const {
        return given.prefix ? bounds() : give(view, bounds(), given.cut, room_for_maxima(step, row, 0));
    }
};

// The prefix of a set down to a key, but with its first token.
DEVICE Given down_to(const Given& given, u64 last) {
    last = last < given.cut.first ? last : given.cut.first;
    return Given{Cut{given.cut.first, last > given.cut.last ? last : given.cut.last}, given.first, given.prefix};
}

// The prefix of a set whose logits pass, which is monotone; the first token in any case (F2).
template <class Passes>
DEVICE Given while_logit(const Given& given, Passes passes) {
    return down_to(given, passes(given.first) ? last_key_of(least_logit(given.first, passes)) : given.cut.first);
}

// The prefix of a set whose y at a scale reaches a threshold.
DEVICE Given at_least(const Given& given, float s, float threshold) {
    const Origin first(given.first);
    return while_logit(given, [=](float z) INLINE { return exponent(z, first, s) >= threshold; });
}

// The least key that min-p keeps beside a first token, where it compares numbers (P1a). The first token passes. Where the product
// rounds to 0 every token does.
DEVICE u64 last_key_of_min_p(float first, float min_p) { return last_key_of(larger(min_p * first, LEAST)); }

// The first and the last token of a cut, by their keys; there is one.
template <class V>
DEVICE Cut ends_of(const Filtering<V>& f, const Cut& cut) {
    u64 most = 0, least = 0;
    visit_tiles(
        f.view, f.bounds(), cut.low(),
        [&](u32 tile, float, const float(&z)[PER_LANE], bool) INLINE {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                u64 key = key_of(z[j], tile * TILE + f.view.place(tile, lane_id(), j));
                bool member = cut.contains(key);
                most = member && key > most ? key : most;
                least = member && ~key > least ? ~key : least;
            }
        },
        [](u32, float, bool) INLINE {});
    return Cut{block_largest(most), ~block_largest(least)};
}

// What is left of a set from a key on, which is a token's.
DEVICE Given from_key(const Given& given, u64 first) {
    return Given{Cut{first, given.cut.last}, key_logit(first), given.prefix && first == given.cut.first};
}

// Whether XTC acts on a row (F4).
DEVICE bool xtc_acts(const Params& params, const State& state) {
    return philox(params.seed, 0, state.position, TAG_XTC, params.draw).w[0] < params.xtc_probability;
}

// Drops the tokens at or above a threshold but the last of them (F4).
template <class V>
DEVICE Given xtc(const Filtering<V>& f, const Given& given, float threshold) {
    if (!(0.0f >= threshold)) {
        return given;
    }
    Given top = at_least(given, f.s, threshold);
    return from_key(given, ends_of(f, top.cut).last);
}

// How far a logit lies below the first, in units of 2^-12 (F5).
DEVICE u32 deviation(float first, float z) {
    return float_to_u32(fminf(round_even((first - z) * 4096.0f), 4194303.0f));
}

// The f64 nearest to a u128.
DEVICE double wide_to_double(u64 high, u64 low) {
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
DEVICE Given top_n_sigma(const Filtering<V>& f, const Given& given) {
    u64 count = 0, sum = 0, squares = 0;
    float first = given.first;
    visit_tiles(
        f.view, f.bounds(), given.cut.low(),
        [&](u32 tile, float, const float(&z)[PER_LANE], bool) INLINE {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                if (given.cut.contains(key_of(z[j], tile * TILE + f.view.place(tile, lane_id(), j)))) {
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
    u64 high = high_product_of_u64(count, squares) - high_product_of_u64(sum, sum) - (low < square);
    double sigma = double_ratio(double_root(wide_to_double(high, low - square)), u64_to_double(count));
    double limit = double_product((double)f.params.top_n_sigma, sigma);
    return while_logit(given, [=](float z) INLINE { return (double)deviation(first, z) <= limit; });
}

// As logits of models are spread, one that hardly any token is below, where tiles' maxima go down to `low`.
DEVICE float spread_low(const Given& given, float low) {
    const Ruler ruler(given.first);
    float top = ruler.height(given.first);
    return ruler.at(top - 4.0f * (top - ruler.height(low)));
}

// A logit that the k-th token of a set reaches: surely, if there are as many tiles; else as logits of models are spread.
DEVICE float likely_low(const Maxima& maxima, const Given& given, u32 k) {
    u64 least = 0;
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < maxima.tiles; tile += blockDim.x) {
        float maximum = maxima.of(tile);
        u64 own = maximum > NOTHING ? ~ordered_bits(maximum) : 0;
        least = own > least ? own : least;
    }
    float low = from_ordered_bits(~(u32)block_largest(least));
    return k <= maxima.tiles ? low : spread_low(given, low);
}

// What a row comes to before anything of it is weighed: its mass, about, from the survey's sums; that of the first tokens of its
// tiles; and its least maximum.
struct AboutRow {
    u64 mass;
    u64 firsts;
    float low;
};

template <class V>
DEVICE AboutRow surveyed(const Filtering<V>& f, float first) {
    __shared__ u64 masses[32];
    __shared__ u64 all_firsts[32];
    __shared__ u32 lows[32];
    const Record* records = f.step.records + (u64)f.row * f.step.tiles;
    const u64* sums = f.step.sums + (u64)f.row * f.step.tiles;
    u64 mass = 0, firsts = 0;
    u32 low = 0;
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < f.step.tiles; tile += blockDim.x) {
        float maximum = records[tile].maximum;
        u64 sum = sums[tile];
        if (maximum > NOTHING) {
            float factor = factor_of(maximum, first, f.s);
            mass += tile_mass(factor, sum);
            firsts += tile_mass(factor, 1u << 28);
            u32 own = ~ordered_bits(maximum);
            low = own > low ? own : low;
        }
    }
    mass = warp_sum(mass);
    firsts = warp_sum(firsts);
    low = __reduce_max_sync(ALL_LANES, low);
    // Without it a warp could overwrite what a slower one still reads of another filter's.
    __syncthreads();
    if (lane_id() == 0) {
        masses[warp_id()] = mass;
        all_firsts[warp_id()] = firsts;
        lows[warp_id()] = low;
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    bool has = lane_id() < warps();
    mass = warp_sum(has ? masses[lane_id()] : 0);
    firsts = warp_sum(has ? all_firsts[lane_id()] : 0);
    low = __reduce_max_sync(ALL_LANES, has ? lows[lane_id()] : 0);
    return AboutRow{mass, firsts, from_ordered_bits(~low)};
}

// The shortest prefix of a set that has so many tokens (top-k) or its share of the mass (top-p, F1), or the tokens whose
// surprise is nearest to the entropy that have it (typical-p, F3). `about` says that the mass is not exact.
template <class V>
DEVICE Given reaching(const Filtering<V>& f, u32 filter, const Maxima& maxima, const Given& given,
                      const WeighedEntropy& sums, bool about, const AboutRow& row) {
    bool nearest = filter == FILTER_TYPICAL_P, by_mass = filter != FILTER_TOP_K;
    float likely = about ? spread_low(given, row.low) : likely_low(maxima, given, by_mass ? ~0u : f.params.top_k);
    Searched<V> set{f.step, f.row, f.view};
    const Order order{nearest, Origin(given.first), f.s, log_mass(sums.mass), sums.entropy};
    if (threadIdx.x == 0) {
        Search& search = set.search();
        u32 share = nearest ? f.params.typical_p : f.params.top_p;
        u64 goal = by_mass ? target_mass(share, about ? least_of(sums.mass) : sums.mass) : f.params.top_k;
        search.given = given;
        search.maxima = maxima;
        search.order = order;
        search.s = f.s;
        // Of no mass the first token has enough.
        search.by_mass = by_mass && goal != 0;
        search.goal = goal != 0 ? goal : 1;
        search.share = about && search.by_mass ? share : 0;
        search.doubt = search.share ? target_mass(share, most_of(sums.mass)) - goal : 0;
        float low = given.cut.low();
        bool all = given.cut.last == cut_all().last;
        search.masked = !given.prefix || !(all || (!nearest && given.cut.last == last_key_of(low)));
        search.plain = !nearest && !search.masked;
        search.every = search.plain && search.by_mass ? tiles_for_each(maxima.tiles, search.share) : 1;
        search.lo = Reached{nearest ? -LARGEST : low, sums.mass, sums.count};
        search.hi = Reached{INFINITE, 0, 0};
        // All tokens with y below this weigh 2^-6 of what the goal leaves, if each weighs as much as one can.
        float y = log_mass(sums.mass - search.goal + 1) - log2_rule(u64_to_float(f.step.vocab)) - 6.0f;
        if (nearest) {
            float early = bits_float(float_bits(order.excess(given.first)) & 0x7FFFFFFF);
            search.highest = 0.0f;
            search.least = -larger(early, search.by_mass ? order.lz - order.entropy - y : 0.0f);
            search.lowest = larger(search.least, -larger(early, order.excess(likely)));
        } else {
            search.highest = given.first;
            search.least = search.by_mass ? down(given.first, way_down(y, f.s)) : likely;
            search.lowest = larger(search.least, likely);
        }
    }
    // As many second tokens weigh no more than the first.
    bool may = about && row.firsts >= target_mass(f.params.top_p, row.mass) / 2;
    u64 reached = find(set, may && list_upper<V>(f.step, f.row, row.low));
    if (!nearest) {
        return down_to(given, reached);
    }
    float delta = -key_logit(reached);
    // Along the row's order the excess rises: the tokens near enough are those not too late and not too early.
    Cut cut{given.cut.first, last_key_of(least_logit(given.first, [=](float z) INLINE { return order.excess(z) <= delta; }))};
    cut.last = cut.last > given.cut.last ? cut.last : given.cut.last;
    if (order.excess(given.first) < -delta) {
        float early = least_logit(given.first, [=](float z) INLINE { return order.excess(z) < -delta; });
        cut.first = ends_of(f, Cut{last_key_of(early) - 1, cut.last}).first;
    }
    return Given{cut, key_logit(cut.first), given.prefix && cut.first == given.cut.first};
}

// What one filter keeps of a given set.
template <class V>
DEVICE Given apply(const Filtering<V>& f, u32 filter, const Given& given) {
    const Params& params = f.params;
    if (filter == FILTER_TOP_N_SIGMA) {
        return top_n_sigma(f, given);
    }
    if (filter == FILTER_MIN_P) {
        float min_p = min_p_of(params);
        return MIN_P_OF_NUMBERS ? down_to(given, last_key_of_min_p(given.first, min_p)) : at_least(given, f.s, min_p);
    }
    if (filter == FILTER_XTC && !xtc_acts(params, f.state)) {
        return given;
    }
    // The others go by what the given set comes to, but for top-k: it counts on its way.
    Maxima maxima = f.bounds();
    WeighedEntropy sums{0, f.step.vocab, 0.0f};
    AboutRow row{0, 0, 0.0f};
    // What the survey knows about does: the search reads all tiles anyway.
    bool about = filter == FILTER_TOP_P && params.asks & ASKS_SUMS && given.prefix && given.cut.last == cut_all().last;
    if (filter != FILTER_TOP_K) {
        maxima = f.maxima(given);
        if (about) {
            row = surveyed(f, given.first);
            sums.mass = row.mass;
        } else if (filter == FILTER_ETA || filter == FILTER_TYPICAL_P) {
            sums = weigh_with_entropy(f.view, maxima, given, f.s);
        } else {
            Weighed weighed = weigh(f.view, maxima, given, given.cut, f.s);
            sums.mass = weighed.mass;
            sums.count = weighed.count;
        }
    }
    float lz = log_mass(sums.mass);
    switch (filter) {
    case FILTER_TOP_K:
    case FILTER_TYPICAL_P:
    case FILTER_TOP_P: return reaching(f, filter, maxima, given, sums, about, row);
    case FILTER_EPSILON: return at_least(given, f.s, params.epsilon + lz);
    case FILTER_ETA: return at_least(given, f.s, fminf(params.eta, params.eta / 2.0f - sums.entropy) + lz);
    default: return xtc(f, given, params.xtc_threshold + lz);
    }
}

// What the filters of a request keep of a row that is not empty, by a block, in every thread; `first` is its first key.
template <class V>
DEVICE Given filter(const Filtering<V>& f, u64 first) {
    const Given whole{Cut{first, cut_all().last}, key_logit(first), true};
    if (f.params.asks & ASKS_MIROSTAT) {
        float lz = log_mass(weigh(f.view, f.bounds(), whole, whole.cut, f.s).mass);
        float s = f.s, mu = f.state.mu;
        const Origin first(whole.first);
        return while_logit(whole, [=](float z) INLINE { return lz - exponent(z, first, s) <= mu; });
    }
    // What is left of the row; not in registers, of which the filters have too few.
    __shared__ Given kept;
    if (threadIdx.x == 0) {
        kept = whole;
    }
    bool joint = f.params.asks & ASKS_JOINT;
    for (u32 chain = f.params.chain; chain != 0; chain >>= 4) {
        // Without it the set would be read before it is there.
        __syncthreads();
        Given left = apply(f, chain & 15, joint ? Given{whole} : Given{kept});
        // Without it the set would be overwritten before it is read.
        __syncthreads();
        if (threadIdx.x == 0) {
            if (joint) {
                left.cut = both(left.cut, kept.cut);
                left.first = key_logit(left.cut.first);
                left.prefix = left.cut.first == first;
            }
            kept = left;
        }
    }
    // The same as in the loop.
    __syncthreads();
    // Each of the intervals joined has its first token, but they may have none in common (F9).
    return kept.cut.is_empty() ? Given{Cut{first, first}, whole.first, true} : Given{kept};
}

// The temperature of a row and the scales that follow from it (F7, F8, N6).
struct Heat {
    // 0 where the row is greedy.
    float temperature;
    float s;
    float filter_s;
};

// The temperature of a row that is not empty; dynamic temperature is worked out here.
template <class V>
DEVICE Heat temperature(const Filtering<V>& f, u64 first) {
    const Params& params = f.params;
    Heat heat{params.effective_temperature, params.s, params.filter_s};
    if (!(params.asks & ASKS_DYNAMIC_TEMPERATURE)) {
        return heat;
    }
    const Given whole{Cut{first, cut_all().last}, key_logit(first), true};
    WeighedEntropy sums = weigh_with_entropy(f.view, f.bounds(), whole, log2_e());
    float power = 0.0f;
    if (sums.entropy > 0.0f && sums.count > 1) {
        float ratio = fminf(sums.entropy / log2_rule(u64_to_float(sums.count)), 1.0f);
        power = exp2_rule(params.dynamic_exponent * log2_rule(ratio));
    }
    float t = params.dynamic_min + (params.dynamic_max - params.dynamic_min) * power;
    heat.temperature = t < bits_float((127 - 100) << 23) ? 0.0f : t;
    heat.s = log2_e() / t;
    bool apart = (params.asks & ASKS_TEMPERATURE_LAST) && !(params.asks & ASKS_MIROSTAT);
    heat.filter_s = apart ? log2_e() : heat.s;
    return heat;
}

// Mirostat's limit after a token was drawn from a kept set (F6).
template <class V>
DEVICE float next_mu(const Filtering<V>& f, const Given& kept, u32 token) {
    float lz = log_mass(weigh(f.view, f.bounds(), kept, kept.cut, f.s).mass);
    float surprise = lz - exponent(f.view.logit(token), Origin(kept.first), f.s);
    return f.state.mu - f.params.mirostat_eta * (surprise - f.params.mirostat_tau);
}
