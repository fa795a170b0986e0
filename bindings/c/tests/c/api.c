// What the functions promise, on the host: parameters, samplers, pools, outputs.

#include "check.h"
#include "rows.h"

enum { VOCAB = 1000, WORDS = (VOCAB + 31) / 32 };

static const uint32_t prompt[] = {7, 8, 7};
static float rows[4][VOCAB];

// By name and from JSON comes to the same.
static void parameters(void) {
    gumball_params *read = params_of(
        "{\"temperature\": 0.5, \"top_k\": 40, \"min_tokens\": 3, \"temperature_last\": true, \"stop_ids\": [2],"
        " \"order\": \"joint\", \"logprobs\": {\"mode\": \"edited\", \"top_n\": 2, \"ids\": [4, 5]}, \"seed\": 9,"
        " \"dry\": {\"multiplier\": 0.75, \"breakers\": [1]}, \"mirostat\": {\"tau\": 5.0, \"eta\": 0.125},"
        " \"dynamic_temperature\": {\"min\": 0.5, \"max\": 1.5}, \"bad_words\": [[1, 2], [3]],"
        " \"logit_bias\": [[3, 1.5], [4, \"-inf\"]]}");
    gumball_params *set = keep_params(gumball_params_new());
    const uint32_t ids[] = {4, 5, 2, 1, 3, 4};
    const float biases[] = {1.5f, -INFINITY};
    OK(gumball_params_set(set, "temperature", 0.5));
    OK(gumball_params_set(set, "top_k", 40));
    OK(gumball_params_set(set, "min_tokens", 3));
    OK(gumball_params_set(set, "temperature_last", 1));
    OK(gumball_params_set_ids(set, "stop_ids", ids + 2, 1));
    OK(gumball_params_set_json(set, "order", "\"joint\""));
    OK(gumball_params_set_json(set, "logprobs", "{\"mode\": \"edited\"}"));
    OK(gumball_params_set(set, "logprobs.top_n", 2));
    OK(gumball_params_set_ids(set, "logprobs.ids", ids, 2));
    OK(gumball_params_set_seed(set, 9));
    OK(gumball_params_set(set, "dry.multiplier", 0.75));
    OK(gumball_params_set_ids(set, "dry.breakers", ids + 3, 1));
    OK(gumball_params_set_json(set, "mirostat", "{\"tau\": 5.0, \"eta\": 0.125}"));
    OK(gumball_params_set_json(set, "dynamic_temperature", "{\"min\": 0.5, \"max\": 1.5}"));
    OK(gumball_params_set_json(set, "bad_words", "[[1, 2], [3]]"));
    OK(gumball_params_set_logit_bias(set, ids + 4, biases, 2));
    CHECK(strcmp(gumball_params_to_json(set), gumball_params_to_json(read)) == 0);

    gumball_params *copy = keep_params(gumball_params_clone(set));
    OK(gumball_params_set_json(copy, "mirostat", NULL));
    CHECK(strstr(gumball_params_to_json(copy), "\"mirostat\":null") != NULL);
    OK(gumball_params_set_json(copy, "mirostat", "{\"tau\": 5.0, \"eta\": 0.125}"));
    CHECK(strcmp(gumball_params_to_json(copy), gumball_params_to_json(set)) == 0);
    OK(gumball_params_validate(keep_params(gumball_params_new()), VOCAB));
}

// A hook that lets only one id be drawn, and counts its calls a row.
static void only(void *user, size_t row, float *logits, size_t vocab) {
    int *calls = (int *)user;
    calls[row] += 1;
    for (size_t id = 0; id < vocab; id++) {
        logits[id] = id == 100 + row ? 0.0f : -INFINITY;
    }
}

