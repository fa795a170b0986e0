// survey_grid.cuh: which row and tiles a block of a survey takes, and what it waits for before it reads them.
#pragma once

#include "abi/step.cuh"
#include "math/num.cuh"

// Where in a survey's grid a block stands.
struct BlockCoord {
    u32 row;
    // Which of the row's blocks it is.
    u32 block_in_row;
};

DEVICE BlockCoord block_coord(const Step& step, u32 block) {
    u32 row = mul_hi_u32(block, step.blocks_per_row_inverse), block_in_row = block - row * step.blocks_per_row;
    bool next = block_in_row >= step.blocks_per_row;
    return BlockCoord{row + next, block_in_row - (next ? step.blocks_per_row : 0)};
}

// Forgets how many rows needed no help in the step before; by the survey, which stands between two ends.
DEVICE void reset_retired_rows(const Step& step) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        step.work_sharing[RETIRED_ROWS] = 0;
    }
}

// Waits for what makes the requests of an operator's rows, if that is what came before on the stream, and lets the end of the rows
// begin, which reads them too.
DEVICE void wait_for_requests() {
    grid_dependency_wait();
    trigger_dependents();
}

// The slot of a row for its survey: -1 of padding, unless that is as well surveyed in vain.
DEVICE int survey_slot(const Step& step, u32 row) { return step.flags & STEP_SLOT_IS_ROW ? (int)row : step.slots[row]; }
