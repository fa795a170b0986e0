// candidate_filter.cuh: lists a row's first tokens and applies its filters to that list (rules F1, F2, F4, F12, M4);
// device functions of a block.
//
// Computes   the part of the list that a chain keeps which begins with top-k or top-p
// Never      reads a tile of which only the first token can be on the list, unless it counts all tokens; sorts by
//            anything but keys, which all differ; looks for the end of a long nucleus if top-k keeps a short part of it
// Twins      CPU cpu/src/filter/{list,select}.rs | why docs/stages/filter.md
// Traffic    8 bytes per tile for a nucleus; the logits of the tiles that may have several tokens on the list
// Requires   all threads of the block, whole warps
//
// Joint top-k and top-p (F9): each keeps a prefix of the order, so together they keep the shorter one. Let M(i) be the
// mass of the first i tokens (M4), and G the goal of the nucleus, a share of the whole row's mass. The nucleus ends at
// the first i with M(i) >= G, and top-k at i = k. The list holds the first k tokens with M of each, so it shows which
// end comes first. The survey gives a lower and an upper bound of G. The end is certain if both bounds lead to it. If
// M(i) is below both bounds for every i < k, the end is k, however long the nucleus is.
//
//     one visit to the records: a logit that k tokens reach; a logit whose tokens weigh the upper bound of G
//     list all tokens that reach the higher of the two: a short nucleus, otherwise the first k
//     each listed token: index = number of tokens before it, in a short list by comparing it with all, in a long one by
//         bins of logits; prefix mass = sum of their gains and its own
//     one warp: applies the filters to the list
//
// A gain is the amount that a token adds to the mass of the prefix that it ends (M4). A first token's gain follows from
// its tile alone. The gains of a tile's other tokens depend on each other; the warp that gathers the tile computes
// them.
#pragma once

#include "block/tied_tokens.cuh"
#include "stage/filter.cuh"

// The parameters of a filter chain, copied once: each read from global memory would add its latency to the row's.
struct FilterChain {
    // Four bits per filter, in the order they act, from the lowest bits; 0 ends the chain.
    u64 filters;
    // Whether each filter acts on the whole row (F9): top-p then takes a share of the row's mass at any position of the
    // chain.
    bool joint;
    // How many first tokens of the row the first filter looks at; 0 if it looks at any.
    u32 first_tokens;
    u32 top_k;
    u32 top_h;
    u32 top_p;
    // The result of `min_p_threshold`.
    float min_p;
    // L of top-a and of epsilon.
    float top_a;
    float epsilon;
    float xtc_threshold;
};

DEVICE FilterChain filter_chain_of(const Params& params) {
    bool joint = (params.features & FEATURE_JOINT) != 0;
    return FilterChain{params.filter_chain,
                       joint,
                       params.first_tokens,
                       params.filter_numbers[FILTER_TOP_K],
                       params.filter_numbers[FILTER_TOP_H],
                       params.filter_numbers[FILTER_TOP_P],
                       min_p_threshold(params),
                       filter_float(params, FILTER_TOP_A),
                       filter_float(params, FILTER_EPSILON_CUTOFF),
                       params.xtc_threshold};
}

// Returns false in every thread: the row has no usable list, and the caller searches it.
DEVICE bool reject_list() {
    // WAR on the list's bins and counts: slower warps still read them, and the search overwrites that shared memory.
    __syncthreads();
    return false;
}

// A goal of `find_threshold`: a number of tokens, for top-k.
struct CountGoal {
    // If the row has fewer tokens, all of them are listed.
    static const bool ACCEPTS_ALL = true;
    static const bool HAS_COUNT_GOAL = false;
    u32 count;

    DEVICE_MEMBER u32 amount(float, u64) { return 1; }
    DEVICE_MEMBER u32 other_amount(float) const { return 1; }
    DEVICE_MEMBER bool gives_up(u32, bool) const { return false; }
    // Whether a row that reaches the goal certainly has more candidates than `capacity`. The host limits the counts
    // that it knows; a count from a column in device memory can be any number.
    DEVICE_MEMBER bool exceeds(u32 capacity) const { return count > capacity; }
    DEVICE_MEMBER void publish_mass() {}
    DEVICE_MEMBER u32 goal() { return count; }
};

