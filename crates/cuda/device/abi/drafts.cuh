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

// The threads of a block of parents_of_links: at least one for each row of a request.
#define PARENTS_OF_LINKS_THREADS 96

// The most threads of a block of draft_race.
#define DRAFT_RACE_THREADS 512

// The threads of a block of shorten_requests.
#define SHORTEN_THREADS 128

// The threads of a block of copy_drafts.
#define COPY_DRAFTS_THREADS 128

// The threads of a block of edit_rows.
#define EDIT_ROWS_THREADS 256

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
    // Where the request's drafts begin among those of the batch, and its rows among links and the drafter's rows: the batch may
    // have its requests in another order than the assignment.
    u32 first_draft;
    u32 batch_row;
    u32 reserved;
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
    // Drafts are judged by probabilities: rows that judge_requests made padding are not on the walk.
    DRAFTS_JUDGED = 1 << 2,
    // They are judged as a block: they must be chains, and rows behind stop ids are read as well.
    DRAFTS_BLOCK = 1 << 3,
    // Rows are those of a draft model, and drafts are drawn from them: each row has a request of its own and stands behind all
    // of that one's drafts, of which the row r finds its own from element `r * path_stride` on.
    DRAFTS_PROPOSED = 1 << 4,
};

// Bits of `DraftLinks::flags`.
enum LinkFlags : u32 {
    // Elements have 64 bits instead of 32.
    LINKS_FIRST_CHILD_I64 = 1 << 0,
    LINKS_NEXT_SIBLING_I64 = 1 << 1,
};

// Bits of `ShortenRequests::flags`.
enum ShortenFlags : u32 {
    // Counts have 64 bits instead of 32.
    SHORTEN_COUNTS_I64 = 1 << 0,
};

// The argument of shorten_requests.
struct ShortenRequests {
    // `[requests]`: the slot of each; -1 is padding.
    const int* slots;
    // `[requests]`: how many output tokens to take away.
    const void* counts;
    // Indexed by slot.
    const Params* slot_params;
    const Request* slot_requests;
    State* slot_states;
    // `[requests]`: how many were taken away.
    u32* taken;
    u32 flags;
    u32 reserved;
};

// Bits of `DraftCopy::flags`.
enum CopyFlags : u32 {
    // The ids that are written have 64 bits instead of 32.
    COPY_IDS_I64 = 1 << 0,
};

// The argument of copy_drafts.
struct DraftCopy {
    // `[rows, siblings]`
    const int* drafts;
    // The first id to write of the first row; rows are `stride` ids apart.
    void* to;
    u64 stride;
    u32 rows;
    u32 siblings;
    u32 flags;
    u32 reserved;
};

// The argument of parents_of_links.
struct DraftLinks {
    // `[rows]`: the row of its request that is the first child of a row, and the next sibling; -1 for none.
    const void* first_child;
    const void* next_sibling;
    // `[requests]`: those whose links are read.
    const DraftRequest* requests;
    // The parent of each draft, as in `DraftStep::parents`; -2 for all drafts of a request whose links are no tree.
    int* parents;
    u32 flags;
    u32 reserved;
};

// The argument of begin_drafts and end_drafts.
struct DraftStep {
    // The step over the rows: begin_drafts makes what its `slots`, `params`, `requests` and `states` point to, which
    // are indexed by row. Its rows do not advance their requests. It may be over a part of the assigned rows, whole requests of
    // them: then it numbers its rows, and its requests in `accepted`, from 0.
    Step step;
    // The drafts of all requests, one request after the other.
    const void* ids;
    // The parent of each draft, counted within its request. Null: each draft follows the one before it.
    const void* parents;
    // `[assigned requests]`
    const DraftRequest* requests;
    // `[assigned requests]`: the slot of each; -1 is padding.
    const int* slots;
    // `[assigned requests]`: parameters at temperature 0, without seed and draw index. Null: rows take those of the slots.
    const Params* greedy_params;
    // `[assigned rows]`
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
    // `[rows]`: the row itself where drafts are judged by its probabilities, else -1. Null if none are judged so.
    int* judged_slots;
    // `[rows]`: the rows that a request's emitted tokens come from, at its first rows; `NO_ROW` at the others.
    u32* path;
    // `[requests]`: how many drafts were accepted.
    u32* accepted;
    u32 flags;
    // Elements from the path of a row to that of the next, with `PROPOSED`.
    u32 path_stride;
    // The first of the assigned rows, and of the assigned requests, that the step is over.
    u32 first_row;
    u32 first_request;
};

// The argument of draft_race, which draws drafts from the rows of a draft model.
struct DraftRace {
    // The step over the rows; the kernels before have made their requests and records.
    Step step;
    // `[rows]`
    const DraftRequest* requests;
    // `[rows, siblings]`: the drafts of each row, the first to arrive first; -1 where there are no more.
    int* drafts;
    u32 siblings;
    // Whether the drafts are to be judged as a block, so that they are drawn by words of their own: 0 or 1.
    u32 are_of_blocks;
};

// The argument of edit_rows, which writes the rows of a step under their edits.
struct EditRows {
    // Rows without a slot are not written.
    Step step;
    // `[rows, vocab]`, with rows that begin at multiples of 16 bytes.
    float* out;
    // Elements from the start of a row to the start of the next.
    u64 out_stride;
    // Blocks of a row, and the most tiles that each of them has.
    u32 blocks_per_row;
    u32 tiles_per_block;
};

