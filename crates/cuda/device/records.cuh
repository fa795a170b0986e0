// records.cuh: a row's records over the threads of its block.
//
// Computes   visits to them; what they say of the row as a whole
// Traffic    16 bytes per tile, 8 more with sums
// Requires   the survey before; all threads of the block, whole warps
#pragma once

#include "row.cuh"
#include "warp.cuh"

// The records of a row, with the sums of weights if they are asked for. The first of each thread stay in its registers, which
// is all of them where a block has a thread for each tile.
struct Records {
    const Record* records;
    const u64* sums;
    u32 tiles;
    Record held;
    u64 held_sum;

    DEVICE_MEMBER Records(const Record* records, const u64* sums, u32 tiles) : records(records), sums(sums), tiles(tiles) {
        held = of(threadIdx.x);
        held_sum = sum_of(threadIdx.x);
    }

    DEVICE_MEMBER Records(const Step& step, u32 row, bool weighed)
        : Records(step.records + (u64)row * step.tiles, weighed ? step.sums + (u64)row * step.tiles : nullptr, step.tiles) {}

    // Calls `see(tile, record, sum)` for each of the thread's tiles; beyond the last, for the warp to be whole, with a record
    // of nothing.
    template <class See>
    DEVICE_MEMBER void each_weighed(See see) const {
        see(threadIdx.x, held, held_sum);
#pragma unroll 1
        for (u32 tile = threadIdx.x + blockDim.x; tile - lane_id() < tiles; tile += blockDim.x) {
            see(tile, of(tile), sum_of(tile));
        }
    }

    // Calls `see(tile, record)` for each.
    template <class See>
    DEVICE_MEMBER void each(See see) const {
        each_weighed([&](u32 tile, const Record& record, u64) INLINE { see(tile, record); });
    }

    // The same, where a thread often has three, which are read at once.
    template <class See>
    DEVICE_MEMBER void each_of_three(See see) const {
        u32 tile = threadIdx.x + blockDim.x;
        Record second = of(tile), third = of(tile + blockDim.x);
        see(threadIdx.x, held);
        if (blockDim.x < tiles) {
            see(tile, second);
            see(tile + blockDim.x, third);
#pragma unroll 1
            for (tile += 2 * blockDim.x; tile - lane_id() < tiles; tile += blockDim.x) {
                see(tile, of(tile));
            }
        }
    }

  private:
    DEVICE_MEMBER Record of(u32 tile) const {
        Record nothing{-INFINITE, 0.0f, 0.0f, 0};
        return tile < tiles ? records[tile] : nothing;
    }

    DEVICE_MEMBER u64 sum_of(u32 tile) const { return sums && tile < tiles ? sums[tile] : 0; }
};

// What the survey says of a row as a whole.
struct Whole {
    // The key of its first token, its id only if that is asked for; 0 if it has none.
    u64 first;
    // The least maximum of a tile that has a token.
    float least;
    // The status bits of its odd values.
    u32 odd;
};

// The same in every thread.
DEVICE Whole whole_of(const Records& records, bool asks_id) {
    __shared__ Quad scratch[32];
    u32 most = 0, least = ~0u, places = 0, low = 0;
    records.each([&](u32, const Record& record) INLINE {
        u32 bits = ordered_bits(record.maximum);
        most = bits > most ? bits : most;
        least = bits - LEAST_ORDERED < least ? bits - LEAST_ORDERED : least;
        places |= record.places;
    });
    most = __reduce_max_sync(ALL_LANES, most);
    least = __reduce_min_sync(ALL_LANES, least);
    places = __reduce_or_sync(ALL_LANES, places);
    if (asks_id) {
        records.each([&](u32 tile, const Record& record) INLINE {
            u32 id = tile * TILE + (record.places & 255);
            low = ordered_bits(record.maximum) == most && ~id > low ? ~id : low;
        });
        low = __reduce_max_sync(ALL_LANES, low);
    }
    if (lane_id() == 0) {
        scratch[warp_id()] = Quad{{most, low, least, places}};
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    Quad own = lane_id() < warps() ? scratch[lane_id()] : Quad{{0, 0, ~0u, 0}};
    most = __reduce_max_sync(ALL_LANES, own.word[0]);
    // Whether asked for or not: of a reduction under a condition ptxas 13.0 made one under another condition.
    low = __reduce_max_sync(ALL_LANES, own.word[0] == most ? own.word[1] : 0);
    low = asks_id ? low : ~0u;
    least = __reduce_min_sync(ALL_LANES, own.word[2]) + LEAST_ORDERED;
    places = __reduce_or_sync(ALL_LANES, own.word[3]);
    return Whole{most < LEAST_ORDERED ? 0 : ((u64)most << 32) | low, from_ordered_bits(least), odd_of(places)};
}
