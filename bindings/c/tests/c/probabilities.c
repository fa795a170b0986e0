// Rows of probabilities: by sampler, by pool, in turn with logits, and what is refused.

#include "check.h"
#include "rows.h"

enum { VOCAB = 500 };

static const char *const json = "{\"seed\": 5, \"top_k\": 40, \"top_p\": 0.9, \"logprobs\": {\"mode\": \"processed\"}}";
static float logits[VOCAB], weights[VOCAB];
static uint16_t halves[VOCAB];

// What a pool draws from a row that a sampler drew from too, in both kinds in turn.
static void sampler_and_pool(void) {
    gumball_sampler *sampler = sampler_of(json, VOCAB, NULL, 0);
    gumball_pool *pool = pool_of(VOCAB, 2);
    gumball_outputs *outputs = gumball_outputs_new(0);
    int32_t slot = admit(pool, json, NULL, 0);
    gumball_rows kinds[] = {rows_of(weights, GUMBALL_F32, 1, VOCAB), rows_of(halves, GUMBALL_BF16, 1, VOCAB),
                            rows_of(logits, GUMBALL_F32, 1, VOCAB)};
    kinds[0].what = kinds[1].what = GUMBALL_PROBABILITIES;
    for (int turn = 0; turn < 6; turn++) {
        gumball_token token;
        OK(gumball_sampler_sample(sampler, &kinds[turn % 3], NULL, &token));
        OK(take_step(pool, &kinds[turn % 3], &slot, 1, outputs));
        CHECK(token.id >= 0 && token.id == view_of(outputs).tokens[0]);
        CHECK(token.rank >= 1 && token.rank <= 40 && token.logprob == view_of(outputs).logprobs[0]);
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
    gumball_rows rows = rows_of(weights, GUMBALL_F32, 1, VOCAB);
    gumball_token token;
    rows.what = GUMBALL_PROBABILITIES;
    FAILS(gumball_sampler_sample(sampler, &rows, NULL, &token), GUMBALL_CONFLICT, "frequency_penalty");
    gumball_sampler_free(sampler);
    sampler = sampler_of("{\"seed\": 1}", VOCAB, NULL, 0);
    SIZED(gumball_batch, hooked);
    hooked.hook = edit;
    CHECK(gumball_sampler_sample(sampler, &rows, &hooked, &token) == GUMBALL_CONFLICT);
    FAILS(gumball_sampler_sample_n(sampler, &rows, 1, &token), GUMBALL_OUT_OF_RANGE, "what");
    SIZED(gumball_state, state);
    OK(gumball_sampler_state(sampler, &state));
    CHECK(state.output_len == 0);
    gumball_sampler_free(sampler);

    gumball_pool *pool = pool_of(VOCAB, 1);
    gumball_outputs *outputs = gumball_outputs_new(0);
    int32_t slot = admit(pool, "{\"seed\": 1, \"top_n_sigma\": 1}", NULL, 0);
    FAILS(take_step(pool, &rows, &slot, 1, outputs), GUMBALL_CONFLICT, "top_n_sigma");
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
}

int main(void) {
    model_like(logits, VOCAB, 3);
    for (size_t id = 0; id < VOCAB; id++) {
        weights[id] = (float)exp((double)logits[id]);
    }
    to_bf16(weights, halves, VOCAB);
    sampler_and_pool();
    refusals();
    return verdict("probabilities");
}
