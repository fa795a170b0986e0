// kept_set.cuh: the set that a row's filters keep, found by reads of the row; device functions of a block.
//
// Computes   a row's scales under dynamic temperature; the interval of the row's order that any filter chain keeps; the
//            cut of min-p alone, which needs no read
// Never      draws, except for XTC's random word; writes outputs
// Traffic    that of filter.cuh
// Requires   the row's survey; all threads of the block, whole warps
//
// This file and candidate_filter.cuh find a row's cut. draw.cuh and finish.cuh take the cut from there to the token and
// the outputs, and read only those tiles of the row that can hold the winner or that an output needs.
#pragma once

#include "stage/filter.cuh"

// Returns approximately how far min-p's least logit lies from the row's first, as `apply_threshold_offset` takes it.
// `threshold` is the result of `min_p_threshold`. Rows of probabilities need no offset: it is 0.
DEVICE float min_p_offset(float threshold, float log2e_over_t) {
    return MIN_P_COMPARES_VALUES ? 0.0f : threshold_offset(threshold, log2e_over_t);
}

// Returns the cut that min-p leaves of a row; by a warp, in every lane. `offset` is the result of `min_p_offset`. For
// probabilities one product gives it (P1a). For logits (F2) the least one that passes is near first + offset: a test of
// 32 neighbouring floats, one per lane, usually finds it. The first logit itself always passes.
DEVICE Cut min_p_cut(float first, float log2e_over_t, float threshold, float offset) {
    if (MIN_P_COMPARES_VALUES) {
        return Cut{~0ull, last_key_at_min_p(first, threshold)};
    }
    const Origin origin(first);
    auto passes = [=](float z) INLINE { return exponent(z, origin, log2e_over_t) >= threshold; };
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
template <class T, bool EDITED>
struct RowContext {
    const Step& step;
    u32 row;
    int slot;
    const Params& params;
    State state;
    EditedRow<T, EDITED> view;

    DEVICE_MEMBER RowContext(const Step& step, u32 row, int slot)
        : step(step), row(row), slot(slot), params(step.params[slot]), state(step.states[slot]), view(step, row, slot) {
        // In a step of known tokens the rows are consecutive positions of one request.
        state.position += step.flags & STEP_KNOWN_TOKENS ? row : 0;
    }

    DEVICE_MEMBER FilterContext<EditedRow<T, EDITED>> filter_context(float log2e_over_t, FilterStorage& storage) const {
        return FilterContext<EditedRow<T, EDITED>>{step, params, state, row, view, log2e_over_t, storage};
    }
};

// The functions marked DEVICE_NOINLINE serve few rows; inlined, their registers would add to the registers of the code
// that most rows run.

// Computes a row's scales under dynamic temperature and stores them in `storage.scales`, for all threads.
template <class T, bool EDITED>
DEVICE_NOINLINE void find_temperature(const Step& step, u32 row, int slot, u64 first, FilterStorage& storage) {
    RowContext<T, EDITED> context(step, row, slot);
    Scales scales = compute_scales(context.filter_context(context.params.filter_log2e_over_t, storage), first);
    if (threadIdx.x == 0) {
        storage.scales = scales;
    }
    // RAW on scales: thread 0 wrote them, all threads of the caller read them.
    __syncthreads();
}

// Computes what the filters of a chain keep of a row and stores it in `storage.kept`, for all threads.
template <class T, bool EDITED>
DEVICE_NOINLINE void find_kept_set(const Step& step, u32 row, int slot, u64 first, u64 filter_chain,
                                   float filter_log2e_over_t, FilterStorage& storage) {
    RowContext<T, EDITED> context(step, row, slot);
    GivenSet kept = apply_filters(context.filter_context(filter_log2e_over_t, storage), first, filter_chain);
    if (threadIdx.x == 0) {
        storage.kept = kept;
    }
    // RAW on kept: thread 0 wrote it, all threads read it.
    __syncthreads();
}
