// Drafts: whatever is drafted, the tokens are those of steps; the path through a tree; what is refused, also on a device.

#include "check.h"
#include "rows.h"

enum { VOCAB = 300, DRAFTS = 3, ROWS = DRAFTS + 1, TOKENS = 60 };

static float rows[2 * ROWS * VOCAB];

// Rows in each of which one id is likely.
static void sure(const int *ids, size_t count) {
    memset(rows, 0, sizeof rows);
    for (size_t row = 0; row < count; row++) {
        rows[row * VOCAB + (size_t)ids[row]] = 9.0f;
    }
}

// The row behind an id.
static void model(float *row, int32_t last) { model_like(row, VOCAB, (uint64_t)(last % 7)); }

static int tokens_are(const gumball_verification *verification, size_t request, const int32_t *wanted, size_t count) {
    size_t len = 99;
    const int32_t *seen = gumball_verification_tokens(verification, request, &len);
    return len == count && (count == 0 ? seen == NULL : memcmp(seen, wanted, count * sizeof *seen) == 0);
}

static int rows_are(const gumball_verification *verification, size_t request, const uint32_t *wanted, size_t count) {
    size_t len = 99;
    const uint32_t *seen = gumball_verification_rows(verification, request, &len);
    return len == count && (count == 0 ? seen == NULL : memcmp(seen, wanted, count * sizeof *seen) == 0);
}

// A chain whose drafts are the tokens to come, or others by chance, emits the stream of steps.
static void the_stream_is_that_of_steps(void) {
    const char *json =
        "{\"seed\": 8, \"top_p\": 0.95, \"frequency_penalty\": 0.3, \"logprobs\": {\"mode\": \"processed\"}}";
    const uint32_t prompt[] = {4};
    gumball_pool *plain = pool_of(VOCAB, 1), *pool = pool_of(VOCAB, 2);
    gumball_outputs *outputs = gumball_outputs_new(0);
    gumball_verification *verification = gumball_verification_new(0);
    int32_t slot = admit(plain, json, prompt, 1), other = admit(pool, json, prompt, 1);
    int32_t wanted[TOKENS + DRAFTS + 1];
    float logprobs[TOKENS + DRAFTS + 1];
    for (int i = 0; i < TOKENS + DRAFTS + 1; i++) {
        model(rows, i == 0 ? 4 : wanted[i - 1]);
        gumball_logits logits = logits_of(rows, GUMBALL_F32, 1, VOCAB);
        OK(gumball_pool_step(plain, &logits, &slot, 1, NULL, outputs));
        wanted[i] = gumball_outputs_tokens(outputs)[0];
        logprobs[i] = gumball_outputs_logprobs(outputs)[0];
    }
    uint64_t random = 3;
    size_t done = 0, accepted = 0;
    while (done < TOKENS) {
        uint32_t count = (uint32_t)(next_word(&random) % (DRAFTS + 1));
        int32_t ids[DRAFTS];
        model(rows, done == 0 ? 4 : wanted[done - 1]);
        for (uint32_t i = 0; i < count; i++) {
            ids[i] = next_word(&random) % 3 > 0 ? wanted[done + i] : (int32_t)(next_word(&random) % VOCAB);
            model(rows + (i + 1) * VOCAB, ids[i]);
        }
        SIZED(gumball_drafts, drafts);
        drafts.counts = &count;
        drafts.ids = ids;
        gumball_logits logits = logits_of(rows, GUMBALL_F32, count + 1, VOCAB);
        OK(gumball_pool_verify(pool, &logits, &other, 1, &drafts, NULL, verification));
        size_t len = gumball_verification_accepted(verification)[0] + 1;
        CHECK(tokens_are(verification, 0, wanted + done, len));
        const gumball_outputs *all = gumball_verification_outputs(verification);
        CHECK(gumball_outputs_rows(all) == count + 1);
        CHECK(memcmp(gumball_outputs_logprobs(all), logprobs + done, len * sizeof *logprobs) == 0);
        // Every other time the last token is taken away, and comes again.
        if (len > 1 && done % 2 == 0) {
            const size_t one = 1;
            OK(gumball_pool_shorten(pool, &other, &one, 1));
            len -= 1;
        }
        accepted += len - 1;
        done += len;
    }
    CHECK(accepted > 10);
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, other, &state));
    CHECK(state.output_len == done);
    gumball_verification_free(verification);
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
    gumball_pool_free(plain);
}

