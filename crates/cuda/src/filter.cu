// filter.cu: from a survey to a cut (rules F1 to F10); device functions that the draw's kernel includes.
//
// Computes   the keys between which tokens may be drawn; by a warp, in every lane
// Never      reads logits: a threshold on y is monotone in the logit, so the least logit that passes is searched
//            for among the floats
// Twins      oracle spec/src/filter.rs | CPU cpu/src/filter | why docs/stages/filter.md
#pragma once

#include "cut.cuh"
#include "view.cuh"
#include "warp.cuh"

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

// What a row's filters have to go by.
template <class T>
struct Filtering {
    const Step& step;
    const Params& params;
    const State& state;
    u32 row;
    View<T, true> view;
    // The scale of the filters, which dynamic temperature may have changed.
    float s;
};

// What the filters of a request keep of a row that is not empty, by a block, in every thread.
template <class T>
DEVICE Given filter(const Filtering<T>& given, float first) {
    const Params& params = given.params;
    Given kept{cut_all(), first, true};
    for (u32 chain = params.chain; chain != 0; chain >>= 4) {
        if ((chain & 15) == FILTER_MIN_P) {
            float s = given.s, threshold = params.min_p;
            float least = least_logit(first, [=](float z) { return (z - first) * s >= threshold; });
            kept.cut.last = (u64)ordered_bits(least) << 32;
        }
    }
    return kept;
}
