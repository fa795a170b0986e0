// step.cuh: the argument of a step's kernels, and what its kernels and the host must agree on.
//
// Requires   slots are -1 or below the pool's; pointers are aligned to their types
//
// Generated from src/abi/step.rs. This file is a copy for readers: no compiler reads it.
#pragma once

#include "platform/portability.cuh"

// Ids per tile, and how many of them each lane of a warp has.
#define TILE 256
#define ITEMS_PER_LANE 8

// Words of a bitmask per tile.
#define MASK_WORDS 8

// The most tiles of a row.
#define MAX_TILES 4096

// The token of a row that has none.
#define NO_TOKEN (-1)

// The largest top-k for which a candidate list is tried first.
#define MAX_LISTED_TOP_K 256

// The factor of an id's hash: its high bits choose where the search for the id's entry begins.
#define ENTRY_HASH 0x9E3779B1u

// The usual number of threads of a block that handles a row.
#define ROW_THREADS 512

// The most threads of a block of each kernel.
#define HISTORY_EDITS_THREADS 512
#define FINISH_GENERAL_THREADS 512
#define FINISH_SIMPLE_THREADS 1024
#define FINISH_CANDIDATES_THREADS 1024
#define FINISH_CANDIDATES_LOGPROB_THREADS 640

// The warps of a block of survey, and how many tiles each takes if tiles are few or many.
#define SURVEY_BLOCK_WARPS 8
#define SURVEY_FEW_TILES 1
#define SURVEY_MANY_TILES 4

// The warps of a block of survey_edited, and how many tiles each takes, if tiles are few, some or
// many.
#define EDITED_FEW_WARPS 8
#define EDITED_FEW_TILES 1
#define EDITED_MEDIUM_WARPS 4
#define EDITED_MEDIUM_TILES 4
#define EDITED_MANY_WARPS 4
#define EDITED_MANY_TILES 8

// The warps of a block of survey_draw; each takes one tile.
#define SURVEY_DRAW_WARPS 8

// The threads of a block of records_from_shared_rows; each makes the record of one tile.
#define SHARED_ROWS_THREADS 256

// The sections of the outputs that have a word for each row, and the number of such sections. The others
// follow: see `Layout` in gumball-spec.
enum OutputSection : u32 {
    OUTPUT_TOKENS = 0,
    OUTPUT_STATUSES = 1,
    OUTPUT_LOGPROBS = 2,
    OUTPUT_RANKS = 3,
    OUTPUT_TEMPERATURES = 4,
    OUTPUT_MIROSTAT_MU = 5,
    OUTPUT_SECTIONS = 6,
};

// Status bits of a row.
enum Status : u32 {
    STATUS_NAN = 1 << 0,
    STATUS_INF = 1 << 1,
    STATUS_EMPTY = 1 << 2,
    STATUS_NO_TREE = 1 << 3,
};

