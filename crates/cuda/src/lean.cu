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

#include "behind.cu"
#include "ending.cu"
#include "logprobs.cu"

// A thread for each tile, of most vocabularies.
#define LEAN_THREADS 1024

// The token of a row that runs over everything or over what min-p keeps; `status` becomes what is odd in the row.
template <class Kind, class V>
DEVICE int run_row(const Records& records, const V& view, const Stream& stream, const Heat& heat, bool is_min_p, float threshold,
                   float way, bool is_forced, u32& status) {
    Front front = front_of<Kind>(records, heat.s);
    Whole whole = whole_of(front);
    status = whole.odd | (whole.first == 0 ? STATUS_EMPTY : 0);
    if (whole.first == 0 || is_forced) {
        return NONE;
    }
    float first = key_logit(whole.first);
    const Origin origin(first);
    Cut cut = is_min_p ? min_p_cut(first, heat.filter_s, threshold, way) : cut_all();
    u64 leader = leader_of(front, cut, origin, heat.s);
    if (is_sure(front, origin, heat.s, leader)) {
        return (int)key_id(leader);
    }
    return (int)race_behind<Kind>(records, view, stream, cut, origin, heat.s, leader);
}

template <class T, class Kind>
DEVICE void finish_lean(const Step& step) {
    // What makes the next requests waits for this.
    let_next_begin();
    u32 row = blockIdx.x;
    // What the survey does not write is read before it is done.
    int slot = step.slots[row], forced = step.forced[row];
    const Params& params = step.params[slot < 0 ? 0 : slot];
    const State state = step.states[slot < 0 ? 0 : slot];
    Stream stream{params.seed, state.position, params.draw};
    u32 asks = params.asks, filter = params.chain;
    // Divided while the survey runs.
    float threshold = min_p_of(params), way = Kind::MIN_P ? found_here(way_of_min_p(threshold, params.filter_s)) : 0.0f;
    Chosen chosen{forced, 0, params.temperature, state.mu};
    Heat heat{params.effective_temperature, params.s, params.filter_s};
    View<T, false> view(step, row, slot);
    if (slot >= 0) {
        fetch_request(step, slot, asks);
        // Nobody before this step on the stream still reads what it says.
        write_no_logprobs(step, row);
    }
    wait_for_previous();
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    Records records(step, row, false);
    int token;
    if (Kind::GREEDY && asks & ASKS_GREEDY) {
        Whole whole = whole_of(records, true);
        chosen.status = whole.odd | (whole.first == 0 ? STATUS_EMPTY : 0);
        token = (int)key_id(whole.first);
    } else {
        bool is_min_p = Kind::MIN_P && filter == FILTER_MIN_P;
        token = run_row<Kind>(records, view, stream, heat, is_min_p, threshold, way, forced >= 0, chosen.status);
    }
    if (!(chosen.status & STATUS_EMPTY)) {
        chosen.temperature = heat.temperature;
        // A forced token was not drawn.
        chosen.token = forced >= 0 ? forced : token;
    }
    if (threadIdx.x == 0) {
        end_row(step, row, slot, asks, state, chosen);
    }
}

#if GUMBALL_PROBABILITIES
#define FINISH_LEAN(type, T)                                 \
    KERNEL(finish_lean_##type, LEAN_THREADS, Step, step) {   \
        finish_lean<T, Surveyed>(step);                      \
    }
#else
#define FINISH_LEAN(type, T)                                 \
    KERNEL(finish_lean_##type, LEAN_THREADS, Step, step) {   \
        finish_lean<T, Surveyed>(step);                      \
    }                                                        \
    KERNEL(finish_raced_##type, LEAN_THREADS, Step, step) {  \
        finish_lean<T, Raced>(step);                         \
    }
#endif

FINISH_LEAN(f32, F32)
FINISH_LEAN(bf16, Bf16)
FINISH_LEAN(f16, F16)
