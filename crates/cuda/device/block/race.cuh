// race.cuh: the exponential race, run only where it can be won (D1, D2); device functions of a block.
//
// Computes   the token of a cut that wins
// Never      reads a tile that cannot hold the winner; never draws an arrival of a token that cannot win
// Twins      oracle spec/src/draw.rs | CPU cpu/src/draw.rs | why docs/stages/draw.md
// Traffic    16 bytes per tile; of the logits only the tiles whose bound reaches the best score
// Requires   the row's survey; whole warps, all threads of the block
//
//     best = the best score of the tokens that lead their tiles        scored by the survey
//     open = the tiles with y(others) - log2(first arrival) >= best    every other score in a tile is at most that
//     of these other tokens, those with y - log2(first arrival) >= best are scored
//
// log2 is exactly monotone, so a bound below the best score excludes a tile or a token with no slack. What leads meanwhile is at
// most the best: whoever is held to it opens a tile too many at worst.

#pragma once

#include "math/arrival.cuh"
#include "math/cut.cuh"
#include "warp/edited_row.cuh"
#include "block/records.cuh"

#define MAX_TILES 4096

// A score with its token: larger scores are larger, and of equal ones the smaller id is. -0.0 equals +0.0.
DEVICE u64 make_leader(float score, u32 id) { return make_key(score + 0.0f, id); }

// Whether a bound reaches a leader's score, which is the high word; at equality its token may have the smaller id.
DEVICE bool reaches_score(float bound, u32 score) { return ordered_bits(bound + 0.0f) >= score; }

// The tiles of a row that are open, in shared memory, with the best score that was found in any.
struct OpenTiles {
    u64 best;
    u32 count;
    unsigned short tiles[MAX_TILES];

    // By one thread; a barrier must follow before others add to it.
    DEVICE_MEMBER void clear() {
        best = 0;
        count = 0;
    }
    DEVICE_MEMBER void add(u32 tile) { tiles[atomicAdd(&count, 1u)] = (unsigned short)tile; }
};

DEVICE OpenTiles& shared_open_tiles() {
    __shared__ OpenTiles open_tiles;
    return open_tiles;
}

// A score of 2^100 or more, or none: sums with it say nothing.
DEVICE bool is_out_of_range(float y) { return !(fabsf(y) < bits_float((127 + 100) << 23)); }

// What a score is at most whose z s - log2(arrival), z s apart from that of the first token, is `approx` at most, rounding aside. Each of the
// five roundings on the way adds up to 2^-24 of the largest number there, which is |about| + |z_first s| + 80 at most, arrivals
// being between 2^-72 and 2^8; where z s is still larger, it is negative, and the score far below. Approximate logarithms are
// 2^-22 of 80 off at most. Of probabilities z s stands for log2(p), -149 to 128, whose error, approximate or not, is below 2^-14.
DEVICE float score_upper_bound(float approx, const Origin& first, float log2e_over_t) {
#if GUMBALL_PROBABILITIES
    // Most of a row may be nothing.
    if (!(approx > -INF_F32)) {
        return -INF_F32;
    }
#endif
    float shift = log2_weight(first, log2e_over_t),
          slack = (fabsf(approx) + fabsf(shift)) * bits_float((127 - 19) << 23);
    return is_out_of_range(shift) ? INF_F32 : (approx - shift) + (slack + bits_float((127 - 9) << 23));
}

// The best of a tile's kept tokens, by one warp; 0 if none can reach a score.
template <class V, class S>
DEVICE u64 best_in_tile(const V& row, const S& rng, const Cut& cut, u32 tile, const Origin& first, float log2e_over_t,
                        u32 score) {
    float z[ITEMS_PER_LANE], logs[ITEMS_PER_LANE];
    u32 lane = lane_id(), nonfinite_flags = 0, words[ITEMS_PER_LANE];
    row.load(tile, lane, z, nonfinite_flags);
    // While they fly.
    u32 id = tile * TILE;
    lane_words(rng, id + row.offset(tile, lane, 0), id + row.offset(tile, lane, 4), words);
    PhiloxWords of_tile = tile_words(rng, tile);
    bool vectorized = row.is_vectorized(tile);
    float approx = approx_first_arrival(of_tile.w[0]);
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        // Where a lane's tokens are no neighbours, each is taken to arrive with the first.
        bool later = vectorized & (row.offset(tile, lane, j) != of_tile.w[2] >> 24);
        logs[j] = approx_log2_arrival(approx, later ? words[j] : 0);
    }
    float most = -INF_F32;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        z[j] = clean(z[j]);
        bool competes = (z[j] >= cut.low()) & (z[j] <= first.first);
        logs[j] = competes ? log2_weight_minus(z[j], log2e_over_t, logs[j]) : -INF_F32;
        most = max_f32(most, logs[j]);
    }
    u64 best = 0;
    float least = from_ordered_bits(score);
    if (!(score_upper_bound(most, first, log2e_over_t) < least)) {
        FirstArrival of_first = first_arrival_from(of_tile);
        // A lane has one that can reach the score, if any.
#pragma unroll 1
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            u32 offset = row.offset(tile, lane, j), id = tile * TILE + offset;
            float own_z = select_item(z, j);
            if (!(score_upper_bound(select_item(logs, j), first, log2e_over_t) < least) &
                cut.contains(make_key(own_z, id))) {
                float arrival = token_arrival(rng, of_first, tile, offset);
                u64 own = make_leader(exponent(own_z, first, log2e_over_t) - log2_of_normal(arrival), id);
                best = own > best ? own : best;
            }
        }
    }
    return warp_max(best);
}

