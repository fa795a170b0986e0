// exchange.cuh: the arguments of the kernels of exchange.cu, and what these kernels and the host must agree on.
//
// Each rank of a group has a window: memory that its peers write. A window begins with a WindowHeader; the results of the
// whole batch follow, which only the rank itself writes, then the results that arrive, the flags of blocks, and the rows of
// logits that this rank samples from.
//
// Requires   pointers are aligned to their types
//
// Generated from src/abi/exchange.rs. This file is a copy for readers: no compiler reads it.
#pragma once

#include "abi/drafts.cuh"

// The threads of a block of send_rows.
#define SEND_ROWS_THREADS 256

// The most blocks of send_rows.
#define SEND_ROWS_MOST_BLOCKS 1024

// The threads of a block of send_results.
#define SEND_RESULTS_THREADS 512

// The most ranks of a group.
#define MAX_RANKS 8

// The most threads of a block that finishes a row of which each rank has a part.
#define FINISH_SHARDS_THREADS 512

// How many words a rank may send another about such a row, and which these are: the maximum of its part; then a token's score or
// logit, as ordered bits, and its id, or the number of its keys, each with status bits; then keys, two words each.
#define SHARD_WORDS 516
#define SHARD_WORD_MAXIMUM 0
#define SHARD_WORD_BEST 1
#define SHARD_WORD_KEYS 3

// In a step of which some rows are swapped, the slot of the others there.
#define SLOT_ELSEWHERE (-2)

// Why an exchange failed: `WindowHeader::failure`.
enum ExchangeFailure : u32 {
    // A rank did not signal in time.
    FAILURE_TIMED_OUT = 1,
    // A rank signalled with another digest of the step.
    FAILURE_OTHER_STEP = 2,
    // A rank sent a token that no rank draws.
    FAILURE_CORRUPT = 3,
};

// Bits of `SendRows::flags` and `SendResults::flags`.
enum ExchangeFlags : u32 {
    // Every rank samples all rows: rows go to all ranks, and results to none.
    EXCHANGE_GATHER = 1 << 0,
    // Rows whose slot is `SLOT_ELSEWHERE` are no part of the exchange.
    EXCHANGE_PARTIAL = 1 << 1,
};

// The start of a window. Peers write the two arrays, and only the rank itself the rest.
struct alignas(16) WindowHeader {
    // Of each rank the turn in which it last sent parts of rows, in the high word, and how many blocks it did so with.
    u64 rows_coming[8];
    // Of each rank the turn in which it last sent its results, in the high word, and the digest of that step. It reads no rows
    // of that turn any more.
    u64 results_sent[8];
    // The number of completed turns, modulo 2^32.
    u32 turn;
    // What all ranks must have alike in the steps of an assignment.
    u32 digest;
    // 0, or why an exchange failed; then the rank that it failed for, that rank's digest of the step, and this rank's.
    u32 failure;
    u32 failed_rank;
    u32 failed_digest;
    u32 own_digest;
    // The blocks of the running kernel that have done their part.
    u32 blocks_done;
    u32 reserved;
};

// The ranks of a group.
struct Peers {
    // The address of each rank's window, as this rank has mapped it.
    u64 windows[8];
    u32 world;
    // This rank.
    u32 rank;
    // How long a rank is waited for, in nanoseconds.
    u64 timeout_ns;
};

