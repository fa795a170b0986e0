// head.cuh: the arguments of the kernels that make rows of logits from hidden states, and what these kernels and the host must agree on.
//
// Requires   pointers are aligned to their types
//
// Generated from src/abi/head.rs. This file is a copy for readers: no compiler reads it.
#pragma once

#include "abi/step.cuh"

// The threads of a block of each kernel.
#define HEAD_STATES_THREADS 1024
#define HEAD_RACE_THREADS 256
#define HEAD_CONTENDERS_THREADS 1024
#define HEAD_PROBES_THREADS 1024
#define LISTED_LOGITS_THREADS 256

// A block of head_logits, probed_logits, fast_logits or head_bounds copies this many bytes of each of its rows of weights or codes to shared memory at a
// time, some copies ahead of the products. Longer pieces come faster from memory than short ones do.
#define HEAD_STAGE_BYTES 256

// The hidden states that head_logits multiplies at once, and the ids of two lanes: in `_few` and in `_many`, whose threads have
// more registers.
#define HEAD_FEW_STATES 1
#define HEAD_FEW_IDS 1
#define HEAD_MANY_STATES 4
#define HEAD_MANY_IDS 2
#define HEAD_MANY_THREADS 384

// A block of head_logits, probed_logits, fast_logits or head_bounds: HEAD_COPY_WARPS warps copy to shared memory, and up to HEAD_PRODUCT_WARPS warps, as
// many as the launch has besides, multiply HEAD_WARP_IDS ids each, or some times as many. There are at most HEAD_MOST_STAGES
// stages.
#define HEAD_QUEUE_THREADS 512
#define HEAD_COPY_WARPS 4
#define HEAD_PRODUCT_WARPS 12
#define HEAD_WARP_IDS 16
#define HEAD_MOST_STAGES 8

// The elements of two bytes in HEAD_STAGE_BYTES.
#define FAST_STAGE_ELEMENTS 128

// The most hidden states that fast_logits multiplies at once; there is memory for a multiple of it.
#define FAST_MOST_STATES 64

// Rows of weights and hidden states are multiplied in pieces of this many elements.
#define FAST_CHUNK 32

// The chunks of codes of a stage of head_bounds.
#define BOUND_STAGE_CHUNKS 4

// The bytes of a row of weights that half a warp of listed_logits copies to shared memory at a time, and those from its copy to
// that of the next half. Behind the copies of all halves lie the elements of a hidden state that meet them.
#define LISTED_BYTES 4096
#define LISTED_STRIDE 4160

// The blocks of head_probes that a row has: one finds its clusters, the others clear the row.
#define HEAD_PROBES_BLOCKS 8

// The most ids that a block of probed_logits has at a time.
#define PROBED_IDS 48

// Stands for no id, where a cluster has fewer ids than others.
#define HEAD_NO_ID 0xFFFFFFFFu

// The neighbouring ids that a warp of head_bounds bounds; their bounds have common maxima.
#define BOUND_IDS 16

// A row of codes is padded with zeros to a multiple of this.
#define CODE_CHUNK 64

// The hidden states that head_bounds multiplies with codes at once.
#define SCREENED_STATES 8

// The bytes of the digits that these have for a chunk of codes: two digits of 8 bits for each code of each state.
#define DIGIT_CHUNK_BYTES 1024

// How the logits of a row are found: `HeadRow::plan`.
enum RowPlan : u32 {
    // The row is padding: no logits are needed.
    PLAN_NONE = 0,
    // All logits are computed.
    PLAN_WHOLE = 1,
    // Those that could be among the first `HeadRow::count`.
    PLAN_FIRST = 2,
    // Those that could be at most `HeadRow::below` below the first.
    PLAN_LIKELY = 3,
    // Those that could win the race.
    PLAN_RACE = 4,
    // Those of the probed set.
    PLAN_PROBED = 5,
};

// Bits of `HeadStep::flags`.
enum HeadFlags : u32 {
    // The weights begin at a multiple of 16 bytes, and so does each row of them.
    HEAD_ALIGNED = 1 << 0,
    // A screen bounds logits; otherwise all are computed.
    HEAD_SCREENED = 1 << 1,
    // Tensor cores multiply: hidden states are rounded to `short_states`, to bf16 or f16 as the weights have it.
    HEAD_FAST_BF16 = 1 << 2,
    HEAD_FAST_F16 = 1 << 3,
    // The logits of probed sets are computed, and no others.
    HEAD_CLUSTERED = 1 << 4,
};

