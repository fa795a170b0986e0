// records.cuh: a row's records over the threads of its block.
//
// Computes   visits to them; what they say of the row as a whole
// Traffic    16 bytes per tile
// Requires   the survey before; all threads of the block, whole warps
#pragma once

#include "step.cuh"
#include "warp.cuh"

// The first HELD of each thread stay in its registers.
template <u32 HELD>
struct Records {
    const Record* records;
    u32 tiles;
    Record held[HELD + 1];

    DEVICE_MEMBER Records(const Step& step, u32 row)
        : records(step.records + (u64)row * step.tiles), tiles(step.tiles) {
#pragma unroll
        for (int i = 0; i < (int)HELD; i++) {
            held[i] = of(threadIdx.x + i * blockDim.x);
        }
    }

    // Calls `see(tile, record)` for each of the thread's tiles; beyond the last, for the warp to be whole, with a record of
    // nothing.
    template <class See>
    DEVICE_MEMBER void each(See see) const {
#pragma unroll
        for (int i = 0; i < (int)HELD; i++) {
            see(threadIdx.x + i * blockDim.x, held[i]);
        }
        for (u32 tile = threadIdx.x + HELD * blockDim.x; tile - lane_id() < tiles; tile += blockDim.x) {
            see(tile, of(tile));
        }
    }

  private:
    DEVICE_MEMBER Record of(u32 tile) const {
        Record nothing{-INFINITE, 0.0f, 0.0f, 0};
        return tile < tiles ? records[tile] : nothing;
    }
};

// What the survey says of a row as a whole.
struct Whole {
    // The key of its first token; 0 if it has none.
    u64 first;
    // Its least tile maximum above -inf.
    float least;
    // The status bits of its odd values.
    u32 odd;
};

// The same in every thread.
template <u32 HELD>
DEVICE Whole whole_of(const Records<HELD>& records) {
    __shared__ u64 firsts[32];
    __shared__ u32 leasts[32], odds[32];
    u64 first = 0;
    u32 odd = 0, least = ~0u;
    records.each([&](u32 tile, const Record& record) INLINE {
        u64 key = key_of(record.maximum, tile * TILE + (record.places & 255));
        u32 bits = ordered_bits(record.maximum);
        first = record.maximum > -INFINITE && key > first ? key : first;
        least = record.maximum > -INFINITE && bits < least ? bits : least;
        odd |= odd_of(record);
    });
    odd = __reduce_or_sync(ALL_LANES, odd);
    least = __reduce_min_sync(ALL_LANES, least);
    if (lane_id() == 0) {
        odds[warp_id()] = odd;
        leasts[warp_id()] = least;
    }
    // Its barrier also lets the words be read below.
    first = block_max(first, firsts);
    odd = __reduce_or_sync(ALL_LANES, lane_id() < warps() ? odds[lane_id()] : 0);
    least = __reduce_min_sync(ALL_LANES, lane_id() < warps() ? leasts[lane_id()] : ~0u);
    return Whole{first, from_ordered_bits(least), odd};
}
