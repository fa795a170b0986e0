// survey_edited.cu: reads each row once, under its edits, and reduces every tile of 256 tokens to one record.
//
// Computes   what survey.cu computes, for rows with masks and edits; the tiles of a round are in shared memory while
//            threads edit them
// Never      reads a logit from global memory twice, reads past the vocabulary, or writes logits
// Twins      oracle spec/src/survey.rs | CPU cpu/src/survey.rs | why docs/stages/survey.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records, filter_sums, logprob_sums [rows, tiles]
// Grid       x = (row, block of the row); WARPS warps, of ROUNDS times TILES_PER_WARP tiles each; no dynamic shared
//            memory
// Traffic    in: vocab * sizeof(T) bytes per row, and edits as in edited_tiles.cuh; out: 16 bytes per tile, 8 more for
//            a filter sum, 16 more for a logprob sum
// Requires   1 <= vocab <= 2^20; 16-byte alignment affects speed only; the logits of padding rows are readable; the
//            kernel `history_edits` before, if a request has edits that depend on its history

#include "stage/survey_edited_rows.cuh"

// With few rows a warp takes one tile, so that all tiles load at once. With more it takes four per round, in one round
// while all blocks fit on the device at once, otherwise in two rounds.
#define SURVEY_EDITED(name, T, SUMS) \
    KERNEL_MIN_BLOCKS(name##_few, 32 * EDITED_FEW_WARPS, 5, Step, step) { \
        survey_edited<T, EDITED_FEW_WARPS, EDITED_FEW_TILES, 1, true, SUMS>(step, WholeRows()); \
    } \
    KERNEL_MIN_BLOCKS(name##_medium, 32 * EDITED_MEDIUM_WARPS, 10, Step, step) { \
        survey_edited<T, EDITED_MEDIUM_WARPS, EDITED_MEDIUM_TILES, 1, false, SUMS>(step, WholeRows()); \
    } \
    KERNEL_MIN_BLOCKS(name##_many, 32 * EDITED_MANY_WARPS, 10, Step, step) { \
        survey_edited<T, EDITED_MANY_WARPS, EDITED_MANY_TILES / 2, 2, false, SUMS>(step, WholeRows()); \
    }

#define SURVEYS_EDITED(type, T) \
    SURVEY_EDITED(survey_edited_##type, T, false) \
    SURVEY_EDITED(survey_edited_sums_##type, T, true)

FOR_EACH_TYPE(SURVEYS_EDITED)
