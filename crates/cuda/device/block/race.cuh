// race.cuh: the exponential race over a row's kept tokens, by a block; it scores only tokens that can win (D1, D2).
//
// Computes   the token of a cut with the largest score
// Never      reads a tile whose bound is below the best score known; never computes the exact score of a token whose
//            upper bound is below that score
// Twins      oracle spec/src/draw.rs | CPU cpu/src/draw.rs | why docs/stages/draw.md
// Traffic    16 bytes per tile; of the logits only the tiles whose bound reaches the best score
// Requires   the row's survey; whole warps, all threads of the block
//
//     best = the best score of the tiles' first tokens                 their arrivals are in the survey's records
//     open = the tiles with y(others) - log2(first arrival) >= best    the left side bounds the tile's other scores
//     if they are many: best = the best score of their first arrivals, too; list again the tiles that stay open
//     for each open tile, a warp each:
//         bound each token's score by approximate logarithms, with slack for their errors
//         score the tokens whose bound reaches best, and raise best
//
// The rule's log2 is exactly monotone, so a tile's bound needs no slack. A warp may compare with a `best` that other
// warps have raised since. It is at most the final one, so at worst the warp opens a tile or scores a token too many.

#pragma once

#include "math/arrival.cuh"
#include "math/cut.cuh"
#include "warp/edited_row.cuh"
#include "block/records.cuh"
#include "block/row_blocks.cuh"

// Packs a score and its token into a leader: the larger score is the larger word, and of equal scores the smaller id
// is. The sum makes -0.0 equal to +0.0.
DEVICE u64 make_leader(float score, u32 id) { return make_key(score + 0.0f, id); }

// Whether a bound reaches `score`, the high word of a leader. Equality counts: the bounded token's id may be smaller.
DEVICE bool reaches_score(float bound, u32 score) { return ordered_bits(bound + 0.0f) >= score; }

// Raises a word in shared memory to the largest of a warp's leaders; by a whole warp. Few of its lanes touch the word.
DEVICE void raise_by_warp(u64& best, u64 own) {
    u32 score = (u32)(own >> 32);
    if (score == __reduce_max_sync(FULL_MASK, score) && own > *(volatile u64*)&best) {
        atomicMax(&best, own);
    }
}

// The open tiles of a row, unordered, and the best leader found in them; in shared memory.
struct OpenTiles {
    u64 best;
    u32 count;
    unsigned short tiles[MAX_TILES];
    static_assert(MAX_TILES <= 1 << 16, "a half word has a tile");

    // Called by one thread. A barrier must follow before threads add tiles.
    DEVICE_MEMBER void clear() {
        best = 0;
        count = 0;
    }
    DEVICE_MEMBER void add(u32 tile) { tiles[atomicAdd(&count, 1u)] = (unsigned short)tile; }
};

// The shared memory of a race.
struct RaceStorage {
    OpenTiles open_tiles;
    // Per warp, the best leader among the first tokens of its tiles.
    u64 leaders[32];
};

// Whether |y| is 2^100 or more, or y is NaN: a bound that is a sum with y would then mean nothing.
DEVICE bool is_out_of_range(float y) { return !(fabsf(y) < bits_float((127 + 100) << 23)); }

// Returns an upper bound of the score of a token whose z s - log2(arrival) is at most `approx`, rounding aside. The
// score is that less z_first s.
//
// Each of five roundings adds at most 2^-24 of the largest intermediate number. That number is at most |approx| +
// |z_first s| + 80, as arrivals are between 2^-72 and 2^8. If |z s| is even larger, z s is negative, and the score is
// far below the bound. Approximate logarithms are off by at most 2^-22 of 80. For probabilities, z s is log2(p), from
// -149 to 128; its error is below 2^-14, whether it is approximate or not.
DEVICE float score_upper_bound(float approx, const Origin& first, float log2e_over_t) {
#if GUMBALL_PROBABILITIES
    // In many rows most numbers are 0, which is no token.
    if (!(approx > -INF_F32)) {
        return -INF_F32;
    }
#endif
    float shift = log2_weight(first, log2e_over_t),
          slack = (fabsf(approx) + fabsf(shift)) * bits_float((127 - 19) << 23);
    return is_out_of_range(shift) ? INF_F32 : (approx - shift) + (slack + bits_float((127 - 9) << 23));
}

// Returns the least z s - log2(arrival) of a token whose score may reach `score`. The slack is twice that of
// score_upper_bound, which is therefore below the score for anything less.
DEVICE float least_approx(u32 score, const Origin& first, float log2e_over_t) {
    const float shift = log2_weight(first, log2e_over_t), approx = from_ordered_bits(score) + shift,
                slack = (fabsf(approx) + fabsf(shift)) * bits_float((127 - 18) << 23);
    return is_out_of_range(shift) ? -INF_F32 : approx - (slack + bits_float((127 - 8) << 23));
}