static void sampler(void) {
    gumball_sampler *sampler = sampler_of("{\"temperature\": 0.8, \"top_k\": 20, \"seed\": 1,"
                                          " \"logprobs\": {\"mode\": \"processed\", \"top_n\": 3, \"ids\": [5, 6]}}",
                                          VOCAB, prompt, 3);
    gumball_token token, again, many[5];
    OK(sample(sampler, rows[0], GUMBALL_F32, VOCAB, NULL, &token));
    CHECK(token.id >= 0 && token.id < VOCAB && token.status == 0 && token.temperature == 0.8f);
    CHECK(token.rank >= 1 && token.rank <= 20 && token.logprob <= 0.0f);

    const gumball_token seen = token;
    CHECK(seen.top_len == 3 && seen.top[0].rank == 1 && seen.top[2].rank == 3);
    CHECK(seen.top[0].logprob >= seen.top[1].logprob);
    CHECK(seen.ids_len == 2 && seen.ids[0].id == 5 && seen.ids[1].id == 6);
    CHECK(seen.kept_len == 20 && seen.kept[token.rank - 1] == (uint32_t)token.id);

    // Taken back and drawn anew, it is the same; so it is where the state is taken up elsewhere.
    OK(gumball_sampler_shorten(sampler, 1));
    SIZED(gumball_state, state);
    OK(gumball_sampler_state(sampler, &state));
    CHECK(state.prompt_len == 3 && state.prompt[1] == 8 && state.output_len == 0 && state.position == 3);
    CHECK(state.seed == 1 && state.draw == 0);
    gumball_params *params = keep_params(gumball_sampler_params(sampler));
    SIZED(gumball_sampler_config, config);
    config.vocab = VOCAB;
    config.route = "oracle";
    config.level = "scalar";
    gumball_sampler *resumed = keep_sampler(gumball_sampler_new(params, &config, &state));
    OK(sample(resumed, rows[0], GUMBALL_F32, VOCAB, NULL, &again));
    CHECK(again.id == token.id && again.logprob == token.logprob && again.rank == token.rank);
    const gumball_rows first = rows_of(rows[0], GUMBALL_F32, 1, VOCAB);
    OK(gumball_sampler_sample_n(sampler, &first, 5, many));
    CHECK(many[0].id == token.id);
    gumball_sampler *fork = keep_sampler(gumball_sampler_fork(sampler, 4));
    OK(sample(fork, rows[0], GUMBALL_F32, VOCAB, NULL, &again));
    CHECK(again.id == many[4].id);
    OK(gumball_sampler_push(sampler, (uint32_t)again.id));
    OK(gumball_sampler_state(sampler, &state));
    CHECK(state.output_len == 1 && state.output[0] == (uint32_t)again.id && state.position == 4);

    // A row of probabilities, in half the width.
    uint16_t weights[VOCAB] = {0};
    weights[55] = 0x3F80;
    gumball_rows sure = rows_of(weights, GUMBALL_BF16, 1, VOCAB);
    sure.what = GUMBALL_PROBABILITIES;
    gumball_sampler *plain = sampler_of("{}", VOCAB, NULL, 0);
    OK(gumball_sampler_sample(plain, &sure, NULL, &token));
    CHECK(token.id == 55 && token.kept_len == 1 && token.top == NULL);

    // Masks, forced tokens and hooks of one row.
    uint32_t mask[WORDS] = {0};
    mask[77 / 32] = 1u << (77 % 32);
    SIZED(gumball_batch, options);
    options.masks = masks_of(mask, 1, WORDS);
    OK(sample(sampler, rows[1], GUMBALL_F32, VOCAB, &options, &token));
    CHECK(token.id == 77 && token.logprob == 0.0f);
    // No words forbid every id; NULL is no mask, whatever its width is said to be.
    options.masks.width = 0;
    OK(sample(sampler, rows[1], GUMBALL_F32, VOCAB, &options, &token));
    CHECK(token.id == -1 && token.status == GUMBALL_STATUS_EMPTY);
    options.masks = masks_of(NULL, 1, 5);
    OK(sample(fork, rows[1], GUMBALL_F32, VOCAB, &options, &token));
    CHECK(token.id >= 0);
    options.masks = masks_of(mask, 1, WORDS);
    const int32_t forced = 500, none = -1;
    options.forced = &forced;
    OK(sample(sampler, rows[1], GUMBALL_F32, VOCAB, &options, &token));
    // A forced token is the kept set, of which mode processed tells.
    CHECK(token.id == 500 && token.logprob == 0.0f && token.rank == 1 && token.status == GUMBALL_STATUS_FORCED);
    const uint8_t absent = 0;
    int calls = 0;
    options.masks.present = &absent;
    options.forced = &none;
    options.hook = only;
    options.hook_user = &calls;
    OK(sample(sampler, rows[1], GUMBALL_F32, VOCAB, &options, &token));
    CHECK(token.id == 100 && calls == 1);
}

