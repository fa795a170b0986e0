// bounded_race.cuh: draws a row's token by the race alone, from one reduction of its records; device functions of a
// block.
//
// Computes   by one reduction: the row's maximum, its non-finite flags, the leader, and an upper bound of all other
//            scores; then the token that wins the race
// Traffic    16 bytes per tile; the logits of the open tiles
// Requires   the row's survey; whole warps, all threads of the block
//
// A score (D1) depends on the row's first logit, which no warp knows before the block's barrier. So each warp picks its
// leader by z s - log2(arrival), which needs no first logit. Rounding can make this pick differ from the token with the
// best exact score. The bound then reaches the leader's score, and the race finds the better token.
//
//     each warp: leader = the token with the best z s - log2(arrival) among the tokens that its tiles' records name
//                others_bound = an upper bound of z s - log2(arrival) of all other tokens of its tiles
//     after the barrier, every warp: leader = the leader with the best exact score
//     if no bound reaches the leader's score: the leader wins
//     otherwise: score every token that a record names; open the tiles whose bound reaches the leader's score
//                the best of these tokens and of the tokens in open tiles wins
#pragma once

#include "block/race.cuh"

// A warp's result for its tiles.
struct alignas(16) WarpLeader {
    // The leader: its logit (-inf if the tiles hold no token), log2 of its arrival, and its id.
    float z;
    float log2_arrival;
    u32 id;
    // Ordered bits of an upper bound of z s - log2(arrival) of all other tokens, rounding aside.
    u32 others_bound;
    // Ordered bits of the largest logit; then the union of the records' packed words, for its non-finite flags.
    u32 max_bits;
    u32 packed;
};

// The shared memory of a bounded race.
struct BoundedRaceStorage {
    WarpLeader warp_leaders[32];
    OpenTiles open_tiles;
};

// Reduces the records of each warp's tiles. Lane i of every warp returns warp i's result; lanes beyond the last warp
// return one without a leader.
template <class RecordKind>
DEVICE WarpLeader reduce_warp_leaders(BoundedRaceStorage& storage, const RowRecords& records, float log2e_over_t) {
    WarpLeader own{-INF_F32, 0.0f, 0, 0, 0, 0};
    float lead = -INF_F32, others_bound = -INF_F32;
    records.for_each_prefetched([&](u32 tile, const TileRecord& record) INLINE {
        u32 bits = ordered_bits(record.maximum);
        own.max_bits = bits > own.max_bits ? bits : own.max_bits;
        own.packed |= record.packed;
        float z = RecordKind::logit(record), approx_score = log2_weight(z, log2e_over_t) - record.log2_max_arrival;
        // In a tile without tokens these may be NaN, which max_f32 and the comparisons ignore.
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
        storage.warp_leaders[warp_id()] = own;
    }
    if (threadIdx.x == 0) {
        storage.open_tiles.clear();
    }
    // RAW on warp_leaders: each warp's leader lane wrote its entry, all warps read all entries. RAW on open_tiles:
    // thread 0 cleared it, all threads may add tiles to it afterwards.
    __syncthreads();
    return lane_id() < warp_count() ? storage.warp_leaders[lane_id()] : WarpLeader{-INF_F32, 0.0f, 0, 0, 0, 0};
}

// Summarises the row from the warps' results. The key has the id 0, and the least maximum is 0: neither is computed
// here.
DEVICE RowSummary summarise_row(const WarpLeader& warp_leader) {
    u32 max_bits = __reduce_max_sync(FULL_MASK, warp_leader.max_bits),
        packed = __reduce_or_sync(FULL_MASK, warp_leader.packed);
    return RowSummary{max_bits < MIN_TOKEN_ORDERED ? 0 : ((u64)max_bits << 32) | ~0u, 0.0f,
                      unpack_nonfinite_flags(packed)};
}

// The best exact score among the leaders that a cut keeps, with its token; 0 if the cut keeps none. The cut is a
// lower bound of logits and nothing more. The result is a lower bound of the winner.
DEVICE u64 best_leader(const WarpLeader& warp_leader, const Cut& cut, const Origin& first, float log2e_over_t) {
    u64 own = make_leader(exponent(warp_leader.z, first, log2e_over_t) - warp_leader.log2_arrival, warp_leader.id);
    return warp_max(warp_leader.z >= cut.low() ? own : 0);
}

// Whether no token but the leader can win.
DEVICE bool leader_is_certain(const WarpLeader& warp_leader, const Origin& first, float log2e_over_t, u64 leader) {
    float others_bound = from_ordered_bits(__reduce_max_sync(FULL_MASK, warp_leader.others_bound));
    return score_upper_bound(others_bound, first, log2e_over_t) < from_ordered_bits((u32)(leader >> 32));
}

// Records as survey_draw.cu and verify.cu make them. Each names the token that leads its tile, exactly or nearly; the
// packed bound is one of the scores of the tile's other tokens. The field log2_first_arrival holds the named token's
// logit.
struct SurveyDrawRecords {
    static constexpr bool GREEDY = false, MIN_P = false;
    static constexpr bool HAS_FIRST_ARRIVALS = false;

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

// Lists the tiles that may hold a better kept token than the leader, and raises the best score to the best one of the
// tokens that the records name. `leader` is a lower bound of the winner.
template <class RecordKind>
DEVICE void list_by_bounds(OpenTiles& open_tiles, const RowRecords& records, const Cut& cut, const Origin& first,
                           float log2e_over_t, u64 leader) {
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
    // RAW on open_tiles: all threads listed tiles and raised the best score, all warps read them.
    __syncthreads();
}

// Returns the best leader among the kept tokens, in every thread. `leader` is a lower bound of it.
template <class RecordKind, class V, class S>
DEVICE u64 bounded_race_leader(OpenTiles& open_tiles, const RowRecords& records, const V& row, const S& rng,
                               const Cut& cut, const Origin& first, float log2e_over_t, u64 leader) {
    list_by_bounds<RecordKind>(open_tiles, records, cut, first, log2e_over_t, leader);
    if constexpr (RecordKind::HAS_FIRST_ARRIVALS) {
        if (are_many(open_tiles)) {
            leader = relist_by_first_arrivals(open_tiles, records, row, rng, cut, first, log2e_over_t, leader,
                                              StridedTiles{0, 1});
        }
    }
    return race_open_tiles<RecordKind>(open_tiles, records, row, rng, cut, first, log2e_over_t, leader);
}

// Returns the id of the kept token that wins the race, in every thread. `leader` is a lower bound of the winner.
template <class RecordKind, class V, class S>
DEVICE u32 race_bounded(OpenTiles& open_tiles, const RowRecords& records, const V& row, const S& rng, const Cut& cut,
                        const Origin& first, float log2e_over_t, u64 leader) {
    return key_id(bounded_race_leader<RecordKind>(open_tiles, records, row, rng, cut, first, log2e_over_t, leader));
}