// The argument of send_rows: this rank's part of the rows of a batch.
struct SendRows {
    Peers peers;
    // The parts: `row_bytes` bytes each, `stride_bytes` apart.
    const void* parts;
    u64 stride_bytes;
    u64 row_bytes;
    // Where rows begin in a window, and how far apart they are.
    u64 rows_offset;
    u64 window_stride_bytes;
    // Where this rank's part begins in a row.
    u64 part_offset;
    // Where flags of blocks begin in a window: `[MAX_RANKS][SEND_ROWS_MOST_BLOCKS]`, of each block of each rank the turn in which it
    // last sent all that it sends, in the high word, and the digest of that step.
    u64 block_flags_offset;
    // `[rows]`: the row of the batch that each row of the step is; null if row i is row i. The rows of a rank are neighbours.
    const u32* batch_rows;
    // `[slots]`: those of the step's rows, or of a verification's requests; made padding if the exchange fails.
    int* slots;
    u32 rows;
    u32 slot_count;
    // The first row of each rank, and the end of the last.
    u32 first_rows[9];
    // The most rows of a rank.
    u32 most_rows;
    // A block sends a chunk of a row at a time.
    u32 chunk_bytes;
    u32 chunks_per_row;
    // The bytes that a thread copies at a time: 16, 4 or 2. Parts and their places in windows are aligned to it.
    u32 unit_bytes;
    u32 flags;
    // What stands for the type and the kind of the rows in the step's digest.
    u32 row_digest;
    u32 reserved;
};

// The argument of send_results: what came out of this rank's rows.
struct SendResults {
    Peers peers;
    // The step over this rank's rows: its outputs are sent. Its parameters, requests and states are those of slots.
    Step step;
    // `[requests]`: in a verification the requests of all rows; null in a step, where a row is a request of its own. Behind the outputs of a
    // verification lie the rows of its walks and the numbers of accepted drafts, as `DraftStep` has them; so they do behind the results.
    const DraftRequest* requests;
    // Where results begin in a window.
    u64 results_offset;
    // Where results arrive in a window: for each word of the results a word of 64 bits, which has the turn in its high half. There
    // are two such arrays, for even and for odd turns, `arrivals_bytes` bytes each.
    u64 arrivals_offset;
    u64 arrivals_bytes;
    // As in SendRows.
    const u32* batch_rows;
    int* slots;
    // The number of rows of the batch, and the first of this rank.
    u32 rows;
    u32 first_row;
    // The first request of each rank, and the end of the last.
    u32 first_requests[9];
    // The most rows of a rank.
    u32 most_rows;
    u32 flags;
    // As in SendRows.
    u32 row_digest;
};

// The argument of the kernels of shards.cu: a step over rows of which each rank has a part.
struct ShardStep {
    Peers peers;
    // The step over this rank's parts, of all rows of the batch. A row begins where the first tile does that the part has ids of, and ends
    // where the part does. The outputs are the batch's.
    Step step;
    // Where words of other ranks arrive in a window: `[rows][ranks][SHARD_WORDS]` words of 64 bits, which have the turn in
    // the high half. There are two such arrays, for even and for odd turns, `words_bytes` bytes each.
    u64 words_offset;
    u64 words_bytes;
    // As in SendRows.
    const u32* batch_rows;
    int* slots;
    // `[rows]`: takes the slots of rows that words about shards do not decide, and `SLOT_ELSEWHERE` for the others. Null if there are no such
    // rows.
    int* swap_slots;
    // The first tile of this rank's part, and how many of the tile's ids lie before the part.
    u32 first_tile;
    u32 skipped;
    // The ids of a whole row.
    u32 vocab;
    // As in SendRows.
    u32 row_digest;
};