// The argument of judge_requests. Scratch memory is that of the step: a request with drafts has two rows at least, and
// takes the records and the logprob sums of its first two.
struct JudgeRequests {
    // `step.forced` is the address of `forced` below.
    DraftStep drafts;
    // `[rows, vocab]`: the target's probabilities, by their rows of the step.
    const float* target_probs;
    // `[rows of the batch, vocab]`: the drafter's; null if it has none.
    const float* draft_probs;
    // Elements from the start of a row to the start of the next.
    u64 target_stride;
    u64 draft_stride;
    // `[rows]`: the tokens that the caller forces, -1 for none.
    const int* caller_forced;
    // `[rows]`: the tokens to emit.
    int* forced;
    // In units of 2^-32.
    u64 threshold_acc;
    float threshold_single;
    // One of JudgeRule.
    u32 rule;
};

// The layout of the structs on the host, in bytes.
static_assert(sizeof(DraftRequest) == 32 && alignof(DraftRequest) == 16);
static_assert(OFFSET_OF(DraftRequest, stop_ids) == 0);
static_assert(OFFSET_OF(DraftRequest, stop_count) == 8);
static_assert(OFFSET_OF(DraftRequest, first_row) == 12);
static_assert(OFFSET_OF(DraftRequest, draft_count) == 16);
static_assert(OFFSET_OF(DraftRequest, first_draft) == 20);
static_assert(OFFSET_OF(DraftRequest, batch_row) == 24);
static_assert(OFFSET_OF(DraftRequest, reserved) == 28);
static_assert(sizeof(DraftRow) == 16 && alignof(DraftRow) == 16);
static_assert(OFFSET_OF(DraftRow, lists) == 0);
static_assert(OFFSET_OF(DraftRow, request) == 8);
static_assert(OFFSET_OF(DraftRow, reserved) == 12);
static_assert(sizeof(ShortenRequests) == 56 && alignof(ShortenRequests) == 8);
static_assert(OFFSET_OF(ShortenRequests, slots) == 0);
static_assert(OFFSET_OF(ShortenRequests, counts) == 8);
static_assert(OFFSET_OF(ShortenRequests, slot_params) == 16);
static_assert(OFFSET_OF(ShortenRequests, slot_requests) == 24);
static_assert(OFFSET_OF(ShortenRequests, slot_states) == 32);
static_assert(OFFSET_OF(ShortenRequests, taken) == 40);
static_assert(OFFSET_OF(ShortenRequests, flags) == 48);
static_assert(OFFSET_OF(ShortenRequests, reserved) == 52);
static_assert(sizeof(DraftCopy) == 40 && alignof(DraftCopy) == 8);
static_assert(OFFSET_OF(DraftCopy, drafts) == 0);
static_assert(OFFSET_OF(DraftCopy, to) == 8);
static_assert(OFFSET_OF(DraftCopy, stride) == 16);
static_assert(OFFSET_OF(DraftCopy, rows) == 24);
static_assert(OFFSET_OF(DraftCopy, siblings) == 28);
static_assert(OFFSET_OF(DraftCopy, flags) == 32);
static_assert(OFFSET_OF(DraftCopy, reserved) == 36);
static_assert(sizeof(DraftLinks) == 40 && alignof(DraftLinks) == 8);
static_assert(OFFSET_OF(DraftLinks, first_child) == 0);
static_assert(OFFSET_OF(DraftLinks, next_sibling) == 8);
static_assert(OFFSET_OF(DraftLinks, requests) == 16);
static_assert(OFFSET_OF(DraftLinks, parents) == 24);
static_assert(OFFSET_OF(DraftLinks, flags) == 32);
static_assert(OFFSET_OF(DraftLinks, reserved) == 36);
static_assert(sizeof(DraftStep) == 384 && alignof(DraftStep) == 8);
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
static_assert(OFFSET_OF(DraftStep, judged_slots) == 344);
static_assert(OFFSET_OF(DraftStep, path) == 352);
static_assert(OFFSET_OF(DraftStep, accepted) == 360);
static_assert(OFFSET_OF(DraftStep, flags) == 368);
static_assert(OFFSET_OF(DraftStep, path_stride) == 372);
static_assert(OFFSET_OF(DraftStep, first_row) == 376);
static_assert(OFFSET_OF(DraftStep, first_request) == 380);
static_assert(sizeof(DraftRace) == 264 && alignof(DraftRace) == 8);
static_assert(OFFSET_OF(DraftRace, step) == 0);
static_assert(OFFSET_OF(DraftRace, requests) == 240);
static_assert(OFFSET_OF(DraftRace, drafts) == 248);
static_assert(OFFSET_OF(DraftRace, siblings) == 256);
static_assert(OFFSET_OF(DraftRace, are_of_blocks) == 260);
static_assert(sizeof(EditRows) == 264 && alignof(EditRows) == 8);
static_assert(OFFSET_OF(EditRows, step) == 0);
static_assert(OFFSET_OF(EditRows, out) == 240);
static_assert(OFFSET_OF(EditRows, out_stride) == 248);
static_assert(OFFSET_OF(EditRows, blocks_per_row) == 256);
static_assert(OFFSET_OF(EditRows, tiles_per_block) == 260);
static_assert(sizeof(JudgeRequests) == 448 && alignof(JudgeRequests) == 8);
static_assert(OFFSET_OF(JudgeRequests, drafts) == 0);
static_assert(OFFSET_OF(JudgeRequests, target_probs) == 384);
static_assert(OFFSET_OF(JudgeRequests, draft_probs) == 392);
static_assert(OFFSET_OF(JudgeRequests, target_stride) == 400);
static_assert(OFFSET_OF(JudgeRequests, draft_stride) == 408);
static_assert(OFFSET_OF(JudgeRequests, caller_forced) == 416);
static_assert(OFFSET_OF(JudgeRequests, forced) == 424);
static_assert(OFFSET_OF(JudgeRequests, threshold_acc) == 432);
static_assert(OFFSET_OF(JudgeRequests, threshold_single) == 440);
static_assert(OFFSET_OF(JudgeRequests, rule) == 444);
