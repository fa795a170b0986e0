// Heads: each call from hidden states, descriptions of heads, their files, refusals.

#include "heads.h"
#include "rows.h"

enum { VOCAB = 500, WIDTH = 35, ROWS = 2 * REQUESTS };

static float weights[VOCAB * WIDTH], bias[VOCAB], states[ROWS * WIDTH], logits[ROWS * VOCAB];
static uint16_t narrow[VOCAB * WIDTH];

static gumball_head_config config_of(int32_t kind) { return head_config_of(weights, bias, VOCAB, WIDTH, kind); }

static gumball_head *head_of(int32_t kind) {
    const gumball_head_config config = config_of(kind);
    gumball_head *head = gumball_head_new(&config);
    CHECK(head != NULL);
    return head;
}

static gumball_hidden hidden_of(size_t rows) { return hidden_states_of(states, rows, WIDTH); }

static void calls_take_hidden_states(int32_t kind) {
    gumball_head *head = head_of(kind);
    const gumball_hidden hidden = hidden_of(ROWS);
    OK(gumball_head_logits(head, &hidden, logits));
    calls_are_those_of_the_logits(head, states, WIDTH, logits, VOCAB, 0);
    gumball_head_free(head);
}

static void what_is_known_of_a_head(void) {
    SIZED(gumball_head_info, info);
    gumball_head *head = head_of(GUMBALL_HEAD_EXACT);
    OK(gumball_head_describe(head, &info));
    CHECK(info.vocab == VOCAB && info.width == WIDTH && info.dtype == GUMBALL_F32);
    CHECK(info.kind == GUMBALL_HEAD_EXACT && info.screen_bytes == 0 && info.most_rows == 0);
    size_t len = 9;
    CHECK(gumball_head_unscreened(head, &len) == NULL && len == 0);
    gumball_head_free(head);

    to_bf16(weights, narrow, VOCAB * WIDTH);
    gumball_head_config config = config_of(GUMBALL_HEAD_CERTIFIED);
    config.weights = narrow;
    config.dtype = GUMBALL_BF16;
    config.most_rows = 3;
    bias[7] = INFINITY;
    head = gumball_head_new(&config);
    OK(gumball_head_describe(head, &info));
    CHECK(info.dtype == GUMBALL_BF16 && info.kind == GUMBALL_HEAD_CERTIFIED && info.most_rows == 3);
    CHECK(info.screen_bytes > VOCAB * WIDTH);
    const uint32_t *unscreened = gumball_head_unscreened(head, &len);
    CHECK(len == 1 && unscreened[0] == 7);
    bias[7] = 0.0f;
    gumball_head_free(head);
    gumball_head_free(NULL);
}

// Bytes of a file, which must be there.
static size_t bytes_of(const char *path, char *bytes, size_t most) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    size_t count = file == NULL ? 0 : fread(bytes, 1, most, file);
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