static const char *const requests[] = {
    "{\"seed\": 11}",
    "{\"seed\": 12, \"temperature\": 0}",
    "{\"seed\": 13, \"temperature\": 0.7, \"top_p\": 0.9, \"repetition_penalty\": 1.2,"
    " \"logprobs\": {\"top_n\": 3, \"ids\": [1, 2]}}",
    "{\"seed\": 14, \"mirostat\": {\"tau\": 4.0, \"eta\": 0.2}}",
};

// A batch comes to what each of its sequences does alone, and all of it can be read where it lies.
static void pool(size_t threads) {
    gumball_pool *pool = keeping_pool_of(VOCAB, threads);
    gumball_outputs *outputs = outputs_of();
    gumball_sampler *alone[4];
    int32_t slots[5] = {0, 0, 0, 0, -1};
    for (int i = 0; i < 4; i++) {
        alone[i] = sampler_of(requests[i], VOCAB, prompt, 3);
        slots[i] = admit(pool, requests[i], prompt, 3);
    }
    const gumball_pool_info info = pool_info_of(pool);
    CHECK(info.len == 4 && info.slots == 8 && info.vocab == VOCAB && info.world == 1 && info.end_id == VOCAB);
    for (uint32_t step = 0; step < 2; step++) {
        const uint32_t lines[] = {step % 4, (step + 1) % 4, (step + 2) % 4, step % 4, 0};
        gumball_batch options = batch_of(slots, 5);
        options.row_indices = lines;
        gumball_rows logits = rows_of(rows, GUMBALL_F32, 4, VOCAB);
        OK(gumball_pool_step(pool, &logits, &options, outputs));
        const gumball_outputs_view seen = view_of(outputs);
        CHECK(seen.rows == 5 && seen.top_n == 3 && seen.ids == 2 && seen.words_len == 5 * (7 + 2 * 3 + 2 * 2));
        CHECK((const void *)seen.words == seen.tokens && seen.requests == 5 && seen.path == NULL);
        CHECK((const void *)(seen.words + seen.words_len) == seen.id_ranks + 5 * 2);
        gumball_token drawn[4];
        for (int i = 0; i < 4; i++) {
            gumball_token *token = drawn + i;
            size_t len = 0;
            OK(sample(alone[i], rows[lines[i]], GUMBALL_F32, VOCAB, NULL, token));
            CHECK(seen.tokens[i] == token->id && seen.statuses[i] == token->status && seen.accepted[i] == 0);
            CHECK(seen.temperatures[i] == token->temperature && seen.logprobs[i] == token->logprob);
            CHECK(seen.second_logprobs[i] == token->second_logprob);
            CHECK(seen.ranks[i] == token->rank && emitted_of(outputs, (size_t)i).tokens[0] == token->id);
            const uint32_t *kept = gumball_outputs_kept(outputs, (size_t)i, &len);
            CHECK(len == token->kept_len && len > 0 && kept[0] <= kept[len - 1]);
        }
        CHECK(drawn[2].top_len == 3 && seen.top_ids[2 * 3 + 1] == drawn[2].top[1].id);
        CHECK(seen.top_logprobs[2 * 3 + 1] == drawn[2].top[1].logprob);
        CHECK(drawn[2].ids_len == 2 && seen.id_logprobs[2 * 2 + 1] == drawn[2].ids[1].logprob);
        CHECK(seen.id_ranks[2 * 2 + 1] == drawn[2].ids[1].rank);
        CHECK(seen.mirostat_mu[3] > 0.0f && seen.mirostat_mu[0] == 0.0f);
        uint32_t lengths[5];
        size_t needed = 0, at = 0;
        OK(gumball_outputs_kept_sets(outputs, lengths, NULL, 0, &needed));
        uint32_t *ids = (uint32_t *)calloc(needed + 1, sizeof *ids);
        CHECK(needed > 4 && lengths[4] == 0 && ids != NULL);
        OK(gumball_outputs_kept_sets(outputs, lengths, ids, needed - 1, &needed));
        CHECK(ids[needed - 2] == 0);
        OK(gumball_outputs_kept_sets(outputs, lengths, ids, needed + 1, &needed));
        for (size_t row = 0; row < 5; at += lengths[row++]) {
            size_t count = 0;
            const uint32_t *kept = gumball_outputs_kept(outputs, row, &count);
            CHECK(count == lengths[row] && (count == 0 || memcmp(kept, ids + at, count * sizeof *ids) == 0));
        }
        CHECK(at == needed && ids[needed] == 0);
        free(ids);
        size_t len = 9;
        CHECK(seen.tokens[4] == -1 && gumball_outputs_kept(outputs, 4, &len) == NULL && len == 0);
        CHECK(emitted_of(outputs, 4).tokens == NULL && emitted_of(outputs, 4).len == 0);
    }

    // A sequence moves to another pool, and goes on there as it would have here.
    gumball_pool *other = pool_of(VOCAB, 1);
    gumball_state state = state_of(pool, slots[3]);
    CHECK(state.output_len == 2 && state.position == 5 && state.seed == 14);
    gumball_params *params = keep_params(gumball_pool_params(pool, slots[3]));
    int32_t moved = -1, here;
    OK(gumball_pool_resume(other, params, &state, &moved));
    gumball_rows one = rows_of(rows[1], GUMBALL_F32, 1, VOCAB);
    OK(take_step(pool, &one, &slots[3], 1, outputs));
    here = view_of(outputs).tokens[0];
    OK(take_step(other, &one, &moved, 1, outputs));
    CHECK(view_of(outputs).tokens[0] == here);

    // Taken back, pushed, forked.
    const size_t one_token = 1;
    OK(gumball_pool_shorten(pool, slots, &one_token, 1));
    OK(gumball_pool_push(pool, slots[0], 999));
    int32_t fork = -1;
    OK(gumball_pool_fork(pool, slots[0], 5, &fork));
    state = state_of(pool, fork);
    CHECK(state.output_len == 2 && state.output[1] == 999 && state.draw == 5);
    OK(gumball_pool_release(pool, fork));
    CHECK(pool_info_of(pool).len == 4);
}

