// general_draw.cuh: any filter chain and the race after it, as functions that finish kernels call and do not inline;
// device functions of a block.
//
// Computes   a row's dynamic temperature; its cut, and the token that wins; the cut of min-p alone
// Traffic    that of filter.cuh and race.cuh
// Requires   the row's survey; all threads of the block, whole warps
#pragma once

#include "block/race.cuh"
#include "stage/filter.cuh"

// Returns approximately how far min-p's least logit lies from the row's first, as `apply_threshold_offset` takes it.
// `threshold` is the result of `min_p_threshold`. Rows of probabilities need no offset: it is 0.
DEVICE float min_p_offset(float threshold, float log2e_over_t) {
    return MIN_P_COMPARES_VALUES ? 0.0f : threshold_offset(threshold, log2e_over_t);
}

// Returns the cut that min-p leaves of a row; by a warp, in every lane. `offset` is the result of `min_p_offset`. For
// probabilities one product gives it (P1a). For logits (F2) the least one that passes is near first + offset: a test of
// 32 neighbouring floats, one per lane, usually finds it.
DEVICE Cut min_p_cut(float first, float log2e_over_t, float threshold, float offset) {
    if (MIN_P_COMPARES_VALUES) {
        return Cut{~0ull, last_key_at_min_p(first, threshold)};
    }
    const Origin origin(first);
    auto passes = [=](float z) INLINE { return exponent(z, origin, log2e_over_t) >= threshold; };
    if (!passes(first)) {
        return Cut{~0ull, make_key(first, 0)};
    }
    u32 base = ordered_bits(apply_threshold_offset(first, offset)) - 16;
    u32 passing = __ballot_sync(FULL_MASK, passes(from_ordered_bits(base + lane_id())));
    // If a logit passes, so do all larger ones. So if lane 0's float fails, the first one that passes is the least of
    // all; otherwise a search over all floats finds it.
    bool found = passing != 0 && (passing & 1) == 0;
    float least = found ? from_ordered_bits(base + __ffs((int)passing) - 1) : least_passing_logit(first, passes);
    return Cut{~0ull, last_key_at(least)};
}

DEVICE Cut min_p_cut(float first, float log2e_over_t, float threshold) {
    return min_p_cut(first, log2e_over_t, threshold, min_p_offset(threshold, log2e_over_t));
}

// A row of a step with its request. Functions that are not inlined load it themselves, from three arguments.
template <class T, bool EDITED = true>
struct RowContext {
    const Step& step;
    u32 row;
    int slot;
    const Params& params;
    State state;
    EditedRow<T, EDITED> view;

    DEVICE_MEMBER RowContext(const Step& step, u32 row, int slot)
        : step(step), row(row), slot(slot), params(step.params[slot]), state(step.states[slot]), view(step, row, slot) {
        // In a scoring step the rows are consecutive positions of one request.
        state.position += step.flags & STEP_SCORING ? row : 0;
    }

    DEVICE_MEMBER FilterContext<EditedRow<T, EDITED>> filter_context(float log2e_over_t) const {
        return FilterContext<EditedRow<T, EDITED>>{step, params, state, row, view, log2e_over_t};
    }
};

// The results of the functions below, in shared memory.
struct DrawResult {
    Scales scales;
    GivenSet kept;
    // NO_TOKEN if nothing was drawn.
    int token;
    float mirostat_mu;
};

DEVICE DrawResult& shared_draw_result() {
    __shared__ DrawResult found;
    return found;
}

// The functions marked DEVICE_NOINLINE serve few rows; inlined, their registers would add to those of the code that
// most rows run. They write their results to `shared_draw_result`.

// Computes a row's scales under dynamic temperature.
template <class T>
DEVICE_NOINLINE void find_temperature(const Step& step, u32 row, int slot, u64 first) {
    RowContext<T> context(step, row, slot);
    Scales scales = compute_scales(context.filter_context(context.params.filter_log2e_over_t), first);
    if (threadIdx.x == 0) {
        shared_draw_result().scales = scales;
    }
    // RAW on scales: thread 0 wrote them, all threads of the caller read them.
    __syncthreads();
}

// Computes what a row's filters keep.
template <class T, bool EDITED>
DEVICE_NOINLINE void find_kept_set(const Step& step, u32 row, int slot, u64 first, float filter_log2e_over_t) {
    RowContext<T, EDITED> context(step, row, slot);
    GivenSet kept = apply_filters(context.filter_context(filter_log2e_over_t), first);
    if (threadIdx.x == 0) {
        shared_draw_result().kept = kept;
    }
    // RAW on kept: thread 0 wrote it, all threads read it.
    __syncthreads();
}

// Draws among the kept tokens, and updates mirostat's mu. A barrier must follow before other threads read the result.
template <class T, bool EDITED>
DEVICE_NOINLINE void race_kept_set(const Step& step, u32 row, int slot, Scales scales) {
    RowContext<T, EDITED> context(step, row, slot);
    FilterContext<EditedRow<T, EDITED>> filter_context = context.filter_context(scales.filter_log2e_over_t);
    RngStream rng{context.params.seed, context.state.position, context.params.draw};
    int token =
        (int)race(RowRecords(step, row, false), context.view, rng, shared_draw_result().kept, scales.log2e_over_t);
    float mirostat_mu = context.state.mirostat_mu;
    if (context.params.features & FEATURE_MIROSTAT) {
        mirostat_mu = next_mu(filter_context, shared_draw_result().kept, (u32)token);
    }
    if (threadIdx.x == 0) {
        shared_draw_result().token = token;
        shared_draw_result().mirostat_mu = mirostat_mu;
    }
}

// Filters a row and, if `races`, draws its token. The results are in `shared_draw_result`, for all threads.
template <class T, bool EDITED = true>
DEVICE void filter_and_race(const Step& step, u32 row, int slot, bool races, u64 first, Scales scales) {
    find_kept_set<T, EDITED>(step, row, slot, first, scales.filter_log2e_over_t);
    retire_row(step);
    if (races) {
        race_kept_set<T, EDITED>(step, row, slot, scales);
    } else if (threadIdx.x == 0) {
        shared_draw_result().token = NO_TOKEN;
        shared_draw_result().mirostat_mu = step.states[slot].mirostat_mu;
    }
    // RAW on token, mirostat_mu: thread 0 wrote them, all threads of the caller read them.
    __syncthreads();
}
