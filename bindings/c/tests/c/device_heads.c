// Heads in a device's memory: from hidden states there to the tokens of the same heads on the host; what is refused.

#include "heads.h"
#include "rows.h"

enum { VOCAB = 500, WIDTH = 40, ROWS = REQUESTS, CLUSTERS = 50, CAPACITY = 10 };

static float weights[VOCAB * WIDTH], bias[VOCAB], states[2 * ROWS * WIDTH], centroids[CLUSTERS * WIDTH];
static uint32_t clusters[VOCAB];

static gumball_head_config config_of(int32_t kind) { return head_config_of(weights, bias, VOCAB, WIDTH, kind); }

static gumball_head *head_of(int32_t kind) {
    const gumball_head_config config = config_of(kind);
    gumball_head *head = NULL;
    if (kind == GUMBALL_HEAD_CLUSTERED) {
        SIZED(gumball_clustered_options, options);
        options.probes = 12;
        head = gumball_head_clustered_new(&config, &options, clusters, CLUSTERS, CAPACITY, centroids);
    } else {
        head = gumball_head_new(&config);
    }
    CHECK(head != NULL);
    return head;
}

// A pool on the host and one on a device with the same requests in the same slots.
static void pools_of(gumball_device *device, gumball_pool *pools[2], int32_t slots[ROWS]) {
    pools[0] = pool_of(VOCAB, 1);
    pools[1] = device_pool_of(device, VOCAB);
    admit_to_both(pools, slots);
}

// Hidden states in a device's memory, as many as are written there.
static gumball_device_input input_of(gumball_buffer *buffer, size_t rows) {
    SIZED(gumball_device_input, input);
    input.logits = gumball_buffer_address(buffer);
    input.rows = rows;
    input.vocab = WIDTH;
    return input;
}

static void next_states(gumball_buffer *buffer, size_t rows, uint64_t seed) {
    bell(states, rows * WIDTH, seed);
    OK(gumball_buffer_write(buffer, 0, states, rows * WIDTH * sizeof *states));
}

static void tokens_are_the_hosts(gumball_device *device, int32_t kind, int is_borrowed) {
    gumball_head *head = head_of(kind);
    gumball_buffer *there = is_borrowed ? copied_up(device, weights, sizeof weights) : NULL;
    gumball_device_head *copy =
        gumball_device_head_of(device, head, 2 * ROWS, is_borrowed ? gumball_buffer_address(there) : NULL);
    CHECK(copy != NULL);
    gumball_pool *pools[2];
    int32_t slots[ROWS];
    pools_of(device, pools, slots);
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(1);
    gumball_buffer *buffer = gumball_buffer_new(device, sizeof states);
    const gumball_device_input input = input_of(buffer, ROWS);
    OK(gumball_pool_assign(pools[1], slots, ROWS, NULL));
    SIZED(gumball_graph_work, work);
    work.kind = GUMBALL_WORK_STEP;
    work.input = &input;
    work.head = copy;
    const gumball_graph_work *const pieces[] = {&work};
    gumball_graph *graph = gumball_pool_capture_work(pools[1], pieces, 1);
    CHECK(graph != NULL && gumball_graph_steps(graph) == 1);
    for (uint64_t step = 0; step < 2; step++) {
        next_states(buffer, ROWS, 100 + step);
        const gumball_hidden hidden = hidden_states_of(states, ROWS, WIDTH);
        OK(gumball_pool_step_hidden(pools[0], head, &hidden, slots, ROWS, NULL, wanted));
        if (step == 0) {
            OK(gumball_pool_enqueue_hidden(pools[1], copy, &input));
        } else {
            OK(gumball_pool_replay(pools[1], graph));
        }
        OK(gumball_pool_fetch(pools[1], seen));
        CHECK(same_outputs(wanted, seen));
        CHECK(gumball_outputs_is_approximate(seen) == (kind == GUMBALL_HEAD_CLUSTERED));
    }
    SIZED(gumball_head_counts, counts);
    OK(gumball_device_head_counts(copy, &counts));
    CHECK(counts.whole_rows + counts.certified_rows + counts.clustered_rows == 2 * ROWS);
    CHECK((counts.certified_rows > 0) == (kind == GUMBALL_HEAD_CERTIFIED));
    CHECK((counts.clustered_rows > 0) == (kind == GUMBALL_HEAD_CLUSTERED));
    CHECK(counts.weight_reads == 0 && counts.screen_reads == 0 && counts.centroid_reads == 0);
    gumball_graph_free(graph);
    gumball_outputs_free(wanted);
    gumball_outputs_free(seen);
    gumball_pool_free(pools[0]);
    gumball_pool_free(pools[1]);
    gumball_device_head_free(copy);
    gumball_buffer_free(buffer);
    gumball_buffer_free(there);
    gumball_head_free(head);
}

