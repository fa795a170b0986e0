// finish_general.cu: the end of a step: from a row's survey to its token and all that is said of it.
//
// Computes   the row's first token, its temperature, its cut, the token that wins, its logprobs; moves the request on
// Never      reads a row that is padding, or touches its outputs twice; waits for the survey before it must
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: sections as Layout has them
// Grid       x = row, whole warps up to 512 threads, no dynamic shared memory
// Requires   the survey of the same step before it on the stream

#include "math/params.cuh"
#include "stage/candidate_draw.cuh"
#include "stage/logprobs.cuh"

#define FINISH_GENERAL_THREADS 512
// One block a multiprocessor, or the compiler spills for the sake of two; and no more threads, or it spills with one.
#define FINISH_GENERAL_BOUNDS FINISH_GENERAL_THREADS, 1

// Whether a grammar restricts a row.
DEVICE bool is_masked(const Step& step, u32 row) {
    return step.masks != nullptr && (step.mask_present == nullptr || step.mask_present[row] != 0);
}

// Writes a row's logprobs and its kept set, as far as they are asked for.
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
    // What makes the next requests waits for this.
    trigger_dependents();
    u32 row = blockIdx.x;
    // What the survey does not write is read before it is done.
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
    // Read where it is used: there is more of it than registers.
    const Params& params = context.params;
    const int forced = step.forced[row];
    const u32 features = params.features;
    const FilterChain chain = filter_chain_of(params);
    const RngStream rng{params.seed, context.state.position, params.draw};
    // Filters that the survey alone decides, and a race over the records.
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
        // A forced token was not drawn.
        result.token = forced < 0 ? token : forced;
    }
    if (features & FEATURE_LOGPROBS || step.kept_bits != nullptr) {
        write_logprobs_and_kept_set<T>(step, row, slot, result.token, result.temperature, first, kept);
    } else {
        write_no_logprobs(step, row);
    }

    if (features & FEATURE_TOKEN_COUNTS) {
        // Without it a slower warp would read logits edited by what the token has just become part of.
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