// A goal of `find_threshold`: a share of the row's mass, for top-p. It sums that mass during each visit.
struct MassGoal {
    static const bool ACCEPTS_ALL = false;
    static const bool HAS_COUNT_GOAL = false;
    // The logit of the row's first token.
    float first;
    float log2e_over_t;
    u32 top_p;
    // One word per warp.
    u64* scratch;
    // The mass of the tiles that this thread has visited in this round.
    u64 own;
    // The row's mass from the survey's approximate sums, between mass_lower_bound and mass_upper_bound of it; set by
    // goal().
    u64 mass;

    // The weight in units of 2^-19 of the first token's, rounded down. The sum over the first and second tokens of all
    // tiles fits 32 bits, except in a row of 2^20 equal ones: there it is 0, which misses the goal.
    static_assert(2ull * MAX_TILES << 19 <= 1ull << 32, "a sum wraps to 0 alone");
    DEVICE_MEMBER u32 other_amount(float z) const { return (u32)(tile_factor(z, first, log2e_over_t) * 524288.0f); }
    DEVICE_MEMBER u32 amount(float maximum, u64 sum) {
        if (!(maximum > MASKED_VALUE)) {
            return 0;
        }
        own += tile_mass(tile_factor(maximum, first, log2e_over_t), sum);
        return other_amount(maximum);
    }
    // Whether to stop looking for a threshold that `count` tokens reach, which exceeds the list's capacity: by more
    // than a quarter, or at all once the bins are fine. A search takes less time than another round.
    DEVICE_MEMBER bool gives_up(u32 count, bool is_fine) const {
        return is_fine || count > MAX_CANDIDATES + MAX_CANDIDATES / 4;
    }
    // The number of tokens that make up the mass is unknown before they are read.
    DEVICE_MEMBER bool exceeds(u32) const { return false; }
    DEVICE_MEMBER void publish_mass() {
        store_warp_sum(scratch, own);
        own = 0;
    }
    // The goal at the mass' upper bound, rounded up, in units of 2^-19. A barrier must separate it from publish_mass.
    DEVICE_MEMBER u32 goal() {
        mass = total_of_warps(scratch);
        u64 goal = (target_mass(top_p, mass_upper_bound(mass)) >> 24) + 1;
        return goal >> 32 ? ~0u : (u32)goal;
    }
};

// A goal of `find_threshold` for joint top-k and top-p: a share of the mass or a number of tokens, whichever is reached
// first.
struct CountOrMassGoal : MassGoal {
    static const bool ACCEPTS_ALL = true;
    static const bool HAS_COUNT_GOAL = true;
    u32 count;

    DEVICE_MEMBER CountOrMassGoal(const MassGoal& mass, u32 count) : MassGoal(mass), count(count) {}
    DEVICE_MEMBER bool gives_up(u32, bool) const { return false; }
    DEVICE_MEMBER u32 count_goal() const { return count; }
};

// Draws the arrivals of the listed tokens that are not the first of their tiles. `threads` threads share the work; this
// one has number `thread`.
DEVICE void draw_arrivals(CandidateList& list, const RngStream& rng, u32 thread, u32 threads) {
    u32 firsts = list.first_count(), count = list.count();
#pragma unroll 1
    for (u32 i = firsts + thread; i < count; i += threads) {
        u32 id = key_id(list.keys[i]), tile = id / TILE;
        FirstArrival first = first_arrival(rng, tile);
        list.log2_arrivals[i] = log2_of_normal(token_arrival(rng, first, tile, id % TILE));
    }
}

// Two keys or two gains, loaded together as 16 bytes.
struct alignas(16) U64x2 {
    u64 of[2];
};

// Up to this many tokens a list is sorted by comparing every pair of them.
#define FEW_CANDIDATES 96

