// Rows of probabilities: by sampler, by pool, in turn with logits, and what is refused.

#include "check.h"
#include "rows.h"

enum { VOCAB = 500 };

static const char *const json = "{\"seed\": 5, \"top_k\": 40, \"top_p\": 0.9, \"logprobs\": {\"mode\": \"processed\"}}";
static float logits[VOCAB], weights[3 * VOCAB];
static uint16_t halves[VOCAB];

// What a pool draws from a row that a sampler drew from too, in both kinds in turn.
static void sampler_and_pool(void) {
    gumball_sampler *sampler = sampler_of(json, VOCAB, NULL, 0);
    gumball_pool *pool = pool_of(VOCAB, 2);
    gumball_outputs *outputs = gumball_outputs_new(0);
    int32_t slot = admit(pool, json, NULL, 0);
    SIZED(gumball_step_options, options);
    for (int step = 0; step < 6; step++) {
        int is_logits = step % 3 == 2, is_half = step % 3 == 1;
        const void *row = is_logits ? (const void *)logits : is_half ? (const void *)halves : (const void *)weights;
        gumball_logits rows = logits_of(row, is_half ? GUMBALL_BF16 : GUMBALL_F32, 1, VOCAB);
        options.kind = rows.kind = is_logits ? GUMBALL_LOGITS : GUMBALL_PROBABILITIES;
        gumball_token token;
        OK(gumball_sampler_sample(sampler, row, rows.dtype, VOCAB, &options, &token));
        // The options of a pool's step may say it too, or not.
        OK(gumball_pool_step(pool, &rows, &slot, 1, step % 2 == 0 ? &options : NULL, outputs));
        CHECK(token.id >= 0 && token.id == gumball_outputs_tokens(outputs)[0]);
        CHECK(token.rank >= 1 && token.rank <= 40);
        CHECK(token.logprob == gumball_outputs_logprobs(outputs)[0]);
    }
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
    gumball_sampler_free(sampler);
}

static void edit(void *user, size_t row, float *edited, size_t vocab) {
    (void)user, (void)row, (void)edited, (void)vocab;
}

static void refusals(void) {
    gumball_sampler *sampler = sampler_of("{\"seed\": 1, \"frequency_penalty\": 0.5}", VOCAB, NULL, 0);
    SIZED(gumball_step_options, options);
    gumball_token token;
    options.kind = 2;
    REFUSED(gumball_sampler_sample(sampler, weights, GUMBALL_F32, VOCAB, &options, &token), GUMBALL_OUT_OF_RANGE,
            "kind is 2, but must be GUMBALL_LOGITS or GUMBALL_PROBABILITIES");
    options.kind = GUMBALL_PROBABILITIES;
    CHECK(gumball_sampler_sample(sampler, weights, GUMBALL_F32, VOCAB, &options, &token) == GUMBALL_CONFLICT);
    CHECK(strcmp(gumball_error_parameter(), "frequency_penalty") == 0);
    gumball_sampler_free(sampler);
    sampler = sampler_of("{\"seed\": 1}", VOCAB, NULL, 0);
    options.hook = edit;
    CHECK(gumball_sampler_sample(sampler, weights, GUMBALL_F32, VOCAB, &options, &token) == GUMBALL_CONFLICT);
    options.hook = NULL;
    SIZED(gumball_state, state);
    OK(gumball_sampler_state(sampler, &state));
    CHECK(state.output_len == 0);
    gumball_sampler_free(sampler);

    gumball_pool *pool = pool_of(VOCAB, 1);
    gumball_outputs *outputs = gumball_outputs_new(0);
    int32_t slot = admit(pool, "{\"seed\": 1, \"top_n_sigma\": 1}", NULL, 0);
    gumball_logits rows = logits_of(weights, GUMBALL_F32, 1, VOCAB);
    REFUSED(
        gumball_pool_step(pool, &rows, &slot, 1, &options, outputs), GUMBALL_CONFLICT,
        "kind cannot be combined with logits: the rows are said to be logits where they are described; say it there");
    rows.kind = GUMBALL_PROBABILITIES;
    CHECK(gumball_pool_step(pool, &rows, &slot, 1, NULL, outputs) == GUMBALL_CONFLICT);
    CHECK(strcmp(gumball_error_parameter(), "top_n_sigma") == 0);
    rows.kind = -1;
    CHECK(gumball_pool_step(pool, &rows, &slot, 1, NULL, outputs) == GUMBALL_OUT_OF_RANGE);
    // A program that does not know the field yet hands in logits, whatever stands behind its struct.
    rows.struct_size = offsetof(gumball_logits, kind);
    OK(gumball_pool_step(pool, &rows, &slot, 1, NULL, outputs));
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
}

// A pool on a device steps such rows of the host; rows in its own memory are logits, and that is said.
static void device(const char *name) {
    gumball_device *device = gumball_device_open(name);
    if (device == NULL) {
        return;
    }
    gumball_pool *pool = device_pool_of(device, VOCAB);
    gumball_outputs *outputs = gumball_outputs_new(0);
    int32_t slot = admit(pool, "{\"seed\": 1}", NULL, 0);
    gumball_logits rows = logits_of(weights, GUMBALL_F32, 1, VOCAB);
    rows.kind = GUMBALL_PROBABILITIES;
    OK(gumball_pool_step(pool, &rows, &slot, 1, NULL, outputs));
    SIZED(gumball_step_options, options);
    options.kind = GUMBALL_PROBABILITIES;
    CHECK(gumball_pool_assign(pool, &slot, 1, &options) == GUMBALL_CONFLICT);
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
    gumball_device_free(device);
}

int main(int argc, char **argv) {
    model_like(logits, VOCAB, 3);
    for (size_t id = 0; id < VOCAB; id++) {
        weights[id] = (float)exp((double)logits[id]);
    }
    to_bf16(weights, halves, VOCAB);
    sampler_and_pool();
    refusals();
    device(argc > 1 ? argv[1] : "emulated");
    return verdict("probabilities");
}