// One warp returns in every lane the best leader among a tile's kept tokens, or 0 if none of them can reach `score`.
template <class V, class S>
DEVICE u64 best_in_tile(const V& row, const S& rng, const Cut& cut, u32 tile, const Origin& first, float log2e_over_t,
                        u32 score) {
    float z[ITEMS_PER_LANE];
    u32 lane = lane_id(), nonfinite_flags = 0, able = 0, words[ITEMS_PER_LANE];
    row.load(tile, lane, z, nonfinite_flags);
    // The warp draws random words while the logits load.
    u32 id = tile * TILE;
    lane_words(rng, id + row.offset(lane, 0), id + row.offset(lane, 4), words);
    const PhiloxWords of_tile = tile_words(rng, tile);
    const float earliest = approx_first_arrival(of_tile.w[0]), least = least_approx(score, first, log2e_over_t);
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        const float own = min_or_nan(z[j], MAX_F32);
        const float log2_arrival =
            approx_log2_arrival(earliest, row.offset(lane, j) != first_offset(of_tile) ? words[j] : 0);
        const bool competes = (own >= cut.low()) & (own <= first.first);
        able |= competes && !(log2_weight_minus(own, log2e_over_t, log2_arrival) < least) ? 1u << j : 0;
    }
    u64 best = 0;
    if (__any_sync(FULL_MASK, able != 0)) {
        FirstArrival of_first = first_arrival_from(of_tile);
        // Not unrolled: a lane seldom has more than one token that can reach the score. All lanes take their first one
        // at once.
#pragma unroll 1
        for (; able != 0; able &= able - 1) {
            u32 j = __ffs((int)able) - 1, offset = row.offset(lane, j), id = tile * TILE + offset;
            float own_z = clean(select_item(z, j));
            if (cut.contains(make_key(own_z, id))) {
                float arrival = token_arrival(rng, of_first, tile, offset);
                u64 own = make_leader(exponent(own_z, first, log2e_over_t) - log2_of_normal(arrival), id);
                best = own > best ? own : best;
            }
        }
    }
    return warp_max(best);
}

// How the race reads the records of survey.cu: a tile's first token with its arrival, and the tile's first arrival.
struct SurveyRecords {
    // Which rows may have such records, besides rows of unfiltered sampling.
    static constexpr bool GREEDY = true, MIN_P = true;
    // Whether a record has the tile's first arrival.
    static constexpr bool HAS_FIRST_ARRIVALS = true;

    static DEVICE_MEMBER float logit(const TileRecord& record) { return record.maximum; }

    // Returns an upper bound of z s - log2(arrival) of the tile's other tokens, rounding aside.
    static DEVICE_MEMBER float others_bound(const TileRecord& record, float log2e_over_t) {
        return log2_weight(record_others_bound(record), log2e_over_t) - record.log2_first_arrival;
    }

    // Whether a token other than the tile's first may reach `score`. The bound caps y at 0: filters may have dropped
    // the row's first tokens, and no kept token has y above 0.
    static DEVICE_MEMBER bool may_hold_winner(const TileRecord& record, const Cut& cut, const Origin& first,
                                              float log2e_over_t, u32 score) {
        float others = record_others_bound(record),
              bound = fminf(exponent(others, first, log2e_over_t), 0.0f) - record.log2_first_arrival;
        return (others >= cut.low()) & reaches_score(bound, score);
    }
};

// Scores those tokens of the open tiles that can win. Returns the best leader in every thread. A barrier must separate
// the call from the last tile added. `leader` is the best of the tokens scored before.
template <class RecordKind, class V, class S>
DEVICE u64 race_open_tiles(OpenTiles& open_tiles, const RowRecords& records, const V& row, const S& rng, const Cut& cut,
                           const Origin& first, float log2e_over_t, u64 leader) {
    u32 count = open_tiles.count;
    leader = open_tiles.best > leader ? open_tiles.best : leader;
    if (count == 0) {
        return leader;
    }
#pragma unroll 1
    for (u32 i = warp_id(); i < count; i += warp_count()) {
        u32 tile = open_tiles.tiles[i];
        // Other warps raise `best` meanwhile; an older value is only a lower bound.
        u64 newer = __shfl_sync(FULL_MASK, *(volatile u64*)&open_tiles.best, 0);
        leader = newer > leader ? newer : leader;
        u32 score = (u32)(leader >> 32);
        // Otherwise a warp does not test its first tile again: the leader has hardly risen since the tile was added.
        if (i < warp_count() || RecordKind::may_hold_winner(records.records[tile], cut, first, log2e_over_t, score)) {
            u64 own = best_in_tile(row, rng, cut, tile, first, log2e_over_t, score);
            if (lane_id() == 0 && own > leader) {
                atomicMax(&open_tiles.best, own);
            }
        }
    }
    // RAW on open_tiles.best: all warps raised it, all threads read the final value.
    __syncthreads();
    return open_tiles.best > leader ? open_tiles.best : leader;
}

// Whether a tile may hold a token, its first one aside, that is kept and better than the leader. Where the cut ends
// among equal tokens, a tile whose ids are all too large holds none.
DEVICE bool is_open(u32 tile, const TileRecord& record, const Cut& cut, const Origin& first, float log2e_over_t,
                    u64 leader) {
    const float others = fminf(record_others_bound(record), record.maximum);
    return make_key(others + 0.0f, tile * TILE) >= cut.last &&
           SurveyRecords::may_hold_winner(record, cut, first, log2e_over_t, (u32)(leader >> 32));
}

