// Gumball: the last step of a language model. Logits in, the next token out.
//
// docs/semantics.md explains the parameters, docs/c.md how to begin; heads are in gumball_heads.h. A function is a
// verb. Its arguments have fields for the memory, the kind of rows, the place where a pool computes, and the judgement
// of drafts. Most programs need ten functions, which stand first:
//
//     gumball_params *params = gumball_params_from_json("{\"temperature\": 0.8, \"top_p\": 0.9}");
//     gumball_pool_config config = {.struct_size = sizeof config, .vocab = 32000};
//     gumball_pool *pool = gumball_pool_new(&config);
//     gumball_outputs *outputs = gumball_outputs_new();
//     int32_t slot; // of one sequence; a pool has many
//     gumball_rows rows = {.matrix = {.data = logits, .rows = 1, .width = 32000}}; // your model's, of the next token
//     gumball_batch batch = {.struct_size = sizeof batch, .slots = &slot, .len = 1};
//     gumball_outputs_view view = {.struct_size = sizeof view};
//     if (gumball_pool_admit(pool, params, prompt, prompt_len, &slot) ||
//         gumball_pool_step(pool, &rows, &batch, outputs) || gumball_outputs_read(outputs, &view))
//         puts(gumball_error_message());
//     else
//         printf("%d\n", (int)view.tokens[0]); // it is in the history now
//     gumball_params_free(params), gumball_outputs_free(outputs), gumball_pool_free(pool);
//
// Errors. Functions that return a gumball_code return GUMBALL_OK or what went wrong. Functions that return a pointer
// return NULL after an error, others the value that they name. What went wrong is told in words, for each thread, by
// gumball_error_message. After an error nothing was drawn or changed, and what a pointer named `out`, `token`, `slot`
// or `len` points to was not written.
//
// Ownership. Who makes a handle frees it, once, with the function of its name, which takes NULL, too. A handle keeps
// alive what it needs: parameters can be freed when a request is admitted, a device when a pool is made. Pointers that
// a handle gives out are the handle's. Arrays that are handed in are read during the call; only memory of a device is
// read later, where it is said.
//
// Structs. Each that is handed in begins with its size: zero it, set struct_size, and set what is not to be the
// default, as above. Programs with an older header go on working. Structs that are written need their struct_size set,
// too. A struct without a struct_size never grows.
//
// Threads. Any thread may use any handle, but one at a time. Devices, operators, parameters that are not changed, and
// outputs that are read may be used by several at the same time. Different handles need no lock, not even where they
// share a device; but a head on a device has memory of its own for a step, so all calls that use it, replays of graphs
// that have it included, take turns.
//
// Cost. The last line of a function says what it costs the thread that calls it:
//     small    A few microseconds, and no wait. On a device at most the fields of a slot are enqueued.
//     copy     As small, and the time to read, check and copy the arguments: texts, ids, lists, prompts, histories.
//     launch   On a device it enqueues kernels, and waits neither for these nor for earlier work. On the host: compute.
//     compute  Rows are computed, and done on return: on the host by this thread and the pool's, on a device after the
//              work that was enqueued before, over ranks once all ranks have sent their part.
//     wait     On a device it waits for the enqueued work, unless the host has the answer already. On the host: copy.
//     setup    Milliseconds to minutes: memory, threads, files or kernels are taken, made or given back, for which all
//              work of a device may be waited for.
// Call small, copy and launch on the thread that serves, compute and wait where it needs the tokens, and setup before
// and after. A first launch loads its kernel, and compiles it if no folder has it, which takes seconds. On a device
// copy and launch wait, too, when memory must grow that enqueued work reads: a history once in `history_growth` tokens.
// No function needs a certain thread, but gumball_error and gumball_error_message speak of the thread that calls them.
//
// The caller vouches that handles are alive, that pointers are NULL or point to as much as is said, and that texts end
// with a NUL. A NULL where something is needed is an error, as is an array or a struct that is not aligned. Texts are
// UTF-8. No exception and no longjmp may leave a function that is called.

#ifndef GUMBALL_H
#define GUMBALL_H

// Made of the sources in bindings/c/src. Do not edit it: GUMBALL_BLESS=1 cargo test -p gumball-c --test header

#include <stddef.h>
#include <stdint.h>

#define GUMBALL_VERSION "0.1.0"
#define GUMBALL_VERSION_MAJOR 0
#define GUMBALL_VERSION_MINOR 1
#define GUMBALL_VERSION_PATCH 0

#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
#define GUMBALL_ENUM(name) enum name : int32_t; typedef enum name name; enum name : int32_t
#else
#define GUMBALL_ENUM(name) typedef int32_t name; enum name
#endif


// The version of this interface, which changes when a function or a constant is removed or changed, not when
// one is added or a struct grows.
#define GUMBALL_ABI_VERSION 1

// The outcome of a call.
GUMBALL_ENUM(gumball_code) {
    GUMBALL_OK = 0,
    // A value lies outside the range of its parameter; a pointer that must be given is NULL.
    GUMBALL_OUT_OF_RANGE = 1,
    // Two parameters exclude each other.
    GUMBALL_CONFLICT = 2,
    // A buffer or list has the wrong length.
    GUMBALL_LENGTH = 3,
    GUMBALL_UNKNOWN = 4,
    // The machine lacks something, memory for instance, or the device failed: no mistake of the caller's.
    GUMBALL_UNAVAILABLE = 5,
    // A text is not the JSON that is read here.
    GUMBALL_JSON = 6,
    // A mistake of the library's own, which is worth a report. No sequence has moved; the memory that the
    // call was to write may hold anything.
    GUMBALL_PANIC = 7,
    // Another process of a group ended, or its connection broke.
    GUMBALL_LOST = 8,
    // Another process of a group did not answer in time.
    GUMBALL_LATE = 9,
    // Another process of a group was made with something else, or is at another step.
    GUMBALL_DISAGREE = 10,
    // Another process of a group sent what none of this version sends.
    GUMBALL_CORRUPT = 11,
    // An earlier exchange of a group failed, which the message tells.
    GUMBALL_BROKEN = 12,
    // A device is lost, with all that lies on it: a kernel read or wrote where it must not, or the device
    // failed. Each later call in this process gets the same error.
    GUMBALL_DEVICE_LOST = 13,
};

// Whose memory something lies in.
GUMBALL_ENUM(gumball_memory) {
    GUMBALL_HOST = 0,
    // The memory of the device that a pool or operators were made with; a CUdeviceptr is cast to a pointer.
    GUMBALL_DEVICE = 1,
};

GUMBALL_ENUM(gumball_dtype) {
    GUMBALL_F32 = 0,
    GUMBALL_BF16 = 1,
    GUMBALL_F16 = 2,
};

// The type of integers; in the memory of the host they have 32 bits.
GUMBALL_ENUM(gumball_int_type) {
    GUMBALL_I32 = 0,
    GUMBALL_I64 = 1,
};

GUMBALL_ENUM(gumball_what) {
    GUMBALL_LOGITS = 0,
    // They need not sum to 1. An id of probability 0 is never drawn; NaN and negative numbers count as 0 and
    // set GUMBALL_STATUS_NAN. Parameters that speak of logits must be off.
    GUMBALL_PROBABILITIES = 1,
    GUMBALL_HIDDEN = 2,
};

// Bits of a row's status, which say what was found in its data.
GUMBALL_ENUM(gumball_status) {
    // A logit that bans and bitmask allow was NaN; it counted as -inf.
    GUMBALL_STATUS_NAN = 1,
    // A logit that bans and bitmask allow was +inf; it counted as FLT_MAX.
    GUMBALL_STATUS_INF = 2,
    // No token was above -inf; the token is -1.
    GUMBALL_STATUS_EMPTY = 4,
    // The parents of the request's drafts, which only a device has read, are no tree; no draft was accepted.
    GUMBALL_STATUS_NO_TREE = 8,
    // A token that only a device has read, of gumball_operators_selected_logprobs, is no id.
    GUMBALL_STATUS_NO_ID = 16,
    // The token was forced by the end of its request's section.
    GUMBALL_STATUS_SECTION = 32,
    // Bans or bitmask forbid the token that the end of a section or of a loop forced.
    GUMBALL_STATUS_FORBIDDEN = 64,
    // A loop was found at the row, or the token was forced because of one.
    GUMBALL_STATUS_LOOP = 128,
    // The caller forced the token.
    GUMBALL_STATUS_FORCED = 256,
    // The row draws by the words of its request's watermark.
    GUMBALL_STATUS_MARKED = 512,
};

