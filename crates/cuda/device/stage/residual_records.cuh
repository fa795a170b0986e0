// residual_records.cuh: the records of a row of weights, from which a token is drawn after accepted drafts (S4 to S7).
//
// Computes   a tile's largest weight and its token; from it, and from a race of the tile if there was one, the tile's
//            record in the form of SurveyDrawRecords (block/bounded_race.cuh)
// Twins      oracle spec/src/verify/weights.rs | CPU cpu/src/verify.rs | why docs/stages/verify.md, judge.md
// Requires   whole warps
//
// A race of weights r is a race of the logits L(r) at scale 1 (P1). So records hold logarithms, and the code of the
// race is the race of any row. Maxima are found among the weights themselves: only two per tile need a logarithm.
#pragma once

#include "block/bounded_race.cuh"
#include "stage/accept_drafts.cuh"
#include "stage/survey.cuh"

// A lane's slices of a tile: of the target's row, and of the drafter's row or 0.
struct LaneProbs {
    float p[ITEMS_PER_LANE];
    float q[ITEMS_PER_LANE];
};

// A target's row, and a drafter's row or null.
struct ProbRows {
    const float* p;
    const float* q;
    u32 vocab;

    // Loads a lane's slices of a tile, uncleaned. Both are 0 beyond the vocabulary, and q is 0 without a drafter's row.
    DEVICE_MEMBER void fetch(u32 tile, u32 lane, LaneProbs& probs) const {
        u32 start = tile * TILE;
        // `opaque` makes each call compute the addresses, which saves registers.
        const float *p = opaque(this->p), *q = opaque(this->q);
        const bool are_aligned = (((u64)p | (u64)q) & 15) == 0;
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            probs.q[j] = 0.0f;
        }
        if (are_aligned && tile < vocab / TILE) {
            load_vectorized_streaming<F32>(p + start, lane, probs.p);
            if (q) {
                load_vectorized_streaming<F32>(q + start, lane, probs.q);
            }
            return;
        }
        u32 id = start + offset_in_tile<F32>(lane, 0);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            // All loads share one base address, and `from_first` is a constant offset in the instruction.
            const u32 from_first = offset_in_tile<F32>(0, j);
            bool inside = id + from_first < vocab;
            probs.p[j] = inside ? (p + id)[from_first] : 0.0f;
            probs.q[j] = inside && q ? (q + id)[from_first] : 0.0f;
        }
    }
};

// Cleans probabilities (P1). Returns STATUS_NAN if one was NaN or negative, and STATUS_INF if one was infinite.
DEVICE u32 clean_probs(float (&p)[ITEMS_PER_LANE]) {
    u32 nonfinite_flags = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        nonfinite_flags |= !(p[j] >= 0.0f) ? STATUS_NAN : p[j] > MAX_F32 ? STATUS_INF : 0;
        p[j] = clean_probability(p[j]);
    }
    return nonfinite_flags;
}

DEVICE float max_of_probs(const float (&r)[ITEMS_PER_LANE]) {
    return max_f32(max_f32(max_f32(r[0], r[1]), max_f32(r[2], r[3])),
                   max_f32(max_f32(r[4], r[5]), max_f32(r[6], r[7])));
}

// Reduces a tile to its maximum across the warp; the leader stores `reduction`. On a tie the lowest id leads.
// Bits of floats from 0 on are their ordered ints.
DEVICE void reduce_probs_tile(const float (&r)[ITEMS_PER_LANE], TileReduction& reduction) {
    float largest = max_of_probs(r);
    u32 own = float_bits(largest), maximum = __reduce_max_sync(FULL_MASK, own);
    u32 leaders = __ballot_sync(FULL_MASK, own == maximum);
    if ((leaders & (leaders - 1)) != 0) {
        u32 lane = opaque(lane_id()), offset = TILE;
#pragma unroll
        for (u32 j = ITEMS_PER_LANE; j-- > 0;) {
            offset = float_bits(r[j]) == maximum ? offset_in_tile<F32>(lane, j) : offset;
        }
        u32 least = __reduce_min_sync(FULL_MASK, offset);
        leaders = __ballot_sync(FULL_MASK, offset == least);
    }
    bool is_leader = leaders >> lane_id() & 1;
    u32 others = __reduce_max_sync(FULL_MASK, is_leader ? 0 : own);
    if (is_leader) {
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            reduction.leader_logits[j] = r[j];
        }
        reduction.maximum = (int)maximum;
        reduction.other_lanes_max = (int)others;
        reduction.leader_lane = lane_id();
        // Written too, so that the leader stores the four words with one instruction.
        reduction.reserved = 0;
    }
}

// The result of a warp's race of all tokens of a tile.
struct alignas(16) TileRace {
    // The residual of the token with the largest approximate score, and its offset in the tile; TILE without a race.
    float p;
    u32 offset;
    // Bounds log2(p) - log2(arrival) of all other tokens, up to the error of approximate logarithms.
    float others_bound;
    u32 reserved;
};

// Makes a tile's record from what its warp stored, in the form that SurveyDrawRecords reads: the second field holds
// log2 of the named token's residual, and the third log2 of its arrival.
DEVICE TileRecord make_chain_record(const TileReduction& reduction, const TileRace& tile_race, u32 nonfinite_flags,
                                    const LastTokenStream& rng, const FirstArrival& first, u32 tile) {
    float maximum = bits_float((u32)reduction.maximum), others = bits_float((u32)reduction.other_lanes_max);
    u32 j = ITEMS_PER_LANE;
#pragma unroll
    for (u32 i = ITEMS_PER_LANE; i-- > 0;) {
        float r = reduction.leader_logits[i];
        bool is_leader = r >= maximum;
        // On a tie the lowest j is the tile's token, and the maximum bounds the others.
        others = max_f32(others, is_leader ? (j < ITEMS_PER_LANE ? maximum : 0.0f) : r);
        j = is_leader ? i : j;
    }
    bool was_raced = tile_race.offset < TILE;
    u32 offset = was_raced ? tile_race.offset : offset_in_tile<F32>(reduction.leader_lane, j % ITEMS_PER_LANE);
    float others_bound = was_raced ? tile_race.others_bound : log2_rule(others) - log2_of_normal(first.e);
    return TileRecord{log2_rule(maximum), log2_rule(was_raced ? tile_race.p : maximum),
                      log2_of_normal(token_arrival(rng, first, tile, offset)),
                      pack_record_bits(offset, nonfinite_flags, others_bound)};
}

// Returns the token that wins the race of a row of weights that has some, in every thread. `warp_leader` and `summary`
// are its records'; `view` reads the row as logarithms.
template <class V>
DEVICE int race_weights(BoundedRaceStorage& storage, const RowRecords& records, const WarpLeader& warp_leader,
                        const RowSummary& summary, const V& view, const LastTokenStream& rng) {
    const Origin first(key_logit(summary.first_key));
    const u64 leader = best_leader(warp_leader, full_cut(), first, 1.0f);
    return leader_is_certain(warp_leader, first, 1.0f, leader)
               ? (int)key_id(leader)
               : (int)race_bounded<SurveyDrawRecords>(storage.open_tiles, records, view, rng, full_cut(), first, 1.0f,
                                                      leader);
}
