// What the tests say when something is not as it should be. They go on, and the verdict is the exit status.
#ifndef CHECK_H
#define CHECK_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "gumball_heads.h"

static int failures = 0;

static void check(int ok, const char *what, const char *file, int line) {
    if (!ok) {
        fprintf(stderr, "%s:%d: %s; last error: %s\n", file, line, what, gumball_error_message());
        failures += 1;
    }
}

// `free_kept` frees the handles that the helpers below make, each kind in this order.
#define KINDS(each) each(params) each(sampler) each(outputs) each(pool) each(graph) each(head) each(buffer)
#define KEPT(kind) \
    static __thread gumball_##kind *kept_##kind[64]; \
    static __thread size_t count_##kind = 0; \
    static inline gumball_##kind *keep_##kind(gumball_##kind *it) { \
        check(it != NULL && count_##kind < 64, "a " #kind " that can be kept", __FILE__, __LINE__); \
        return kept_##kind[count_##kind++ % 64] = it; \
    }
#define FREED(kind) \
    while (count_##kind > 0) { \
        gumball_##kind##_free(kept_##kind[--count_##kind]); \
    }
KINDS(KEPT)

static void free_kept(void) { KINDS(FREED) }

static int verdict(const char *name) {
    free_kept();
    printf("%s: %s\n", name, failures == 0 ? "passed" : "FAILED");
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// Of a pool: several take memory now and then, as they come to run, so rounds have one.
static size_t most_threads = 2;

// Runs all of a program's tests once, or ROUNDS times, over which the memory at its most must not grow: 100 bytes lost
// in each of 3000 would be 290 KiB.
static inline int verdict_of(const char *name, void (*all)(void), int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 1, first = rounds / 30;
    struct rusage before, after;
    most_threads = rounds > 1 ? 1 : 2;
    for (int round = 0; round < rounds; round++) {
        all();
        free_kept();
        if (round == first) {
            check(getrusage(RUSAGE_SELF, &before) == 0, "usage", __FILE__, __LINE__);
        }
    }
    check(getrusage(RUSAGE_SELF, &after) == 0 && (rounds == 1 || after.ru_maxrss - before.ru_maxrss < 256),
          "no memory is lost", __FILE__, __LINE__);
    return verdict(name);
}

#define CHECK(condition) check((condition) ? 1 : 0, #condition, __FILE__, __LINE__)
#define OK(call) check((call) == GUMBALL_OK, #call, __FILE__, __LINE__)

#define ZEROED(type, name) \
    type name; \
    memset(&(name), 0, sizeof(name))
// A struct that is handed in, with nothing set but its size.
#define SIZED(type, name) \
    ZEROED(type, name); \
    (name).struct_size = sizeof(name)

// Whether the last error is about a parameter.
static inline int about(const char *parameter) {
    gumball_error_parts parts;
    gumball_error(&parts);
    return strcmp(parts.parameter, parameter) == 0;
}

// A call that must be refused with a code and, word for word, a message.
static inline void refused(int ok, gumball_code code, const char *message, const char *what, const char *file,
                           int line) {
    if (!ok || gumball_error(NULL) != code || strcmp(gumball_error_message(), message) != 0) {
        fprintf(stderr, "%s:%d: %s: code %d, \"%s\"\n", file, line, what, (int)gumball_error(NULL),
                gumball_error_message());
        failures += 1;
    }
}

#define REFUSED(call, code, message) refused((call) == (code), code, message, #call, __FILE__, __LINE__)
#define NONE(call, code, message) refused((call) == NULL, code, message, #call, __FILE__, __LINE__)
// Calls that are refused with a code, for a parameter.
#define FAILS(call, code, parameter) check((call) == (code) && about(parameter), #call, __FILE__, __LINE__)
#define NOTHING(call, code, parameter) \
    check((call) == NULL && gumball_error(NULL) == (code) && about(parameter), #call, __FILE__, __LINE__)

static inline gumball_params *params_of(const char *json) { return keep_params(gumball_params_from_json(json)); }

static inline gumball_outputs *outputs_of(void) { return keep_outputs(gumball_outputs_new()); }

static inline gumball_sampler *sampler_of(const char *json, size_t vocab, const uint32_t *prompt, size_t prompt_len) {
    gumball_params *params = gumball_params_from_json(json);
    SIZED(gumball_sampler_config, config);
    config.vocab = vocab;
    config.kept = 1;
    gumball_sampler *sampler = keep_sampler(gumball_sampler_new(params, &config, NULL));
    OK(gumball_sampler_reset(sampler, prompt, prompt_len));
    gumball_params_free(params);
    return sampler;
}

static inline gumball_pool *pool_with(gumball_pool_config config, size_t vocab) {
    config.vocab = vocab;
    config.slots = 8;
    config.top_n = 3;
    config.ids = 2;
    return keep_pool(gumball_pool_new(&config));
}

static inline gumball_pool *pool_of(size_t vocab, size_t threads) {
    SIZED(gumball_pool_config, config);
    config.threads = threads;
    return pool_with(config, vocab);
}

static inline gumball_pool *keeping_pool_of(size_t vocab, size_t threads) {
    SIZED(gumball_pool_config, config);
    config.threads = threads;
    config.kept = 1;
    return pool_with(config, vocab);
}

static inline gumball_pool *device_pool_of(gumball_device *device, size_t vocab) {
    SIZED(gumball_pool_config, config);
    config.device = device;
    config.rows = 8;
    config.history_growth = 3;
    config.kept = 1;
    return pool_with(config, vocab);
}

static inline int32_t admit(gumball_pool *pool, const char *json, const uint32_t *prompt, size_t prompt_len) {
    gumball_params *params = gumball_params_from_json(json);
    int32_t slot = -1;
    OK(gumball_pool_admit(pool, params, prompt, prompt_len, &slot));
    gumball_params_free(params);
    return slot;
}

static inline gumball_pool_info pool_info_of(const gumball_pool *pool) {
    SIZED(gumball_pool_info, info);
    OK(gumball_pool_describe(pool, &info));
    return info;
}

static inline gumball_counts counts_of(gumball_pool *pool) {
    SIZED(gumball_counts, counts);
    OK(gumball_pool_counts(pool, &counts));
    return counts;
}

static inline gumball_matrix matrix_of(const void *data, gumball_dtype dtype, size_t rows, size_t width) {
    ZEROED(gumball_matrix, matrix);
    matrix.data = data;
    matrix.dtype = dtype;
    matrix.rows = rows;
    matrix.width = width;
    return matrix;
}

static inline gumball_rows rows_of(const void *data, gumball_dtype dtype, size_t rows, size_t width) {
    ZEROED(gumball_rows, of);
    of.matrix = matrix_of(data, dtype, rows, width);
    return of;
}

// f32 hidden states, one behind the other.
static inline gumball_rows hidden_of(const gumball_head *head, const float *data, size_t rows, size_t width) {
    gumball_rows hidden = rows_of(data, GUMBALL_F32, rows, width);
    hidden.what = GUMBALL_HIDDEN;
    hidden.head = head;
    return hidden;
}

static inline gumball_ints ints_of(const void *data, size_t count) {
    ZEROED(gumball_ints, ints);
    ints.data = data;
    ints.rows = count;
    return ints;
}

static inline gumball_batch batch_of(const int32_t *slots, size_t len) {
    SIZED(gumball_batch, batch);
    batch.slots = slots;
    batch.len = len;
    return batch;
}

static inline gumball_code plan_of(const gumball_pool *pool, const int32_t *slots, size_t len, gumball_plan *plan) {
    const gumball_batch batch = batch_of(slots, len);
    return gumball_pool_plan(pool, &batch, GUMBALL_DECODE, 0, 0, plan);
}

static inline gumball_masks masks_of(const uint32_t *words, size_t rows, size_t width) {
    ZEROED(gumball_masks, masks);
    masks.words = words;
    masks.rows = rows;
    masks.width = width;
    return masks;
}

static inline gumball_code sample(gumball_sampler *sampler, const void *row, gumball_dtype dtype, size_t vocab,
                                  const gumball_batch *batch, gumball_token *token) {
    const gumball_rows rows = rows_of(row, dtype, 1, vocab);
    return gumball_sampler_sample(sampler, &rows, batch, token);
}

static inline gumball_code take_step(gumball_pool *pool, const gumball_rows *rows, const int32_t *slots, size_t len,
                                     gumball_outputs *outputs) {
    const gumball_batch batch = batch_of(slots, len);
    return gumball_pool_step(pool, rows, &batch, outputs);
}

static inline gumball_code assign(gumball_pool *pool, const int32_t *slots, size_t len) {
    const gumball_batch batch = batch_of(slots, len);
    return gumball_pool_assign(pool, &batch);
}

// A piece of work over rows in a device's memory.
static inline gumball_work work_of(gumball_work_kind kind, const gumball_rows *rows) {
    SIZED(gumball_work, work);
    work.kind = kind;
    work.rows = *rows;
    return work;
}

static inline gumball_code enqueue(gumball_pool *pool, const gumball_rows *rows) {
    const gumball_work work = work_of(GUMBALL_WORK_STEP, rows);
    return gumball_pool_enqueue(pool, &work, 1);
}

static inline gumball_outputs_view view_of(const gumball_outputs *outputs) {
    SIZED(gumball_outputs_view, view);
    OK(gumball_outputs_read(outputs, &view));
    return view;
}

static inline gumball_emitted emitted_of(const gumball_outputs *outputs, size_t request) {
    ZEROED(gumball_emitted, emitted);
    OK(gumball_outputs_request(outputs, request, &emitted));
    return emitted;
}

// Whether a request has emitted accepted drafts and one token more, from these rows; none for padding.
static inline int emits(const gumball_outputs *outputs, size_t request, const int32_t *tokens, const uint32_t *from,
                        size_t count) {
    const gumball_emitted seen = emitted_of(outputs, request);
    if (count == 0) {
        return seen.len == 0 && seen.tokens == NULL && seen.rows == NULL;
    }
    return seen.len == count && seen.accepted == count - 1 &&
           memcmp(seen.tokens, tokens, count * sizeof *tokens) == 0 &&
           memcmp(seen.rows, from, count * sizeof *from) == 0;
}

// Fills rows with zeros, and in each makes one id likely.
static inline gumball_rows sure_of(float *rows, size_t vocab, const int *ids, size_t count) {
    memset(rows, 0, count * vocab * sizeof *rows);
    for (size_t row = 0; row < count; row++) {
        rows[row * vocab + (size_t)ids[row]] = 9.0f;
    }
    return rows_of(rows, GUMBALL_F32, count, vocab);
}

static inline gumball_state state_of(gumball_pool *pool, int32_t slot) {
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, slot, &state));
    return state;
}