// How drafts are judged (docs/semantics.md, "Speculation"). A request without drafts takes a step in any
// mode.
GUMBALL_ENUM(gumball_verify_mode) {
    // A draft is accepted if it is the token that the request would have drawn: the output is the same as
    // without drafts.
    GUMBALL_COUPLED = 0,
    // As GUMBALL_COUPLED, with temperature 0 in every row.
    GUMBALL_GREEDY = 1,
    // By the ratio of the target's and the drafter's probability; emitted tokens have the target's
    // distribution.
    GUMBALL_REJECTION = 2,
    // A chain as a whole, which accepts more than GUMBALL_REJECTION and has the same distribution.
    GUMBALL_BLOCK = 3,
    // Accepts more than the target's distribution warrants.
    GUMBALL_THRESHOLD = 4,
};

GUMBALL_ENUM(gumball_work_kind) {
    // A step of the rows that are assigned: `rows` and `masks`.
    GUMBALL_WORK_STEP = 0,
    // A verification of the drafts that are assigned: `rows`, `masks` and `drafts`.
    GUMBALL_WORK_VERIFY = 1,
    // Drafts of a batch, from its assigned rows: `draft_batch`, `rows`, `masks`, and as `ints` for each row
    // a line with the ids on the path to it. Nothing of a sequence changes. After a path that has an id
    // outside the vocabulary, such as -1, there are no drafts.
    GUMBALL_WORK_DRAFT = 2,
    // A copy of a batch's drafts, the drafts of row r into line r of `ints` from `column` on: `draft_batch`,
    // `ints`, `column`. It joins a chain's drafts.
    GUMBALL_WORK_COPY_DRAFTS = 3,
    // Taking the last tokens of the assigned requests away, as many as `ints` says: none where that is
    // negative or above their number, or 1 with mirostat or adaptive-p.
    GUMBALL_WORK_SHORTEN = 4,
};

// Which requests a step in a graph of the program serves: without filters, with min-p alone, with top-k
// first, up to 320, with top-p after that, with top-p first, with edits, bitmasks and the logprob of the
// emitted token, or all; each variant also serves the requests of the variants before it.
GUMBALL_ENUM(gumball_variant) {
    GUMBALL_NO_FILTER = 0,
    GUMBALL_MIN_P = 1,
    GUMBALL_TOP_K = 2,
    GUMBALL_TOP_K_TOP_P = 3,
    GUMBALL_TOP_P = 4,
    GUMBALL_EDITS = 5,
    GUMBALL_FULL = 6,
};

// How the logits of a step lie on the ranks, and which data is exchanged (docs/scaling.md).
GUMBALL_ENUM(gumball_row_layout) {
    // Each rank has its ids of all rows, gets the others, and samples all rows.
    GUMBALL_GATHER = 0,
    // Each rank has its ids of all rows, and exchanges them for whole rows of the requests that it owns,
    // which it samples.
    GUMBALL_SWAP = 1,
    // Each rank keeps its ids of all rows; only what decides is exchanged.
    GUMBALL_SURVEY = 2,
    // Each rank has whole rows of the requests that it owns.
    GUMBALL_REPLICATED = 3,
};

GUMBALL_ENUM(gumball_step_kind) {
    GUMBALL_DECODE = 0,
    GUMBALL_PREFILL = 1,
    GUMBALL_VERIFY = 2,
};

typedef struct gumball_buffer gumball_buffer;

typedef struct gumball_device gumball_device;

typedef struct gumball_graph gumball_graph;

// An LM head: it makes logits of hidden states (gumball_heads.h).
//
// On the host every logit is a sum in single precision in one order, the same bits on every machine and in
// every batch; pools of the host take it, and several may share one, at the same time too. A head on a
// device computes the tokens and logprobs of the head of the same kind on the host; only a fast one has
// logits of its own. It is for pools that were made with the same gumball_device, and one thread at a time
// uses it.
typedef struct gumball_head gumball_head;

// Operators over rows of logits or probabilities, for engines that hold probabilities or must return them,
// and choose seeds and positions themselves. The result of a row is the one that it has in a pool.
//
// Of operators of a device, the rows, lists and output arrays of a call lie in the device's memory, and its
// structs on the host. A call launches kernels on the device's stream and returns before they are done. It
// may be captured in a graph after a first call, which allocates memory. The values of lists are not checked
// there: a value outside its range counts as the nearest value inside.
typedef struct gumball_operators gumball_operators;

// All outputs of a step or a verification, in memory that is used again: views of it stay valid until the
// outputs are handed to another call.
typedef struct gumball_outputs gumball_outputs;

// How the tokens of a request are chosen; see gumball_params_new.
typedef struct gumball_params gumball_params;

// The requests in flight. A sequence is admitted to a slot, stepped with others in any grouping, and
// released. Which slot it has, what stands beside it in a batch, and where the pool computes, changes none
// of its tokens.
typedef struct gumball_pool gumball_pool;

// Work that lies in a graph of the program's own.
typedef struct gumball_recorded gumball_recorded;

// Chooses the tokens of one sequence, and keeps its history.
typedef struct gumball_sampler gumball_sampler;

// The parts of an error. Texts stay until the thread's next error, and are empty where there is none.
typedef struct {
    // The parameter that it is about, or what is unavailable.
    const char *parameter;
    // Its value, its length, the unknown name, or the parameter it excludes.
    const char *value;
    // The allowed values, the names that are known, or the reason.
    const char *allowed;
} gumball_error_parts;

// How likely it is that a text without a mark scores as much.
typedef struct {
    // The number of the key that the text was looked at with; of several, of the one with the smallest
    // p-value.
    uint32_t key;
    // How many tokens count, namely tokens whose context lies in the text and comes for the first time; and
    // how many do not.
    size_t tokens;
    size_t skipped;
    // The sum of the scores of the tokens that count, whose number is the mean of a text without the mark.
    double score;
    // The natural logarithm of the p-value, which was multiplied by the number of keys or parts that were
    // looked at.
    double ln_p;
} gumball_evidence;

// A part of a text that is marked.
typedef struct {
    // The index of its first id, counted from the end of the prompt, and the index after its last id.
    size_t start;
    size_t end;
    gumball_evidence evidence;
} gumball_marked_part;

// What outputs hold: R rows, with places for the T = `top_n` most likely tokens and for I = `ids` that a
// request names. A pointer is NULL if there is nothing.
//
// A request with n drafts has n + 1 rows, which begin where its rows of logits do; the first ones hold its
// emitted tokens, each with the status, logprobs and ranks of the row that it comes from. The others are as
// of padding.
typedef struct {
    size_t struct_size;
    size_t rows;
    size_t top_n;
    size_t ids;
    // The number of requests; of outputs on a device 0.
    size_t requests;
    // All that follows down to `id_ranks`, in this order and without gaps.
    const uint32_t *words;
    size_t words_len;
    // R: the token of each row, -1 where there is none.
    const int32_t *tokens;
    // R: bits of gumball_status.
    const uint32_t *statuses;
    // R: the token's logprob; -inf if it was not asked for.
    const float *logprobs;
    // R: the token's rank, from 1; 0 if it was not asked for, or is no member.
    const uint32_t *ranks;
    // R: the temperature in use; 0 if greedy.
    const float *temperatures;
    // R: mirostat's limit after the row, in bits, or the mean of adaptive-p; 0 without both.
    const float *mirostat_mu;
    // R: the token's logprob in the second mode; -inf if none was asked for.
    const float *second_logprobs;
    // R x T: the most likely ids, -1 where there are no more.
    const int32_t *top_ids;
    // R x T: their logprobs.
    const float *top_logprobs;
    // R x I: the logprobs of the ids that the request names.
    const float *id_logprobs;
    // R x I: their ranks.
    const uint32_t *id_ranks;
    // For each request how many drafts were accepted.
    const uint32_t *accepted;
    // Of a verification: for each row the row of logits that its token comes from, UINT32_MAX where none was
    // emitted.
    const uint32_t *path;
    // 1 if the rows came from a clustered head, so that all of it counts only the ids that it computed;
    // else 0. Of outputs on a device 0.
    uint64_t is_approximate;
    // Of outputs on a device, if its pool keeps sets: R x `kept_words`, in which bit `id % 32` of word
    // `id / 32` of a row is 1 for a kept id; over ranks that sample a share of the rows each only the first
    // are written, this rank's share. Else NULL; gumball_outputs_kept has the sets of the host.
    const uint32_t *kept;
    size_t kept_words;
} gumball_outputs_view;

