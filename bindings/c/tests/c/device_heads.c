// Heads in a device's memory: from hidden states there to the tokens of the same heads on the host; what is refused.

#include "heads.h"
#include "rows.h"

enum { VOCAB = 500, WIDTH = 40, ROWS = REQUESTS, SCREENED = 2, CLUSTERS = 50, CAPACITY = 10 };

static float weights[VOCAB * WIDTH], bias[VOCAB], states[2 * ROWS * WIDTH], centroids[CLUSTERS * WIDTH];
static uint32_t clusters[VOCAB];

static gumball_head *head_of(gumball_head_kind kind, uint64_t no_screen) {
    gumball_head_config config = head_config_of(weights, bias, VOCAB, WIDTH, kind);
    config.no_screen = no_screen;
    if (kind == GUMBALL_HEAD_CLUSTERED) {
        config.probes = 12;
        config.vocab_maps = clusters;
        config.centroids = centroids;
        config.clusters = CLUSTERS;
        config.capacity = CAPACITY;
    }
    return keep_head(gumball_head_new(&config));
}

// A pool on the host and one on a device with the same requests in the same slots.
static void pools_of(gumball_device *device, gumball_pool *pools[2], int32_t slots[ROWS]) {
    pools[0] = pool_of(VOCAB, 1);
    pools[1] = device_pool_of(device, VOCAB);
    admit_to_both(pools, slots);
}

// Hidden states in a device's memory, as many as are written there.
static gumball_rows states_there(const gumball_head *head, gumball_buffer *buffer, size_t rows) {
    gumball_rows there = rows_there(buffer, rows, WIDTH);
    there.what = GUMBALL_HIDDEN;
    there.head = head;
    return there;
}

static void next_states(gumball_buffer *buffer, size_t rows, uint64_t seed) {
    bell(states, rows * WIDTH, seed);
    OK(gumball_buffer_write(buffer, 0, states, rows * WIDTH * sizeof *states));
}

// Steps, enqueued and captured, beside direct calls of the host.
static void tokens_are_the_hosts(gumball_device *device, const char *name, gumball_head *head, int is_borrowed) {
    const gumball_head_info info = info_of(head);
    gumball_buffer *there = is_borrowed ? copied_up(device, weights, sizeof weights) : NULL;
    const gumball_matrix borrowed =
        is_borrowed ? rows_there(there, VOCAB, WIDTH).matrix : matrix_of(NULL, GUMBALL_F32, 0, 0);
    gumball_head *copy = keep_head(gumball_head_copy(head, device, 2 * ROWS, 0, is_borrowed ? &borrowed : NULL));
    CHECK(info_of(copy).memory == GUMBALL_DEVICE && info_of(copy).vocab == VOCAB);
    gumball_pool *pools[2];
    int32_t slots[ROWS];
    pools_of(device, pools, slots);
    gumball_outputs *wanted = outputs_of(), *seen = outputs_of();
    gumball_buffer *buffer = keep_buffer(gumball_buffer_new(device, sizeof states));
    OK(assign(pools[1], slots, ROWS));
    const gumball_rows hidden_there = states_there(copy, buffer, ROWS);
    gumball_work work = work_of(GUMBALL_WORK_STEP, &hidden_there);
    gumball_graph *graph = keep_graph(gumball_pool_capture(pools[1], &work, 1));
    for (uint64_t turn = 0; turn < 2; turn++) {
        // The first and the last request need all logits. In a step of few rows with such a request, all rows are
        // computed whole.
        const size_t rows = turn == 0 ? SCREENED : ROWS;
        const int32_t *const of_rows = turn == 0 ? slots + 1 : slots;
        next_states(buffer, rows, 100 + turn);
        const gumball_rows hidden = hidden_of(head, states, rows, WIDTH), some = states_there(copy, buffer, rows);
        const gumball_work step = work_of(GUMBALL_WORK_STEP, &some);
        OK(take_step(pools[0], &hidden, of_rows, rows, wanted));
        OK(assign(pools[1], of_rows, rows));
        OK(turn == 0 ? gumball_pool_enqueue(pools[1], &step, 1) : gumball_pool_replay(pools[1], graph));
        OK(gumball_pool_fetch(pools[1], seen));
        CHECK(same_outputs(wanted, seen));
        CHECK(view_of(seen).is_approximate == info.is_approximate);
    }
    SIZED(gumball_counts, counted);
    OK(gumball_head_counts(copy, &counted));
    CHECK(counted.whole_rows + counted.certified_rows + counted.clustered_rows == SCREENED + ROWS);
    // On a GPU no screen of so small a head would pay.
    const int screens = info.screen_bytes > 0 && strcmp(name, "emulated") == 0;
    CHECK(counted.certified_rows == (screens ? SCREENED : 0));
    CHECK((counted.clustered_rows > 0) == (info.kind == GUMBALL_HEAD_CLUSTERED) && counted.weight_reads == 0);
}

