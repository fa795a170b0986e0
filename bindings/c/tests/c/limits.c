// Sizes: what lies outside a range is refused when it is named, memory that the system refuses is an error, and a mask of no words
// forbids every id, while no mask forbids none.

#include "check.h"
#include "rows.h"

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
#include <sys/resource.h>
#define HAS_LIMIT 1
#else
#define HAS_LIMIT 0
#endif

enum { VOCAB = 300 };

static float row[2 * VOCAB];

static void pools(void) {
    SIZED(gumball_pool_config, config);
    config.vocab = VOCAB;
#define REFUSES(field, value, message) \
    { \
        gumball_pool_config wrong = config; \
        wrong.field = value; \
        NONE(gumball_pool_new(&wrong), GUMBALL_OUT_OF_RANGE, message); \
    }
    REFUSES(slots, (size_t)1 << 31, "slots is 2147483648, but must be in 1..2^31")
    REFUSES(threads, (size_t)1 << 40, "threads is 1099511627776, but must be in 1..=1024")
    REFUSES(top_n, (size_t)-1, "top_n is 18446744073709551615, but must be in 0..=2^20")
    REFUSES(ids, (size_t)1 << 62, "ids is 4611686018427387904, but must be in 0..=2^20")
    NOTHING(gumball_operators_new(NULL, (size_t)1 << 40, NULL), GUMBALL_OUT_OF_RANGE, "threads");
}

// Where a program may have so much memory and no more, what does not fit is refused, and the program goes on.
static void memory(void) {
#if HAS_LIMIT
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
    CHECK(gumball_pool_new(&config) == NULL && gumball_error(NULL) == GUMBALL_UNAVAILABLE);
    CHECK(about("memory for slots"));
    config.slots = 2;
    config.top_n = 1 << 20;
    gumball_pool *pool = keep_pool(gumball_pool_new(&config));
    int32_t slot = admit(pool, "{\"seed\": 1}", NULL, 0);
    gumball_outputs *outputs = outputs_of();
    enum { MANY = 2048 };
    static int32_t slots[MANY];
    static uint32_t lines[MANY];
    memset(slots, 0xFF, sizeof slots);
    slots[MANY - 1] = slot;
    gumball_batch options = batch_of(slots, MANY);
    options.row_indices = lines;
    gumball_rows logits = rows_of(row, GUMBALL_F32, 1, VOCAB);
    FAILS(gumball_pool_step(pool, &logits, &options, outputs), GUMBALL_UNAVAILABLE, "memory for outputs");
    CHECK(state_of(pool, slot).output_len == 0 && view_of(outputs).rows == 0);
    OK(take_step(pool, &logits, &slot, 1, outputs));
    CHECK(state_of(pool, slot).output_len == 1);

    // The room for the tokens is refused before any is drawn, so that theirs need not be there.
    gumball_sampler *sampler = sampler_of("{\"seed\": 1}", VOCAB, NULL, 0);
    gumball_token few[3];
    CHECK(gumball_sampler_sample_n(sampler, &logits, 4294967295u, few) == GUMBALL_UNAVAILABLE);
    CHECK(about("memory for tokens"));
    OK(gumball_sampler_sample_n(sampler, &logits, 3, few));
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
#endif
}

static void chains(void) {
    gumball_operators *operators = gumball_operators_new(NULL, 0, NULL);
    int32_t tokens[2] = {7, 7};
    const gumball_judged to = {tokens, NULL, NULL, NULL, NULL};
    SIZED(gumball_draws, draws);
    SIZED(gumball_drafts, chains);
    draws.outputs = 1;
    chains.ids = ints_of(tokens, 1);
    gumball_rows target = rows_of(row, GUMBALL_F32, 2, 0);
    target.what = GUMBALL_PROBABILITIES;
#define JUDGE() gumball_operators_judge(operators, &target, &chains, &draws, GUMBALL_REJECTION, 0, 0, &to)
    REFUSED(JUDGE(), GUMBALL_OUT_OF_RANGE, "width is 0, but must be in 1..=2^20");
    target.matrix.width = VOCAB;
    chains.ids.rows = (size_t)-1;
    FAILS(JUDGE(), GUMBALL_LENGTH, "rows");
    draws.outputs = (size_t)1 << 62;
    FAILS(JUDGE(), GUMBALL_LENGTH, "ids");
    chains.ids.rows = draws.outputs;
    target.matrix.rows = (size_t)1 << 63;
    FAILS(JUDGE(), GUMBALL_OUT_OF_RANGE, "stride");
    CHECK(tokens[0] == 7 && tokens[1] == 7);
    gumball_operators_free(operators);
}

