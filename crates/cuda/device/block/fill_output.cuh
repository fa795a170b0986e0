// fill_output.cuh: the survey pre-fills output rows, so that a later kernel writes only the kept tokens.
//
// Computes   for each token 0, or -inf if the output holds logits
// Never      writes beyond a row; never writes to a row that the survey reads
// Twins      src/operators/write.rs
// Requires   all threads of the block
#pragma once

#include "block/survey_grid.cuh"

// Fills the output of the `tiles` tiles of a survey's block. It is a call of its own and computes the block's
// coordinates again, so that a survey that pre-fills nothing spends no registers on it.
DEVICE_NOINLINE void prefill_tiles(const Step& step, u32 tiles) {
    const BlockCoord coord = block_coord(step, blockIdx.x);
    u32 row = coord.row, start = coord.block_in_row * tiles * TILE, end = start + tiles * TILE;
    end = end < step.vocab ? end : step.vocab;
    if (start >= end) {
        return;
    }
    char* to = (char*)step.prefill_out + row * step.prefill_stride_bytes + (u64)start * step.prefill_element_bytes;
    u32 word = step.prefill_word, bytes = (end - start) * step.prefill_element_bytes, quads = 0;
    if (((u64)to & 15) == 0) {
        quads = bytes / sizeof(U32x4);
#pragma unroll 4
        for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
            store_streaming((U32x4*)to + i, word);
        }
    }
    // The elements after the last whole 16 bytes, or all elements if the output is not 16-byte aligned.
    if (step.prefill_element_bytes == sizeof(u32)) {
#pragma unroll 1
        for (u32 i = quads * 4 + threadIdx.x; i < bytes / 4; i += blockDim.x) {
            ((u32*)to)[i] = word;
        }
    } else {
#pragma unroll 1
        for (u32 i = quads * 8 + threadIdx.x; i < bytes / 2; i += blockDim.x) {
            ((unsigned short*)to)[i] = (unsigned short)word;
        }
    }
}