// The tokens that a request emitted.
typedef struct {
    // The accepted drafts and one token more, which is -1 from a row without a token; NULL for padding.
    const int32_t *tokens;
    // The rows of logits that these come from, as the batch counts them. These are also the rows whose keys
    // and values a model's cache keeps.
    const uint32_t *rows;
    // The number of both; 0 for padding.
    size_t len;
    size_t accepted;
    // The first row of the outputs that says more of these tokens.
    size_t first_place;
} gumball_emitted;

// The ranks of a pool. All of them hand in the same values, except for `rank`, make the same calls in the
// same turn, and get the outputs that one process with whole rows would get (docs/scaling.md).
//
// A caller's mistake is found before anything is sent. After any other error of a step the group is broken:
// no sequence of this rank was changed by that step, but others may have completed it. To go on, make new
// pools, and resume from the states of one rank.
typedef struct {
    size_t struct_size;
    // The number of this rank, in 0..world.
    size_t rank;
    // The number of ranks, in 1..=1024; of devices in 1..=16.
    size_t world;
    // `world` texts: where each rank listens for those above it, unix:PATH, on one host.
    const char *const *addresses;
    // `world` numbers of ids that each rank has, in turn; NULL: evenly.
    const size_t *split;
    // The layouts that steps may take, by their names with commas between; gather may besides, unless it is
    // replicated alone. NULL: swap,survey.
    const char *layouts;
    // The layout of all steps but prefill; NULL: what GUMBALL_DIST_LAYOUT says, or none.
    const char *layout;
    // auto, unix, or of devices onesided or nccl; NULL: what GUMBALL_DIST_TRANSPORT says, or auto.
    const char *transport;
    // The bytes of a logit, 4 or 2, by which layouts are chosen; devices load the kernels of its types at
    // the start; 0: 4.
    size_t logit_bytes;
    // How many milliseconds a rank is waited for, at start and in each exchange; 0: 30000.
    uint64_t timeout_ms;
    // Above 0: rank `request % world` owns a request; 0: each owns a block of neighbours.
    uint64_t is_modulo;
    // The program's ncclComm_t with these ranks, each on the device of its pool, whose rows go by nccl then;
    // NULL: they make one. Until the pool is made it is not used otherwise; the pool makes one of its own
    // from it, and leaves it to the program.
    void *communicator;
} gumball_ranks;

// The settings of a pool. Fields of another place than the pool's stay zero.
typedef struct {
    size_t struct_size;
    // The number of ids in the vocabulary of all requests, in 1..=2^20.
    size_t vocab;
    // How many sequences can be in flight, in 1..2^31; 0: 256.
    size_t slots;
    // Where the pool computes; NULL: on the host. All memory there is taken at once, except for lists and
    // histories of requests.
    const gumball_device *device;
    // The processes that the logits are spread over, of which this is one; NULL: this one has whole rows.
    // Making the pool waits for all of them.
    const gumball_ranks *ranks;
    // How many of the most likely tokens the outputs have places for, in 0..=2^20; no request may ask for
    // more.
    size_t top_n;
    // How many ids named by a request the outputs have places for, in 0..=2^20.
    size_t ids;
    // The way to the tokens: race or probabilities, on the host also oracle; NULL: race. On a device,
    // probabilities edits nothing: penalties, biases, bans, bitmasks, row_indices and rows of probabilities
    // are GUMBALL_CONFLICT.
    const char *route;
    // Above 0: outputs have the kept set of every row, which costs a sort of it on the host.
    uint32_t kept;
    // Of a device, above 0: it keeps the histories of all requests, not only of those with edits, for
    // programs that do not fetch the outputs of each step.
    uint32_t keep_histories;
    // Of the host: how many threads take the rows of a step, in 1..=1024: 1 is the caller's; 0: the
    // machine's threads, which all such pools share.
    size_t threads;
    // Of the host: the SIMD level, by its name; NULL: the machine's best. The tokens are the same.
    const char *level;
    // Of a device: how many rows a step can have, in 1..2^31; 0: 256.
    size_t rows;
    // Of a device: how many tokens a history can grow by before it is moved, which waits for the device, in
    // 1..2^31; 0: 4096.
    size_t history_growth;
    // Parameters whose watermark requests have that name none; NULL: there is none. A request whose
    // watermark is false in JSON has none.
    const gumball_params *watermark;
    // Above 0: such a request is GUMBALL_OUT_OF_RANGE.
    uint32_t enforce_all;
} gumball_pool_config;

// The data that the next token of a sequence depends on besides its row and its parameters; where it is
// written, the ids stay until the sequence changes. It is read by gumball_sampler_new and
// gumball_pool_resume, in this process or on another machine.
typedef struct {
    size_t struct_size;
    const uint32_t *prompt;
    size_t prompt_len;
    const uint32_t *output;
    size_t output_len;
    uint64_t seed;
    // The number of tokens before the next one, modulo 2^32; more than there are ids, where only the end of
    // a long history is handed in.
    uint32_t position;
    uint32_t draw;
    // Mirostat's limit for the next token, in bits, or the mean of adaptive-p; any number without both.
    float mu;
} gumball_state;

// A matrix of `rows` rows, each of `width` elements, which must not be written while it is read. `stride`:
// how many elements after a row the next one begins; 0: width. The structs that follow have strides of the
// same meaning.
typedef struct {
    const void *data;
    size_t rows;
    size_t width;
    size_t stride;
    gumball_dtype dtype;
    gumball_memory memory;
} gumball_matrix;

// The rows of a call. A row of logits or of probabilities has an element for each id, a hidden state as many
// as its head is wide. A sequence may change from one kind to another.
typedef struct {
    // In direct calls a pool on a device takes rows in the memory of the host, too.
    gumball_matrix matrix;
    // For hidden states the head that makes logits of them, of the pool's vocabulary and on the pool's
    // device; else NULL.
    const gumball_head *head;
    gumball_what what;
} gumball_rows;

// Grammar bitmasks, one for each row of a call: bit `id % 32` of word `id / 32` allows an id, and ids beyond
// a bitmask are forbidden.
typedef struct {
    // The first word, a uint32_t; NULL: no row has a bitmask.
    const void *words;
    size_t rows;
    // The number of words in one. Bitmasks of 0 words forbid every id.
    size_t width;
    size_t stride;
    // For each row whether its bitmask counts; NULL: all do. Not for bitmasks in a device's memory.
    const uint8_t *present;
    gumball_memory memory;
} gumball_masks;

// The program's own edits of a row: sees it after the logit bias and before the bans, as `vocab` floats, and
// may change it. `row` is the row's place in the call, `user` what the batch says. A pool calls it from its
// threads, for several rows at the same time. It leaves the handle alone that calls it.
typedef void (*gumball_hook)(void *user, size_t row, float *logits, size_t vocab);

