// survey.cu: read each row, under its edits, once; learn what every later stage asks of it.
//
// Computes   for each tile of 256 tokens its maximum and the token that has it, when that token and the first of all arrive in the
//            race; a bound of its other tokens; the sums of its weights, if asked for; which odd values the row holds
// Never      reads a row twice; never writes logits; never reads beyond the vocabulary
// Twins      oracle spec/src/survey.rs | CPU cpu/src/survey.rs | why docs/stages/survey.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records, sums, told [rows, tiles]
// Grid       x = (row, block of warps); WARPS warps a block, each GROUPS times TILES tiles; no dynamic shared memory
// Traffic    vocab * sizeof(T) per row in, 16 bytes per tile out, 8 and 16 more with sums; a row out where one is filled; edits: edited_tiles.cuh
// Requires   1 <= vocab <= 2^20; 16-byte alignment only for speed; padding rows are not read, or in vain
//
// A warp finds a tile's maximum by one reduction; the lane that has it leaves its share on chip. Then the first warp works
// the tiles of the block out, one a lane, and draws their arrivals: else each warp would, with most lanes idle.

#include "block/prefill.cuh"
#include "stage/survey.cuh"

// Loads a warp's neighbouring tiles; returns whether lanes' shares lie as in wide tiles.
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

template <class T, u32 TILES, u32 GROUPS, u32 UNROLL, bool EARLY, bool SUMS>
DEVICE void survey(const Step& step) {
    constexpr u32 WARPS = 8, PER_WARP = TILES * GROUPS, PER_BLOCK = WARPS * PER_WARP;
    static_assert(PER_BLOCK <= 32, "the first warp has a lane for each tile");
    __shared__ SharedStorage<WARPS, PER_BLOCK> storage;
    // Whether tiles are loaded before it is known what slot their row has, of padding in vain: where rows are few, or all have one.
    const bool early = EARLY || step.flags & STEP_SLOT_IS_ROW;
    if (!early || step.row_indices != nullptr) {
        wait_for_requests();
    }
    const BlockCoord coord = begin_block<SUMS>(step);
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

    // While the loads fly.
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
    // Without it the first warp would read of tiles that others have not seen yet.
    __syncthreads();
    if (warp == 0 && lane < PER_BLOCK && lane_tile < step.tiles) {
        // Whether its warp had it so: with its neighbours. Odd values of any of them stand in all their records: only the row's
        // are asked for.
        bool was_vectorized = lane_tile - lane_tile % TILES + TILES <= vectorized_tiles;
        TileRecord record = make_record<T>(storage.reductions[lane], AllMask(), was_vectorized,
                                           storage.nonfinite_flags[lane / PER_WARP]);
        sampler.complete(record, lane_tile);
        store_record(step, row_index, lane_tile, record, sum_params, lane, storage);
    }
    if (step.prefill_out != nullptr) {
        // The other warps begin while the first works the tiles out.
        prefill_tiles(step, PER_BLOCK);
    }
}

#if !GUMBALL_PROBABILITIES
#define SHARED_ROWS_THREADS 256

// Gives rows that share lines their records from those of the lines, a tile a thread: only the arrivals are a row's own.
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

// Kernels for rows without edits and with them, and for rows that ask for no sums and for any. Where rows are few, a warp
// takes one tile, so that all of them load at once; else several, and under edits twice as many where not all blocks are there at
// once. As many blocks a multiprocessor as registers allow; more code
// for each tile than that, and instructions come late.
#define SURVEY(name, T, SUMS) \
    KERNEL_MIN_BLOCKS(name##_few, 256, 5, Step, step) { survey<T, 1, 1, 1, true, SUMS>(step); } \
    KERNEL_MIN_BLOCKS(name##_many, 256, 6, Step, step) { survey<T, 2, 2, 2, false, SUMS>(step); }

#define SURVEYS(type, T) \
    SURVEY(survey_##type, T, false) \
    SURVEY(survey_sums_##type, T, true)

SURVEYS(f32, F32)
SURVEYS(bf16, Bf16)
SURVEYS(f16, F16)