static void masks_forced_tokens_and_hooks(void) {
    gumball_pool *pool = pool_of(VOCAB, most_threads);
    gumball_outputs *outputs = outputs_of();
    int32_t slots[4];
    for (int i = 0; i < 4; i++) {
        slots[i] = admit(pool, "{}", NULL, 0);
    }
    // Lines of two words more than are needed, the third one absent.
    uint32_t masks[4][WORDS + 2];
    memset(masks, 0, sizeof masks);
    for (uint32_t i = 0; i < 4; i++) {
        masks[i][i] = 2;
    }
    const uint8_t present[] = {1, 1, 0, 1};
    const int32_t forced[] = {-1, 999, 5, -1};
    const uint8_t hooked[] = {0, 0, 0, 1};
    int calls[4] = {0, 0, 0, 0};
    gumball_batch options = batch_of(slots, 4);
    options.masks = masks_of(masks[0], 4, WORDS);
    options.masks.stride = WORDS + 2;
    options.masks.present = present;
    options.forced = forced;
    options.hook = only;
    options.hook_user = calls;
    options.hook_rows = hooked;
    gumball_rows logits = rows_of(rows, GUMBALL_F32, 4, VOCAB);
    OK(gumball_pool_step(pool, &logits, &options, outputs));
    const int32_t *tokens = view_of(outputs).tokens;
    // The mask of the last row forbids what its hook leaves.
    CHECK(tokens[0] == 1 && tokens[1] == 999 && tokens[2] == 5 && tokens[3] == -1);
    CHECK(view_of(outputs).statuses[3] == GUMBALL_STATUS_EMPTY);
    CHECK(calls[0] == 0 && calls[3] == 1);
    options.forced = NULL;
    options.masks.width = 0;
    OK(gumball_pool_step(pool, &logits, &options, outputs));
    tokens = view_of(outputs).tokens;
    CHECK(tokens[0] == -1 && tokens[1] == -1 && tokens[2] >= 0 && tokens[3] == -1);
    options.masks.words = NULL;
    options.hook_rows = NULL;
    OK(gumball_pool_step(pool, &logits, &options, outputs));
    tokens = view_of(outputs).tokens;
    CHECK(tokens[0] == 100 && tokens[1] == 101 && tokens[2] == 102 && tokens[3] == 103);
}