static void drafts_are_verified_from_hidden_states(gumball_device *device) {
    gumball_head *head = head_of(GUMBALL_HEAD_CERTIFIED);
    gumball_device_head *copy = gumball_device_head_of(device, head, 2 * ROWS, NULL);
    gumball_pool *pools[2];
    int32_t slots[ROWS];
    pools_of(device, pools, slots);
    gumball_verification *wanted = gumball_verification_new(0), *seen = gumball_verification_new(1);
    const uint32_t counts[ROWS] = {1, 0, 2, 1};
    const int32_t ids[] = {7, 40, 41, 499};
    gumball_buffer *buffer = gumball_buffer_new(device, sizeof states), *drafted = copied_up(device, ids, sizeof ids);
    const gumball_device_input input = input_of(buffer, 2 * ROWS);
    SIZED(gumball_drafts, given);
    given.counts = counts;
    given.ids = ids;
    SIZED(gumball_device_drafts, drafts);
    drafts.ids = gumball_buffer_address(drafted);
    drafts.len = 4;
    OK(gumball_pool_assign_drafts(pools[1], slots, counts, ROWS, GUMBALL_COUPLED, NULL));
    SIZED(gumball_graph_work, work);
    work.kind = GUMBALL_WORK_VERIFY;
    work.input = &input;
    work.drafts = &drafts;
    work.head = copy;
    const gumball_graph_work *const pieces[] = {&work};
    gumball_graph *graph = gumball_pool_capture_work(pools[1], pieces, 1);
    CHECK(graph != NULL);
    for (uint64_t step = 0; step < 2; step++) {
        next_states(buffer, 2 * ROWS, 200 + step);
        const gumball_hidden hidden = hidden_states_of(states, 2 * ROWS, WIDTH);
        OK(gumball_pool_verify_hidden(pools[0], head, &hidden, slots, ROWS, &given, NULL, wanted));
        if (step == 0) {
            OK(gumball_pool_enqueue_verify_hidden(pools[1], copy, &input, &drafts));
        } else {
            OK(gumball_pool_replay(pools[1], graph));
        }
        OK(gumball_pool_fetch_verification(pools[1], seen));
        CHECK(same_outputs(gumball_verification_outputs(wanted), gumball_verification_outputs(seen)));
        CHECK(memcmp(gumball_verification_accepted(wanted), gumball_verification_accepted(seen), sizeof counts) == 0);
    }
    gumball_graph_free(graph);
    gumball_verification_free(wanted);
    gumball_verification_free(seen);
    gumball_pool_free(pools[0]);
    gumball_pool_free(pools[1]);
    gumball_device_head_free(copy);
    gumball_buffer_free(buffer);
    gumball_buffer_free(drafted);
    gumball_head_free(head);
}

