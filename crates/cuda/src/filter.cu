// filter.cu: from a survey to a cut (rules F1 to F10); device functions that the draw's kernel includes.
//
// Computes   the keys between which tokens may be drawn; by a warp, in every lane
// Never      reads logits: a threshold on y is monotone in the logit, so the least logit that passes is searched
//            for among the floats
// Twins      oracle spec/src/filter.rs | CPU cpu/src/filter | why docs/stages/filter.md
#pragma once

#include "step.cuh"
#include "warp.cuh"

// An interval of the order, by the keys of its ends, which need not be tokens.
struct Cut {
    u64 first;
    u64 last;

    DEVICE_MEMBER bool contains(u64 key) const { return last <= key && key <= first; }
};

// Everything above -inf.
DEVICE Cut cut_all() { return Cut{~0ull, 0x00800000ull << 32}; }

// The least logit that passes, given that `first` does and that what passes is monotone.
template <class Passes>
DEVICE float least_logit(float first, Passes passes) {
    u32 fails = ordered_bits(-INFINITE), high = ordered_bits(first);
    // Each round tests 32 logits at once: seven rounds for all floats.
    while (high - fails > 32) {
        u64 width = high - fails;
        u32 lane = lane_id();
        u32 pivot = fails + (u32)(width * (lane + 1) / 33);
        u32 passing = __ballot_sync(ALL_LANES, passes(from_ordered_bits(pivot)));
        u32 low_fails = fails;
        if (passing != 0) {
            u32 least = __ffs((int)passing) - 1;
            high = low_fails + (u32)(width * (least + 1) / 33);
            fails = low_fails + (u32)(width * least / 33);
        } else {
            fails = low_fails + (u32)(width * 32 / 33);
        }
    }
    u32 candidate = fails + 1 + lane_id();
    u32 passing = __ballot_sync(ALL_LANES, candidate >= high || passes(from_ordered_bits(candidate)));
    return from_ordered_bits(fails + __ffs((int)passing));
}

// What the filters of a request keep of a row whose first logit is given.
DEVICE Cut filter(const Params& params, float first) {
    Cut cut = cut_all();
    if (params.asks & ASKS_MIN_P) {
        float s = params.filter_s, threshold = params.min_p_threshold;
        float least = least_logit(first, [=](float z) { return (z - first) * s >= threshold; });
        cut.last = (u64)ordered_bits(least) << 32;
    }
    return cut;
}