static void pool_marks(void) {
    gumball_params *params = gumball_params_new();
    gumball_pool *pool;
    int32_t slot;
    SIZED(gumball_pool_config, config);
    config.vocab = VOCAB;
    config.enforce_all = 1;
    CHECK(gumball_pool_new(&config) == NULL && strstr(gumball_error_message(), "enforce_all is true"));
    config.watermark = params;
    CHECK(gumball_pool_new(&config) == NULL && strstr(gumball_error_message(), "watermark.watermark"));
    OK(gumball_params_set(params, "watermark.key", 3));
    pool = gumball_pool_new(&config);
    OK(gumball_params_set_json(params, "watermark", "false"));
    FAILS(gumball_pool_admit(pool, params, NULL, 0, &slot), GUMBALL_OUT_OF_RANGE, "watermark");
    OK(gumball_params_set_json(params, "watermark", NULL));
    OK(gumball_pool_admit(pool, params, NULL, 0, &slot));
    gumball_params_free(params);
    params = gumball_pool_params(pool, slot);
    CHECK(strstr(gumball_params_to_json(params), "\"watermark\":{\"key\":3,"));
    gumball_params_free(params);
    gumball_pool_free(pool);
}

static void marks(void) {
    uint32_t ids[100], keys[2] = {3, 4};
    gumball_evidence evidence;
    gumball_marked_part part;
    size_t needed;
    double score, ln_p;
    gumball_params *params = gumball_params_new();
    OK(gumball_add_watermark_keys("4 0x0123456789abcdef"));
    for (uint32_t i = 0; i < 100; i++) {
        ids[i] = i * i * 31 % 50;
    }
    FAILS(gumball_detect(ids, 100, 0, NULL, params, NULL, 0, &evidence), GUMBALL_OUT_OF_RANGE, "params.watermark");
    OK(gumball_params_set(params, "watermark.key", 3));
    OK(gumball_params_set(params, "watermark.context", 3));
    OK(gumball_detect(ids, 100, 10, NULL, params, keys, 2, &evidence));
    CHECK(evidence.tokens + evidence.skipped == 90 && evidence.ln_p > -10);
    OK(gumball_detect(ids, 60, 2, "sglang", params, &keys[1], 1, &evidence));
    CHECK(evidence.key == 4 && evidence.tokens == 51 && evidence.score > 36.443 && evidence.score < 36.444);
    score = evidence.score, ln_p = evidence.ln_p;
    OK(gumball_add_watermark_keys("5 0xfedcba9876543210"));
    OK(gumball_detect(ids, 60, 2, "sglang=5", params, &keys[1], 1, &evidence));
    CHECK(evidence.key == 4 && evidence.tokens == 51 && evidence.score > 34.334 && evidence.score < 34.335);
    FAILS(gumball_detect(ids, 60, 0, "vllm", params, NULL, 0, &evidence), GUMBALL_OUT_OF_RANGE, "keys");
    FAILS(gumball_detect(ids, 60, 0, "synthid", params, NULL, 0, &evidence), GUMBALL_UNKNOWN, "scheme");
    FAILS(gumball_detect(ids, 60, 61, NULL, params, NULL, 0, &evidence), GUMBALL_OUT_OF_RANGE, "prompt_len");
    OK(gumball_params_set(params, "watermark.key", 4));
    OK(gumball_find_marked(ids, 60, 2, "sglang", params, 100, 0.999, NULL, 0, &needed));
    CHECK(needed == 1);
    OK(gumball_find_marked(ids, 60, 2, "sglang", params, 100, 0.999, &part, 1, &needed));
    CHECK(needed == 1 && part.start == 0 && part.end == 58 && part.evidence.key == 4 && part.evidence.tokens == 51);
    CHECK(part.evidence.score == score && part.evidence.ln_p == ln_p);
    OK(gumball_find_marked(ids, 60, 2, "sglang", params, 100, 0.5, &part, 1, &needed));
    CHECK(needed == 0 && part.end == 58);
    FAILS(gumball_find_marked(ids, 60, 2, NULL, params, 0, 0.5, &part, 1, &needed), GUMBALL_OUT_OF_RANGE, "length");
    FAILS(gumball_find_marked(ids, 60, 2, NULL, params, 9, 1.0, &part, 1, &needed), GUMBALL_OUT_OF_RANGE, "alpha");
    FAILS(gumball_find_marked(ids, 60, 61, NULL, params, 9, 0.5, &part, 1, &needed), GUMBALL_OUT_OF_RANGE,
          "prompt_len");
    FAILS(gumball_find_marked(ids, 60, 2, NULL, params, 9, 0.5, NULL, 1, &needed), GUMBALL_OUT_OF_RANGE, "parts");
    FAILS(gumball_find_marked(ids, 60, 2, NULL, params, 9, 0.5, &part, 1, NULL), GUMBALL_OUT_OF_RANGE, "needed");
    gumball_params_free(params);
}

