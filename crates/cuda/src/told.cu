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
// It is apart from step.cu for the reasons that lean.cu has. What a logprob needs of the row beside its token is added up
// where barriers stand anyway, and by warps that wait for the first one to draw.

#include "ending.cu"
#include "list.cu"
#include "logprobs.cu"

// A thread for each tile, of most vocabularies.
#define TOLD_THREADS 1024

// The parameters of a block's row on chip: each read of memory would make it wait.
DEVICE Params& block_params() {
    __shared__ Params params;
    return params;
}

// What the survey told of a row's tiles, over the threads of its block; of no tile where nobody asked.
struct ToldTiles {
    const TileWeights* told;
    u32 tiles;
    // The thread's first: mostly all it has.
    TileWeights held;

    DEVICE_MEMBER ToldTiles(const Step& step, u32 row, bool asked)
        : told(step.told + (u64)row * step.tiles), tiles(asked ? step.tiles : 0) {
        held = of(threadIdx.x);
    }

    // Calls `see(tile, weights)` for each of the thread's tiles; beyond the last, for the warp to be whole, with nothing.
    template <class See>
    DEVICE_MEMBER void each(See see) const {
        see(threadIdx.x, held);
#pragma unroll 1
        for (u32 tile = threadIdx.x + blockDim.x; tile - lane_id() < tiles; tile += blockDim.x) {
            see(tile, of(tile));
        }
    }

  private:
    DEVICE_MEMBER TileWeights of(u32 tile) const {
        TileWeights nothing{0, -INFINITE, 0};
        return tile < tiles ? told[tile] : nothing;
    }
};

// What becomes of it, in shared memory.
struct Tally {
    // A word a warp: the first logit of the mode's row, as ordered bits, and what its tiles weigh.
    u32 firsts[32];
    u64 masses[32];
    Likelihood likelihood;
    float logprob;
    u32 before;
};

DEVICE Tally& block_tally() {
    __shared__ Tally tally;
    return tally;
}

// Whether no token of a tile but its first can reach a logit. The weight of one that does is at least that logit's, but for
// 2^-22 of it, as exponentials are not monotone to the last bit, and a unit; that of the first is 2^28.
DEVICE bool first_is_alone(const TileWeights& tile, float z, float s) {
    u32 least = weight((z - tile.maximum) * s);
    return tile.weights - (1u << 28) + (least >> 20) + 2 < least;
}

// The logit of an id in the row of a mode. Apart, as a listed token's is known.
template <class T>
DEVICE_APART float mode_logit(const Step& step, u32 row, int slot, bool raw, u32 id) {
    return raw ? View<T, false>(step, row, slot).logit(id) : View<T, true>(step, row, slot).logit(id);
}

// How many tokens of the mode's row in some of the warp's tiles come before a key. Apart, as a rank seldom asks for it.
template <class T>
DEVICE_APART u32 count_in_tiles(const Step& step, u32 row, int slot, bool raw, u32 open, u32 first_tile, u64 key) {
    View<T, true> edited(step, row, slot);
    View<T, false> plain(step, row, slot);
    u32 before = 0;
#pragma unroll 1
    for (; open != 0; open &= open - 1) {
        u32 tile = first_tile + __ffs((int)open) - 1;
        float z[PER_LANE];
        if (raw) {
            plain.load(tile, lane_id(), z);
        } else {
            edited.load(tile, lane_id(), z);
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            before += key_of(z[j], tile * TILE + plain.place(tile, lane_id(), j)) > key;
        }
    }
    return before;
}

// Adds the tokens of the mode's row before one of them to the tally, by all threads; a barrier must follow.
template <class T>
DEVICE void count_before_token(const Step& step, u32 row, int slot, const ToldTiles& told, bool raw, float s, float z, u32 id) {
    u32 before = 0;
    told.each([&](u32 tile, const TileWeights& weights) INLINE {
        bool reaches = weights.maximum >= z, alone = first_is_alone(weights, z, s);
        // Of equal logits the one with the smaller id is first.
        before += reaches && alone && (weights.maximum > z || tile < id / TILE);
        u32 open = __ballot_sync(ALL_LANES, reaches && !alone);
        if (open != 0) {
            before += count_in_tiles<T>(step, row, slot, raw, open, tile - lane_id(), key_of(z, id));
        }
    });
    before = __reduce_add_sync(ALL_LANES, before);
    if (lane_id() == 0 && before != 0) {
        atomicAdd(&block_tally().before, before);
    }
}

// Finds the token of a row whose list came to nothing. Apart, so that its registers are its own.
template <class T>
DEVICE_APART void search_row(const Step& step, u32 row, int slot) {
    const Params& params = step.params[slot];
    Whole whole = whole_of(Records(step, row, false), true);
    search_and_race<T, true>(step, row, slot, true, whole.first, Heat{params.effective_temperature, params.s, params.filter_s});
}