// A hidden state as a screen has it, and what its row needs.
struct alignas(16) HeadRow {
    // What a digit is worth, a power of two.
    double unit;
    // The product of the mean row of weights and the hidden state, about.
    double mean;
    // The length of the hidden state, and that of what its digits leave out, or a little more.
    double norm;
    double rest;
    // How far `mean` may be off, and what subnormal numbers lose.
    double slack;
    // One of RowPlan.
    u32 plan;
    u32 count;
    float below;
    // How many ids are listed in `HeadStep::contenders`: those whose logits decide the row, or its probed set. Written by
    // head_contenders or head_probes.
    u32 contenders;
    // Which race the row's is, and log2(e) / T.
    u64 seed;
    u32 position;
    u32 draw;
    float log2e_over_t;
    u32 reserved[3];
    // The bitmaps that apply to the row, as EditMasks has them; null if it has none.
    const u32* mask;
    const u32* allowed;
    const u32* touched;
};

// The argument of the kernels of a head.
struct HeadStep {
    // The step whose rows are computed. It reads them from `logits`.
    Step step;
    // `[vocab, width]`
    const void* weights;
    // `[vocab]`; null without biases.
    const float* bias;
    // `[rows]` rows of `width` elements, `hidden_stride` elements apart.
    const void* hidden;
    u64 hidden_stride;
    // `[rows, padded_width]`: hidden states as f32, zeros behind the width.
    float* states;
    // `[rows]`
    HeadRow* head_rows;
    // `[rows, vocab]`: the logits; -inf for those that do not decide their row, or lie outside its probed set.
    float* logits;
    u32 width;
    // The width, rounded up to a multiple of 16.
    u32 padded_width;
    float logit_scale;
    float softcap;
    // Bits of HeadFlags.
    u32 flags;
    // The most contenders of a row: with more, all of its logits are computed. With clusters the length of a probed set's list.
    u32 most_contenders;
    // The screen. `[vocab, codes_width]`: codes from -127 to 127, zeros behind the width.
    const void* codes;
    // `[vocab]` each: what a code is worth; what a bound grows by for a hidden state of length 1, infinite for an id that is not
    // screened; the length of the codes times the scale.
    const float* scales;
    const float* own;
    const float* code_norms;
    // `[width]`, and its length or a little more.
    const float* mean;
    double mean_norm;
    u32 codes_width;
    // Groups of `SCREENED_STATES` rows.
    u32 state_groups;
    // `[state_groups, codes_width / CODE_CHUNK]` pieces of `DIGIT_CHUNK_BYTES`: the digits of hidden states, as head_bounds
    // multiplies them with codes.
    void* digits;
    // The ids that are not screened.
    const u32* unscreened;
    // `[rows, bounds_stride]`: bounds of logits; in rows of PLAN_RACE head_race replaces them by bounds of scores.
    float* upper;
    float* lower;
    // `[rows, bound_tiles]`: the largest of `BOUND_IDS` neighbouring ones.
    float* upper_maxima;
    float* lower_maxima;
    // `[rows, most_contenders]`
    u32* contenders;
    // How many rows were computed whole, how many were not, and how many logits these took, since the head was made.
    u64* counts;
    u32 bounds_stride;
    u32 bound_tiles;
    u32 unscreened_count;
    // The width, rounded up to a multiple of FAST_CHUNK.
    u32 short_width;
    // `[groups of FAST_MOST_STATES rows, stages, FAST_MOST_STATES, FAST_STAGE_ELEMENTS]`: hidden states in the type of the weights,
    // zeros behind the width, as they lie in a stage of fast_logits.
    void* short_states;
    // The most ids that a block of head_logits, probed_logits, fast_logits or head_bounds has at a time, a multiple of HEAD_WARP_IDS, and the stages in its
    // shared memory.
    u32 queue_ids;
    u32 queue_stages;
    // The clusters. `[vocab]`: their ids, those of cluster 0 first; each has `cluster_capacity`, and the last one those that are left.
    const u32* cluster_ids;
    // The ids that are in every probed set.
    const u32* special_ids;
    // `[rows, clusters]`: the scores of centroids.
    float* scores;
    // `[rows, probes]`: the clusters that a row probes.
    u32* probed;
    u32 cluster_capacity;
    u32 clusters;
    u32 probes;
    u32 special_count;
};