// The layout that gumball_pool_plan decided for a step, and how many requests it is for.
typedef struct {
    gumball_row_layout layout;
    size_t requests;
    // The number of requests that the layout was decided by: of a graph, the number that it was captured
    // for.
    size_t batch;
} gumball_plan;

// Which requests the rows of a call belong to, and how each is processed. `slots` and `counts` have an
// element for each request, the other lists one for each row; NULL stands for a list that says nothing. A
// request with n drafts has n + 1 rows.
typedef struct {
    size_t struct_size;
    // The slots of the requests, -1 for one without a sequence. No other stands there twice, but in front of
    // rows that drafts are drawn from.
    const int32_t *slots;
    // Their number; where there are no slots, the number of rows, or 0.
    size_t len;
    // How many drafts a verification has for each request, in 0..=64; or how many are in front of each row
    // that drafts are drawn from, in 0..64.
    const uint32_t *counts;
    // How drafts are judged, or will be. Drafts for GUMBALL_BLOCK are drawn by random words of their own.
    gumball_verify_mode mode;
    // For GUMBALL_THRESHOLD, as the next, in 0..=1: a draft of at least this probability is accepted.
    float threshold_single;
    // So it is if a coin times this is below the probability of it and the siblings before it. With 1 for
    // both, tokens have the target's distribution.
    float threshold_acc;
    // Bitmasks of the rows; a draft's is for the row after the drafts on the path to it.
    gumball_masks masks;
    // For each row the token to emit in place of the drawn one, or -1.
    const int32_t *forced;
    // For each row the index of the matrix row that it reads; NULL: row i reads matrix row i.
    const uint32_t *row_indices;
    // The program's own edits, in direct calls of the host.
    gumball_hook hook;
    void *hook_user;
    // For each row whether the hook is called; NULL: for all.
    const uint8_t *hook_rows;
    // Over ranks, what gumball_pool_plan decided; NULL: the pool decides.
    const gumball_plan *plan;
    // In gumball_pool_assign, the number of a batch of drafts whose rows these are; 0: they are the pool's
    // own.
    int64_t draft_batch;
} gumball_batch;

// Integers: a list of `rows`, or `rows` lines of `width`.
typedef struct {
    // The first integer; NULL: there are none.
    const void *data;
    size_t rows;
    // The number of integers in a line; 0: 1.
    size_t width;
    size_t stride;
    gumball_int_type dtype;
    gumball_memory memory;
} gumball_ints;

// The drafts of a batch of requests, request by request; n is the sum of the batch's `counts`. Lists that
// are left zero say nothing. A request whose drafts in a device's memory are no tree takes a step, with
// GUMBALL_STATUS_NO_TREE.
typedef struct {
    size_t struct_size;
    // n ids. One outside the vocabulary, such as -1, is never accepted.
    gumball_ints ids;
    // n parents: -1 for the end of the history, or the number of an earlier draft of the request, from 0.
    // Without parents and links drafts are chains.
    gumball_ints parents;
    // The trees as links between rows, as SGLang holds them, instead of `parents`: for each row, a request's
    // first one included, the row of its first child, counted from the request's first row, or -1. A link
    // leads to a row after its own, and one link to each draft's row.
    gumball_ints first_child;
    // For each row that of its next sibling, or -1; with `first_child`, and only then.
    gumball_ints next_sibling;
    // The probabilities that the drafts were drawn from, float: a row for each row of the batch, of which
    // rows without a draft after them are not used; in the memory of the host without gaps. For
    // GUMBALL_REJECTION and GUMBALL_BLOCK.
    gumball_matrix probs;
} gumball_drafts;

typedef struct {
    // The drafts of each row: 1 for chains.
    size_t siblings;
    // Memory for `siblings` ids for each row, -1 where there are no more.
    int32_t *ids;
    // Memory for `vocab` floats for each row, the probabilities that its drafts are drawn from, as in
    // gumball_drafts; NULL: they are not told.
    float *probs;
} gumball_proposals;

// A known sequence, some of whose tokens are to be scored: row i scores `ids[start + i]`, after all ids
// before it. To score a prompt, `start` is 1; to score an answer, `prompt_len`. Long sequences can be handed
// in piecewise, `start` moving on.
typedef struct {
    size_t struct_size;
    // The parameters. Their `logprobs` say what to report; if absent, the token's raw logprob and rank.
    const gumball_params *params;
    // Prompt and output.
    const uint32_t *ids;
    size_t ids_len;
    // How many of them are prompt, for the penalties that tell it from output.
    size_t prompt_len;
    size_t start;
    // For hidden states: how many rows are computed at a time: 4 bytes for each id of each, 12 with a
    // screen, up to 8 and 12 for each cluster with a clustered one; 0: all.
    size_t chunk_rows;
} gumball_scored;

typedef struct {
    size_t struct_size;
    size_t vocab;
    size_t slots;
    // How many sequences are in flight.
    size_t len;
    size_t rank;
    size_t world;
    // This rank, 0 of 1 without others, has the logits of the ids from this one to `end_id`.
    size_t first_id;
    size_t end_id;
    // The most ids of a rank, to which rows of logits may be padded.
    size_t most_ids;
    // The name of the transport of rows that was taken, unix, or onesided or nccl on devices, which is the
    // pool's; without ranks NULL.
    const char *transport;
    // Why rows on devices take another transport or fewer layouts than they would in another place, in words
    // that are the pool's; NULL if they do not.
    const char *warning;
    // 1 if steps of the assigned rows send whole rows to other ranks' devices.
    uint64_t sends_rows;
} gumball_pool_info;

// Numbers since a pool or a head was made; a number that is not counted at its place stays 0.
typedef struct {
    size_t struct_size;
    // Rows whose logits were all computed from hidden states. Heads on a device count rows and logits
    // themselves: gumball_head_counts.
    uint64_t whole_rows;
    // Rows that a part of their logits decided by a screen, and how many that took.
    uint64_t certified_rows;
    uint64_t certified_logits;
    // Rows of which a clustered head computed the probed clusters alone, and how many logits that took; one
    // that several rows need counts for each.
    uint64_t clustered_rows;
    uint64_t clustered_logits;
    // How many times all weights, a screen, and centroids were read: once for all rows of a call, or of a
    // chunk of a score, that need them.
    uint64_t weight_reads;
    uint64_t screen_reads;
    uint64_t centroid_reads;
    // How many steps each gumball_variant has served on a device: those for replays of the program's graphs
    // as it was named, others as their rows need.
    uint64_t variant_steps[7];
    // How many steps each gumball_row_layout has served.
    uint64_t layout_steps[4];
    // How many bytes this rank has sent to others, without the 44 in front of each message; devices write
    // into each other's memory instead.
    uint64_t sent_bytes;
    uint64_t received_bytes;
} gumball_counts;

// A piece of work, for the assigned rows. Fields that its kind does not name stay zero. Arrays in a device's
// memory and heads stay until the work is done, and of a graph as long as it is replayed.
typedef struct {
    size_t struct_size;
    gumball_rows rows;
    // Bitmasks in the device's memory, in place of the assigned bitmasks.
    gumball_masks masks;
    const gumball_drafts *drafts;
    gumball_ints ints;
    // The column of `ints` that a row's first draft goes to.
    size_t column;
    int64_t draft_batch;
    gumball_work_kind kind;
} gumball_work;

// The settings of a sampler; `vocab`, `route`, `level` and `kept` are as in gumball_pool_config.
typedef struct {
    size_t struct_size;
    size_t vocab;
    const char *route;
    const char *level;
    // The draw index, which tells sequences of the same seed and history apart.
    uint32_t draw;
    uint32_t kept;
} gumball_sampler_config;

// A token with its logprob and its rank: -1 where there is no further member, -inf and 0 for a token that is
// no member.
typedef struct {
    int32_t id;
    float logprob;
    uint32_t rank;
} gumball_token_logprob;