// Over the program's weights there: an exact head reads what lies there then, and so does a fast one.
static void heads_over_weights_that_lie_there(gumball_device *device) {
    static uint16_t narrow[VOCAB * WIDTH], narrow_states[ROWS * WIDTH];
    to_bf16(weights, narrow, VOCAB * WIDTH);
    gumball_buffer *there = copied_up(device, narrow, sizeof narrow);
    gumball_head_config config = config_of(GUMBALL_HEAD_EXACT);
    config.weights = narrow;
    config.dtype = GUMBALL_BF16;
    gumball_head *head = gumball_head_new(&config);
    config.weights = gumball_buffer_address(there);
    gumball_device_head *exact = gumball_device_head_new(device, &config, 0, 0);
    gumball_device_head *fast = gumball_device_head_new(device, &config, ROWS, 1);
    CHECK(head != NULL && exact != NULL && fast != NULL);
    gumball_pool *pools[2];
    int32_t slots[ROWS];
    pools_of(device, pools, slots);
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0);
    gumball_buffer *buffer = gumball_buffer_new(device, sizeof states);
    gumball_device_input input = input_of(buffer, ROWS);
    OK(gumball_pool_assign(pools[1], slots, ROWS, NULL));
    for (uint64_t step = 0; step < 2; step++) {
        narrow[step] ^= 1;
        OK(gumball_buffer_write(there, 0, narrow, sizeof narrow));
        next_states(buffer, ROWS, 300 + step);
        const gumball_hidden hidden = hidden_states_of(states, ROWS, WIDTH);
        OK(gumball_pool_step_hidden(pools[0], head, &hidden, slots, ROWS, NULL, wanted));
        OK(gumball_pool_enqueue_hidden(pools[1], exact, &input));
        OK(gumball_pool_fetch(pools[1], seen));
        CHECK(same_outputs(wanted, seen));
    }
    gumball_pool_free(pools[0]);
    gumball_pool_free(pools[1]);

    to_bf16(states, narrow_states, ROWS * WIDTH);
    OK(gumball_buffer_write(buffer, 0, narrow_states, sizeof narrow_states));
    input.dtype = GUMBALL_BF16;
    pools_of(device, pools, slots);
    OK(gumball_pool_assign(pools[1], slots, ROWS, NULL));
    OK(gumball_pool_enqueue_hidden(pools[1], fast, &input));
    OK(gumball_pool_fetch(pools[1], seen));
    CHECK(gumball_outputs_tokens(seen)[0] >= 0 && gumball_outputs_is_approximate(seen) == 0);
    gumball_pool_free(pools[0]);
    gumball_pool_free(pools[1]);
    gumball_outputs_free(wanted);
    gumball_outputs_free(seen);
    gumball_device_head_free(exact);
    gumball_device_head_free(fast);
    gumball_head_free(head);
    gumball_buffer_free(buffer);
    gumball_buffer_free(there);
}