// Sorts few listed tokens by rank and computes the mass of the prefix that each ends; by the block's first `threads`
// threads.
//
//     a group of 1 to 32 threads per token: each thread compares the token's key with its share of all keys
//         before = the number of larger keys; mass = the sum of their gains
//     the group adds up its threads' results; its first thread writes the token to index `before`
DEVICE void rank_few(CandidateList& list, u32 threads) {
    u32 count = list.count();
    // The threads per token are a power of two up to 32: as many as `threads` allows, while each of them still compares
    // at least two pairs of keys.
    int bits = 64 - leading_zeros(count), shift = count <= threads ? 64 - leading_zeros(threads) - bits : 0;
    shift -= shift > 0 && count << shift > threads;
    shift = shift < 5 ? shift : 5;
    shift = shift < bits - 3 ? shift : bits > 3 ? bits - 3 : 0;
    u32 threads_per_key = 1u << shift, thread_of_key = threadIdx.x & (threads_per_key - 1);
    // A warp runs a round with all its lanes, as its shuffles need, or not at all: an idle warp's instructions would
    // delay the others.
#pragma unroll 1
    for (u32 i = threadIdx.x >> shift; i - (lane_id() >> shift) < count; i += threads >> shift) {
        u64 own = i < count ? list.keys[i] : ~0ull, mass = 0;
        u32 before = 0;
#pragma unroll 1
        for (u32 j = 2 * thread_of_key; j < count; j += 2 * threads_per_key) {
            U64x2 keys = ((const U64x2*)list.keys)[j / 2], gains = ((const U64x2*)list.gains)[j / 2];
            bool first = keys.of[0] > own, second = j + 1 < count && keys.of[1] > own;
            before += first + second;
            mass += (first ? gains.of[0] : 0) + (second ? gains.of[1] : 0);
        }
#pragma unroll 1
        for (u32 delta = 1; delta < threads_per_key; delta *= 2) {
            before += __shfl_xor_sync(FULL_MASK, before, (int)delta);
            mass += __shfl_xor_sync(FULL_MASK, mass, (int)delta);
        }
        if (i < count && thread_of_key == 0) {
            list.ordered[before] = own;
            list.masses[before] = mass + list.gains[i];
            list.from[before] = (unsigned short)i;
        }
    }
}

// Sorts many listed tokens, of which `first` is the largest logit; by all threads of the block. Not inlined, so that
// its registers do not add to the registers of other rows' code.
//
//     divide the range of their logits into 256 bins; count the tokens of each
//     index = number of tokens in the bins before, and of larger keys in its own bin
DEVICE_NOINLINE void rank_in_bins(ReduceStorage& storage, CandidateList& list, float first) {
    const u32 count = list.count();
    u32* const bins = list.bins;
    // The listed tokens, bin by bin.
    u32* const sorted = list.weights;
    u64 least = 0;
    // The barriers in `block_max` lie between this and the first token that is counted.
#pragma unroll 1
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) {
        bins[i] = 0;
    }
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const u64 own = ~list.keys[i];
        least = own > least ? own : least;
    }
    const HeightScale height_scale(first);
    const float top = height_scale.height(first),
                low = max_f32(height_scale.height(key_logit(~block_max(storage, least))), top - RELEVANT_SPAN);
    const HeightBins range(low, top - low);
    // The last bin has the tokens below the range, too.
    auto bin_of = [&](u64 key) INLINE {
        const u32 bin = range.bin(height_scale.height(key_logit(key)));
        return bin < BINS ? bin : BINS - 1;
    };
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        atomicAdd(&bins[bin_of(list.keys[i])], 1u);
    }
    // RAW on the bins: all threads added to them, warp 0 reads them.
    __syncthreads();
    if (warp_id() == 0) {
        u32 before = 0;
#pragma unroll 1
        for (u32 i = lane_id(); i < BINS; i += 32) {
            const u32 own = bins[i], upto = warp_scan(own);
            bins[i] = before + upto - own;
            before += __shfl_sync(FULL_MASK, upto, 31);
        }
    }
    // RAW on the bins: warp 0 wrote where each begins, all threads move that to where it ends.
    __syncthreads();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        sorted[atomicAdd(&bins[bin_of(list.keys[i])], 1u)] = i;
    }
    // RAW on the bins and `sorted`: all threads wrote them, all threads read them.
    __syncthreads();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const u64 own = list.keys[i];
        const u32 bin = bin_of(own), start = bin == 0 ? 0 : bins[bin - 1], end = bins[bin];
        u32 before = start;
