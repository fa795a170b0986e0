// Gumball: the last step of a language model. Logits in, the next token out.
//
// What a parameter does stands in docs/semantics.md, how to begin in docs/c.md.
//
// Errors. Functions that return a gumball_code return GUMBALL_OK or what went wrong. Functions that make a handle return NULL
// after an error, others the value that they name. What went wrong is told in words, for each thread, by
// gumball_error_message. After an error nothing was drawn or changed, and what a pointer named `out`, `token`, `slot` or `len`
// points to was not written.
//
// Ownership. Who makes a handle frees it, once, with the function of its name. A handle keeps alive what it needs: parameters
// can be freed when a request is admitted, a device when a pool is made. Pointers that a handle gives out are the handle's.
// Arrays that are handed in are read during the call; only memory of a device is read later, where it is said.
//
// Structs. Each that is handed in begins with its size: zero it, set struct_size, and set what is not to be the default, as
// in gumball_pool_config config = {.struct_size = sizeof config, .vocab = 32000}. Programs with an older header go on working.
//
// Threads. Any thread may use any handle, but one at a time. Devices, operators, parameters that nobody changes, and
// outputs that are read may be used by several at the same time. Different handles need no lock, not even where they share a device;
// but a gumball_device_head has memory of its own for a step, so all calls that use it, replays of graphs that have it included, take turns.
//
// The caller vouches that handles are alive, that pointers point to what is said or are NULL, and that texts end with a NUL.
// A NULL where something is needed is an error, as is an array or a struct that is not aligned. Texts are UTF-8. No exception and
// no longjmp may leave a hook.

#ifndef GUMBALL_H
#define GUMBALL_H

// Made of the sources in bindings/c/src. Do not edit it: GUMBALL_BLESS=1 cargo test -p gumball-c --test header

#include <stddef.h>
#include <stdint.h>

#define GUMBALL_VERSION "0.1.0"
#define GUMBALL_VERSION_MAJOR 0
#define GUMBALL_VERSION_MINOR 1
#define GUMBALL_VERSION_PATCH 0


// The version of this interface. A program that was built with the same number works with the library.
//
// It changes when a function or a constant is removed or changed, not when one is added or a struct grows.
#define GUMBALL_ABI_VERSION 1

// What a call came to.
enum gumball_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It did what it says.
    GUMBALL_OK = 0,
    // A value lies outside the range of its parameter; a pointer that must be given is NULL.
    GUMBALL_OUT_OF_RANGE = 1,
    // Two parameters exclude each other.
    GUMBALL_CONFLICT = 2,
    // A buffer or list has the wrong length.
    GUMBALL_LENGTH = 3,
    // A name is not known.
    GUMBALL_UNKNOWN = 4,
    // The machine lacks something, memory for instance, or the device failed: no mistake of the caller's.
    GUMBALL_UNAVAILABLE = 5,
    // A text is not the JSON that is read here.
    GUMBALL_JSON = 6,
    // A mistake of the library's own, which the message describes; report it. No sequence has moved, and all handles can be used
    // on; what the call was to write is unspecified.
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
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_code gumball_code;
#else
typedef int32_t gumball_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The type of a row's elements.
enum gumball_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Single precision.
    GUMBALL_F32 = 0,
    // Truncated single precision.
    GUMBALL_BF16 = 1,
    // Half precision.
    GUMBALL_F16 = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_dtype gumball_dtype;
#else
typedef int32_t gumball_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What the numbers of a row are.
enum gumball_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Logits.
    GUMBALL_LOGITS = 0,
    // Probabilities, which need not sum to 1. What is not above 0 is never drawn; NaN and negative numbers count as 0 and set
    // GUMBALL_STATUS_NAN. Parameters that speak of logits must be off.
    GUMBALL_PROBABILITIES = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_kind gumball_kind;
#else
typedef int32_t gumball_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a row's data had to say: bits of its status.
enum gumball_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
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
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_status gumball_status;
#else
typedef int32_t gumball_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How drafts are judged (docs/semantics.md, "Speculation"). A request without drafts takes a step in any mode.
enum gumball_verify_mode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A draft is accepted if it is the token that the request would have drawn: the output is that of decoding without drafts.
    GUMBALL_COUPLED = 0,
    // As GUMBALL_COUPLED, with temperature 0 in every row.
    GUMBALL_GREEDY = 1,
    // By the ratio of the target's and the drafter's probability; emitted tokens have the target's distribution.
    GUMBALL_REJECTION = 2,
    // A chain as a whole, which accepts more than GUMBALL_REJECTION and has the same distribution.
    GUMBALL_BLOCK = 3,
    // Accepts more than the target's distribution warrants.
    GUMBALL_THRESHOLD = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_verify_mode gumball_verify_mode;
#else
typedef int32_t gumball_verify_mode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a head computes.
enum gumball_head_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Every logit.
    GUMBALL_HEAD_EXACT = 0,
    // The logits that could decide a row, found by a copy of the weights in 8 bits: the same tokens and logprobs, bit for bit.
    GUMBALL_HEAD_CERTIFIED = 1,
    // The logits of the clusters of ids whose centroids look likeliest, all others being -inf: an approximation. Made by
    // gumball_head_clustered_build, _new and _open.
    GUMBALL_HEAD_CLUSTERED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_head_kind gumball_head_kind;
#else
typedef int32_t gumball_head_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a graph does at one point.
enum gumball_graph_work_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // A step of the rows that are assigned, as gumball_pool_enqueue: `input`. With `head` as gumball_pool_enqueue_hidden.
    GUMBALL_WORK_STEP = 0,
    // A verification of the drafts that are assigned, as gumball_pool_enqueue_verify: `input` and `drafts`. With `head` as
    // gumball_pool_enqueue_verify_hidden.
    GUMBALL_WORK_VERIFY = 1,
    // Drafts of a batch, as gumball_pool_enqueue_draft: `batch`, `input`, and `ints` for the paths, or NULL.
    GUMBALL_WORK_DRAFT = 2,
    // A copy of a batch's drafts, as gumball_pool_enqueue_copy_drafts: `batch`, `ints` for where they go, and `column`.
    GUMBALL_WORK_COPY_DRAFTS = 3,
    // Taking emitted tokens away, as gumball_pool_enqueue_shorten: `ints`, a line of one number for each assigned slot.
    GUMBALL_WORK_SHORTEN = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_graph_work_kind gumball_graph_work_kind;
#else
typedef int32_t gumball_graph_work_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How the logits of a step lie on the processes of a group, and what is exchanged (docs/scaling.md).
enum gumball_dist_layout
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Each process has its ids of all rows, gets the others, and samples all rows.
    GUMBALL_GATHER = 0,
    // Each process has its ids of all rows, and exchanges them for whole rows of the requests that it owns, which it samples.
    GUMBALL_SWAP = 1,
    // Each process keeps its ids of all rows; only what decides is exchanged.
    GUMBALL_SURVEY = 2,
    // Each process has whole rows of the requests that it owns.
    GUMBALL_REPLICATED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_dist_layout gumball_dist_layout;
#else
typedef int32_t gumball_dist_layout;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a step of a group is for.
enum gumball_step_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // One token for each request.
    GUMBALL_DECODE = 0,
    // The first token behind a prompt.
    GUMBALL_PREFILL = 1,
    // The drafts of each request are verified.
    GUMBALL_VERIFY = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gumball_step_kind gumball_step_kind;
#else
typedef int32_t gumball_step_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Memory of a device.
typedef struct gumball_buffer gumball_buffer;

// A device that is open, with its stream.
typedef struct gumball_device gumball_device;

// An LM head in a device's memory, for the pools that were made with the same gumball_device. One thread at a time uses it, whichever pools it serves.
//
// What it computes are the tokens and logprobs of the head of the same kind on the host, bit for bit, but for a fast head, whose logits are the device's own: the same
// in any batch, perhaps others on another device.
typedef struct gumball_device_head gumball_device_head;

// A pool on one process of a group, each of which has the logits of a part of the vocabulary. All of them make the same calls in the
// same turn; what comes out is the same on all, and what one process with whole rows would get (docs/scaling.md).
//
// A caller's mistake is found before anything is sent. After any other error of a step the group is broken: no sequence of this process
// was changed by that step, but others may have completed it. To go on, make new pools, and resume from the states of one process.
typedef struct gumball_dist gumball_dist;

// Steps that were captured, to be replayed with one call.
typedef struct gumball_graph gumball_graph;

// An LM head: it makes logits of hidden states, by weights that it borrows, or, of clusters, has copied.
//
// Every logit is a sum in single precision in one order, the same bits on every machine and in every batch. Pools on the host take it;
// several may share one, at the same time too. gumball_device_head_of copies it for pools on a device.
typedef struct gumball_head gumball_head;

// Operators over rows of logits or probabilities, for engines that hold probabilities or must return them, and choose seeds and
// positions themselves. The result of a row is the one that it has in a pool.
//
// They keep buffers from call to call, and nothing else; several threads may use them at the same time.
//
// For operators of a device, the rows, lists and output arrays of a call lie in the device's memory, and its structs on the
// host. A call launches kernels on the device's stream and returns before they are done. It may be captured in a graph after
// a first call, which allocates memory. The values of lists are not checked there: a value outside its range counts as the
// nearest value inside.
typedef struct gumball_operators gumball_operators;

// All outputs of a step, in one buffer of 32-bit words that is used again from step to step.
//
// What is read of it stays until the outputs are handed to another call. A section is NULL if it is empty, or after an error.
typedef struct gumball_outputs gumball_outputs;

// What a request asks of the way its tokens are chosen; see gumball_params_new.
typedef struct gumball_params gumball_params;

// The requests in flight.
//
// A sequence is admitted to a slot, stepped with others in any grouping, and released. Which slot it has, and what stands
// beside it in a batch, changes none of its tokens.
typedef struct gumball_pool gumball_pool;

// Chooses the tokens of one sequence, and keeps its history.
typedef struct gumball_sampler gumball_sampler;

// What came out of a verification, in memory that is used again from call to call.
//
// What is read of it stays until it is handed to another call.
typedef struct gumball_verification gumball_verification;

// Where the sections of outputs lie, as their first words. R rows, T = top_n and I = ids.
typedef struct {
    // sizeof(gumball_layout), also where it is to be written.
    size_t struct_size;
    // R.
    size_t rows;
    // T, the places for the most likely tokens.
    size_t top_n;
    // I, the places for the ids that a request names.
    size_t ids;
    // The number of words of all sections.
    size_t words;
    // R of int32_t: the token, -1 where there is none.
    size_t tokens;
    // R of uint32_t: bits of gumball_status.
    size_t statuses;
    // R of float: the token's logprob; -inf if it was not asked for.
    size_t logprobs;
    // R of uint32_t: the token's rank, from 1; 0 if it was not asked for, or is no member.
    size_t ranks;
    // R of float: the temperature in use; 0 if greedy.
    size_t temperatures;
    // R of float: mirostat's limit after the row, in bits; 0 without mirostat.
    size_t mirostat_mu;
    // R x T of int32_t: the most likely ids, -1 where there are no more.
    size_t top_ids;
    // R x T of float: their logprobs.
    size_t top_logprobs;
    // R x I of float: the logprobs of the ids that the request names.
    size_t id_logprobs;
    // R x I of uint32_t: their ranks.
    size_t id_ranks;
} gumball_layout;

