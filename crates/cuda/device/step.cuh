// step.cuh: what a step hands to its kernels, as the host lays it out.
//
// Twins      src/abi.rs, held equal by tests/abi.rs
// Requires   slots are -1 or below the pool's; pointers are aligned to their types
#pragma once

#include "num.cuh"

// Ids per tile, and how many of them a lane has.
#define TILE 256
#define PER_LANE 8

// The token of a row that has none.
#define NONE (-1)

enum Status : u32 { STATUS_NAN = 1, STATUS_INF = 2, STATUS_EMPTY = 4 };

// What a request asks for; prepared on the host, so that it is read and not computed here.
struct alignas(16) Params {
    u64 seed;
    u32 draw;
    // Bits of ASKS_*.
    u32 asks;
    // As given; 0 in a row that is greedy.
    float temperature;
    float effective_temperature;
    // log2(e) / T of the draw and of the filters (N6, F8).
    float s;
    float filter_s;
    // L(min_p), where it is on (F2).
    float min_p_threshold;
    u32 reserved[3];
};

enum Asks : u32 { ASKS_GREEDY = 1, ASKS_MIN_P = 2 };

// Where a request stands; the draw moves it on.
struct alignas(8) State {
    u32 position;
    float mu;
};

// What the survey learns of a tile.
struct alignas(16) Record {
    // Of the cleaned logits; -inf in a tile of nothing.
    float maximum;
    // log2 of the tile's first arrival.
    float log_first;
    // log2 of the arrival of the first token of the order.
    float log_top;
    // Where that token lies in the tile, in the low byte; the place of the first arrival in the next.
    u32 places;
};

// One step of a batch.
struct Step {
    // [rows] rows of vocab elements, `stride` elements apart.
    const void* logits;
    u64 stride;
    u32 rows;
    u32 vocab;
    u32 tiles;
    u32 blocks_per_row;
    // [rows]; -1 is padding.
    const int* slots;
    // [rows], -1 where nothing is forced; may be null.
    const int* forced;
    // By slot.
    const Params* params;
    State* states;
    // [rows, tiles]
    Record* records;
    // [rows]; 0 before and after a step.
    u32* odd;
    // Sections of [rows] words: tokens, statuses, logprobs, ranks, temperatures, mus.
    u32* outputs;
};