// The layout of the structs on the host, in bytes.
static_assert(sizeof(HeadRow) == 112 && alignof(HeadRow) == 16);
static_assert(OFFSET_OF(HeadRow, unit) == 0);
static_assert(OFFSET_OF(HeadRow, mean) == 8);
static_assert(OFFSET_OF(HeadRow, norm) == 16);
static_assert(OFFSET_OF(HeadRow, rest) == 24);
static_assert(OFFSET_OF(HeadRow, slack) == 32);
static_assert(OFFSET_OF(HeadRow, plan) == 40);
static_assert(OFFSET_OF(HeadRow, count) == 44);
static_assert(OFFSET_OF(HeadRow, below) == 48);
static_assert(OFFSET_OF(HeadRow, contenders) == 52);
static_assert(OFFSET_OF(HeadRow, seed) == 56);
static_assert(OFFSET_OF(HeadRow, position) == 64);
static_assert(OFFSET_OF(HeadRow, draw) == 68);
static_assert(OFFSET_OF(HeadRow, log2e_over_t) == 72);
static_assert(OFFSET_OF(HeadRow, reserved) == 76);
static_assert(OFFSET_OF(HeadRow, mask) == 88);
static_assert(OFFSET_OF(HeadRow, allowed) == 96);
static_assert(OFFSET_OF(HeadRow, touched) == 104);
static_assert(sizeof(HeadStep) == 520 && alignof(HeadStep) == 8);
static_assert(OFFSET_OF(HeadStep, step) == 0);
static_assert(OFFSET_OF(HeadStep, weights) == 240);
static_assert(OFFSET_OF(HeadStep, bias) == 248);
static_assert(OFFSET_OF(HeadStep, hidden) == 256);
static_assert(OFFSET_OF(HeadStep, hidden_stride) == 264);
static_assert(OFFSET_OF(HeadStep, states) == 272);
static_assert(OFFSET_OF(HeadStep, head_rows) == 280);
static_assert(OFFSET_OF(HeadStep, logits) == 288);
static_assert(OFFSET_OF(HeadStep, width) == 296);
static_assert(OFFSET_OF(HeadStep, padded_width) == 300);
static_assert(OFFSET_OF(HeadStep, logit_scale) == 304);
static_assert(OFFSET_OF(HeadStep, softcap) == 308);
static_assert(OFFSET_OF(HeadStep, flags) == 312);
static_assert(OFFSET_OF(HeadStep, most_contenders) == 316);
static_assert(OFFSET_OF(HeadStep, codes) == 320);
static_assert(OFFSET_OF(HeadStep, scales) == 328);
static_assert(OFFSET_OF(HeadStep, own) == 336);
static_assert(OFFSET_OF(HeadStep, code_norms) == 344);
static_assert(OFFSET_OF(HeadStep, mean) == 352);
static_assert(OFFSET_OF(HeadStep, mean_norm) == 360);
static_assert(OFFSET_OF(HeadStep, codes_width) == 368);
static_assert(OFFSET_OF(HeadStep, state_groups) == 372);
static_assert(OFFSET_OF(HeadStep, digits) == 376);
static_assert(OFFSET_OF(HeadStep, unscreened) == 384);
static_assert(OFFSET_OF(HeadStep, upper) == 392);
static_assert(OFFSET_OF(HeadStep, lower) == 400);
static_assert(OFFSET_OF(HeadStep, upper_maxima) == 408);
static_assert(OFFSET_OF(HeadStep, lower_maxima) == 416);
static_assert(OFFSET_OF(HeadStep, contenders) == 424);
static_assert(OFFSET_OF(HeadStep, counts) == 432);
static_assert(OFFSET_OF(HeadStep, bounds_stride) == 440);
static_assert(OFFSET_OF(HeadStep, bound_tiles) == 444);
static_assert(OFFSET_OF(HeadStep, unscreened_count) == 448);
static_assert(OFFSET_OF(HeadStep, short_width) == 452);
static_assert(OFFSET_OF(HeadStep, short_states) == 456);
static_assert(OFFSET_OF(HeadStep, queue_ids) == 464);
static_assert(OFFSET_OF(HeadStep, queue_stages) == 468);
static_assert(OFFSET_OF(HeadStep, cluster_ids) == 472);
static_assert(OFFSET_OF(HeadStep, special_ids) == 480);
static_assert(OFFSET_OF(HeadStep, scores) == 488);
static_assert(OFFSET_OF(HeadStep, probed) == 496);
static_assert(OFFSET_OF(HeadStep, cluster_capacity) == 504);
static_assert(OFFSET_OF(HeadStep, clusters) == 508);
static_assert(OFFSET_OF(HeadStep, probes) == 512);
static_assert(OFFSET_OF(HeadStep, special_count) == 516);
