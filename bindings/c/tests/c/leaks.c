// No memory is lost over a hundred thousand calls: handles made and freed, calls of every kind, and refusals. What a
// sanitizer finds unfreed at the end ends the program; without one, the resident memory must not have grown.

#include "check.h"

#include <sys/resource.h>

enum { VOCAB = 64, CALLS = 100000, FIRST = 2000 };

static float row[2 * VOCAB];

// In KiB, at its most so far.
static long resident(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss : 0;
}

static void hook(void *user, size_t line, float *logits, size_t vocab) {
    (void)line;
    logits[0] = (float)vocab;
    *(size_t *)user += 1;
}

static void samplers(void) {
    const uint32_t prompt[] = {1, 2};
    gumball_params *params = gumball_params_from_json(
        "{\"top_p\": 0.9, \"logprobs\": {\"top_n\": 2, \"ids\": [3]}, \"bad_words\": [[4, 5]]}");
    gumball_params *copy = gumball_params_clone(params);
    CHECK(gumball_params_to_json(copy) != NULL);
    SIZED(gumball_sampler_config, config);
    config.vocab = VOCAB;
    config.keep_ids = 1;
    gumball_sampler *sampler = gumball_sampler_new(copy, &config, NULL);
    gumball_params_free(copy);
    OK(gumball_sampler_reset(sampler, prompt, 2));
    size_t calls = 0;
    SIZED(gumball_batch, options);
    options.hook = hook;
    options.hook_user = &calls;
    gumball_token token;
    OK(sample(sampler, row, GUMBALL_F32, VOCAB, &options, &token));
    CHECK(calls == 1 && token.kept != NULL && token.top != NULL);
    SIZED(gumball_state, state);
    OK(gumball_sampler_state(sampler, &state));
    gumball_sampler *resumed = gumball_sampler_new(params, &config, &state);
    gumball_sampler *forked = gumball_sampler_fork(sampler, 1);
    gumball_params *told = gumball_sampler_params(forked);
    CHECK(resumed != NULL && forked != NULL && told != NULL);
    CHECK(sample(forked, row, GUMBALL_F32, VOCAB - 1, NULL, &token) == GUMBALL_LENGTH);
    gumball_params_free(told);
    gumball_sampler_free(forked);
    gumball_sampler_free(resumed);
    gumball_sampler_free(sampler);
    gumball_params_free(params);
    CHECK(gumball_params_from_json("{\"top_q\": 1}") == NULL);
}

static void requests(gumball_pool *pool, gumball_outputs *outputs) {
    const uint32_t prompt[] = {1, 2, 3};
    int32_t slots[2] = {admit(pool, "{\"top_k\": 9, \"logprobs\": {\"top_n\": 3}}", prompt, 3), -1};
    OK(gumball_pool_fork(pool, slots[0], 1, slots + 1));
    gumball_rows logits = rows_of(row, GUMBALL_F32, 2, VOCAB);
    OK(take_step(pool, &logits, slots, 2, outputs));
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, slots[0], &state));
    gumball_params *params = gumball_pool_params(pool, slots[0]);
    int32_t resumed = -1;
    OK(gumball_pool_resume(pool, params, &state, &resumed));
    gumball_params_free(params);
    const size_t one = 1;
    OK(gumball_pool_shorten(pool, slots + 1, &one, 1));
    const int32_t twice[] = {slots[0], slots[0]};
    CHECK(take_step(pool, &logits, twice, 2, outputs) == GUMBALL_OUT_OF_RANGE);
    OK(gumball_pool_release(pool, resumed));
    OK(gumball_pool_release(pool, slots[0]));
    OK(gumball_pool_release(pool, slots[1]));
}

static void operators_of(const gumball_operators *operators) {
    static float out[2 * VOCAB];
    int32_t tokens[6];
    uint32_t counts[4];
    const gumball_matrix to = matrix_of(out, GUMBALL_F32, 2, VOCAB);
    gumball_rows logits = rows_of(row, GUMBALL_F32, 2, VOCAB);
    const float top_ps[] = {0.5f, 0.9f};
    SIZED(gumball_row_params, params);
    params.top_p = top_ps;
    SIZED(gumball_draws, which);
    which.outputs = 6;
    const uint32_t lines[] = {0, 1, 0, 1, 0, 0};
    which.row_indices = lines;
    OK(gumball_operators_softmax(operators, &logits, 0.7f, NULL, &to, NULL));
    OK(gumball_operators_probabilities(operators, &logits, &params, &to, NULL));
    OK(gumball_operators_mask_logits(operators, &logits, &params, &to, NULL));
    OK(gumball_operators_sample(operators, &logits, &params, &which, tokens, NULL));
    which.outputs = 3;
    which.row_indices = NULL;
    CHECK(gumball_operators_sample(operators, &logits, &params, &which, tokens, NULL) != GUMBALL_OK);
    OK(gumball_operators_softmax(operators, &logits, 1.0f, NULL, &to, NULL));
    const int32_t drafted[] = {5};
    SIZED(gumball_drafts, chain);
    chain.ids = ints_of(drafted, 1);
    chain.probs = matrix_of(out, GUMBALL_F32, 1, VOCAB);
    which.outputs = 1;
    const gumball_judged judged = {tokens, NULL, counts, counts + 1, counts + 2};
    gumball_rows target = rows_of(out, GUMBALL_F32, 2, VOCAB);
    target.what = GUMBALL_PROBABILITIES;
    OK(gumball_operators_judge(operators, &target, &chain, &which, GUMBALL_REJECTION, 0, 0, &judged));
}

int main(void) {
    for (int i = 0; i < 2 * VOCAB; i++) {
        row[i] = (float)(i * 37 % 50) / 8.0f;
    }
    gumball_pool *pool = keeping_pool_of(VOCAB, 1);
    gumball_outputs *outputs = outputs_of();
    gumball_operators *operators = gumball_operators_new(NULL, 1, NULL);
    long before = 0;
    // A round is more than twenty calls.
    for (int round = 0; round < CALLS / 20; round++) {
        before = round == FIRST ? resident() : before;
        samplers();
        requests(pool, outputs);
        operators_of(operators);
    }
#if !defined(__SANITIZE_ADDRESS__)
    // A hundred bytes lost in each round would be 290.
    CHECK(resident() - before < 256);
#endif
    CHECK(before > 0 && pool_info_of(pool).len == 0);
    gumball_operators_free(operators);
    return verdict("leaks");
}