// Over the program's weights there a head reads what lies there then, and so does a fast one.
static void heads_over_weights_that_lie_there(gumball_device *device) {
    static uint16_t narrow[VOCAB * WIDTH], narrow_states[ROWS * WIDTH];
    to_bf16(weights, narrow, VOCAB * WIDTH);
    gumball_buffer *there = copied_up(device, narrow, sizeof narrow);
    gumball_head_config config = head_config_of(weights, bias, VOCAB, WIDTH, GUMBALL_HEAD_AUTO);
    config.weights = matrix_of(narrow, GUMBALL_BF16, VOCAB, WIDTH);
    gumball_head *head = keep_head(gumball_head_new(&config));
    config.weights.data = gumball_buffer_address(there);
    config.weights.memory = GUMBALL_DEVICE;
    config.device = device;
    gumball_head *plain = keep_head(gumball_head_new(&config));
    config.fast = 1;
    config.rows = ROWS;
    gumball_head *fast = keep_head(gumball_head_new(&config));
    gumball_pool *pools[2];
    int32_t slots[ROWS];
    pools_of(device, pools, slots);
    gumball_outputs *wanted = outputs_of(), *seen = outputs_of();
    gumball_buffer *buffer = keep_buffer(gumball_buffer_new(device, sizeof states));
    gumball_rows hidden_there = states_there(plain, buffer, ROWS);
    OK(assign(pools[1], slots, ROWS));
    narrow[0] ^= 1;
    OK(gumball_buffer_write(there, 0, narrow, sizeof narrow));
    next_states(buffer, ROWS, 300);
    const gumball_rows hidden = hidden_of(head, states, ROWS, WIDTH);
    OK(take_step(pools[0], &hidden, slots, ROWS, wanted));
    OK(enqueue(pools[1], &hidden_there));
    OK(gumball_pool_fetch(pools[1], seen));
    CHECK(same_outputs(wanted, seen));
    to_bf16(states, narrow_states, ROWS * WIDTH);
    OK(gumball_buffer_write(buffer, 0, narrow_states, sizeof narrow_states));
    hidden_there.matrix.dtype = GUMBALL_BF16;
    hidden_there.head = fast;
    OK(enqueue(pools[1], &hidden_there));
    OK(gumball_pool_fetch(pools[1], seen));
    CHECK(view_of(seen).tokens[0] >= 0 && view_of(seen).is_approximate == 0);

    // A clustered head that probes all clusters is fast as well, and gives the same tokens.
    gumball_head_config clustered = head_config_of(weights, bias, VOCAB, WIDTH, GUMBALL_HEAD_CLUSTERED);
    clustered.weights = matrix_of(narrow, GUMBALL_BF16, VOCAB, WIDTH);
    clustered.iterations = 1;
    gumball_head *on_host = keep_head(gumball_head_new(&clustered));
    OK(gumball_head_set_probes(on_host, info_of(on_host).clusters));
    const gumball_head *heads[2] = {fast, keep_head(gumball_head_copy(on_host, device, ROWS, 1, NULL))};
    gumball_outputs *of[2] = {wanted, seen};
    for (int i = 0; i < 2; i++) {
        pools_of(device, pools, slots);
        OK(assign(pools[1], slots, ROWS));
        hidden_there.head = heads[i];
        OK(enqueue(pools[1], &hidden_there));
        OK(gumball_pool_fetch(pools[1], of[i]));
        CHECK(view_of(of[i]).is_approximate == (uint64_t)i);
    }
    CHECK(memcmp(view_of(wanted).tokens, view_of(seen).tokens, ROWS * sizeof(int32_t)) == 0);
}

