// general_draw.cuh: filters and races in general, apart from the kernels that end a step; device functions of a block.
//
// Computes   a row's dynamic temperature; its cut and the token that wins
// Traffic    as filter.cuh and race.cuh
// Requires   the row's survey; all threads of the block, whole warps
#pragma once

#include "block/race.cuh"
#include "stage/filter.cuh"

// How far below a row's first token min-p reaches, about, where that is searched for; `threshold` is what `min_p_threshold` says.
DEVICE float min_p_offset(float threshold, float log2e_over_t) {
    return MIN_P_COMPARES_VALUES ? 0.0f : threshold_offset(threshold, log2e_over_t);
}

// The cut of min-p in a row, `offset` being what `min_p_offset` says. Of probabilities it is known (P1a). Of logits (F2) the least one is close
// to what that gives: mostly one look at 32 logits finds it.
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
    // What passes is monotone, so next to one that does not the first that does is the least.
    bool found = passing != 0 && (passing & 1) == 0;
    float least = found ? from_ordered_bits(base + __ffs((int)passing) - 1) : least_passing_logit(first, passes);
    return Cut{~0ull, last_key_at(least)};
}

DEVICE Cut min_p_cut(float first, float log2e_over_t, float threshold) {
    return min_p_cut(first, log2e_over_t, threshold, min_p_offset(threshold, log2e_over_t));
}

// A row of a step: what the parts of its end that are apart find for themselves.
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
        // Rows of known tokens follow each other.
        state.position += step.flags & STEP_SCORING ? row : 0;
    }

    DEVICE_MEMBER FilterContext<EditedRow<T, EDITED>> filter_context(float log2e_over_t) const {
        return FilterContext<EditedRow<T, EDITED>>{step, params, state, row, view, log2e_over_t};
    }
};

// What a row's filters and its race came to, in shared memory.
struct DrawResult {
    Scales scales;
    GivenSet kept;
    int token;
    float mirostat_mu;
};

DEVICE DrawResult& shared_draw_result() {
    __shared__ DrawResult found;
    return found;
}

// The functions that are apart keep their registers from those of what most rows need. What they find is in `shared_draw_result`.

// Finds a row's dynamic temperature.
template <class T>
DEVICE_NOINLINE void find_temperature(const Step& step, u32 row, int slot, u64 first) {
    RowContext<T> context(step, row, slot);
    Scales scales = compute_scales(context.filter_context(context.params.filter_log2e_over_t), first);
    if (threadIdx.x == 0) {
        shared_draw_result().scales = scales;
    }
    // Without it a thread would read what is not there yet.
    __syncthreads();
}

// Filters in general.
template <class T, bool EDITED>
DEVICE_NOINLINE void find_kept_set(const Step& step, u32 row, int slot, u64 first, float filter_log2e_over_t) {
    RowContext<T, EDITED> context(step, row, slot);
    GivenSet kept = apply_filters(context.filter_context(filter_log2e_over_t), first);
    if (threadIdx.x == 0) {
        shared_draw_result().kept = kept;
    }
    // Without it a thread would read what is not there yet.
    __syncthreads();
}

// Races among the kept.
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

// Filters and races in general.
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
    // Without it a thread would read what is not there yet.
    __syncthreads();
}
