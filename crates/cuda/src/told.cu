// told.cu: the end of a step whose rows have edits, or ask how likely their token was, and of all that is needed no more.
//
// Computes   what step.cu computes of such rows: the token, its logprob and its rank
// Never      reads a logit outside the tiles that the list, the race or the rank needs, but where a list does not do
// Twins      as step.cu, which rows that ask for more take; who takes which is in src/step.rs
// Shapes     records, told [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, whole warps up to 1024 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream, and the kernel `edit` where a row asks for it; rows whose
//            filters ask for a list, or that have none but min-p; logprobs with ASKS_TOLD, of the token alone; no kept sets
//
// It is apart from step.cu for the reasons that lean.cu has. What the logprob of a listed token needs of its row is found by
// the warps that would else wait while the first one draws.

#include "ending.cu"
#include "list.cu"
#include "logprobs.cu"

// A thread for each tile, of most vocabularies.
#define TOLD_THREADS 1024

// What the end of a row goes by, on chip: registers are short, and each read of memory would make it wait.
struct Held {
    Params params;
    State state;
    Chain chain;
    Heat heat;
    Stream stream;
    int forced;
};

DEVICE Held& block_held() {
    __shared__ Held held;
    return held;
}

// The edited row, on chip too.
template <class T>
DEVICE View<T, true>& block_view() {
    alignas(16) __shared__ char room[sizeof(View<T, true>)];
    return *(View<T, true>*)room;
}

// What becomes known of the mode's row and its tokens, in shared memory.
struct Tally {
    // A warp's first logits of the row, as ordered bits.
    u32 firsts[32];
    // What tiles weigh that have been added up, and by how many warps.
    u64 mass;
    u32 weighed;
    // How many tokens come before one whose rank is counted for itself.
    u32 before;
    Likelihood likelihood;
    // Of the listed tokens, by their places: how many tokens of the mode's row come before each, as far as that is known, and
    // its logit there.
    u32 ranks[GATHERED];
    float logits[GATHERED];
};

// What is added to a listed token's count where a tile must be read to know.
#define UNKNOWN 0x10000u

DEVICE Tally& block_tally() {
    __shared__ Tally tally;
    return tally;
}

// What no token of a tile but its first exceeds. Its weight, of which the first's is 2^28, is at most what the others weigh
// together; that is off by one half from being whole, and by less than 2^-17 of it from rounding, exponentials among it.
DEVICE float bound_of_others(const TileWeights& tile, float s) {
#if GUMBALL_PROBABILITIES
    float most = u64_to_float(tile.weights - (1u << 28) + 1) * bits_float((127 - 28) << 23);
    return (tile.maximum * most) * (1.0f + 4.8e-7f) + LEAST;
#else
    float below = (log2_of_normal(u64_to_float(tile.weights - (1u << 28) + 1)) - (28.0f - 0.0001f)) / s;
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
DEVICE void tell_listed(const Step& step, u32 row, const Params& params, const Row<T>& logits, u32 own, u32 all) {
    Gathered& list = block_list();
    Tally& tally = block_tally();
    u32 lane = lane_id(), count = list.count();
    const TileWeights* told = step.told + (u64)row * step.tiles;
    bool raw = is_raw(params);
    float s = params.logprob_s;
    float first = from_ordered_bits(__reduce_max_sync(ALL_LANES, lane < warps() ? tally.firsts[lane] : 0));
    u64 mass = 0;
#pragma unroll 1
    for (u32 from = 0; from < count; from += 32 * TOKENS_AT_ONCE) {
        u32 id[TOKENS_AT_ONCE];
        float z[TOKENS_AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
            u32 i = from + 32 * k + lane;
            u64 key = i < count ? list.ordered[i] : key_of(INFINITE, 0);
            id[k] = key_id(key);
            z[k] = raw && i < count ? logits.logit(id[k]) : key_logit(key);
        }
#pragma unroll 1
        for (u32 start = 32 * own; start < step.tiles; start += 32 * all) {
            u32 tile = start + lane;
            TileWeights weights = tile < step.tiles ? told[tile] : TileWeights{0, -INFINITE, 0};
            bool any = weights.maximum > NOTHING;
            if (from == 0) {
                mass += any ? tile_mass(factor_of(weights.maximum, first, s), weights.weights) : 0;
            }
            u32 least = ~0u;
#pragma unroll
            for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                u32 bits = ordered_bits(z[k]);
                least = bits < least ? bits : least;
            }
            least = __reduce_min_sync(ALL_LANES, least);
            u32 left = __ballot_sync(ALL_LANES, raw && any && ordered_bits(weights.maximum) >= least);
            if (left == 0) {
                continue;
            }
            float others = any ? bound_of_others(weights, s) : -INFINITE;
            u32 before[TOKENS_AT_ONCE] = {};
#pragma unroll 1
            for (; left != 0; left &= left - 1) {
                int who = __ffs((int)left) - 1;
                float top = __shfl_sync(ALL_LANES, weights.maximum, who), rest = __shfl_sync(ALL_LANES, others, who);
#pragma unroll
                for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                    // Of equal logits the one with the smaller id is first.
                    bool comes = top > z[k] || (top == z[k] && start + who < id[k] / TILE);
                    before[k] += (comes ? 1 : 0) + (top >= z[k] && rest >= z[k] ? UNKNOWN : 0);
                }
            }
#pragma unroll
            for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                if (before[k] != 0) {
                    atomicAdd(&tally.ranks[from + 32 * k + lane], before[k]);
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
            u32 i = from + 32 * k + lane;
            if (own == 0 && i < count) {
                tally.logits[i] = z[k];
                if (!raw) {
                    // The list is the mode's row, as far as it goes.
                    tally.ranks[i] = i;
                }
            }
        }
    }
    mass = warp_sum(mass);
    u32 done = 0;
    if (lane == 0) {
        atomicAdd(&tally.mass, mass);
        // Without it the last warp could miss what this one has added.
        __threadfence_block();
        done = atomicAdd(&tally.weighed, 1u);
        if (done + 1 == all) {
            __threadfence_block();
            tally.likelihood.set(first, logprob_temperature(params), *(volatile u64*)&tally.mass);
        }
    }
}