static void what_is_refused(gumball_device *device, const char *name) {
    gumball_head *head = head_of(GUMBALL_HEAD_AUTO, 0);
    gumball_buffer *there = copied_up(device, weights, sizeof weights);
    gumball_head_config config = head_config_of(weights, bias, VOCAB, WIDTH, GUMBALL_HEAD_AUTO);
    config.weights = rows_there(there, VOCAB, WIDTH).matrix;
    config.device = device;
    REFUSED_WITH(wrong.kind = GUMBALL_HEAD_CLUSTERED, GUMBALL_OUT_OF_RANGE, "kind")
    REFUSED_WITH(wrong.no_screen = 1, GUMBALL_CONFLICT, "no_screen")
    REFUSED_WITH(wrong.most_rows = 2, GUMBALL_CONFLICT, "most_rows")
    REFUSED_WITH(wrong.device = NULL, GUMBALL_OUT_OF_RANGE, "device")
    REFUSED_WITH(wrong.fast = 1, GUMBALL_OUT_OF_RANGE, "weights")
    REFUSED_WITH(wrong.weights.data = NULL, GUMBALL_OUT_OF_RANGE, "weights")
    const gumball_matrix here = matrix_of(weights, GUMBALL_F32, VOCAB, WIDTH);
    NOTHING(gumball_head_copy(head, device, 0, 0, &here), GUMBALL_OUT_OF_RANGE, "memory");
    NOTHING(gumball_head_copy(NULL, device, 0, 0, NULL), GUMBALL_OUT_OF_RANGE, "head");
    NOTHING(gumball_head_copy(head, NULL, 0, 0, NULL), GUMBALL_OUT_OF_RANGE, "device");
    NOTHING(gumball_head_copy(head, device, (size_t)1 << 31, 0, NULL), GUMBALL_OUT_OF_RANGE, "rows");
    // What a fast head cannot be is told before anything is copied: so many rows would be refused then.
    NOTHING(gumball_head_copy(head, device, (size_t)1 << 31, 1, NULL), GUMBALL_OUT_OF_RANGE, "weights");

    gumball_device *another = gumball_device_open(name);
    gumball_head *elsewhere = keep_head(gumball_head_copy(head, another, ROWS, 0, NULL));
    CHECK(gumball_head_copy(elsewhere, device, 2, 0, NULL) == NULL);
    gumball_pool *pools[2];
    int32_t slots[ROWS];
    pools_of(device, pools, slots);
    gumball_outputs *outputs = outputs_of();
    gumball_buffer *buffer = keep_buffer(gumball_buffer_new(device, sizeof states));
    next_states(buffer, 2 * ROWS, 5);
    gumball_rows hidden = states_there(elsewhere, buffer, ROWS);
    OK(assign(pools[1], slots, ROWS));
    REFUSED(enqueue(pools[1], &hidden), GUMBALL_OUT_OF_RANGE,
            "head is made with another gumball_device, but must be one that was made with the gumball_device of the "
            "pool");
    // A head of the host is not for a pool on a device.
    const gumball_rows of_host = hidden_of(head, states, ROWS, WIDTH);
    CHECK(take_step(pools[1], &of_host, slots, ROWS, outputs) == GUMBALL_UNAVAILABLE);
    CHECK(state_of(pools[1], slots[0]).output_len == 0);
    const char *reason = NULL;
    OK(gumball_pool_needs_whole_row(pools[1], slots[3], 0, &reason));
    CHECK(reason != NULL && strcmp(reason, "top_p") == 0);
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
    tokens_are_the_hosts(device, name, head_of(GUMBALL_HEAD_AUTO, 1), 1);
    tokens_are_the_hosts(device, name, head_of(GUMBALL_HEAD_AUTO, 0), 0);
    tokens_are_the_hosts(device, name, head_of(GUMBALL_HEAD_CLUSTERED, 0), 0);
    heads_over_weights_that_lie_there(device);
    what_is_refused(device, name);
    gumball_device_free(device);
    return verdict("device_heads");
}
