// finish_general.cu: finishes rows of every request: from the survey to the token, its logprobs and the kept set.
//
// Computes   a row's first token, temperature, cut, winning token, status and mu; logprobs, ranks and kept set if
//            requested; the request's next state
// Never      reads a padding row's logits; writes an output twice; waits for the survey before it must
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: the sections of Layout (spec/src/layout.rs)
// Grid       x = row; whole warps up to 512 threads; no dynamic shared memory
// Requires   the survey of the same step before it on the stream
//
//     padding: write NO_TOKEN
//     read the request; wait for the survey; summarise the row
//     empty: NO_TOKEN
//     temperature: the request's, or computed from the whole row (F7)
//     temperature 0: the row's first token
//     no filter, or min-p alone: its cut, then the race
//     chains that usually keep few tokens: list candidates, filter the list, draw from it
//     all others, and rows whose list fails or leaves a doubt: filter and race over the whole row
//     a forced token replaces the drawn one
//     write logprobs, kept set and results; advance the request

#include "math/params.cuh"
#include "stage/candidate_draw.cuh"
#include "stage/logprobs.cuh"

// One resident block per multiprocessor: held to the registers of two, the compiler spills. With more threads it spills
// even with one block.
#define FINISH_GENERAL_BOUNDS FINISH_GENERAL_THREADS, 1

// Returns whether a bitmask restricts a row.
DEVICE bool is_masked(const Step& step, u32 row) {
    return step.masks != nullptr && (step.mask_present == nullptr || step.mask_present[row] != 0);
}

// Writes a row's logprobs and its kept set, as far as the request and the step need them. Not inlined, so that its
// registers do not add to the kernel's.
template <class T>
DEVICE_NOINLINE void write_logprobs_and_kept_set(const Step& step, u32 row, int slot, int token, float temperature,
                                                 u64 first, GivenSet kept) {
    RowContext<T> context(step, row, slot);
    if (context.params.features & FEATURE_LOGPROBS) {
        bool unedited = !has_edits(context.params) && !is_masked(step, row);
        LogprobRow<T> target{step, row, context.view, unedited, token, temperature, first, kept};
        write_logprobs(target, context.params, step.requests[slot]);
    } else {
        write_no_logprobs(step, row);
    }
    if (kept.cut.is_empty()) {
        clear_kept_bits(step, row);
    } else {
        write_kept_bits(step, row, context.view, kept.cut);
    }
}

template <class T>
DEVICE void finish_general(const Step& step) {
    // A dependent kernel may begin now. The one that writes the next requests waits for this grid before it does.
    trigger_dependents();
    u32 row = blockIdx.x;
    // The survey does not write what is read here, so these loads overlap with it.
    int slot = step.slots[row];
    if (slot < 0) {
        grid_dependency_wait();
        write_padding(step, row);
        clear_kept_bits(step, row);
        return;
    }
    clear(shared_candidates());
    load_request(step, slot, step.params[slot].features);
    RowContext<T> context(step, row, slot);
    // A reference, because the registers cannot hold all parameters: each is loaded where it is used.
    const Params& params = context.params;
    const int forced = step.forced[row];
    const u32 features = params.features;
    const FilterChain chain = filter_chain_of(params);
    const RngStream rng{params.seed, context.state.position, params.draw};
    // Whether the row's cut follows from the survey alone, so that the race can begin with the records.
    bool survey_decides = (chain.filters == 0 || chain.filters == FILTER_MIN_P) && !(features & FEATURE_MIROSTAT);
    Scales scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
    grid_dependency_wait();

    RowRecords records(step, row, features & FEATURE_FILTER_SUMS);
    RowSummary summary = summarise_row(records, true);
    u64 first = summary.first_key;
    RowResult result{forced, summary.nonfinite_flags, params.temperature, context.state.mirostat_mu};
    GivenSet kept{empty_cut(), 0.0f, true};
    if (first == 0) {
        result.status |= STATUS_EMPTY;
    } else {
        if (features & FEATURE_DYNAMIC_TEMPERATURE) {
            find_temperature<T>(step, row, slot, first);
            scales = shared_draw_result().scales;
        }
        result.temperature = scales.temperature;
        kept = GivenSet{Cut{first, first}, key_logit(first), true};
        int token = (int)key_id(first);
        if (scales.temperature != 0.0f) {
            u64 mass;
            bool is_certain = false;
            if (survey_decides && !(step.flags & STEP_NO_CANDIDATES)) {
                Cut cut = chain.filters == 0 ? full_cut()
                                             : min_p_cut(kept.first_value, scales.filter_log2e_over_t, chain.min_p);
                kept.cut.last = cut.last;
                token = forced < 0 ? (int)race(records, context.view, rng, kept, scales.log2e_over_t) : NO_TOKEN;
                is_certain = true;
            } else if (features & FEATURE_CANDIDATES && !(step.flags & STEP_NO_CANDIDATES) &&
                       list_candidates(step, records, context.view, chain, rng, summary, scales.filter_log2e_over_t,
                                       mass)) {
                const ListDraw& list_draw = draw_from_candidates(
                    chain, scales, mass, [&]() INLINE { return xtc_acts(params, context.state); }, []() INLINE {});
                is_certain = list_draw.is_certain;
                kept = list_draw.kept;
                token = (int)list_draw.token;
            }
            if (!is_certain) {
                filter_and_race<T>(step, row, slot, forced < 0, first, scales);
                kept = shared_draw_result().kept;
                token = shared_draw_result().token;
                result.mirostat_mu = shared_draw_result().mirostat_mu;
            }
        }
        // A forced token replaces the drawn one.
        result.token = forced < 0 ? token : forced;
    }
    if (features & FEATURE_LOGPROBS || step.kept_bits != nullptr) {
        write_logprobs_and_kept_set<T>(step, row, slot, result.token, result.temperature, first, kept);
    } else {
        write_no_logprobs(step, row);
    }

    if (features & FEATURE_TOKEN_COUNTS) {
        // WAR on the token counts: slower warps still read logits edited by them, thread 0 then counts the token.
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        if (result.token != NO_TOKEN && !(step.flags & STEP_SCORING)) {
            step.states[slot].mirostat_mu = result.mirostat_mu;
        }
        finish_row(step, row, slot, params.features, context.state, result);
    }
}

#define FINISH_GENERAL(name, T) \
    KERNEL(name, FINISH_GENERAL_BOUNDS, Step, step) { finish_general<T>(step); }

FINISH_GENERAL(finish_general_f32, F32)
FINISH_GENERAL(finish_general_bf16, Bf16)
FINISH_GENERAL(finish_general_f16, F16)