// What a sampler is made for.
typedef struct {
    // sizeof(gumball_sampler_config).
    size_t struct_size;
    // The number of ids in the vocabulary, in 1..=2^20.
    size_t vocab;
    // The way to the tokens: race, oracle, probabilities, or one that was registered; NULL: race.
    const char *route;
    // The SIMD level, by its name; NULL: the machine's best. The tokens are the same.
    const char *level;
    // The draw index, which tells sequences of the same seed and history apart.
    uint32_t draw;
    // Above 0: every row's kept set is collected, at the cost of a sort.
    uint32_t keep_ids;
} gumball_sampler_config;

// What the next token of a sequence depends on besides its row and its parameters.
//
// Written by gumball_sampler_state and gumball_pool_state, where the ids lie until the next call that changes the sequence;
// read by gumball_sampler_resume and gumball_pool_resume, in this process or on another machine.
typedef struct {
    // sizeof(gumball_state), also where it is to be written.
    size_t struct_size;
    // The ids of the prompt.
    const uint32_t *prompt;
    // Their number.
    size_t prompt_len;
    // The ids generated so far.
    const uint32_t *output;
    // Their number.
    size_t output_len;
    // The seed in use.
    uint64_t seed;
    // The number of tokens before the next one, modulo 2^32; more than there are ids, where only the end of a long history
    // is handed in.
    uint32_t position;
    // The draw index.
    uint32_t draw;
    // Mirostat's limit for the next token, in bits; any number without mirostat.
    float mu;
} gumball_state;

// The program's own edits of a row: sees it after the logit bias and before the bans, as `vocab` floats, and may change
// it. `row` is the row's place in the step, `user` what the options say.
//
// A pool calls it from its threads, for several rows at the same time. It must return, without longjmp or
// exception, and leaves the handle alone that calls it.
typedef void (*gumball_hook)(void *user, size_t row, float *logits, size_t vocab);

// What comes with the rows of a step. Lists have one element a row; NULL stands for a list that says nothing.
typedef struct {
    // sizeof(gumball_step_options).
    size_t struct_size;
    // Grammar bitmasks, one per row: bit `id % 32` of word `id / 32` allows an id. Ids beyond a bitmask are forbidden. NULL: no row
    // has one.
    const uint32_t *masks;
    // The number of words in a bitmask. Where `masks` is given, bitmasks of 0 words forbid every id.
    size_t mask_width;
    // How many words after the start of a bitmask the next one begins; 0: mask_width.
    size_t mask_stride;
    // For each row whether its mask counts; NULL: all do.
    const uint8_t *mask_present;
    // For each row the token to emit whatever is drawn, or -1.
    const int32_t *forced;
    // For each row the index of the matrix row that it reads; NULL: row i reads matrix row i.
    const uint32_t *row_indices;
    // The program's own edits; not on a device.
    gumball_hook hook;
    // Handed to the hook.
    void *hook_user;
    // For each row whether the hook is called; NULL: for all.
    const uint8_t *hook_rows;
    // What the row of gumball_sampler_sample holds: GUMBALL_LOGITS or GUMBALL_PROBABILITIES. A sequence may change from one to
    // the other. The logits of a pool's step say so themselves; here it is 0 then, or the same.
    int64_t kind;
} gumball_step_options;

// What came out of a row. This struct stays as it is.
typedef struct {
    // The id; -1 if no token was above -inf and none was forced.
    int32_t id;
    // Bits of gumball_status.
    uint32_t status;
    // The temperature in use; 0 if greedy.
    float temperature;
    // The id's logprob; -inf if the parameters ask for none.
    float logprob;
    // Its rank, from 1; 0 if the parameters ask for none, or it is no member.
    uint32_t rank;
} gumball_token;

// A token with its logprob. This struct stays as it is.
typedef struct {
    // The token; -1 where there is no further member.
    int32_t id;
    // Its natural log probability; -inf for a token that is no member.
    float logprob;
    // Its place in the order of the mode, from 1; 0 for a token that is no member.
    uint32_t rank;
} gumball_token_logprob;

// What a pool on the host is made for.
typedef struct {
    // sizeof(gumball_pool_config).
    size_t struct_size;
    // The number of ids in the vocabulary of all requests, in 1..=2^20.
    size_t vocab;
    // How many sequences can be in flight, in 1..2^31; 0: 256.
    size_t slots;
    // How many threads take the rows of a step, in 1..=1024: 1 is the caller's; 0: those of the machine, which all such pools
    // share.
    size_t threads;
    // How many of the most likely tokens the outputs have places for, in 0..=2^20; no request may ask for more.
    size_t top_n;
    // How many ids named by a request the outputs have places for, in 0..=2^20.
    size_t ids;
    // The way to the tokens: race, oracle, probabilities, or one that was registered; NULL: race.
    const char *route;
    // The SIMD level, by its name; NULL: the machine's best. The tokens are the same.
    const char *level;
} gumball_pool_config;

// What a pool on a device is made for. All its memory is taken at once, but for lists and histories of requests.
typedef struct {
    // sizeof(gumball_device_pool_config).
    size_t struct_size;
    // The number of ids in the vocabulary of all requests, in 1..=2^20.
    size_t vocab;
    // How many sequences can be in flight, in 1..2^31; 0: 256.
    size_t slots;
    // How many rows a step can have, in 1..2^31; 0: 256.
    size_t rows;
    // How many of the most likely tokens the outputs have places for, in 0..=2^20; no request may ask for more.
    size_t top_n;
    // How many ids named by a request the outputs have places for, in 0..=2^20.
    size_t ids;
    // How many tokens a history on the device can grow by before it is moved, which waits for the device, in 1..2^31; 0: 4096.
    size_t history_growth;
    // Above 0: steps report the kept sets.
    uint32_t keep_ids;
    // Above 0: the device keeps the histories of all requests, and not only those that edits read. For programs that replay
    // steps without fetching the outputs of each, and still want to know their sequences.
    uint32_t keep_histories;
    // The way to the tokens: race, or probabilities, whose softmax edits nothing, so that penalties, biases, bans, bitmasks,
    // row_indices and rows of probabilities are GUMBALL_CONFLICT; NULL: race.
    const char *route;
} gumball_device_pool_config;

// What a step reads of the device's memory. It stays there, and as it is, until the step is done; for a captured one, until
// the graph is replayed no more.
typedef struct {
    // sizeof(gumball_device_input).
    size_t struct_size;
    // The first logit of the first row; a CUdeviceptr is cast.
    const void *logits;
    // The number of rows.
    size_t rows;
    // The number of logits in a row.
    size_t vocab;
    // How many elements after a row the next one begins; 0: vocab.
    size_t stride;
    // Grammar bitmasks of all rows, in place of those that were assigned; NULL: none.
    const void *masks;
    // The number of rows of `masks`.
    size_t mask_rows;
    // The number of words in a row. Where `masks` is given, rows of 0 words forbid every id.
    size_t mask_width;
    // How many words after a row the next one begins; 0: mask_width.
    size_t mask_stride;
    // GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16.
    int32_t dtype;
    // GUMBALL_LOGITS or GUMBALL_PROBABILITIES; from step to step it may change. So wide that no padding of the struct as it
    // was becomes it.
    int64_t kind;
} gumball_device_input;

// The drafts of all requests in the device's memory, those of one request after those of another. They stay there until they are
// verified; for captured ones, until the graph is replayed no more, and each replay reads those that are there then.
typedef struct {
    // sizeof(gumball_device_drafts).
    size_t struct_size;
    // The draft tokens; a CUdeviceptr is cast. One that is no id, such as -1, is never accepted.
    const void *ids;
    // For each its parent in the tree of its request, as in gumball_drafts. NULL: each draft follows the one before it. Nobody checks
    // them: a request whose parents are no tree takes a step, with GUMBALL_STATUS_NO_TREE.
    const void *parents;
    // Their number, the sum of the counts that were assigned.
    size_t len;
    // 32 or 64: the bits of an id and of a parent; 0: 32.
    int64_t bits;
    // The probabilities that the drafts were drawn from, float: `vocab` numbers for each row, of which rows without a draft behind them
    // are not read. NULL if the drafter has none, and in other modes than GUMBALL_REJECTION and GUMBALL_BLOCK.
    const void *probs;
    // The rows of `probs`: requests and drafts together.
    size_t probs_rows;
    // Elements from one row of `probs` to the next; 0: without gaps.
    size_t probs_stride;
    // The trees as links between rows instead of `parents`, as in gumball_drafts: for each row, a request's first row included, its
    // first child and its next sibling, of as many bits as `ids`. Nobody checks them either. NULL: there are no links.
    const void *first_child;
    // NULL without `first_child`, and only then.
    const void *next_sibling;
    // The number of links in each of these: requests and drafts together.
    size_t links;
} gumball_device_drafts;

// The weights of a head, what follows their product, and which kind of head computes it.
typedef struct {
    // sizeof(gumball_head_config).
    size_t struct_size;
    // `vocab` rows of `width` weights, each behind the one before it. The head reads them as long as it lives; nobody may free
    // or write them meanwhile. A clustered head reads them while it is made alone, unless its options say that it permutes them.
    const void *weights;
    // The number of ids, in 1..=2^20.
    size_t vocab;
    // The number of elements of a hidden state, in 1..=2^16.
    size_t width;
    // `vocab` floats that are added to the products, which the head reads as long as it lives; NULL: none.
    const float *bias;
    // GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16: the type of the weights.
    int32_t dtype;
    // A gumball_head_kind.
    int32_t kind;
    // The factor of every logit, above 0 and up to 2^16; 0: 1.
    float logit_scale;
    // The bound that a hyperbolic tangent keeps logits below, 2^-64 to 2^16; 0: none.
    float softcap;
    // The SIMD level, by its name; NULL: the machine's best. The logits are the same.
    const char *level;
    // Not for GUMBALL_HEAD_EXACT: how many rows of a call are computed in part at most; in a call that has more, every logit is computed, which is
    // faster then. 0: 8 for GUMBALL_HEAD_CERTIFIED; for GUMBALL_HEAD_CLUSTERED 16 if more than a sixth of the clusters are probed, else no number.
    size_t most_rows;
    // For GUMBALL_HEAD_CERTIFIED: the path of a file that gumball_head_save, or the command `gumball head build`, wrote of these weights and this
    // bias. It is mapped instead of making the copy; nobody may write it as long as the head lives. NULL: none. For gumball_head_clustered_open: the
    // path of the file of clusters.
    const char *file;
} gumball_head_config;

// What heads have done for a pool since it was made.
typedef struct {
    // sizeof(gumball_head_counts).
    size_t struct_size;
    // Rows whose logits were all computed.
    uint64_t whole_rows;
    // Rows that a certified head decided by a part of their logits.
    uint64_t certified_rows;
    // How many logits that took, for all of these rows.
    uint64_t certified_logits;
    // How many times all weights were read: once for all rows of a call, or of a chunk of a score, whose logits were all computed.
    uint64_t weight_reads;
    // How many times a certified head's copy was read: once for all rows of a call, or of a chunk of a score, that were screened.
    uint64_t screen_reads;
    // Rows of which a clustered head computed the probed clusters alone.
    uint64_t clustered_rows;
    // How many logits that took, for all of these rows; one that several rows of a call need counts for each.
    uint64_t clustered_logits;
    // How many times centroids were read: once for all rows of a call, or of a chunk of a score.
    uint64_t centroid_reads;
} gumball_head_counts;

// Lines of integers in the device's memory.
typedef struct {
    // sizeof(gumball_device_ints).
    size_t struct_size;
    // The first number of the first line; a CUdeviceptr is cast.
    const void *data;
    // The number of lines.
    size_t rows;
    // The number of integers in a line; 0: 1.
    size_t width;
    // How many integers after a line the next one begins; 0: width.
    size_t stride;
    // 32 or 64: the bits of a number; 0: 32.
    int64_t bits;
} gumball_device_ints;

