// step.cuh: what a step hands to its kernels, as the host lays it out.
//
// Twins      src/abi.rs, held equal by tests/abi.rs
// Requires   slots are -1 or below the pool's; pointers are aligned to their types
#pragma once

#include "platform/portability.cuh"

// Ids per tile, and how many of them a lane has.
#define TILE 256
#define ITEMS_PER_LANE 8

// Words of a bitmask per tile.
#define MASK_WORDS (TILE / 32)

// The token of a row that has none.
#define NO_TOKEN (-1)

// What a request asks for, in Params::features.
enum Features : u32 {
    FEATURE_GREEDY = 1 << 0,
    // Filters act on the unfiltered row each, and what they keep is intersected (F9).
    FEATURE_JOINT = 1 << 1,
    FEATURE_DYNAMIC_TEMPERATURE = 1 << 2,
    FEATURE_MIROSTAT = 1 << 3,
    // The filters see the row at temperature 1 (F8).
    FEATURE_TEMPERATURE_LAST = 1 << 4,
    // The request has edits of ids: Request::entries is there.
    FEATURE_EDITS = 1 << 5,
    // Ids may be banned for good: Request::allowed is there.
    FEATURE_BANNED_IDS = 1 << 6,
    // Some edits depend on the history's end and are found anew in each step: DRY and the bans of E4.
    FEATURE_HISTORY_EDITS = 1 << 7,
    FEATURE_LOGPROBS = 1 << 8,
    // Every id of the history has an entry, and so gets the next token.
    FEATURE_TOKEN_COUNTS = 1 << 9,
    // The filters keep a short set as a rule and can be done on a list.
    FEATURE_CANDIDATES = 1 << 10,
    // A filter asks for the mass of the whole row, the first one or joint top-p: the survey tells it about.
    FEATURE_FILTER_SUMS = 1 << 11,
    // The history is kept though no edit reads it.
    FEATURE_KEEP_HISTORY = 1 << 12,
    // The logprobs ask for the mass of the whole row, at Params::logprob_log2e_over_t: the survey tells it.
    FEATURE_LOGPROB_SUMS = 1 << 13,
    // Of no other token than the row's own: neither the first ones nor given ids.
    FEATURE_TOKEN_LOGPROB_ONLY = 1 << 14,
};

// Filters, as they stand in Params::filter_chain.
enum Filter : u32 {
    FILTER_TOP_N_SIGMA = 1,
    FILTER_TOP_K = 2,
    FILTER_TYPICAL_P = 3,
    FILTER_TOP_P = 4,
    FILTER_MIN_P = 5,
    FILTER_EPSILON = 6,
    FILTER_ETA = 7,
    FILTER_XTC = 8,
};

enum Scope : u32 { SCOPE_NONE = 0, SCOPE_PROMPT = 1, SCOPE_OUTPUT = 2, SCOPE_BOTH = 3 };

enum LogprobMode : u32 { MODE_RAW = 0, MODE_EDITED = 1, MODE_TEMPERED = 2, MODE_PROCESSED = 3 };

// What a request asks for; prepared on the host, so that it is read and not computed here.
struct alignas(16) Params {
    u64 seed;
    // XTC acts if a word is below (F4).
    u64 xtc_probability;
    u32 draw;
    // Bits of ASKS_*.
    u32 features;
    // The filters that are on, in the order they act, four bits each from the lowest; 0 ends.
    u32 filter_chain;
    // As given; 0 in a row that is greedy.
    float temperature;
    float effective_temperature;
    // log2(e) / T of the draw and of the filters (N6, F8).
    float log2e_over_t;
    float filter_log2e_over_t;

    u32 top_k;
    // P of F1.
    u32 top_p;
    u32 typical_p;
    float top_n_sigma;
    // L of each (F2).
    float min_p;
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
    // Of the repetition penalty and of the other two; SCOPE_NONE where a penalty is off.
    u32 repetition_scope;
    u32 penalty_scope;
    float dry_multiplier;
    float dry_base;
    u32 dry_allowed_length;
    u32 no_repeat_ngram;
    u32 min_tokens;

    u32 logprob_mode;
    u32 top_n;
    // The scale of the logprobs, where the survey tells their mass.
    float logprob_log2e_over_t;
    // What edits raise a logit by, at most; infinite where that is not known.
    float max_raise;
    // min_p itself, for rows of probabilities (P1a).
    float min_ratio;
    u32 reserved;
};

// What is known of an id that a request's edits may touch: an entry of a table with open addressing, by id.
struct alignas(16) TokenEntry {
    // The id plus 1; 0 where there is no entry.
    u32 id_plus_1;
    // How often the id stands in the prompt and in the output.
    u32 prompt_count;
    u32 output_count;
    float bias;
    // What DRY takes away (E3), as the bits of an f32, if the high word is the state's step.
    u64 dry_stamp;
    // The id is banned (E4), if this is the state's step.
    u32 ban_step;
    u32 reserved;
};

