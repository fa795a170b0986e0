// bounded_race.cuh: the race of a row that asks for no more, begun with the first look at its records; device functions of a block.
//
// Computes   by one reduction the row's first logit, its odd values, the token that leads and what bounds all others; the token
//            that wins
// Traffic    16 bytes per tile; the logits of the tiles that stay open
// Requires   the row's survey; whole warps, all threads of the block
//
// Scores hang on the row's first logit, which no warp knows alone. So each warp picks the token to go by its score without it,
// y = z s: where the picks differ from those of the scores as they are defined, the race finds the better one behind.
#pragma once

#include "block/race.cuh"

// What a warp's tiles say of their row.
struct alignas(16) WarpLeader {
    // The token that leads: its logit, -inf if there is none, log2 of its arrival, and its id.
    float z;
    float log2_arrival;
    u32 id;
    // What no other token's z s - log2(arrival) exceeds, rounding aside; as ordered bits.
    u32 others_bound;
    // The largest logit, as ordered bits.
    u32 max_bits;
    u32 packed;
};

// What the warps of a block say of it: lane i of each warp has what warp i says.
template <class RecordKind>
DEVICE WarpLeader reduce_warp_leaders(const RowRecords& records, float log2e_over_t) {
    __shared__ WarpLeader warp_leaders[32];
    WarpLeader own{-INF_F32, 0.0f, 0, 0, 0, 0};
    float lead = -INF_F32, others_bound = -INF_F32;
    records.for_each_prefetched([&](u32 tile, const TileRecord& record) INLINE {
        u32 bits = ordered_bits(record.maximum);
        own.max_bits = bits > own.max_bits ? bits : own.max_bits;
        own.packed |= record.packed;
        float z = RecordKind::logit(record), approx_score = log2_weight(z, log2e_over_t) - record.log2_max_arrival;
        // NaN, in a tile of nothing, counts nowhere.
        others_bound = max_f32(max_f32(others_bound, RecordKind::others_bound(record, log2e_over_t)),
                               approx_score < lead ? approx_score : lead);
        if (approx_score > lead) {
            lead = approx_score;
            own.z = z;
            own.log2_arrival = record.log2_max_arrival;
            own.id = tile * TILE + (record.packed & 255);
        }
    });
    u32 bits = ordered_bits(lead), top = __reduce_max_sync(FULL_MASK, bits);
    bool is_leader = is_first_active_lane(bits == top);
    own.others_bound =
        __reduce_max_sync(FULL_MASK, ordered_bits(is_leader ? others_bound : max_f32(others_bound, lead)));
    own.max_bits = __reduce_max_sync(FULL_MASK, own.max_bits);
    own.packed = __reduce_or_sync(FULL_MASK, own.packed);
    if (is_leader) {
        warp_leaders[warp_id()] = own;
    }
    if (threadIdx.x == 0) {
        shared_open_tiles().clear();
    }
    // Without it a warp reads what others have not said yet, or adds to a count that is not zero yet.
    __syncthreads();
    return lane_id() < warp_count() ? warp_leaders[lane_id()] : WarpLeader{-INF_F32, 0.0f, 0, 0, 0, 0};
}

// The row as a whole, without its first token's id and its least maximum.
DEVICE RowSummary summarise_row(const WarpLeader& warp_leader) {
    u32 max_bits = __reduce_max_sync(FULL_MASK, warp_leader.max_bits),
        packed = __reduce_or_sync(FULL_MASK, warp_leader.packed);
    return RowSummary{max_bits < MIN_TOKEN_ORDERED ? 0 : ((u64)max_bits << 32) | ~0u, 0.0f,
                      unpack_nonfinite_flags(packed)};
}

// The best of what the warps picked, in a cut of all logits from one on; at most what leads the race.
DEVICE u64 best_leader(const WarpLeader& warp_leader, const Cut& cut, const Origin& first, float log2e_over_t) {
    u64 own = make_leader(exponent(warp_leader.z, first, log2e_over_t) - warp_leader.log2_arrival, warp_leader.id);
    return warp_max(warp_leader.z >= cut.low() ? own : 0);
}

// Whether no token but the leader can win.
DEVICE bool leader_is_certain(const WarpLeader& warp_leader, const Origin& first, float log2e_over_t, u64 leader) {
    float others_bound = from_ordered_bits(__reduce_max_sync(FULL_MASK, warp_leader.others_bound));
    return score_upper_bound(others_bound, first, log2e_over_t) < from_ordered_bits((u32)(leader >> 32));
}

// Records as survey_draw.cu makes them: of the token that leads a tile, or nearly, and of what the scores of the others are at most.
struct SurveyDrawRecords {
    static constexpr bool GREEDY = false, MIN_P = false;

    static DEVICE_MEMBER float logit(const TileRecord& record) {
        return record.maximum > -INF_F32 ? record.log2_first_arrival : -INF_F32;
    }

    static DEVICE_MEMBER float others_bound(const TileRecord& record, float) { return record_others_bound(record); }

    static DEVICE_MEMBER bool may_hold_winner(const TileRecord& record, const Cut& cut, const Origin& first,
                                              float log2e_over_t, u32 score) {
        bool below = score_upper_bound(record_others_bound(record), first, log2e_over_t) < from_ordered_bits(score);
        return (record.maximum >= cut.low()) & !below;
    }
};

// The kept token that wins the race, in every thread, where `leader` is at most what leads.
template <class RecordKind, class V, class S>
DEVICE u32 race_bounded(const RowRecords& records, const V& row, const S& rng, const Cut& cut, const Origin& first,
                        float log2e_over_t, u64 leader) {
    OpenTiles& open_tiles = shared_open_tiles();
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        float z = RecordKind::logit(record);
        u32 id = tile * TILE + (record.packed & 255);
        u64 own = make_leader(exponent(z, first, log2e_over_t) - record.log2_max_arrival, id);
        if ((own > leader) & cut.contains(make_key(z, id))) {
            atomicMax(&open_tiles.best, own);
        }
        if (RecordKind::may_hold_winner(record, cut, first, log2e_over_t, (u32)(leader >> 32))) {
            open_tiles.add(tile);
        }
    });
    // Without it warps would miss tiles that others have not listed yet.
    __syncthreads();
    return race_open_tiles<RecordKind>(records, row, rng, cut, first, log2e_over_t, leader);
}