// Records as survey.cu makes them: of a tile's first token, and of the tile's first arrival.
struct SurveyRecords {
    // Whose rows they may be, besides those that race over everything.
    static constexpr bool GREEDY = true, MIN_P = true;

    static DEVICE_MEMBER float logit(const TileRecord& record) { return record.maximum; }

    // What no other token's z s - log2(arrival) exceeds, rounding aside.
    static DEVICE_MEMBER float others_bound(const TileRecord& record, float log2e_over_t) {
        return log2_weight(record_others_bound(record), log2e_over_t) - record.log2_first_arrival;
    }

    // Whether others of the tile's tokens may reach a score. Where filters dropped the first tokens of the row, no kept token
    // has y above 0.
    static DEVICE_MEMBER bool may_hold_winner(const TileRecord& record, const Cut& cut, const Origin& first,
                                              float log2e_over_t, u32 score) {
        float others = record_others_bound(record),
              bound = fminf(exponent(others, first, log2e_over_t), 0.0f) - record.log2_first_arrival;
        return (others >= cut.low()) & reaches_score(bound, score);
    }
};

// Scores the tokens of the open tiles that can win, and returns what leads then, in every thread. A barrier has to be between
// this and the last tile opened. `leader` is what leads else.
template <class RecordKind, class V, class S>
DEVICE u32 race_open_tiles(const RowRecords& records, const V& row, const S& rng, const Cut& cut, const Origin& first,
                           float log2e_over_t, u64 leader) {
    OpenTiles& open_tiles = shared_open_tiles();
    u32 count = open_tiles.count;
    leader = open_tiles.best > leader ? open_tiles.best : leader;
    if (count == 0) {
        return key_id(leader);
    }
#pragma unroll 1
    for (u32 i = warp_id(); i < count; i += warp_count()) {
        u32 tile = open_tiles.tiles[i];
        // Other warps raise the leader meanwhile; an older one is only a lower bound.
        u64 newer = __shfl_sync(FULL_MASK, *(volatile u64*)&open_tiles.best, 0);
        leader = newer > leader ? newer : leader;
        u32 score = (u32)(leader >> 32);
        // The first time little has changed since the tile was listed.
        if (i < warp_count() || RecordKind::may_hold_winner(records.records[tile], cut, first, log2e_over_t, score)) {
            u64 own = best_in_tile(row, rng, cut, tile, first, log2e_over_t, score);
            if (lane_id() == 0 && own > leader) {
                atomicMax(&open_tiles.best, own);
            }
        }
    }
    // Without it the leader read below could still be raised.
    __syncthreads();
    return key_id(open_tiles.best > leader ? open_tiles.best : leader);
}

// The kept token that wins the race, in every thread.
template <class V, class S>
DEVICE u32 race(const RowRecords& records, const V& row, const S& rng, const GivenSet& kept, float log2e_over_t) {
    const Cut& cut = kept.cut;
    const Origin first(kept.first_value);
    __shared__ u64 leaders[32];

    // The best score of tiles' first tokens.
    u64 best = 0;
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        u32 id = tile * TILE + (record.packed & 255);
        u64 own = make_leader(exponent(record.maximum, first, log2e_over_t) - record.log2_max_arrival, id);
        best = (own > best) & cut.contains(make_key(record.maximum, id)) ? own : best;
    });
    best = warp_max(best);
    if (lane_id() == 0) {
        leaders[warp_id()] = best;
    }
    if (threadIdx.x == 0) {
        shared_open_tiles().clear();
    }
    // Without it a warp reads leaders of warps that have not written theirs, or adds to a count that is not zero yet.
    __syncthreads();
    u64 leader = warp_max(lane_id() < warp_count() ? leaders[lane_id()] : 0);
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        if (SurveyRecords::may_hold_winner(record, cut, first, log2e_over_t, (u32)(leader >> 32))) {
            shared_open_tiles().add(tile);
        }
    });
    // Without it warps would miss tiles that others have not listed yet.
    __syncthreads();
    return race_open_tiles<SurveyRecords>(records, row, rng, cut, first, log2e_over_t, leader);
}