// Memory of a device with a copy of some of the host's.
static inline gumball_buffer *copied_up(gumball_device *device, const void *data, size_t bytes) {
    gumball_buffer *buffer = keep_buffer(gumball_buffer_new(device, bytes));
    OK(gumball_buffer_write(buffer, 0, data, bytes));
    return buffer;
}

// f32 rows in a device's memory.
static inline gumball_rows rows_there(const gumball_buffer *buffer, size_t rows, size_t width) {
    gumball_rows there = rows_of(gumball_buffer_address(buffer), GUMBALL_F32, rows, width);
    there.matrix.memory = GUMBALL_DEVICE;
    return there;
}

static inline gumball_ints ints_there(const gumball_buffer *buffer, gumball_int_type dtype, size_t count) {
    gumball_ints there = ints_of(gumball_buffer_address(buffer), count);
    there.memory = GUMBALL_DEVICE;
    there.dtype = dtype;
    return there;
}

// Whether outputs are the same to the bit, as far as both places tell.
static inline int same_outputs(const gumball_outputs *a, const gumball_outputs *b) {
    const gumball_outputs_view wanted = view_of(a), seen = view_of(b);
    return wanted.words_len == seen.words_len && wanted.requests == seen.requests &&
           memcmp(wanted.words, seen.words, wanted.words_len * sizeof *wanted.words) == 0 &&
           memcmp(wanted.accepted, seen.accepted, wanted.requests * sizeof *wanted.accepted) == 0;
}

#endif
