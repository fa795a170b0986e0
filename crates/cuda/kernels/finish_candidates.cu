// finish_candidates.cu: finishes rows that need only a token, drawn from a candidate list, and the rows of
// finish_simple.cu.
//
// Computes   a row's token, status and temperature, as finish_general.cu would; empty logprobs; the request's next
//            state
// Never      reads a logit outside the tiles that the list or the race needs, unless the list fails or leaves a doubt
// Twins      finish_general.cu for every request, finish_simple.cu for rows without a list; variant.rs chooses
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: the sections of Layout (spec/src/layout.rs)
// Grid       x = row, then helper blocks (work_sharing.cuh); whole warps up to 1024 threads; no dynamic shared memory
// Requires   the survey of the same step before it on the stream; rows without edits, masks, logprobs and kept sets;
//            filter chains with FEATURE_CANDIDATES, or no filter but min-p
//
// This kernel is separate from finish_general.cu because its time is mostly latency, as finish_simple.cu explains.
//
//     read the request; wait for the survey; summarise the row
//     padding: NO_TOKEN | forced: that token | empty: NO_TOKEN | greedy: the row's first token
//     no filter, or min-p: the race
//     otherwise: list candidates, filter the list, draw from it
//                if the list fails or leaves a doubt: search the whole row, with the help of idle blocks
//     write the results, advance the request

#include "stage/candidate_draw.cuh"
#include "stage/logprobs.cuh"

// One thread per tile in vocabularies of up to 262144 tokens.
// What a block needs of its row's request, in shared memory: registers are scarce, and each read from global memory
// would add its latency.
struct CandidateRowInputs {
    State state;
    FilterChain filter_chain;
    Scales scales;
    RngStream rng;
    // The request's own temperature, which an empty row reports.
    float temperature;
    int slot;
    u32 features;
    u32 status;
};

DEVICE CandidateRowInputs& shared_candidate_row() {
    __shared__ CandidateRowInputs inputs;
    return inputs;
}

// Finishes a row whose list failed or left a doubt. Not inlined, so that its registers do not add to those of other
// rows' code.
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

// Finishes a row. Each row calls `retire_row` once, or twice if its list leaves a doubt. The count of retired rows is
// then one too high, so helpers may leave while another row could still use them. That costs time and never changes a
// result.
template <class T>
DEVICE void finish_candidates_row(const Step& step, u32 row) {
    // The survey does not write what is read here, so these loads overlap with it.
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
    // This overlaps with the loads of the records.
    write_no_logprobs(step, row);
    // RAW on inputs, the request and the cleared list: all warps wrote parts of them, and all read them after the
    // barrier inside summarise_row.
    RowSummary summary = summarise_row(records, features & FEATURE_GREEDY);
    if (threadIdx.x == 0) {
        inputs.status = summary.nonfinite_flags | (summary.first_key == 0 ? STATUS_EMPTY : 0);
    }
    int token = forced;
    // Writes the row's results; thread 0 calls it.
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
        // A forced token is emitted as it is; nothing is drawn.
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
    // A dependent kernel may begin now. The one that writes the next requests waits for this grid before it does.
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