// A piece of work of a graph. Fields that its kind does not name stay zero.
typedef struct {
    // sizeof(gumball_graph_work).
    size_t struct_size;
    // A gumball_graph_work_kind.
    int64_t kind;
    // Rows in the device's memory, as long as the graph is replayed.
    const gumball_device_input *input;
    // Drafts in the device's memory, as long as the graph is replayed.
    const gumball_device_drafts *drafts;
    // A head that lives as long as the graph.
    const gumball_device_head *head;
    // The number of a batch of drafts.
    int64_t batch;
    // Integers in the device's memory, as long as the graph is replayed.
    const gumball_device_ints *ints;
    // The column of `ints` that a row's first draft goes to.
    size_t column;
} gumball_graph_work;

// A batch of rows of logits, or of probabilities, in host memory.
typedef struct {
    // sizeof(gumball_logits).
    size_t struct_size;
    // The first logit of the first row.
    const void *data;
    // The number of rows.
    size_t rows;
    // The number of logits in a row.
    size_t vocab;
    // How many elements after a row the next one begins; 0: vocab.
    size_t stride;
    // GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16.
    int32_t dtype;
    // GUMBALL_LOGITS or GUMBALL_PROBABILITIES. So wide that no padding of the struct as it was becomes it.
    int64_t kind;
} gumball_logits;

// A known sequence, some of whose tokens are to be scored: row i scores `ids[start + i]`, after all ids before it.
//
// To score a prompt: `prompt_len` its length, `start` 1, and the logits of the prompt's ids but the last. To score an answer:
// `start` at `prompt_len`. Long sequences can be handed in piecewise, `start` moving on.
typedef struct {
    // sizeof(gumball_scored).
    size_t struct_size;
    // The parameters. Their `logprobs` say what to report; if absent, the token's raw logprob and rank.
    const gumball_params *params;
    // Prompt and output.
    const uint32_t *ids;
    // Their number.
    size_t ids_len;
    // How many of them are prompt, for the penalties that tell it from output.
    size_t prompt_len;
    // The place in `ids` of the token that row 0 predicts.
    size_t start;
} gumball_scored;

// The drafts of a batch of requests, those of one request after those of another; n is the sum of `counts`.
typedef struct {
    // sizeof(gumball_drafts).
    size_t struct_size;
    // The number of drafts of each request, in 0..=64.
    const uint32_t *counts;
    // n ids. One outside the vocabulary, such as -1, is never accepted.
    const int32_t *ids;
    // n parents in the trees of the requests: -1 for the end of the history, or the number of a draft of the same request before
    // this one, counted from 0. NULL: each draft follows the one before it, a chain.
    const int32_t *parents;
    // The probabilities that the drafts were drawn from: `vocab` floats for each row of logits, without gaps, of which rows without
    // a draft behind them are not used. NULL: the drafter has none. For GUMBALL_REJECTION and GUMBALL_BLOCK.
    const float *probs;
    // A gumball_verify_mode.
    int64_t mode;
    // For GUMBALL_THRESHOLD: a draft of at least this probability is accepted; in 0..=1.
    float threshold_single;
    // For GUMBALL_THRESHOLD: a draft is also accepted if a coin times this is below the probability of it and the siblings
    // before it; in 0..=1. With 1 for both, emitted tokens have the target's distribution.
    float threshold_acc;
    // The trees as links between rows, as SGLang and TokenSpeed hold them, instead of `parents`: for each row of logits, a request's
    // first row included, the row of its first child, counted from the request's first row, or -1. A link leads to a row behind
    // its own, and one link to each draft's row. NULL: there are no links.
    const int32_t *first_child;
    // For each row that of its next sibling, or -1; with `first_child`, or NULL.
    const int32_t *next_sibling;
} gumball_drafts;

// How drafts are drawn from the rows of a draft model, and where these stand; n is the sum of `counts`.
typedef struct {
    // sizeof(gumball_draft_rows).
    size_t struct_size;
    // For each row the number of drafts between the end of the history and the row, in 0..64. NULL: none for any row.
    const uint32_t *counts;
    // n ids of the vocabulary: the drafts on the path to each row, those of one row after those of another.
    const int32_t *ids;
    // The drafts of each row: 1 for chains.
    size_t siblings;
    // The gumball_verify_mode that the drafts will be judged by. Drafts for GUMBALL_BLOCK are drawn by random words of their own.
    int64_t mode;
} gumball_draft_rows;

// What is known of a head.
typedef struct {
    // sizeof(gumball_head_info).
    size_t struct_size;
    // The number of ids.
    size_t vocab;
    // The number of elements of a hidden state.
    size_t width;
    // The gumball_dtype of the weights.
    int32_t dtype;
    // The gumball_head_kind.
    int32_t kind;
    // How many bytes a call that screens rows reads before it reads weights; 0 but for GUMBALL_HEAD_CERTIFIED.
    size_t screen_bytes;
    // How many rows of a call are computed in part at most; 0 for GUMBALL_HEAD_EXACT, SIZE_MAX where it does not matter how many there are.
    size_t most_rows;
    // Of GUMBALL_HEAD_CLUSTERED, else 0: how many clusters there are.
    size_t clusters;
    // How many ids a cluster has; the last one may have fewer.
    size_t capacity;
    // How many clusters a hidden state probes.
    size_t probes;
    // How many bytes of centroids a call reads.
    size_t centroid_bytes;
    // 1 if tokens, kept sets and logprobs may be others than the exact head's: those of GUMBALL_HEAD_CLUSTERED may.
    uint64_t is_approximate;
} gumball_head_info;

// A batch of hidden states in host memory.
typedef struct {
    // sizeof(gumball_hidden).
    size_t struct_size;
    // The first element of the first hidden state.
    const void *data;
    // Their number.
    size_t rows;
    // The number of elements of one.
    size_t width;
    // How many elements after a hidden state the next one begins; 0: width.
    size_t stride;
    // GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16; it need not be that of the weights.
    int32_t dtype;
} gumball_hidden;

// What a clustered head has besides its clusters.
typedef struct {
    // sizeof(gumball_clustered_options).
    size_t struct_size;
    // How many clusters a hidden state probes, up to their number; 0: an eighth of them.
    size_t probes;
    // Ids that are always computed, such as ends of text; they are copied.
    const uint32_t *special_ids;
    // Their number, up to the vocabulary.
    size_t special_ids_len;
    // 0: the head takes a copy of the weights, in the order of its clusters. 1: it permutes the rows where they lie, in memory that may be written
    // and that it then reads as long as it lives; whoever else reads them, a tied embedding for instance, must read the row of an id at its
    // gumball_head_places.
    uint64_t is_in_place;
} gumball_clustered_options;

// Receives how far a build of clusters is: `done` of `of` ids were compared in assignment `iteration`, from 0, of at most `iterations`. Returns 0 to go on,
// anything else to stop. `user` is what the build was given.
//
// It is called on a thread of the library, by one at a time. It must return, without longjmp or exception.
typedef int32_t (*gumball_cluster_progress)(void *user, size_t iteration, size_t iterations, size_t done, size_t of);

// What a pool over several processes is made with. All of them hand in the same, but for `rank` and `threads`.
typedef struct {
    // sizeof(gumball_dist_config).
    size_t struct_size;
    // The number of ids in the vocabulary of all requests, in 1..=2^20.
    size_t vocab;
    // The number of this process, in 0..world.
    size_t rank;
    // The number of processes, in 1..=1024.
    size_t world;
    // `world` texts: where each process listens for those above it, unix:PATH or tcp:HOST:PORT.
    const char *const *addresses;
    // `world` numbers of ids that each process has, in turn; NULL: evenly.
    const size_t *split;
    // How many sequences can be in flight, in 1..2^31; 0: 256.
    size_t slots;
    // As in gumball_pool_config.
    size_t threads;
    // As in gumball_pool_config.
    size_t top_n;
    // As in gumball_pool_config.
    size_t ids;
    // As in gumball_pool_config.
    const char *route;
    // As in gumball_pool_config.
    const char *level;
    // The layouts that steps may take besides gather, by their names with commas between; NULL: swap,survey.
    const char *layouts;
    // The layout of all steps but prefill; NULL: what GUMBALL_DIST_LAYOUT says, or none.
    const char *layout;
    // auto, unix or tcp; NULL: what GUMBALL_DIST_TRANSPORT says, or auto.
    const char *transport;
    // The least number of requests for which rows are swapped; 0: what GUMBALL_DIST_SWAP_MIN_REQUESTS says, or 16.
    size_t swap_min_requests;
    // The least vocabulary for which rows are surveyed; 0: what GUMBALL_DIST_SURVEY_MIN_VOCAB says, or 8192.
    size_t survey_min_vocab;
    // The least number of rows for which rows are surveyed; 0: what GUMBALL_DIST_SURVEY_MIN_ROWS says, or 1.
    size_t survey_min_rows;
    // How many milliseconds a process is waited for, at start and in each exchange; 0: 30000.
    uint64_t timeout_ms;
    // Above 0: process `request % world` owns a request; 0: each owns a block of neighbours.
    uint64_t is_modulo;
} gumball_dist_config;

// What the layout of a step is decided by, besides the requests in its slots.
typedef struct {
    // sizeof(gumball_dist_shape).
    size_t struct_size;
    // The most drafts of a request.
    size_t drafts;
    // The number of requests, padding included, that the graph was captured for, if the step replays one; 0: it replays none.
    size_t captured;
    // A gumball_step_kind.
    int64_t kind;
    // Above 0: each process has the hidden states of its own requests only.
    uint64_t is_data_parallel;
} gumball_dist_shape;

// What was decided for a step. gumball_dist_plan writes it.
typedef struct {
    // sizeof(gumball_dist_decision).
    size_t struct_size;
    // A gumball_dist_layout.
    int64_t layout;
    // The number of requests of the step.
    size_t requests;
    // The number of requests that the layout was decided by: of a graph, that which it was captured for.
    size_t batch;
} gumball_dist_decision;

// A batch of T trees of n drafts each, with the probabilities of the target and of the drafter: arrays without gaps, in the memory of
// the operators. Row 0 of a tree is that of its root, row i + 1 that behind draft i.
typedef struct {
    // sizeof(gumball_draft_trees).
    size_t struct_size;
    // T.
    size_t trees;
    // n, in 0..=64; any number for chains by GUMBALL_REJECTION with `draft_probs`.
    size_t drafts;
    // V, the number of ids in a row.
    size_t vocab;
    // The rows of `draft_probs` of each tree: n, or n + 1.
    size_t draft_rows;
    // T x draft_rows x V: the probabilities that the drafts were drawn from; rows without children are not read, so the one behind the
    // last draft never is. NULL: the drafter has none. For GUMBALL_REJECTION and GUMBALL_BLOCK.
    const float *draft_probs;
    // T x n: the drafts. An id outside the vocabulary, such as -1, was not drawn: it is never accepted, and fills trees of fewer drafts.
    const int32_t *draft_token_ids;
    // T x n: the parent of each draft, -1 for the root or the number of a draft before it. NULL: chains, where each draft follows the one
    // before it. On a device they are not checked: a tree with others accepts no draft, and has GUMBALL_STATUS_NO_TREE.
    const int32_t *parents;
    // T x (n + 1) x V: the target's probabilities.
    const float *target_probs;
    // GUMBALL_REJECTION, GUMBALL_BLOCK (chains alone) or GUMBALL_THRESHOLD.
    int64_t mode;
    // For GUMBALL_THRESHOLD, as in gumball_drafts.
    float threshold_single;
    // For GUMBALL_THRESHOLD, as in gumball_drafts.
    float threshold_acc;
} gumball_draft_trees;