// What a request needs, as bits of `Params::features`.
enum Features : u32 {
    FEATURE_GREEDY = 1 << 0,
    // Each filter acts on the whole row, and the intervals that they keep are intersected (F9).
    FEATURE_JOINT = 1 << 1,
    FEATURE_DYNAMIC_TEMPERATURE = 1 << 2,
    FEATURE_MIROSTAT = 1 << 3,
    // The filters compute at temperature 1 (F8).
    FEATURE_TEMPERATURE_LAST = 1 << 4,
    // The request edits single ids: `Request::entries` exists.
    FEATURE_EDITS = 1 << 5,
    // The request bans ids permanently: `Request::allowed` exists.
    FEATURE_BANNED_IDS = 1 << 6,
    // Some edits depend on the end of the history: DRY and the bans of E4. The kernel `history_edits` finds them
    // in each step.
    FEATURE_HISTORY_EDITS = 1 << 7,
    FEATURE_LOGPROBS = 1 << 8,
    // Every id of the history has an entry; an emitted token gets one if it has none.
    FEATURE_TOKEN_COUNTS = 1 << 9,
    // The filters usually keep few tokens, so kernels try them on a candidate list first.
    FEATURE_CANDIDATES = 1 << 10,
    // The first filter, or joint top-p, needs the mass of the whole row: the survey writes approximate
    // sums.
    FEATURE_FILTER_SUMS = 1 << 11,
    // The history is kept although no edit reads it.
    FEATURE_KEEP_HISTORY = 1 << 12,
    // The logprobs need the mass of the whole row at `Params::logprob_log2e_over_t`: the survey writes
    // exact sums.
    FEATURE_LOGPROB_SUMS = 1 << 13,
    // Logprobs are reported for the row's own token only: neither for the top n nor for given ids.
    FEATURE_TOKEN_LOGPROB_ONLY = 1 << 14,
    // The row stands behind drafts and shares the entries of its request. `Request::history` has the drafts before the
    // row, `Request::history_capacity` of them; they count as output, beside what the entries count.
    FEATURE_DRAFT_PATH = 1 << 15,
};

// Filters, as codes in `Params::filter_chain`.
enum Filter : u32 {
    FILTER_TOP_N_SIGMA = 1,
    FILTER_TOP_K = 2,
    FILTER_TYPICAL_P = 3,
    FILTER_TOP_P = 4,
    FILTER_MIN_P = 5,
    FILTER_EPSILON = 6,
    FILTER_ETA = 7,
    FILTER_XTC = 8,
    FILTER_TOP_A = 9,
    FILTER_P_LESS = 10,
};

// Which tokens a penalty counts: values of `Params::repetition_scope` and `Params::penalty_scope`.
enum Scope : u32 {
    SCOPE_NONE = 0,
    SCOPE_PROMPT = 1,
    SCOPE_OUTPUT = 2,
    SCOPE_BOTH = 3,
};

// Which distribution logprobs are of: values of `Params::logprob_mode`.
enum LogprobMode : u32 {
    MODE_RAW = 0,
    MODE_EDITED = 1,
    MODE_TEMPERED = 2,
    MODE_PROCESSED = 3,
};

// The parameters of a request. The host prepares them, so that kernels read them and compute nothing.
struct alignas(16) Params {
    u64 seed;
    // ceil(probability * 2^32): XTC acts if its random word is less (F4).
    u64 xtc_probability;
    // The filters that are on, in the order they act, four bits each from the lowest; 0 ends the list.
    u64 filter_chain;
    u32 draw;
    // Bits of `Features`.
    u32 features;
    // As given.
    float temperature;
    // The temperature of the draw; 0 in a greedy request, and under dynamic temperature, where kernels
    // compute it (F7).
    float effective_temperature;
    // log2(e) / T of the draw and of the filters (N6, F8).
    float log2e_over_t;
    float filter_log2e_over_t;
    u32 top_k;
    // P of F1, for each of the two.
    u32 top_p;
    u32 typical_p;
    float top_n_sigma;
    // L of each threshold, a base-2 logarithm (F2, F4).
    float log2_min_p;
    float top_a;
    float epsilon;
    float eta;
    float xtc_threshold;
    float dynamic_min;
    float dynamic_max;
    float dynamic_exponent;
    float mirostat_tau;
    float mirostat_eta;
    float repetition_penalty;
    float frequency_penalty;
    float presence_penalty;
    // Scope of the repetition penalty, and of the other two; `SCOPE_NONE` if the penalty is off.
    u32 repetition_scope;
    u32 penalty_scope;
    float dry_multiplier;
    float dry_base;
    u32 dry_allowed_length;
    u32 no_repeat_ngram;
    u32 min_tokens;
    u32 logprob_mode;
    u32 top_n;
    // The scale of the logprobs, with `FEATURE_LOGPROB_SUMS`.
    float logprob_log2e_over_t;
    // The most by which edits raise a logit; infinite if the host knows no bound.
    float max_raise;
    // min_p itself. Rows of probabilities compare with it times the first probability, and never read
    // `log2_min_p` (P1a).
    float min_ratio;
    u32 reserved[3];
};