static void files(const char *path) {
    static char bytes[1 << 16];
    gumball_head *made = head_of(GUMBALL_HEAD_CERTIFIED), *exact = head_of(GUMBALL_HEAD_EXACT);
    OK(gumball_head_save(made, path, NULL));
    CHECK(gumball_head_save(exact, path, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_head_save(made, NULL, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_head_save(made, "/no/such/folder/x", "w") == GUMBALL_UNAVAILABLE);
    CHECK(gumball_head_save(made, "/dev", "w") == GUMBALL_UNAVAILABLE);
    CHECK(strstr(gumball_error_message(), "it is a folder, not a file") != NULL);
    gumball_head_config config = config_of(GUMBALL_HEAD_CERTIFIED);
    config.file = path;
    gumball_head *read = gumball_head_new(&config);
    CHECK(read != NULL);
    SIZED(gumball_head_info, a);
    SIZED(gumball_head_info, b);
    OK(gumball_head_describe(made, &a));
    OK(gumball_head_describe(read, &b));
    CHECK(a.screen_bytes == b.screen_bytes && a.most_rows == b.most_rows);
    const gumball_hidden hidden = hidden_of(REQUESTS);
    same_tokens(made, read, VOCAB, &hidden);
    gumball_head_free(read);
    config.kind = GUMBALL_HEAD_EXACT;
    CHECK(gumball_head_new(&config) == NULL && gumball_error_code() == GUMBALL_CONFLICT);
    config.kind = GUMBALL_HEAD_CERTIFIED;
    config.bias = NULL;
    CHECK(gumball_head_new(&config) == NULL && gumball_error_code() == GUMBALL_OUT_OF_RANGE);
    CHECK(strstr(gumball_error_message(), "the bias it was built from") != NULL);
    config.bias = bias;
    config.file = "/no/such/file";
    CHECK(gumball_head_new(&config) == NULL && gumball_error_code() == GUMBALL_UNAVAILABLE);
    size_t count = bytes_of(path, bytes, sizeof bytes);
    CHECK(count > VOCAB * WIDTH && count < sizeof bytes);
    bytes[count - 1] ^= 1;
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(bytes, 1, count, file) == count && fclose(file) == 0);
    config.file = path;
    CHECK(gumball_head_new(&config) == NULL && strstr(gumball_error_message(), "damaged or changed") != NULL);
    remove(path);
    gumball_head_free(made);
    gumball_head_free(exact);
}

static void reasons(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const char *reason = "none";
    const char *const wanted[REQUESTS] = {NULL, NULL, NULL, "top_p"};
    for (int i = 0; i < REQUESTS; i++) {
        int32_t slot = admit(pool, requests[i], NULL, 0);
        OK(gumball_pool_needs_whole_row(pool, slot, 0, 0, &reason));
        CHECK(wanted[i] == NULL ? reason == NULL : reason != NULL && strcmp(reason, wanted[i]) == 0);
        OK(gumball_pool_needs_whole_row(pool, slot, 1, 0, &reason));
        CHECK(reason != NULL && strcmp(reason, "hook") == 0);
    }
    OK(gumball_pool_needs_whole_row(pool, 0, 0, 1, &reason));
    CHECK(strcmp(reason, "kept") == 0);
    CHECK(gumball_pool_needs_whole_row(pool, 99, 0, 0, &reason) == GUMBALL_OUT_OF_RANGE);
    gumball_pool_free(pool);
}

static void what_is_refused(void) {
    gumball_head_config config = config_of(3);
    NONE(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE,
         "kind is 3, but must be GUMBALL_HEAD_EXACT or GUMBALL_HEAD_CERTIFIED; clustered heads have functions of their "
         "own");
    config = config_of(GUMBALL_HEAD_EXACT);
    config.most_rows = 1;
    CHECK(gumball_head_new(&config) == NULL && gumball_error_code() == GUMBALL_CONFLICT);
    config.most_rows = 0;
    config.vocab = 0;
    NONE(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE, "vocab is 0, but must be in 1..=2^20");
    config.vocab = VOCAB;
    config.width = 65537;
    NONE(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE, "width is 65537, but must be in 1..=2^16");
    config.width = WIDTH;
    config.weights = NULL;
    NONE(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE, "weights is NULL, but must be a pointer to something");
    config.weights = weights;
    config.dtype = 9;
    CHECK(gumball_head_new(&config) == NULL && strcmp(gumball_error_parameter(), "dtype") == 0);
    config.dtype = GUMBALL_F32;
    config.logit_scale = -1.0f;
    CHECK(gumball_head_new(&config) == NULL && strcmp(gumball_error_parameter(), "logit_scale") == 0);
    config.logit_scale = 0.0f;
    config.softcap = -1.0f;
    CHECK(gumball_head_new(&config) == NULL && strcmp(gumball_error_parameter(), "softcap") == 0);
    config.softcap = 0.0f;
    config.level = "mmx";
    CHECK(gumball_head_new(&config) == NULL && gumball_error_code() == GUMBALL_UNKNOWN);
    CHECK(gumball_head_new(NULL) == NULL && gumball_head_describe(NULL, NULL) == GUMBALL_OUT_OF_RANGE);

    gumball_head *head = head_of(GUMBALL_HEAD_EXACT);
    gumball_pool *pool = pool_of(VOCAB, 1), *smaller = pool_of(VOCAB - 1, 1);
    gumball_outputs *outputs = gumball_outputs_new(0);
    int32_t slot = admit(pool, requests[0], NULL, 0);
    gumball_hidden hidden = hidden_of(1);
    CHECK(gumball_pool_step_hidden(pool, NULL, &hidden, &slot, 1, NULL, outputs) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_step_hidden(pool, head, NULL, &slot, 1, NULL, outputs) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_step_hidden(smaller, head, &hidden, &slot, 1, NULL, outputs) == GUMBALL_LENGTH);
    const int32_t two[] = {slot, -1};
    REFUSED(gumball_pool_step_hidden(pool, head, &hidden, two, 2, NULL, outputs), GUMBALL_LENGTH,
            "slots has length 2, but must have one per hidden state, 1");
    hidden.width = WIDTH - 1;
    REFUSED(gumball_pool_step_hidden(pool, head, &hidden, &slot, 1, NULL, outputs), GUMBALL_LENGTH,
            "hidden has length 34, but must have 35 elements each, as a row of weights");
    hidden.width = WIDTH;
    hidden.rows = 2;
    hidden.stride = WIDTH - 1;
    REFUSED(gumball_head_logits(head, &hidden, logits), GUMBALL_OUT_OF_RANGE,
            "stride is 34, but must be at least 35, inside memory");
    hidden = hidden_of(1);
    const uint32_t lines[] = {0};
    SIZED(gumball_step_options, options);
    options.row_indices = lines;
    CHECK(gumball_pool_step_hidden(pool, head, &hidden, &slot, 1, &options, outputs) == GUMBALL_CONFLICT);
    // Padding's hidden state is not read, and nothing has moved.
    const int32_t padding[] = {-1};
    OK(gumball_pool_step_hidden(pool, head, &hidden, padding, 1, NULL, outputs));
    CHECK(gumball_outputs_tokens(outputs)[0] == -1);
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, slot, &state));
    CHECK(state.output_len == 0);
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
    gumball_pool_free(smaller);
    gumball_head_free(head);
}