// The row, seed, position and draw index of each output, or of each draft tree. A list has one element per output and lies where
// the rows do; NULL: the value of the same name, for all outputs.
//
// An output is the token of a pool whose sequence has its seed, position and draw index.
typedef struct {
    // sizeof(gumball_draws).
    size_t struct_size;
    // The number of outputs.
    size_t outputs;
    // For each output the index of the matrix row that it is drawn from, any number of times; NULL: output i from row i. Not for
    // draft trees.
    const uint32_t *row_indices;
    // The seed of all outputs.
    uint64_t seed;
    // The seed of each.
    const uint64_t *seeds;
    // The position of each.
    const uint32_t *positions;
    // The draw index of each; NULL: the output's own index, so that outputs with equal seed and position draw independently.
    const uint32_t *draws;
    // The position of all outputs: the number of tokens before them. That of a draft tree is the position of its first draft.
    uint32_t position;
} gumball_draws;

// How operators of the host are made.
typedef struct {
    // sizeof(gumball_operators_config).
    size_t struct_size;
    // The number of threads that process rows, in 1..=1024, where 1 is the caller's; 0: those that all pools share.
    size_t threads;
    // The SIMD level, by its name; NULL: the machine's best. The results are the same.
    const char *level;
} gumball_operators_config;

// Rows to be written, in the memory of the operators. Nobody else uses what lies between the first and the last element during the call;
// elements between rows stay as they are.
typedef struct {
    // sizeof(gumball_rows_out).
    size_t struct_size;
    // The first element of the first row.
    void *data;
    // The number of rows.
    size_t rows;
    // The number of elements in a row.
    size_t vocab;
    // How many elements after a row the next one begins; 0: vocab.
    size_t stride;
    // GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16. Each number is rounded to it once.
    int32_t dtype;
} gumball_rows_out;

// The parameters of the rows of a batch. A list has one element per row of the matrix and lies where the rows
// do; NULL: the value in `params`, for all rows.
typedef struct {
    // sizeof(gumball_row_params).
    size_t struct_size;
    // The parameters of all rows; NULL: neutral parameters. Rules that read a history find it empty; seed and logprobs are not
    // read.
    const gumball_params *params;
    // The temperature of each row.
    const float *temperature;
    // The top_k of each row.
    const int64_t *top_k;
    // The top_p of each row.
    const float *top_p;
    // The min_p of each row.
    const float *min_p;
} gumball_row_params;

// Which elements of pools the rows of a call read; a pool is a list with an element for each of many requests. All lists lie where the
// rows do.
typedef struct {
    // sizeof(gumball_pool_slots).
    size_t struct_size;
    // The slot of each request: the index of its elements.
    const uint32_t *slots;
    // The elements of each pool, which are all lists of gumball_row_params and gumball_draws.
    size_t size;
    // How many neighbouring rows a request has, of which each is one position on; 0: one.
    size_t rows_per_slot;
    // A pool of 64-bit words whose low halves are positions and whose high halves are draw indices, instead of `positions` and
    // `draws` of gumball_draws. NULL: there is none.
    const int64_t *offsets;
} gumball_pool_slots;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the code of this thread's last error; GUMBALL_OK if there was none.
gumball_code gumball_error_code(void);

// Returns this thread's last error in words: the parameter, its value and the allowed range. Never NULL.
//
// This text, and those of the functions beside it, stay until the thread's next error.
const char *gumball_error_message(void);

// Returns the parameter that the last error is about, or what is unavailable; empty if there is none.
const char *gumball_error_parameter(void);

// Returns its value, its length, the unknown name, or the parameter it excludes; empty if there is none.
const char *gumball_error_value(void);

// Returns what is allowed, the names that are known, or the reason; empty if there is none.
const char *gumball_error_allowed(void);

// Returns GUMBALL_ABI_VERSION as the library was built with it: to be compared with the header's.
uint32_t gumball_abi_version(void);

// Returns the library's version, GUMBALL_VERSION as it was built with it.
const char *gumball_version(void);

// Makes neutral parameters: rows are drawn from as they are, at temperature 1. NULL after an error.
gumball_params *gumball_params_new(void);

// Makes parameters of JSON: an object of the fields that are not neutral. A name that is not known is an error.
//
// The fields, their ranges and what they mean stand in the parameters' table of docs/semantics.md, as
// `{"temperature": 0.8, "top_p": 0.9, "dry": {"multiplier": 0.8}, "logprobs": {"top_n": 5}}`. NULL after an error.
gumball_params *gumball_params_from_json(const char *json);

// Makes a copy. NULL after an error.
gumball_params *gumball_params_clone(const gumball_params *params);

// Ends parameters. Who was given them keeps a copy. NULL is fine.
void gumball_params_free(gumball_params *params);

// Returns all parameters as JSON, which stays until the next call of this function or the end of the parameters. NULL
// after an error.
const char *gumball_params_to_json(gumball_params *params);

// Checks all parameters against their ranges for a vocabulary. Whoever takes parameters does so as well.
gumball_code gumball_params_validate(const gumball_params *params, size_t vocab);

// Sets a parameter that is a number, an integer, or 0 or 1, by its name; numbers are rounded to float.
//
// The table of docs/semantics.md has the names, such as top_p, dry.base and logprobs.top_n; the error for an unknown name lists them.
// NaN and values that are infinite as a float are refused at once, other values outside a range when the parameters are taken.
gumball_code gumball_params_set(gumball_params *params,
                                const char *name,
                                double value);

// Sets a parameter that is a list of ids, by its name: allowed_ids, banned_ids, stop_ids, dry.breakers, logprobs.ids.
//
// Empty allowed_ids ban every id; gumball_params_reset takes them back.
gumball_code gumball_params_set_ids(gumball_params *params, const char *name, const uint32_t *ids, size_t ids_len);

// Sets a parameter that is a name, by its own: repetition_scope and penalty_scope (prompt, output, both), order (default,
// joint, none, or filters separated by commas), logprobs.mode (raw, edited, tempered, processed).
gumball_code gumball_params_set_text(gumball_params *params,
                                     const char *name,
                                     const char *value);

// Sets any one parameter from JSON, by its name as gumball_params_from_json reads it: `dry`, `{"multiplier": 0.8}`.
gumball_code gumball_params_set_json(gumball_params *params, const char *name, const char *json);

// Makes one parameter neutral again, by its name; `dry`, `logprobs` and the like as a whole. All of them if the name is
// NULL.
gumball_code gumball_params_reset(gumball_params *params, const char *name);

// Sets the seed of all draws. Without one, each request draws a fresh one, which its state tells.
gumball_code gumball_params_set_seed(gumball_params *params, uint64_t seed);

// Sets what is added to the logits of ids; -INFINITY is a ban. An empty list takes it back.
gumball_code gumball_params_set_logit_bias(gumball_params *params,
                                           const uint32_t *ids,
                                           const float *biases,
                                           size_t len);

// Adds a sequence of ids that is never completed.
gumball_code gumball_params_add_bad_word(gumball_params *params, const uint32_t *ids, size_t ids_len);

// Lets the temperature follow the row's entropy, between two limits; an exponent of 1 is usual.
gumball_code gumball_params_set_dynamic_temperature(gumball_params *params, float min, float max, float exponent);

// Switches mirostat v2 on. `mu` is the limit to start from, in bits; NULL for twice `tau`.
gumball_code gumball_params_set_mirostat(gumball_params *params, float tau, float eta, const float *mu);

// Writes where the outputs of `rows` rows lie, with places for the `top_n` most likely tokens and for `ids` named ids.
gumball_code gumball_layout_of(size_t rows, size_t top_n, size_t ids, gumball_layout *out);

// Makes empty outputs; with `keep_ids` above 0 such as collect the kept set of every row, which costs a sort of it. NULL
// after an error.
gumball_outputs *gumball_outputs_new(uint32_t keep_ids);

// Ends outputs. NULL is fine.
void gumball_outputs_free(gumball_outputs *outputs);

// Tells where the sections lie.
gumball_code gumball_outputs_layout(const gumball_outputs *outputs, gumball_layout *out);

// Returns the number of rows; 0 after an error.
size_t gumball_outputs_rows(const gumball_outputs *outputs);

// Returns 1 if the rows came from a clustered head, so that tokens, kept sets, logprobs and ranks are those of the ids that it computed and approximate the exact
// head's; else 0, as after an error.
uint32_t gumball_outputs_is_approximate(const gumball_outputs *outputs);

// Returns the buffer, all sections as gumball_outputs_layout tells; NULL if it is empty, or after an error.
const uint32_t *gumball_outputs_words(const gumball_outputs *outputs);

// Returns the token of each row, -1 where there is none.
const int32_t *gumball_outputs_tokens(const gumball_outputs *outputs);

// Returns the status of each row, bits of gumball_status.
const uint32_t *gumball_outputs_statuses(const gumball_outputs *outputs);

// Returns the logprob of each row's token; -inf if it was not asked for.
const float *gumball_outputs_logprobs(const gumball_outputs *outputs);

// Returns the rank of each row's token, from 1; 0 if it was not asked for, or is no member.
const uint32_t *gumball_outputs_ranks(const gumball_outputs *outputs);

// Returns the temperature in use in each row; 0 if greedy.
const float *gumball_outputs_temperatures(const gumball_outputs *outputs);

// Returns mirostat's limit after each row, in bits; 0 without mirostat.
const float *gumball_outputs_mirostat_mu(const gumball_outputs *outputs);

// Returns the most likely ids, `top_n` of them a row, row by row; -1 where there are no more.
const int32_t *gumball_outputs_top_ids(const gumball_outputs *outputs);

// Returns the logprobs of the most likely ids, row by row.
const float *gumball_outputs_top_logprobs(const gumball_outputs *outputs);

// Returns the logprobs of the ids that requests name, `ids` of them a row, row by row.
const float *gumball_outputs_id_logprobs(const gumball_outputs *outputs);

// Returns the ranks of the ids that requests name, row by row.
const uint32_t *gumball_outputs_id_ranks(const gumball_outputs *outputs);

// Returns the ids that a row's filters kept, and their number: ascending, on the host as on a device.
//
// NULL if there are none: the row is empty or padding, or the outputs collect no kept sets; and after an error.
const uint32_t *gumball_outputs_kept(const gumball_outputs *outputs, size_t row, size_t *len);

// Makes a sampler with an empty history; gumball_sampler_reset gives it a prompt. It keeps a copy of the parameters. NULL
// after an error.
gumball_sampler *gumball_sampler_new(const gumball_params *params,
                                     const gumball_sampler_config *config);

// Makes a sampler that takes up a sequence where another sampler or pool left it; seed and draw index are the state's. NULL
// after an error.
//
// With mirostat, the sequence cannot be truncated behind the state.
gumball_sampler *gumball_sampler_resume(const gumball_params *params,
                                        const gumball_sampler_config *config,
                                        const gumball_state *state);

// Makes a sampler with the same state and another draw index. NULL after an error.
gumball_sampler *gumball_sampler_fork(const gumball_sampler *sampler, uint32_t draw);

// Ends a sampler. NULL is fine.
void gumball_sampler_free(gumball_sampler *sampler);

// Draws the next token from a row and appends it to the history; an empty row changes nothing.
//
// `logits`: `vocab` elements of `dtype` in host memory; probabilities if the `kind` of the options says so. `options`: masks,
// forced token and hook of this one row, or NULL; rows of probabilities have no hook. A forced token is emitted even if it is banned; its logprob is the one that it would have had.
gumball_code gumball_sampler_sample(gumball_sampler *sampler,
                                    const void *logits,
                                    int32_t dtype,
                                    size_t vocab,
                                    const gumball_step_options *options,
                                    gumball_token *token);