// What a request's edits know of one id: an entry of a hash table with open addressing.
struct alignas(16) TokenEntry {
    // The id plus 1; 0 in an empty entry.
    u32 id_plus_1;
    // How often the id occurs in the prompt and in the output.
    u32 prompt_count;
    u32 output_count;
    float bias;
    // The high word is a step. If it equals `State::step`, the low word is the f32 that DRY subtracts
    // (E3), as bits.
    u64 dry_stamp;
    // The id is banned (E4) if this equals `State::step`.
    u32 ban_step;
    u32 reserved;
};

// The lists of a request. Each is an array of its own.
struct alignas(16) Request {
    // Prompt, then output; capacity for `history_capacity` ids. Exists with `FEATURE_TOKEN_COUNTS`,
    // `FEATURE_HISTORY_EDITS` or `FEATURE_KEEP_HISTORY`.
    u32* history;
    // `entries_mask + 1` entries, a power of two, of which at most half are used.
    TokenEntry* entries;
    // A bit per id, set if the id has an entry; covers whole tiles.
    u32* touched;
    // A bit per id, set unless the id is banned permanently; covers whole tiles.
    const u32* allowed;
    const u32* stop_ids;
    const u32* breakers;
    // The bad words, one after the other, and the index at which each ends.
    const u32* bad_words;
    const u32* bad_word_ends;
    const u32* logprob_ids;
    u32 history_capacity;
    u32 entries_mask;
    u32 stop_count;
    u32 breaker_count;
    u32 bad_word_count;
    u32 logprob_id_count;
};

// The state of a request. A step advances it.
struct alignas(16) State {
    u32 position;
    float mirostat_mu;
    // Ids in the history, and how many of them are prompt.
    u32 length;
    u32 prompt_length;
    // Counts the request's steps: 1 in the first. Kernels compare the stamps of TokenEntry with it.
    u32 step;
    // Mirostat's limit before the last output token; NaN if it is not known.
    float mu_before;
    u32 reserved[2];
};

// The survey's result for a tile.
struct alignas(16) TileRecord {
    // The maximum of the edited values; `MASKED_VALUE` in a tile without tokens.
    float maximum;
    // log2 of the tile's first arrival.
    float log2_first_arrival;
    // log2 of the arrival of the tile's first token in the order.
    float log2_max_arrival;
    // Bits 0 to 7: the offset of that token in the tile. Bits 8 and 9: status bits of the values in this
    // tile or a neighbouring one. Bits 10 to 31: the upper bits of a bound that no other value of the
    // tile exceeds, as ordered bits.
    u32 packed;
};

// A tile's sum of weights, for logprobs and for the softmax.
struct alignas(16) TileSum {
    // The sum of the weights of its tokens (M3), relative to the maximum.
    u64 sum;
    // `MASKED_VALUE` in a tile without tokens.
    float maximum;
    // 0; in the softmax kernels the status bits of the tile, or of all tiles of its warp.
    u32 reserved;
};

// Bits of `Step::flags`.
enum StepFlags : u32 {
    // Forced tokens are known ones: row i is i tokens further on than its request, which does not advance.
    STEP_KNOWN_TOKENS = 1 << 0,
    // For tests: no candidate lists, so that rows take the path of those whose candidates are too many.
    STEP_NO_CANDIDATES = 1 << 1,
    // `Step::tokens` has elements of 64 bits.
    STEP_TOKENS_I64 = 1 << 2,
    // `Step::tokens` gets 0 for a row without a token.
    STEP_ZERO_FOR_NONE = 1 << 3,
    // Row i has slot i or is padding, and slot i has a request in either case: the survey need not wait
    // for `slots`.
    STEP_SLOT_IS_ROW = 1 << 4,
    // No row advances its request.
    STEP_NO_ADVANCE = 1 << 5,
};