// The outputs of a row, as in gumball_outputs_view. Pointers are NULL if there is nothing, and always from
// gumball_sampler_sample_n; their lists stay until the next call with this sampler.
typedef struct {
    // The id; -1 if no token was above -inf and none was forced.
    int32_t id;
    uint32_t status;
    float temperature;
    float logprob;
    uint32_t rank;
    float second_logprob;
    // The most likely tokens, as many as the parameters ask for.
    const gumball_token_logprob *top;
    size_t top_len;
    // The ids that the parameters name.
    const gumball_token_logprob *ids;
    size_t ids_len;
    // The ids that the filters kept, in the order of tokens, if the config asked for them.
    const uint32_t *kept;
    size_t kept_len;
} gumball_token;

// The row, seed, position and draw index of each output, or of each draft tree, with the meaning that they
// have for a sequence. A list has one element per output and lies where the rows do; a value for all outputs
// lies on the host. A seed needs a position: a loop that gives none would draw every token by the same
// random words. Without both, each call draws by fresh entropy, which the capture of a graph refuses. A
// value for all outputs is the same in every replay.
typedef struct {
    size_t struct_size;
    size_t outputs;
    // For each output the index of the matrix row that it is drawn from, any number of times; NULL: output i
    // from row i. Not for draft trees.
    const uint32_t *row_indices;
    // The seed of all outputs; or NULL.
    const uint64_t *seed;
    // The seed of each; or NULL.
    const uint64_t *seeds;
    // The position of all outputs: the number of tokens before them; or NULL. That of a draft tree is the
    // position of its first draft.
    const uint32_t *position;
    // The position of each; or NULL.
    const uint32_t *positions;
    // The draw index of each; NULL: the output's own index, so that outputs with equal seed and position
    // draw independently.
    const uint32_t *draws;
    // The slot of each request: the index of its elements in all lists of these draws and of
    // gumball_row_params, which are pools then, kept for many requests. Outputs are one for each row. On a
    // device a slot that no pool has yields -1 and GUMBALL_STATUS_EMPTY. NULL: there are no pools.
    const uint32_t *slots;
    // The number of elements of each pool.
    size_t size;
    // How many neighbouring rows a request has, of which each is one position on; 0: one.
    size_t rows_per_slot;
    // With `slots`, instead of `positions` and `draws`: a pool of words whose low halves are positions and
    // whose high halves are draw indices; or NULL.
    const int64_t *offsets;
} gumball_draws;

// Where the results of T trees of n drafts each are written, in the memory of the operators. A list that is
// NULL, which `tokens` is not, is not written.
typedef struct {
    // T x (n + 1): the accepted drafts, the token drawn after them, then -1.
    int32_t *tokens;
    // T x (n + 1): the rows that the tokens come from, then -1.
    int32_t *rows;
    // T: the number of accepted drafts.
    uint32_t *accepted;
    // T, for chains by GUMBALL_REJECTION with `probs` alone: the number of drafts that would be accepted if
    // each were judged by itself.
    uint32_t *accepted_alone;
    // T: bits of gumball_status of the rows that the last token was drawn from.
    uint32_t *statuses;
} gumball_judged;

// The parameters of the rows of a batch. A list has one element per row and lies where the rows do; NULL:
// the value in `params`, for all rows.
typedef struct {
    size_t struct_size;
    // The parameters of all rows; NULL: neutral parameters. Rules that read a history find it empty; seed
    // and logprobs are not read.
    const gumball_params *params;
    const float *temperature;
    const int64_t *top_k;
    const float *top_p;
    const float *min_p;
} gumball_row_params;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes parameters of JSON, an object of the fields that are not neutral: `{"temperature": 0.8, "dry":
// {"multiplier": 0.8}, "logprobs": {"top_n": 5}}`. The fields with their ranges and meanings stand in the
// parameters' table of docs/semantics.md.
//
// Cost: copy.
gumball_params *gumball_params_from_json(const char *json);

// Makes an empty pool; over ranks when all of them have come.
//
// Cost: setup.
gumball_pool *gumball_pool_new(const gumball_pool_config *config);

// Cost: small.
gumball_outputs *gumball_outputs_new(void);

// Admits a request and tells its slot. On a device it waits only if the lists and the history that the
// request's edits read are longer than those of all earlier requests of the slot. Over ranks there must be a
// seed.
//
// Cost: copy.
gumball_code gumball_pool_admit(gumball_pool *pool, const gumball_params *params, const uint32_t *prompt, size_t prompt_len, int32_t *slot);

// Chooses the next token of each row, and appends it to the sequence in the row's slot.
//
// `rows`: one for each slot of `batch`, but where that has `row_indices`. Over ranks: of the ids of this
// rank, which may be padded to `most_ids` of gumball_pool_info; under GUMBALL_REPLICATED whole rows of the
// requests that it owns, in turn; the batch is the same on all ranks. A row that yields -1 leaves its
// sequence as it was.
//
// From hidden states, the outputs are, bit for bit, the outputs from the logits of gumball_head_logits; of a
// clustered head, with -inf for the ids that it does not probe, which `is_approximate` of
// gumball_outputs_view says. The same holds for verifications, drafts and scores.
//
// Cost: compute.
gumball_code gumball_pool_step(gumball_pool *pool, const gumball_rows *rows, const gumball_batch *batch, gumball_outputs *outputs);

// Cost: small.
gumball_code gumball_outputs_read(const gumball_outputs *outputs, gumball_outputs_view *out);

// Returns this thread's last error in words: the parameter, its value and the allowed range. Never NULL; it
// stays until the thread's next error.
//
// Cost: small.
const char *gumball_error_message(void);

// Cost: small.
void gumball_params_free(gumball_params *params);

// Cost: small.
void gumball_outputs_free(gumball_outputs *outputs);

// Ends a pool with its sequences. On a device it waits for the enqueued work; over ranks the next step of
// the others is GUMBALL_LOST.
//
// Cost: setup.
void gumball_pool_free(gumball_pool *pool);

// Returns the code of this thread's last error, GUMBALL_OK if there was none, and writes its parts, unless
// `out` is NULL.
//
// Cost: small.
gumball_code gumball_error(gumball_error_parts *out);

// Returns GUMBALL_ABI_VERSION as the library was built with it: to be compared with the header's.
//
// Cost: small.
uint32_t gumball_abi_version(void);

// Cost: small.
const char *gumball_version(void);

// Opens a device by its name, cuda or cuda:N, on a stream of its own, in the primary context, which the CUDA
// runtime and libraries built on it share. GUMBALL_UNAVAILABLE, which names the missing part, where there is
// no CUDA. A kernel is loaded by its first launch: from the folder that GUMBALL_KERNELS names, or from the
// user's cache (GUMBALL_CACHE), into which it is compiled once.
//
// Cost: setup.
gumball_device *gumball_device_open(const char *name);

// Opens the same device on a stream of the program, a cudaStream_t or CUstream of the primary context (NULL:
// the default one), in turn with the program's own work there. The stream lives longer than the returned
// device and all that is made with it.
//
// Cost: setup.
gumball_device *gumball_device_on_stream(const gumball_device *device, void *stream);

// Ends a handle of a device; pools and operators that were made with it go on.
//
// Cost: setup.
void gumball_device_free(gumball_device *device);

// Takes memory of a device, filled with zeros: for a program that has none of its own.
//
// Cost: setup.
gumball_buffer *gumball_buffer_new(const gumball_device *device, size_t bytes);

// Gives memory back. No step may read it any more.
//
// Cost: setup.
void gumball_buffer_free(gumball_buffer *buffer);

// Cost: small.
void *gumball_buffer_address(const gumball_buffer *buffer);

// Copies bytes to a place in a buffer, in turn with the work on the device's stream. They are taken on
// return.
//
// Cost: copy.
gumball_code gumball_buffer_write(gumball_buffer *buffer, size_t start, const void *data, size_t bytes);

// Copies bytes from a place in a buffer, once the work that is on the device's stream before is done; `data`
// has `bytes` bytes.
//
// Cost: wait.
gumball_code gumball_buffer_read(const gumball_buffer *buffer, size_t start, void *data, size_t bytes);

