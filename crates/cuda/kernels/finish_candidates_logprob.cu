// finish_candidates_logprob.cu: the end of a step whose rows have edits, or ask how likely their token was, and of all that is needed no more.
//
// Computes   what finish_general.cu computes of such rows: the token, its logprob and its rank
// Never      reads a logit outside the tiles that the list, the race or the rank needs, but where a list does not do
// Twins      as finish_general.cu, which rows that ask for more take; who takes which is in src/step.rs
// Shapes     records, told [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, whole warps up to 1024 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream, and the kernel `edit` where a row asks for it; rows whose
//            filters ask for a list, or that have none but min-p; logprobs with FEATURE_LOGPROB_SUMS, of the token alone; no kept sets
//
// It is apart from finish_general.cu for the reasons that finish_simple.cu has. What the logprob of a listed token needs of its row is found by
// the warps that would else wait while the first one draws.

#include "stage/candidate_draw.cuh"
#include "stage/logprobs.cuh"

// A thread for each tile, of most vocabularies.
#define FINISH_CANDIDATES_LOGPROB_THREADS 1024

// What the end of a row goes by, on chip: registers are short, and each read of memory would make it wait.
struct LogprobRowInputs {
    Params params;
    State state;
    FilterChain filter_chain;
    Scales scales;
    RngStream rng;
    int forced;
};

DEVICE LogprobRowInputs& shared_logprob_row() {
    __shared__ LogprobRowInputs inputs;
    return inputs;
}

// The edited row, on chip too.
template <class T>
DEVICE EditedRow<T, true>& shared_edited_row() {
    alignas(16) __shared__ char room[sizeof(EditedRow<T, true>)];
    return *(EditedRow<T, true>*)room;
}

// What becomes known of the mode's row and its tokens, in shared memory.
struct LogprobState {
    // A warp's first logits of the row, as ordered bits.
    u32 warp_maxima[32];
    // What tiles weigh that have been added up, and by how many warps.
    u64 mass;
    u32 warps_done;
    // How many tokens come before one whose rank is counted for itself.
    u32 before;
    LogprobTerms terms;
    // Of the listed tokens, by their places: how many tokens of the mode's row come before each, as far as that is known, and
    // its logit there.
    u32 ranks[MAX_CANDIDATES];
    float logits[MAX_CANDIDATES];
};

// What is added to a listed token's count where a tile must be read to know.
#define RANK_UNKNOWN 0x10000u

DEVICE LogprobState& shared_logprob_state() {
    __shared__ LogprobState logprob_state;
    return logprob_state;
}

// What no token of a tile but its first exceeds. Its weight, of which the first's is 2^28, is at most what the others weigh
// together; that is off by one half from being whole, and by less than 2^-17 of it from rounding, exponentials among it.
DEVICE float others_upper_bound(const TileSum& tile, float log2e_over_t) {
#if GUMBALL_PROBABILITIES
    float most = u64_to_float(tile.sum - (1u << 28) + 1) * bits_float((127 - 28) << 23);
    return (tile.maximum * most) * (1.0f + 4.8e-7f) + MIN_TOKEN_VALUE;
#else
    float below = (log2_of_normal(u64_to_float(tile.sum - (1u << 28) + 1)) - (28.0f - 0.0001f)) / log2e_over_t;
    return tile.maximum + below + (fabsf(tile.maximum) - below) * 4.8e-7f;
#endif
}

// Of what tokens the mass and the ranks are those of the raw row.
DEVICE bool is_raw(const Params& params) { return params.logprob_mode == MODE_RAW; }

DEVICE float logprob_temperature(const Params& params) {
    bool tempered = !is_raw(params) && params.logprob_mode != MODE_EDITED;
    return tempered ? params.effective_temperature : 1.0f;
}

// How many listed tokens a lane has at once.
#define TOKENS_AT_ONCE 3