// Two requests, a chain whose last draft is wrong and a tree, with padding between them.
static void rows_and_tokens_are_those_of_the_path(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const char *json = "{\"temperature\": 0}";
    const int32_t slots[] = {admit(pool, json, NULL, 0), -1, admit(pool, json, NULL, 0)};
    const uint32_t counts[] = {2, 0, 3};
    const int32_t ids[] = {5, 6, 20, 21, 22}, parents[] = {-1, 0, -1, -1, 1};
    const int likely[] = {5, 7, 0, 0, 21, 1, 22, 3};
    sure(likely, 8);
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 8, VOCAB);
    SIZED(gumball_drafts, drafts);
    drafts.counts = counts;
    drafts.ids = ids;
    drafts.parents = parents;
    gumball_verification *verification = gumball_verification_new(1);
    for (drafts.mode = GUMBALL_COUPLED; drafts.mode <= GUMBALL_GREEDY; drafts.mode++) {
        OK(gumball_pool_verify(pool, &logits, slots, 3, &drafts, NULL, verification));
        const int32_t first[] = {5, 7}, last[] = {21, 22, 3};
        const uint32_t first_rows[] = {0, 1}, last_rows[] = {4, 6, 7};
        CHECK(tokens_are(verification, 0, first, 2) && rows_are(verification, 0, first_rows, 2));
        CHECK(tokens_are(verification, 1, NULL, 0) && rows_are(verification, 1, NULL, 0));
        CHECK(tokens_are(verification, 2, last, 3) && rows_are(verification, 2, last_rows, 3));
        const int32_t all[] = {5, 7, -1, -1, 21, 22, 3, -1};
        const gumball_outputs *outputs = gumball_verification_outputs(verification);
        CHECK(memcmp(gumball_outputs_tokens(outputs), all, sizeof all) == 0);
        size_t len = 0;
        CHECK(gumball_outputs_kept(outputs, 4, &len) != NULL && len > 0);
    }
    size_t len;
    NONE(gumball_verification_tokens(verification, 3, &len), GUMBALL_OUT_OF_RANGE,
         "request is 3, but must be a request in 0..3");
    gumball_verification_free(verification);
    gumball_pool_free(pool);
}

// Drafts that the target gives all of its probability are accepted by every mode, others by none.
static void modes_judge_by_probabilities(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slot = admit(pool, "{\"seed\": 1}", NULL, 0);
    const uint32_t count = 2;
    const int32_t ids[] = {5, 6};
    float probs[3 * VOCAB] = {0};
    probs[5] = probs[VOCAB + 6] = 1.0f;
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 3, VOCAB);
    logits.kind = GUMBALL_PROBABILITIES;
    SIZED(gumball_drafts, drafts);
    drafts.counts = &count;
    drafts.ids = ids;
    drafts.threshold_single = drafts.threshold_acc = 1.0f;
    gumball_verification *verification = gumball_verification_new(0);
    for (drafts.mode = GUMBALL_REJECTION; drafts.mode <= GUMBALL_THRESHOLD; drafts.mode++) {
        drafts.probs = drafts.mode == GUMBALL_THRESHOLD ? NULL : probs;
        const int all_right[] = {5, 6, 7}, one_right[] = {5, 8, 7};
        const int32_t all[] = {5, 6, 7}, one[] = {5, 8};
        sure(all_right, 3);
        OK(gumball_pool_verify(pool, &logits, &slot, 1, &drafts, NULL, verification));
        CHECK(tokens_are(verification, 0, all, 3));
        sure(one_right, 3);
        OK(gumball_pool_verify(pool, &logits, &slot, 1, &drafts, NULL, verification));
        CHECK(tokens_are(verification, 0, one, 2));
    }
    gumball_verification_free(verification);
    gumball_pool_free(pool);
}

static void refusals(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slots[] = {admit(pool, "{\"seed\": 1}", NULL, 0), 7};
    uint32_t count = 2;
    const int32_t ids[] = {5, 6}, cycle[] = {1, 0}, tree[] = {-1, -1}, forced[] = {3, -1, -1};
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 3, VOCAB);
    gumball_verification *verification = gumball_verification_new(0);
    SIZED(gumball_drafts, drafts);
    SIZED(gumball_step_options, options);
    options.forced = forced;
