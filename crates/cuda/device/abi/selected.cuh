// selected.cuh: the argument of the kernels of selected_logprobs.cu, and what these kernels and the host must agree on.
//
// Requires   pointers are aligned to their types
//
// Generated from src/abi/selected.rs. This file is a copy for readers: no compiler reads it.
#pragma once

#include "abi/step.cuh"

// The threads of a block of select_tokens and of write_selected: one thread per row.
#define SELECTED_THREADS 128

// The status of a row whose token is no id of the vocabulary.
#define STATUS_NO_ID 16

// Bits of `SelectedTokens::flags`.
enum SelectedFlags : u32 {
    // Tokens have 64 bits instead of 32.
    SELECTED_TOKENS_I64 = 1 << 0,
    // There is one token for all rows.
    SELECTED_ONE_TOKEN = 1 << 1,
};

// The argument of select_tokens and write_selected: a token for each of `rows` rows.
struct alignas(16) SelectedTokens {
    // The parameters of every row's request.
    Params base;
    // `[rows]` or one.
    const void* tokens;
    // `[rows]`: the requests that select_tokens writes and the step reads.
    Params* params;
    State* states;
    int* slots;
    int* forced;
    // The outputs of the step over these rows.
    const u32* outputs;
    // `[rows]` each; ranks and statuses may be null, and are not written then.
    float* logprobs;
    u32* ranks;
    u32* statuses;
    u32 rows;
    u32 vocab;
    u32 flags;
    u32 reserved[3];
};

// The layout of the structs on the host, in bytes.
static_assert(sizeof(SelectedTokens) == 272 && alignof(SelectedTokens) == 16);
static_assert(OFFSET_OF(SelectedTokens, base) == 0);
static_assert(OFFSET_OF(SelectedTokens, tokens) == 176);
static_assert(OFFSET_OF(SelectedTokens, params) == 184);
static_assert(OFFSET_OF(SelectedTokens, states) == 192);
static_assert(OFFSET_OF(SelectedTokens, slots) == 200);
static_assert(OFFSET_OF(SelectedTokens, forced) == 208);
static_assert(OFFSET_OF(SelectedTokens, outputs) == 216);
static_assert(OFFSET_OF(SelectedTokens, logprobs) == 224);
static_assert(OFFSET_OF(SelectedTokens, ranks) == 232);
static_assert(OFFSET_OF(SelectedTokens, statuses) == 240);
static_assert(OFFSET_OF(SelectedTokens, rows) == 248);
static_assert(OFFSET_OF(SelectedTokens, vocab) == 252);
static_assert(OFFSET_OF(SelectedTokens, flags) == 256);
static_assert(OFFSET_OF(SelectedTokens, reserved) == 260);
