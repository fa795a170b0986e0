// draw.cuh: draws a row's token from what its filters keep (rules D1, D3, F6); device functions of a block.
//
// Computes   the token that wins the race, among the kept tokens of a candidate list or of the row; the next mu
// Traffic    that of race.cuh; nothing if the kept tokens are on a list
// Twins      oracle spec/src/draw.rs | CPU cpu/src/draw.rs | why docs/stages/draw.md
// Requires   the row's survey, and its cut: candidate_filter.cuh or kept_set.cuh; all threads of the block, whole warps
#pragma once

#include "block/race.cuh"
#include "stage/candidate_filter.cuh"
#include "stage/tested_draw.cuh"

// Returns the id of the token that wins the race among the kept tokens of the list (D1); by a warp, in every lane.
// Writes the token's index in the ordered list to `index`, in shared memory.
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

// The result of a draw from the list; valid only if `is_certain`.
struct ListDraw {
    GivenSet kept;
    u32 token;
    bool is_certain;
    // The token's index in the ordered list, and the index after that of the last kept token.
    u32 index;
    u32 end;
};

// Filters the list and draws from it in warp 0; `list_draw` takes the result, for all threads. `xtc_acts()` returns
// whether XTC acts on the row. Thread 0 calls `end(token, is_certain)` right after the draw. Every thread calls
// `meanwhile()`: warp 0 after the draw, the others at once.
template <class XtcActs, class End, class Meanwhile>
DEVICE void draw_from_candidates(ListDraw& list_draw, const CandidateList& list, const FilterChain& chain,
                                 const Scales& scales, u64 mass, XtcActs xtc_acts, End end, Meanwhile meanwhile) {
    if (warp_id() == 0) {
        const LaneCandidates lane_candidates(list);
        ListRange range = filter_candidates(list, lane_candidates, chain, scales.filter_log2e_over_t, mass, xtc_acts);
        u32 token = race_candidates(list, lane_candidates, range, scales.log2e_over_t, list_draw.index);
        if (lane_id() == 0) {
            u64 from = list.ordered[range.start], to = list.ordered[range.end - 1];
            list_draw.kept = GivenSet{Cut{from, to}, key_logit(from), range.start == 0};
            list_draw.token = token;
            list_draw.is_certain = range.is_certain;
            list_draw.end = range.end;
            end(token, range.is_certain);
        }
    }
    meanwhile();
    // RAW on list_draw and on the results of `meanwhile`: warp 0 wrote the former, all warps the latter; all warps read
    // them.
    __syncthreads();
}

// The result of a draw from the whole row.
struct RowDraw {
    // NO_TOKEN if nothing was drawn.
    int token;
    float mirostat_mu;
};

// The shared memory of a block that filters a row and draws from it.
struct DrawStorage {
    SummaryStorage summary;
    FilterStorage filter;
    RaceStorage race;
    TestedDraw tested;
    // The results of a draw from the candidate list and of one from the whole row.
    ListDraw list_draw;
    RowDraw row_draw;
};

// The race of adaptive-p over a kept set (D3): the probability that weighs the most, and the sum of the weights, in
// units of the first token's.
struct Adaptive {
    float goal;
    float sum;

    // The exponent of a token, given its weight in units of the first one's.
    DEVICE_MEMBER float exponent(float weight) const {
        const float p = weight / sum, distance = fabsf(p - goal) * bits_float(0x40555555u);
        const float fall = distance * distance / (1.0f + distance) * bits_float(0x4166D4CAu);
        return p > 0.0f ? -fall : -INF_F32;
    }
};