// Adds the tiles that may hold a better token than the leader, as far as this block takes them. A barrier must precede;
// all threads may read the list afterwards.
DEVICE void list_open_tiles(OpenTiles& open_tiles, const RowRecords& records, const Cut& cut, const Origin& first,
                            float log2e_over_t, u64 leader, const StridedTiles& tiles) {
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        if (tile % tiles.tile_stride == tiles.first && is_open(tile, record, cut, first, log2e_over_t, leader)) {
            open_tiles.add(tile);
        }
    });
    // RAW on open_tiles: all threads added tiles, all warps read them.
    __syncthreads();
}

// Whether a block has fewer warps than open tiles; the same in all threads.
DEVICE bool are_many(const OpenTiles& open_tiles) {
    const bool many = open_tiles.count > warp_count();
    // WAR on open_tiles.count: all threads read it, thread 0 may clear it.
    __syncthreads();
    return many;
}

// Where open tiles are many, scores the token that arrives first in each tile that may hold the winner, and lists again
// the tiles that remain, as far as this block takes them. In a flat row one of these tokens likely wins, and few tiles
// can hold a better one. Returns the best leader, in every thread.
template <class V, class S>
DEVICE u64 relist_by_first_arrivals(OpenTiles& open_tiles, const RowRecords& records, const V& row, const S& rng,
                                    const Cut& cut, const Origin& first, float log2e_over_t, u64 leader,
                                    const StridedTiles& tiles) {
    leader = open_tiles.best > leader ? open_tiles.best : leader;
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        u64 own = 0;
        if (is_open(tile, record, cut, first, log2e_over_t, leader)) {
            u32 id = tile * TILE + first_offset(tile_words(rng, tile));
            // Beyond the vocabulary there is no token.
            float z = id < row.row.vocab ? row.logit(id) : MASKED_VALUE;
            own = cut.contains(make_key(z, id))
                      ? make_leader(exponent(z, first, log2e_over_t) - record.log2_first_arrival, id)
                      : 0;
        }
        raise_by_warp(open_tiles.best, own);
    });
    if (threadIdx.x == 0) {
        open_tiles.count = 0;
    }
    // RAW on open_tiles: all threads raised its best leader, thread 0 cleared its count, all threads read and add.
    __syncthreads();
    leader = open_tiles.best > leader ? open_tiles.best : leader;
    list_open_tiles(open_tiles, records, cut, first, log2e_over_t, leader, tiles);
    return leader;
}

// Returns the best leader among the kept tokens, as far as a block knows them, in every thread: the first tokens of all
// tiles, and all tokens of its own tiles.
template <class V, class S>
DEVICE u64 race_own_tiles(const StridedTiles& own_tiles, RaceStorage& storage, const RowRecords& records, const V& row,
                          const S& rng, const GivenSet& kept, float log2e_over_t) {
    const Cut& cut = kept.cut;
    const Origin first(kept.first_value);
    OpenTiles& open_tiles = storage.open_tiles;

    // The best leader among the tiles' first tokens, as far as they are kept.
    u64 best = 0;
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        u32 id = tile * TILE + (record.packed & 255);
        u64 own = make_leader(exponent(record.maximum, first, log2e_over_t) - record.log2_max_arrival, id);
        best = (own > best) & cut.contains(make_key(record.maximum, id)) ? own : best;
    });
    best = warp_max(best);
    if (lane_id() == 0) {
        storage.leaders[warp_id()] = best;
    }
    if (threadIdx.x == 0) {
        open_tiles.clear();
    }
    // RAW on leaders: lane 0 of each warp wrote its warp's, all warps read all of them. RAW on open_tiles.count: thread
    // 0 cleared it, all threads add to it.
    __syncthreads();
    u64 leader = warp_max(lane_id() < warp_count() ? storage.leaders[lane_id()] : 0);
    list_open_tiles(open_tiles, records, cut, first, log2e_over_t, leader, own_tiles);
    if (are_many(open_tiles)) {
        leader = relist_by_first_arrivals(open_tiles, records, row, rng, cut, first, log2e_over_t, leader, own_tiles);
    }
    return race_open_tiles<SurveyRecords>(open_tiles, records, row, rng, cut, first, log2e_over_t, leader);
}

// Returns the id of the kept token that wins the race, in every thread. The blocks share the tiles that are read.
template <class V, class S>
DEVICE u32 race(const RowBlocks& blocks, RaceStorage& storage, const RowRecords& records, const V& row, const S& rng,
                const GivenSet& kept, float log2e_over_t) {
    u64 leader[] = {race_own_tiles(blocks.tiles(), storage, records, row, rng, kept, log2e_over_t)};
    if (blocks.count > 1) {
        blocks.max(leader);
    }
    // There is no leader if the row is written meanwhile.
    return leader[0] != 0 ? key_id(leader[0]) : key_id(kept.cut.first);
}
