// step.cu: the end of a step: from a row's survey to its token and all that is said of it.
//
// Computes   the row's first token, its temperature, its cut, the token that wins, its logprobs; moves the request on
// Never      reads a row that is padding, or touches its outputs twice
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, whole warps up to 384 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream

#include "draw.cu"
#include "filter.cu"
#include "logprobs.cu"

#define FINISH_THREADS 384
// One block a multiprocessor, or the compiler spills for the sake of two; and no more threads, or it spills with one.
#define FINISH_BOUNDS FINISH_THREADS, 1

// What the survey says of a row as a whole.
struct Whole {
    // The key of its first token; 0 if it has none.
    u64 first;
    // The status bits of its odd values.
    u32 odd;
};

// The same in every thread.
DEVICE Whole whole_of(const Step& step, u32 row_index) {
    __shared__ u64 scratch[32];
    __shared__ u32 odd_scratch[32];
    const Record* records = step.records + (u64)row_index * step.tiles;
    u64 first = 0;
    u32 odd = 0;
    for (u32 tile = threadIdx.x; tile < step.tiles; tile += blockDim.x) {
        Record record = records[tile];
        u64 key = key_of(record.maximum, tile * TILE + (record.places & 255));
        first = record.maximum > -INFINITE && key > first ? key : first;
        odd |= record.places >> 16;
    }
    odd = __reduce_or_sync(ALL_LANES, odd);
    if (lane_id() == 0) {
        odd_scratch[warp_id()] = odd;
    }
    // Its barrier also lets the words be read below.
    first = block_max(first, scratch);
    odd = __reduce_or_sync(ALL_LANES, lane_id() < warps() ? odd_scratch[lane_id()] : 0);
    return Whole{first, odd};
}

// What a row came to.
struct Chosen {
    int token;
    u32 status;
    float temperature;
    float mu;
};

DEVICE void write(const Step& step, u32 row, const Chosen& chosen) {
    u32* out = step.outputs + row;
    out[0] = (u32)chosen.token;
    out[(u64)1 * step.rows] = chosen.status;
    out[(u64)4 * step.rows] = float_bits(chosen.temperature);
    out[(u64)5 * step.rows] = float_bits(chosen.mu);
}

// Whether a grammar restricts a row.
DEVICE bool is_masked(const Step& step, u32 row) {
    return step.masks != nullptr && (step.masked == nullptr || step.masked[row] != 0);
}

template <class T>
DEVICE void finish(const Step& step) {
    u32 row = blockIdx.x;
    int slot = step.slots[row];
    if (slot < 0) {
        write_no_logprobs(step, row);
        write_nothing_kept(step, row);
        if (threadIdx.x == 0) {
            write(step, row, Chosen{NONE, 0, 0.0f, 0.0f});
        }
        return;
    }
    // Read where it is used: there is more of it than registers.
    const Params& params = step.params[slot];
    State state = step.states[slot];
    state.position += step.flags & STEP_SCORES ? row : 0;
    int forced = step.forced[row];
    View<T, true> view(step, row, slot);

    Whole whole = whole_of(step, row);
    u64 first = whole.first;
    Chosen chosen{forced, whole.odd, params.temperature, state.mu};
    Given kept{cut_none(), 0.0f, true};
    if (first == 0) {
        chosen.status |= STATUS_EMPTY;
    } else {
        Filtering<T> filtering{step, params, state, row, view, params.filter_s};
        Heat heat = temperature(filtering, first);
        chosen.temperature = heat.temperature;
        filtering.s = heat.filter_s;
        kept = Given{Cut{first, first}, key_logit(first), true};
        bool greedy = heat.temperature == 0.0f;
        if (!greedy) {
            kept = filter(filtering, first);
        }
        if (forced >= 0) {
            // A forced token was not drawn.
        } else if (greedy) {
            chosen.token = (int)key_id(first);
        } else {
            Stream stream{params.seed, state.position, params.draw};
            chosen.token = (int)race<T>(step, row, view, stream, kept, heat.s);
            if (params.asks & ASKS_MIROSTAT) {
                chosen.mu = next_mu(filtering, kept, (u32)chosen.token);
            }
        }
    }
    if (params.asks & ASKS_LOGPROBS) {
        bool unedited = !has_edits(params) && !is_masked(step, row);
        Told<T> told{step, row, view, unedited, chosen.token, chosen.temperature, first, kept};
        write_logprobs(told, params, step.requests[slot]);
    } else {
        write_no_logprobs(step, row);
    }
    if (kept.cut.is_empty()) {
        write_nothing_kept(step, row);
    } else {
        write_kept(step, row, view, kept.cut);
    }

    if (threadIdx.x == 0) {
        if (chosen.token != NONE && !(step.flags & STEP_SCORES)) {
            step.states[slot].position = state.position + 1;
            step.states[slot].mu = chosen.mu;
        }
        write(step, row, chosen);
    }
}

#define FINISH(name, T)                         \
    KERNEL(name, FINISH_BOUNDS, Step, step) {   \
        finish<T>(step);                        \
    }

FINISH(finish_f32, F32)
FINISH(finish_bf16, Bf16)
FINISH(finish_f16, F16)
