// What the tests say when something is not as it should be. They go on, and the verdict is the exit status.
#ifndef CHECK_H
#define CHECK_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gumball.h"

static int failures = 0;

static void check(int ok, const char *what, const char *file, int line) {
    if (!ok) {
        fprintf(stderr, "%s:%d: %s; last error: %s\n", file, line, what, gumball_error_message());
        failures += 1;
    }
}

static int verdict(const char *name) {
    printf("%s: %s\n", name, failures == 0 ? "passed" : "FAILED");
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#define CHECK(condition) check((condition) ? 1 : 0, #condition, __FILE__, __LINE__)
#define OK(call) check((call) == GUMBALL_OK, #call, __FILE__, __LINE__)

// A call that must be refused with a code and, word for word, a message.
static inline void refused(int ok, gumball_code code, const char *message, const char *what, const char *file,
                           int line) {
    if (!ok || gumball_error_code() != code || strcmp(gumball_error_message(), message) != 0) {
        fprintf(stderr, "%s:%d: %s: code %d, \"%s\"\n", file, line, what, (int)gumball_error_code(),
                gumball_error_message());
        failures += 1;
    }
}

#define REFUSED(call, code, message) refused((call) == (code), code, message, #call, __FILE__, __LINE__)
#define NONE(call, code, message) refused((call) == NULL, code, message, #call, __FILE__, __LINE__)

// A struct that is handed in, with nothing set but its size.
#define SIZED(type, name) \
    type name; \
    memset(&(name), 0, sizeof(name)); \
    (name).struct_size = sizeof(name)

static inline gumball_params *params_of(const char *json) {
    gumball_params *params = gumball_params_from_json(json);
    check(params != NULL, json, __FILE__, __LINE__);
    return params;
}

static inline gumball_sampler *sampler_of(const char *json, size_t vocab, const uint32_t *prompt, size_t prompt_len) {
    gumball_params *params = params_of(json);
    SIZED(gumball_sampler_config, config);
    config.vocab = vocab;
    config.keep_ids = 1;
    gumball_sampler *sampler = gumball_sampler_new(params, &config);
    CHECK(sampler != NULL);
    OK(gumball_sampler_reset(sampler, prompt, prompt_len));
    gumball_params_free(params);
    return sampler;
}

static inline gumball_pool *pool_of(size_t vocab, size_t threads) {
    SIZED(gumball_pool_config, config);
    config.vocab = vocab;
    config.slots = 8;
    config.threads = threads;
    config.top_n = 3;
    config.ids = 2;
    gumball_pool *pool = gumball_pool_new(&config);
    CHECK(pool != NULL);
    return pool;
}

static inline gumball_pool *device_pool_of(gumball_device *device, size_t vocab) {
    SIZED(gumball_device_pool_config, config);
    config.vocab = vocab;
    config.slots = 8;
    config.rows = 8;
    config.top_n = 3;
    config.ids = 2;
    config.history_growth = 3;
    config.keep_ids = 1;
    gumball_pool *pool = gumball_pool_new_on_device(device, &config);
    CHECK(pool != NULL);
    return pool;
}

static inline int32_t admit(gumball_pool *pool, const char *json, const uint32_t *prompt, size_t prompt_len) {
    gumball_params *params = params_of(json);
    int32_t slot = -1;
    OK(gumball_pool_admit(pool, params, prompt, prompt_len, &slot));
    gumball_params_free(params);
    return slot;
}

static inline gumball_logits logits_of(const void *data, int32_t dtype, size_t rows, size_t vocab) {
    SIZED(gumball_logits, logits);
    logits.data = data;
    logits.dtype = dtype;
    logits.rows = rows;
    logits.vocab = vocab;
    return logits;
}

// f32 hidden states, one behind the other.
static inline gumball_hidden hidden_states_of(const float *data, size_t rows, size_t width) {
    SIZED(gumball_hidden, hidden);
    hidden.data = data;
    hidden.rows = rows;
    hidden.width = width;
    return hidden;
}

// A head of f32 weights, with a bias, a scale and a softcap.
static inline gumball_head_config head_config_of(const float *weights, const float *bias, size_t vocab, size_t width,
                                                 int32_t kind) {
    SIZED(gumball_head_config, config);
    config.weights = weights;
    config.vocab = vocab;
    config.width = width;
    config.kind = kind;
    config.bias = bias;
    config.logit_scale = 0.5f;
    config.softcap = 20.0f;
    return config;
}

// Memory of a device with a copy of some of the host's.
static inline gumball_buffer *copied_up(gumball_device *device, const void *data, size_t bytes) {
    gumball_buffer *buffer = gumball_buffer_new(device, bytes);
    OK(gumball_buffer_write(buffer, 0, data, bytes));
    return buffer;
}

// Whether outputs have the same tokens, logprobs and ranks.
static inline int same_outputs(const gumball_outputs *a, const gumball_outputs *b) {
    size_t rows = gumball_outputs_rows(a);
    return rows == gumball_outputs_rows(b) &&
           memcmp(gumball_outputs_tokens(a), gumball_outputs_tokens(b), rows * sizeof(int32_t)) == 0 &&
           memcmp(gumball_outputs_logprobs(a), gumball_outputs_logprobs(b), rows * sizeof(float)) == 0 &&
           memcmp(gumball_outputs_ranks(a), gumball_outputs_ranks(b), rows * sizeof(uint32_t)) == 0;
}

#endif
