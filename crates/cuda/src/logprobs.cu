// logprobs.cu: how likely the token, its rivals and given ids were (rules L1 to L3); device functions of a block.
//
// Computes   the sections of logprobs and ranks of a row
// Twins      oracle spec/src/logprobs.rs | CPU cpu/src/logprobs.rs | why docs/stages/logprobs.md
#pragma once

#include "cut.cuh"
#include "view.cuh"
#include "warp.cuh"

// Where the sections with several words a row begin, as Layout has them.
struct Sections {
    u32* top_ids;
    u32* top_logprobs;
    u32* id_logprobs;
    u32* id_ranks;

    DEVICE_MEMBER Sections(const Step& step, u32 row) {
        u64 rows = step.rows, top = step.top_n_width, ids = step.ids_width;
        top_ids = step.outputs + 6 * rows + row * top;
        top_logprobs = step.outputs + 6 * rows + rows * top + row * top;
        id_logprobs = step.outputs + 6 * rows + 2 * rows * top + row * ids;
        id_ranks = step.outputs + 6 * rows + 2 * rows * top + rows * ids + row * ids;
    }
};

// Writes what stands where a row has no logprobs.
DEVICE void write_no_logprobs(const Step& step, u32 row) {
    Sections sections(step, row);
    if (threadIdx.x == 0) {
        step.outputs[2ull * step.rows + row] = float_bits(-INFINITE);
        step.outputs[3ull * step.rows + row] = 0;
    }
    for (u32 i = threadIdx.x; i < step.top_n_width; i += blockDim.x) {
        sections.top_ids[i] = (u32)NONE;
        sections.top_logprobs[i] = float_bits(-INFINITE);
    }
    for (u32 i = threadIdx.x; i < step.ids_width; i += blockDim.x) {
        sections.id_logprobs[i] = float_bits(-INFINITE);
        sections.id_ranks[i] = 0;
    }
}