static void hides(const char *secret, gumball_code code) {
    CHECK(code != GUMBALL_OK && strstr(gumball_error_message(), secret) == NULL);
}

/* No error shows a key that is given in the place of its number. */
static void secrets(void) {
#define SECRET "00112233445566778899aabbccddeefe"
    gumball_evidence evidence;
    gumball_params *params = gumball_params_new();
    OK(gumball_params_set(params, "watermark.key", 3));
    hides(SECRET, gumball_params_set_json(params, "watermark", "\"" SECRET "\""));
    hides(SECRET, gumball_params_set_json(params, "watermark", "{\"key\": \"" SECRET "\"}"));
    hides(SECRET, gumball_params_set_json(params, SECRET, "1"));
    hides(SECRET, gumball_params_set(params, SECRET, 1));
    hides("15", gumball_params_set(params, "watermark.key", 1.5e19));
    hides(SECRET, gumball_detect(NULL, 0, 0, "sglang=" SECRET, params, NULL, 0, &evidence));
    CHECK(gumball_params_from_json("{\"watermark\": \"" SECRET "\"}") == NULL);
    hides(SECRET, gumball_error(NULL));
    gumball_params_free(params);
}

static void all(void) {
    CHECK(gumball_prompt_seed(7, 41, 0) == UINT64_C(2531525297277587429));
    CHECK(gumball_sample_seed(gumball_prompt_seed(7, 41, 0), 1) == UINT64_C(9095895601619864790));
    OK(gumball_add_watermark_keys("# number and key\n3 00112233445566778899aabbccddeeff\n"));
    FAILS(gumball_add_watermark_keys("3 ffffffffffffffffffffffffffffffff"), GUMBALL_OUT_OF_RANGE, "number");
    FAILS(gumball_add_watermark_keys("3 0011"), GUMBALL_OUT_OF_RANGE, "text");
    secrets();
    marks();
    pool_marks();
    CHECK(gumball_abi_version() == GUMBALL_ABI_VERSION && strcmp(gumball_version(), GUMBALL_VERSION) == 0);
    parameters();
    sampler();
    pool(1);
    pool(most_threads);
    masks_forced_tokens_and_hooks();
}

int main(int argc, char **argv) {
    for (int i = 0; i < 4; i++) {
        bell(rows[i], VOCAB, (uint64_t)i);
    }
    return verdict_of("api", all, argc, argv);
}
