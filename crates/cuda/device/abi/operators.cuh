// operators.cuh: the arguments of the operators' kernels, and what these kernels and the host must agree on.
//
// Requires   pointers are aligned to their types
//
// Generated from src/abi/operators.rs. This file is a copy for readers: no compiler reads it.
#pragma once

#include "abi/step.cuh"

// The most threads of a block of find_cut.
#define FIND_CUT_THREADS 1024

// The threads of a block of params_from_columns: it makes the request of one row per thread.
#define COLUMNS_THREADS 128

// The warps of a block of write_rows, of the softmax kernels that read rows twice, and of
// verify_survey.
#define WRITE_ROWS_WARPS 8
#define TWO_PASS_WARPS 8
#define SURVEY_WARPS 8

// The most tiles that a warp of verify_survey takes, and the most threads of a block of verify_finish.
#define MAX_TILES_PER_WARP 4
#define VERIFY_FINISH_THREADS 1024

// The threads of a block of judge_drafts: more would leave each too few registers.
#define JUDGE_DRAFTS_THREADS 512

// The most drafts of a tree that judge_drafts judges.
#define MAX_JUDGED 64

// Of softmax_cluster: the most blocks of a cluster, the most warps of a block that work on tiles,
// the most rows that a block has in flight, and the most bytes of its static shared memory.
#define MAX_CLUSTER_BLOCKS 16
#define MAX_WORKER_WARPS 19
#define MAX_ROWS_IN_FLIGHT 4
#define CLUSTER_STATIC_SMEM_BYTES 1536

// The threads of a block of numbers: it computes one result per thread.
#define NUMERIC_CHECK_THREADS 256

// The argument of the softmax kernels: rows of logits become rows of probabilities.
struct SoftmaxArgs {
    const void* logits;
    // The rows of probabilities: at the logits' address (in place), or in memory that does not overlap
    // the logits.
    void* out;
    // Elements from the start of a row to the start of the next.
    u64 stride;
    u64 out_stride;
    // `[rows]`, `temperature_stride` elements apart; one for all rows if that is 0. Null: `temperature` applies to
    // all rows.
    const float* temperatures;
    // `[rows]`; null: the kernels write no statuses.
    u32* statuses;
    // `[rows, tiles]`: softmax_reduce writes them, softmax_write reads them.
    TileSum* tile_sums;
    u32 rows;
    u32 vocab;
    u32 tiles;
    // Blocks of a row, and the most tiles that each of them has.
    u32 blocks_per_row;
    u32 tiles_per_block;
    // For softmax_cluster: `pairs_in_smem` pairs of tiles fit a warp's share of the shared memory. When
    // a warp writes a row, it has already summed `pairs_ahead` pairs of later rows.
    u32 pairs_in_smem;
    u32 pairs_ahead;
    float temperature;
    u32 temperature_stride;
    u32 reserved;
};

// Bits of `RowCut::flags`.
enum RowCutFlags : u32 {
    // No token is kept.
    CUT_EMPTY = 1 << 0,
    // Only the first token is kept, with probability 1, as at temperature 0.
    CUT_FIRST_ONLY = 1 << 1,
    // The first token kept is the row's first token.
    CUT_IS_PREFIX = 1 << 2,
    // The row is complete: find_cut wrote the kept tokens, the survey all others.
    CUT_WRITTEN = 1 << 3,
};

// The tokens that the filters keep of a row.
struct alignas(16) RowCut {
    u64 first_key;
    u64 last_key;
    // The mass of the kept tokens at the scale `log2e_over_t`, relative to the first of them. Set if the
    // output is probabilities.
    u64 mass;
    float log2e_over_t;
    u32 flags;
};

// The argument of find_cut, which finds each row's cut. If the survey pre-fills the output, find_cut
// also completes the rows that keep no token, one token, or a candidate list of tokens.
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