// Looks for the mark of any of some keys in the ids after a prompt of prompt_len, 0 where it is not known.
// scheme: whose mark, gumball (or NULL), vllm, vllm_dual_key with its alpha after it if that is not 0.1
// (vllm_dual_key=0.3), or sglang with the number of its key_b after it if it has one, and a
// mixing_probability that is not 0.5 (sglang=8, sglang=8,0.3). params have the watermark that the text would
// have been drawn with. keys: numbers of keys in the place of the watermark's own, or NULL. Some 100 ns for
// each id and key.
//
// Cost: compute.
gumball_code gumball_detect(const uint32_t *ids,
                            size_t len,
                            size_t prompt_len,
                            const char *scheme,
                            const gumball_params *params,
                            const uint32_t *keys,
                            size_t key_count,
                            gumball_evidence *evidence);

// Looks for the marked parts of a text by windows of `length` ids (200, say): the parts with a p-value,
// which is multiplied by the number of windows, below `alpha` (1e-4, say). Windows that overlap are one
// part. `needed` is how many parts there are, at most len / length + 1; if `parts_len` is less, `parts`
// stays as it is, and may be NULL. The other arguments are as in gumball_detect; the key is the watermark's.
//
// Cost: compute.
gumball_code gumball_find_marked(const uint32_t *ids,
                                 size_t len,
                                 size_t prompt_len,
                                 const char *scheme,
                                 const gumball_params *params,
                                 size_t length,
                                 double alpha,
                                 gumball_marked_part *parts,
                                 size_t parts_len,
                                 size_t *needed);

// Makes neutral parameters: rows are drawn from as they are, at temperature 1.
//
// Cost: small.
gumball_params *gumball_params_new(void);

// Cost: copy.
gumball_params *gumball_params_clone(const gumball_params *params);

// Returns all parameters as JSON, which stays until the next call of this function or the end of the
// parameters.
//
// Cost: copy.
const char *gumball_params_to_json(gumball_params *params);

// Checks all parameters against their ranges for a vocabulary, as all functions that take parameters do.
//
// Cost: copy.
gumball_code gumball_params_validate(const gumball_params *params, size_t vocab);

// Sets a parameter that is a number, an integer, or 0 or 1, by its name, such as top_p, dry.base and
// logprobs.top_n; numbers are rounded to float. NaN and values that are infinite as a float are refused at
// once, other values outside a range when the parameters are taken.
//
// Cost: small.
gumball_code gumball_params_set(gumball_params *params, const char *name, double value);

// Sets a parameter that is a list of ids, by its name: allowed_ids, of which an empty list bans every id,
// banned_ids, stop_ids, dry.breakers, section.open, section.close, section.end, loops.end,
// logprobs.ids.
//
// Cost: copy.
gumball_code gumball_params_set_ids(gumball_params *params, const char *name, const uint32_t *ids, size_t ids_len);

// Sets any one parameter from JSON, by its name as gumball_params_from_json reads it: `order`,
// `"top_k,top_p"`; `mirostat`, `{"tau": 5, "eta": 0.1}`. NULL makes it neutral again.
//
// Cost: copy.
gumball_code gumball_params_set_json(gumball_params *params, const char *name, const char *json);

// Sets the seed of all draws. Without one, each request draws a fresh one, which its state tells.
//
// Cost: small.
gumball_code gumball_params_set_seed(gumball_params *params, uint64_t seed);

// Returns the seed of the requests that sample one prompt in one turn of a run (rule N10): run is the seed
// of the run, prompt the prompt's number in it, turn how many answers of the conversation came before. The
// samples of a group share the seed, and sample j has the draw index j.
//
// Cost: small.
uint64_t gumball_prompt_seed(uint64_t run, uint64_t prompt, uint32_t turn);

// Returns the seed of one sample of a group whose seed is given, for engines that make a request of each
// sample, with draw index 0.
//
// Cost: small.
uint64_t gumball_sample_seed(uint64_t seed, uint32_t sample);

// Makes keys of watermarks known to the process: a number and a key of 32 hexadecimal digits in each line of
// text, such as that of a file; empty lines and lines that begin with # say nothing. The parameter
// watermark.key names a key by its number, which keeps its key. Nothing shows a key, errors neither.
//
// Cost: copy.
gumball_code gumball_add_watermark_keys(const char *text);

// Sets what is added to the logits of ids; -INFINITY is a ban. An empty list takes it back.
//
// Cost: copy.
gumball_code gumball_params_set_logit_bias(gumball_params *params, const uint32_t *ids, const float *biases, size_t len);

// Writes what came out for a request, by its number in the batch.
//
// Cost: small.
gumball_code gumball_outputs_request(const gumball_outputs *outputs, size_t request, gumball_emitted *out);

// Writes where the last outputs of a pool on a device lie in its memory, for a model to read. The tokens'
// address stays; others move with the number of rows.
//
// Cost: small.
gumball_code gumball_pool_outputs(gumball_pool *pool, gumball_outputs_view *out);

// Returns the ids that a row's filters kept, ascending, and their number; NULL if the row is empty or
// padding, or the pool keeps no sets, or after an error.
//
// Cost: small.
const uint32_t *gumball_outputs_kept(const gumball_outputs *outputs, size_t row, size_t *len);

// Writes how many ids each row's set has to `lengths`, R of them, and the ids of gumball_outputs_kept to
// `ids`, row after row. `needed` is how many ids there are; if `ids_len` is less, `ids` stays as it is, and
// may be NULL.
//
// Cost: copy.
gumball_code gumball_outputs_kept_sets(const gumball_outputs *outputs, uint32_t *lengths, uint32_t *ids, size_t ids_len, size_t *needed);

// Takes up a sequence where it was left, here or elsewhere, with the state's seed and draw index. With
// mirostat or adaptive-p, it cannot be shortened to before the state.
//
// Cost: copy.
gumball_code gumball_pool_resume(gumball_pool *pool, const gumball_params *params, const gumball_state *state, int32_t *slot);

// Copies a sequence to a slot of its own, under another draw index. For n sequences of one request: admit
// it, fork it under 1, 2, .. n - 1, and let all of them read the same row of logits in the first step. On a
// device the copy goes through the host, which may have to wait.
//
// Cost: wait.
gumball_code gumball_pool_fork(gumball_pool *pool, int32_t of, uint32_t draw, int32_t *slot);

// Ends a sequence; its slot is vacant then, and rows that are assigned to it are padding.
//
// Cost: small.
gumball_code gumball_pool_release(gumball_pool *pool, int32_t slot);

// Appends a token that was chosen elsewhere; `mu` stays.
//
// Cost: wait.
gumball_code gumball_pool_push(gumball_pool *pool, int32_t slot, uint32_t id);

// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, which is then as it was
// before them, `mu` included. No slot stands there twice. On a device the states go through the
// host, which may have to wait; GUMBALL_WORK_SHORTEN waits for nothing.
//
// Cost: wait.
gumball_code gumball_pool_shorten(gumball_pool *pool, const int32_t *slots, const size_t *counts, size_t len);

// Tells the state of a slot. On a device it waits where the host does not know the last tokens yet; some may
// be lost, unless the config has `keep_histories`.
//
// Cost: wait.
gumball_code gumball_pool_state(gumball_pool *pool, int32_t slot, gumball_state *out);

// Cost: wait.
gumball_params *gumball_pool_params(gumball_pool *pool, int32_t slot);

// Tells why an auto head must compute every logit of a request's rows, for any hidden state: `reason`
// becomes its name, or NULL if there is none. The name is the pool's, until the next call of this function.
//
// hook: `hooked` is above 0. kept: the pool keeps kept sets, and no filter bounds them. logprobs: of a mode
// whose members are all tokens. dynamic_temperature, mirostat, joint, route; or the filter that acts first.
// Other rows take all logits where a hidden state or many rows need them.
//
// Cost: small.
gumball_code gumball_pool_needs_whole_row(gumball_pool *pool, int32_t slot, uint32_t hooked, const char **reason);

