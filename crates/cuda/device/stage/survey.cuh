// survey.cuh: reduces a tile in a warp's registers to its record, for surveys of rows with and without edits.
//
// Computes   the maximum logit of each tile and its token; an upper bound of the tile's other logits; sums of weights;
//            log2 of the tile's first arrival and of that token's arrival
// Twins      oracle spec/src/survey.rs | CPU cpu/src/survey.rs | why docs/stages/survey.md
// Requires   whole warps
//
// Each warp reduces its tiles to their maxima; the lane with a tile's maximum stores its logits in shared memory. After
// one barrier, warp 0 completes the block's records and draws their arrivals, one tile per lane. Philox and two
// logarithms take as long for 1 lane as for 32; if every warp drew, most lanes would idle.
#pragma once

#include "math/arrival.cuh"
#include "math/record.cuh"
#include "warp/tile.cuh"
#include "block/survey_grid.cuh"

// A warp's result for one tile. The leader is the lane that holds the tile's first token in the order.
struct alignas(16) TileReduction {
    float leader_logits[ITEMS_PER_LANE];
    // The largest logit of the tile, and the largest of the lanes other than the leader, as ordered ints.
    int maximum;
    int other_lanes_max;
    u32 leader_lane;
    // Lets the leader store these four words as 16 bytes.
    u32 reserved;
};

// A tile's sum of weights for logprobs, relative to `maximum`, which is finite even in a tile without tokens.
struct alignas(16) SplitLogprobSum {
    SplitSum sum;
    float maximum;
    u32 reserved;
};

// A survey's shared memory. Each warp writes the elements of its own tiles; warp 0 reads all of them.
template <u32 WARPS, u32 TILES>
struct SharedStorage {
    TileReduction reductions[TILES];
    SplitLogprobSum logprob_sums[TILES];
    SplitSum filter_sums[TILES];
    u32 nonfinite_flags[WARPS];
};

// Whether the lane holds the tile's first token if several lanes hold its maximum: the token with the least offset.
// Exactly one lane returns true.
template <class T, class Mask>
DEVICE bool wins_tie(const float (&z)[ITEMS_PER_LANE], const Mask& mask, float maximum) {
    // `opaque` keeps the compiler from computing the offsets before this rare case.
    u32 lane = opaque(lane_id()), offset = TILE;
#pragma unroll
    for (u32 j = ITEMS_PER_LANE; j-- > 0;) {
        // Offsets rise with j, and j falls, so the last offset is the lane's least.
        offset = mask.allows(j) && z[j] >= maximum ? offset_in_tile<T>(lane, j) : offset;
    }
    u32 least = __reduce_min_sync(FULL_MASK, offset);
    // If the mask allows nothing, no lane has an offset, and lane 0 wins.
    return offset == least && (least < TILE || lane == 0);
}

// Reduces a tile's allowed logits across the warp. Returns their maximum in every lane, as an ordered int; the leader
// stores `reduction`. Cleans non-finite logits in `z`; the ones that the mask allows set bits in `nonfinite_flags`.
template <class T, class Mask>
DEVICE int reduce_tile(float (&z)[ITEMS_PER_LANE], const Mask& mask, TileReduction& reduction, u32& nonfinite_flags) {
    int lane_max, maximum = reduce_max(z, mask, mask, nonfinite_flags, lane_max);
    u32 leaders = __ballot_sync(FULL_MASK, lane_max == maximum);
    if ((leaders & (leaders - 1)) != 0) {
        // On a tie the lowest id leads. The reload keeps eight mask predicates from staying live up to this rare case.
        leaders = __ballot_sync(FULL_MASK, wins_tie<T>(z, mask.reload(), from_ordered_int(maximum)));
    }
    bool is_leader = leaders >> lane_id() & 1;
    int other_lanes_max = __reduce_max_sync(FULL_MASK, is_leader ? ordered_int(-INF_F32) : lane_max);
    if (is_leader) {
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            reduction.leader_logits[j] = z[j];
        }
        reduction.maximum = maximum;
        reduction.other_lanes_max = other_lanes_max;
        reduction.leader_lane = lane_id();
        reduction.reserved = 0;
    }
    return maximum;
}

// Makes a tile's record from its reduction. ArrivalSampler::complete adds the arrivals.
template <class T, class Mask>
DEVICE TileRecord make_record(const TileReduction& reduction, const Mask& mask, u32 nonfinite_flags) {
    float maximum = from_ordered_int(reduction.maximum), others = from_ordered_int(reduction.other_lanes_max);
    u32 j = ITEMS_PER_LANE;
#pragma unroll
    for (u32 i = ITEMS_PER_LANE; i-- > 0;) {
        float z = mask.allows(i) ? reduction.leader_logits[i] : MASKED_VALUE;
        bool first = z >= maximum;
        // On a tie the item with the lowest index is the tile's token, and the maximum itself bounds the others.
        others = max_f32(others, first ? (j < ITEMS_PER_LANE ? maximum : -INF_F32) : z);
        j = first ? i : j;
    }
    // In a tile without tokens any offset is acceptable: it is not read.
    return TileRecord{
        maximum, 0.0f, 0.0f,
        pack_record_bits(offset_in_tile<T>(reduction.leader_lane, j % ITEMS_PER_LANE), nonfinite_flags, others)};
}