// Finds what listed tokens' logprobs and ranks go by, by some warps, of which this is number `own`; a barrier must follow. Each
// counts for its tiles; the last to add up their mass takes its logarithm.
template <class T>
DEVICE void score_candidates(const Step& step, u32 row, const Params& params, const LogitsRow<T>& logits, u32 own,
                             u32 all) {
    CandidateList& list = shared_candidates();
    LogprobState& logprob_state = shared_logprob_state();
    u32 lane = lane_id(), count = list.count();
    const TileSum* logprob_sums = step.logprob_sums + (u64)row * step.tiles;
    bool raw = is_raw(params);
    float log2e_over_t = params.logprob_log2e_over_t;
    float first =
        from_ordered_bits(__reduce_max_sync(FULL_MASK, lane < warp_count() ? logprob_state.warp_maxima[lane] : 0));
    u64 mass = 0;
#pragma unroll 1
    for (u32 from = 0; from < count; from += 32 * TOKENS_AT_ONCE) {
        u32 id[TOKENS_AT_ONCE];
        float z[TOKENS_AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
            u32 i = from + 32 * k + lane;
            u64 key = i < count ? list.ordered[i] : make_key(INF_F32, 0);
            id[k] = key_id(key);
            z[k] = raw && i < count ? logits.logit(id[k]) : key_logit(key);
        }
#pragma unroll 1
        for (u32 start = 32 * own; start < step.tiles; start += 32 * all) {
            u32 tile = start + lane;
            TileSum tile_sum = tile < step.tiles ? logprob_sums[tile] : TileSum{0, -INF_F32, 0};
            bool any = tile_sum.maximum > MASKED_VALUE;
            if (from == 0) {
                mass += any ? tile_mass(tile_factor(tile_sum.maximum, first, log2e_over_t), tile_sum.sum) : 0;
            }
            u32 least = ~0u;
#pragma unroll
            for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                u32 bits = ordered_bits(z[k]);
                least = bits < least ? bits : least;
            }
            least = __reduce_min_sync(FULL_MASK, least);
            u32 left = __ballot_sync(FULL_MASK, raw && any && ordered_bits(tile_sum.maximum) >= least);
            if (left == 0) {
                continue;
            }
            float others = any ? others_upper_bound(tile_sum, log2e_over_t) : -INF_F32;
            u32 before[TOKENS_AT_ONCE] = {};
#pragma unroll 1
            for (; left != 0; left &= left - 1) {
                int source_lane = __ffs((int)left) - 1;
                float top = __shfl_sync(FULL_MASK, tile_sum.maximum, source_lane),
                      rest = __shfl_sync(FULL_MASK, others, source_lane);
#pragma unroll
                for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                    // Of equal logits the one with the smaller id is first.
                    bool comes = top > z[k] || (top == z[k] && start + source_lane < id[k] / TILE);
                    before[k] += (comes ? 1 : 0) + (top >= z[k] && rest >= z[k] ? RANK_UNKNOWN : 0);
                }
            }
#pragma unroll
            for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                if (before[k] != 0) {
                    atomicAdd(&logprob_state.ranks[from + 32 * k + lane], before[k]);
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
            u32 i = from + 32 * k + lane;
            if (own == 0 && i < count) {
                logprob_state.logits[i] = z[k];
                if (!raw) {
                    // The list is the mode's row, as far as it goes.
                    logprob_state.ranks[i] = i;
                }
            }
        }
    }
    mass = warp_sum(mass);
    u32 done = 0;
    if (lane == 0) {
        atomicAdd(&logprob_state.mass, mass);
        // Without it the last warp could miss what this one has added.
        __threadfence_block();
        done = atomicAdd(&logprob_state.warps_done, 1u);
        if (done + 1 == all) {
            __threadfence_block();
            logprob_state.terms.set(first, logprob_temperature(params), *(volatile u64*)&logprob_state.mass);
        }
    }
}

