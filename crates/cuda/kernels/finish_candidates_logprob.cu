// finish_candidates_logprob.cu: finishes the rows of finish_candidates.cu under edits and masks, and with their token's
// logprob.
//
// Computes   a row's token, its logprob and rank, status and temperature, as finish_general.cu would; the request's
//            next state
// Never      reads a logit outside the tiles that the list, the race or the rank needs, unless the list fails or leaves
//            a doubt
// Twins      finish_general.cu for every request; variant.rs chooses
// Shapes     records, logprob_sums [rows, tiles]; logits [rows, vocab] of T; outputs: the sections of Layout
//            (spec/src/layout.rs)
// Grid       x = row; whole warps up to 1024 threads; no dynamic shared memory
// Requires   the survey of the same step before it on the stream, and the kernel `edit` if a row has history edits;
//            filter chains with FEATURE_CANDIDATES, or no filter but min-p; logprobs of the row's token alone, with
//            FEATURE_LOGPROB_SUMS; no kept sets
//
// This kernel is separate from finish_general.cu because its time is mostly latency, as finish_simple.cu explains.
// While warp 0 draws from the candidates, the other warps sum the row's mass and count each candidate's rank.
//
//     read the request; wait for the survey; summarise the row
//     padding: NO_TOKEN | forced: that token | empty: NO_TOKEN | greedy: the row's first token
//     no filter, or min-p: the race
//     otherwise: list candidates; warp 0 filters the list and draws, the others score all candidates
//                if the list fails or leaves a doubt: filter and race over the whole row
//     score the token by itself, if it was not scored on a list or a tile must be read for its rank
//     write the results, advance the request

#include "stage/candidate_draw.cuh"
#include "stage/logprobs.cuh"

// One thread per tile in vocabularies of up to 262144 tokens.
// What a block needs of its row's request, in shared memory: registers are scarce, and each read from global memory
// would add its latency.
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

// The edited row, in shared memory for the same reason. Thread 0 constructs it there.
template <class T>
DEVICE EditedRow<T, true>& shared_edited_row() {
    alignas(16) __shared__ char room[sizeof(EditedRow<T, true>)];
    return *(EditedRow<T, true>*)room;
}

// What the block computes about the logprob mode's row and its tokens, in shared memory.
struct LogprobState {
    // Per warp, the largest maximum of the tiles that its threads read, as ordered bits.
    u32 warp_maxima[32];
    // The mass of the tiles that have been added so far, and the number of warps that have added theirs.
    u64 mass;
    u32 warps_done;
    // The number of tokens before the one that `score_token` ranks.
    u32 before;
    LogprobTerms terms;
    // By index in the ordered list: the number of tokens before the listed one in the mode's row, RANK_UNKNOWN or more
    // if tiles must be read to complete it; and the token's logit in that row.
    u32 ranks[MAX_CANDIDATES];
    float logits[MAX_CANDIDATES];
};

// Added to a listed token's count for each tile that must be read to complete it. The count itself is at most 4096
// tiles.
#define RANK_UNKNOWN 0x10000u

DEVICE LogprobState& shared_logprob_state() {
    __shared__ LogprobState logprob_state;
    return logprob_state;
}

// Returns an upper bound of a tile's logits except its first token's. The first token weighs 2^28, so the others weigh
// tile.sum - 2^28 together, and none of them more. An integer weight is off by up to one half. Exponentials and
// roundings add an error below 2^-17 of the weight.
DEVICE float others_upper_bound(const TileSum& tile, float log2e_over_t) {
#if GUMBALL_PROBABILITIES
    float most = u64_to_float(tile.sum - (1u << 28) + 1) * bits_float((127 - 28) << 23);
    return (tile.maximum * most) * (1.0f + 4.8e-7f) + MIN_TOKEN_VALUE;
#else
    float below = (log2_of_normal(u64_to_float(tile.sum - (1u << 28) + 1)) - (28.0f - 0.0001f)) / log2e_over_t;
    return tile.maximum + below + (fabsf(tile.maximum) - below) * 4.8e-7f;
#endif
}

// Returns whether logprobs and ranks refer to the row before its edits (mode `raw`).
DEVICE bool is_raw(const Params& params) { return params.logprob_mode == MODE_RAW; }

// Returns the temperature of the logprob mode: 1 for `raw` and `edited`.
DEVICE float logprob_temperature(const Params& params) {
    bool tempered = !is_raw(params) && params.logprob_mode != MODE_EDITED;
    return tempered ? params.effective_temperature : 1.0f;
}

// How many listed tokens a lane scores in one pass over the tiles.
#define TOKENS_AT_ONCE 3

