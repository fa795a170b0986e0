// survey_edited_rows.cuh: the body of the kernels that survey rows under their edits: whole ones, and parts that ranks
// have.
//
// Computes   the records of a block's tiles, and the sums of weights that the row needs
// Requires   for parts, that no row has sums
// Twins      kernels/survey_edited.cu says more
#pragma once

#include "block/edited_tiles.cuh"
#include "block/survey_requests.cuh"
#include "math/logprob_modes.cuh"
#include "stage/survey.cuh"

// The body of a kernel. Tiles and ids count from the start of tile `place.first_tile`, of which the first
// `place.skipped` ids are not here.
//
//     start to load the tiles of round 0; read the bitmaps; list the touched ids of all rounds
//     warp 0 draws the first arrival of each tile
//     for each round:
//         wait for its tiles; if the row needs sums of raw logits, each warp sums its tiles
//         threads edit the listed ids' logits in shared memory, whichever warp's tiles they are in
//         each warp reduces its tiles' allowed logits, with the sums of edited logits that the row needs
//         start to load the tiles of the next round
//     barrier; warp 0 completes the records, one tile per lane
template <class T, u32 WARPS, u32 TILES_PER_WARP, u32 ROUNDS, bool EARLY, bool SUMS, class Place>
DEVICE void survey_edited(const Step& step, const Place& place) {
    constexpr u32 TILES_PER_ROUND = WARPS * TILES_PER_WARP, TILES = TILES_PER_ROUND * ROUNDS;
    static_assert(TILES <= 32, "the first warp has a lane for each tile");
    __shared__ EditedTiles<T, WARPS, TILES_PER_WARP, ROUNDS> edited_tiles;
    __shared__ SharedStorage<WARPS, TILES> storage;
    // The kernel before may make the rows' slots and requests, or stamp their edits. It makes no logits, bitmasks or
    // row indices.
    if (!EARLY) {
        wait_for_requests();
    }
    const BlockCoord coord = block_coord(step, blockIdx.x);
    u32 row_index = coord.row, lane = lane_id(), warp = warp_id();
    u32 block_tile = coord.block_in_row * TILES, lane_tile = block_tile + lane;
    const u32 first_word = place.first_tile * MASK_WORDS;
    int slot = EARLY ? 0 : step.slots[row_index];
    if (slot < 0 || (!EARLY && !place.surveys(step, row_index, slot))) {
        return;
    }
    LogitsRow<T> row(step, row_index);
    edited_tiles.fetch(row, place, block_tile);
    EditMasks edits(step, row_index, first_word);
    u32 mask_bits[ROUNDS];
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        u32 tile = block_tile + round * TILES_PER_ROUND;
        mask_bits[round] =
            edited_tiles.has_word(tile, step.tiles) ? edits.mask_word(tile * MASK_WORDS + threadIdx.x) : 0;
    }
    if (threadIdx.x < ROUNDS) {
        edited_tiles.count[threadIdx.x] = 0;
    }
    if (EARLY) {
        wait_for_requests();
        slot = step.slots[row_index];
    }
    // RAW on edited_tiles.count: the first threads cleared the counts, all threads add to them.
    __syncthreads();
    if (EARLY && (slot < 0 || !place.surveys(step, row_index, slot))) {
        cp_async_wait_all();
        return;
    }

    const Params& params = step.params[slot];
    const State& state = step.states[slot];
    const Request& request = step.requests[slot];
    // Edits look up entries in `table` and apply `penalties`. Both are read here, so that edits need not wait for them.
    const EntryTable table(request);
    const Penalties penalties(params);
    const u32 now = state.step;
    edits.add_request(request, params.features, first_word);
    SumParams sum_params;
    bool raw = false;
    if constexpr (SUMS) {
        sum_params = SumParams(params);
        // In a row without edits the edited logits are the raw ones. `&` instead of `&&` lets all three loads overlap.
        raw = sum_params.needs_logprob_sum & (summed_logprob_mode(params) == MODE_RAW) & edits.any();
    }
    edited_tiles.list_touched(edits, block_tile, step.tiles, mask_bits);
    edited_tiles.complete_fetch(row, place, block_tile);
    // RAW on edited_tiles: all threads listed ids and loaded logits, threads of other warps read and edit them.
    __syncthreads();
    ArrivalSampler sampler;
    if (warp == 0) {
        sampler = ArrivalSampler(params, state, place.first_tile + lane_tile);
    }
    if (SUMS && raw) {
#pragma unroll 1
        for (u32 round = 0; round < ROUNDS; round++) {
            edited_tiles.each_touched(request, place.first_tile + block_tile, round, [&](u32 offset) INLINE {
                u32 id = (place.first_tile + block_tile + round * TILES_PER_ROUND) * TILE + offset;
                // The entries load while the warps sum the raw logits.
                const TokenEntry* home = table.entries + home_index(id, table.mask);
                prefetch_l2(home);
                prefetch_l2(home + 1);
            });
        }
    }
    u32 nonfinite_flags = 0;
    float z[1][ITEMS_PER_LANE];
