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

// Whether a bound reaches a leader's score; at equality its token may have the smaller id.
DEVICE bool reaches(float bound, u64 leader) { return ordered_bits(bound + 0.0f) >= (u32)(leader >> 32); }

// The best of a tile's tokens but for the first of the order, by one warp; 0 if none can reach the leader.
template <class V>
DEVICE u64 best_of_tile(const V& row, const Stream& stream, const Cut& cut, const Record& record, u32 tile,
                        float z_first, float s, u64 leader) {
    float z[PER_LANE];
    u32 lane = lane_id(), top = record.places & 255;
    row.load(tile, lane, z);
    First first = first_arrival(stream, tile);
    u64 best = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        u32 place = row.place(tile, lane, j), id = tile * TILE + place;
        float logit = z[j], y = (logit - z_first) * s;
        bool runs = place != top && cut.contains(key_of(logit, id)) && reaches(y - record.log_first, leader);
        if (runs) {
            float score = y - log2_of_normal(token_arrival(stream, first, tile, place));
            u64 own = leader_of(score, id);
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
template <u32 HELD, class V>
DEVICE u32 race(const Records<HELD>& records, const V& row, const Stream& stream, const Given& kept, float s) {
    const Cut& cut = kept.cut;
    float z_first = kept.first;
    __shared__ u64 scratch[32];
    __shared__ u64 shared_leader;
    __shared__ u32 open_count;
    __shared__ unsigned short open[MOST_TILES];

    u64 leader = 0;
    records.each([&](u32 tile, const Record& record) INLINE {
        u32 id = tile * TILE + (record.places & 255);
        if (cut.contains(key_of(record.maximum, id))) {
            u64 own = leader_of((record.maximum - z_first) * s - record.log_top, id);
            leader = own > leader ? own : leader;
        }
    });
    if (threadIdx.x == 0) {
        open_count = 0;
    }
    // Its barrier also makes the count zero before any thread adds to it.
    leader = block_max(leader, scratch);
    if (threadIdx.x == 0) {
        shared_leader = leader;
    }
    float low = cut.low();
    records.each([&](u32 tile, const Record& record) INLINE {
        if (others_of(record) >= low && reaches(bound_of(record, z_first, s), leader)) {
            open[atomicAdd(&open_count, 1u)] = (unsigned short)tile;
        }
    });
    // Without it warps would miss tiles that others have not listed yet, and read no leader.
    __syncthreads();

    u32 count = open_count;
    if (count == 0) {
        return key_id(leader);
    }
    for (u32 i = warp_id(); i < count; i += warps()) {
        u32 tile = open[i];
        Record record = records.records[tile];
        // Other warps raise the leader meanwhile; an older one is only a lower bound.
        leader = __shfl_sync(ALL_LANES, *(volatile u64*)&shared_leader, 0);
        if (reaches(bound_of(record, z_first, s), leader)) {
            u64 best = best_of_tile(row, stream, cut, record, tile, z_first, s, leader);
            if (lane_id() == 0 && best > leader) {
                atomicMax(&shared_leader, best);
            }
        }
    }
    // Without it the leader read below could still be raised.
    __syncthreads();
    return key_id(shared_leader);
}