// The sums of weights that a row needs, and the scale log2(e) / T of each.
struct SumParams {
    bool needs_filter_sum;
    bool needs_logprob_sum;
    float filter_log2e_over_t;
    float logprob_log2e_over_t;

    DEVICE_MEMBER SumParams()
        : needs_filter_sum(false), needs_logprob_sum(false), filter_log2e_over_t(0.0f), logprob_log2e_over_t(0.0f) {}
    DEVICE_MEMBER explicit SumParams(const Params& params)
        : needs_filter_sum(params.features & FEATURE_FILTER_SUMS),
          needs_logprob_sum(params.features & FEATURE_LOGPROB_SUMS), filter_log2e_over_t(params.filter_log2e_over_t),
          logprob_log2e_over_t(params.logprob_log2e_over_t) {}
};

// Sums a tile's weights exactly, for logprobs (M3). The whole warp computes; lane 0 stores the sum.
DEVICE void store_logprob_sum(const float (&z)[ITEMS_PER_LANE], float maximum, float log2e_over_t,
                              SplitLogprobSum& out) {
    SplitSum sum = sum_weights(z, maximum, log2e_over_t);
    if (lane_id() == 0) {
        out = SplitLogprobSum{sum, maximum, 0};
    }
}

// Stores the sums that a row needs over the edited logits of COUNT neighbouring tiles; `first_tile` counts within the
// block. `with_logprob_sum` is false if the row needs no such sum, or if the caller has stored the sum of its raw
// logits. One branch covers all COUNT tiles, so that work on one tile hides the latency of another. The filter sums are
// within 2^-19 of the exact ones: filters use them for bounds only.
template <u32 COUNT, u32 WARPS, u32 TILES>
DEVICE void store_tile_sums(const float (*z)[ITEMS_PER_LANE], const int (&maxima)[COUNT], const SumParams& sum_params,
                            bool with_logprob_sum, u32 first_tile, SharedStorage<WARPS, TILES>& storage) {
    if (sum_params.needs_filter_sum) {
        SplitSum sums[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            sums[i] = approx_sum_weights(z[i], max_to_float(maxima[i]), sum_params.filter_log2e_over_t);
        }
        if (lane_id() == 0) {
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) {
                storage.filter_sums[first_tile + i] = sums[i];
            }
        }
    }
    if (with_logprob_sum) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            // In a tile without tokens -inf - -inf would be NaN; a finite maximum makes every weight 0.
            store_logprob_sum(z[i], max_f32(max_to_float(maxima[i]), MIN_TOKEN_VALUE), sum_params.logprob_log2e_over_t,
                              storage.logprob_sums[first_tile + i]);
        }
    }
}

// Draws two arrivals of a thread's tile: the first one while the logits load, the other once the tile's token is known.
struct ArrivalSampler {
    // False for greedy rows, which draw nothing.
    bool is_race;
    RngStream rng;
    FirstArrival first;
    float log2_first_arrival;

    DEVICE_MEMBER ArrivalSampler() : is_race(false), rng{0, 0, 0}, first{1.0f, 0}, log2_first_arrival(0.0f) {}
    DEVICE_MEMBER ArrivalSampler(const Params& params, const State& state, u32 tile) : ArrivalSampler() {
        is_race = !(params.features & FEATURE_GREEDY);
        rng = race_stream(params, state);
        if (is_race) {
            first = first_arrival(rng, tile);
            log2_first_arrival = log2_of_normal(first.e);
        }
    }

    DEVICE_MEMBER void complete(TileRecord& record, u32 tile) const {
        if (is_race) {
            record.log2_first_arrival = log2_first_arrival;
            record.log2_max_arrival = log2_of_normal(token_arrival(rng, first, tile, record.packed & 255));
        }
    }
};

// Stores a tile's record, and the sums that its row needs, in global memory. `tile_in_block` is an index in `storage`.
template <u32 WARPS, u32 TILES>
DEVICE void store_record(const Step& step, u32 row, u32 tile, const TileRecord& record, const SumParams& sum_params,
                         u32 tile_in_block, const SharedStorage<WARPS, TILES>& storage) {
    u64 index = (u64)row * step.tiles + tile;
    step.records[index] = record;
    if (sum_params.needs_filter_sum) {
        step.filter_sums[index] = storage.filter_sums[tile_in_block].total();
    }
    if (sum_params.needs_logprob_sum) {
        // The maximum alone weighs 2^28, so a sum of 0 means a tile without tokens.
        u64 sum = storage.logprob_sums[tile_in_block].sum.total();
        step.logprob_sums[index] =
            TileSum{sum, sum != 0 ? storage.logprob_sums[tile_in_block].maximum : MASKED_VALUE, 0};
    }
}
