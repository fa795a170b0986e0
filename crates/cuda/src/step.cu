// step.cu: the end of a step: from a row's survey to its token and all that is said of it.
//
// Computes   the row's first token, its temperature, its cut, the token that wins, its logprobs; moves the request on
// Never      reads a row that is padding, or touches its outputs twice; waits for the survey before it must
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, whole warps up to 512 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream

#include "ending.cu"
#include "list.cu"
#include "logprobs.cu"

#define FINISH_THREADS 512
// One block a multiprocessor, or the compiler spills for the sake of two; and no more threads, or it spills with one.
#define FINISH_BOUNDS FINISH_THREADS, 1

// Whether a grammar restricts a row.
DEVICE bool is_masked(const Step& step, u32 row) {
    return step.masks != nullptr && (step.masked == nullptr || step.masked[row] != 0);
}

// Writes a row's logprobs and its kept set, as far as they are asked for.
template <class T>
DEVICE_APART void tell(const Step& step, u32 row, int slot, int token, float temperature, u64 first, Given kept) {
    Ending<T> end(step, row, slot);
    if (end.params.asks & ASKS_LOGPROBS) {
        bool unedited = !has_edits(end.params) && !is_masked(step, row);
        Told<T> told{step, row, end.view, unedited, token, temperature, first, kept};
        write_logprobs(told, end.params, step.requests[slot]);
    } else {
        write_no_logprobs(step, row);
    }
    if (kept.cut.is_empty()) {
        write_nothing_kept(step, row);
    } else {
        write_kept(step, row, end.view, kept.cut);
    }
}

template <class T>
DEVICE void finish(const Step& step) {
    // What makes the next requests waits for this.
    let_next_begin();
    u32 row = blockIdx.x;
    // What the survey does not write is read before it is done.
    int slot = step.slots[row];
    if (slot < 0) {
        wait_for_previous();
        write_padding(step, row);
        write_nothing_kept(step, row);
        return;
    }
    clear(block_list());
    fetch_request(step, slot, step.params[slot].asks);
    Ending<T> end(step, row, slot);
    // Read where it is used: there is more of it than registers.
    const Params& params = end.params;
    const int forced = step.forced[row];
    const u32 asks = params.asks;
    const Chain chain = chain_of(params);
    const Stream stream{params.seed, end.state.position, params.draw};
    // Filters that the survey alone decides, and a race over the records.
    bool plain = (chain.filters == 0 || chain.filters == FILTER_MIN_P) && !(asks & ASKS_MIROSTAT);
    Heat heat{params.effective_temperature, params.s, params.filter_s};
    wait_for_previous();

    Records records(step, row, asks & ASKS_SUMS);
    Whole whole = whole_of(records, true);
    u64 first = whole.first;
    Chosen chosen{forced, whole.odd, params.temperature, end.state.mu};
    Given kept{cut_none(), 0.0f, true};
    if (first == 0) {
        chosen.status |= STATUS_EMPTY;
    } else {
        if (asks & ASKS_DYNAMIC_TEMPERATURE) {
            find_temperature<T>(step, row, slot, first);
            heat = block_found().heat;
        }
        chosen.temperature = heat.temperature;
        kept = Given{Cut{first, first}, key_logit(first), true};
        int token = (int)key_id(first);
        if (heat.temperature != 0.0f) {
            u64 mass;
            bool sure = false;
            if (plain && !(step.flags & STEP_SEARCHES)) {
                Cut cut = chain.filters == 0 ? cut_all() : min_p_cut(kept.first, heat.filter_s, chain.min_p);
                kept.cut.last = cut.last;
                token = forced < 0 ? (int)race(records, end.view, stream, kept, heat.s) : NONE;
                sure = true;
            } else if (asks & ASKS_LIST && !(step.flags & STEP_SEARCHES) &&
                list_row(step, records, end.view, chain, stream, whole, heat.filter_s, mass)) {
                const Drawn& drawn = draw_listed(
                    chain, heat, mass, [&]() INLINE { return xtc_acts(params, end.state); }, []() INLINE {});
                sure = drawn.sure;
                kept = drawn.kept;
                token = (int)drawn.token;
            }
            if (!sure) {
                search_and_race<T>(step, row, slot, forced < 0, first, heat);
                kept = block_found().kept;
                token = block_found().token;
                chosen.mu = block_found().mu;
            }
        }
        // A forced token was not drawn.
        chosen.token = forced < 0 ? token : forced;
    }
    if (asks & ASKS_LOGPROBS || step.kept != nullptr) {
        tell<T>(step, row, slot, chosen.token, chosen.temperature, first, kept);
    } else {
        write_no_logprobs(step, row);
    }

    if (asks & ASKS_COUNTS) {
        // Without it a slower warp would read logits edited by what the token has just become part of.
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        if (chosen.token != NONE && !(step.flags & STEP_SCORES)) {
            step.states[slot].mu = chosen.mu;
        }
        end_row(step, row, slot, params.asks, end.state, chosen);
    }
}

#define FINISH(name, T)                         \
    KERNEL(name, FINISH_BOUNDS, Step, step) {   \
        finish<T>(step);                        \
    }

FINISH(finish_f32, F32)
FINISH(finish_bf16, Bf16)
FINISH(finish_f16, F16)
