// draw.cu: the exponential race, run only where it can be won (section 3, D1, D2); device functions of a block.
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
// log2 is exactly monotone, so a bound below the best score excludes a tile or a token with no slack.

#pragma once

#include "arrival.cuh"
#include "cut.cuh"
#include "records.cuh"
#include "view.cuh"

#define MOST_TILES 4096

// A score with its token: larger scores are larger, and of equal ones the smaller id is. -0.0 equals +0.0.
DEVICE u64 leader_of(float score, u32 id) { return key_of(score + 0.0f, id); }

// Whether a bound reaches a leader's score, which is the high word; at equality its token may have the smaller id.
DEVICE bool reaches(float bound, u32 score) { return ordered_bits(bound + 0.0f) >= score; }

// The best of a tile's tokens but for the first of the order, by one warp; 0 if none can reach a score.
template <class V>
DEVICE u64 best_of_tile(const V& row, const Stream& stream, const Cut& cut, const Record& record, u32 tile,
                        float z_first, float s, u32 score) {
    float z[PER_LANE];
    u32 lane = lane_id(), top = record.places & 255, running = 0;
    row.load(tile, lane, z);
    First first = first_arrival(stream, tile);
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        bool runs = cut.contains(key_of(z[j], tile * TILE + row.place(tile, lane, j))) &&
                    reaches((z[j] - z_first) * s - record.log_first, score);
        running |= runs ? 1u << j : 0;
    }
    u64 best = 0;
    // A lane has one or two, if any.
#pragma unroll 1
    for (; running != 0; running &= running - 1) {
        u32 j = __ffs((int)running) - 1, place = row.place(tile, lane, j);
        if (place != top) {
            float own_score = (pick(z, j) - z_first) * s - log2_of_normal(token_arrival(stream, first, tile, place));
            u64 own = leader_of(own_score, tile * TILE + place);
            best = own > best ? own : best;
        }
    }
    return warp_max(best);
}

// What bounds the scores of a tile's tokens but for the first of the order. Where filters dropped the first tokens of
// the row, no kept token has y above 0.
DEVICE float bound_of(const Record& record, float z_first, float s) {
    return fminf((others_of(record) - z_first) * s, 0.0f) - record.log_first;
}

// The kept token that wins the race, in every thread.
template <class V>
DEVICE u32 race(const Records& records, const V& row, const Stream& stream, const Given& kept, float s) {
    const Cut& cut = kept.cut;
    float z_first = kept.first;
    __shared__ u32 scores[32];
    __shared__ u64 leaders[32];
    __shared__ u64 raised;
    __shared__ u32 open_count;
    __shared__ unsigned short open[MOST_TILES];

    // The best score of tiles' first tokens; each lane keeps its own one's id.
    u32 score = 0, id = 0;
    records.each([&](u32 tile, const Record& record) INLINE {
        u32 own_id = tile * TILE + (record.places & 255);
        u32 own = ordered_bits((record.maximum - z_first) * s - record.log_top + 0.0f);
        bool leads = (own > score) & cut.contains(key_of(record.maximum, own_id));
        score = leads ? own : score;
        id = leads ? own_id : id;
    });
    u64 best = score ? ((u64)score << 32) | (u32)~id : 0;
    score = __reduce_max_sync(ALL_LANES, score);
    if (lane_id() == 0) {
        scores[warp_id()] = score;
    }
    if (threadIdx.x == 0) {
        open_count = 0;
        raised = 0;
    }
    // Without it a warp reads scores of warps that have not written theirs, or adds to a count that is not zero yet.
    __syncthreads();
    score = __reduce_max_sync(ALL_LANES, lane_id() < warps() ? scores[lane_id()] : 0);
    float low = cut.low();
    records.each([&](u32 tile, const Record& record) INLINE {
        if ((others_of(record) >= low) & reaches(bound_of(record, z_first, s), score)) {
            open[atomicAdd(&open_count, 1u)] = (unsigned short)tile;
        }
    });
    best = warp_max(best);
    if (lane_id() == 0) {
        leaders[warp_id()] = best;
    }
    // Without it warps would miss tiles that others have not listed yet, and their leaders.
    __syncthreads();
    u64 leader = warp_max(lane_id() < warps() ? leaders[lane_id()] : 0);
    u32 count = open_count;
    if (count == 0) {
        return key_id(leader);
    }
#pragma unroll 1
    for (u32 i = warp_id(); i < count; i += warps()) {
        u32 tile = open[i];
        Record record = records.records[tile];
        // Other warps raise the leader meanwhile; an older one is only a lower bound.
        u64 newer = __shfl_sync(ALL_LANES, *(volatile u64*)&raised, 0);
        leader = newer > leader ? newer : leader;
        score = (u32)(leader >> 32);
        // The first time nothing has changed since the tile was listed.
        if (i < warps() || reaches(bound_of(record, z_first, s), score)) {
            u64 own = best_of_tile(row, stream, cut, record, tile, z_first, s, score);
            if (lane_id() == 0 && own > leader) {
                atomicMax(&raised, own);
            }
        }
    }
    // Without it the leader read below could still be raised.
    __syncthreads();
    return key_id(raised > leader ? raised : leader);
}