// Says how likely the token was, and which rank it had, where it was not listed or a tile must be read. Apart, as rows with
// lists need it seldom. By all threads; ends with a barrier.
template <class T>
DEVICE_APART void tell_alone(const Step& step, u32 row, int slot, u32 id) {
    const Params& params = step.params[slot];
    const TileWeights* told = step.told + (u64)row * step.tiles;
    View<T, true> edited(step, row, slot);
    View<T, false> plain(step, row, slot);
    Tally& tally = block_tally();
    bool raw = is_raw(params);
    float z = raw ? plain.logit(id) : edited.logit(id), s = params.logprob_s;
    u32 most = 0;
    for (u32 tile = threadIdx.x; tile < step.tiles; tile += blockDim.x) {
        u32 bits = ordered_bits(told[tile].maximum);
        most = bits > most ? bits : most;
    }
    float first = from_ordered_bits((u32)block_largest(most));
    u64 mass = mass_of_tiles(step.tiles, first, s, [&](u32 tile) INLINE { return told[tile]; });
    u64 key = key_of(z, id);
    u32 before = 0;
    for (u32 start = 32 * warp_id(); start < step.tiles; start += 32 * warps()) {
        u32 tile = start + lane_id();
        TileWeights weights = tile < step.tiles ? told[tile] : TileWeights{0, -INFINITE, 0};
        bool reaches = weights.maximum > NOTHING && weights.maximum >= z;
        bool alone = reaches && bound_of_others(weights, s) < z;
        before += alone && (weights.maximum > z || tile < id / TILE);
        for (u32 open = __ballot_sync(ALL_LANES, reaches && !alone); open != 0; open &= open - 1) {
            u32 opened = start + __ffs((int)open) - 1;
            float own[PER_LANE];
            if (raw) {
                plain.load(opened, lane_id(), own);
            } else {
                edited.load(opened, lane_id(), own);
            }
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                before += key_of(own[j], opened * TILE + plain.place(opened, lane_id(), j)) > key;
            }
        }
    }
    before = __reduce_add_sync(ALL_LANES, before);
    if (lane_id() == 0) {
        atomicAdd(&tally.before, before);
    }
    // Without it the first thread would miss what others count, and a slower warp could read logits edited by what the token
    // becomes part of.
    __syncthreads();
    if (threadIdx.x == 0 && z > NOTHING) {
        Likelihood likelihood;
        likelihood.set(first, logprob_temperature(params), mass);
        Entries{step, row}.set(0, likelihood.of(z), tally.before + 1);
    }
}

// Finds the token of a row whose list came to nothing. Apart, so that its registers are its own.
template <class T>
DEVICE_APART void search_row(const Step& step, u32 row, int slot) {
    const Params& params = step.params[slot];
    Whole whole = whole_of(Records(step, row, false), true);
    search_and_race<T, true>(step, row, slot, true, whole.first, Heat{params.effective_temperature, params.s, params.filter_s});
}

// Ends a row whose token is known: moves its request on, and writes what it came to but for its logprob. By two threads.
DEVICE void end_told(const Step& step, u32 row, int slot, const Held& held, const Chosen& chosen) {
    // At once: the one waits for memory, the other for nothing.
    if (threadIdx.x == blockDim.x - 32 && chosen.token != NONE && !(step.flags & STEP_SCORES)) {
        advance(step, block_request(), slot, held.params.asks, held.state, (u32)chosen.token);
    }
    if (threadIdx.x == 0) {
        write(step, row, chosen);
    }
}

