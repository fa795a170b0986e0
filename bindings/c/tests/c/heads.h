// Heads under test: each call from hidden states beside the same call from their logits.
#ifndef HEADS_H
#define HEADS_H

#include "check.h"

enum { REQUESTS = 4 };

static const char *const requests[REQUESTS] = {
    "{\"seed\": 1}",
    "{\"temperature\": 0, \"repetition_penalty\": 1.2, \"seed\": 4}",
    "{\"seed\": 2, \"top_k\": 20, \"top_p\": 0.9, \"logprobs\": {\"mode\": \"processed\", \"top_n\": 2}}",
    "{\"seed\": 3, \"top_p\": 0.8, \"frequency_penalty\": 0.3}",
};

// A head of f32 weights, with a bias, a scale and a softcap.
static inline gumball_head_config head_config_of(const float *weights, const float *bias, size_t vocab, size_t width,
                                                 gumball_head_kind kind) {
    SIZED(gumball_head_config, config);
    config.weights = matrix_of(weights, GUMBALL_F32, vocab, width);
    config.kind = kind;
    config.bias = bias;
    config.logit_scale = 0.5f;
    config.softcap = 20.0f;
    return config;
}

// A config with one thing wrong.
#define REFUSED_WITH(set, code, parameter) \
    { \
        gumball_head_config wrong = config; \
        set; \
        NOTHING(gumball_head_new(&wrong), code, parameter); \
    }

static inline gumball_head_info info_of(const gumball_head *head) {
    SIZED(gumball_head_info, info);
    OK(gumball_head_describe(head, &info));
    return info;
}

// Two pools with the same requests in the same slots.
static inline void admit_to_both(gumball_pool *pools[2], int32_t slots[REQUESTS]) {
    const uint32_t prompt[] = {4, 9, 4};
    for (int i = 0; i < REQUESTS; i++) {
        slots[i] = admit(pools[0], requests[i], prompt, 3);
        CHECK(admit(pools[1], requests[i], prompt, 3) == slots[i]);
    }
}

// A step and a score from hidden states are those from the logits.
static inline void calls_are_those_of_the_logits(gumball_head *head, const float *states, size_t width,
                                                 const float *logits, size_t vocab, uint64_t is_approximate) {
    gumball_pool *pools[2] = {pool_of(vocab, 1), pool_of(vocab, 2)};
    gumball_outputs *outputs[2] = {outputs_of(), outputs_of()};
    int32_t slots[REQUESTS];
    admit_to_both(pools, slots);
    gumball_rows rows[2] = {rows_of(logits, GUMBALL_F32, REQUESTS, vocab), hidden_of(head, states, REQUESTS, width)};
    for (int i = 0; i < 2; i++) {
        OK(take_step(pools[i], &rows[i], slots, REQUESTS, outputs[i]));
    }
    CHECK(same_outputs(outputs[0], outputs[1]) && view_of(outputs[0]).is_approximate == 0);
    CHECK(view_of(outputs[1]).is_approximate == is_approximate);

    rows[0].matrix.rows = rows[1].matrix.rows = 2 * REQUESTS;
    const uint32_t known[] = {4, 9, 4, 7, 30, 2, 11, 499, 5};
    gumball_params *params = params_of("{\"logprobs\": {\"mode\": \"raw\", \"top_n\": 2}}");
    SIZED(gumball_scored, scored);
    scored.params = params;
    scored.ids = known;
    scored.ids_len = 9;
    scored.prompt_len = 3;
    scored.start = 1;
    OK(gumball_pool_score(pools[0], &rows[0], NULL, &scored, outputs[0]));
    CHECK(view_of(outputs[0]).rows == 8 && view_of(outputs[0]).tokens[0] == 9 && view_of(outputs[0]).top_n == 2);
    for (scored.chunk_rows = 0; scored.chunk_rows < 10; scored.chunk_rows += 4) {
        OK(gumball_pool_score(pools[1], &rows[1], NULL, &scored, outputs[1]));
        CHECK(same_outputs(outputs[0], outputs[1]) && view_of(outputs[1]).is_approximate == is_approximate);
    }
    FAILS(gumball_pool_score(pools[0], &rows[0], NULL, &scored, outputs[0]), GUMBALL_CONFLICT, "chunk_rows");
    const gumball_counts counted = counts_of(pools[1]);
    CHECK((counted.certified_rows > 0) == (info_of(head).screen_bytes > 0));
    CHECK((counted.clustered_rows > 0) == (info_of(head).kind == GUMBALL_HEAD_CLUSTERED));
    CHECK((counted.screen_reads > 0) == (counted.certified_rows > 0));
    CHECK((counted.centroid_reads > 0) == (counted.clustered_rows > 0));
}

// Whether two heads draw the same tokens from some hidden states.
static inline void same_tokens(gumball_head *a, gumball_head *b, size_t vocab, const float *states, size_t width) {
    gumball_pool *pools[2] = {pool_of(vocab, 1), pool_of(vocab, 1)};
    gumball_outputs *outputs[] = {outputs_of(), outputs_of()};
    int32_t slots[REQUESTS];
    admit_to_both(pools, slots);
    for (int i = 0; i < 2; i++) {
        const gumball_rows hidden = hidden_of(i == 0 ? a : b, states, REQUESTS, width);
        OK(take_step(pools[i], &hidden, slots, REQUESTS, outputs[i]));
    }
    CHECK(same_outputs(outputs[0], outputs[1]));
}

#endif