// The argument of the kernels of a step.
struct Step {
    // Rows of vocab elements, `stride` elements apart.
    const void* logits;
    u64 stride;
    u32 rows;
    u32 vocab;
    u32 tiles;
    u32 blocks_per_row;
    u32 flags;
    // Words per row of the mask; ids beyond them are banned.
    u32 mask_words;
    u64 mask_stride;
    // `[rows]`: the row of logits that each row reads. Null: row i reads row i of the logits.
    const u32* row_indices;
    // `[rows]`; -1 is padding.
    const int* slots;
    // `[rows]`; -1 where no token is forced.
    const int* forced;
    // `[rows]` rows of `mask_words` words, `mask_stride` words apart; null if no row has a mask.
    const u32* masks;
    // `[rows]`; 0 for a row without a mask. Null: every row has one.
    const u32* mask_present;
    // Indexed by slot.
    const Params* params;
    const Request* requests;
    State* states;
    // `[rows, tiles]`
    TileRecord* records;
    // `[rows, tiles]`, in rows with `FEATURE_FILTER_SUMS`: the sum of the weights of a tile's tokens at
    // the scale of the filters. It is within 2^-19 of the exact sum.
    u64* filter_sums;
    // `[rows, tiles]`, in rows with `FEATURE_LOGPROB_SUMS`: exact sums, of the raw logits in mode raw,
    // otherwise of the edited ones.
    TileSum* logprob_sums;
    // `[rows of logits, tiles]`: records without arrivals, if several rows read one row of logits;
    // otherwise null.
    const TileRecord* shared_records;
    // `[rows, scratch_words]`: for what does not fit shared memory.
    u64* scratch;
    u64 scratch_words;
    // All outputs of the step; `Layout` in gumball-spec defines the sections.
    u32* outputs;
    u32 top_n_width;
    u32 ids_width;
    // `[rows, tiles * MASK_WORDS]`: the kept set, a bit per id; null if no caller wants it.
    u32* kept_bits;
    // (2^32 - 1) / blocks_per_row: a block divides its index by a multiplication.
    u32 blocks_per_row_inverse;
    u32 reserved;
    // `[rows of logits, tiles]`: the sums that belong to `shared_records`, in rows with
    // `FEATURE_FILTER_SUMS`.
    const u64* shared_filter_sums;
    // `[rows]` each: copies of the tokens and statuses, if an operator's caller wants them; otherwise
    // null. With `tokens`, padding is a row whose index is out of range; its status is EMPTY.
    void* tokens;
    u32* statuses;
    // `[rows, vocab]`: output rows that the survey pre-fills with 0 or -inf. An element has
    // `prefill_element_bytes` bytes, and rows start `prefill_stride_bytes` bytes apart. `prefill_word`
    // holds the bits of an element, in both halves if it has 16. Null: the survey pre-fills nothing.
    void* prefill_out;
    u64 prefill_stride_bytes;
    u32 prefill_element_bytes;
    u32 prefill_word;
};

// How many keys the list of a bracket holds, which a block sorts at once.
#define LIST_CAPACITY 2048

// The most blocks of a cluster that work on one row.
#define MAX_ROW_BLOCKS 8

