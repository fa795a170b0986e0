// kernels.cpp: every kernel in one library for the host.
#include "cuda.hpp"

#include "survey.cu"

#include "draw.cu"

#include "numbers.cu"

#include <cstddef>

// Runs a kernel of this library over a grid.
extern "C" void gumball_run(void (*kernel)(const void*), const void* argument, u32 blocks, u32 threads) {
    emulator::run_grid(kernel, argument, blocks, threads);
}

// Sizes and offsets of what crosses between host and kernels, as src/abi.rs has them.
extern "C" u64 gumball_layout(u64* out, u64 room) {
    const u64 layout[] = {
        sizeof(Params), offsetof(Params, seed), offsetof(Params, draw), offsetof(Params, asks),
        offsetof(Params, temperature), offsetof(Params, effective_temperature), offsetof(Params, s),
        offsetof(Params, filter_s), offsetof(Params, min_p_threshold),
        sizeof(State), offsetof(State, position), offsetof(State, mu),
        sizeof(Record), offsetof(Record, maximum), offsetof(Record, log_first), offsetof(Record, log_top),
        offsetof(Record, places),
        sizeof(Step), offsetof(Step, logits), offsetof(Step, stride), offsetof(Step, rows), offsetof(Step, vocab),
        offsetof(Step, tiles), offsetof(Step, blocks_per_row), offsetof(Step, slots), offsetof(Step, forced),
        offsetof(Step, params), offsetof(Step, states), offsetof(Step, records), offsetof(Step, odd),
        offsetof(Step, outputs),
    };
    u64 count = sizeof(layout) / sizeof(layout[0]);
    for (u64 i = 0; i < count && i < room; i++) {
        out[i] = layout[i];
    }
    return count;
}
