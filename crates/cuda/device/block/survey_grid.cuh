// survey_grid.cuh: maps a survey's blocks to rows and tiles, and lets them wait for the kernel that writes requests.
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

// Clears the count of rows that retired from work sharing in the previous step. The survey does it, as it runs between
// the finish kernels of two steps.
DEVICE void reset_retired_rows(const Step& step) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        step.work_sharing[RETIRED_ROWS] = 0;
    }
}

// Waits for the previous kernel on the stream, which may be the one that writes the requests of an operator's rows.
// Only then it lets the finish kernel launch, because that kernel reads the requests too.
DEVICE void wait_for_requests() {
    grid_dependency_wait();
    trigger_dependents();
}

// Returns the slot whose request the survey of a row reads; -1 for padding. With STEP_SLOT_IS_ROW padding has a request
// as well, and is surveyed although nobody reads its records.
DEVICE int survey_slot(const Step& step, u32 row) { return step.flags & STEP_SLOT_IS_ROW ? (int)row : step.slots[row]; }