// Returns the id of the kept token that wins the race of adaptive-p, in every thread. The blocks share the tiles.
template <class V>
DEVICE u32 race_adaptive(const FilterContext<V>& f, const Maxima& maxima, const RngStream& rng, const GivenSet& kept,
                         const Adaptive& adaptive) {
    u64 leader = 0;
    visit_set(
        f.view, maxima, kept, kept.cut,
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
            const FirstArrival first = first_arrival(rng, tile);
            // No exponent is above 0.
            if (!reaches_score(-log2_of_normal(first.e), (u32)(leader >> 32))) {
                return;
            }
#pragma unroll 1
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                const float own_z = select_item(z, j);
                if (own_z > MASKED_VALUE) {
                    const u32 offset = f.view.offset(lane_id(), j);
                    const float y = adaptive.exponent(tile_factor(own_z, kept.first_value, f.log2e_over_t));
                    const float arrival = token_arrival(rng, first, tile, offset);
                    const u64 own = make_leader(y - log2_of_normal(arrival), tile * TILE + offset);
                    leader = own > leader ? own : leader;
                }
            }
            leader = warp_max(leader);
        },
        [](u32, float, bool) INLINE {}, f.blocks().tiles());
    u64 best[] = {leader};
    f.blocks().max(best);
    // There is no leader if the row is written meanwhile.
    return best[0] != 0 ? key_id(best[0]) : key_id(kept.cut.first);
}

// Draws among the kept tokens by adaptive-p, and returns the token with the next mu; in every thread. `f` has the
// draw's scale.
template <class V>
DEVICE RowDraw draw_adaptive(const FilterContext<V>& f, const RngStream& rng, const GivenSet& kept) {
    const Maxima maxima = f.maxima(kept);
    const u64 mass = mass_of_set(f.blocks(), f.view, maxima, kept, kept.cut, f.log2e_over_t).mass;
    const float mean = fminf(fmaxf(f.state.mirostat_mu, 0.0f), 1.0f);
    const Adaptive adaptive{fminf(fmaxf(2.0f * f.params.mu_target - mean, 0.0f), 1.0f), relative_mass(mass)};
    const u32 token = race_adaptive(f, maxima, rng, kept, adaptive);
    const float p = tile_factor(f.view.logit(token), kept.first_value, f.log2e_over_t) / adaptive.sum;
    return RowDraw{(int)token, f.params.mu_rate * mean + (1.0f - f.params.mu_rate) * p};
}

// Draws among the kept tokens of `storage.filter.kept`, and updates mu. A barrier must follow before other
// threads read `storage.row_draw`. Not inlined, as few rows need it.
template <class T, bool EDITED>
DEVICE_NOINLINE void race_kept_set(const Step& step, u32 row, int slot, Scales scales, DrawStorage& storage) {
    RowContext<T, EDITED> context(step, row, slot);
    const GivenSet kept = storage.filter.kept;
    const RngStream rng = race_stream(context.params, context.state);
    const auto f = context.filter_context(scales.log2e_over_t, storage.filter);
    RowDraw drawn{NO_TOKEN, context.state.mirostat_mu};
    if (context.params.features & FEATURE_ADAPTIVE) {
        drawn = draw_adaptive(f, rng, kept);
    } else {
        drawn.token = (int)race(f.blocks(), storage.race, RowRecords(step, row, false), context.view, rng, kept,
                                scales.log2e_over_t);
    }
    if (context.params.features & FEATURE_MIROSTAT) {
        drawn.mirostat_mu = next_mu(f, kept, (u32)drawn.token);
    }
    if (threadIdx.x == 0) {
        storage.row_draw = drawn;
    }
}

// Filters a whole row and, if `draws`, draws its token. The results are in `storage`, for all threads: `filter.kept`
// and `row_draw`. `first` is the key of the row's first token.
template <class T, bool EDITED>
DEVICE void filter_and_race(const Step& step, u32 row, int slot, bool draws, u64 first, Scales scales,
                            DrawStorage& storage) {
    find_kept_set<T, EDITED>(step, row, slot, first, step.params[slot].filter_chain, scales.filter_log2e_over_t,
                             storage.filter);
    if (draws) {
        race_kept_set<T, EDITED>(step, row, slot, scales, storage);
    } else if (threadIdx.x == 0) {
        storage.row_draw = RowDraw{NO_TOKEN, step.states[slot].mirostat_mu};
    }
    // RAW on row_draw: thread 0 wrote it, all threads of the caller read it.
    __syncthreads();
}
