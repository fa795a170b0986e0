// candidate_draw.cuh: filters on short sets, and the race among what they keep (rules F1, F2, F4, M4, D1); device functions of a
// block.
//
// Computes   what top-k or a small nucleus and the filters after it keep, and which of those tokens wins
// Never      reads a tile that holds no more of the list than its first token; never sorts by anything but keys, which
//            all differ; never asks a long nucleus for its end where top-k keeps a short list of it
// Twins      CPU cpu/src/filter/{list,select}.rs | why docs/stages/filter.md
// Traffic    8 bytes per tile for a nucleus; the logits of the tiles that the list has several tokens of
// Requires   all threads of the block, whole warps
//
// Joint top-k and top-p (F9): each keeps a prefix of the order, so together they keep the shorter one. Let M(i) be the mass of the first i
// tokens, by the one mass function (M4), and G the goal of the nucleus, which goes by the mass of the whole row. The nucleus ends with the
// first i with M(i) >= G, and top-k with i = k: the list has the first k tokens and M of each, so it has the first end of the two. Of G the
// survey knows bounds; the end is sure if it is the same at both. Where no i below k has M(i) >= G at either, k is the end, and
// nobody asks how long the nucleus is. One visit to the records finds two bars: k tokens reach one, and tokens that weigh the goal at its
// upper bound reach the other. The list goes down to the higher one: of a short nucleus it is the nucleus, and else the first k.
//
// Each token counts the tokens before it, which gives its place, and adds up what they add to the mass of the prefix it ends: of a
// tile's first token that is known at once, of others the warp that finds them knows. One warp does the rest.
#pragma once

#include "block/candidates.cuh"
#include "stage/general_draw.cuh"

// The one list of a block.
DEVICE CandidateList& shared_candidates() {
    static_assert(sizeof(CandidateList) <= LIST_CAPACITY * sizeof(u64), "the room for tokens on chip holds a list");
    return *(CandidateList*)shared_keys();
}

// What a chain of filters goes by, read once: each read of memory would make the block wait.
struct FilterChain {
    u32 filters;
    // Whether top-p goes by the mass of the row wherever it stands.
    bool joint;
    u32 top_k;
    u32 top_p;
    // As `min_p_threshold` says.
    float min_p;
    float epsilon;
    float xtc_threshold;
};

DEVICE FilterChain filter_chain_of(const Params& params) {
    bool joint = (params.features & FEATURE_JOINT) != 0;
    return FilterChain{params.filter_chain,     joint,          params.top_k,        params.top_p,
                       min_p_threshold(params), params.epsilon, params.xtc_threshold};
}

// Says that the list came to nothing.
DEVICE bool reject_list() {
    // Without it others could use the room for something else while a slower warp still reads why.
    __syncthreads();
    return false;
}

// Asks `find_threshold` for a number of tokens.
struct CountGoal {
    // Of fewer tokens than that all are listed.
    static const bool ACCEPTS_ALL = true;
    static const bool HAS_COUNT_GOAL = false;
    u32 count;

    DEVICE_MEMBER u32 amount(float, u64) { return 1; }
    DEVICE_MEMBER u32 other_amount(float) const { return 1; }
    DEVICE_MEMBER bool gives_up(u32) const { return false; }
    // Whether a row that has enough tokens surely has more candidates than `capacity`. A count that arrived in the device's memory
    // may be any number: only the host limits those that it knows.
    DEVICE_MEMBER bool exceeds(u32 capacity) const { return count > capacity; }
    DEVICE_MEMBER void publish_mass() {}
    DEVICE_MEMBER u32 goal() { return count; }
};

// Hands on what a warp found of the row's mass, for after a barrier.
DEVICE void store_warp_mass(u64* scratch, u64 own) {
    own = warp_sum(own);
    if (lane_id() == 0) {
        scratch[warp_id()] = own;
    }
}

DEVICE u64 total_warp_mass(const u64* scratch) { return warp_sum(lane_id() < warp_count() ? scratch[lane_id()] : 0); }