// Lists of a request, each in memory of its own.
struct alignas(16) Request {
    // Prompt, then output; room for `history_capacity` ids. There with FEATURE_TOKEN_COUNTS, FEATURE_HISTORY_EDITS or FEATURE_KEEP_HISTORY.
    u32* history;
    // `entries_mask + 1` entries, a power of two, at most half of them in use.
    TokenEntry* entries;
    // A bit for each id that has an entry, over whole tiles.
    u32* touched;
    // A bit for each id that is not banned for good, over whole tiles.
    const u32* allowed;
    const u32* stop_ids;
    const u32* breakers;
    // The bad words, one after the other, and where each ends.
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

// Where a request stands; a step moves it on.
struct alignas(16) State {
    u32 position;
    float mirostat_mu;
    // How many ids the history has, and how many of them are prompt.
    u32 length;
    u32 prompt_length;
    // How many steps the request has seen, from 1 in the first: what Entry's stamps are held to.
    u32 step;
    u32 reserved[3];
};

// What the survey learns of a tile.
struct alignas(16) TileRecord {
    // Of the edited logits; -inf in a tile of nothing.
    float maximum;
    // log2 of the tile's first arrival.
    float log2_first_arrival;
    // log2 of the arrival of the first token of the order.
    float log2_max_arrival;
    // Where that token lies in the tile, in the low byte; above, the status bits of odd values in this or a
    // neighbouring tile; in the upper 22 bits what none of the tile's other logits exceeds, as ordered bits.
    u32 packed;
};

// What logprobs ask of a tile.
struct alignas(16) TileSum {
    // The sum of the weights of its tokens (M3), relative to the maximum.
    u64 sum;
    // -inf in a tile of nothing.
    float maximum;
    u32 reserved;
};

// Bits of Step::flags.
enum StepFlags : u32 {
    // Forced tokens are scored: row i stands i tokens further on than its request, which stays where it is.
    STEP_SCORING = 1,
    // Nothing is done on lists: for tests of what is done where they are too long.
    STEP_NO_CANDIDATES = 2,
    // Step::tokens has numbers of 64 bits.
    STEP_TOKENS_I64 = 4,
    // Step::tokens has 0 for a row without a token.
    STEP_ZERO_FOR_NONE = 8,
    // Row i has slot i unless it is padding, which has a request as well: the survey need not wait to be told so.
    STEP_SLOT_IS_ROW = 16,
};

// One step of a batch.
struct Step {
    // Lines of vocab elements, `stride` elements apart.
    const void* logits;
    u64 stride;
    u32 rows;
    u32 vocab;
    u32 tiles;
    u32 blocks_per_row;
    u32 flags;
    // Words in a row of the mask; further ids are forbidden.
    u32 mask_words;
    u64 mask_stride;
    // [rows]: the line each row reads; null: line i for row i.
    const u32* row_indices;
    // [rows]; -1 is padding.
    const int* slots;
    // [rows], -1 where nothing is forced.
    const int* forced;
    // [rows] rows of mask_words words, mask_stride words apart; null where there is no grammar.
    const u32* masks;
    // [rows]; 0 where a row has no mask; null: all have.
    const u32* mask_present;
    // By slot.
    const Params* params;
    const Request* requests;
    State* states;
    // [rows, tiles]
    TileRecord* records;
    // [rows, tiles]: about the sum of the weights of a tile's tokens at the scale of the filters, within 2^-19 of it; in
    // rows with FEATURE_FILTER_SUMS.
    u64* filter_sums;
    // [rows, tiles]: of the raw logits in mode raw, else of the edited ones; in rows with FEATURE_LOGPROB_SUMS.
    TileSum* logprob_sums;
    // [lines, tiles]: records without arrivals, where several rows read one line; else null.
    const TileRecord* shared_records;
    // [rows, scratch_words]: for what does not fit on chip.
    u64* scratch;
    u64 scratch_words;
    // Sections as Layout has them.
    u32* outputs;
    u32 top_n_width;
    u32 ids_width;
    // [rows, tiles * MASK_WORDS]: the kept set, a bit for each id; null unless asked for.
    u32* kept_bits;
    // (2^32 - 1) / blocks_per_row.
    u32 blocks_per_row_inverse;
    // How many parts a long row is dealt out in (work_sharing.cuh); 0 if there are no blocks to help.
    u32 chunks;
    // [CHUNKS_LEFT + rows]
    u32* work_sharing;
    // [lines, tiles]: the sums of `shared_records`, in rows with FEATURE_FILTER_SUMS.
    const u64* shared_filter_sums;
    // [rows], each once more where an operator's caller wants it; else null. Padding is then a row without a line: it is empty.
    void* tokens;
    u32* statuses;
    // [rows] rows of vocab elements of `prefill_element_bytes` bytes, `prefill_stride_bytes` bytes apart, that the survey fills with nothing: the elements'
    // bits, in each half of the word if they are short. Null: none are.
    void* prefill_out;
    u64 prefill_stride_bytes;
    u32 prefill_element_bytes;
    u32 prefill_word;
};

// Step::work_sharing: in the first word, how many rows need no more help; from CHUNKS_LEFT on, how many parts of each row's tiles are left.
#define RETIRED_ROWS 0
#define CHUNKS_LEFT 32