// Scores all listed tokens: their logits in the mode's row, the tokens before them, and the row's mass; by `all` warps,
// of which this one is number `own`. A barrier must follow before the results are read.
//
//     for each group of 96 listed tokens, three per lane:
//         for each of this warp's tiles, one per lane:
//             add the tile's mass, in the first group
//             if its maximum reaches a token of the group (mode raw; each lane compares its three tokens):
//                 count 1 for the tile's first token, if that precedes the listed one
//                 add RANK_UNKNOWN if another token of the tile may reach the listed one
//     add the warp's mass to the block's; the last warp to do so computes the logprob terms
//
// In the other modes the list is a prefix of the mode's row, so a token's index is the number of tokens before it.
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
                    // Of equal logits the one with the smaller id precedes; tiles are ranges of ids.
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
                    // The list is a prefix of the mode's row.
                    logprob_state.ranks[i] = i;
                }
            }
        }
    }
    mass = warp_sum(mass);
    u32 done = 0;
    if (lane == 0) {
        atomicAdd(&logprob_state.mass, mass);
        // RAW on mass: each warp added its share, the last one reads the sum. This fence orders the share before the
        // count.
        __threadfence_block();
        done = atomicAdd(&logprob_state.warps_done, 1u);
        if (done + 1 == all) {
            // This fence orders the count before the read of the sum.
            __threadfence_block();
            logprob_state.terms.set(first, logprob_temperature(params), *(volatile u64*)&logprob_state.mass);
        }
    }
}

// Writes the logprob and the rank of a token that was not scored on a list, or whose rank needs a read of tiles. Not
// inlined, because rows with lists seldom need it. All threads call it.
//
//     mass = that of the mode's row, from the survey's sums
//     before = 1 per tile whose first token precedes the token, if no other token of the tile can
//              plus the tokens that precede it in each other tile whose maximum reaches it, read one tile per warp
//     a barrier; thread 0 writes the logprob and the rank before + 1, unless the token is no member
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
    // RAW on before: all warps added their counts, thread 0 reads the sum.
    // WAR on the token counts: all warps read logits edited by them, the caller then counts the token.
    __syncthreads();
    if (threadIdx.x == 0 && z > MASKED_VALUE) {
        LogprobTerms terms;
        terms.set(first, logprob_temperature(params), mass);
        LogprobSections{step, row}.set(0, terms.of(z), logprob_state.before + 1);
    }
}

// Draws the token of a row whose list failed or left a doubt. Not inlined, so that its registers do not add to those of
// other rows' code. The result is in `shared_draw_result`.
template <class T>
DEVICE_NOINLINE void draw_by_search(const Step& step, u32 row, int slot) {
    const Params& params = step.params[slot];
    RowSummary summary = summarise_row(RowRecords(step, row, false), true);
    filter_and_race<T, true>(step, row, slot, true, summary.first_key,
                             Scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t});
}

// Advances the request of a row whose token is known, and writes the row's results except its logprob; by two threads.
DEVICE void finish_row_in_parallel(const Step& step, u32 row, int slot, const LogprobRowInputs& inputs,
                                   const RowResult& result) {
    // Threads of two warps work in parallel: the first waits for global memory, the second does not.
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
    // The survey does not write what is read here, so these loads overlap with it.
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
    // RAW on inputs, the request, the edited row, the cleared list and logprob_state: all warps wrote parts of them,
    // all warps read them.
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
    // This overlaps with the loads of the records and maxima.
    write_no_logprobs(step, row);
    most = __reduce_max_sync(FULL_MASK, most);
    if (lane_id() == 0) {
        logprob_state.warp_maxima[warp_id()] = most;
    }
    // RAW on warp_maxima: each warp wrote its own, all warps read them after the barrier inside summarise_row.
    RowSummary summary = summarise_row(records, params.features & FEATURE_GREEDY);
    RowResult result{inputs.forced, summary.nonfinite_flags, params.temperature, inputs.state.mirostat_mu};
    if (summary.first_key == 0) {
        result.status |= STATUS_EMPTY;
    } else {
        result.temperature = inputs.scales.temperature;
        if (result.token >= 0) {
            // A forced token is emitted as it is; nothing is drawn.
        } else if (params.features & FEATURE_GREEDY) {
            result.token = (int)key_id(summary.first_key);
        } else if (params.features & FEATURE_CANDIDATES) {
            u64 mass;
            bool is_certain = false;
            if (!(step.flags & STEP_NO_CANDIDATES) &&
                list_candidates(step, records, view, inputs.filter_chain, inputs.rng, summary,
                                inputs.scales.filter_log2e_over_t, mass)) {
                // The warps that have no part in the draw score the candidates meanwhile. If the block is one warp,
                // that warp scores them after its draw.
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