// A mask of no words forbids every id; NULL is no mask, whatever its width is said to be.
static void masks(void) {
    const uint32_t word = 1;
    const uint8_t present[] = {1, 0};
    gumball_sampler *sampler = sampler_of("{\"seed\": 1}", VOCAB, NULL, 0);
    gumball_token token;
    SIZED(gumball_batch, options);
    options.masks = masks_of(&word, 1, 0);
    OK(sample(sampler, row, GUMBALL_F32, VOCAB, &options, &token));
    CHECK(token.id == -1 && token.status == GUMBALL_STATUS_EMPTY);
    options.masks.present = present + 1;
    OK(sample(sampler, row, GUMBALL_F32, VOCAB, &options, &token));
    CHECK(token.id >= 0);
    options.masks = masks_of(NULL, 1, 5);
    OK(sample(sampler, row, GUMBALL_F32, VOCAB, &options, &token));
    CHECK(token.id >= 0);

    gumball_pool *pool = pool_of(VOCAB, 1);
    gumball_outputs *outputs = outputs_of();
    const int32_t slots[] = {admit(pool, "{\"seed\": 1}", NULL, 0), admit(pool, "{\"seed\": 2}", NULL, 0)};
    gumball_rows logits = rows_of(row, GUMBALL_F32, 2, VOCAB);
    options = batch_of(slots, 2);
    options.masks = masks_of(&word, 2, 0);
    options.masks.stride = (size_t)-1;
    OK(gumball_pool_step(pool, &logits, &options, outputs));
    CHECK(view_of(outputs).tokens[0] == -1 && view_of(outputs).tokens[1] == -1);
    options.masks.present = present;
    OK(gumball_pool_step(pool, &logits, &options, outputs));
    CHECK(view_of(outputs).tokens[0] == -1 && view_of(outputs).tokens[1] >= 0);
}

// The same of a device, and its sizes.
static void on_a_device(const char *name) {
    gumball_device *device = gumball_device_open(name);
    CHECK(device != NULL);
    SIZED(gumball_pool_config, config);
    config.vocab = VOCAB;
    config.device = device;
    config.slots = 2;
    config.rows = 2;
    config.ids = (size_t)1 << 62;
    NONE(gumball_pool_new(&config), GUMBALL_OUT_OF_RANGE, "ids is 4611686018427387904, but must be in 0..=2^20");
    config.ids = 1 << 20;
    config.slots = 2147483647;
    CHECK(gumball_pool_new(&config) == NULL && gumball_error(NULL) == GUMBALL_UNAVAILABLE);
    config.slots = 2;
    config.ids = 0;
    CHECK(gumball_buffer_new(device, (size_t)-1) == NULL && gumball_error(NULL) == GUMBALL_UNAVAILABLE);

    gumball_pool *pool = keep_pool(gumball_pool_new(&config));
    const int32_t slots[] = {admit(pool, "{\"seed\": 1}", NULL, 0), admit(pool, "{\"seed\": 2}", NULL, 0)};
    gumball_outputs *outputs = outputs_of();
    gumball_buffer *buffer = copied_up(device, row, sizeof row);
    const uint32_t word = 1;
    const gumball_rows there = rows_there(buffer, 2, VOCAB);
    gumball_work work = work_of(GUMBALL_WORK_STEP, &there);
    // Bitmasks of no words: of the host, of the device, and none.
    for (int i = 0; i < 3; i++) {
        gumball_batch batch = batch_of(slots, 2);
        batch.masks = masks_of(i == 0 ? &word : NULL, 2, 0);
        OK(gumball_pool_assign(pool, &batch));
        work.masks = masks_of(i == 1 ? (const uint32_t *)there.matrix.data : NULL, 2, i == 2 ? 3 : 0);
        work.masks.memory = GUMBALL_DEVICE;
        OK(gumball_pool_enqueue(pool, &work, 1));
        OK(gumball_pool_fetch(pool, outputs));
        CHECK((view_of(outputs).tokens[0] >= 0) == (i == 2) && (view_of(outputs).tokens[1] >= 0) == (i == 2));
    }
    gumball_device_free(device);
}

int main(int argc, char **argv) {
    bell(row, 2 * VOCAB, 1);
    pools();
    memory();
    chains();
    masks();
    if (argc > 1) {
        on_a_device(argv[1]);
    }
    return verdict("limits");
}
