// Wrong inputs: each is refused with a code and a message that names the parameter, its value and what is allowed, and
// nothing is changed.

#include "check.h"
#include "rows.h"

enum { VOCAB = 300 };

static float row[2 * VOCAB];

static void handles(void) {
    int32_t slot;
    SIZED(gumball_state, state);
    SIZED(gumball_outputs_view, view);
    gumball_error_parts parts;
    NONE(gumball_params_clone(NULL), GUMBALL_OUT_OF_RANGE, "params is NULL, but must be a pointer to something");
    CHECK(gumball_error(&parts) == GUMBALL_OUT_OF_RANGE && strcmp(parts.parameter, "params") == 0);
    CHECK(strcmp(parts.value, "NULL") == 0 && strcmp(parts.allowed, "a pointer to something") == 0);
    NOTHING(gumball_params_to_json(NULL), GUMBALL_OUT_OF_RANGE, "params");
    NOTHING(gumball_params_from_json(NULL), GUMBALL_OUT_OF_RANGE, "json");
    CHECK(gumball_params_set(NULL, "top_k", 1) != GUMBALL_OK && gumball_params_set_seed(NULL, 1) != GUMBALL_OK);
    CHECK(gumball_params_validate(NULL, 1) != GUMBALL_OK);
    NOTHING(gumball_sampler_new(NULL, NULL, NULL), GUMBALL_OUT_OF_RANGE, "params");
    CHECK(gumball_sampler_sample(NULL, NULL, NULL, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_sampler_state(NULL, &state) == GUMBALL_OUT_OF_RANGE && gumball_sampler_fork(NULL, 1) == NULL);
    CHECK(gumball_sampler_push(NULL, 1) == GUMBALL_OUT_OF_RANGE && gumball_pool_new(NULL) == NULL);
    CHECK(gumball_pool_admit(NULL, NULL, NULL, 0, &slot) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_step(NULL, NULL, NULL, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_describe(NULL, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_outputs_read(NULL, &view) == GUMBALL_OUT_OF_RANGE && gumball_device_open(NULL) == NULL);
    CHECK(gumball_buffer_new(NULL, 1) == NULL && gumball_buffer_address(NULL) == NULL);
    CHECK(gumball_pool_replay(NULL, NULL) == GUMBALL_OUT_OF_RANGE);
#define FREES_NULL(kind) gumball_##kind##_free(NULL);
    KINDS(FREES_NULL)
    gumball_device_free(NULL);
    gumball_operators_free(NULL);
    gumball_recorded_free(NULL);
}

static void parameters(void) {
    gumball_params *params = keep_params(gumball_params_new());
    gumball_params *neutral = keep_params(gumball_params_new());
    const uint32_t ids[] = {5, 300};
    REFUSED(gumball_params_set(params, "top_k", 0.5), GUMBALL_OUT_OF_RANGE, "top_k is 0.5, but must be an integer");
    REFUSED(gumball_params_set(params, "min_tokens", -1), GUMBALL_OUT_OF_RANGE,
            "min_tokens is -1, but must be an integer in 0..2^32");
    REFUSED(gumball_params_set(params, "temperature_last", 2), GUMBALL_OUT_OF_RANGE,
            "temperature_last is 2, but must be 0 or 1");
    FAILS(gumball_params_set(params, "top_k", NAN), GUMBALL_OUT_OF_RANGE, "top_k");
    FAILS(gumball_params_set(params, "logprobs.top_n", 4294967296.0), GUMBALL_OUT_OF_RANGE, "logprobs.top_n");
    FAILS(gumball_params_set_json(params, "order", "\"topk\""), GUMBALL_JSON, "order");
    CHECK(strstr(gumball_error_message(),
                 "filter \"topk\" is not known (do you mean \"top_k\"?); known are: top_n_sigma, top_h, ") != NULL);
    CHECK(gumball_params_set(params, "topk", 1) == GUMBALL_UNKNOWN);
    CHECK(strstr(gumball_error_message(),
                 "name \"topk\" is not known (do you mean \"top_k\"?); known are: temperature, top_k") != NULL);
    CHECK(gumball_params_set_ids(params, "ids", ids, 2) == GUMBALL_UNKNOWN);
    CHECK(gumball_params_set_ids(params, "banned_ids", NULL, 2) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_params_set_json(params, "topk", NULL) == GUMBALL_UNKNOWN);
    CHECK(gumball_params_set_json(params, "dry", "{\"multiplyer\": 1}") == GUMBALL_JSON);
    CHECK(gumball_params_set_json(params, "dry", "{") == GUMBALL_JSON);
    CHECK(gumball_params_set_json(params, "dry", "[0.8]") == GUMBALL_JSON);
    CHECK(gumball_params_set(params, "\xff", 1) == GUMBALL_OUT_OF_RANGE);
    CHECK(strcmp(gumball_params_to_json(params), gumball_params_to_json(neutral)) == 0);

    CHECK(gumball_params_from_json("{\"topk\": 50}") == NULL && gumball_error(NULL) == GUMBALL_JSON);
    CHECK(strstr(gumball_error_message(),
                 "parameter \"topk\" is not known (do you mean \"top_k\"?); known are: temperature") != NULL);
    CHECK(gumball_params_from_json("") == NULL && gumball_error(NULL) == GUMBALL_JSON);

    // Ranges are those of the engine, where the parameters are taken.
    OK(gumball_params_set(params, "min_p", 1.5));
    REFUSED(gumball_params_validate(params, VOCAB), GUMBALL_OUT_OF_RANGE,
            "min_p is 1.5, but must be in 0..=1 (0: off)");
    OK(gumball_params_set_json(params, "min_p", NULL));
    REFUSED(gumball_params_set(params, "temperature", (double)NAN), GUMBALL_OUT_OF_RANGE,
            "temperature is NaN, but must be 0 (greedy) or in (0, 2^100]");
    REFUSED(gumball_params_set(params, "top_p", 1e300), GUMBALL_OUT_OF_RANGE,
            "top_p is inf, but must be in 0..=1 (1: off)");
    OK(gumball_params_set_ids(params, "banned_ids", ids, 2));
    REFUSED(gumball_params_validate(params, VOCAB), GUMBALL_OUT_OF_RANGE,
            "banned_ids is 300, but must be an id in 0..300");
    OK(gumball_params_set_json(params, "banned_ids", NULL));
    OK(gumball_params_set(params, "top_p", 0.5));
    OK(gumball_params_set_json(params, "order", "\"top_k\""));
    REFUSED(
        gumball_params_validate(params, VOCAB), GUMBALL_CONFLICT,
        "top_p cannot be combined with order: the filter is set but absent from the list; name it or switch it off");
}

static void configs(void) {
    gumball_params *params = keep_params(gumball_params_new());
    SIZED(gumball_sampler_config, config);
    NONE(gumball_sampler_new(params, &config, NULL), GUMBALL_OUT_OF_RANGE, "vocab is 0, but must be in 1..=2^20");
    config.vocab = VOCAB;
    config.route = "rase";
    NONE(gumball_sampler_new(params, &config, NULL), GUMBALL_UNKNOWN,
         "route \"rase\" is not known (do you mean \"race\"?); known are: race, probabilities, oracle");
    config.route = NULL;
    config.level = "sse";
    CHECK(gumball_sampler_new(params, &config, NULL) == NULL && gumball_error(NULL) == GUMBALL_UNKNOWN);
    config.level = NULL;
    config.struct_size = 0;
    NONE(gumball_sampler_new(params, &config, NULL), GUMBALL_OUT_OF_RANGE,
         "gumball_sampler_config.struct_size is 0, but must be sizeof(gumball_sampler_config)");
    SIZED(gumball_pool_config, pool);
    pool.vocab = VOCAB;
#define REFUSES(field, value, message) \
    { \
        gumball_pool_config wrong = pool; \
        wrong.field = value; \
        NONE(gumball_pool_new(&wrong), GUMBALL_OUT_OF_RANGE, message); \
    }
    REFUSES(slots, (size_t)1 << 31, "slots is 2147483648, but must be in 1..2^31")
    REFUSES(threads, (size_t)1 << 40, "threads is 1099511627776, but must be in 1..=1024")
    REFUSES(top_n, (size_t)-1, "top_n is 18446744073709551615, but must be in 0..=2^20")
    REFUSES(ids, (size_t)1 << 62, "ids is 4611686018427387904, but must be in 0..=2^20")
    NOTHING(gumball_operators_new(NULL, (size_t)1 << 40, NULL), GUMBALL_OUT_OF_RANGE, "threads");
    CHECK(gumball_device_open("tpu") == NULL && gumball_error(NULL) == GUMBALL_UNKNOWN);
}

static void samples(void) {
    gumball_sampler *sampler = sampler_of("{\"seed\": 1}", VOCAB, NULL, 0);
    gumball_token token;
    token.id = 12345;
    gumball_rows rows = rows_of(row, GUMBALL_F32, 1, VOCAB);
#define SAMPLE(batch) gumball_sampler_sample(sampler, &rows, batch, &token)
// One thing wrong in the rows.
#define WRONG(set, code, parameter) \
    rows.set; \
    FAILS(SAMPLE(NULL), code, parameter); \
    rows = rows_of(row, GUMBALL_F32, 1, VOCAB)
    WRONG(matrix.width = VOCAB - 1, GUMBALL_LENGTH, "logits");
    WRONG(matrix.rows = 2, GUMBALL_OUT_OF_RANGE, "rows");
    WRONG(what = GUMBALL_HIDDEN, GUMBALL_OUT_OF_RANGE, "head");
    WRONG(matrix.memory = GUMBALL_DEVICE, GUMBALL_OUT_OF_RANGE, "row");
    WRONG(matrix.data = NULL, GUMBALL_OUT_OF_RANGE, "logits");
    WRONG(matrix.data = (const char *)row + 1, GUMBALL_OUT_OF_RANGE, "logits");
    CHECK(strstr(gumball_error_message(), "but must be an address that is a multiple of 4") != NULL);
    memset(&rows.matrix.dtype, 9, sizeof rows.matrix.dtype);
    REFUSED(SAMPLE(NULL), GUMBALL_OUT_OF_RANGE,
            "dtype is 151587081, but must be GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16");
    rows = rows_of(row, GUMBALL_F32, 1, VOCAB);
    FAILS(gumball_sampler_sample(sampler, &rows, NULL, NULL), GUMBALL_OUT_OF_RANGE, "token");
    FAILS(gumball_sampler_sample(sampler, NULL, NULL, &token), GUMBALL_OUT_OF_RANGE, "row");
    const char *odd = (const char *)&rows + 1;
    const gumball_rows *unaligned;
    memcpy(&unaligned, &odd, sizeof odd);
    FAILS(gumball_sampler_sample(sampler, unaligned, NULL, &token), GUMBALL_OUT_OF_RANGE, "row");
    const int32_t outside = VOCAB, negative = -2, slot = 0;
    const uint32_t line = 0, words[] = {1, 1};
// A field that a sampler does not read.
#define UNREAD(set, code, parameter) \
    { \
        SIZED(gumball_batch, batch); \
        set; \
        FAILS(SAMPLE(&batch), code, parameter); \
    }
    UNREAD(batch.forced = &outside, GUMBALL_OUT_OF_RANGE, "forced")
    UNREAD(batch.forced = &negative, GUMBALL_OUT_OF_RANGE, "forced")
    UNREAD(batch.row_indices = &line, GUMBALL_CONFLICT, "row_indices")
    UNREAD(batch.mode = GUMBALL_GREEDY, GUMBALL_CONFLICT, "mode")
    UNREAD((batch.len = 1, batch.slots = &slot), GUMBALL_CONFLICT, "slots")
    UNREAD(batch.masks = masks_of(words, 2, 1), GUMBALL_OUT_OF_RANGE, "masks.rows")
    UNREAD((batch.masks.memory = GUMBALL_DEVICE, batch.masks.words = words), GUMBALL_OUT_OF_RANGE, "masks.memory")
    rows.what = GUMBALL_PROBABILITIES;
    FAILS(gumball_sampler_sample_n(sampler, &rows, 1, &token), GUMBALL_OUT_OF_RANGE, "what");
    REFUSED(gumball_sampler_shorten(sampler, 1), GUMBALL_OUT_OF_RANGE, "count is 1, but must be in 0..=0");
    SIZED(gumball_state, state);
    OK(gumball_sampler_state(sampler, &state));
    CHECK(state.output_len == 0 && state.position == 0 && token.id == 12345);
    state.mu = NAN;
    SIZED(gumball_sampler_config, config);
    config.vocab = VOCAB;
    CHECK(gumball_sampler_new(params_of("{}"), &config, &state) == NULL && gumball_error(NULL) == GUMBALL_OUT_OF_RANGE);
}

static void steps(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    gumball_outputs *outputs = outputs_of();
    int32_t slots[] = {admit(pool, "{\"seed\": 1}", NULL, 0), 3};
    gumball_rows logits = rows_of(row, GUMBALL_F32, 2, VOCAB);
#define STEP(len) take_step(pool, &logits, slots, len, outputs)
    REFUSED(STEP(2), GUMBALL_OUT_OF_RANGE, "slots is 3 in row 1, but must be an admitted slot, or -1 for padding");
    REFUSED(STEP(1), GUMBALL_LENGTH, "slots has length 1, but must have one per row, 2");
    FAILS(take_step(pool, &logits, NULL, 2, outputs), GUMBALL_OUT_OF_RANGE, "slots");
    FAILS(gumball_pool_step(pool, &logits, NULL, outputs), GUMBALL_OUT_OF_RANGE, "batch");
    logits.matrix.stride = VOCAB - 1;
    FAILS(STEP(2), GUMBALL_OUT_OF_RANGE, "stride");
    logits.matrix.stride = (size_t)-1 / 2;
    CHECK(STEP(2) != GUMBALL_OK);
    logits = rows_of(row, GUMBALL_F32, 1, VOCAB);
    memset(&logits.what, 0x7F, sizeof logits.what);
    FAILS(STEP(1), GUMBALL_OUT_OF_RANGE, "what");
    logits = rows_of(row, GUMBALL_F32, 1, VOCAB);
    const uint32_t line = 1, count = 0, words[2] = {0, 0};
    gumball_batch batch = batch_of(slots, 1);
    batch.row_indices = &line;
    FAILS(gumball_pool_step(pool, &logits, &batch, outputs), GUMBALL_OUT_OF_RANGE, "row_indices");
    batch = batch_of(slots, 1);
    batch.counts = &count;
    FAILS(gumball_pool_step(pool, &logits, &batch, outputs), GUMBALL_CONFLICT, "counts");
    batch = batch_of(slots, 1);
    batch.masks = masks_of(words, 2, 1);
    FAILS(gumball_pool_step(pool, &logits, &batch, outputs), GUMBALL_LENGTH, "masks");
    batch.masks.width = 2;
    batch.masks.stride = 1;
    FAILS(gumball_pool_step(pool, &logits, &batch, outputs), GUMBALL_OUT_OF_RANGE, "masks.stride");
    CHECK(take_step(pool, &logits, slots, 1, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(view_of(outputs).rows == 0 && view_of(outputs).words == NULL);
    REFUSED(gumball_pool_release(pool, 7), GUMBALL_OUT_OF_RANGE, "slot is 7, but must be an admitted slot");
    CHECK(gumball_pool_push(pool, -1, 0) == GUMBALL_OUT_OF_RANGE && gumball_pool_params(pool, 7) == NULL);
    int32_t slot = -7;
    FAILS(gumball_pool_admit(pool, params_of("{\"logprobs\": {\"top_n\": 4}}"), NULL, 0, &slot), GUMBALL_OUT_OF_RANGE,
          "logprobs.top_n");
    CHECK(slot == -7 && state_of(pool, slots[0]).output_len == 0);
    size_t len;
    FAILS((gumball_outputs_kept(outputs, 0, &len) == NULL ? GUMBALL_OUT_OF_RANGE : GUMBALL_OK), GUMBALL_OUT_OF_RANGE,
          "row");
}

// Where a program may have so much memory and no more, what does not fit is refused, and the program goes on.
static void memory(void) {
#ifndef __SANITIZE_ADDRESS__
    // Valgrind needs memory of its own.
    if (getenv("GUMBALL_TEST_UNLIMITED") != NULL) {
        return;
    }
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    limit = before;
    limit.rlim_cur = (rlim_t)8 << 30;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    SIZED(gumball_pool_config, config);
    config.vocab = VOCAB;
    config.threads = 1;
    config.slots = 2147483647;
    NOTHING(gumball_pool_new(&config), GUMBALL_UNAVAILABLE, "memory for slots");
    const gumball_rows logits = rows_of(row, GUMBALL_F32, 1, VOCAB);
    // The room for the tokens is refused before any is drawn, so that theirs need not be there.
    gumball_token token;
    FAILS(gumball_sampler_sample_n(sampler_of("{\"seed\": 1}", VOCAB, NULL, 0), &logits, UINT32_MAX, &token),
          GUMBALL_UNAVAILABLE, "memory for tokens");
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
#endif
}

// Nothing is written where an operator refuses.
static void operators(void) {
    gumball_operators *operators = gumball_operators_new(NULL, 0, NULL);
    float written[2 * VOCAB] = {0};
    uint32_t statuses[2] = {7, 7}, line = 2;
    int32_t tokens[2] = {7, 7};
    gumball_rows rows = rows_of(row, GUMBALL_F32, 2, VOCAB);
    gumball_matrix out = matrix_of(written, GUMBALL_F32, 2, VOCAB);
#define SOFTMAX(rows, temperature, out) gumball_operators_softmax(operators, rows, temperature, NULL, out, statuses)
    CHECK(gumball_operators_softmax(NULL, &rows, 1.0f, NULL, &out, statuses) == GUMBALL_OUT_OF_RANGE);
    FAILS(SOFTMAX(NULL, 1.0f, &out), GUMBALL_OUT_OF_RANGE, "logits");
    FAILS(SOFTMAX(&rows, 1.0f, NULL), GUMBALL_OUT_OF_RANGE, "out");
    REFUSED(SOFTMAX(&rows, -1.0f, &out), GUMBALL_OUT_OF_RANGE,
            "temperature is -1, but must be 0 (greedy) or in (0, 2^100]");
// One thing wrong in the rows to be written.
#define WRONG_OUT(set, code) \
    { \
        gumball_matrix wrong = out; \
        set; \
        CHECK(SOFTMAX(&rows, 1.0f, &wrong) == code); \
    }
    WRONG_OUT(wrong.rows = 1, GUMBALL_LENGTH)
    WRONG_OUT(wrong.width = VOCAB - 1, GUMBALL_OUT_OF_RANGE)
    WRONG_OUT(wrong.stride = 1, GUMBALL_OUT_OF_RANGE)
    WRONG_OUT(wrong.stride = (size_t)-1, GUMBALL_OUT_OF_RANGE)
    WRONG_OUT(wrong.data = NULL, GUMBALL_OUT_OF_RANGE)
    WRONG_OUT(wrong.data = (char *)written + 1, GUMBALL_OUT_OF_RANGE)
    // The rows that are read, shifted, or as another type.
    const float before = row[1];
    WRONG_OUT(wrong.data = row + 1, GUMBALL_OUT_OF_RANGE)
    CHECK(strstr(gumball_error_message(),
                 "but must be the very rows that are read, or memory that has nothing in common"));
    WRONG_OUT((wrong.dtype = GUMBALL_F16, wrong.data = row), GUMBALL_OUT_OF_RANGE)
    CHECK(row[1] == before);

    const float good_and_bad[] = {0.5f, 1.5f};
    SIZED(gumball_row_params, params);
    params.min_p = good_and_bad;
    FAILS(gumball_operators_probabilities(operators, &rows, &params, &out, statuses), GUMBALL_OUT_OF_RANGE, "min_p");
    params.min_p = NULL;
    params.temperature = good_and_bad;
    rows.what = GUMBALL_PROBABILITIES;
    FAILS(gumball_operators_mask_logits(operators, &rows, &params, &out, statuses), GUMBALL_OUT_OF_RANGE,
          "temperature");
    FAILS(SOFTMAX(&rows, 1.0f, &out), GUMBALL_OUT_OF_RANGE, "kind");
    memset(&rows.what, 0x7F, sizeof rows.what);
    FAILS(gumball_operators_probabilities(operators, &rows, NULL, &out, statuses), GUMBALL_OUT_OF_RANGE, "what");
    rows.what = GUMBALL_LOGITS;
    CHECK(written[0] == 0.0f && statuses[0] == 7);

    SIZED(gumball_draws, draws);
#define DRAW(draws, tokens) gumball_operators_sample(operators, &rows, NULL, draws, tokens, statuses)
    FAILS(DRAW(NULL, tokens), GUMBALL_OUT_OF_RANGE, "draws");
    draws.outputs = 1;
    REFUSED(DRAW(&draws, tokens), GUMBALL_LENGTH,
            "outputs has length 1, but must have one per row, 2, or any number with row_indices");
    draws.row_indices = &line;
    FAILS(DRAW(&draws, tokens), GUMBALL_OUT_OF_RANGE, "row_indices");
    FAILS(DRAW(&draws, NULL), GUMBALL_OUT_OF_RANGE, "tokens");
    draws.row_indices = NULL;
    draws.outputs = 2;
    // Lengths whose products wrap, and others that no memory has.
    const size_t lengths[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / VOCAB, (size_t)1 << 62, ((size_t)1 << 62) + VOCAB};
    const gumball_rows right = rows;
    const gumball_draws both = draws;
    size_t *const fields[] = {&rows.matrix.rows, &rows.matrix.width, &rows.matrix.stride, &draws.outputs};
    for (size_t i = 0; i < 20; i++) {
        // A shorter stride would be one of memory that there could be.
        *fields[i % 4] = i % 4 == 2 ? lengths[i / 4] | (size_t)1 << 62 : lengths[i / 4];
        draws.outputs = i % 4 == 3 ? draws.outputs : rows.matrix.rows;
        const gumball_code code = DRAW(&draws, tokens);
        CHECK(code == GUMBALL_OUT_OF_RANGE || code == GUMBALL_LENGTH);
        rows = right;
        draws = both;
    }
    draws.outputs = 1;
    CHECK(tokens[0] == 7 && statuses[0] == 7);

    SIZED(gumball_drafts, drafts);
    gumball_judged to = {tokens, NULL, NULL, NULL, NULL};
#define JUDGE(draws) gumball_operators_judge(operators, &rows, &drafts, draws, GUMBALL_REJECTION, 0, 0, &to)
    draws.row_indices = &line;
    FAILS(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "row_indices");
    CHECK(strstr(gumball_error_message(), "but must be NULL for draft trees") != NULL);
    draws.row_indices = NULL;
    FAILS(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "what");
    rows.what = GUMBALL_PROBABILITIES;
    FAILS(JUDGE(NULL), GUMBALL_OUT_OF_RANGE, "draws");
    REFUSED(JUDGE(&draws), GUMBALL_LENGTH, "rows has length 2, but must have 1 or 1 for 1 trees of 0 drafts");
    drafts.ids = ints_of(NULL, 1);
    FAILS(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "ids");
    drafts.ids.memory = GUMBALL_DEVICE;
    FAILS(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "memory");
    drafts.ids = ints_of(tokens, 1);
    drafts.ids.width = 2;
    REFUSED(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "width is 2, but must be 0 or 1: ids is a list");
    drafts.ids.width = 1;
    drafts.first_child = drafts.ids;
    FAILS(JUDGE(&draws), GUMBALL_CONFLICT, "first_child");
    drafts.first_child = ints_of(NULL, 0);
    rows.matrix.width = 0;
    REFUSED(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "width is 0, but must be in 1..=2^20");
    rows = right;
    rows.what = GUMBALL_PROBABILITIES;
    drafts.ids.rows = SIZE_MAX;
    FAILS(JUDGE(&draws), GUMBALL_LENGTH, "rows");
    draws.outputs = (size_t)1 << 62;
    FAILS(JUDGE(&draws), GUMBALL_LENGTH, "ids");
    drafts.ids.rows = draws.outputs;
    rows.matrix.rows = (size_t)1 << 63;
    FAILS(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "stride");
    rows.matrix.rows = 2;
    draws.outputs = drafts.ids.rows = 1;
    drafts.probs = matrix_of(row, GUMBALL_F32, 3, VOCAB);
    REFUSED(JUDGE(&draws), GUMBALL_LENGTH, "probs has length 3, but must have 1 or 2 for 1 trees of 1 drafts");
    drafts.probs = matrix_of(row, GUMBALL_F32, 1, VOCAB - 1);
    FAILS(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "probs");
    drafts.probs = matrix_of(NULL, GUMBALL_F32, 0, 0);
    to.accepted_alone = statuses;
    FAILS(JUDGE(&draws), GUMBALL_CONFLICT, "accepted_alone");
    to.accepted_alone = NULL;
    rows.matrix.stride = VOCAB + 1;
    FAILS(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "rows");
    rows.matrix.stride = 0;
    to.tokens = NULL;
    FAILS(JUDGE(&draws), GUMBALL_OUT_OF_RANGE, "tokens");
    CHECK(tokens[0] == 7 && tokens[1] == 7);
    gumball_operators_free(operators);

    CHECK(gumball_operators_new(NULL, 0, "sse") == NULL && gumball_error(NULL) == GUMBALL_UNKNOWN);
    gumball_device *device = gumball_device_open("emulated");
    if (device != NULL) {
        NOTHING(gumball_operators_new(device, 1, NULL), GUMBALL_CONFLICT, "threads");
        operators = gumball_operators_new(device, 0, NULL);
        rows.what = GUMBALL_LOGITS;
        rows.matrix.memory = out.memory = GUMBALL_DEVICE;
        FAILS(SOFTMAX(&rows, -1.0f, &out), GUMBALL_OUT_OF_RANGE, "temperature");
        FAILS(DRAW(NULL, tokens), GUMBALL_OUT_OF_RANGE, "draws");
        FAILS(JUDGE(NULL), GUMBALL_OUT_OF_RANGE, "draws");
        gumball_operators_free(operators);
    }
    gumball_device_free(device);
}

static void all(void) {
    handles();
    parameters();
    configs();
    samples();
    steps();
    operators();
}

int main(int argc, char **argv) {
    CHECK(gumball_error(NULL) == GUMBALL_OK && gumball_error_message()[0] == '\0');
    bell(row, 2 * VOCAB, 1);
    if (argc == 1) {
        memory();
    }
    return verdict_of("misuse", all, argc, argv);
}