// Draws `n` tokens from one row of logits, under the draw indices 0..n, and appends none: `tokens` has `n` places.
//
// They are what `n` sequences would draw, independent, repeats included. gumball_sampler_push appends one of them.
gumball_code gumball_sampler_sample_n(gumball_sampler *sampler,
                                      const void *logits,
                                      int32_t dtype,
                                      size_t vocab,
                                      uint32_t n,
                                      gumball_token *tokens);

// Appends a token that was chosen elsewhere; mirostat's limit stays.
gumball_code gumball_sampler_push(gumball_sampler *sampler, uint32_t id);

// Goes back to the state after `output_len` output tokens, mirostat's limit included.
gumball_code gumball_sampler_truncate(gumball_sampler *sampler, size_t output_len);

// Starts over after a prompt, with the same parameters, seed and draw index.
gumball_code gumball_sampler_reset(gumball_sampler *sampler, const uint32_t *prompt, size_t prompt_len);

// Tells the state: history, seed in use, position, draw index, mirostat's limit.
gumball_code gumball_sampler_state(const gumball_sampler *sampler, gumball_state *out);

// Returns a copy of the parameters, to be freed. NULL after an error.
gumball_params *gumball_sampler_params(const gumball_sampler *sampler);

// Returns the most likely tokens of the last row, `logprobs.top_n` of them, and their number. They stay until the next
// call with this sampler. NULL if the parameters ask for none, or after an error.
const gumball_token_logprob *gumball_sampler_top_logprobs(gumball_sampler *sampler, size_t *len);

// Returns the logprobs of the ids that the parameters name, of the last row, and their number. They stay until the next
// call with this sampler. NULL if the parameters name none, or after an error.
const gumball_token_logprob *gumball_sampler_id_logprobs(gumball_sampler *sampler, size_t *len);

// Returns the ids that the filters kept of the last row, in the order of tokens, and their number, if the config asked for
// them. They stay until the next call that samples. NULL if there are none, or after an error.
const uint32_t *gumball_sampler_kept(const gumball_sampler *sampler,
                                     size_t *len);

// Opens a device by its name, cuda or cuda:N, on a stream of its own. NULL after an error: GUMBALL_UNAVAILABLE with what is
// missing, where there is no CUDA.
//
// It works in the device's primary context, which the CUDA runtime and libraries built on it share. A kernel is
// loaded by its first launch: from the folder that GUMBALL_KERNELS names, or from the user's cache (GUMBALL_CACHE), into which
// it is compiled once.
gumball_device *gumball_device_open(const char *name);

// Opens the same device on a stream of the program: a cudaStream_t or CUstream of the primary context; NULL is the default
// one. NULL after an error.
//
// Steps are then enqueued there, in turn with what the program enqueues; nothing needs to wait. The stream lives longer than
// the returned device and all that is made with it.
gumball_device *gumball_device_on_stream(const gumball_device *device,
                                         void *stream);

// Ends a handle of a device; what was made with it goes on. NULL is fine.
void gumball_device_free(gumball_device *device);

// Returns its name, which stays as long as the handle. NULL after an error.
const char *gumball_device_name(const gumball_device *device);

// Takes memory of a device, filled with zeros: for a program that has none of its own. NULL after an error.
gumball_buffer *gumball_buffer_new(const gumball_device *device, size_t bytes);

// Gives memory back. No step may read it any more. NULL is fine.
void gumball_buffer_free(gumball_buffer *buffer);

// Returns where it lies on the device; NULL after an error.
void *gumball_buffer_address(const gumball_buffer *buffer);

// Copies bytes to a place in it, in turn with what is on the device's stream. They are taken on return.
gumball_code gumball_buffer_write(gumball_buffer *buffer, size_t start, const void *data, size_t bytes);

// Copies bytes from a place in it, once all that is on the device's stream before is done; `data` has `bytes` bytes.
gumball_code gumball_buffer_read(const gumball_buffer *buffer, size_t start, void *data, size_t bytes);

// Makes an empty pool on the host. NULL after an error.
gumball_pool *gumball_pool_new(const gumball_pool_config *config);

// Makes an empty pool on a device; its tokens are those of a pool on the host. NULL after an error.
gumball_pool *gumball_pool_new_on_device(const gumball_device *device, const gumball_device_pool_config *config);

// Ends a pool with its sequences. On a device it waits for what was enqueued. NULL is fine.
void gumball_pool_free(gumball_pool *pool);

// Admits a request and tells its slot. The pool keeps a copy of the parameters. On a device it waits for nothing.
gumball_code gumball_pool_admit(gumball_pool *pool,
                                const gumball_params *params,
                                const uint32_t *prompt,
                                size_t prompt_len,
                                int32_t *slot);

// Takes up a sequence where it was left, here or in any other pool or sampler, and tells its slot. Seed and draw index are
// the state's. With mirostat, the sequence cannot be truncated behind the state.
gumball_code gumball_pool_resume(gumball_pool *pool,
                                 const gumball_params *params,
                                 const gumball_state *state,
                                 int32_t *slot);

// Copies a sequence to a slot of its own, under another draw index, and tells that slot.
//
// For n sequences of one request: admit it, fork it under 1, 2, .. n - 1, and let all of them read the same row of logits
// in the first step. On a device the copy goes through the host, which may have to wait.
gumball_code gumball_pool_fork(gumball_pool *pool,
                               int32_t of,
                               uint32_t draw,
                               int32_t *slot);

// Ends a sequence; its slot is vacant then. On a device, rows that are assigned to it are padding.
gumball_code gumball_pool_release(gumball_pool *pool, int32_t slot);

// Takes a sequence back to its state after `output_len` output tokens, mirostat's limit included.
gumball_code gumball_pool_truncate(gumball_pool *pool, int32_t slot, size_t output_len);

// Appends a token that was chosen elsewhere; mirostat's limit stays.
gumball_code gumball_pool_push(gumball_pool *pool, int32_t slot, uint32_t id);

// Tells the state of a slot: history, seed in use, position, draw index, mirostat's limit. On a device it waits where the
// host does not know the last tokens yet, and tokens may be lost, as gumball_device_pool_config's `keep_histories` says.
gumball_code gumball_pool_state(gumball_pool *pool,
                                int32_t slot,
                                gumball_state *out);

// Returns a copy of the parameters of a slot, to be freed. NULL after an error.
gumball_params *gumball_pool_params(gumball_pool *pool, int32_t slot);

// Returns how many sequences are in flight; 0 after an error.
size_t gumball_pool_len(const gumball_pool *pool);

// Returns how many can be; 0 after an error.
size_t gumball_pool_capacity(const gumball_pool *pool);

// Returns the number of ids in the vocabulary; 0 after an error.
size_t gumball_pool_vocab(const gumball_pool *pool);

// Says for which slots the next gumball_pool_enqueue_verify verifies drafts, those of captured graphs included, and how many drafts
// each has, in 0..=64.
//
// A request with n drafts has n + 1 rows, as for gumball_pool_verify; lists in the options have one element for each. `mode`: a
// gumball_verify_mode; for GUMBALL_THRESHOLD there is gumball_pool_assign_threshold_drafts. Waits for nothing, and copies nothing if it
// is what was assigned already. The first mode but GUMBALL_COUPLED and GUMBALL_GREEDY takes memory of the device for the
// probabilities of the pool's rows.
gumball_code gumball_pool_assign_drafts(gumball_pool *pool,
                                        const int32_t *slots,
                                        const uint32_t *counts,
                                        size_t requests,
                                        int64_t mode,
                                        const gumball_step_options *options);

// Does what gumball_pool_assign_drafts does, for drafts that are judged by GUMBALL_THRESHOLD, with its two thresholds as in
// gumball_drafts.
gumball_code gumball_pool_assign_threshold_drafts(gumball_pool *pool,
                                                  const int32_t *slots,
                                                  const uint32_t *counts,
                                                  size_t requests,
                                                  float threshold_single,
                                                  float threshold_acc,
                                                  const gumball_step_options *options);

// Enqueues the verification of drafts for the requests that gumball_pool_assign_drafts was given. It only launches kernels, and
// returns before the device is done.
//
// The device advances each request by its emitted tokens, so a step or another verification may follow at once. `variant`, and a
// graph that the program captures: as for gumball_pool_enqueue_variant.
gumball_code gumball_pool_enqueue_verify(gumball_pool *pool,
                                         const gumball_device_input *input,
                                         const gumball_device_drafts *drafts,
                                         const char *variant);

// Captures the verification of drafts, to be replayed by gumball_pool_replay. Nothing runs yet. NULL after an error.
//
// A replay verifies for what is assigned then: the numbers of requests and of rows, the mode, and whether there are row_indices
// and masks, must stay.
gumball_graph *gumball_pool_capture_verify(gumball_pool *pool,
                                           const gumball_device_input *input,
                                           const gumball_device_drafts *drafts);

// Waits for what was enqueued so far and copies what came out of the last verification.
gumball_code gumball_pool_fetch_verification(gumball_pool *pool, gumball_verification *verification);

// Takes the last output tokens of the requests that were assigned last away again, as many of each as a number in the device's memory
// says, and returns before the device is done. A following step or verification reads the shorter requests.
//
// `counts`: `len` numbers of `bits` bits (32 or 64), one for each assigned slot; a CUdeviceptr is cast. One below 0 or above the
// number of output tokens takes nothing away, and so does one above 1 with mirostat. A graph that the program captures takes it up, and
// reads the numbers that are there when it is replayed. gumball_pool_state then reads the sequence back: of a pool with keep_histories
// always, of others as long as the outputs of each step were fetched.
gumball_code gumball_pool_enqueue_shorten(gumball_pool *pool,
                                          const void *counts,
                                          size_t len,
                                          int64_t bits);

// Returns where in the device's memory the last verification says which row each row of the outputs comes from: a uint32_t for
// each row, UINT32_MAX where no token was emitted. Behind these is how many drafts were accepted: a uint32_t for each request.
// All of it lies behind the outputs, and moves with their number of rows. NULL after an error.
const void *gumball_pool_walks_address(gumball_pool *pool);

// Makes an exact head, or a fast one, over weights that lie in a device's memory. NULL after an error.
//
// `config`: `weights` is their address there; a CUdeviceptr is cast. Each step reads them, so they stay as long as the head, and may be written between steps. `kind` is
// GUMBALL_HEAD_EXACT; `level`, `file` and `most_rows` are left zero. `bias` is memory of the host and is copied. `rows`: how many hidden states a step may have, in 1..2^31; 0: 256.
// The head has memory for their logits, 4 bytes for each id of each. `fast`: above 0 the tensor cores compute the logits; not of weights in GUMBALL_F32.
gumball_device_head *gumball_device_head_new(const gumball_device *device,
                                             const gumball_head_config *config,
                                             size_t rows,
                                             uint32_t fast);

// Copies a head of the host to a device: of the same kind, with the same results. Returns when it is there; the head of the host may end then. NULL after an error.
//
// `rows`: as for gumball_device_head_new. `weights`: the address in the device's memory of the same weights, of the same type and in the order of ids, which are
// then read there as long as the head lives, and only what the host's head has derived from them is copied. Of a certified or clustered head nobody may write them
// meanwhile. NULL: all of the head is copied.
gumball_device_head *gumball_device_head_of(const gumball_device *device,
                                            const gumball_head *head,
                                            size_t rows,
                                            const void *weights);

// Ends a head, when its steps are done. Graphs that have it must not be replayed any more. NULL is fine.
void gumball_device_head_free(gumball_device_head *head);

