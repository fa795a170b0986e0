// lean.cu: the end of a step whose rows ask for a token and no more, of a race over the row or over what min-p keeps.
//
// Computes   what step.cu computes of such rows
// Never      reads a logit outside the tiles that the race opens
// Twins      as step.cu, which rows that ask for more take, and listed.cu; who takes which is in src/step.rs
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, whole warps up to 1024 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream, rows without edits, masks, logprobs and kept sets;
//            no filter but min-p
//
// It is apart from step.cu because it has the latency of one warp's work in it and little else: a block begins while the
// survey still runs, holds its records in registers, and seldom reads a logit. Each stage is a chain of instructions that
// wait for each other, so what counts is how many: hence loops that are not unrolled, whose rounds are one or two.

#include "ending.cu"
#include "logprobs.cu"

// A thread for each tile, of most vocabularies.
#define LEAN_THREADS 1024

template <class T>
DEVICE void finish_lean(const Step& step) {
    u32 row = blockIdx.x;
    // What the survey does not write is read before it is done.
    int slot = step.slots[row], forced = step.forced[row];
    const Params& params = step.params[slot < 0 ? 0 : slot];
    const State state = step.states[slot < 0 ? 0 : slot];
    Stream stream{params.seed, state.position, params.draw};
    u32 asks = params.asks, filter = params.chain;
    float threshold = params.min_p;
    Chosen chosen{forced, 0, params.temperature, state.mu};
    Heat heat{params.effective_temperature, params.s, params.filter_s};
    View<T, false> view(step, row, slot);
    if (slot >= 0) {
        fetch_request(step, slot, asks);
    }
    wait_for_previous();
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    Records records(step, row, false);
    // While they fly.
    write_no_logprobs(step, row);
    Whole whole = whole_of(records, asks & ASKS_GREEDY);
    chosen.status = whole.odd;
    if (whole.first == 0) {
        chosen.status |= STATUS_EMPTY;
    } else {
        chosen.temperature = heat.temperature;
        if (forced >= 0) {
            // A forced token was not drawn.
        } else if (asks & ASKS_GREEDY) {
            chosen.token = (int)key_id(whole.first);
        } else {
            float first = key_logit(whole.first);
            Cut cut = filter == FILTER_MIN_P ? min_p_cut(first, heat.filter_s, threshold) : cut_all();
            chosen.token = (int)race(records, view, stream, Given{cut, first, true}, heat.s);
        }
    }
    if (threadIdx.x == 0) {
        end_row(step, row, slot, asks, state, chosen);
    }
}

#define FINISH_LEAN(type, T)                               \
    KERNEL(finish_lean_##type, LEAN_THREADS, Step, step) { \
        finish_lean<T>(step);                              \
    }

FINISH_LEAN(f32, F32)
FINISH_LEAN(bf16, Bf16)
FINISH_LEAN(f16, F16)