#pragma unroll 4
        for (u32 j = start; j < end; j++) {
            before += list.keys[sorted[j]] > own;
        }
        list.ordered[before] = own;
        list.from[before] = (unsigned short)i;
    }
}

// Computes the mass of the prefix that each token of a sorted list ends; by all threads of the block. A barrier must
// precede.
DEVICE void weigh_prefixes(ReduceStorage& storage, CandidateList& list) {
    const u32 count = list.count();
    u64 before = 0;
#pragma unroll 1
    for (u32 start = 0; start < count; start += blockDim.x) {
        const u32 i = start + threadIdx.x;
        const u64 own = i < count ? list.gains[list.from[i]] : 0;
        const BlockScan gains = block_scan(storage, own);
        if (i < count) {
            list.masses[i] = before + gains.before + own;
        }
        before += gains.total;
    }
    // RAW on masses: all threads wrote them, warp 0 reads them.
    __syncthreads();
}

// Sorts the list, whose largest logit is `first`; called by all threads. The first `threads` of them sort up to
// FEW_CANDIDATES tokens, and compute the masses; all of them sort more, without the masses (`weigh_prefixes`).
DEVICE void rank_candidates(ReduceStorage& storage, CandidateList& list, float first, u32 threads) {
    if (list.count() > FEW_CANDIDATES) {
        rank_in_bins(storage, list, first);
    } else if (threadIdx.x < threads) {
        rank_few(list, threads);
    }
}

// How many listed tokens a lane holds in registers.
#define LANE_CANDIDATES 2
static_assert(32 * LANE_CANDIDATES <= MAX_CANDIDATES && FEW_CANDIDATES <= MAX_CANDIDATES, "they are of the list");
static_assert(MAX_LISTED_TOP_K <= MAX_CANDIDATES && COUNTED_TOP_H <= MAX_CANDIDATES,
              "the list has all that are counted");

// The first 64 listed tokens with their prefix masses, two per lane of a warp, loaded together. Few lists are longer.
// Values at or beyond the list's count are undefined.
struct LaneCandidates {
    u64 keys[LANE_CANDIDATES];
    u64 masses[LANE_CANDIDATES];

    DEVICE_MEMBER explicit LaneCandidates(const CandidateList& list) {
#pragma unroll
        for (u32 k = 0; k < LANE_CANDIDATES; k++) {
            keys[k] = list.ordered[32 * k + lane_id()];
            masses[k] = list.masses[32 * k + lane_id()];
        }
    }
};

// Counts the ones of the first `count` tokens for which `passes(key, prefix_mass)` holds; by a warp, in every lane.
template <class Passes>
DEVICE u32 count_passing(const CandidateList& list, const LaneCandidates& lane_candidates, u32 count, Passes passes) {
    u32 lane = lane_id(), passing = 0;
#pragma unroll
    for (u32 k = 0; k < LANE_CANDIDATES; k++) {
        passing += __popc(__ballot_sync(FULL_MASK, (32 * k + lane < count) &
                                                       passes(lane_candidates.keys[k], lane_candidates.masses[k])));
    }
#pragma unroll 1
    for (u32 start = 32 * LANE_CANDIDATES; start < count; start += 32) {
        u32 i = start + lane < MAX_CANDIDATES ? start + lane : 0;
        passing += __popc(__ballot_sync(FULL_MASK, (start + lane < count) & passes(list.ordered[i], list.masses[i])));
    }
    return passing;
}