// Columns, as bits of `ParamColumns::columns_64_bit` and `ParamColumns::per_row_columns`.
enum ColumnBit : u32 {
    COLUMN_TEMPERATURE = 1 << 0,
    COLUMN_TOP_K = 1 << 1,
    COLUMN_TOP_P = 1 << 2,
    COLUMN_MIN_P = 1 << 3,
    COLUMN_SEED = 1 << 4,
    COLUMN_POSITION = 1 << 5,
    COLUMN_DRAW = 1 << 6,
    COLUMN_ROW_INDEX = 1 << 7,
    COLUMN_SLOT = 1 << 8,
};

// Bits of `ParamColumns::flags`.
enum ParamColumnsFlags : u32 {
    // The requests serve the survey of rows of logits that several outputs read: they are greedy and
    // draw nothing.
    FROM_COLUMNS_SHARED_ROWS = 1 << 0,
    // All outputs have the draw index of `base`. Otherwise, without a column, an output's draw index is
    // the index of the output.
    FROM_COLUMNS_ONE_DRAW = 1 << 1,
    // Positions of 64 bits are offsets: the low word is the position, the high word changes the seed.
    FROM_COLUMNS_OFFSETS = 1 << 2,
    // The high word of a position of 64 bits is the draw index.
    FROM_COLUMNS_HIGH_DRAWS = 1 << 3,
};

// The argument of params_from_columns, which makes a step's requests from columns of parameters in
// device memory.
struct alignas(16) ParamColumns {
    // The parameters that all rows share. A column that is not null replaces its parameter.
    Params base;
    // Columns of temperatures and filters have an element per row of logits, the others one per output.
    // A column without its bit in `per_row_columns` has one element for all.
    const float* temperatures;
    const void* top_ks;
    const float* top_ps;
    const float* min_ps;
    const void* seeds;
    const void* positions;
    const void* draws;
    const void* row_indices;
    // For each request, which has `rows_per_slot` outputs and rows of logits, the element of the other columns that these read;
    // the column of positions has that of its first output. Null if the other columns are of rows and outputs themselves.
    const void* pool_slots;
    // `[rows]`: the requests that the kernel writes and the step reads.
    Params* params;
    State* states;
    int* slots;
    int* forced;
    // `[rows]`: the row of logits that each row reads. Null if row i reads row i of the logits.
    u32* row_indices_out;
    u32 rows;
    // The index of the first output of this launch.
    u32 first_output;
    u32 logits_rows;
    u32 vocab;
    // All filters that may be on, in the order they act, encoded as in `Params::filter_chain`.
    u64 filter_chain;
    // Bits of ColumnBit: which columns have elements of 64 bits, and which have an element per row or
    // output.
    u32 columns_64_bit;
    u32 per_row_columns;
    // The position of all outputs if `positions` is null.
    u32 position;
    float mirostat_mu;
    u32 flags;
    // The elements of a column that slots are indices of, and the outputs of a slot.
    u32 pool_size;
    u32 rows_per_slot;
    u32 reserved[3];
};

// Bits of `Chains::flags`.
enum ChainFlags : u32 {
    // Elements have 64 bits instead of 32.
    CHAIN_DRAFTS_I64 = 1 << 0,
    CHAIN_TOKENS_I64 = 1 << 1,
    CHAIN_SEEDS_U64 = 1 << 2,
    CHAIN_POSITIONS_U64 = 1 << 3,
    CHAIN_DRAWS_U64 = 1 << 4,
    // A chain's draw index is the index of the chain.
    CHAIN_DRAW_IS_INDEX = 1 << 5,
    // The kernel adds its counts to those in memory.
    CHAIN_ADD_COUNTS = 1 << 6,
    // The column has an element for each chain; otherwise one for all.
    CHAIN_SEED_PER_CHAIN = 1 << 7,
    CHAIN_POSITION_PER_CHAIN = 1 << 8,
    CHAIN_DRAW_PER_CHAIN = 1 << 9,
    // The high words of positions change the seeds, as with `FROM_COLUMNS_OFFSETS`.
    CHAIN_OFFSETS = 1 << 10,
    // A chain whose last row has no token ends with 0 instead of `NO_TOKEN`.
    CHAIN_ZERO_FOR_NONE = 1 << 11,
};

