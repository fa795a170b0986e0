// chosen.cuh: what a step says of a row, logprobs and the kept set aside.
//
// Requires   outputs: sections as Layout has them
#pragma once

#include "entries.cuh"

// What a row came to.
struct Chosen {
    int token;
    u32 status;
    float temperature;
    float mu;
};

DEVICE void write(const Step& step, u32 row, const Chosen& chosen) {
    u32* out = step.outputs + row;
    out[0] = (u32)chosen.token;
    out[(u64)1 * step.rows] = chosen.status;
    out[(u64)4 * step.rows] = float_bits(chosen.temperature);
    out[(u64)5 * step.rows] = float_bits(chosen.mu);
    if (step.tokens != nullptr) {
        int token = chosen.token < 0 && step.flags & STEP_ZERO_TOKENS ? 0 : chosen.token;
        if (step.flags & STEP_WIDE_TOKENS) {
            ((i64*)step.tokens)[row] = token;
        } else {
            ((int*)step.tokens)[row] = token;
        }
    }
    if (step.statuses != nullptr) {
        step.statuses[row] = chosen.status;
    }
}

// A row's request on chip: else moving it on would wait for it.
DEVICE Request& block_request() {
    __shared__ Request request;
    return request;
}

// Fetches it, if it has a history or edits; a barrier must follow before it is read.
DEVICE void fetch_request(const Step& step, int slot, u32 asks) {
    const u32 words = sizeof(Request) / 4;
    if (asks & (ASKS_EDITS | ASKS_COUNTS | ASKS_SEARCH | ASKS_HISTORY) && threadIdx.x < words) {
        ((u32*)&block_request())[threadIdx.x] = ((const u32*)(step.requests + slot))[threadIdx.x];
    }
}

// Writes what a row came to, and moves its request on; by one thread.
DEVICE void end_row(const Step& step, u32 row, int slot, u32 asks, const State& state, const Chosen& chosen) {
    if (chosen.token != NONE && !(step.flags & STEP_SCORES)) {
        advance(step, block_request(), slot, asks, state, (u32)chosen.token);
    }
    write(step, row, chosen);
}