template <class T>
DEVICE void finish_told(const Step& step) {
    u32 row = blockIdx.x;
    // What the survey does not write is read before it is done.
    int slot = step.slots[row];
    Held& held = block_held();
    Tally& tally = block_tally();
    const View<T, true>& view = block_view<T>();
    const Params& params = held.params;
    {
        int source = slot < 0 ? 0 : slot;
        const Params& params = step.params[source];
        if (threadIdx.x < sizeof(Params) / 4) {
            ((u32*)&held.params)[threadIdx.x] = ((const u32*)&params)[threadIdx.x];
        }
        fetch_request(step, source, params.asks);
        clear(block_list());
        for (u32 i = threadIdx.x; i < GATHERED; i += blockDim.x) {
            tally.ranks[i] = 0;
        }
        if (threadIdx.x == 0) {
            const State state = step.states[source];
            held.state = state;
            held.chain = chain_of(params);
            held.heat = Heat{params.effective_temperature, params.s, params.filter_s};
            held.stream = Stream{params.seed, state.position, params.draw};
            held.forced = step.forced[row];
            Edits edits(step, row, source, params.asks);
            block_view<T>() = View<T, true>(step, row, edits, held.params, block_request(), state.step);
            tally.mass = 0;
            tally.weighed = 0;
            tally.before = 0;
        }
    }
    // Without it a thread would read what others have not fetched yet.
    __syncthreads();
    wait_for_previous();
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    Records records(step, row, params.asks & ASKS_SUMS);
    u32 most = 0;
    if (params.asks & ASKS_TOLD) {
#pragma unroll 1
        for (u32 tile = threadIdx.x; tile < step.tiles; tile += blockDim.x) {
            u32 bits = ordered_bits(step.told[(u64)row * step.tiles + tile].maximum);
            most = bits > most ? bits : most;
        }
    }
    // While they fly.
    write_no_logprobs(step, row);
    most = __reduce_max_sync(ALL_LANES, most);
    if (lane_id() == 0) {
        tally.firsts[warp_id()] = most;
    }
    // Its barrier is that of the firsts too.
    Whole whole = whole_of(records, params.asks & ASKS_GREEDY);
    Chosen chosen{held.forced, whole.odd, params.temperature, held.state.mu};
    if (whole.first == 0) {
        chosen.status |= STATUS_EMPTY;
    } else {
        chosen.temperature = held.heat.temperature;
        if (chosen.token >= 0) {
            // A forced token was not drawn.
        } else if (params.asks & ASKS_GREEDY) {
            chosen.token = (int)key_id(whole.first);
        } else if (params.asks & ASKS_LIST) {
            u64 mass;
            bool sure = false;
            if (!(step.flags & STEP_SEARCHES) &&
                list_row(step, records, view, held.chain, held.stream, whole, held.heat.filter_s, mass)) {
                // By the warps that wait while the first one draws.
                auto meanwhile = [&]() INLINE {
                    u32 busy = warps() > 1 ? 1 : 0;
                    if (params.asks & ASKS_TOLD && warp_id() >= busy) {
                        tell_listed<T>(step, row, params, view.row, warp_id() - busy, warps() - busy);
                    }
                };
                const Drawn& drawn = draw_listed(
                    held.chain, held.heat, mass, [&]() INLINE { return xtc_acts(params, held.state); }, meanwhile);
                sure = drawn.sure;
                chosen.token = (int)drawn.token;
                u32 before = tally.ranks[drawn.place];
                if (sure && before < UNKNOWN) {
                    if (params.asks & ASKS_TOLD && threadIdx.x == 0) {
                        Entries{step, row}.set(0, tally.likelihood.of(tally.logits[drawn.place]), before + 1);
                    }
                    end_told(step, row, slot, held, chosen);
                    return;
                }
            }
            if (!sure) {
                search_row<T>(step, row, slot);
                chosen.token = block_found().token;
            }
        } else {
            float first = key_logit(whole.first);
            Cut cut = params.chain == FILTER_MIN_P ? min_p_cut(first, held.heat.filter_s, min_p_of(params)) : cut_all();
            chosen.token = (int)race(records, view, held.stream, Given{cut, first, true}, held.heat.s);
        }
    }
    if (params.asks & ASKS_TOLD && chosen.token != NONE) {
        tell_alone<T>(step, row, slot, (u32)chosen.token);
    }
    end_told(step, row, slot, held, chosen);
}

#define FINISH_TOLD(type, T)                               \
    KERNEL(finish_told_##type, TOLD_THREADS, Step, step) { \
        finish_told<T>(step);                              \
    }

FINISH_TOLD(f32, F32)
FINISH_TOLD(bf16, Bf16)
FINISH_TOLD(f16, F16)
