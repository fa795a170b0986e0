// survey.cuh: what surveys of rows with and without edits share: from a tile in a warp's registers to its record.
//
// Computes   the maximum of each tile, the token that has it, and a bound of the tile's other logits; sums of weights; arrivals
// Twins      oracle spec/src/survey.rs | CPU cpu/src/survey.rs | why docs/stages/survey.md
// Requires   whole warps
//
// A warp reduces a tile to its maximum; the lane that has it leaves its items in shared memory. Then the first warp completes the
// records of the block's tiles, one a lane, and draws their arrivals: if every warp drew, most lanes would idle.
#pragma once

#include "math/arrival.cuh"
#include "math/record.cuh"
#include "warp/tile.cuh"
#include "block/survey_grid.cuh"

// What a block's warps learn of a tile.
struct alignas(16) TileReduction {
    // The share of the lane that has the first token of the order.
    float leader_logits[ITEMS_PER_LANE];
    // The largest logit, and the largest of the other lanes, in signed order.
    int maximum;
    int other_lanes_max;
    u32 leader_lane;
    u32 reserved;
};

// The sum of a tile's weights, and what they are relative to: finite, in a tile of nothing too.
struct alignas(16) SplitLogprobSum {
    SplitSum sum;
    float maximum;
    u32 reserved;
};

// What a block learns of its tiles, in shared memory.
template <u32 WARPS, u32 TILES>
struct SharedStorage {
    TileReduction reductions[TILES];
    SplitLogprobSum logprob_sums[TILES];
    SplitSum filter_sums[TILES];
    u32 nonfinite_flags[WARPS];
};

// Whether the lane has a tile's first token, where several have its maximum: the least place.
template <class T, class Mask>
DEVICE bool wins_tie(const float (&z)[ITEMS_PER_LANE], const Mask& mask, float maximum, bool vectorized) {
    // Places are not to be made before they are asked for.
    u32 lane = opaque(lane_id()), offset = TILE;
#pragma unroll
    for (u32 j = ITEMS_PER_LANE; j-- > 0;) {
        // Places rise with j.
        offset = mask.allows(j) && z[j] >= maximum ? offset_in_tile<T>(lane, j, vectorized) : offset;
    }
    u32 least = __reduce_min_sync(FULL_MASK, offset);
    // In a tile of nothing nobody has a place.
    return offset == least && (least < TILE || lane == 0);
}

// The maximum of a set of a tile's logits, in signed order, and by the lane that has it what else there is to know of them. Odd
// values are cleaned and counted.
template <class T, class Mask>
DEVICE int reduce_tile(float (&z)[ITEMS_PER_LANE], const Mask& mask, bool vectorized, TileReduction& reduction,
                       u32& nonfinite_flags) {
    int lane_max, maximum = reduce_max(z, mask, mask, nonfinite_flags, lane_max);
    u32 leaders = __ballot_sync(FULL_MASK, lane_max == maximum);
    if ((leaders & (leaders - 1)) != 0) {
        leaders = __ballot_sync(FULL_MASK, wins_tie<T>(z, mask.reload(), from_ordered_int(maximum), vectorized));
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
        // So that it is one store of four words.
        reduction.reserved = 0;
    }
    return maximum;
}

// The record of a tile that its warp saw, arrivals aside.
template <class T, class Mask>
DEVICE TileRecord make_record(const TileReduction& reduction, const Mask& mask, bool vectorized, u32 nonfinite_flags) {
    float maximum = from_ordered_int(reduction.maximum), others = from_ordered_int(reduction.other_lanes_max);
    u32 j = ITEMS_PER_LANE;
#pragma unroll
    for (u32 i = ITEMS_PER_LANE; i-- > 0;) {
        float z = mask.allows(i) ? reduction.leader_logits[i] : MASKED_VALUE;
        bool first = z >= maximum;
        // Of several with the maximum the first is the tile's, and the maximum bounds the others.
        others = max_f32(others, first ? (j < ITEMS_PER_LANE ? maximum : -INF_F32) : z);
        j = first ? i : j;
    }
    // In a tile of nothing any place will do: none is asked for.
    return TileRecord{maximum, 0.0f, 0.0f,
                      pack_record_bits(offset_in_tile<T>(reduction.leader_lane, j % ITEMS_PER_LANE, vectorized),
                                       nonfinite_flags, others)};
}

// What a row asks of its tiles' weights.
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

// The sum that logprobs ask for.
DEVICE void store_logprob_sum(const float (&z)[ITEMS_PER_LANE], float maximum, float log2e_over_t,
                              SplitLogprobSum& out) {
    SplitSum sum = sum_weights(z, maximum, log2e_over_t);
    if (lane_id() == 0) {
        out = SplitLogprobSum{sum, maximum, 0};
    }
}

// The sums that are asked for of neighbouring tiles' edited logits. Each is asked for once for all of them: then what is done to one
// tile fills the waits of the other.
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
            // In a tile of nothing all lie infinitely far below.
            store_logprob_sum(z[i], max_f32(max_to_float(maxima[i]), MIN_TOKEN_VALUE), sum_params.logprob_log2e_over_t,
                              storage.logprob_sums[first_tile + i]);
        }
    }
}

// When a tile arrives, of a thread: before its record is known, and after it.
struct ArrivalSampler {
    bool is_race;
    RngStream rng;
    FirstArrival first;
    float log2_first_arrival;

    DEVICE_MEMBER ArrivalSampler() : is_race(false), rng{0, 0, 0}, first{1.0f, 0}, log2_first_arrival(0.0f) {}
    DEVICE_MEMBER ArrivalSampler(const Params& params, const State& state, u32 tile) : ArrivalSampler() {
        is_race = !(params.features & FEATURE_GREEDY);
        rng = RngStream{params.seed, state.position, params.draw};
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

// Hands on what is known of a tile.
template <u32 WARPS, u32 TILES>
DEVICE void store_record(const Step& step, u32 row, u32 tile, const TileRecord& record, const SumParams& sum_params,
                         u32 tile_in_block, const SharedStorage<WARPS, TILES>& storage) {
    u64 index = (u64)row * step.tiles + tile;
    step.records[index] = record;
    if (sum_params.needs_filter_sum) {
        step.filter_sums[index] = storage.filter_sums[tile_in_block].total();
    }
    if (sum_params.needs_logprob_sum) {
        u64 sum = storage.logprob_sums[tile_in_block].sum.total();
        step.logprob_sums[index] =
            TileSum{sum, sum != 0 ? storage.logprob_sums[tile_in_block].maximum : MASKED_VALUE, 0};
    }
}

// What a block does first. Returns where it stands.
template <bool SUMS>
DEVICE BlockCoord begin_block(const Step& step) {
    if (SUMS) {
        // Only ends of rows with sums have help.
        reset_retired_rows(step);
    }
    return block_coord(step, blockIdx.x);
}
