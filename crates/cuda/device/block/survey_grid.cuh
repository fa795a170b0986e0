// survey_grid.cuh: maps a survey's blocks to rows and tiles, and says where these lie in their vocabulary.
#pragma once

#include "abi/step.cuh"
#include "math/num.cuh"

// Where the rows of a survey lie in their vocabulary: all of it is here. All rows are surveyed.
struct WholeRows {
    static constexpr u32 first_tile = 0, skipped = 0;

    // Whether a tile begins with ids that are not here.
    DEVICE_MEMBER bool cuts(u32) const { return false; }
    DEVICE_MEMBER bool surveys(const Step&, u32, int) const { return true; }
};

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
