// records.cuh: a row's records, divided over the threads of its block.
//
// Computes   visits to the records; the row's first token, its least tile maximum and its non-finite flags
// Traffic    16 bytes per tile, 8 more with sums
// Requires   the survey before; all threads of the block, whole warps
#pragma once

#include "abi/step.cuh"
#include "math/kind.cuh"
#include "math/record.cuh"
#include "block/reduce.cuh"

// A row's records, and its filter sums if the row needs them. Each thread keeps its first record and sum in registers;
// if the block has a thread for each tile, these are all of them.
struct RowRecords {
    const TileRecord* records;
    const u64* filter_sums;
    u32 tiles;
    TileRecord first_record;
    u64 first_sum;

    DEVICE_MEMBER RowRecords(const TileRecord* records, const u64* filter_sums, u32 tiles)
        : records(records), filter_sums(filter_sums), tiles(tiles) {
        first_record = record_at(threadIdx.x);
        first_sum = sum_at(threadIdx.x);
    }

    DEVICE_MEMBER RowRecords(const Step& step, u32 row, bool with_sums)
        : RowRecords(step.records + (u64)row * step.tiles,
                     with_sums ? step.filter_sums + (u64)row * step.tiles : nullptr, step.tiles) {}

    // Calls `visit(tile, record, sum)` for each of the thread's tiles. All lanes of a warp make the same number of
    // calls: beyond the last tile, the record is as of a tile without tokens.
    template <class Visit>
    DEVICE_MEMBER void for_each_with_sum(Visit visit) const {
        visit(threadIdx.x, first_record, first_sum);
#pragma unroll 1
        for (u32 tile = threadIdx.x + blockDim.x; tile - lane_id() < tiles; tile += blockDim.x) {
            visit(tile, record_at(tile), sum_at(tile));
        }
    }

    // Calls `visit(tile, record)` for each of the thread's tiles, by whole warps like for_each_with_sum.
    template <class Visit>
    DEVICE_MEMBER void for_each(Visit visit) const {
        for_each_with_sum([&](u32 tile, const TileRecord& record, u64) INLINE { visit(tile, record); });
    }

    // Calls `visit(tile, record)` for each of the thread's tiles, by whole warps, and loads the thread's second and
    // third record together. It suits blocks whose threads often have three tiles.
    template <class Visit>
    DEVICE_MEMBER void for_each_prefetched(Visit visit) const {
        u32 tile = threadIdx.x + blockDim.x;
        TileRecord second = record_at(tile), third = record_at(tile + blockDim.x);
        visit(threadIdx.x, first_record);
        if (blockDim.x < tiles) {
            visit(tile, second);
            visit(tile + blockDim.x, third);
#pragma unroll 1
            for (tile += 2 * blockDim.x; tile - lane_id() < tiles; tile += blockDim.x) {
                visit(tile, record_at(tile));
            }
        }
    }

  private:
    DEVICE_MEMBER TileRecord record_at(u32 tile) const {
        TileRecord nothing{-INF_F32, 0.0f, 0.0f, 0};
        return tile < tiles ? records[tile] : nothing;
    }

    DEVICE_MEMBER u64 sum_at(u32 tile) const { return filter_sums && tile < tiles ? filter_sums[tile] : 0; }
};

// A row's summary, reduced from its records.
struct RowSummary {
    // The key of the row's first token; 0 if the row has none. The id in it is 0 unless the caller needs it.
    u64 first_key;
    // The least maximum of those tiles that have a token.
    float least_maximum;
    // The status bits of the row's non-finite values.
    u32 nonfinite_flags;
};

// The shared memory of `summarise_row`: each warp's summary of its tiles' records.
struct SummaryStorage {
    U32x4 warps[32];
};

// Returns a row's summary in every thread; the id of its first token only with `needs_id`.
DEVICE RowSummary summarise_row(SummaryStorage& storage, const RowRecords& records, bool needs_id) {
    u32 most = 0, least = ~0u, packed = 0, low = 0;
    records.for_each([&](u32, const TileRecord& record) INLINE {
        u32 bits = ordered_bits(record.maximum);
        most = bits > most ? bits : most;
        least = bits - MIN_TOKEN_ORDERED < least ? bits - MIN_TOKEN_ORDERED : least;
        packed |= record.packed;
    });
    most = __reduce_max_sync(FULL_MASK, most);
    least = __reduce_min_sync(FULL_MASK, least);
    packed = __reduce_or_sync(FULL_MASK, packed);
    if (needs_id) {
        records.for_each([&](u32 tile, const TileRecord& record) INLINE {
            u32 id = tile * TILE + (record.packed & 255);
            low = ordered_bits(record.maximum) == most && ~id > low ? ~id : low;
        });
        low = __reduce_max_sync(FULL_MASK, low);
    }
    if (lane_id() == 0) {
        storage.warps[warp_id()] = U32x4{{most, low, least, packed}};
    }
    // RAW on storage.warps: lane 0 of each warp wrote its warp's words, all warps read all of them.
    __syncthreads();
    U32x4 own = lane_id() < warp_count() ? storage.warps[lane_id()] : U32x4{{0, 0, ~0u, 0}};
    most = __reduce_max_sync(FULL_MASK, own.word[0]);
    // Not under the condition `needs_id`: ptxas 13.0 compiled such a reduction to one under another condition.
    low = __reduce_max_sync(FULL_MASK, own.word[0] == most ? own.word[1] : 0);
    low = needs_id ? low : ~0u;
    least = __reduce_min_sync(FULL_MASK, own.word[2]) + MIN_TOKEN_ORDERED;
    packed = __reduce_or_sync(FULL_MASK, own.word[3]);
    return RowSummary{most < MIN_TOKEN_ORDERED ? 0 : ((u64)most << 32) | low, from_ordered_bits(least),
                      unpack_nonfinite_flags(packed)};
}