// Waits for the device, and writes what a head there has done since it was made, for all pools. `weight_reads`, `screen_reads` and `centroid_reads` are 0: a device does not count
// them. Set the `struct_size` of `counts` before.
gumball_code gumball_device_head_counts(const gumball_device_head *head,
                                        gumball_head_counts *counts);

// As gumball_pool_enqueue, from hidden states in the device's memory, for the rows that gumball_pool_assign was given.
//
// `head`: one of the pool's vocabulary and gumball_device. `input`: hidden states where that says logits, and the head's width for `vocab`; the options of the assignment have no
// `row_indices`. A graph of the program that captures the step reads the head, which must then outlive its replays.
gumball_code gumball_pool_enqueue_hidden(gumball_pool *pool,
                                         const gumball_device_head *head,
                                         const gumball_device_input *input);

// As gumball_pool_enqueue_verify, from hidden states in the device's memory, for the requests that gumball_pool_assign_drafts was given.
//
// `head` and `input`: as for gumball_pool_enqueue_hidden, with a hidden state for each request and each draft.
gumball_code gumball_pool_enqueue_verify_hidden(gumball_pool *pool,
                                                const gumball_device_head *head,
                                                const gumball_device_input *input,
                                                const gumball_device_drafts *drafts);

// Makes a batch of rows of a draft model in a pool on a device, and tells its number. All its memory is taken here, but for what rows
// copy of the histories and counts of their requests.
//
// `rows`: how many it may have, in 1..=the pool's rows. `siblings`: how many drafts are drawn from each, 1 for chains. `probs`: above 0
// the probabilities that drafts are drawn from are written as well, 4 bytes for each id of each row.
gumball_code gumball_pool_add_draft_batch(gumball_pool *pool,
                                          size_t rows,
                                          size_t siblings,
                                          uint32_t probs,
                                          int64_t *batch);

// Frees a batch. Graphs of the program that hold it must not run any more.
gumball_code gumball_pool_remove_draft_batch(gumball_pool *pool, int64_t batch);

// Says for which slots the next gumball_pool_enqueue_draft draws drafts from the rows of a batch, those of captured graphs included.
//
// `slots`: one for each of `rows` rows, -1 for padding; a slot may stand there several times. `counts`: how many drafts are in front of
// each row, in 0..64; NULL: none of any. `mode`: a gumball_verify_mode, that which the drafts will be judged by. Lists in the options have
// one element for each row; a forced token is the only draft of its row. Waits for nothing, and copies nothing if it is what was assigned
// already. The rows of a slot that is released are padding until they are assigned again.
gumball_code gumball_pool_assign_draft(gumball_pool *pool,
                                       int64_t batch,
                                       const int32_t *slots,
                                       const uint32_t *counts,
                                       size_t rows,
                                       int64_t mode,
                                       const gumball_step_options *options);

// Draws drafts from the rows of a draft model, for what is assigned to a batch. It only launches kernels, and returns before the device is
// done. Nothing of a sequence changes; the requests are as the device has them when it gets there.
//
// `paths`: for each row a line of ids in the device's memory, `width` of `bits` bits (32 or 64), `stride` ids from one line to the next;
// those in front of the row are the first ones. NULL if none are in front of any row. Behind a path that has an id outside the
// vocabulary, such as -1, there are no drafts. `variant`, and a graph that the program captures: as for
// gumball_pool_enqueue_variant; NULL: kernels that serve every request.
gumball_code gumball_pool_enqueue_draft(gumball_pool *pool,
                                        int64_t batch,
                                        const gumball_device_input *input,
                                        const void *paths,
                                        size_t width,
                                        size_t stride,
                                        int64_t bits,
                                        const char *variant);

// Waits for what was enqueued so far and copies the last drafts of a batch.
//
// `drafts`: for each assigned row as many ids as the batch has siblings, -1 where there are no more. `probs`: NULL, or `vocab` floats for
// each row: the probabilities that the drafts were drawn from, zeros for padding; only of a batch that writes them.
gumball_code gumball_pool_fetch_drafts(gumball_pool *pool,
                                       int64_t batch,
                                       int32_t *drafts,
                                       float *probs);

// Returns where a batch's drafts lie in the device's memory, `siblings` of int32_t for each assigned row. It never changes. NULL after an
// error.
const void *gumball_pool_drafts_address(gumball_pool *pool,
                                        int64_t batch);

// Returns where the probabilities that a batch's drafts were drawn from lie in the device's memory: `vocab` floats for each assigned row,
// and writes to `stride` how many elements lie from one row to the next. It never changes. NULL after an error.
const void *gumball_pool_draft_probs_address(gumball_pool *pool,
                                             int64_t batch,
                                             size_t *stride);

// Says what the rows of the next steps go by, those of captured graphs included: slots as for gumball_pool_step; masks,
// forced tokens and row_indices from the options. A hook is an error: it runs on the host. So is a `kind`, which an input has.
//
// Waits for nothing, and copies nothing if it is what they go by already. A graph of the program's own must not be under
// capture on the stream, unless nothing changed.
gumball_code gumball_pool_assign(gumball_pool *pool,
                                 const int32_t *slots,
                                 size_t rows,
                                 const gumball_step_options *options);

// Enqueues a step of the rows that were assigned: launches and nothing else. Returns before the device is done.
//
// It allocates nothing there. It may lie in a graph that the program captures on the device's stream, with kernels that serve every
// request; gumball_pool_enqueue_variant captures fewer. Then gumball_pool_reserve_replays is to be called before replays.
gumball_code gumball_pool_enqueue(gumball_pool *pool,
                                  const gumball_device_input *input);

// Captures a step for each input, to be replayed in this order; `inputs` points to pointers to them. Nothing runs yet. NULL
// after an error.
//
// Rows go by what is assigned at the time of a replay: requests can be admitted, released and assigned in between, as long
// as their number stays, and whether there are row_indices and masks.
gumball_graph *gumball_pool_capture(gumball_pool *pool,
                                    const gumball_device_input *const *inputs,
                                    size_t steps);

// Enqueues the steps of a graph that this pool captured: one call, whatever their number. What is assigned has the shape it
// had then.
gumball_code gumball_pool_replay(gumball_pool *pool,
                                 const gumball_graph *graph);

// Returns how many steps a replay takes; 0 after an error.
size_t gumball_graph_steps(const gumball_graph *graph);

// Ends a graph, before or after its pool, when its replays are done. NULL is fine.
void gumball_graph_free(gumball_graph *graph);

// Waits for the steps enqueued so far and copies what the last one came to into the outputs.
gumball_code gumball_pool_fetch(gumball_pool *pool, gumball_outputs *outputs);

// Returns where the outputs of the last step lie in the device's memory: the same address all the pool's life. The tokens
// come first, so a model can read them there without the host. NULL after an error.
const void *gumball_pool_outputs_address(gumball_pool *pool);

// Tells how the outputs of the last step lie there.
gumball_code gumball_pool_outputs_layout(gumball_pool *pool, gumball_layout *out);

// Captures work of several kinds, to be replayed in this order by gumball_pool_replay: drafts of batches, a verification of them, steps, and what moves between these;
// `work` points to pointers to `count` pieces. Nothing runs yet. NULL after an error.
//
// Each piece reads what those before it have written, and requests as these have left them, so a replay drafts, verifies and advances without the host. What
// gumball_pool_assign, _assign_drafts and _assign_draft said last counts, at the time of a replay: the numbers of requests and rows, the modes, and whether there are row_indices and masks,
// must stay. gumball_pool_assign and _assign_drafts replace each other, so a graph has steps or verifications, not both.
gumball_graph *gumball_pool_capture_work(gumball_pool *pool,
                                         const gumball_graph_work *const *work,
                                         size_t count);

// Copies the drafts of the assigned rows of a batch into lines in the device's memory: those of row r into line r, from `column` on. It only launches a kernel, and
// returns before the device is done; a graph that the program captures takes it up.
//
// So the drafts of a chain come together: each batch's are a column of the next one's paths, and all of them are what a verification reads.
gumball_code gumball_pool_enqueue_copy_drafts(gumball_pool *pool,
                                              int64_t batch,
                                              const gumball_device_ints *to,
                                              size_t column);

// Chooses the next token of each row, and appends it to the sequence in the row's slot.
//
// `slots`: `rows` slots, -1 for a row without a sequence, no other twice. Without `row_indices` in the options, the logits have as
// many rows. A row that yields -1 leaves its sequence as it was. After an error no sequence was changed, nor were the
// outputs. In a pool on a device, the logits are copied up and the outputs down.
gumball_code gumball_pool_step(gumball_pool *pool,
                               const gumball_logits *logits,
                               const int32_t *slots,
                               size_t rows,
                               const gumball_step_options *options,
                               gumball_outputs *outputs);

// Tells the logprobs of known tokens, in any mode, with ranks, most likely tokens and given ids: what a step would in which
// each of them is forced. No slot is touched. The outputs have the widths of the request's `logprobs`.
//
// `rows`: how many tokens are scored. The options may bring masks, hooks and row_indices; nothing can be forced.
gumball_code gumball_pool_score(gumball_pool *pool,
                                const gumball_logits *logits,
                                const gumball_scored *scored,
                                size_t rows,
                                const gumball_step_options *options,
                                gumball_outputs *outputs);

// Returns the name of a variant by its number, from 0: no_filter, min_p, top_k, top_k_top_p, top_p, edits, full. NULL behind the
// last one. Each serves the requests of those before it, too.
const char *gumball_variant_name(size_t number);

// Returns which requests a variant serves besides those of the variants before it, in words. NULL after an error.
const char *gumball_variant_serves(const char *variant);

// Returns the name of the smallest variant that serves the rows that are assigned: the one whose graph to replay. NULL after an
// error.
const char *gumball_pool_needed_variant(gumball_pool *pool);

// Tells how many steps a variant has served in this pool. Steps reserved for replays of the program's graphs count under the
// variant that was named, all others under the smallest one that serves their rows.
gumball_code gumball_pool_variant_steps(gumball_pool *pool,
                                        const char *variant,
                                        uint64_t *steps);

// Enqueues a step as gumball_pool_enqueue does, with the kernels of a variant; NULL: full.
//
// In a graph that the program captures, the step then holds only these kernels, and serves later assignments whose requests the
// variant serves. Call it once before the capture, with padding for instance, so that the kernels are loaded. GUMBALL_OUT_OF_RANGE
// if a row that is assigned needs more; nothing has changed then.
gumball_code gumball_pool_enqueue_variant(gumball_pool *pool,
                                          const gumball_device_input *input,
                                          const char *variant);

// Prepares for replays of the program's own graph that take `steps` steps of this pool in all, for the rows that are assigned.
// `variant`: the one that the steps were captured under; NULL: full, or captured without one. It waits where histories must grow,
// which they do once in `history_growth` tokens.
//
// GUMBALL_OUT_OF_RANGE if a row that is assigned needs more than the variant serves, with the row, its slot and the variants that
// do; nothing has changed then. Call it again after each assignment: no other call compares the rows with the graph's variant.
gumball_code gumball_pool_reserve_replays(gumball_pool *pool,
                                          size_t steps,
                                          const char *variant);

// Makes an empty one; with `keep_ids` above 0 such as collects the kept set of every emitted token, which costs a sort of it.
// NULL after an error.
gumball_verification *gumball_verification_new(uint32_t keep_ids);

// Ends a verification. NULL is fine.
void gumball_verification_free(gumball_verification *verification);

// Returns how many drafts of each request were accepted; NULL without requests, or after an error.
const uint32_t *gumball_verification_accepted(const gumball_verification *verification);