// Verifies the drafts of each request, and appends the emitted tokens to its sequence;
// gumball_outputs_request tells them.
//
// `rows`: a request with n drafts has n + 1, one after the other: one at the end of its history, then one
// after each draft. Without drafts that is a step. The drafts and rows of a slot of -1 are not used. A stop
// id that is emitted is the last token. A request with mirostat or adaptive-p has no drafts. In
// GUMBALL_BLOCK drafts are chains, and no token is forced beside them. Over ranks GUMBALL_SURVEY takes none,
// and `probs` has whole rows of all requests.
//
// Cost: compute.
gumball_code gumball_pool_verify(gumball_pool *pool,
                                 const gumball_rows *rows,
                                 const gumball_batch *batch,
                                 const gumball_drafts *drafts,
                                 gumball_outputs *outputs);

// Draws drafts from rows of a draft model, and changes no sequence. For rows on a device, without a wait,
// see gumball_pool_add_draft_batch.
//
// A row follows the history of the sequence in its slot and a path of drafts. Its first draft is the token
// that the request would draw from it as a row of the target, the others, siblings of a tree, are the
// runners-up. `batch`: a slot for each row, -1 for padding, also several times; its `counts` say how many
// drafts are on the path to each row, `paths` the ids of these drafts, row after row. A forced token is the
// only draft of its row.
//
// Cost: compute.
gumball_code gumball_pool_draft(gumball_pool *pool,
                                const gumball_rows *rows,
                                const gumball_batch *batch,
                                const int32_t *paths,
                                const gumball_proposals *drafts);

// Tells the logprobs of known tokens: what steps would in which they are forced. No slot is touched. The
// outputs have the widths of the request's `logprobs`. `batch`: masks, hooks and row_indices of the rows,
// whose number is its `len`, or where that is 0 the number of `rows`; or NULL.
//
// Cost: compute.
gumball_code gumball_pool_score(gumball_pool *pool,
                                const gumball_rows *rows,
                                const gumball_batch *batch,
                                const gumball_scored *scored,
                                gumball_outputs *outputs);

// Makes a batch of rows of a draft model in a pool on a device, and tells its number, from 1. `rows`: how
// many it may have, in 1..=the pool's rows. `siblings`: how many drafts are drawn from each, 1 for chains.
// `probs`: above 0 the probabilities that they are drawn from are written as well.
//
// Cost: setup.
gumball_code gumball_pool_add_draft_batch(gumball_pool *pool, size_t rows, size_t siblings, uint32_t probs, int64_t *draft_batch);

// Frees a batch. Graphs of the program that hold it must not run any more.
//
// Cost: setup.
gumball_code gumball_pool_remove_draft_batch(gumball_pool *pool, int64_t draft_batch);

// Waits for all work that was enqueued before, and copies the last drafts of a batch; `drafts` has the
// batch's `siblings`, and probabilities only of a batch that writes them.
//
// Cost: wait.
gumball_code gumball_pool_fetch_drafts(gumball_pool *pool, int64_t draft_batch, const gumball_proposals *drafts);

// Tells where a batch's drafts lie in the device's memory, a line for each assigned row, and, unless that is
// NULL, `probs`, of no rows if it writes none.
//
// Cost: small.
gumball_code gumball_pool_drafts(gumball_pool *pool, int64_t draft_batch, gumball_ints *ids, gumball_matrix *probs);

// Cost: small.
gumball_code gumball_pool_describe(const gumball_pool *pool, gumball_pool_info *out);

// Cost: small.
gumball_code gumball_pool_counts(gumball_pool *pool, gumball_counts *out);

// Decides the layout of a step over ranks, before its logits exist. All ranks that ask the same get the
// same; nothing is sent.
//
// `batch`: the step's, of which only `slots`, `counts` and, for GUMBALL_VERIFY, the mode are read.
// `captured`: the number of requests, padding included, that the graph of a replay was captured for; 0: the
// step replays none. `is_data_parallel` above 0: each rank has the hidden states of its own requests only.
//
// Cost: copy.
gumball_code gumball_pool_plan(const gumball_pool *pool,
                               const gumball_batch *batch,
                               gumball_step_kind kind,
                               size_t captured,
                               uint32_t is_data_parallel,
                               gumball_plan *out);

// Tells which rank owns a request of a plan: samples it under GUMBALL_SWAP, and has its rows under
// GUMBALL_REPLICATED.
//
// Cost: small.
gumball_code gumball_pool_owner(const gumball_pool *pool, const gumball_plan *plan, size_t request, size_t *rank);

// Says whose rows the next work is for, that of captured graphs included: of steps, with `counts` of
// verifications, and with `draft_batch` of drafts from that batch. Steps and verifications replace each
// other, and a direct step or verification ends the assignment.
//
// `batch`: as for gumball_pool_step, gumball_pool_verify and gumball_pool_draft, without hooks. On a device
// it waits for nothing, and copies nothing if it is the assigned batch already; a graph of the program's own
// must not be under capture on the stream, unless nothing changed. The first mode but GUMBALL_COUPLED and
// GUMBALL_GREEDY takes memory of the device for the probabilities of the pool's rows.
//
// Cost: copy.
gumball_code gumball_pool_assign(gumball_pool *pool, const gumball_batch *batch);

// Enqueues `len` pieces of work, an array of structs of one size, in their order. On a device it only
// launches kernels, and returns before they are done; on the host all is done on return. Each piece reads
// what those before it have written, and requests as these have left them.
//
// For a graph that the program captures on the device's stream see gumball_pool_record; here a capture is
// GUMBALL_CONFLICT.
//
// Cost: launch.
gumball_code gumball_pool_enqueue(gumball_pool *pool, const gumball_work *work, size_t len);

// Waits for the work that was enqueued so far, and copies the outputs of the last step or verification.
//
// Cost: wait.
gumball_code gumball_pool_fetch(gumball_pool *pool, gumball_outputs *outputs);

// Captures work on a device, to be replayed in this order. Nothing runs yet.
//
// `work`, `len`: as for gumball_pool_enqueue. A replay is for the rows that are assigned at the time:
// requests can be admitted, released and assigned in between, as long as the numbers of requests and rows,
// the modes, and whether there are row_indices and masks, stay.
//
// Cost: setup.
gumball_graph *gumball_pool_capture(gumball_pool *pool, const gumball_work *work, size_t len);

// Enqueues the work of a graph that this pool captured.
//
// Cost: launch.
gumball_code gumball_pool_replay(gumball_pool *pool, const gumball_graph *graph);

// Ends a graph, before or after its pool, when its replays are done.
//
// Cost: setup.
void gumball_graph_free(gumball_graph *graph);

// Tells the smallest variant that serves the rows that are assigned: the one whose graph to replay.
//
// Cost: small.
gumball_code gumball_pool_needed_variant(gumball_pool *pool, gumball_variant *variant);

// Enqueues work as gumball_pool_enqueue does, with the kernels of a variant, and returns what replays of it
// must be announced by. NULL after an error.
//
// While the program captures the device's stream in a graph of its own, the work does not run, but becomes
// part of that graph, which serves later assignments whose requests the variant serves. Otherwise it runs:
// call it so once before the capture, with padding for instance, and the kernels are loaded.
// GUMBALL_OUT_OF_RANGE if a row that is assigned needs more.
//
// Cost: launch.
gumball_recorded *gumball_pool_record(gumball_pool *pool, gumball_variant variant, const gumball_work *work, size_t len);

// Prepares for a replay of a graph of the program's own, for the rows that are assigned, and must be called
// before each: the library does not see it run. `recorded`: the work in the graph, `len` handles in the
// order in which they run; for several replays, that many times. It waits where histories must grow, once in
// `history_growth` tokens. GUMBALL_OUT_OF_RANGE if an assigned row needs more than a variant serves, with
// its slot and the variants that do.
//
// Cost: small.
gumball_code gumball_pool_before_replay(gumball_pool *pool, const gumball_recorded *const *recorded, size_t len);