// A range of the ordered list: the indices from `start` up to, but not including, `end`.
struct ListRange {
    u32 start;
    u32 end;
    // Whether every row mass within the survey's error bounds leads to this range.
    bool is_certain;
};

// Returns the part of the list that a chain of filters keeps; by a warp, in every lane. `mass` is the row's approximate
// mass if a filter needs it and the list is not the whole row, otherwise 0.
//
//     kept = the whole list
//     for each filter of the chain:
//         top-k: at most the first k tokens stay
//         top-H: the first tokens stay that have its share of the entropy
//         top-p: the tokens stay up to the first whose prefix mass reaches the target
//         min-p, top-a, epsilon: the tokens at or above a threshold stay, and the first token in any case
//         XTC, if it acts: of the tokens at or above a threshold only the last stays; the tokens below stay too
//
// The first filter of a chain, and all filters of a joint one, take the mass of the row; later ones the mass of the
// kept tokens.
template <class XtcActs>
DEVICE ListRange filter_candidates(const CandidateList& list, const LaneCandidates& lane_candidates,
                                   const FilterChain& chain, float log2e_over_t, u64 mass, XtcActs xtc_acts) {
    ListRange kept{0, list.count(), true};
    const Origin first(key_logit(list.ordered[0]));
#pragma unroll 1
    for (u64 filters = chain.filters; filters != 0; filters >>= 4) {
        u32 filter = (u32)filters & 15;
        float threshold = chain.min_p;
        if (filter == FILTER_TOP_K) {
            kept.end = kept.end < chain.top_k ? kept.end : chain.top_k;
            continue;
        }
        if (filter == FILTER_TOP_H) {
            kept.end = top_h_count(list.ordered, kept.end, log2e_over_t, chain.top_h);
            continue;
        }
        if (MIN_P_COMPARES_VALUES && filter == FILTER_MIN_P) {
            u64 last = last_key_at_min_p(first.first, threshold);
            kept.end = count_passing(list, lane_candidates, kept.end, [&](u64 key, u64) INLINE { return key >= last; });
            continue;
        }
        if (filter != FILTER_MIN_P) {
            bool is_approx = (chain.joint || filters == chain.filters) && mass != 0;
            mass = is_approx ? mass : list.masses[(chain.joint ? list.count() : kept.end) - 1];
            if (filter == FILTER_TOP_P) {
                u64 target = target_mass(chain.top_p, is_approx ? mass_upper_bound(mass) : mass);
                u32 before =
                    count_passing(list, lane_candidates, kept.end, [&](u64, u64 upto) INLINE { return upto < target; });
                bool within = before < kept.end;
                kept.end = within ? before + 1 : kept.end;
                if (is_approx) {
                    // The end is computed for the largest mass that the row may have. It is certain if the nucleus is
                    // as long for the least mass. If the target is not reached within the list, the nucleus may go on
                    // behind it, unless top-k ends before.
                    u64 least = target_mass(chain.top_p, mass_lower_bound(mass));
                    bool same = kept.end == 1 || list.masses[kept.end - 2] < least;
                    kept.is_certain = same && (within || (chain.joint && kept.end == chain.top_k));
                }
                continue;
            }
            const float log2_z = log2_mass(mass);
            threshold = filter == FILTER_TOP_A ? chain.top_a - log2_z
                                               : (filter == FILTER_XTC ? chain.xtc_threshold : chain.epsilon) + log2_z;
        }
        u32 reach = count_passing(list, lane_candidates, kept.end, [&](u64 key, u64) INLINE {
            return exponent(key_logit(key), first, log2e_over_t) >= threshold;
        });
        if (filter != FILTER_XTC) {
            kept.end = reach > 1 ? reach : 1;
        } else if (reach > 1 && xtc_acts()) {
            // XTC is the last filter: chains in which others follow it are not tried on a list.
            kept.start = reach - 1;
        }
    }
    return kept;
}