// Says how likely the token was, and which rank it had, where it was not listed or a tile must be read. Apart, as rows with
// lists need it seldom. By all threads; ends with a barrier.
template <class T>
DEVICE_NOINLINE void score_token(const Step& step, u32 row, int slot, u32 id) {
    const Params& params = step.params[slot];
    const TileSum* logprob_sums = step.logprob_sums + (u64)row * step.tiles;
    EditedRow<T, true> edited_row(step, row, slot);
    EditedRow<T, false> raw_row(step, row, slot);
    LogprobState& logprob_state = shared_logprob_state();
    bool raw = is_raw(params);
    float z = raw ? raw_row.logit(id) : edited_row.logit(id), log2e_over_t = params.logprob_log2e_over_t;
    u32 most = 0;
    for (u32 tile = threadIdx.x; tile < step.tiles; tile += blockDim.x) {
        u32 bits = ordered_bits(logprob_sums[tile].maximum);
        most = bits > most ? bits : most;
    }
    float first = from_ordered_bits((u32)block_max(most));
    u64 mass = row_mass(step.tiles, first, log2e_over_t, [&](u32 tile) INLINE { return logprob_sums[tile]; });
    u64 key = make_key(z, id);
    u32 before = 0;
    for (u32 start = 32 * warp_id(); start < step.tiles; start += 32 * warp_count()) {
        u32 tile = start + lane_id();
        TileSum tile_sum = tile < step.tiles ? logprob_sums[tile] : TileSum{0, -INF_F32, 0};
        bool reaches = tile_sum.maximum > MASKED_VALUE && tile_sum.maximum >= z;
        bool alone = reaches && others_upper_bound(tile_sum, log2e_over_t) < z;
        before += alone && (tile_sum.maximum > z || tile < id / TILE);
        for (u32 open = __ballot_sync(FULL_MASK, reaches && !alone); open != 0; open &= open - 1) {
            u32 open_tile = start + __ffs((int)open) - 1;
            float own[ITEMS_PER_LANE];
            if (raw) {
                raw_row.load(open_tile, lane_id(), own);
            } else {
                edited_row.load(open_tile, lane_id(), own);
            }
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                before += make_key(own[j], open_tile * TILE + raw_row.offset(open_tile, lane_id(), j)) > key;
            }
        }
    }
    before = __reduce_add_sync(FULL_MASK, before);
    if (lane_id() == 0) {
        atomicAdd(&logprob_state.before, before);
    }
    // Without it the first thread would miss what others count, and a slower warp could read logits edited by what the token
    // becomes part of.
    __syncthreads();
    if (threadIdx.x == 0 && z > MASKED_VALUE) {
        LogprobTerms terms;
        terms.set(first, logprob_temperature(params), mass);
        LogprobSections{step, row}.set(0, terms.of(z), logprob_state.before + 1);
    }
}

// Finds the token of a row whose list came to nothing. Apart, so that its registers are its own.
template <class T>
DEVICE_NOINLINE void draw_by_search(const Step& step, u32 row, int slot) {
    const Params& params = step.params[slot];
    RowSummary summary = summarise_row(RowRecords(step, row, false), true);
    filter_and_race<T, true>(step, row, slot, true, summary.first_key,
                             Scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t});
}

// Ends a row whose token is known: moves its request on, and writes what it came to but for its logprob. By two threads.
DEVICE void finish_row_in_parallel(const Step& step, u32 row, int slot, const LogprobRowInputs& inputs,
                                   const RowResult& result) {
    // At once: the one waits for memory, the other for nothing.
    if (threadIdx.x == blockDim.x - 32 && result.token != NO_TOKEN && !(step.flags & STEP_SCORING)) {
        advance_request(step, shared_request(), slot, inputs.params.features, inputs.state, (u32)result.token);
    }
    if (threadIdx.x == 0) {
        write_result(step, row, result);
    }
}