// Ends what was recorded, before or after its pool; the program's graph stays as it is.
//
// Cost: small.
void gumball_recorded_free(gumball_recorded *recorded);

// Makes a sampler. `state`: where another sampler or pool left the sequence, with its seed and draw index;
// with mirostat or adaptive-p, it cannot be shortened to before the state. NULL: the history is empty;
// gumball_sampler_reset gives it a prompt.
//
// Cost: copy.
gumball_sampler *gumball_sampler_new(const gumball_params *params, const gumball_sampler_config *config, const gumball_state *state);

// Makes a sampler with the same state and another draw index.
//
// Cost: copy.
gumball_sampler *gumball_sampler_fork(const gumball_sampler *sampler, uint32_t draw);

// Cost: small.
void gumball_sampler_free(gumball_sampler *sampler);

// Draws the next token from a row and appends it to the history; an empty row changes nothing.
//
// `row`: one of logits or probabilities, in host memory. `batch`: mask, forced token and hook of this row,
// without slots, or NULL; rows of probabilities have no hook. A forced token is emitted even if it is
// banned; its logprob is the one that it would have had.
//
// Cost: compute.
gumball_code gumball_sampler_sample(gumball_sampler *sampler, const gumball_rows *row, const gumball_batch *batch, gumball_token *token);

// Draws `n` tokens from one row of logits, under the draw indices 0..n: what `n` sequences would draw. It
// appends none; gumball_sampler_push does.
//
// Cost: compute.
gumball_code gumball_sampler_sample_n(gumball_sampler *sampler, const gumball_rows *row, uint32_t n, gumball_token *tokens);

// Appends a token that was chosen elsewhere; `mu` stays.
//
// Cost: small.
gumball_code gumball_sampler_push(gumball_sampler *sampler, uint32_t id);

// Takes back the last `count` output tokens, and `mu` with them.
//
// Cost: copy.
gumball_code gumball_sampler_shorten(gumball_sampler *sampler, size_t count);

// Starts over after a prompt, with the same parameters, seed and draw index.
//
// Cost: copy.
gumball_code gumball_sampler_reset(gumball_sampler *sampler, const uint32_t *prompt, size_t prompt_len);

// Cost: small.
gumball_code gumball_sampler_state(const gumball_sampler *sampler, gumball_state *out);

// Cost: copy.
gumball_params *gumball_sampler_params(const gumball_sampler *sampler);

// Walks each of T trees of n drafts from its root while a draft is accepted, and draws one more token where
// the walk ends.
//
// `rows`: T x (n + 1) of the target's probabilities, float without gaps: row 0 of a tree belongs to its
// root, row i + 1 to draft i. `drafts`: T x n ids, and `parents` of the same tree. Its `probs` are T x n
// rows, or T x (n + 1): rows without children are not read, so the one after the last draft never is. Drafts
// of -1 fill trees of fewer. n is in 0..=64; any number for chains by GUMBALL_REJECTION with `probs`, which
// are fastest. On a device a tree whose parents are none accepts no draft, and has GUMBALL_STATUS_NO_TREE.
// `draws`: one output per tree.
//
// `mode`: GUMBALL_REJECTION, GUMBALL_BLOCK (chains alone) or GUMBALL_THRESHOLD, with thresholds as in
// gumball_batch. By the first two every emitted token has the distribution of the target's row; thresholds
// below 1 are biased towards the drafts.
//
// Cost: launch.
gumball_code gumball_operators_judge(const gumball_operators *operators,
                                     const gumball_rows *rows,
                                     const gumball_drafts *drafts,
                                     const gumball_draws *draws,
                                     gumball_verify_mode mode,
                                     float threshold_single,
                                     float threshold_acc,
                                     const gumball_judged *out);

// Writes how likely one token of each row is: its logprob and its rank, as a step reports them of a forced
// token in the mode "raw".
//
// `tokens`: one for each row, -1 for none. `logprobs`: memory for a float for each row: ln, -inf for none.
// `ranks` and `statuses`: NULL, or memory for a word for each row: 1 for the most likely token, 0 for none.
// On a device an id outside the vocabulary is none, with GUMBALL_STATUS_NO_ID.
//
// Cost: launch.
gumball_code gumball_operators_selected_logprobs(const gumball_operators *operators,
                                                 const gumball_rows *logits,
                                                 const int32_t *tokens,
                                                 float *logprobs,
                                                 uint32_t *ranks,
                                                 uint32_t *statuses);

// Makes operators. `device`: where they work, in the order of its stream; NULL: on the host. Bans and biases
// are GUMBALL_UNAVAILABLE on a device. Graphs captured with the same operators share memory and must not be
// replayed at the same time. `threads` and `level`: as in gumball_pool_config, of the host.
//
// Cost: setup.
gumball_operators *gumball_operators_new(const gumball_device *device, size_t threads, const char *level);

// Cost: setup.
void gumball_operators_free(gumball_operators *operators);

// Writes the softmax of each row at its temperature: at 0 the first of the largest logits has 1. A row
// without a logit above -inf is all 0.
//
// `temperature`: of all rows, 0 or in (0, 2^100]; `temperatures`: of each row, or NULL. `out`: as many rows,
// of any type (on a device float, or the logits'), in memory of their own; or the rows that are read, which
// are then changed in place. `statuses`: NULL, or a word for each row, for bits of gumball_status.
//
// Cost: launch.
gumball_code gumball_operators_softmax(const gumball_operators *operators,
                                       const gumball_rows *logits,
                                       float temperature,
                                       const float *temperatures,
                                       const gumball_matrix *out,
                                       uint32_t *statuses);

// Writes the distribution that each row's token is drawn from: of logits the softmax after temperature, bans
// and filters, of probabilities the kept ones, renormalised to a sum of 1. XTC acts as in draw 0 of seed 0
// at position 0. `out` and `statuses`: as for gumball_operators_softmax.
//
// Cost: launch.
gumball_code gumball_operators_probabilities(const gumball_operators *operators,
                                             const gumball_rows *rows,
                                             const gumball_row_params *params,
                                             const gumball_matrix *out,
                                             uint32_t *statuses);

// Writes each row with only the tokens that its filters and bans keep: other logits become -inf, other
// probabilities 0. Rows of only -inf stay as they are. -0.0 is written as +0.0, and +inf as FLT_MAX. `out`
// and `statuses`: as for gumball_operators_softmax.
//
// Cost: launch.
gumball_code gumball_operators_mask_logits(const gumball_operators *operators,
                                           const gumball_rows *rows,
                                           const gumball_row_params *params,
                                           const gumball_matrix *out,
                                           uint32_t *statuses);

// Draws a token for each output from a row of logits or of probabilities, after its filters and bans.
//
// `rows`: L rows. `params`: lists of L, or with `slots` in `draws` of its `size`, or NULL. `tokens`: memory
// for one token per output; -1 where a row has no token. `statuses`: NULL, or a word for each output. On a
// device an entry of `row_indices` that is not a row yields -1 and GUMBALL_STATUS_EMPTY.
//
// Cost: launch.
gumball_code gumball_operators_sample(const gumball_operators *operators,
                                      const gumball_rows *rows,
                                      const gumball_row_params *params,
                                      const gumball_draws *draws,
                                      int32_t *tokens,
                                      uint32_t *statuses);

// Writes the radius of each row: how far all its logits may move, each by its own amount up or down, while
// gumball_operators_sample draws the same token by these parameters and draws. It is -inf of a row without a
// token, +inf if no other token can be drawn, and otherwise in units of a logit.
//
// `rows`: R rows of logits. `params`: lists of R, or NULL. `draws`: R outputs, without `row_indices` and
// `slots`. `radii`: memory for R numbers. Parameters of which no radius is known, as typical-p, are
// GUMBALL_CONFLICT; a list counts as switched on.
//
// Cost: launch.
gumball_code gumball_operators_radii(const gumball_operators *operators,
                                     const gumball_rows *rows,
                                     const gumball_row_params *params,
                                     const gumball_draws *draws,
                                     float *radii);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GUMBALL_H */
