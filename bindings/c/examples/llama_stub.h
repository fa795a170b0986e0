// The few types of llama.cpp that a sampler of its own needs, in our words: so that llama_sampler.c compiles and is
// tested without llama.cpp. Beside the real llama.h this file is not used.
#ifndef LLAMA_STUB_H
#define LLAMA_STUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t llama_token;

// A candidate: its id, its logit, and a probability that only some samplers fill in.
typedef struct llama_token_data {
    llama_token id;
    float logit;
    float p;
} llama_token_data;

// All candidates. `selected` is a place in `data`, -1 as long as none is chosen.
typedef struct llama_token_data_array {
    llama_token_data *data;
    size_t size;
    int64_t selected;
    bool sorted;
} llama_token_data_array;

struct llama_sampler;

// What a sampler can do, without the members that put a sampler's work into the model's graph.
struct llama_sampler_i {
    const char *(*name)(const struct llama_sampler *);
    void (*accept)(struct llama_sampler *, llama_token);
    void (*apply)(struct llama_sampler *, llama_token_data_array *);
    void (*reset)(struct llama_sampler *);
    struct llama_sampler *(*clone)(const struct llama_sampler *);
    void (*free)(struct llama_sampler *);
    // From the first to the second.
    void (*copy_state)(const struct llama_sampler *, struct llama_sampler *);
};

struct llama_sampler {
    struct llama_sampler_i *iface;
    void *ctx;
};

// The library's own functions; tests/c/llama.c has stand-ins for them.
struct llama_sampler *llama_sampler_init(struct llama_sampler_i *iface, void *ctx);
void llama_sampler_free(struct llama_sampler *sampler);

#ifdef __cplusplus
}
#endif

#endif