// Lists the first tokens of a row, in order: at least all that the filters keep. Draws their arrivals with
// DRAWS_ARRIVALS. Returns false in every thread if the kept tokens may be more than the list holds. The request must
// have FEATURE_CANDIDATES. The list must be cleared, with a barrier between. Warp 0 gets the row's approximate mass in
// `mass`, or 0 if no filter needs it or the list holds the whole row.
//
//     threshold = a logit that enough tokens reach, by the records; any logit reaches it if vocab <= MAX_CANDIDATES
//     list the maxima that reach it; then read the tiles that may have further tokens, and list these
//     a short list: the last warps draw arrivals while the first ones rank the tokens and sum prefix masses
//     a long one: all warps draw, then rank, then sum
template <bool DRAWS_ARRIVALS, class V>
DEVICE bool list_candidates(FilterStorage& storage, const Step& step, const RowRecords& records, const V& view,
                            const FilterChain& chain, const RngStream& rng, const RowSummary& summary,
                            float log2e_over_t, u64& mass) {
    CandidateList& list = storage.search.candidates;
    float first = key_logit(summary.first_key), threshold = MIN_TOKEN_VALUE;
    mass = 0;
    bool found = true;
    if (step.vocab <= MAX_CANDIDATES) {
        list_tile_firsts(list, records, threshold);
        // RAW on the list's keys, open tiles and counts: all warps appended to them, all warps read them.
        __syncthreads();
    } else if (chain.first_tokens != 0) {
        u32 limit = chain.first_tokens + chain.first_tokens / 4 + 16;
        if (chain.joint) {
            CountOrMassGoal goal_policy{MassGoal{first, log2e_over_t, chain.top_p, storage.masses, 0, 0},
                                        chain.first_tokens};
            found = find_threshold(list, records, view, first, summary.least_maximum, goal_policy, limit, threshold);
            // If the list holds all tokens, its last prefix mass is the row's exact mass.
            mass = found && threshold == MIN_TOKEN_VALUE ? 0 : goal_policy.mass;
        } else {
            CountGoal goal_policy{chain.first_tokens};
            found = find_threshold(list, records, view, first, summary.least_maximum, goal_policy, limit, threshold);
        }
    } else {
        MassGoal goal_policy{first, log2e_over_t, chain.top_p, storage.masses, 0, 0};
        found = find_threshold(list, records, view, first, summary.least_maximum, goal_policy, MAX_CANDIDATES / 4,
                               threshold);
        mass = goal_policy.mass;
    }
    if (found) {
        found = gather_others(list, view, threshold, first, log2e_over_t);
    } else if (chain.first_tokens != 0 && begin_alike(list, records, chain.first_tokens)) {
        found = list_tied_tokens(list, records, view, chain.first_tokens, first, log2e_over_t);
    }
    if (!found) {
        return reject_list();
    }
    // The last warps draw arrivals while the others rank few tokens.
    const bool is_long = list.count() > FEW_CANDIDATES;
    u32 drawing = (list.other_count + 31) / 32 < warp_count() / 2 ? (list.other_count + 31) / 32 : warp_count() / 2;
    drawing = DRAWS_ARRIVALS && !is_long ? drawing : 0;
    u32 ranking = blockDim.x - 32 * drawing;
    if (!DRAWS_ARRIVALS) {
        // The caller draws nothing.
    } else if (drawing == 0) {
        draw_arrivals(list, rng, threadIdx.x, blockDim.x);
    } else if (threadIdx.x >= ranking) {
        draw_arrivals(list, rng, threadIdx.x - ranking, 32 * drawing);
    }
    rank_candidates(storage.search.reduce, list, first, ranking);
    // RAW on ordered, masses, from, log2_arrivals: all warps wrote elements, warp 0 draws from them, others may rank
    // them, and all read `from` in weigh_prefixes. WAR on the bins and weights: all threads read them, masses overwrite
    // them.
    __syncthreads();
    if (is_long) {
        weigh_prefixes(storage.search.reduce, list);
    }
    return true;
}