static void heads_of_the_host_are_not_for_pools_on_a_device(const char *name) {
    gumball_device *device = gumball_device_open(name);
    gumball_pool *pool = device_pool_of(device, VOCAB);
    gumball_head *head = head_of(GUMBALL_HEAD_EXACT);
    gumball_outputs *outputs = gumball_outputs_new(0);
    const gumball_hidden hidden = hidden_of(1);
    const int32_t padding[] = {-1};
    CHECK(gumball_pool_step_hidden(pool, head, &hidden, padding, 1, NULL, outputs) == GUMBALL_UNAVAILABLE);
    SIZED(gumball_head_counts, counts);
    CHECK(gumball_pool_head_counts(pool, &counts) == GUMBALL_UNAVAILABLE);
    CHECK(strstr(gumball_error_message(), "gumball_device_head_of copies it") != NULL);
    gumball_outputs_free(outputs);
    gumball_head_free(head);
    gumball_pool_free(pool);
    gumball_device_free(device);
}

int main(int argc, char **argv) {
    bell(weights, VOCAB * WIDTH, 1);
    bell(bias, VOCAB, 2);
    bell(states, ROWS * WIDTH, 3);
    what_is_known_of_a_head();
    calls_take_hidden_states(GUMBALL_HEAD_EXACT);
    calls_take_hidden_states(GUMBALL_HEAD_CERTIFIED);
    reasons();
    what_is_refused();
    files(argv[1]);
    if (argc > 2) {
        heads_of_the_host_are_not_for_pools_on_a_device(argv[2]);
    }
    return verdict("heads");
}
