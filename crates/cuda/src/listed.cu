// listed.cu: the end of a step whose rows ask for a token and no more, of a race among what filters leave on a list.
//
// Computes   what step.cu computes of such rows, and of those that lean.cu ends
// Never      reads a logit outside the tiles that the list or the race needs, but where a list does not do
// Twins      as step.cu, which rows that ask for more take; who takes which is in src/step.rs
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, whole warps up to 1024 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream, rows without edits, masks, logprobs and kept sets;
//            filters that ask for a list, or none but min-p
//
// It is apart from step.cu, and written as it is, for the reasons that lean.cu has.

#include "ending.cu"
#include "list.cu"
#include "logprobs.cu"

// A thread for each tile, of most vocabularies.
#define LISTED_THREADS 1024

// Ends a row whose list came to nothing. Apart, so that its registers are its own.
template <class T>
DEVICE_APART void finish_searching(const Step& step, u32 row) {
    int slot = step.slots[row];
    const Params& params = step.params[slot];
    Whole whole = whole_of(Records(step, row, false), true);
    Chosen chosen{step.forced[row], whole.odd, params.effective_temperature, step.states[slot].mu};
    search_and_race<T, false>(step, row, slot, true, whole.first, Heat{params.effective_temperature, params.s, params.filter_s});
    chosen.token = block_found().token;
    if (threadIdx.x == 0) {
        end_row(step, row, slot, params.asks, step.states[slot], chosen);
    }
}

template <class T>
DEVICE void finish_listed(const Step& step) {
    u32 row = blockIdx.x;
    // What the survey does not write is read before it is done.
    int slot = step.slots[row], forced = step.forced[row];
    const Params& params = step.params[slot < 0 ? 0 : slot];
    const State state = step.states[slot < 0 ? 0 : slot];
    Stream stream{params.seed, state.position, params.draw};
    u32 asks = params.asks;
    Chosen chosen{forced, 0, params.temperature, state.mu};
    Heat heat{params.effective_temperature, params.s, params.filter_s};
    Chain chain = chain_of(params);
    clear(block_list());
    View<T, false> view(step, row, slot);
    if (slot >= 0) {
        fetch_request(step, slot, asks);
    }
    wait_for_previous();
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    Records records(step, row, asks & ASKS_SUMS);
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
        } else if (asks & ASKS_LIST) {
            u64 mass;
            bool sure = false;
            if (!(step.flags & STEP_SEARCHES) &&
                list_row(step, records, view, chain, stream, whole, heat.filter_s, mass)) {
                const Drawn& drawn = draw_listed(
                    chain, heat, mass, [&]() INLINE { return xtc_acts(params, state); }, []() INLINE {});
                sure = drawn.sure;
                chosen.token = (int)drawn.token;
            }
            if (!sure) {
                finish_searching<T>(step, row);
                return;
            }
        } else {
            float first = key_logit(whole.first);
            Cut cut = chain.filters == FILTER_MIN_P ? min_p_cut(first, heat.filter_s, chain.min_p) : cut_all();
            chosen.token = (int)race(records, view, stream, Given{cut, first, true}, heat.s);
        }
    }
    if (threadIdx.x == 0) {
        end_row(step, row, slot, asks, state, chosen);
    }
}

#define FINISH_LISTED(type, T)                                 \
    KERNEL(finish_listed_##type, LISTED_THREADS, Step, step) { \
        finish_listed<T>(step);                                \
    }

FINISH_LISTED(f32, F32)
FINISH_LISTED(bf16, Bf16)
FINISH_LISTED(f16, F16)
