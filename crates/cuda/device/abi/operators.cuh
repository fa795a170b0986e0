// operators.cuh: what operators hand to their kernels, as the host lays it out.
//
// Twins      src/abi.rs, held equal by tests/abi.rs
// Requires   pointers are aligned to their types
#pragma once

#include "abi/step.cuh"

// Rows of logits to be turned into rows of probabilities.
struct SoftmaxArgs {
    const void* logits;
    // Where the probabilities go: to the logits' own place, or apart from them.
    void* out;
    // In elements, between rows.
    u64 stride;
    u64 out_stride;
    // Of each row, or one for all if their stride is 0; null: `temperature` is that of all.
    const float* temperatures;
    // Of each row; null: nobody asks.
    u32* statuses;
    // [rows, tiles]: what the first of two reads of a row tells the second.
    TileSum* tile_sums;
    u32 rows;
    u32 vocab;
    u32 tiles;
    // Into how many blocks a row is cut, and how many tiles each of them has at most.
    u32 blocks_per_row;
    u32 tiles_per_block;
    // On chip: how many pairs of tiles a warp has room for, and how many it has weighed, besides those of a row, when it writes that.
    u32 pairs_in_smem;
    u32 pairs_ahead;
    float temperature;
    u32 temperature_stride;
    u32 reserved;
};

// Bits of RowCut::flags.
enum RowCutFlags : u32 {
    // Nothing is kept.
    CUT_EMPTY = 1,
    // The first token takes all, as at temperature 0.
    CUT_FIRST_ONLY = 2,
    // The first token kept is the row's.
    CUT_IS_PREFIX = 4,
    // What is kept is written, and so is all else.
    CUT_WRITTEN = 8,
};

// What is kept of a row.
struct alignas(16) RowCut {
    u64 first_key;
    u64 last_key;
    // Relative to the first token kept, at the scale; where probabilities are written.
    u64 mass;
    float log2e_over_t;
    u32 flags;
};

// Rows to be found out about. Where the survey filled the rows to be written, those are written at once whose kept tokens are listed.
struct FindCut {
    Step step;
    RowCut* cuts;
    // Whether rows are masked, so that nobody asks for the mass.
    u32 mask_only;
    u32 reserved;
};

// Rows to be written, once it is known what is kept of them.
struct WriteRows {
    const void* logits;
    void* out;
    // In elements, between rows.
    u64 stride;
    u64 out_stride;
    const TileRecord* records;
    const RowCut* cuts;
    u32 rows;
    u32 vocab;
    u32 tiles;
    // Into how many blocks a row is cut, and how many tiles each of them has at most.
    u32 blocks_per_row;
    u32 tiles_per_block;
    u32 mask_only;
};

// Columns, as their bits stand in ParamColumns::vectorized and ParamColumns::per_row_columns.
enum ColumnBit : u32 {
    COLUMN_TEMPERATURE = 1,
    COLUMN_TOP_K = 2,
    COLUMN_TOP_P = 4,
    COLUMN_MIN_P = 8,
    COLUMN_SEED = 16,
    COLUMN_POSITION = 32,
    COLUMN_DRAW = 64,
    COLUMN_ROW_INDEX = 128,
};

// Bits of ParamColumns::flags.
enum ParamColumnsFlags : u32 {
    // Rows are lines, surveyed for whatever outputs read them.
    FROM_COLUMNS_SHARED_ROWS = 1,
    // All outputs are the same draw, that of the base, instead of each that of its number.
    FROM_COLUMNS_ONE_DRAW = 2,
    // Positions of 64 bits are offsets: the low word is the position, the high one moves the seed.
    FROM_COLUMNS_OFFSETS = 4,
};

// What the rows of an operator ask for.
struct alignas(16) ParamColumns {
    // What all have in common; a column, if there is one, stands for what it has.
    Params base;
    const float* temperatures;
    const void* top_ks;
    const float* top_ps;
    const float* min_ps;
    const void* seeds;
    const void* positions;
    const void* draws;
    const void* row_indices;
    // [rows], by which a step goes.
    Params* params;
    State* states;
    int* slots;
    int* forced;
    // The line that each row reads; null if row i reads line i.
    u32* row_indices_out;
    u32 rows;
    // The number of the first.
    u32 first_output;
    u32 logits_rows;
    u32 vocab;
    // All filters that may be on, in the order they act, as in Params::chain.
    u32 filter_chain;
    // Columns of 64 bits, and those of one number for each.
    u32 columns_64_bit;
    u32 per_row_columns;
    u32 position;
    float mirostat_mu;
    u32 flags;
};

// Bits of Chains::flags.
enum ChainFlags : u32 {
    // What has 64 bits instead of 32.
    CHAIN_DRAFTS_I64 = 1,
    CHAIN_TOKENS_I64 = 2,
    CHAIN_SEEDS_U64 = 4,
    CHAIN_POSITIONS_U64 = 8,
    CHAIN_DRAWS_U64 = 16,
    // A chain's draw index is its own number.
    CHAIN_DRAW_IS_INDEX = 32,
    // Counts are added to what is there.
    CHAIN_ADD_COUNTS = 64,
    // Columns that have a number for each chain, and not one for all.
    CHAIN_SEED_PER_CHAIN = 128,
    CHAIN_POSITION_PER_CHAIN = 256,
    CHAIN_DRAW_PER_CHAIN = 512,
    // The high words of positions move the seeds, as FROM_COLUMNS_OFFSETS has it.
    CHAIN_OFFSETS = 1024,
    // A chain whose last row has no token ends with 0.
    CHAIN_ZERO_FOR_NONE = 2048,
};

// Chains of `length` drafts each. Strides are in elements: from chain to chain, and from row to row.
struct Chains {
    // [chains, length, vocab]
    const float* draft_probs;
    u64 draft_stride;
    u64 draft_row_stride;
    // [chains, length + 1, vocab]
    const float* target_probs;
    u64 target_stride;
    u64 target_row_stride;
    // [chains, length]
    const void* drafts;
    u64 drafts_stride;
    // [chains, length + 1]
    void* tokens;
    u64 tokens_stride;
    // [chains] each; null: nobody asks.
    u32* accepted;
    u32* emitted;
    u32* statuses;
    // [chains] or one number each; null: what follows is that of all.
    const void* seeds;
    const void* positions;
    const void* draws;
    u64 seed;
    u32 position;
    u32 draw;
    // [chains, tiles]
    TileRecord* records;
    u32 draft_count;
    u32 vocab;
    u32 tiles;
    u32 blocks_per_chain;
    // How many tiles a warp of the survey takes.
    u32 tiles_per_warp;
    u32 flags;
    // The number of the first chain.
    u32 first_chain;
    u32 reserved;
};
