// survey.cu: reads each row without edits once and reduces every tile of 256 tokens to one record.
//
// Computes   per tile: the maximum logit and its token; an upper bound of the other logits; log2 of the tile's first
//            arrival and of that token's arrival; non-finite flags; the sums of weights that the row needs
// Never      reads a logit from global memory twice, reads past the vocabulary, or writes logits
// Twins      oracle spec/src/survey.rs | CPU cpu/src/survey.rs | why docs/stages/survey.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records, filter_sums, logprob_sums [rows, tiles]
// Grid       x = (row, block of the row); 8 warps, of GROUPS times TILES tiles each; no dynamic shared memory
// Traffic    in: vocab * sizeof(T) bytes per row; out: 16 bytes per tile, 8 more for a filter sum, 16 more for a
//            logprob sum; pre-filled rows
// Requires   1 <= vocab <= 2^20; 16-byte alignment affects speed only; the logits of padding rows are readable
//
// Each warp reduces its tiles to their maxima; after one barrier, warp 0 completes the block's records, one tile per
// lane. Philox and two logarithms take as long for 1 lane as for 32; if every warp drew, most lanes would idle.

#include "block/fill_output.cuh"
#include "block/survey_requests.cuh"
#include "stage/survey.cuh"

// Loads a warp's TILES neighbouring tiles. Returns whether the tiles are vectorized, which decides the ids that each
// lane has.
template <class T, u32 TILES>
DEVICE bool load_tiles(const LogitsRow<T>& row, u32 vectorized_tiles, u32 first_tile,
                       float (&z)[TILES][ITEMS_PER_LANE]) {
    u32 lane = lane_id();
    bool vectorized = first_tile + TILES <= vectorized_tiles;
    if (vectorized) {
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            load_vectorized_streaming<T>(row.logits + (first_tile + i) * TILE, lane, z[i]);
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            u32 start = (first_tile + i) * TILE + lane;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                z[i][j] = start + j * 32 < row.vocab ? T::convert(row.logits[start + j * 32]) : MASKED_VALUE;
            }
        }
    }
    return vectorized;
}

// The body of a kernel. A warp takes GROUPS groups of TILES tiles and loads the tiles of a group together.
//
//     load the first group; meanwhile read parameters, and in warp 0 draw the first arrival of each tile
//     for each group: reduce its tiles to shared memory, with the sums of weights if SUMS; load the next group
//     barrier; warp 0 completes the records, one tile per lane; the other warps begin to pre-fill output rows
template <class T, u32 TILES, u32 GROUPS, u32 UNROLL, bool EARLY, bool SUMS>
DEVICE void survey(const Step& step) {
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
    if (slot < 0) {
        return;
    }
    LogitsRow<T> row(step, row_index);
    u32 vectorized_tiles = row.vectorized ? step.vocab / TILE : 0, nonfinite_flags = 0;
    float z[TILES][ITEMS_PER_LANE];
    bool vectorized = load_tiles<T, TILES>(row, vectorized_tiles, warp_tile, z);
    if (early) {
        if (EARLY) {
            warm_constant_bank(step);
        }
        wait_for_requests();
        slot = EARLY ? survey_slot(step, row_index) : slot;
        if (slot < 0) {
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
        sampler = ArrivalSampler(params, step.states[slot], lane_tile);
    }

#pragma unroll UNROLL
    for (u32 group = 0; group < GROUPS; group++) {
        if (group > 0) {
            vectorized = load_tiles<T, TILES>(row, vectorized_tiles, warp_tile + group * TILES, z);
        }
        const u32 first_tile_in_block = warp * PER_WARP + group * TILES;
        constexpr u32 TILES_TOGETHER = SUM_TILES_TOGETHER ? TILES : 1;
#pragma unroll
        for (u32 start = 0; start < TILES; start += TILES_TOGETHER) {
            int maxima[TILES_TOGETHER];
#pragma unroll
            for (u32 i = 0; i < TILES_TOGETHER; i++) {
                maxima[i] = reduce_tile<T>(z[start + i], AllMask(), vectorized,
                                           storage.reductions[first_tile_in_block + start + i], nonfinite_flags);
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
        // Whether the tile's warp loaded it as vectorized: it does if all TILES neighbours are whole. All records of a
        // warp's tiles take the flags of all of these tiles: later stages need only those of the row.
        bool was_vectorized = lane_tile - lane_tile % TILES + TILES <= vectorized_tiles;
        TileRecord record = make_record<T>(storage.reductions[lane], AllMask(), was_vectorized,
                                           storage.nonfinite_flags[lane / PER_WARP]);
        sampler.complete(record, lane_tile);
        store_record(step, row_index, lane_tile, record, sum_params, lane, storage);
    }
    if (step.prefill_out != nullptr) {
        // The other warps begin while warp 0 completes the records.
        prefill_tiles(step, PER_BLOCK);
    }
}

#if !GUMBALL_PROBABILITIES
// Copies records to the rows that share a row of logits, one tile per thread, and draws each row's own arrivals. The
// survey made these records once for each shared row of logits.
KERNEL(records_from_shared_rows, SHARED_ROWS_THREADS, Step, step) {
    trigger_dependents();
    const BlockCoord coord = block_coord(step, blockIdx.x);
    u32 row = coord.row, tile = coord.block_in_row * SHARED_ROWS_THREADS + threadIdx.x;
    int slot = step.slots[row];
    if (slot < 0 || tile >= step.tiles) {
        return;
    }
    const Params& params = step.params[slot];
    u64 from = (u64)step.row_indices[row] * step.tiles + tile, to = (u64)row * step.tiles + tile;
    TileRecord record = step.shared_records[from];
    ArrivalSampler(params, step.states[slot], tile).complete(record, tile);
    step.records[to] = record;
    if (step.shared_filter_sums != nullptr && params.features & FEATURE_FILTER_SUMS) {
        step.filter_sums[to] = step.shared_filter_sums[from];
    }
}
#endif

// Kernels for rows that need no sums, and for rows that may. With few rows a warp takes one tile, so that all tiles
// load at once; with many rows it takes four, two at a time. A multiprocessor has as many blocks as registers allow.
// More code per tile would make warps wait for instructions.
#define SURVEY(name, T, SUMS) \
    KERNEL_MIN_BLOCKS(name##_few, 32 * SURVEY_BLOCK_WARPS, 5, Step, step) { \
        survey<T, SURVEY_FEW_TILES, 1, 1, true, SUMS>(step); \
    } \
    KERNEL_MIN_BLOCKS(name##_many, 32 * SURVEY_BLOCK_WARPS, 6, Step, step) { \
        survey<T, SURVEY_MANY_TILES / 2, 2, 2, false, SUMS>(step); \
    }

#define SURVEYS(type, T) \
    SURVEY(survey_##type, T, false) \
    SURVEY(survey_sums_##type, T, true)

SURVEYS(f32, F32)
SURVEYS(bf16, Bf16)
SURVEYS(f16, F16)