// Asks `find_threshold` for a part of the row's mass, and adds that up on the way.
struct MassGoal {
    static const bool ACCEPTS_ALL = false;
    static const bool HAS_COUNT_GOAL = false;
    float first;
    float log2e_over_t;
    u32 top_p;
    u64* scratch;
    u64 own;
    // About the row's mass.
    u64 mass;

    // In units of 2^-19 of the first token's weight, so that those of all tiles fit a word; rounded down.
    DEVICE_MEMBER u32 other_amount(float z) const { return (u32)(tile_factor(z, first, log2e_over_t) * 524288.0f); }
    DEVICE_MEMBER u32 amount(float maximum, u64 sum) {
        if (!(maximum > MASKED_VALUE)) {
            return 0;
        }
        own += tile_mass(tile_factor(maximum, first, log2e_over_t), sum);
        return other_amount(maximum);
    }
    // So many tokens more than there is room for: few of them lie in one bin, and a search takes less than to find out.
    DEVICE_MEMBER bool gives_up(u32 count) const { return count > MAX_CANDIDATES + MAX_CANDIDATES / 4; }
    // How many tokens have the mass is not known before they are looked at.
    DEVICE_MEMBER bool exceeds(u32) const { return false; }
    DEVICE_MEMBER void publish_mass() {
        store_warp_mass(scratch, own);
        own = 0;
    }
    // After a barrier; rounded up.
    DEVICE_MEMBER u32 goal() {
        mass = total_warp_mass(scratch);
        u64 goal = (target_mass(top_p, mass_upper_bound(mass)) >> 24) + 1;
        return goal >> 32 ? ~0u : (u32)goal;
    }
};

// Asks it for the same or for a number of tokens, whichever are fewer: joint top-k and top-p.
struct CountOrMassGoal : MassGoal {
    static const bool ACCEPTS_ALL = true;
    static const bool HAS_COUNT_GOAL = true;
    u32 count;

    DEVICE_MEMBER CountOrMassGoal(const MassGoal& mass, u32 count) : MassGoal(mass), count(count) {}
    DEVICE_MEMBER bool gives_up(u32) const { return false; }
    DEVICE_MEMBER u32 count_goal() const { return count; }
};

// Draws the arrivals of the listed tokens that are not the first of their tiles; by some threads, of which this is one.
DEVICE void draw_arrivals(CandidateList& list, const RngStream& rng, u32 thread, u32 threads) {
    u32 firsts = list.first_count(), count = list.count();
#pragma unroll 1
    for (u32 i = firsts + thread; i < count; i += threads) {
        u32 id = key_id(list.keys[i]), tile = id / TILE;
        FirstArrival first = first_arrival(rng, tile);
        list.log2_arrivals[i] = log2_of_normal(token_arrival(rng, first, tile, id % TILE));
    }
}

// Keys or masses that are read at once.
struct alignas(16) U64x2 {
    u64 of[2];
};

