// ending.cu: filters and races in general, apart from the kernels that end a step; device functions of a block.
//
// Computes   a row's dynamic temperature; its cut and the token that wins
// Traffic    as filter.cu and draw.cu
// Requires   the row's survey; all threads of the block, whole warps
#pragma once

#include "draw.cu"
#include "filter.cu"

// How far below a row's first token min-p reaches, about, where that is searched for; `threshold` is what `min_p_of` says.
DEVICE float way_of_min_p(float threshold, float s) { return MIN_P_OF_NUMBERS ? 0.0f : way_down(threshold, s); }

// The cut of min-p in a row, `way` being what `way_of_min_p` says. Of probabilities it is known (P1a). Of logits (F2) the least one is close
// to what that gives: mostly one look at 32 logits finds it.
DEVICE Cut min_p_cut(float first, float s, float threshold, float way) {
    if (MIN_P_OF_NUMBERS) {
        return Cut{~0ull, last_key_of_min_p(first, threshold)};
    }
    const Origin origin(first);
    auto passes = [=](float z) INLINE { return exponent(z, origin, s) >= threshold; };
    if (!passes(first)) {
        return Cut{~0ull, key_of(first, 0)};
    }
    u32 base = ordered_bits(down(first, way)) - 16;
    u32 passing = __ballot_sync(ALL_LANES, passes(from_ordered_bits(base + lane_id())));
    // What passes is monotone, so next to one that does not the first that does is the least.
    bool found = passing != 0 && (passing & 1) == 0;
    float least = found ? from_ordered_bits(base + __ffs((int)passing) - 1) : least_logit(first, passes);
    return Cut{~0ull, last_key_of(least)};
}

DEVICE Cut min_p_cut(float first, float s, float threshold) { return min_p_cut(first, s, threshold, way_of_min_p(threshold, s)); }

// A row of a step: what the parts of its end that are apart find for themselves.
template <class T, bool EDITED = true>
struct Ending {
    const Step& step;
    u32 row;
    int slot;
    const Params& params;
    State state;
    View<T, EDITED> view;

    DEVICE_MEMBER Ending(const Step& step, u32 row, int slot)
        : step(step), row(row), slot(slot), params(step.params[slot]), state(step.states[slot]), view(step, row, slot) {
        // Rows of known tokens follow each other.
        state.position += step.flags & STEP_SCORES ? row : 0;
    }

    DEVICE_MEMBER Filtering<View<T, EDITED>> filtering(float s) const {
        return Filtering<View<T, EDITED>>{step, params, state, row, view, s};
    }
};

// What a row's filters and its race came to, in shared memory.
struct Found {
    Heat heat;
    Given kept;
    int token;
    float mu;
};

DEVICE Found& block_found() {
    __shared__ Found found;
    return found;
}

// The functions that are apart keep their registers from those of what most rows need. What they find is in `block_found`.

// Finds a row's dynamic temperature.
template <class T>
DEVICE_APART void find_temperature(const Step& step, u32 row, int slot, u64 first) {
    Ending<T> end(step, row, slot);
    Heat heat = temperature(end.filtering(end.params.filter_s), first);
    if (threadIdx.x == 0) {
        block_found().heat = heat;
    }
    // Without it a thread would read what is not there yet.
    __syncthreads();
}

// Filters in general.
template <class T, bool EDITED>
DEVICE_APART void find_kept(const Step& step, u32 row, int slot, u64 first, float filter_s) {
    Ending<T, EDITED> end(step, row, slot);
    Given kept = filter(end.filtering(filter_s), first);
    if (threadIdx.x == 0) {
        block_found().kept = kept;
    }
    // Without it a thread would read what is not there yet.
    __syncthreads();
}

// Races among the kept.
template <class T, bool EDITED>
DEVICE_APART void race_in_general(const Step& step, u32 row, int slot, Heat heat) {
    Ending<T, EDITED> end(step, row, slot);
    Filtering<View<T, EDITED>> filtering = end.filtering(heat.filter_s);
    Stream stream{end.params.seed, end.state.position, end.params.draw};
    int token = (int)race(Records(step, row, false), end.view, stream, block_found().kept, heat.s);
    float mu = end.state.mu;
    if (end.params.asks & ASKS_MIROSTAT) {
        mu = next_mu(filtering, block_found().kept, (u32)token);
    }
    if (threadIdx.x == 0) {
        block_found().token = token;
        block_found().mu = mu;
    }
}

// Filters and races in general.
template <class T, bool EDITED = true>
DEVICE void search_and_race(const Step& step, u32 row, int slot, bool races, u64 first, Heat heat) {
    find_kept<T, EDITED>(step, row, slot, first, heat.filter_s);
    need_no_help(step);
    if (races) {
        race_in_general<T, EDITED>(step, row, slot, heat);
    } else if (threadIdx.x == 0) {
        block_found().token = NONE;
        block_found().mu = step.states[slot].mu;
    }
    // Without it a thread would read what is not there yet.
    __syncthreads();
}
