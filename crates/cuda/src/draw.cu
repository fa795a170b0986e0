// draw.cu: the exponential race, run only where it can be won (D1, D2); device functions of a block.
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

#include "arrival.cuh"
#include "cut.cuh"
#include "records.cuh"
#include "view.cuh"

#define MOST_TILES 4096

// A score with its token: larger scores are larger, and of equal ones the smaller id is. -0.0 equals +0.0.
DEVICE u64 leader_of(float score, u32 id) { return key_of(score + 0.0f, id); }

// Whether a bound reaches a leader's score, which is the high word; at equality its token may have the smaller id.
DEVICE bool reaches(float bound, u32 score) { return ordered_bits(bound + 0.0f) >= score; }

// The tiles of a row that are open, in shared memory, with the best score that was found in any.
struct Opened {
    u64 raised;
    u32 count;
    unsigned short tiles[MOST_TILES];

    // By one thread; a barrier must follow before others add to it.
    DEVICE_MEMBER void clear() {
        raised = 0;
        count = 0;
    }
    DEVICE_MEMBER void add(u32 tile) { tiles[atomicAdd(&count, 1u)] = (unsigned short)tile; }
};

DEVICE Opened& block_opened() {
    __shared__ Opened opened;
    return opened;
}

// A score of 2^100 or more, or none: sums with it say nothing.
DEVICE bool is_far(float y) { return !(fabsf(y) < bits_float((127 + 100) << 23)); }

// What a score is at most whose z s - log2(arrival), z s apart from that of the first token, is `about` at most, rounding aside. Each of the
// five roundings on the way adds up to 2^-24 of the largest number there, which is |about| + |z_first s| + 80 at most, arrivals
// being between 2^-72 and 2^8; where z s is still larger, it is negative, and the score far below. Approximate logarithms are
// 2^-22 of 80 off at most. Of probabilities z s stands for log2(p), -149 to 128, whose error, approximate or not, is below 2^-14.
DEVICE float most_of(float about, const Origin& first, float s) {
#if GUMBALL_PROBABILITIES
    // Most of a row may be nothing.
    if (!(about > -INFINITE)) {
        return -INFINITE;
    }
#endif
    float shift = scaled(first, s), slack = (fabsf(about) + fabsf(shift)) * bits_float((127 - 19) << 23);
    return is_far(shift) ? INFINITE : (about - shift) + (slack + bits_float((127 - 9) << 23));
}

// The best of a tile's kept tokens, by one warp; 0 if none can reach a score.
template <class V, class S>
DEVICE u64 best_of_tile(const V& row, const S& stream, const Cut& cut, u32 tile, const Origin& first, float s, u32 score) {
    float z[PER_LANE], logs[PER_LANE];
    u32 lane = lane_id(), odd = 0, words[PER_LANE];
    row.load(tile, lane, z, odd);
    // While they fly.
    u32 id = tile * TILE;
    words_of_lane(stream, id + row.place(tile, lane, 0), id + row.place(tile, lane, 4), words);
    Words of_tile = words_of_tile(stream, tile);
    bool wide = row.is_wide(tile);
    float about = about_first(of_tile.w[0]);
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        // Where a lane's tokens are no neighbours, each is taken to arrive with the first.
        bool later = wide & (row.place(tile, lane, j) != of_tile.w[2] >> 24);
        logs[j] = about_log_arrival(about, later ? words[j] : 0);
    }
    float most = -INFINITE;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        z[j] = clean(z[j]);
        bool runs = (z[j] >= cut.low()) & (z[j] <= first.first);
        logs[j] = runs ? scaled_less(z[j], s, logs[j]) : -INFINITE;
        most = larger(most, logs[j]);
    }
    u64 best = 0;
    float least = from_ordered_bits(score);
    if (!(most_of(most, first, s) < least)) {
        First of_first = first_of(of_tile);
        // A lane has one that can reach the score, if any.
#pragma unroll 1
        for (u32 j = 0; j < PER_LANE; j++) {
            u32 place = row.place(tile, lane, j), id = tile * TILE + place;
            float own_z = pick(z, j);
            if (!(most_of(pick(logs, j), first, s) < least) & cut.contains(key_of(own_z, id))) {
                float arrival = token_arrival(stream, of_first, tile, place);
                u64 own = leader_of(exponent(own_z, first, s) - log2_of_normal(arrival), id);
                best = own > best ? own : best;
            }
        }
    }
    return warp_max(best);
}