// The layout of the structs on the host, in bytes.
static_assert(sizeof(Params) == 176 && alignof(Params) == 16);
static_assert(OFFSET_OF(Params, seed) == 0);
static_assert(OFFSET_OF(Params, xtc_probability) == 8);
static_assert(OFFSET_OF(Params, filter_chain) == 16);
static_assert(OFFSET_OF(Params, draw) == 24);
static_assert(OFFSET_OF(Params, features) == 28);
static_assert(OFFSET_OF(Params, temperature) == 32);
static_assert(OFFSET_OF(Params, effective_temperature) == 36);
static_assert(OFFSET_OF(Params, log2e_over_t) == 40);
static_assert(OFFSET_OF(Params, filter_log2e_over_t) == 44);
static_assert(OFFSET_OF(Params, top_k) == 48);
static_assert(OFFSET_OF(Params, top_p) == 52);
static_assert(OFFSET_OF(Params, typical_p) == 56);
static_assert(OFFSET_OF(Params, top_n_sigma) == 60);
static_assert(OFFSET_OF(Params, log2_min_p) == 64);
static_assert(OFFSET_OF(Params, top_a) == 68);
static_assert(OFFSET_OF(Params, epsilon) == 72);
static_assert(OFFSET_OF(Params, eta) == 76);
static_assert(OFFSET_OF(Params, xtc_threshold) == 80);
static_assert(OFFSET_OF(Params, dynamic_min) == 84);
static_assert(OFFSET_OF(Params, dynamic_max) == 88);
static_assert(OFFSET_OF(Params, dynamic_exponent) == 92);
static_assert(OFFSET_OF(Params, mirostat_tau) == 96);
static_assert(OFFSET_OF(Params, mirostat_eta) == 100);
static_assert(OFFSET_OF(Params, repetition_penalty) == 104);
static_assert(OFFSET_OF(Params, frequency_penalty) == 108);
static_assert(OFFSET_OF(Params, presence_penalty) == 112);
static_assert(OFFSET_OF(Params, repetition_scope) == 116);
static_assert(OFFSET_OF(Params, penalty_scope) == 120);
static_assert(OFFSET_OF(Params, dry_multiplier) == 124);
static_assert(OFFSET_OF(Params, dry_base) == 128);
static_assert(OFFSET_OF(Params, dry_allowed_length) == 132);
static_assert(OFFSET_OF(Params, no_repeat_ngram) == 136);
static_assert(OFFSET_OF(Params, min_tokens) == 140);
static_assert(OFFSET_OF(Params, logprob_mode) == 144);
static_assert(OFFSET_OF(Params, top_n) == 148);
static_assert(OFFSET_OF(Params, logprob_log2e_over_t) == 152);
static_assert(OFFSET_OF(Params, max_raise) == 156);
static_assert(OFFSET_OF(Params, min_ratio) == 160);
static_assert(OFFSET_OF(Params, reserved) == 164);
static_assert(sizeof(TokenEntry) == 32 && alignof(TokenEntry) == 16);
static_assert(OFFSET_OF(TokenEntry, id_plus_1) == 0);
static_assert(OFFSET_OF(TokenEntry, prompt_count) == 4);
static_assert(OFFSET_OF(TokenEntry, output_count) == 8);
static_assert(OFFSET_OF(TokenEntry, bias) == 12);
static_assert(OFFSET_OF(TokenEntry, dry_stamp) == 16);
static_assert(OFFSET_OF(TokenEntry, ban_step) == 24);
static_assert(OFFSET_OF(TokenEntry, reserved) == 28);
static_assert(sizeof(Request) == 96 && alignof(Request) == 16);
static_assert(OFFSET_OF(Request, history) == 0);
static_assert(OFFSET_OF(Request, entries) == 8);
static_assert(OFFSET_OF(Request, touched) == 16);
static_assert(OFFSET_OF(Request, allowed) == 24);
static_assert(OFFSET_OF(Request, stop_ids) == 32);
static_assert(OFFSET_OF(Request, breakers) == 40);
static_assert(OFFSET_OF(Request, bad_words) == 48);
static_assert(OFFSET_OF(Request, bad_word_ends) == 56);
static_assert(OFFSET_OF(Request, logprob_ids) == 64);
static_assert(OFFSET_OF(Request, history_capacity) == 72);
static_assert(OFFSET_OF(Request, entries_mask) == 76);
static_assert(OFFSET_OF(Request, stop_count) == 80);
static_assert(OFFSET_OF(Request, breaker_count) == 84);
static_assert(OFFSET_OF(Request, bad_word_count) == 88);
static_assert(OFFSET_OF(Request, logprob_id_count) == 92);
static_assert(sizeof(State) == 32 && alignof(State) == 16);
static_assert(OFFSET_OF(State, position) == 0);
static_assert(OFFSET_OF(State, mirostat_mu) == 4);
static_assert(OFFSET_OF(State, length) == 8);
static_assert(OFFSET_OF(State, prompt_length) == 12);
static_assert(OFFSET_OF(State, step) == 16);
static_assert(OFFSET_OF(State, mu_before) == 20);
static_assert(OFFSET_OF(State, reserved) == 24);
static_assert(sizeof(TileRecord) == 16 && alignof(TileRecord) == 16);
static_assert(OFFSET_OF(TileRecord, maximum) == 0);
static_assert(OFFSET_OF(TileRecord, log2_first_arrival) == 4);
static_assert(OFFSET_OF(TileRecord, log2_max_arrival) == 8);
static_assert(OFFSET_OF(TileRecord, packed) == 12);
static_assert(sizeof(TileSum) == 16 && alignof(TileSum) == 16);
static_assert(OFFSET_OF(TileSum, sum) == 0);
static_assert(OFFSET_OF(TileSum, maximum) == 8);
static_assert(OFFSET_OF(TileSum, reserved) == 12);
static_assert(sizeof(Step) == 240 && alignof(Step) == 8);
static_assert(OFFSET_OF(Step, logits) == 0);
static_assert(OFFSET_OF(Step, stride) == 8);
static_assert(OFFSET_OF(Step, rows) == 16);
static_assert(OFFSET_OF(Step, vocab) == 20);
static_assert(OFFSET_OF(Step, tiles) == 24);
static_assert(OFFSET_OF(Step, blocks_per_row) == 28);
static_assert(OFFSET_OF(Step, flags) == 32);
static_assert(OFFSET_OF(Step, mask_words) == 36);
static_assert(OFFSET_OF(Step, mask_stride) == 40);
static_assert(OFFSET_OF(Step, row_indices) == 48);
static_assert(OFFSET_OF(Step, slots) == 56);
static_assert(OFFSET_OF(Step, forced) == 64);
static_assert(OFFSET_OF(Step, masks) == 72);
static_assert(OFFSET_OF(Step, mask_present) == 80);
static_assert(OFFSET_OF(Step, params) == 88);
static_assert(OFFSET_OF(Step, requests) == 96);
static_assert(OFFSET_OF(Step, states) == 104);
static_assert(OFFSET_OF(Step, records) == 112);
static_assert(OFFSET_OF(Step, filter_sums) == 120);
static_assert(OFFSET_OF(Step, logprob_sums) == 128);
static_assert(OFFSET_OF(Step, shared_records) == 136);
static_assert(OFFSET_OF(Step, scratch) == 144);
static_assert(OFFSET_OF(Step, scratch_words) == 152);
static_assert(OFFSET_OF(Step, outputs) == 160);
static_assert(OFFSET_OF(Step, top_n_width) == 168);
static_assert(OFFSET_OF(Step, ids_width) == 172);
static_assert(OFFSET_OF(Step, kept_bits) == 176);
static_assert(OFFSET_OF(Step, blocks_per_row_inverse) == 184);
static_assert(OFFSET_OF(Step, reserved) == 188);
static_assert(OFFSET_OF(Step, shared_filter_sums) == 192);
static_assert(OFFSET_OF(Step, tokens) == 200);
static_assert(OFFSET_OF(Step, statuses) == 208);
static_assert(OFFSET_OF(Step, prefill_out) == 216);
static_assert(OFFSET_OF(Step, prefill_stride_bytes) == 224);
static_assert(OFFSET_OF(Step, prefill_element_bytes) == 232);
static_assert(OFFSET_OF(Step, prefill_word) == 236);