// Returns a request's emitted tokens, and their number: the accepted drafts and one more, which is -1 from a row without a
// token. NULL for padding, which has none, and after an error.
const int32_t *gumball_verification_tokens(const gumball_verification *verification,
                                           size_t request,
                                           size_t *len);

// Returns the rows of logits that a request's emitted tokens come from, and their number. These are also the rows whose keys
// and values a model's cache keeps. NULL for padding, which has none, and after an error.
const uint32_t *gumball_verification_rows(const gumball_verification *verification,
                                          size_t request,
                                          size_t *len);

// Returns the outputs, which belong to the verification: as many rows as there are requests and drafts together. A request's
// rows begin where its logits do; the first ones hold its emitted tokens, each with the status, logprobs and ranks of the row
// that it comes from. The others are as of padding. NULL after an error.
const gumball_outputs *gumball_verification_outputs(const gumball_verification *verification);

// Verifies the drafts of each request, and appends the emitted tokens to its sequence. In a pool on a device, logits and drafts
// are copied up and the outputs down.
//
// A request with n drafts has n + 1 rows of logits, one after the other: that at the end of its history, then one behind each
// draft. Without drafts that is a step. `slots`: one for each request, -1 for one without a sequence, whose drafts and rows are
// not used; no other twice. Lists in the options have one element for each row; a row's mask is that behind the drafts on the path to
// it, and `row_indices` say which row of the logits each row reads. A stop id that is emitted is the last token. A request with mirostat has no drafts. In GUMBALL_BLOCK drafts are chains, and
// no token is forced beside them. After an error no sequence was changed.
gumball_code gumball_pool_verify(gumball_pool *pool,
                                 const gumball_logits *logits,
                                 const int32_t *slots,
                                 size_t requests,
                                 const gumball_drafts *drafts,
                                 const gumball_step_options *options,
                                 gumball_verification *verification);

// Draws drafts from rows of a draft model, and changes no sequence. In a pool on a device, logits and paths are copied up and the drafts
// down; for rows that are there, see gumball_pool_add_draft_batch.
//
// A row stands behind the history of the sequence in its slot and a path of drafts. Its drafts are the first tokens that arrive in
// the request's race over the row, with all its parameters and with the path as output: the first is what the request would draw
// there if the row were the target's, the others, siblings of a tree, are the runners-up. `slots`: one for each of `rows` rows, -1 for
// padding; a slot may stand there several times. `drafts`: `siblings` ids for each row, -1 where there are no more. `probs`: NULL, or
// `vocab` floats for each row: the probabilities that its drafts are drawn from, as gumball_drafts.probs has them. Lists in the
// options have one element for each row; a forced token is the only draft of its row. After an error nothing was written.
gumball_code gumball_pool_draft(gumball_pool *pool,
                                const gumball_logits *logits,
                                const int32_t *slots,
                                size_t rows,
                                const gumball_draft_rows *from,
                                const gumball_step_options *options,
                                int32_t *drafts,
                                float *probs);

// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, for a program that stops behind a token that
// more were emitted after. The sequence is then as it was when the remaining tokens had been emitted.
//
// `len`: the number of slots and of counts; no slot twice. On a device the states go through the host, which may have to wait;
// gumball_pool_enqueue_shorten waits for nothing.
// After an error no sequence was changed.
gumball_code gumball_pool_shorten(gumball_pool *pool,
                                  const int32_t *slots,
                                  const size_t *counts,
                                  size_t len);

// Makes a head. GUMBALL_HEAD_CERTIFIED takes a byte for each weight, and the time to read all of them, over the threads that pools of
// the process share. NULL after an error.
gumball_head *gumball_head_new(const gumball_head_config *config);

// Writes what a head has derived from its weights to a file, for `file` in gumball_head_config: a certified head's copy of them, a clustered head's
// clusters and centroids, with a checksum and the digest of the weights in the order of ids, which are not in it. The file appears when it is whole.
//
// `path`: where. `name`: what the tensor of weights is called, which the file says of itself; NULL: lm_head.weight.
gumball_code gumball_head_save(const gumball_head *head,
                               const char *path,
                               const char *name);

// Ends a head; its weights can go then. NULL is fine.
void gumball_head_free(gumball_head *head);

// Writes what is known of a head. Set the `struct_size` of `info` before.
gumball_code gumball_head_describe(const gumball_head *head, gumball_head_info *info);

// Returns the ids whose logits a certified head always computes, since a weight or the bias is not finite or very large, ascending, and
// their number. NULL if there are none, and after an error. They are the head's.
const uint32_t *gumball_head_unscreened(const gumball_head *head,
                                        size_t *len);

// Computes all logits of hidden states, whichever kind the head is. `logits`: memory for `vocab` floats for each hidden state.
gumball_code gumball_head_logits(const gumball_head *head,
                                 const gumball_hidden *hidden,
                                 float *logits);

// Makes a clustered head of clusters that are built of its weights: balanced ones, the same on every machine. It takes the time to compare each row with all
// centroids, up to `iterations` times, over the threads that pools of the process share. NULL after an error.
//
// `config`: of kind GUMBALL_HEAD_CLUSTERED, without a file. `options`: NULL for the defaults. `capacity`: how many ids a cluster has, up to the vocabulary; the last one
// has what is left; 0: 16. `iterations`: how often all ids are assigned to clusters at most; 0: 10. `progress`: NULL: nobody is told. If it stops the build, the
// error is GUMBALL_UNAVAILABLE. What is wrong with the arguments is found before anything is compared.
gumball_head *gumball_head_clustered_build(const gumball_head_config *config,
                                           const gumball_clustered_options *options,
                                           size_t capacity,
                                           size_t iterations,
                                           gumball_cluster_progress progress,
                                           void *user);

// Makes a clustered head of clusters that the program has. NULL after an error.
//
// `config`: of kind GUMBALL_HEAD_CLUSTERED, without a file. `options`: NULL for the defaults. `ids`: `clusters` lists of `capacity` ids, each id of the vocabulary
// once. `centroids`: `width` floats for each cluster, finite. Both are copied.
gumball_head *gumball_head_clustered_new(const gumball_head_config *config,
                                         const gumball_clustered_options *options,
                                         const uint32_t *ids,
                                         size_t clusters,
                                         size_t capacity,
                                         const float *centroids);

// Makes a clustered head of clusters in a file: `file` of the config, which gumball_head_save, or the command `gumball head build`, wrote of these weights and
// this bias, and whose content is checked; or which another program wrote, a safetensors file with the tensors clusters.ids, [clusters, capacity] of I64, I32 or U32,
// and clusters.centroids, [clusters, width] of F32, BF16 or F16. NULL after an error.
//
// `config`: of kind GUMBALL_HEAD_CLUSTERED. `options`: NULL for the defaults.
gumball_head *gumball_head_clustered_open(const gumball_head_config *config,
                                          const gumball_clustered_options *options);

// Sets how many clusters a clustered head probes for a hidden state from now on, 1 to their number. No other thread may use the head meanwhile.
gumball_code gumball_head_set_probes(gumball_head *head,
                                     size_t probes);

// Returns the ids of all clusters, those of the first one first, and their number. NULL if the head has no clusters, and after an error. They are the head's,
// as are those of the following functions.
const uint32_t *gumball_head_cluster_ids(const gumball_head *head,
                                         size_t *len);

// Returns the centroids, `width` floats for each cluster, and how many floats there are. NULL if the head has no clusters, and after an error.
const float *gumball_head_centroids(const gumball_head *head,
                                    size_t *len);

// Returns for each id the row of the permuted weights that is its own, and the number of ids. NULL if the head has no clusters, and after an error.
const uint32_t *gumball_head_places(const gumball_head *head,
                                    size_t *len);

// Returns the ids that a clustered head always computes, ascending, and their number. NULL if there are none, and after an error.
const uint32_t *gumball_head_special_ids(const gumball_head *head,
                                         size_t *len);

// As gumball_pool_step, from hidden states: what comes out is, bit for bit, what that makes of the logits of gumball_head_logits; of a clustered head, with
// -inf for the ids that it does not probe, which gumball_outputs_is_approximate says. So it is of the functions that follow.
//
// `hidden`: `rows` hidden states of the head's width. The head's vocabulary is the pool's. The options have no `row_indices`. For pools on the
// host. After an error no sequence was changed, nor were the outputs.
gumball_code gumball_pool_step_hidden(gumball_pool *pool,
                                      const gumball_head *head,
                                      const gumball_hidden *hidden,
                                      const int32_t *slots,
                                      size_t rows,
                                      const gumball_step_options *options,
                                      gumball_outputs *outputs);

// As gumball_pool_verify, from hidden states: what comes out is, bit for bit, what that makes of the logits of gumball_head_logits.
//
// `hidden`: a hidden state for each request and each draft, in the order of the rows there. A certified head computes a part of a row's logits in
// GUMBALL_COUPLED and GUMBALL_GREEDY, and for requests without drafts. The options have no `row_indices`. For pools on the host. After an error no
// sequence was changed.
gumball_code gumball_pool_verify_hidden(gumball_pool *pool,
                                        const gumball_head *head,
                                        const gumball_hidden *hidden,
                                        const int32_t *slots,
                                        size_t requests,
                                        const gumball_drafts *drafts,
                                        const gumball_step_options *options,
                                        gumball_verification *verification);

// As gumball_pool_draft, from the hidden states of a draft model: what comes out is, bit for bit, what that makes of the logits of
// gumball_head_logits.
//
// `head`: the draft model's, with the pool's vocabulary. `hidden`: `rows` hidden states. The options have no `row_indices`. For pools on the
// host. After an error nothing was written.
gumball_code gumball_pool_draft_hidden(gumball_pool *pool,
                                       const gumball_head *head,
                                       const gumball_hidden *hidden,
                                       const int32_t *slots,
                                       size_t rows,
                                       const gumball_draft_rows *from,
                                       const gumball_step_options *options,
                                       int32_t *drafts,
                                       float *probs);

// As gumball_pool_score, from hidden states: what comes out is, bit for bit, what that makes of the logits of gumball_head_logits, without the
// logits of all rows.
//
// `hidden`: a hidden state for each token that is scored. `chunk_rows`: how many rows are computed at a time, 1 or more: 4 bytes for each id of each, 12 with a
// certified head, up to 8 and 12 for each cluster with a clustered one. The options may bring masks and hooks. For pools on the host.
gumball_code gumball_pool_score_hidden(gumball_pool *pool,
                                       const gumball_head *head,
                                       const gumball_hidden *hidden,
                                       const gumball_scored *scored,
                                       size_t chunk_rows,
                                       const gumball_step_options *options,
                                       gumball_outputs *outputs);

// Tells why a certified head must compute every logit of a request's rows, whatever hidden state they have: `reason` becomes its name, or NULL
// if there is none. The names live until the program ends.
//
// hook: `hooked` is above 0, so the rows have hooks. kept: `keep_ids` is above 0, so the outputs collect kept sets, and no filter bounds them. logprobs: of a
// mode whose members are all tokens. dynamic_temperature, mirostat, joint, route; or the filter that acts first, top_p for instance. A row may take
// all logits all the same: for a hidden state that is not finite, where too many tokens could be chosen, or in a call of many rows. A pool on a device has no
// hooks, and collects kept sets if its config says so, whatever `hooked` and `keep_ids` are.
gumball_code gumball_pool_needs_whole_row(gumball_pool *pool,
                                          int32_t slot,
                                          uint32_t hooked,
                                          uint32_t keep_ids,
                                          const char **reason);

