// finish_candidates.cu: the end of a step whose rows ask for a token and no more, of a race among what filters leave on a list.
//
// Computes   what finish_general.cu computes of such rows, and of those that finish_simple.cu ends
// Never      reads a logit outside the tiles that the list or the race needs, but where a list does not do
// Twins      as finish_general.cu, which rows that ask for more take; who takes which is in src/step.rs
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, then blocks that help; whole warps up to 1024 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream, rows without edits, masks, logprobs and kept sets;
//            filters that ask for a list, or none but min-p
//
// It is apart from finish_general.cu, and written as it is, for the reasons that finish_simple.cu has.

#include "stage/candidate_draw.cuh"
#include "stage/logprobs.cuh"

// A thread for each tile, of most vocabularies.
#define FINISH_CANDIDATES_THREADS 1024

// What the end of a row goes by, on chip: registers are short, and each read of memory would make it wait.
struct CandidateRowInputs {
    State state;
    FilterChain filter_chain;
    Scales scales;
    RngStream rng;
    // Of the request, not of the row.
    float temperature;
    int slot;
    u32 features;
    u32 status;
};

DEVICE CandidateRowInputs& shared_candidate_row() {
    __shared__ CandidateRowInputs inputs;
    return inputs;
}

// Ends a row whose list came to nothing. Apart, so that its registers are its own.
template <class T>
DEVICE_NOINLINE void finish_by_search(const Step& step, u32 row) {
    int slot = step.slots[row];
    const Params& params = step.params[slot];
    RowSummary summary = summarise_row(RowRecords(step, row, false), true);
    RowResult result{step.forced[row], summary.nonfinite_flags, params.effective_temperature,
                     step.states[slot].mirostat_mu};
    filter_and_race<T, false>(step, row, slot, true, summary.first_key,
                              Scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t});
    result.token = shared_draw_result().token;
    if (threadIdx.x == 0) {
        finish_row(step, row, slot, params.features, step.states[slot], result);
    }
}

// Ends a row. Each declares once that it needs no help, or twice where a list was in doubt: then others may be left alone.
template <class T>
DEVICE void finish_candidates_row(const Step& step, u32 row) {
    // What the survey does not write is read before it is done.
    CandidateRowInputs& inputs = shared_candidate_row();
    int slot = step.slots[row], forced = step.forced[row];
    const Params& params = step.params[slot < 0 ? 0 : slot];
    u32 features = params.features;
    if (threadIdx.x == 0) {
        const State state = step.states[slot < 0 ? 0 : slot];
        inputs.state = state;
        inputs.filter_chain = filter_chain_of(params);
        inputs.scales = Scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
        inputs.rng = RngStream{params.seed, state.position, params.draw};
        inputs.temperature = params.temperature;
        inputs.slot = slot;
        inputs.features = features;
    }
    clear(shared_candidates());
    EditedRow<T, false> view(step, row, slot);
    if (slot >= 0) {
        load_request(step, slot, features);
    }
    bool uses_candidates = slot >= 0 && forced < 0 && features & FEATURE_CANDIDATES && !(features & FEATURE_GREEDY);
    grid_dependency_wait();
    if (!uses_candidates) {
        retire_row(step);
    }
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    RowRecords records(step, row, features & FEATURE_FILTER_SUMS);
    // While they fly.
    write_no_logprobs(step, row);
    // Its barrier is that of what is held too.
    RowSummary summary = summarise_row(records, features & FEATURE_GREEDY);
    if (threadIdx.x == 0) {
        inputs.status = summary.nonfinite_flags | (summary.first_key == 0 ? STATUS_EMPTY : 0);
    }
    int token = forced;
    // By one thread.
    auto finish = [&](int token) INLINE {
        float temperature = inputs.status & STATUS_EMPTY ? inputs.temperature : inputs.scales.temperature;
        RowResult result{token, inputs.status, temperature, inputs.state.mirostat_mu};
        finish_row(step, row, inputs.slot, inputs.features, inputs.state, result);
    };
    if (summary.first_key == 0) {
        if (uses_candidates) {
            retire_row(step);
        }
    } else if (forced >= 0) {
        // A forced token was not drawn.
    } else if (features & FEATURE_GREEDY) {
        token = (int)key_id(summary.first_key);
    } else if (features & FEATURE_CANDIDATES) {
        u64 mass;
        bool no_candidates = step.flags & STEP_NO_CANDIDATES;
        if (no_candidates ||
            !list_candidates(step, records, view, inputs.filter_chain, inputs.rng, summary,
                             inputs.scales.filter_log2e_over_t, mass) ||
            !draw_from_candidates(
                 inputs.filter_chain, inputs.scales, mass, [&]() INLINE { return xtc_acts(params, inputs.state); },
                 [&](u32 list_draw, bool is_certain) INLINE {
                     if (is_certain) {
                         finish((int)list_draw);
                     }
                 },
                 []() INLINE {})
                 .is_certain) {
            finish_by_search<T>(step, row);
        }
        return;
    } else {
        float first = key_logit(summary.first_key), log2e_over_t = inputs.scales.filter_log2e_over_t;
        Cut cut = inputs.filter_chain.filters == FILTER_MIN_P
                      ? min_p_cut(first, log2e_over_t, inputs.filter_chain.min_p)
                      : full_cut();
        token = (int)race(records, view, inputs.rng, GivenSet{cut, first, true}, inputs.scales.log2e_over_t);
    }
    if (threadIdx.x == 0) {
        finish(token);
    }
}

template <class T>
DEVICE void finish_candidates(const Step& step) {
    // What makes the next requests waits for this.
    trigger_dependents();
    if (blockIdx.x < step.rows) {
        finish_candidates_row<T>(step, blockIdx.x);
    } else {
        grid_dependency_wait();
        help_rows<EditedRow<T, false>>(step);
    }
}

#define FINISH_CANDIDATES(type, T) \
    KERNEL(finish_candidates_##type, FINISH_CANDIDATES_THREADS, Step, step) { finish_candidates<T>(step); }

FINISH_CANDIDATES(f32, F32)
FINISH_CANDIDATES(bf16, Bf16)
FINISH_CANDIDATES(f16, F16)
