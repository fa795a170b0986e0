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

#endif