#define VERIFY(with) gumball_pool_verify(pool, &logits, slots, 1, &drafts, with, verification)
    CHECK(VERIFY(NULL) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "counts") == 0);
    drafts.counts = &count;
    CHECK(VERIFY(NULL) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "ids") == 0);
    drafts.ids = ids;
    CHECK(gumball_pool_verify(NULL, &logits, slots, 1, &drafts, NULL, verification) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_verify(pool, &logits, slots, 1, NULL, NULL, verification) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_verify(pool, &logits, slots, 1, &drafts, NULL, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_verify(pool, &logits, slots + 1, 1, &drafts, NULL, verification) == GUMBALL_OUT_OF_RANGE);
    logits.rows = 2;
    REFUSED(VERIFY(NULL), GUMBALL_LENGTH,
            "logits has length 2, but must have 3 rows, one per request and one per draft");
    logits.rows = 3;
    drafts.parents = cycle;
    REFUSED(VERIFY(NULL), GUMBALL_OUT_OF_RANGE,
            "parents is 1 for node 0 of request 0, but must be in -1..0, a node before it");
    drafts.parents = tree;
    drafts.mode = GUMBALL_BLOCK;
    REFUSED(VERIFY(NULL), GUMBALL_OUT_OF_RANGE, "parents is -1 for node 1 of request 0, but must be 0 in a chain");
    drafts.parents = NULL;
    CHECK(VERIFY(&options) == GUMBALL_CONFLICT && strcmp(gumball_error_parameter(), "forced") == 0);
    drafts.mode = GUMBALL_THRESHOLD;
    drafts.threshold_acc = 1.5f;
    REFUSED(VERIFY(NULL), GUMBALL_OUT_OF_RANGE, "threshold_acc is 1.5, but must be in 0..=1");
    drafts.mode = 5;
    CHECK(VERIFY(NULL) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "mode") == 0);
    const size_t one = 1;
    REFUSED(gumball_pool_shorten(pool, slots, &one, 1), GUMBALL_OUT_OF_RANGE,
            "counts is 1 of slot 0, but must be in 0..=0, its output tokens");
    CHECK(gumball_pool_shorten(pool, slots, NULL, 1) == GUMBALL_OUT_OF_RANGE);
    OK(gumball_pool_shorten(pool, NULL, NULL, 0));
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, slots[0], &state));
    CHECK(state.output_len == 0);
    size_t len;
    CHECK(gumball_verification_accepted(verification) == NULL);
    CHECK(gumball_verification_tokens(verification, 0, &len) == NULL && gumball_error_code() == GUMBALL_OUT_OF_RANGE);
    gumball_verification_free(verification);
    gumball_verification_free(NULL);
    gumball_pool_free(pool);
}

static void a_device_says_what_is_missing(const char *name) {
    gumball_device *device = gumball_device_open(name);
    CHECK(device != NULL);
    gumball_pool *pool = device_pool_of(device, VOCAB);
    const int32_t slot = admit(pool, "{\"seed\": 1}", NULL, 0);
    const uint32_t count = 0;
    const size_t none = 0;
    SIZED(gumball_drafts, drafts);
    drafts.counts = &count;
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 1, VOCAB);
    gumball_verification *verification = gumball_verification_new(0);
    REFUSED(gumball_pool_verify(pool, &logits, &slot, 1, &drafts, NULL, verification), GUMBALL_UNAVAILABLE,
            "no verification on a device: kernels for it are missing; verify in a pool of the host, or step without "
            "drafts");
    REFUSED(gumball_pool_shorten(pool, &slot, &none, 1), GUMBALL_UNAVAILABLE,
            "no shorten on a device: gumball_pool_truncate does this for one slot");
    gumball_verification_free(verification);
    gumball_pool_free(pool);
    gumball_device_free(device);
}

int main(int argc, char **argv) {
    the_stream_is_that_of_steps();
    rows_and_tokens_are_those_of_the_path();
    modes_judge_by_probabilities();
    refusals();
    if (argc > 1) {
        a_device_says_what_is_missing(argv[1]);
    }
    return verdict("verify");
}
