// operators.cuh: the arguments of the operators' kernels, laid out as on the host.
//
// Twins      src/abi/structs.rs, held equal by tests/abi.rs
// Requires   pointers are aligned to their types
#pragma once

#include "abi/step.cuh"

// The argument of the softmax kernels: rows of logits become rows of probabilities.
struct SoftmaxArgs {
    const void* logits;
    // The rows of probabilities: at the logits' address (in place), or in memory that does not overlap the logits.
    void* out;
    // Elements from the start of a row to the start of the next.
    u64 stride;
    u64 out_stride;
    // [rows], or one element for all rows if `temperature_stride` is 0. Null: `temperature` applies to all rows.
    const float* temperatures;
    // [rows]; null: the kernels write no statuses.
    u32* statuses;
    // [rows, tiles]: softmax_reduce writes them, softmax_write reads them.
    TileSum* tile_sums;
    u32 rows;
    u32 vocab;
    u32 tiles;
    // Blocks of a row, and the most tiles that each of them has.
    u32 blocks_per_row;
    u32 tiles_per_block;
    // For softmax_cluster: `pairs_in_smem` pairs of tiles fit a warp's share of the shared memory. When a warp writes a
    // row, it has already summed `pairs_ahead` pairs of later rows.
    u32 pairs_in_smem;
    u32 pairs_ahead;
    float temperature;
    u32 temperature_stride;
    u32 reserved;
};

// Bits of RowCut::flags.
enum RowCutFlags : u32 {
    // No token is kept.
    CUT_EMPTY = 1,
    // Only the first token is kept, with probability 1, as at temperature 0.
    CUT_FIRST_ONLY = 2,
    // The first token kept is the row's first token.
    CUT_IS_PREFIX = 4,
    // The row is complete: find_cut wrote the kept tokens, the survey all others.
    CUT_WRITTEN = 8,
};

// The tokens that the filters keep of a row.
struct alignas(16) RowCut {
    u64 first_key;
    u64 last_key;
    // The mass of the kept tokens at the scale `log2e_over_t`, relative to the first of them. Set if the output is
    // probabilities.
    u64 mass;
    float log2e_over_t;
    u32 flags;
};

// The argument of find_cut, which finds each row's cut. If the survey pre-fills the output, find_cut also completes the
// rows that keep no token, one token, or a candidate list of tokens.
struct FindCut {
    Step step;
    RowCut* cuts;
    // 1 if the output is masked numbers, which need no mass.
    u32 mask_only;
    u32 reserved;
};

// The argument of write_rows, which writes rows whose cuts are known.
struct WriteRows {
    const void* logits;
    void* out;
    // Elements from the start of a row to the start of the next.
    u64 stride;
    u64 out_stride;
    const TileRecord* records;
    const RowCut* cuts;
    u32 rows;
    u32 vocab;
    u32 tiles;
    // Blocks of a row, and the most tiles that each of them has.
    u32 blocks_per_row;
    u32 tiles_per_block;
    u32 mask_only;
};

// Columns, as bits of ParamColumns::columns_64_bit and ParamColumns::per_row_columns.
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
    // The requests serve the survey of rows of logits that several outputs read: they are greedy and draw nothing.
    FROM_COLUMNS_SHARED_ROWS = 1,
    // All outputs have the draw index of `base`. Otherwise, without a column, an output's draw index is the index of
    // the output.
    FROM_COLUMNS_ONE_DRAW = 2,
    // Positions of 64 bits are offsets: the low word is the position, the high word changes the seed.
    FROM_COLUMNS_OFFSETS = 4,
};

// The argument of params_from_columns, which makes a step's requests from columns of parameters in device memory.
struct alignas(16) ParamColumns {
    // The parameters that all rows share. A column that is not null replaces its parameter.
    Params base;
    // Columns of temperatures and filters have an element per row of logits, the others one per output. A column
    // without its bit in `per_row_columns` has one element for all.
    const float* temperatures;
    const void* top_ks;
    const float* top_ps;
    const float* min_ps;
    const void* seeds;
    const void* positions;
    const void* draws;
    const void* row_indices;
    // [rows]: the requests that the kernel writes and the step reads.
    Params* params;
    State* states;
    int* slots;
    int* forced;
    // [rows]: the row of logits that each row reads. Null if row i reads row i of the logits.
    u32* row_indices_out;
    u32 rows;
    // The index of the first output of this launch.
    u32 first_output;
    u32 logits_rows;
    u32 vocab;
    // All filters that may be on, in the order they act, encoded as in Params::filter_chain.
    u32 filter_chain;
    // Bits of ColumnBit: which columns have elements of 64 bits, and which have an element per row or output.
    u32 columns_64_bit;
    u32 per_row_columns;
    // The position of all outputs if `positions` is null.
    u32 position;
    float mirostat_mu;
    u32 flags;
};

// Bits of Chains::flags.
enum ChainFlags : u32 {
    // Elements have 64 bits instead of 32.
    CHAIN_DRAFTS_I64 = 1,
    CHAIN_TOKENS_I64 = 2,
    CHAIN_SEEDS_U64 = 4,
    CHAIN_POSITIONS_U64 = 8,
    CHAIN_DRAWS_U64 = 16,
    // A chain's draw index is the index of the chain.
    CHAIN_DRAW_IS_INDEX = 32,
    // The kernel adds its counts to those in memory.
    CHAIN_ADD_COUNTS = 64,
    // The column has an element for each chain; otherwise one for all.
    CHAIN_SEED_PER_CHAIN = 128,
    CHAIN_POSITION_PER_CHAIN = 256,
    CHAIN_DRAW_PER_CHAIN = 512,
    // The high words of positions change the seeds, as with FROM_COLUMNS_OFFSETS.
    CHAIN_OFFSETS = 1024,
    // A chain whose last row has no token ends with 0 instead of NO_TOKEN.
    CHAIN_ZERO_FOR_NONE = 2048,
};

// The argument of the kernels of verify.cu: chains of n = `draft_count` drafts each. Strides are in elements: from
// chain to chain, and from row to row.
struct Chains {
    // [chains, n, vocab]
    const float* draft_probs;
    u64 draft_stride;
    u64 draft_row_stride;
    // [chains, n + 1, vocab]
    const float* target_probs;
    u64 target_stride;
    u64 target_row_stride;
    // [chains, n]
    const void* drafts;
    u64 drafts_stride;
    // [chains, n + 1]
    void* tokens;
    u64 tokens_stride;
    // [chains] each; null: the kernels do not write it.
    u32* accepted;
    u32* emitted;
    u32* statuses;
    // [chains] or one element each. Null: `seed`, `position` or `draw` below applies to all chains.
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
    // Tiles that each warp of the survey takes.
    u32 tiles_per_warp;
    u32 flags;
    // The index of the first chain of this launch.
    u32 first_chain;
    u32 reserved;
};