// Puts the listed tokens in order, and adds up what they add to the mass; by the first warps, of `threads` threads.
DEVICE void rank_candidates(CandidateList& list, u32 threads) {
    u32 count = list.count();
    // So many threads count for one token: as large a power of two as there are threads for, but no more than have two pairs each.
    int bits = 64 - leading_zeros(count), shift = count <= threads ? 64 - leading_zeros(threads) - bits : 0;
    shift -= shift > 0 && count << shift > threads;
    shift = shift < 5 ? shift : 5;
    shift = shift < bits - 3 ? shift : bits > 3 ? bits - 3 : 0;
    u32 threads_per_key = 1u << shift, thread_of_key = threadIdx.x & (threads_per_key - 1);
    // A warp is whole or has none: others need not wait for its instructions.
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

// How many listed tokens a lane holds.
#define LANE_CANDIDATES 2

// The first of the listed tokens and the masses up to them, dealt out among the lanes of a warp: read at once, and few lists have
// more.
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

// How many of the first `count` tokens pass, by a warp: `passes(key, mass)`, the mass up to it.
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

// Places in the list from `start` on and before `end`.
struct ListRange {
    u32 start;
    u32 end;
    // Whether the row's mass decides the same wherever it lies.
    bool is_certain;
};

// What a chain of filters keeps of a row whose first tokens are listed, by a warp. `mass` is about the row's, if a filter goes by that and
// the list is not the row.
template <class XtcActs>
DEVICE ListRange filter_candidates(const CandidateList& list, const LaneCandidates& lane_candidates,
                                   const FilterChain& chain, float log2e_over_t, u64 mass, XtcActs xtc_acts) {
    ListRange kept{0, list.count(), true};
    const Origin first(key_logit(list.ordered[0]));
#pragma unroll 1
    for (u32 filters = chain.filters; filters != 0; filters >>= 4) {
        u32 filter = filters & 15;
        float threshold = chain.min_p;
        if (filter == FILTER_TOP_K) {
            kept.end = kept.end < chain.top_k ? kept.end : chain.top_k;
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
                    // Whether the nucleus has as many of the listed tokens at least, be the row's mass the least that it may be. Where it
                    // does not end within, top-k must have ended it before, or the list might.
                    u64 least = target_mass(chain.top_p, mass_lower_bound(mass));
                    bool same = kept.end == 1 || list.masses[kept.end - 2] < least;
                    kept.is_certain = same && (within || (chain.joint && kept.end == chain.top_k));
                }
                continue;
            }
            threshold = (filter == FILTER_XTC ? chain.xtc_threshold : chain.epsilon) + log2_mass(mass);
        }
        u32 reach = count_passing(list, lane_candidates, kept.end, [&](u64 key, u64) INLINE {
            return exponent(key_logit(key), first, log2e_over_t) >= threshold;
        });
        if (filter != FILTER_XTC) {
            kept.end = reach > 1 ? reach : 1;
        } else if (reach > 1 && xtc_acts()) {
            // It is the last of its chain, or the chain would not be done on a list.
            kept.start = reach - 1;
        }
    }
    return kept;
}

// The winner of the race among listed tokens, by a warp; `index` in shared memory becomes its place.
DEVICE u32 race_candidates(const CandidateList& list, const LaneCandidates& lane_candidates, const ListRange& kept,
                           float log2e_over_t, u32& index) {
    const Origin first(key_logit(list.ordered[kept.start]));
    u64 leader = 0;
    u32 own_index = 0;
    auto run = [&](u32 i, u64 key) INLINE {
        if ((i >= kept.start) & (i < kept.end)) {
            u64 own = make_leader(exponent(key_logit(key), first, log2e_over_t) - list.log2_arrivals[list.from[i]],
                                  key_id(key));
            own_index = own > leader ? i : own_index;
            leader = own > leader ? own : leader;
        }
    };
#pragma unroll
    for (u32 k = 0; k < LANE_CANDIDATES; k++) {
        run(32 * k + lane_id(), lane_candidates.keys[k]);
    }
#pragma unroll 1
    for (u32 i = 32 * LANE_CANDIDATES + lane_id(); i < kept.end; i += 32) {
        run(i, list.ordered[i]);
    }
    u64 best = warp_max(leader);
    if (leader == best) {
        index = own_index;
    }
    return key_id(best);
}

