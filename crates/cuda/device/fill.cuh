// fill.cuh: rows filled with nothing while others like them are read, so that later only what is kept of those is written.
//
// Computes   0, or -inf of logits, for each token
// Never      writes beyond a row; never writes where a row lies that is read
// Twins      src/operators/write.rs
// Requires   all threads of the block
#pragma once

#include "row.cuh"

// Fills the place of the tiles of a survey's block, which has so many. Apart, and where the block stands found anew: where nothing is
// filled that shall take no registers.
DEVICE_APART void fill_tiles(const Step& step, u32 tiles) {
    const Standing where = standing_of(step, blockIdx.x);
    u32 row = where.row, start = where.part * tiles * TILE, end = start + tiles * TILE;
    end = end < step.vocab ? end : step.vocab;
    if (start >= end) {
        return;
    }
    char* to = (char*)step.filled + row * step.filled_stride + (u64)start * step.filled_bytes;
    u32 word = step.filled_word, bytes = (end - start) * step.filled_bytes, whole = 0;
    if (((u64)to & 15) == 0) {
        whole = bytes / sizeof(Quad);
#pragma unroll 4
        for (u32 i = threadIdx.x; i < whole; i += blockDim.x) {
            store_once((Quad*)to + i, word);
        }
    }
    // What is left, by elements.
    if (step.filled_bytes == sizeof(u32)) {
#pragma unroll 1
        for (u32 i = whole * 4 + threadIdx.x; i < bytes / 4; i += blockDim.x) {
            ((u32*)to)[i] = word;
        }
    } else {
#pragma unroll 1
        for (u32 i = whole * 8 + threadIdx.x; i < bytes / 2; i += blockDim.x) {
            ((unsigned short*)to)[i] = (unsigned short)word;
        }
    }
}