// Records as survey.cu makes them: of a tile's first token, and of the tile's first arrival.
struct Surveyed {
    // Whose rows they may be, besides those that race over everything.
    static constexpr bool GREEDY = true, MIN_P = true;

    static DEVICE_MEMBER float logit(const Record& record) { return record.maximum; }

    // What no other token's z s - log2(arrival) exceeds, rounding aside.
    static DEVICE_MEMBER float rest(const Record& record, float s) { return scaled(others_of(record), s) - record.log_first; }

    // Whether others of the tile's tokens may reach a score. Where filters dropped the first tokens of the row, no kept token
    // has y above 0.
    static DEVICE_MEMBER bool opens(const Record& record, const Cut& cut, const Origin& first, float s, u32 score) {
        float others = others_of(record), bound = fminf(exponent(others, first, s), 0.0f) - record.log_first;
        return (others >= cut.low()) & reaches(bound, score);
    }
};

// Scores the tokens of the open tiles that can win, and returns what leads then, in every thread. A barrier has to be between
// this and the last tile opened. `leader` is what leads else.
template <class Kind, class V, class S>
DEVICE u32 run_opened(const Records& records, const V& row, const S& stream, const Cut& cut, const Origin& first, float s,
                      u64 leader) {
    Opened& opened = block_opened();
    u32 count = opened.count;
    leader = opened.raised > leader ? opened.raised : leader;
    if (count == 0) {
        return key_id(leader);
    }
#pragma unroll 1
    for (u32 i = warp_id(); i < count; i += warps()) {
        u32 tile = opened.tiles[i];
        // Other warps raise the leader meanwhile; an older one is only a lower bound.
        u64 newer = __shfl_sync(ALL_LANES, *(volatile u64*)&opened.raised, 0);
        leader = newer > leader ? newer : leader;
        u32 score = (u32)(leader >> 32);
        // The first time little has changed since the tile was listed.
        if (i < warps() || Kind::opens(records.records[tile], cut, first, s, score)) {
            u64 own = best_of_tile(row, stream, cut, tile, first, s, score);
            if (lane_id() == 0 && own > leader) {
                atomicMax(&opened.raised, own);
            }
        }
    }
    // Without it the leader read below could still be raised.
    __syncthreads();
    return key_id(opened.raised > leader ? opened.raised : leader);
}

// The kept token that wins the race, in every thread.
template <class V, class S>
DEVICE u32 race(const Records& records, const V& row, const S& stream, const Given& kept, float s) {
    const Cut& cut = kept.cut;
    const Origin first(kept.first);
    __shared__ u64 leaders[32];

    // The best score of tiles' first tokens.
    u64 best = 0;
    records.each([&](u32 tile, const Record& record) INLINE {
        u32 id = tile * TILE + (record.places & 255);
        u64 own = leader_of(exponent(record.maximum, first, s) - record.log_top, id);
        best = (own > best) & cut.contains(key_of(record.maximum, id)) ? own : best;
    });
    best = warp_max(best);
    if (lane_id() == 0) {
        leaders[warp_id()] = best;
    }
    if (threadIdx.x == 0) {
        block_opened().clear();
    }
    // Without it a warp reads leaders of warps that have not written theirs, or adds to a count that is not zero yet.
    __syncthreads();
    u64 leader = warp_max(lane_id() < warps() ? leaders[lane_id()] : 0);
    records.each([&](u32 tile, const Record& record) INLINE {
        if (Surveyed::opens(record, cut, first, s, (u32)(leader >> 32))) {
            block_opened().add(tile);
        }
    });
    // Without it warps would miss tiles that others have not listed yet.
    __syncthreads();
    return run_opened<Surveyed>(records, row, stream, cut, first, s, leader);
}