// The layout of the structs on the host, in bytes.
static_assert(sizeof(WindowHeader) == 160 && alignof(WindowHeader) == 16);
static_assert(OFFSET_OF(WindowHeader, rows_coming) == 0);
static_assert(OFFSET_OF(WindowHeader, results_sent) == 64);
static_assert(OFFSET_OF(WindowHeader, turn) == 128);
static_assert(OFFSET_OF(WindowHeader, digest) == 132);
static_assert(OFFSET_OF(WindowHeader, failure) == 136);
static_assert(OFFSET_OF(WindowHeader, failed_rank) == 140);
static_assert(OFFSET_OF(WindowHeader, failed_digest) == 144);
static_assert(OFFSET_OF(WindowHeader, own_digest) == 148);
static_assert(OFFSET_OF(WindowHeader, blocks_done) == 152);
static_assert(OFFSET_OF(WindowHeader, reserved) == 156);
static_assert(sizeof(Peers) == 80 && alignof(Peers) == 8);
static_assert(OFFSET_OF(Peers, windows) == 0);
static_assert(OFFSET_OF(Peers, world) == 64);
static_assert(OFFSET_OF(Peers, rank) == 68);
static_assert(OFFSET_OF(Peers, timeout_ns) == 72);
static_assert(sizeof(SendRows) == 224 && alignof(SendRows) == 8);
static_assert(OFFSET_OF(SendRows, peers) == 0);
static_assert(OFFSET_OF(SendRows, parts) == 80);
static_assert(OFFSET_OF(SendRows, stride_bytes) == 88);
static_assert(OFFSET_OF(SendRows, row_bytes) == 96);
static_assert(OFFSET_OF(SendRows, rows_offset) == 104);
static_assert(OFFSET_OF(SendRows, window_stride_bytes) == 112);
static_assert(OFFSET_OF(SendRows, part_offset) == 120);
static_assert(OFFSET_OF(SendRows, block_flags_offset) == 128);
static_assert(OFFSET_OF(SendRows, batch_rows) == 136);
static_assert(OFFSET_OF(SendRows, slots) == 144);
static_assert(OFFSET_OF(SendRows, rows) == 152);
static_assert(OFFSET_OF(SendRows, slot_count) == 156);
static_assert(OFFSET_OF(SendRows, first_rows) == 160);
static_assert(OFFSET_OF(SendRows, most_rows) == 196);
static_assert(OFFSET_OF(SendRows, chunk_bytes) == 200);
static_assert(OFFSET_OF(SendRows, chunks_per_row) == 204);
static_assert(OFFSET_OF(SendRows, unit_bytes) == 208);
static_assert(OFFSET_OF(SendRows, flags) == 212);
static_assert(OFFSET_OF(SendRows, row_digest) == 216);
static_assert(OFFSET_OF(SendRows, reserved) == 220);
static_assert(sizeof(SendResults) == 424 && alignof(SendResults) == 8);
static_assert(OFFSET_OF(SendResults, peers) == 0);
static_assert(OFFSET_OF(SendResults, step) == 80);
static_assert(OFFSET_OF(SendResults, requests) == 320);
static_assert(OFFSET_OF(SendResults, results_offset) == 328);
static_assert(OFFSET_OF(SendResults, arrivals_offset) == 336);
static_assert(OFFSET_OF(SendResults, arrivals_bytes) == 344);
static_assert(OFFSET_OF(SendResults, batch_rows) == 352);
static_assert(OFFSET_OF(SendResults, slots) == 360);
static_assert(OFFSET_OF(SendResults, rows) == 368);
static_assert(OFFSET_OF(SendResults, first_row) == 372);
static_assert(OFFSET_OF(SendResults, first_requests) == 376);
static_assert(OFFSET_OF(SendResults, most_rows) == 412);
static_assert(OFFSET_OF(SendResults, flags) == 416);
static_assert(OFFSET_OF(SendResults, row_digest) == 420);
static_assert(sizeof(ShardStep) == 376 && alignof(ShardStep) == 8);
static_assert(OFFSET_OF(ShardStep, peers) == 0);
static_assert(OFFSET_OF(ShardStep, step) == 80);
static_assert(OFFSET_OF(ShardStep, words_offset) == 320);
static_assert(OFFSET_OF(ShardStep, words_bytes) == 328);
static_assert(OFFSET_OF(ShardStep, batch_rows) == 336);
static_assert(OFFSET_OF(ShardStep, slots) == 344);
static_assert(OFFSET_OF(ShardStep, swap_slots) == 352);
static_assert(OFFSET_OF(ShardStep, first_tile) == 360);
static_assert(OFFSET_OF(ShardStep, skipped) == 364);
static_assert(OFFSET_OF(ShardStep, vocab) == 368);
static_assert(OFFSET_OF(ShardStep, row_digest) == 372);