// Writes what heads have done for a pool on the host since it was made. Set the `struct_size` of `counts` before.
gumball_code gumball_pool_head_counts(gumball_pool *pool, gumball_head_counts *counts);

// Makes an empty pool, and waits until all processes of the group have come. NULL after an error: beside those of gumball_pool_new,
// GUMBALL_LATE or GUMBALL_LOST if one does not come or ends, and GUMBALL_DISAGREE if one was made with something else.
gumball_dist *gumball_dist_new(const gumball_dist_config *config);

// Ends a pool with its sequences. The next step of the other processes is GUMBALL_LOST. NULL is fine.
void gumball_dist_free(gumball_dist *pool);

// Returns the number of this process; 0 after an error.
size_t gumball_dist_rank(const gumball_dist *pool);

// Returns the number of processes; 0 after an error.
size_t gumball_dist_world(const gumball_dist *pool);

// Returns the name of the transport that was taken, unix or tcp; NULL after an error.
const char *gumball_dist_transport(const gumball_dist *pool);

// Tells which ids this process has the logits of: the first one, and the end.
gumball_code gumball_dist_ids(const gumball_dist *pool, size_t *first, size_t *end);

// Returns the most ids of a process, to which rows of logits may be padded; 0 after an error.
size_t gumball_dist_width(const gumball_dist *pool);

// Returns how many steps a gumball_dist_layout has served; 0 after an error.
uint64_t gumball_dist_served(const gumball_dist *pool, int32_t layout);

// Tells how many bytes this process has sent to others and received from them, without the 44 in front of each message.
gumball_code gumball_dist_traffic(const gumball_dist *pool, uint64_t *sent, uint64_t *received);

// Admits a request and tells its slot, as gumball_pool_admit does. It must have a seed: processes that each took one would draw
// different tokens.
gumball_code gumball_dist_admit(gumball_dist *pool,
                                const gumball_params *params,
                                const uint32_t *prompt,
                                size_t prompt_len,
                                int32_t *slot);

// Takes up a sequence where it was left, in this or any other pool, and tells its slot, as gumball_pool_resume does.
gumball_code gumball_dist_resume(gumball_dist *pool,
                                 const gumball_params *params,
                                 const gumball_state *state,
                                 int32_t *slot);

// Copies a sequence to a slot of its own, under another draw index, and tells that slot.
gumball_code gumball_dist_fork(gumball_dist *pool, int32_t of, uint32_t draw, int32_t *slot);

// Ends a sequence; its slot is vacant then.
gumball_code gumball_dist_release(gumball_dist *pool, int32_t slot);

// Takes a sequence back to its state after `output_len` output tokens, mirostat's limit included.
gumball_code gumball_dist_truncate(gumball_dist *pool, int32_t slot, size_t output_len);

// Appends a token that was chosen elsewhere; mirostat's limit stays.
gumball_code gumball_dist_push(gumball_dist *pool, int32_t slot, uint32_t id);

// Tells the state of a slot, which is the same on all processes: history, seed in use, position, draw index, mirostat's limit.
gumball_code gumball_dist_state(const gumball_dist *pool,
                                int32_t slot,
                                gumball_state *out);

// Decides the layout of a step of some slots, before its logits exist. All processes that ask the same get the same; nothing is sent.
//
// `slots`: `requests` slots, -1 for padding. `step`: what the step is for; NULL: one token for each request.
gumball_code gumball_dist_plan(const gumball_dist *pool,
                               const int32_t *slots,
                               size_t requests,
                               const gumball_dist_shape *step,
                               gumball_dist_decision *out);

// Tells which process owns a request of a step: samples it under GUMBALL_SWAP, and has its rows under GUMBALL_REPLICATED.
gumball_code gumball_dist_owner(const gumball_dist *pool,
                                size_t requests,
                                size_t request,
                                size_t *rank);

// Chooses the next token of each row, and appends it to the sequence in the row's slot, on all processes. The outputs are those of the
// whole batch on each, and what gumball_pool_step gives for whole rows.
//
// `plan`: that of gumball_dist_plan for these slots; NULL: the one for a step of one token each. `logits`: a row for each slot, of the ids of
// this process, which may be padded to gumball_dist_width; under GUMBALL_REPLICATED a whole row for each request that it owns, in
// turn. `slots`, `options`: as for gumball_pool_step, of the whole batch, the same on all processes, and without row_indices.
//
// Beside the errors of gumball_pool_step, before which nothing is sent: GUMBALL_LOST, GUMBALL_LATE, GUMBALL_DISAGREE, GUMBALL_CORRUPT and
// GUMBALL_BROKEN.
gumball_code gumball_dist_step(gumball_dist *pool,
                               const gumball_dist_decision *plan,
                               const gumball_logits *logits,
                               const int32_t *slots,
                               size_t rows,
                               const gumball_step_options *options,
                               gumball_outputs *outputs);

// Verifies the drafts of each request, and appends the emitted tokens to its sequence, on all processes. What comes out is that of the
// whole batch on each, and what gumball_pool_verify gives for whole rows.
//
// `plan`: that of gumball_dist_plan; NULL: the one for a verification of these drafts. GUMBALL_SURVEY takes none. `logits`: as for
// gumball_dist_step, with the rows that gumball_pool_verify takes; a request's rows stay together. `drafts`: of the whole batch; its
// `probs` has whole rows of all requests. Everything else, and the errors, as for gumball_pool_verify and gumball_dist_step.
gumball_code gumball_dist_verify(gumball_dist *pool,
                                 const gumball_dist_decision *plan,
                                 const gumball_logits *logits,
                                 const int32_t *slots,
                                 size_t requests,
                                 const gumball_drafts *drafts,
                                 const gumball_step_options *options,
                                 gumball_verification *verification);

// Takes the last `counts[i]` output tokens of the sequence in `slots[i]` away again, as gumball_pool_shorten does.
gumball_code gumball_dist_shorten(gumball_dist *pool, const int32_t *slots, const size_t *counts, size_t requests);

// Walks each tree of drafts from its root while a draft is accepted, and draws one more token where the walk ends.
//
// By GUMBALL_REJECTION and GUMBALL_BLOCK every emitted token has the distribution of the target's row; thresholds below 1 are biased
// towards the drafts. Chains, which have no `parents`, are fastest by GUMBALL_REJECTION with `draft_probs`. `draws`: one output per tree.
// `tokens`: memory for T x (n + 1) tokens: the accepted drafts, the token drawn behind them, then -1. The others are NULL or memory: `rows`
// for T x (n + 1) numbers, the rows that the tokens come from, then -1; `accepted`, `accepted_alone` and `statuses` for T words: the number
// of accepted drafts; for these chains alone the number that would be accepted if each were judged by itself, those behind the first
// rejected one included; bits of gumball_status of the rows that the last token was drawn from.
gumball_code gumball_operators_judge(const gumball_operators *operators,
                                     const gumball_draft_trees *trees,
                                     const gumball_draws *draws,
                                     int32_t *tokens,
                                     int32_t *rows,
                                     uint32_t *accepted,
                                     uint32_t *accepted_alone,
                                     uint32_t *statuses);

// Writes how likely one token of each row is, before any edit and filter: its logprob and its rank, as a step reports them of a forced
// token in the mode "raw".
//
// `tokens`: one for each row, -1 for none. `logprobs`: memory for a float for each row: ln, -inf for none. `ranks` and `statuses`: NULL, or
// memory for a word for each row: 1 for the most likely token, 0 for none; bits of gumball_status. On the host an id outside the
// vocabulary is an error; on a device it is none, with GUMBALL_STATUS_NO_ID.
gumball_code gumball_operators_selected_logprobs(const gumball_operators *operators,
                                                 const gumball_logits *logits,
                                                 const int32_t *tokens,
                                                 float *logprobs,
                                                 uint32_t *ranks,
                                                 uint32_t *statuses);

// Makes operators of the host. `config`: NULL is the default. NULL after an error.
gumball_operators *gumball_operators_new(const gumball_operators_config *config);

// Makes operators of a device, in the order of its stream. NULL after an error.
//
// Bans and biases are GUMBALL_UNAVAILABLE there. Graphs captured with the same operators share memory and must not be replayed
// at the same time.
gumball_operators *gumball_operators_new_on_device(const gumball_device *device);

// Ends operators. NULL is fine.
void gumball_operators_free(gumball_operators *operators);

// Writes the softmax of each row at its temperature.
//
// The maximum is subtracted before the temperature divides, so that logits of +-1e6 at 0.01 stay finite; equal logits have equal
// probabilities. At temperature 0 the first of the largest logits has 1. A row without a logit above -inf is all 0.
//
// `temperature`: of all rows, 0 or in (0, 2^100]; `temperatures`: of each row, or NULL. `out`: as many rows, of any type, in memory
// of their own; or the rows that are read, which are then changed in place. `statuses`: memory for R words, which receive bits of
// gumball_status; or NULL. On a device `out` is float or of the logits' type.
gumball_code gumball_operators_softmax(const gumball_operators *operators,
                                       const gumball_logits *logits,
                                       float temperature,
                                       const float *temperatures,
                                       const gumball_rows_out *out,
                                       uint32_t *statuses);

// Writes the distribution that each row's token is drawn from: of logits the softmax after temperature, bans and filters, of
// probabilities those that are kept, renormalised to a sum of 1.
//
// The filters are those of the parameters: top_k, top_p, min_p and all others, in any order, or joint. XTC acts as in draw 0 of
// seed 0 at position 0. `out` and `statuses`: as for gumball_operators_softmax.
gumball_code gumball_operators_probabilities(const gumball_operators *operators,
                                             const gumball_logits *rows,
                                             const gumball_row_params *params,
                                             const gumball_rows_out *out,
                                             uint32_t *statuses);

// Writes each row with only the tokens that its filters and bans keep: other logits become -inf, other probabilities 0. Rows of
// only -inf stay as they are. -0.0 is written as +0.0, and +inf as FLT_MAX.
//
// `out` and `statuses`: as for gumball_operators_softmax.
gumball_code gumball_operators_mask_logits(const gumball_operators *operators,
                                           const gumball_logits *rows,
                                           const gumball_row_params *params,
                                           const gumball_rows_out *out,
                                           uint32_t *statuses);

// Draws a token for each output from a row of logits or of probabilities, after its filters and bans.
//
// `rows`: L rows. `params`: lists of L, or NULL. `tokens`: memory for one token per output; -1 where a row has no token.
// `statuses`: memory for one word per output, which receives bits of gumball_status of the row that it reads; or NULL.
//
// On a device an entry of `row_indices` that is not a row yields -1 and GUMBALL_STATUS_EMPTY.
gumball_code gumball_operators_sample(const gumball_operators *operators,
                                      const gumball_logits *rows,
                                      const gumball_row_params *params,
                                      const gumball_draws *draws,
                                      int32_t *tokens,
                                      uint32_t *statuses);

// Draws a token for each row, as gumball_operators_sample does, by numbers that lie in pools: for programs that keep these for many
// requests and draw for some, in any order, without gathering them.
//
// `rows`: L rows. `params`, `draws`: lists of `pools.size` elements, or NULL; `draws.outputs` is L, and there are no `row_indices`.
// `tokens`, `statuses`: as for gumball_operators_sample. On a device a slot that no pool has yields -1 and GUMBALL_STATUS_EMPTY.
gumball_code gumball_operators_sample_from_pools(const gumball_operators *operators,
                                                 const gumball_logits *rows,
                                                 const gumball_pool_slots *pools,
                                                 const gumball_row_params *params,
                                                 const gumball_draws *draws,
                                                 int32_t *tokens,
                                                 uint32_t *statuses);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GUMBALL_H */