// Lists the first tokens of a row, in order: at least all that the filters keep. The request must ask for a list, and it
// must have been cleared, with a barrier after that. Fails if what the filters keep may be long. In the first warp `mass`
// becomes about the row's, if it is known and the list is not the row.
template <bool DRAWS_ARRIVALS = true, class V>
DEVICE bool list_candidates(const Step& step, const RowRecords& records, const V& view, const FilterChain& chain,
                            const RngStream& rng, const RowSummary& summary, float log2e_over_t, u64& mass) {
    __shared__ u64 scratch[32];
    CandidateList& list = shared_candidates();
    float first = key_logit(summary.first_key), threshold = MIN_TOKEN_VALUE;
    mass = 0;
    bool found = true;
    if (step.vocab <= MAX_CANDIDATES) {
        list_tile_firsts(list, records, threshold);
        // Without it a warp would miss what others have not listed yet.
        __syncthreads();
    } else if ((chain.filters & 15) == FILTER_TOP_K) {
        u32 limit = chain.top_k + chain.top_k / 4 + 16;
        if (chain.joint) {
            CountOrMassGoal goal_policy{MassGoal{first, log2e_over_t, chain.top_p, scratch, 0, 0}, chain.top_k};
            found = find_threshold(list, records, first, summary.least_maximum, goal_policy, limit, threshold);
            // Where all are listed the list says it exactly.
            mass = threshold == MIN_TOKEN_VALUE ? 0 : goal_policy.mass;
        } else {
            CountGoal goal_policy{chain.top_k};
            found = find_threshold(list, records, first, summary.least_maximum, goal_policy, limit, threshold);
        }
    } else {
        MassGoal goal_policy{first, log2e_over_t, chain.top_p, scratch, 0, 0};
        found = find_threshold(list, records, first, summary.least_maximum, goal_policy, MAX_CANDIDATES / 4, threshold);
        mass = goal_policy.mass;
    }
    if (!found || !gather_others(list, view, threshold, first, log2e_over_t)) {
        return reject_list();
    }
    // Helpers leave while the list is worked on.
    retire_row(step);
    // The last warps draw arrivals while the others put the tokens in order.
    u32 drawing = (list.other_count + 31) / 32 < warp_count() / 2 ? (list.other_count + 31) / 32 : warp_count() / 2;
    drawing = DRAWS_ARRIVALS ? drawing : 0;
    u32 ranking = blockDim.x - 32 * drawing;
    if (!DRAWS_ARRIVALS) {
        // Nobody asks for them.
    } else if (drawing == 0) {
        draw_arrivals(list, rng, threadIdx.x, blockDim.x);
    } else if (threadIdx.x >= ranking) {
        draw_arrivals(list, rng, threadIdx.x - ranking, 32 * drawing);
    }
    if (threadIdx.x < ranking) {
        rank_candidates(list, ranking);
    }
    // Without it the first warp would read places that others have not filled yet.
    __syncthreads();
    return true;
}

// What the filters keep of a row that is listed, and which token wins, if the list says so for sure.
struct ListDraw {
    GivenSet kept;
    u32 token;
    bool is_certain;
    // Of the token in the list.
    u32 index;
};

// The same, in every thread, by the first warp. `xtc_acts` says whether XTC acts on the row; one thread does `end` as soon as it
// knows what is drawn; all threads do `meanwhile` once they have no part in the draw.
template <class XtcActs, class End, class Meanwhile>
DEVICE const ListDraw& draw_from_candidates(const FilterChain& chain, const Scales& scales, u64 mass, XtcActs xtc_acts,
                                            End end, Meanwhile meanwhile) {
    __shared__ ListDraw list_draw;
    if (warp_id() == 0) {
        CandidateList& list = shared_candidates();
        const LaneCandidates lane_candidates(list);
        ListRange range = filter_candidates(list, lane_candidates, chain, scales.filter_log2e_over_t, mass, xtc_acts);
        u32 token = race_candidates(list, lane_candidates, range, scales.log2e_over_t, list_draw.index);
        if (lane_id() == 0) {
            u64 from = list.ordered[range.start], to = list.ordered[range.end - 1];
            list_draw.kept = GivenSet{Cut{from, to}, key_logit(from), range.start == 0};
            list_draw.token = token;
            list_draw.is_certain = range.is_certain;
            end(token, range.is_certain);
        }
    }
    meanwhile();
    // Without it the other warps would read what came of it too early.
    __syncthreads();
    return list_draw;
}

template <class XtcActs, class Meanwhile>
DEVICE const ListDraw& draw_from_candidates(const FilterChain& chain, const Scales& scales, u64 mass, XtcActs xtc_acts,
                                            Meanwhile meanwhile) {
    return draw_from_candidates(chain, scales, mass, xtc_acts, [](u32, bool) INLINE {}, meanwhile);
}