// The argument of the kernels of verify.cu: chains of n = `draft_count` drafts each. Strides are in
// elements: from chain to chain, and from row to row.
struct Chains {
    // `[chains, n, vocab]`
    const float* draft_probs;
    u64 draft_stride;
    u64 draft_row_stride;
    // `[chains, n + 1, vocab]`
    const float* target_probs;
    u64 target_stride;
    u64 target_row_stride;
    // `[chains, n]`
    const void* drafts;
    u64 drafts_stride;
    // `[chains, n + 1]`
    void* tokens;
    u64 tokens_stride;
    // `[chains]` each; null: the kernels do not write it.
    u32* accepted;
    u32* emitted;
    u32* statuses;
    // `[chains]` or one element each. Null: `seed`, `position` or `draw` below applies to all chains.
    const void* seeds;
    const void* positions;
    const void* draws;
    u64 seed;
    u32 position;
    u32 draw;
    // `[chains, tiles]`
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

// The rules by which drafts are judged: values of `JudgeDrafts::rule`.
enum JudgeRule : u32 {
    // By rejection, sibling after sibling (S5).
    JUDGE_REJECTION = 0,
    // A chain as a whole (S6).
    JUDGE_BLOCK = 1,
    // By thresholds (S7).
    JUDGE_THRESHOLD = 2,
};

// Bits of `JudgeDrafts::flags`.
enum JudgeFlags : u32 {
    // Parents have 64 bits instead of 32.
    JUDGE_PARENTS_I64 = 1 << 0,
};

// The argument of judge_drafts: trees of n = `chains.draft_count` drafts each.
struct JudgeDrafts {
    // The trees' drafts, rows, random numbers and results. A tree has a row of the drafter for each row of
    // the target: n + 1. `draft_probs` is null if the drafter has no probabilities; `accepted` is null.
    Chains chains;
    // `[trees, n]`; -1 is the root. Null: the parent of each draft is the one before it.
    const void* parents;
    u64 parents_stride;
    // `[trees, n + 1]`: the rows of the walk, then -1. Null: the kernel does not write it.
    int* rows;
    u64 rows_stride;
    // `[trees, 2, tiles]`
    TileSum* tile_sums;
    // In units of 2^-32.
    u64 threshold_acc;
    float threshold_single;
    // One of JudgeRule.
    u32 rule;
    u32 flags;
    u32 reserved;
};

// The argument of the kernel numbers, which evaluates a function of number `which` on an arithmetic
// sequence of inputs.
struct Sweep {
    u64 from;
    u64 step;
    u64 count;
    u64 which;
    u64* out;
};

// The layout of the structs on the host, in bytes.
static_assert(sizeof(SoftmaxArgs) == 96 && alignof(SoftmaxArgs) == 8);
static_assert(OFFSET_OF(SoftmaxArgs, logits) == 0);
static_assert(OFFSET_OF(SoftmaxArgs, out) == 8);
static_assert(OFFSET_OF(SoftmaxArgs, stride) == 16);
static_assert(OFFSET_OF(SoftmaxArgs, out_stride) == 24);
static_assert(OFFSET_OF(SoftmaxArgs, temperatures) == 32);
static_assert(OFFSET_OF(SoftmaxArgs, statuses) == 40);
static_assert(OFFSET_OF(SoftmaxArgs, tile_sums) == 48);
static_assert(OFFSET_OF(SoftmaxArgs, rows) == 56);
static_assert(OFFSET_OF(SoftmaxArgs, vocab) == 60);
static_assert(OFFSET_OF(SoftmaxArgs, tiles) == 64);
static_assert(OFFSET_OF(SoftmaxArgs, blocks_per_row) == 68);
static_assert(OFFSET_OF(SoftmaxArgs, tiles_per_block) == 72);
static_assert(OFFSET_OF(SoftmaxArgs, pairs_in_smem) == 76);
static_assert(OFFSET_OF(SoftmaxArgs, pairs_ahead) == 80);
static_assert(OFFSET_OF(SoftmaxArgs, temperature) == 84);
static_assert(OFFSET_OF(SoftmaxArgs, temperature_stride) == 88);
static_assert(OFFSET_OF(SoftmaxArgs, reserved) == 92);
static_assert(sizeof(RowCut) == 32 && alignof(RowCut) == 16);
static_assert(OFFSET_OF(RowCut, first_key) == 0);
static_assert(OFFSET_OF(RowCut, last_key) == 8);
static_assert(OFFSET_OF(RowCut, mass) == 16);
static_assert(OFFSET_OF(RowCut, log2e_over_t) == 24);
static_assert(OFFSET_OF(RowCut, flags) == 28);
static_assert(sizeof(FindCut) == 256 && alignof(FindCut) == 8);
static_assert(OFFSET_OF(FindCut, step) == 0);
static_assert(OFFSET_OF(FindCut, cuts) == 240);
static_assert(OFFSET_OF(FindCut, mask_only) == 248);
static_assert(OFFSET_OF(FindCut, reserved) == 252);
static_assert(sizeof(WriteRows) == 72 && alignof(WriteRows) == 8);
static_assert(OFFSET_OF(WriteRows, logits) == 0);
static_assert(OFFSET_OF(WriteRows, out) == 8);
static_assert(OFFSET_OF(WriteRows, stride) == 16);
static_assert(OFFSET_OF(WriteRows, out_stride) == 24);
static_assert(OFFSET_OF(WriteRows, records) == 32);
static_assert(OFFSET_OF(WriteRows, cuts) == 40);
static_assert(OFFSET_OF(WriteRows, rows) == 48);
static_assert(OFFSET_OF(WriteRows, vocab) == 52);
static_assert(OFFSET_OF(WriteRows, tiles) == 56);
static_assert(OFFSET_OF(WriteRows, blocks_per_row) == 60);
static_assert(OFFSET_OF(WriteRows, tiles_per_block) == 64);
static_assert(OFFSET_OF(WriteRows, mask_only) == 68);
static_assert(sizeof(ParamColumns) == 352 && alignof(ParamColumns) == 16);
static_assert(OFFSET_OF(ParamColumns, base) == 0);
static_assert(OFFSET_OF(ParamColumns, temperatures) == 176);
static_assert(OFFSET_OF(ParamColumns, top_ks) == 184);
static_assert(OFFSET_OF(ParamColumns, top_ps) == 192);
static_assert(OFFSET_OF(ParamColumns, min_ps) == 200);
static_assert(OFFSET_OF(ParamColumns, seeds) == 208);
static_assert(OFFSET_OF(ParamColumns, positions) == 216);
static_assert(OFFSET_OF(ParamColumns, draws) == 224);
static_assert(OFFSET_OF(ParamColumns, row_indices) == 232);
static_assert(OFFSET_OF(ParamColumns, pool_slots) == 240);
static_assert(OFFSET_OF(ParamColumns, params) == 248);
static_assert(OFFSET_OF(ParamColumns, states) == 256);
static_assert(OFFSET_OF(ParamColumns, slots) == 264);
static_assert(OFFSET_OF(ParamColumns, forced) == 272);
static_assert(OFFSET_OF(ParamColumns, row_indices_out) == 280);
static_assert(OFFSET_OF(ParamColumns, rows) == 288);
static_assert(OFFSET_OF(ParamColumns, first_output) == 292);
static_assert(OFFSET_OF(ParamColumns, logits_rows) == 296);
static_assert(OFFSET_OF(ParamColumns, vocab) == 300);
static_assert(OFFSET_OF(ParamColumns, filter_chain) == 304);
static_assert(OFFSET_OF(ParamColumns, columns_64_bit) == 312);
static_assert(OFFSET_OF(ParamColumns, per_row_columns) == 316);
static_assert(OFFSET_OF(ParamColumns, position) == 320);
static_assert(OFFSET_OF(ParamColumns, mirostat_mu) == 324);
static_assert(OFFSET_OF(ParamColumns, flags) == 328);
static_assert(OFFSET_OF(ParamColumns, pool_size) == 332);
static_assert(OFFSET_OF(ParamColumns, rows_per_slot) == 336);
static_assert(OFFSET_OF(ParamColumns, reserved) == 340);
static_assert(sizeof(Chains) == 184 && alignof(Chains) == 8);
static_assert(OFFSET_OF(Chains, draft_probs) == 0);
static_assert(OFFSET_OF(Chains, draft_stride) == 8);
static_assert(OFFSET_OF(Chains, draft_row_stride) == 16);
static_assert(OFFSET_OF(Chains, target_probs) == 24);
static_assert(OFFSET_OF(Chains, target_stride) == 32);
static_assert(OFFSET_OF(Chains, target_row_stride) == 40);
static_assert(OFFSET_OF(Chains, drafts) == 48);
static_assert(OFFSET_OF(Chains, drafts_stride) == 56);
static_assert(OFFSET_OF(Chains, tokens) == 64);
static_assert(OFFSET_OF(Chains, tokens_stride) == 72);
static_assert(OFFSET_OF(Chains, accepted) == 80);
static_assert(OFFSET_OF(Chains, emitted) == 88);
static_assert(OFFSET_OF(Chains, statuses) == 96);
static_assert(OFFSET_OF(Chains, seeds) == 104);
static_assert(OFFSET_OF(Chains, positions) == 112);
static_assert(OFFSET_OF(Chains, draws) == 120);
static_assert(OFFSET_OF(Chains, seed) == 128);
static_assert(OFFSET_OF(Chains, position) == 136);
static_assert(OFFSET_OF(Chains, draw) == 140);
static_assert(OFFSET_OF(Chains, records) == 144);
static_assert(OFFSET_OF(Chains, draft_count) == 152);
static_assert(OFFSET_OF(Chains, vocab) == 156);
static_assert(OFFSET_OF(Chains, tiles) == 160);
static_assert(OFFSET_OF(Chains, blocks_per_chain) == 164);
static_assert(OFFSET_OF(Chains, tiles_per_warp) == 168);
static_assert(OFFSET_OF(Chains, flags) == 172);
static_assert(OFFSET_OF(Chains, first_chain) == 176);
static_assert(OFFSET_OF(Chains, reserved) == 180);
static_assert(sizeof(JudgeDrafts) == 248 && alignof(JudgeDrafts) == 8);
static_assert(OFFSET_OF(JudgeDrafts, chains) == 0);
static_assert(OFFSET_OF(JudgeDrafts, parents) == 184);
static_assert(OFFSET_OF(JudgeDrafts, parents_stride) == 192);
static_assert(OFFSET_OF(JudgeDrafts, rows) == 200);
static_assert(OFFSET_OF(JudgeDrafts, rows_stride) == 208);
static_assert(OFFSET_OF(JudgeDrafts, tile_sums) == 216);
static_assert(OFFSET_OF(JudgeDrafts, threshold_acc) == 224);
static_assert(OFFSET_OF(JudgeDrafts, threshold_single) == 232);
static_assert(OFFSET_OF(JudgeDrafts, rule) == 236);
static_assert(OFFSET_OF(JudgeDrafts, flags) == 240);
static_assert(OFFSET_OF(JudgeDrafts, reserved) == 244);
static_assert(sizeof(Sweep) == 40 && alignof(Sweep) == 8);
static_assert(OFFSET_OF(Sweep, from) == 0);
static_assert(OFFSET_OF(Sweep, step) == 8);
static_assert(OFFSET_OF(Sweep, count) == 16);
static_assert(OFFSET_OF(Sweep, which) == 24);
static_assert(OFFSET_OF(Sweep, out) == 32);
