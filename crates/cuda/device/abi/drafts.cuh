// drafts.cuh: the argument of the kernels of drafts.cu, and what these kernels and the host must agree on.
//
// Requires   pointers are aligned to their types
//
// Generated from src/abi/drafts.rs. This file is a copy for readers: no compiler reads it.
#pragma once

#include "abi/step.cuh"

// The most drafts of a request.
#define MAX_DRAFTS 64

// The most threads of a block of begin_drafts, which copies lists, and the threads of a block of end_drafts.
#define BEGIN_DRAFTS_THREADS 512
#define END_DRAFTS_THREADS 128

// In `DraftStep::path`: a row that no token was emitted for.
#define NO_ROW 0xFFFFFFFFu

// A request of a step of drafts. The host writes it when it assigns the request to rows.
struct alignas(16) DraftRequest {
    // The request's stop ids.
    const u32* stop_ids;
    u32 stop_count;
    // The request's first row, which stands at the end of its history, and how many drafts have a row behind it.
    u32 first_row;
    u32 draft_count;
    u32 reserved[3];
};

// A row of a step of drafts. The host writes it together with the row's `DraftRequest`.
struct alignas(16) DraftRow {
    // Memory for what the row has of its own of those lists of its request that the tokens on its path change: see
    // `share_entries` and `copy_lists` in drafts.cu. Null if there are none.
    TokenEntry* lists;
    // The index of the row's request.
    u32 request;
    u32 reserved;
};

// Bits of `DraftStep::flags`.
enum DraftFlags : u32 {
    // Elements have 64 bits instead of 32.
    DRAFTS_IDS_I64 = 1 << 0,
    DRAFTS_PARENTS_I64 = 1 << 1,
};

// The argument of begin_drafts and end_drafts.
struct DraftStep {
    // The step over the rows: begin_drafts makes what its `slots`, `params`, `requests` and `states` point to, which
    // are indexed by row. Its rows do not advance their requests.
    Step step;
    // The drafts of all requests, one request after the other.
    const void* ids;
    // The parent of each draft, counted within its request. Null: each draft follows the one before it.
    const void* parents;
    // `[requests]`
    const DraftRequest* requests;
    // `[requests]`: the slot of each; -1 is padding.
    const int* slots;
    // `[requests]`: parameters at temperature 0, without seed and draw index. Null: rows take those of the slots.
    const Params* greedy_params;
    // `[rows]`
    const DraftRow* rows;
    // Indexed by slot.
    const Params* slot_params;
    const Request* slot_requests;
    State* slot_states;
    // `[rows]`: those that `step` reads.
    int* row_slots;
    Params* row_params;
    Request* row_requests;
    State* row_states;
    // `[rows]`: the rows that a request's emitted tokens come from, at its first rows; `NO_ROW` at the others.
    u32* path;
    // `[requests]`: how many drafts were accepted.
    u32* accepted;
    u32 flags;
    u32 reserved;
};

// The layout of the structs on the host, in bytes.
static_assert(sizeof(DraftRequest) == 32 && alignof(DraftRequest) == 16);
static_assert(OFFSET_OF(DraftRequest, stop_ids) == 0);
static_assert(OFFSET_OF(DraftRequest, stop_count) == 8);
static_assert(OFFSET_OF(DraftRequest, first_row) == 12);
static_assert(OFFSET_OF(DraftRequest, draft_count) == 16);
static_assert(OFFSET_OF(DraftRequest, reserved) == 20);
static_assert(sizeof(DraftRow) == 16 && alignof(DraftRow) == 16);
static_assert(OFFSET_OF(DraftRow, lists) == 0);
static_assert(OFFSET_OF(DraftRow, request) == 8);
static_assert(OFFSET_OF(DraftRow, reserved) == 12);
static_assert(sizeof(DraftStep) == 368 && alignof(DraftStep) == 8);
static_assert(OFFSET_OF(DraftStep, step) == 0);
static_assert(OFFSET_OF(DraftStep, ids) == 240);
static_assert(OFFSET_OF(DraftStep, parents) == 248);
static_assert(OFFSET_OF(DraftStep, requests) == 256);
static_assert(OFFSET_OF(DraftStep, slots) == 264);
static_assert(OFFSET_OF(DraftStep, greedy_params) == 272);
static_assert(OFFSET_OF(DraftStep, rows) == 280);
static_assert(OFFSET_OF(DraftStep, slot_params) == 288);
static_assert(OFFSET_OF(DraftStep, slot_requests) == 296);
static_assert(OFFSET_OF(DraftStep, slot_states) == 304);
static_assert(OFFSET_OF(DraftStep, row_slots) == 312);
static_assert(OFFSET_OF(DraftStep, row_params) == 320);
static_assert(OFFSET_OF(DraftStep, row_requests) == 328);
static_assert(OFFSET_OF(DraftStep, row_states) == 336);
static_assert(OFFSET_OF(DraftStep, path) == 344);
static_assert(OFFSET_OF(DraftStep, accepted) == 352);
static_assert(OFFSET_OF(DraftStep, flags) == 360);
static_assert(OFFSET_OF(DraftStep, reserved) == 364);
