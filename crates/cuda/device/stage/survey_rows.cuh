// survey_rows.cuh: the body of the kernels that survey rows without edits: whole ones, and parts that ranks have.
//
// Computes   the records of a block's tiles, and the sums of weights that the row needs
// Requires   blocks of SURVEY_BLOCK_WARPS warps; for parts, that no row has sums
// Twins      kernels/survey.cu says more
#pragma once

#include "block/fill_output.cuh"
#include "block/survey_requests.cuh"
#include "stage/survey.cuh"

// Loads a warp's TILES neighbouring tiles, 16 bytes at a time if all of them are whole.
template <class T, u32 TILES, class Place>
DEVICE void load_tiles(const LogitsRow<T>& row, const Place& place, u32 vectorized_tiles, u32 first_tile,
                       float (&z)[TILES][ITEMS_PER_LANE]) {
    u32 lane = lane_id();
    if ((first_tile + TILES <= vectorized_tiles) & !place.cuts(first_tile)) {
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            load_vectorized_streaming<T>(row.logits + (first_tile + i) * TILE, lane, z[i]);
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            load_single<T>(row.logits, (first_tile + i) * TILE, place.skipped, row.vocab, lane, z[i]);
        }
    }
}

// The body of a kernel. A warp takes GROUPS groups of TILES tiles and loads the tiles of a group together. Tiles and
// ids count from the start of tile `place.first_tile`, of which the first `place.skipped` ids are not here.
//
//     load the first group; meanwhile read parameters, and in warp 0 draw the first arrival of each tile
//     for each group: reduce its tiles to shared memory, with the sums of weights if SUMS; load the next group
//     barrier; warp 0 completes the records, one tile per lane; the other warps begin to pre-fill output rows
template <class T, u32 TILES, u32 GROUPS, u32 UNROLL, bool EARLY, bool SUMS, class Place>
DEVICE void survey(const Step& step, const Place& place) {
    constexpr u32 WARPS = SURVEY_BLOCK_WARPS, PER_WARP = TILES * GROUPS, PER_BLOCK = WARPS * PER_WARP;
    static_assert(PER_BLOCK <= 32, "the first warp has a lane for each tile");
    __shared__ SharedStorage<WARPS, PER_BLOCK> storage;
    // Whether to load tiles before the row's slot is known. That wastes the loads of padding rows; it pays when rows
    // are few or row i always uses slot i.
    const bool early = EARLY || step.flags & STEP_SLOT_IS_ROW;
    if (!early || step.row_indices != nullptr) {
        wait_for_requests();
    }
    const BlockCoord coord = block_coord(step, blockIdx.x);
    u32 row_index = coord.row, lane = lane_id(), warp = warp_id();
    u32 block_tile = coord.block_in_row * PER_BLOCK, lane_tile = block_tile + lane;
    u32 warp_tile = block_tile + warp * PER_WARP;
    int slot = early ? (int)row_index : step.slots[row_index];
    if (slot < 0 || (!early && !place.surveys(step, row_index, slot))) {
        return;
    }
    LogitsRow<T> row(step, row_index);
    u32 vectorized_tiles = row.vectorized ? step.vocab / TILE : 0, nonfinite_flags = 0;
    float z[TILES][ITEMS_PER_LANE];
    load_tiles<T, TILES>(row, place, vectorized_tiles, warp_tile, z);
    if (early) {
        if (EARLY) {
            warm_constant_bank(step);
        }
        wait_for_requests();
        slot = EARLY ? survey_slot(step, row_index) : slot;
        if (slot < 0 || !place.surveys(step, row_index, slot)) {
            return;
        }
    }

    // These loads and draws overlap the loads of the tiles.
    const Params& params = step.params[slot];
    SumParams sum_params;
    if constexpr (SUMS) {
        sum_params = SumParams(params);
    }
    ArrivalSampler sampler;
    if (warp == 0) {
        sampler = ArrivalSampler(params, step.states[slot], place.first_tile + lane_tile);
    }

#pragma unroll UNROLL
    for (u32 group = 0; group < GROUPS; group++) {
        if (group > 0) {
            load_tiles<T, TILES>(row, place, vectorized_tiles, warp_tile + group * TILES, z);
        }
        const u32 first_tile_in_block = warp * PER_WARP + group * TILES;
        constexpr u32 TILES_TOGETHER = SUM_TILES_TOGETHER ? TILES : 1;
#pragma unroll
        for (u32 start = 0; start < TILES; start += TILES_TOGETHER) {
            int maxima[TILES_TOGETHER];
#pragma unroll
            for (u32 i = 0; i < TILES_TOGETHER; i++) {
                maxima[i] = reduce_tile<T>(z[start + i], AllMask(), storage.reductions[first_tile_in_block + start + i],
                                           nonfinite_flags);
            }
            if constexpr (SUMS) {
                store_tile_sums(z + start, maxima, sum_params, sum_params.needs_logprob_sum,
                                first_tile_in_block + start, storage);
            }
        }
    }
    nonfinite_flags = __reduce_or_sync(FULL_MASK, nonfinite_flags);
    if (lane == 0) {
        storage.nonfinite_flags[warp] = nonfinite_flags;
    }
    // RAW on storage: all warps wrote the reductions, sums and flags of their tiles, warp 0 reads them.
    __syncthreads();
    if (warp == 0 && lane < PER_BLOCK && lane_tile < step.tiles) {
        // All records of a warp's tiles take the flags of all of these tiles: later stages need only the row's flags.
        TileRecord record =
            make_record<T>(storage.reductions[lane], AllMask(), storage.nonfinite_flags[lane / PER_WARP]);
        sampler.complete(record, place.first_tile + lane_tile);
        store_record(step, row_index, lane_tile, record, sum_params, lane, storage);
    }
    if (step.prefill_out != nullptr) {
        // The other warps begin while warp 0 completes the records.
        prefill_tiles(step, PER_BLOCK);
    }
}
