// prefill.cuh: rows filled with nothing while others like them are read, so that later only what is kept of those is written.
//
// Computes   0, or -inf of logits, for each token
// Never      writes beyond a row; never writes where a row lies that is read
// Twins      src/operators/write.rs
// Requires   all threads of the block
#pragma once

#include "block/survey_grid.cuh"

// Fills the place of the tiles of a survey's block, which has so many. Apart, and where the block stands found anew: where nothing is
// filled that shall take no registers.
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
    // What is left, by elements.
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