#pragma unroll 1
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 first_tile = block_tile + round * TILES_PER_ROUND,
                  first_tile_in_block = round * TILES_PER_ROUND + warp * TILES_PER_WARP;
        const bool any = edited_tiles.count[round] > 0;
        if (round > 0) {
            edited_tiles.complete_fetch(row, place, first_tile);
        }
        if (SUMS && raw) {
            const U32x4* quads = smem_ptr_in_register(edited_tiles.quads(warp * TILES_PER_WARP));
            SplitLogprobSum* logprob_sum = smem_ptr_in_register(storage.logprob_sums + first_tile_in_block);
#pragma unroll 1
            for (u32 i = 0; i < TILES_PER_WARP; i++, quads += 64, logprob_sum++) {
                // RAW on the tile: lanes of this warp loaded it, other lanes read it; in later rounds no block barrier
                // is in between. This also reconverges the lanes here, once, and not before each reduction.
                __syncwarp();
                load_vectorized<F32>((const float*)quads, 0, z[0]);
                store_logprob_sum(z[0], finite_tile_max(z[0]), sum_params.logprob_log2e_over_t, *logprob_sum);
            }
        }
        if (any) {
            if ((SUMS && raw) || round > 0) {
                // WAR on logits: each warp summed its raw tiles, threads edit them. RAW: each warp loaded its tiles,
                // threads of other warps edit them.
                __syncthreads();
            }
            edited_tiles.each_touched(request, place.first_tile + block_tile, round, [&](u32 offset) INLINE {
                u32 id = (place.first_tile + first_tile) * TILE + offset;
                edited_tiles.logits[offset] =
                    clean(edited_logit(penalties, table, now, id, edited_tiles.logits[offset], nonfinite_flags));
            });
            // RAW on logits: threads of all warps edited them, each warp reads its own tiles.
            __syncthreads();
        }
        const U32x4* quads = smem_ptr_in_register(edited_tiles.quads(warp * TILES_PER_WARP));
        const unsigned char* lane_bytes = smem_ptr_in_register(edited_tiles.allowed + first_tile_in_block * 32 + lane);
        TileReduction* reduction = smem_ptr_in_register(storage.reductions + first_tile_in_block);
        const bool sums_edited = SUMS && (sum_params.needs_filter_sum || (sum_params.needs_logprob_sum && !raw));
#pragma unroll 1
        for (u32 i = 0; i < TILES_PER_WARP; i++, quads += 64, lane_bytes += 32, reduction++) {
            // RAW on the tile: lanes of this warp loaded it, other lanes read it; in later rounds without edits no
            // block barrier is in between.
            __syncwarp();
            load_vectorized<F32>((const float*)quads, 0, z[0]);
            const LaneMask allowed(lane_bytes);
            const int maxima[1] = {reduce_tile<F32>(z[0], allowed, *reduction, nonfinite_flags)};
            if (sums_edited) {
                apply_mask(z[0], allowed.reload());
                store_tile_sums(z, maxima, sum_params, sum_params.needs_logprob_sum && !raw, first_tile_in_block + i,
                                storage);
            }
        }
        if (round + 1 < ROUNDS) {
            // WAR on logits: this warp's lanes read their tiles, the next copies overwrite them. Threads of other warps
            // were done with these tiles before the barrier after the edits.
            __syncwarp();
            edited_tiles.fetch(row, place, first_tile + TILES_PER_ROUND);
        }
    }
    nonfinite_flags = __reduce_or_sync(FULL_MASK, nonfinite_flags);
    if (lane == 0) {
        storage.nonfinite_flags[warp] = nonfinite_flags;
    }
    // RAW on storage: all warps wrote the reductions, sums and flags of their tiles, warp 0 reads them.
    __syncthreads();
    if (warp != 0) {
        return;
    }
    // All records of the block take the flags of all of its tiles: any warp may have edited a tile, and later stages
    // need only the flags of the row.
    nonfinite_flags = __reduce_or_sync(FULL_MASK, lane < WARPS ? storage.nonfinite_flags[lane] : 0);
    if (lane < TILES && lane_tile < step.tiles) {
        const TileReduction& reduction = storage.reductions[lane];
        TileRecord record =
            make_record<F32>(reduction, edited_tiles.lane_mask(lane, reduction.leader_lane), nonfinite_flags);
        sampler.complete(record, place.first_tile + lane_tile);
        store_record(step, row_index, lane_tile, record, sum_params, lane, storage);
    }
}