template <class T>
DEVICE void finish_candidates_logprob(const Step& step) {
    u32 row = blockIdx.x;
    // What the survey does not write is read before it is done.
    int slot = step.slots[row];
    LogprobRowInputs& inputs = shared_logprob_row();
    LogprobState& logprob_state = shared_logprob_state();
    const EditedRow<T, true>& view = shared_edited_row<T>();
    const Params& params = inputs.params;
    {
        int source = slot < 0 ? 0 : slot;
        const Params& params = step.params[source];
        if (threadIdx.x < sizeof(Params) / 4) {
            ((u32*)&inputs.params)[threadIdx.x] = ((const u32*)&params)[threadIdx.x];
        }
        load_request(step, source, params.features);
        clear(shared_candidates());
        for (u32 i = threadIdx.x; i < MAX_CANDIDATES; i += blockDim.x) {
            logprob_state.ranks[i] = 0;
        }
        if (threadIdx.x == 0) {
            const State state = step.states[source];
            inputs.state = state;
            inputs.filter_chain = filter_chain_of(params);
            inputs.scales = Scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
            inputs.rng = RngStream{params.seed, state.position, params.draw};
            inputs.forced = step.forced[row];
            EditMasks edits(step, row, source, params.features);
            shared_edited_row<T>() = EditedRow<T, true>(step, row, edits, inputs.params, shared_request(), state.step);
            logprob_state.mass = 0;
            logprob_state.warps_done = 0;
            logprob_state.before = 0;
        }
    }
    // Without it a thread would read what others have not fetched yet.
    __syncthreads();
    grid_dependency_wait();
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    RowRecords records(step, row, params.features & FEATURE_FILTER_SUMS);
    u32 most = 0;
    if (params.features & FEATURE_LOGPROB_SUMS) {
#pragma unroll 1
        for (u32 tile = threadIdx.x; tile < step.tiles; tile += blockDim.x) {
            u32 bits = ordered_bits(step.logprob_sums[(u64)row * step.tiles + tile].maximum);
            most = bits > most ? bits : most;
        }
    }
    // While they fly.
    write_no_logprobs(step, row);
    most = __reduce_max_sync(FULL_MASK, most);
    if (lane_id() == 0) {
        logprob_state.warp_maxima[warp_id()] = most;
    }
    // Its barrier is that of the firsts too.
    RowSummary summary = summarise_row(records, params.features & FEATURE_GREEDY);
    RowResult result{inputs.forced, summary.nonfinite_flags, params.temperature, inputs.state.mirostat_mu};
    if (summary.first_key == 0) {
        result.status |= STATUS_EMPTY;
    } else {
        result.temperature = inputs.scales.temperature;
        if (result.token >= 0) {
            // A forced token was not drawn.
        } else if (params.features & FEATURE_GREEDY) {
            result.token = (int)key_id(summary.first_key);
        } else if (params.features & FEATURE_CANDIDATES) {
            u64 mass;
            bool is_certain = false;
            if (!(step.flags & STEP_NO_CANDIDATES) &&
                list_candidates(step, records, view, inputs.filter_chain, inputs.rng, summary,
                                inputs.scales.filter_log2e_over_t, mass)) {
                // By the warps that wait while the first one draws.
                auto meanwhile = [&]() INLINE {
                    u32 busy = warp_count() > 1 ? 1 : 0;
                    if (params.features & FEATURE_LOGPROB_SUMS && warp_id() >= busy) {
                        score_candidates<T>(step, row, params, view.row, warp_id() - busy, warp_count() - busy);
                    }
                };
                const ListDraw& list_draw = draw_from_candidates(
                    inputs.filter_chain, inputs.scales, mass, [&]() INLINE { return xtc_acts(params, inputs.state); },
                    meanwhile);
                is_certain = list_draw.is_certain;
                result.token = (int)list_draw.token;
                u32 before = logprob_state.ranks[list_draw.index];
                if (is_certain && before < RANK_UNKNOWN) {
                    if (params.features & FEATURE_LOGPROB_SUMS && threadIdx.x == 0) {
                        LogprobSections{step, row}.set(0, logprob_state.terms.of(logprob_state.logits[list_draw.index]),
                                                       before + 1);
                    }
                    finish_row_in_parallel(step, row, slot, inputs, result);
                    return;
                }
            }
            if (!is_certain) {
                draw_by_search<T>(step, row, slot);
                result.token = shared_draw_result().token;
            }
        } else {
            float first = key_logit(summary.first_key);
            Cut cut = params.filter_chain == FILTER_MIN_P
                          ? min_p_cut(first, inputs.scales.filter_log2e_over_t, min_p_threshold(params))
                          : full_cut();
            result.token = (int)race(records, view, inputs.rng, GivenSet{cut, first, true}, inputs.scales.log2e_over_t);
        }
    }
    if (params.features & FEATURE_LOGPROB_SUMS && result.token != NO_TOKEN) {
        score_token<T>(step, row, slot, (u32)result.token);
    }
    finish_row_in_parallel(step, row, slot, inputs, result);
}

#define FINISH_CANDIDATES_LOGPROB(type, T) \
    KERNEL(finish_candidates_logprob_##type, FINISH_CANDIDATES_LOGPROB_THREADS, Step, step) { \
        finish_candidates_logprob<T>(step); \
    }

FINISH_CANDIDATES_LOGPROB(f32, F32)
FINISH_CANDIDATES_LOGPROB(bf16, Bf16)
FINISH_CANDIDATES_LOGPROB(f16, F16)