static void what_is_refused(gumball_device *device, const char *name) {
    gumball_head *head = head_of(GUMBALL_HEAD_EXACT);
    gumball_head_config config = config_of(GUMBALL_HEAD_CERTIFIED);
    NONE(gumball_device_head_new(device, &config, 0, 0), GUMBALL_OUT_OF_RANGE,
         "kind is 1, but must be GUMBALL_HEAD_EXACT; gumball_device_head_of copies heads of other kinds");
    config.kind = GUMBALL_HEAD_EXACT;
    config.most_rows = 2;
    CHECK(gumball_device_head_new(device, &config, 0, 0) == NULL && gumball_error_code() == GUMBALL_CONFLICT);
    config.most_rows = 0;
    config.weights = NULL;
    NONE(gumball_device_head_new(device, &config, 0, 0), GUMBALL_OUT_OF_RANGE,
         "weights is NULL, but must be a pointer to something");
    gumball_buffer *there = copied_up(device, weights, sizeof weights);
    config.weights = gumball_buffer_address(there);
    NONE(gumball_device_head_new(device, &config, 0, 1), GUMBALL_OUT_OF_RANGE,
         "weights is f32, but must be bf16 or f16, for a fast head");
    config.width = 1 << 17;
    NONE(gumball_device_head_new(device, &config, 0, 0), GUMBALL_OUT_OF_RANGE,
         "width is 131072, but must be in 1..=2^16");
    CHECK(gumball_device_head_new(NULL, &config, 0, 0) == NULL &&
          gumball_device_head_of(device, NULL, 0, NULL) == NULL);
    CHECK(gumball_device_head_of(device, head, (size_t)1 << 31, NULL) == NULL);
    CHECK(gumball_error_code() == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "rows") == 0);

    gumball_device *another = gumball_device_open(name);
    gumball_device_head *small = gumball_device_head_of(device, head, 2, NULL);
    gumball_device_head *elsewhere = gumball_device_head_of(another, head, ROWS, NULL);
    gumball_pool *pools[2];
    int32_t slots[ROWS];
    pools_of(device, pools, slots);
    gumball_pool *smaller = device_pool_of(device, VOCAB - 1);
    gumball_buffer *buffer = gumball_buffer_new(device, sizeof states);
    next_states(buffer, 2 * ROWS, 5);
    gumball_device_input input = input_of(buffer, ROWS);
    OK(gumball_pool_assign(pools[1], slots, ROWS, NULL));
    REFUSED(gumball_pool_enqueue_hidden(pools[1], elsewhere, &input), GUMBALL_OUT_OF_RANGE,
            "head is made with another gumball_device, but must be one that was made with the gumball_device of the "
            "pool");
    REFUSED(gumball_pool_enqueue_hidden(pools[1], small, &input), GUMBALL_LENGTH,
            "hidden has length 4, but must have at most 2 rows");
    CHECK(gumball_pool_enqueue_hidden(pools[0], small, &input) == GUMBALL_UNAVAILABLE);
    CHECK(gumball_pool_enqueue_hidden(pools[1], NULL, &input) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_enqueue_hidden(pools[1], small, NULL) == GUMBALL_OUT_OF_RANGE);
    input.vocab = WIDTH - 1;
    input.rows = 2;
    OK(gumball_pool_assign(pools[1], slots, 2, NULL));
    REFUSED(gumball_pool_enqueue_hidden(pools[1], small, &input), GUMBALL_LENGTH,
            "hidden has length 39, but must have 40 elements each, as a row of weights");
    input.vocab = WIDTH;
    REFUSED(gumball_pool_enqueue_hidden(smaller, small, &input), GUMBALL_LENGTH,
            "head has length 500, but must have 499 ids, the pool's vocabulary");
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pools[1], slots[0], &state));
    CHECK(state.output_len == 0);
    const char *reason = NULL;
    OK(gumball_pool_needs_whole_row(pools[1], slots[3], 0, 0, &reason));
    CHECK(reason != NULL && strcmp(reason, "top_p") == 0);
    // The pool's outputs collect kept sets, and no filter bounds that of a plain request.
    OK(gumball_pool_needs_whole_row(pools[1], slots[0], 0, 0, &reason));
    CHECK(reason != NULL && strcmp(reason, "kept") == 0);
    gumball_device_head_free(NULL);
    gumball_device_head_free(small);
    gumball_device_head_free(elsewhere);
    gumball_pool_free(pools[0]);
    gumball_pool_free(pools[1]);
    gumball_pool_free(smaller);
    gumball_buffer_free(buffer);
    gumball_buffer_free(there);
    gumball_head_free(head);
    gumball_device_free(another);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "cuda";
    bell(weights, VOCAB * WIDTH, 1);
    bell(bias, VOCAB, 2);
    bell(centroids, CLUSTERS * WIDTH, 3);
    for (uint32_t id = 0; id < VOCAB; id++) {
        clusters[id] = id * 7 % VOCAB;
    }
    gumball_device *device = gumball_device_open(name);
    CHECK(device != NULL);
    for (int32_t kind = GUMBALL_HEAD_EXACT; kind <= GUMBALL_HEAD_CLUSTERED; kind++) {
        tokens_are_the_hosts(device, kind, kind == GUMBALL_HEAD_EXACT);
    }
    drafts_are_verified_from_hidden_states(device);
    heads_over_weights_that_lie_there(device);
    what_is_refused(device, name);
    gumball_device_free(device);
    return verdict("device_heads");
}
