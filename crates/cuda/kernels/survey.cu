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

#include "stage/survey_rows.cuh"

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
        survey<T, SURVEY_FEW_TILES, 1, 1, true, SUMS>(step, WholeRows()); \
    } \
    KERNEL_MIN_BLOCKS(name##_many, 32 * SURVEY_BLOCK_WARPS, 6, Step, step) { \
        survey<T, SURVEY_MANY_TILES / 2, 2, 2, false, SUMS>(step, WholeRows()); \
    }

#define SURVEYS(type, T) \
    SURVEY(survey_##type, T, false) \
    SURVEY(survey_sums_##type, T, true)

FOR_EACH_TYPE(SURVEYS)
