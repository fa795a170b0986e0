// survey_grid.cuh: maps a survey's blocks to rows and tiles.
#pragma once

#include "abi/step.cuh"
#include "math/num.cuh"

// A block's coordinates in a survey's grid.
struct BlockCoord {
    u32 row;
    u32 block_in_row;
};

// The inverse is rounded down, so the product may be one row too low; `next` corrects that.
DEVICE BlockCoord block_coord(const Step& step, u32 block) {
    u32 row = mul_hi_u32(block, step.blocks_per_row_inverse), block_in_row = block - row * step.blocks_per_row;
    bool next = block_in_row >= step.blocks_per_row;
    return BlockCoord{row + next, block_in_row - (next ? step.blocks_per_row : 0)};
}
