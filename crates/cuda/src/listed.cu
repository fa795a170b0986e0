// listed.cu: the end of a step whose rows ask for a token and no more, of a race among what filters leave on a list.
//
// Computes   what step.cu computes of such rows, and of those that lean.cu ends
// Never      reads a logit outside the tiles that the list or the race needs, but where a list does not do
// Twins      as step.cu, which rows that ask for more take; who takes which is in src/step.rs
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, then blocks that help; whole warps up to 1024 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream, rows without edits, masks, logprobs and kept sets;
//            filters that ask for a list, or none but min-p
//
// It is apart from step.cu, and written as it is, for the reasons that lean.cu has.

#include "ending.cu"
#include "list.cu"
#include "logprobs.cu"

// A thread for each tile, of most vocabularies.
#define LISTED_THREADS 1024

// What the end of a row goes by, on chip: registers are short, and each read of memory would make it wait.
struct OnChip {
    State state;
    Chain chain;
    Heat heat;
    Stream stream;
    // Of the request, not of the row.
    float temperature;
    int slot;
    u32 asks;
    u32 status;
};

DEVICE OnChip& block_on_chip() {
    __shared__ OnChip held;
    return held;
}

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

// Ends a row. Each declares once that it needs no help, or twice where a list was in doubt: then others may be left alone.
template <class T>
DEVICE void finish_listed_row(const Step& step, u32 row) {
    // What the survey does not write is read before it is done.
    OnChip& held = block_on_chip();
    int slot = step.slots[row], forced = step.forced[row];
    const Params& params = step.params[slot < 0 ? 0 : slot];
    u32 asks = params.asks;
    if (threadIdx.x == 0) {
        const State state = step.states[slot < 0 ? 0 : slot];
        held.state = state;
        held.chain = chain_of(params);
        held.heat = Heat{params.effective_temperature, params.s, params.filter_s};
        held.stream = Stream{params.seed, state.position, params.draw};
        held.temperature = params.temperature;
        held.slot = slot;
        held.asks = asks;
    }
    clear(block_list());
    View<T, false> view(step, row, slot);
    if (slot >= 0) {
        fetch_request(step, slot, asks);
    }
    bool lists = slot >= 0 && forced < 0 && asks & ASKS_LIST && !(asks & ASKS_GREEDY);
    wait_for_previous();
    if (!lists) {
        need_no_help(step);
    }
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    Records records(step, row, asks & ASKS_SUMS);
    // While they fly.
    write_no_logprobs(step, row);
    // Its barrier is that of what is held too.
    Whole whole = whole_of(records, asks & ASKS_GREEDY);
    if (threadIdx.x == 0) {
        held.status = whole.odd | (whole.first == 0 ? STATUS_EMPTY : 0);
    }
    int token = forced;
    // By one thread.
    auto end = [&](int token) INLINE {
        float temperature = held.status & STATUS_EMPTY ? held.temperature : held.heat.temperature;
        Chosen chosen{token, held.status, temperature, held.state.mu};
        end_row(step, row, held.slot, held.asks, held.state, chosen);
    };
    if (whole.first == 0) {
        if (lists) {
            need_no_help(step);
        }
    } else if (forced >= 0) {
        // A forced token was not drawn.
    } else if (asks & ASKS_GREEDY) {
        token = (int)key_id(whole.first);
    } else if (asks & ASKS_LIST) {
        u64 mass;
        bool searches = step.flags & STEP_SEARCHES;
        if (searches || !list_row(step, records, view, held.chain, held.stream, whole, held.heat.filter_s, mass) ||
            !draw_listed(
                 held.chain, held.heat, mass, [&]() INLINE { return xtc_acts(params, held.state); },
                 [&](u32 drawn, bool sure) INLINE {
                     if (sure) {
                         end((int)drawn);
                     }
                 },
                 []() INLINE {})
                 .sure) {
            finish_searching<T>(step, row);
        }
        return;
    } else {
        float first = key_logit(whole.first), s = held.heat.filter_s;
        Cut cut = held.chain.filters == FILTER_MIN_P ? min_p_cut(first, s, held.chain.min_p) : cut_all();
        token = (int)race(records, view, held.stream, Given{cut, first, true}, held.heat.s);
    }
    if (threadIdx.x == 0) {
        end(token);
    }
}

template <class T>
DEVICE void finish_listed(const Step& step) {
    // What makes the next requests waits for this.
    let_next_begin();
    if (blockIdx.x < step.rows) {
        finish_listed_row<T>(step, blockIdx.x);
    } else {
        wait_for_previous();
        help<View<T, false>>(step);
    }
}

#define FINISH_LISTED(type, T)                                 \
    KERNEL(finish_listed_##type, LISTED_THREADS, Step, step) { \
        finish_listed<T>(step);                                \
    }

FINISH_LISTED(f32, F32)
FINISH_LISTED(bf16, Bf16)
FINISH_LISTED(f16, F16)