template <class T>
DEVICE void finish_told(const Step& step) {
    u32 row = blockIdx.x;
    // What the survey does not write is read before it is done.
    int slot = step.slots[row], forced = step.forced[row];
    int source = slot < 0 ? 0 : slot;
    const State state = step.states[source];
    const Params& params = block_params();
    Tally& tally = block_tally();
    if (threadIdx.x < sizeof(Params) / 4) {
        ((u32*)&block_params())[threadIdx.x] = ((const u32*)(step.params + source))[threadIdx.x];
    }
    u32 asks = step.params[source].asks;
    bool raw = step.params[source].logprob_mode == MODE_RAW;
    float logprob_s = step.params[source].logprob_s;
    Edits edits(step, row, source, asks);
    fetch_request(step, source, asks);
    clear(block_list());
    if (threadIdx.x == 0) {
        tally.before = 0;
    }
    wait_for_previous();
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    Records records(step, row, asks & ASKS_SUMS);
    ToldTiles told(step, row, asks & ASKS_TOLD);
    // While they fly.
    write_no_logprobs(step, row);
    u32 most = 0;
    told.each([&](u32, const TileWeights& tile) INLINE {
        u32 bits = ordered_bits(tile.maximum);
        most = bits > most ? bits : most;
    });
    most = __reduce_max_sync(ALL_LANES, most);
    if (lane_id() == 0) {
        tally.firsts[warp_id()] = most;
    }
    // Its barrier is the tally's and the parameters' too.
    Whole whole = whole_of(records, asks & ASKS_GREEDY);
    float told_first = from_ordered_bits(__reduce_max_sync(ALL_LANES, lane_id() < warps() ? tally.firsts[lane_id()] : 0));
    u64 mass = 0;
    told.each([&](u32, const TileWeights& tile) INLINE {
        mass += tile.maximum > -INFINITE ? tile_mass(exp2_rule((tile.maximum - told_first) * logprob_s), tile.weights) : 0;
    });
    mass = warp_sum(mass);
    if (lane_id() == 0) {
        tally.masses[warp_id()] = mass;
    }
    // By the last warp, after a barrier.
    auto weigh_row = [&]() INLINE {
        u64 all = warp_sum(lane_id() < warps() ? tally.masses[lane_id()] : 0);
        bool tempered = params.logprob_mode != MODE_RAW && params.logprob_mode != MODE_EDITED;
        if (lane_id() == 0) {
            tally.likelihood.set(told_first, tempered ? params.effective_temperature : 1.0f, all);
        }
    };

    Chosen chosen{forced, whole.odd, params.temperature, state.mu};
    View<T, true> view(step, row, edits, params, block_request(), state.step);
    bool last = warp_id() + 1 == warps(), listed = false, weighed = false;
    Gathered& list = block_list();
    u32 place = 0;
    if (whole.first == 0) {
        chosen.status |= STATUS_EMPTY;
    } else {
        Heat heat{params.effective_temperature, params.s, params.filter_s};
        Stream stream{params.seed, state.position, params.draw};
        chosen.temperature = heat.temperature;
        if (forced >= 0) {
            // A forced token was not drawn.
        } else if (asks & ASKS_GREEDY) {
            chosen.token = (int)key_id(whole.first);
        } else if (asks & ASKS_LIST) {
            u64 row_mass;
            const Chain chain = chain_of(params);
            if (!(step.flags & STEP_SEARCHES) &&
                list_row(step, records, view, chain, stream, whole, heat.filter_s, row_mass)) {
                // What the other warps do while the first one draws.
                auto meanwhile = [&]() INLINE {
                    u32 busy = warps() > 1 ? 32 : 0;
                    if (!(asks & ASKS_TOLD) || threadIdx.x < busy) {
                        return;
                    }
#pragma unroll 1
                    for (u32 i = threadIdx.x - busy; i < list.count(); i += blockDim.x - busy) {
                        u64 key = list.ordered[i];
                        list.maxima[i] = raw ? view.row.logit(key_id(key)) : key_logit(key);
                    }
                    if (last) {
                        weigh_row();
                    }
                };
                const Drawn& drawn = draw_listed(
                    chain, heat, row_mass, [&]() INLINE { return xtc_acts(params, state); }, meanwhile);
                listed = drawn.sure;
                weighed = true;
                place = drawn.place;
                chosen.token = (int)drawn.token;
            }
            if (!listed) {
                search_row<T>(step, row, slot);
                chosen.token = block_found().token;
            }
        } else {
            float first = key_logit(whole.first);
            Cut cut = params.chain == FILTER_MIN_P ? min_p_cut(first, heat.filter_s, params.min_p) : cut_all();
            chosen.token = (int)race(records, view, stream, Given{cut, first, true}, heat.s);
        }
    }

    // -inf where nobody asks.
    float z = -INFINITE;
    if (told_first > -INFINITE && chosen.token != NONE) {
        u32 id = (u32)chosen.token;
        z = listed ? list.maxima[place] : mode_logit<T>(step, row, slot, raw, id);
        if (!weighed) {
            // Without it the last warp would miss what others weigh.
            __syncthreads();
            if (last) {
                weigh_row();
            }
        }
        if (z > -INFINITE) {
            count_before_token<T>(step, row, slot, told, raw, logprob_s, z, id);
            if (last && lane_id() == 0) {
                tally.logprob = tally.likelihood.of(z);
            }
        }
    }
    // Without it the first thread would miss what others count, and a slower warp could read logits edited by what the token
    // becomes part of.
    __syncthreads();
    if (threadIdx.x == 0) {
        if (z > -INFINITE) {
            Entries{step, row}.set(0, tally.logprob, tally.before + 1);
        }
        write(step, row, chosen);
    }
    if (last && lane_id() == 0 && chosen.token != NONE && !(step.flags & STEP_SCORES)) {
        advance(step, block_request(), slot, asks, state, (u32)chosen.token);
    }
}

#define FINISH_TOLD(type, T)                               \
    KERNEL(finish_told_##type, TOLD_THREADS, Step, step) { \
        finish_told<T>(step);                              \
    }

FINISH_TOLD(f32, F32)
FINISH_TOLD(bf16, Bf16)
FINISH_TOLD(f16, F16)
