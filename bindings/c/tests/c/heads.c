// Heads: each call from hidden states, descriptions of heads, clusters, files, refusals: heads FILE.

#include "heads.h"
#include "rows.h"

enum { VOCAB = 504, WIDTH = 35, CAPACITY = 7, CLUSTERS = VOCAB / CAPACITY, ROWS = 2 * REQUESTS };

static float weights[VOCAB * WIDTH], bias[VOCAB], centroids[CLUSTERS * WIDTH];
static float states[ROWS * WIDTH], logits[ROWS * VOCAB];
static uint16_t narrow[VOCAB * WIDTH];
static uint32_t ids[VOCAB];
static const uint32_t special[] = {500, 3, 3, 77};

static gumball_head_config config_of(gumball_head_kind kind) {
    return head_config_of(weights, bias, VOCAB, WIDTH, kind);
}

static gumball_head_config without_screen(void) {
    gumball_head_config config = config_of(GUMBALL_HEAD_AUTO);
    config.no_screen = 1;
    return config;
}

static gumball_head_config clustered(void) {
    gumball_head_config config = config_of(GUMBALL_HEAD_CLUSTERED);
    config.probes = 5;
    config.special_ids = special;
    config.special_ids_len = 4;
    return config;
}

// With clusters of the program's own.
static gumball_head_config given(void) {
    gumball_head_config config = clustered();
    config.vocab_maps = ids;
    config.centroids = centroids;
    config.clusters = CLUSTERS;
    config.capacity = CAPACITY;
    return config;
}

static gumball_head *head_of(const gumball_head_config config) { return keep_head(gumball_head_new(&config)); }

static void calls_take_hidden_states(gumball_head *head) {
    const gumball_matrix hidden = matrix_of(states, GUMBALL_F32, ROWS, WIDTH);
    OK(gumball_head_logits(head, &hidden, logits));
    calls_are_those_of_the_logits(head, states, WIDTH, logits, VOCAB, 0);
}

static void what_is_known_of_a_head(void) {
    gumball_head *head = head_of(without_screen());
    gumball_head_info info = info_of(head);
    CHECK(info.vocab == VOCAB && info.width == WIDTH && info.dtype == GUMBALL_F32 && info.memory == GUMBALL_HOST);
    CHECK(info.kind == GUMBALL_HEAD_AUTO && info.screen_bytes == 0 && info.most_rows == 0);
    CHECK(info.unscreened == NULL && info.vocab_maps == NULL && info.clusters == 0 && info.is_approximate == 0);

    to_bf16(weights, narrow, VOCAB * WIDTH);
    gumball_head_config config = config_of(GUMBALL_HEAD_AUTO);
    config.weights.data = narrow;
    config.weights.dtype = GUMBALL_BF16;
    bias[7] = INFINITY;
    head = head_of(config);
    info = info_of(head);
    CHECK(info.dtype == GUMBALL_BF16 && info.kind == GUMBALL_HEAD_AUTO && info.most_rows == 0);
    CHECK(info.screen_bytes > VOCAB * WIDTH && info.unscreened_len == 1 && info.unscreened[0] == 7);
    bias[7] = 0.0f;

    head = head_of(given());
    info = info_of(head);
    CHECK(info.kind == GUMBALL_HEAD_CLUSTERED && info.is_approximate == 1 && info.most_rows == SIZE_MAX);
    CHECK(info.clusters == CLUSTERS && info.capacity == CAPACITY && info.probes == 5);
    CHECK(info.centroid_bytes == sizeof centroids && memcmp(info.centroids, centroids, sizeof centroids) == 0);
    CHECK(memcmp(info.vocab_maps, ids, sizeof ids) == 0);
    for (uint32_t id = 0; id < VOCAB; id++) {
        CHECK(ids[info.places[id]] == id);
    }
    CHECK(info.special_ids_len == 3 && info.special_ids[0] == 3 && info.special_ids[2] == 500);
    OK(gumball_head_set_probes(head, 13));
    CHECK(info_of(head).probes == 13 && info_of(head).most_rows == 16);
}

// With all of its clusters probed a head is the auto one; with few, few logits are computed.
static void calls_probe_clusters(gumball_head *head) {
    const gumball_head_info info = info_of(head);
    gumball_pool *pool = pool_of(VOCAB, 1);
    gumball_outputs *outputs = outputs_of();
    const int32_t slot = admit(pool, requests[0], NULL, 0);
    const gumball_rows one = hidden_of(head, states, 1, WIDTH);
    OK(take_step(pool, &one, &slot, 1, outputs));
    const gumball_counts counts = counts_of(pool);
    CHECK(counts.clustered_rows == 1 && counts.clustered_logits >= info.probes * info.capacity);
    CHECK(counts.clustered_logits <= info.probes * info.capacity + 3);
    OK(gumball_head_set_probes(head, info.clusters));
    const gumball_matrix hidden = matrix_of(states, GUMBALL_F32, ROWS, WIDTH);
    OK(gumball_head_logits(head, &hidden, logits));
    calls_are_those_of_the_logits(head, states, WIDTH, logits, VOCAB, 1);
}

// Clusters of 14 places with 7 ids each, and padding, are the clusters without padding.
static void maps_are_padded(void) {
    static uint32_t padded[CLUSTERS * 2 * CAPACITY];
    for (size_t place = 0; place < CLUSTERS * 2 * CAPACITY; place++) {
        const size_t column = place % (2 * CAPACITY);
        padded[place] = column < CAPACITY ? ids[place / (2 * CAPACITY) * CAPACITY + column] : UINT32_MAX;
    }
    gumball_head_config config = given();
    config.vocab_maps = padded;
    config.capacity = 2 * CAPACITY;
    gumball_head *head = head_of(config);
    CHECK(info_of(head).clusters == CLUSTERS && memcmp(info_of(head).vocab_maps, padded, sizeof padded) == 0);
    same_tokens(head, head_of(given()), VOCAB, states, WIDTH);
}

typedef struct {
    size_t calls, last, stop_at;
} listener;

static int32_t listen(void *user, size_t iteration, size_t iterations, size_t done, size_t of) {
    listener *heard = (listener *)user;
    heard->calls += 1;
    CHECK(iteration < iterations && iterations == 3 && done <= of && of == VOCAB && iteration >= heard->last);
    heard->last = iteration;
    return heard->calls == heard->stop_at;
}

static void clusters_are_built(void) {
    gumball_head_config config = clustered();
    listener heard = {0, 0, 0};
    config.capacity = 10;
    config.iterations = 3;
    config.progress = listen;
    config.user = &heard;
    gumball_head *head = head_of(config);
    CHECK(heard.calls >= 3);
    // 50 clusters of 10 ids, and one of 4.
    CHECK(info_of(head).clusters == 51 && info_of(head).capacity == 10 && info_of(head).probes == 5);
    calls_probe_clusters(head);
    // 32 clusters of 16, of which an eighth is probed.
    head = head_of(config_of(GUMBALL_HEAD_CLUSTERED));
    CHECK(info_of(head).capacity == 16 && info_of(head).clusters == 32 && info_of(head).probes == 4);
    heard.calls = heard.last = 0;
    heard.stop_at = 2;
    NONE(gumball_head_new(&config), GUMBALL_UNAVAILABLE, "no clusters: the caller stopped the build");
    CHECK(heard.calls == 2);
}

static void rows_are_permuted_in_place(void) {
    static float moved[VOCAB * WIDTH];
    memcpy(moved, weights, sizeof moved);
    gumball_head_config config = given();
    config.weights.data = moved;
    config.is_in_place = 1;
    gumball_head *head = gumball_head_new(&config);
    for (size_t place = 0; place < VOCAB; place++) {
        CHECK(memcmp(moved + place * WIDTH, weights + ids[place] * WIDTH, WIDTH * sizeof *moved) == 0);
    }
    same_tokens(head, head_of(given()), VOCAB, states, WIDTH);
    gumball_head_free(head);
    // Nothing moves where something is wrong.
    memcpy(moved, weights, sizeof moved);
    config.probes = CLUSTERS + 1;
    CHECK(gumball_head_new(&config) == NULL && memcmp(moved, weights, sizeof moved) == 0);
    config.is_in_place = 2;
    NONE(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE, "is_in_place is 2, but must be 0 or 1");
}

// Changes the last byte of a file.
static void spoil(const char *path) {
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL && fseek(file, -1, SEEK_END) == 0);
    const int last = fgetc(file);
    CHECK(fseek(file, -1, SEEK_END) == 0 && fputc(last ^ 1, file) != EOF && fclose(file) == 0);
}

static void files(const char *path) {
    gumball_head_config config = config_of(GUMBALL_HEAD_AUTO);
    gumball_head *made = head_of(config), *plain = head_of(without_screen());
    OK(gumball_head_save(made, path, NULL));
    FAILS(gumball_head_save(plain, path, NULL), GUMBALL_OUT_OF_RANGE, "head");
    FAILS(gumball_head_save(made, NULL, NULL), GUMBALL_OUT_OF_RANGE, "path");
    CHECK(gumball_head_save(made, "/no/such/folder/x", "w") == GUMBALL_UNAVAILABLE);
    CHECK(gumball_head_save(made, "/dev", "w") == GUMBALL_UNAVAILABLE);
    config.file = path;
    gumball_head *read = gumball_head_new(&config);
    same_tokens(made, read, VOCAB, states, WIDTH);
    gumball_head_free(read);
    REFUSED_WITH(wrong.no_screen = 1, GUMBALL_CONFLICT, "file")
    REFUSED_WITH(wrong.bias = NULL, GUMBALL_OUT_OF_RANGE, "file")
    REFUSED_WITH(wrong.file = "/no/such/file", GUMBALL_UNAVAILABLE, "file of a head")
    spoil(path);
    NOTHING(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE, "file");
    CHECK(strstr(gumball_error_message(), "damaged or changed") != NULL);

    made = head_of(given());
    OK(gumball_head_save(made, path, NULL));
    config = clustered();
    config.file = path;
    same_tokens(made, head_of(config), VOCAB, states, WIDTH);
    REFUSED_WITH(wrong.iterations = 1, GUMBALL_CONFLICT, "iterations")
    REFUSED_WITH(wrong.vocab_maps = ids, GUMBALL_CONFLICT, "vocab_maps")
    remove(path);
}

static void reasons(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const char *reason = "none";
    const char *const wanted[REQUESTS] = {NULL, NULL, NULL, "top_p"};
    for (int i = 0; i < REQUESTS; i++) {
        int32_t slot = admit(pool, requests[i], NULL, 0);
        OK(gumball_pool_needs_whole_row(pool, slot, 0, &reason));
        CHECK(wanted[i] == NULL ? reason == NULL : reason != NULL && strcmp(reason, wanted[i]) == 0);
        OK(gumball_pool_needs_whole_row(pool, slot, 1, &reason));
        CHECK(reason != NULL && strcmp(reason, "hook") == 0);
    }
    CHECK(gumball_pool_needs_whole_row(pool, 99, 0, &reason) == GUMBALL_OUT_OF_RANGE);
    pool = keeping_pool_of(VOCAB, 1);
    OK(gumball_pool_needs_whole_row(pool, admit(pool, requests[0], NULL, 0), 0, &reason));
    CHECK(strcmp(reason, "kept") == 0);
}

// Configs, each with one thing wrong.
static void what_is_refused_of_heads(void) {
    gumball_head_config config = config_of(GUMBALL_HEAD_AUTO);
    REFUSED_WITH(wrong.most_rows = 1, GUMBALL_CONFLICT, "most_rows")
    REFUSED_WITH(wrong.probes = 1, GUMBALL_CONFLICT, "probes")
    REFUSED_WITH(wrong.iterations = 1, GUMBALL_CONFLICT, "iterations")
    REFUSED_WITH(wrong.fast = 1, GUMBALL_CONFLICT, "fast")
    REFUSED_WITH(wrong.weights.rows = 0, GUMBALL_OUT_OF_RANGE, "weights.rows")
    REFUSED_WITH(wrong.weights.stride = WIDTH + 1, GUMBALL_OUT_OF_RANGE, "stride")
    REFUSED_WITH(wrong.weights.data = NULL, GUMBALL_OUT_OF_RANGE, "weights")
    REFUSED_WITH(wrong.logit_scale = -1.0f, GUMBALL_OUT_OF_RANGE, "logit_scale")
    REFUSED_WITH(wrong.level = "mmx", GUMBALL_UNKNOWN, "level")
    memset(&config.kind, 0x7F, sizeof config.kind);
    NOTHING(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE, "kind");
    CHECK(gumball_head_new(NULL) == NULL && gumball_head_describe(NULL, NULL) == GUMBALL_OUT_OF_RANGE);

    config = given();
    REFUSED_WITH(wrong.no_screen = 1, GUMBALL_CONFLICT, "no_screen")
    REFUSED_WITH(wrong.vocab_maps = NULL, GUMBALL_CONFLICT, "centroids")
    REFUSED_WITH(wrong.progress = listen, GUMBALL_CONFLICT, "progress")
    REFUSED_WITH(wrong.centroids = NULL, GUMBALL_OUT_OF_RANGE, "centroids")
    REFUSED_WITH(wrong.clusters = CLUSTERS - 1, GUMBALL_OUT_OF_RANGE, "vocab_maps")
    REFUSED_WITH(wrong.clusters = SIZE_MAX, GUMBALL_OUT_OF_RANGE, "clusters")
    REFUSED_WITH(wrong.capacity = 0, GUMBALL_OUT_OF_RANGE, "capacity")
    REFUSED_WITH(wrong.probes = 73, GUMBALL_OUT_OF_RANGE, "probes")
    REFUSED_WITH(wrong.special_ids = NULL, GUMBALL_OUT_OF_RANGE, "special_ids")
    // A length beyond the number of ids is refused before ids are copied.
    REFUSED_WITH(wrong.special_ids_len = 2147483647, GUMBALL_OUT_OF_RANGE, "special_ids_len")
    const uint32_t first = ids[0];
    ids[0] = 504;
    NONE(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE,
         "vocab_maps is 504 in cluster 0, but must be ids in 0..504, or -1: padding");
    ids[0] = first;
    CHECK(gumball_head_set_probes(NULL, 1) == GUMBALL_OUT_OF_RANGE);
}

static void what_is_refused_of_calls(void) {
    gumball_head *head = head_of(config_of(GUMBALL_HEAD_AUTO));
    gumball_pool *pool = pool_of(VOCAB, 1);
    gumball_outputs *outputs = outputs_of();
    const int32_t slot = admit(pool, requests[0], NULL, 0), padding = -1;
    gumball_rows hidden = hidden_of(NULL, states, 1, WIDTH);
    FAILS(take_step(pool, &hidden, &slot, 1, outputs), GUMBALL_OUT_OF_RANGE, "head");
    hidden.head = head;
    hidden.what = GUMBALL_LOGITS;
    FAILS(take_step(pool, &hidden, &slot, 1, outputs), GUMBALL_CONFLICT, "head");
    gumball_operators *operators = gumball_operators_new(NULL, 1, NULL);
    FAILS(gumball_operators_softmax(operators, &hidden, 1.0f, NULL, &hidden.matrix, NULL), GUMBALL_CONFLICT, "head");
    gumball_operators_free(operators);
    hidden.what = GUMBALL_HIDDEN;
    hidden.matrix.width = WIDTH - 1;
    REFUSED(take_step(pool, &hidden, &slot, 1, outputs), GUMBALL_LENGTH,
            "hidden has length 34, but must have 35 elements each, as a row of weights");
    gumball_matrix strided = matrix_of(states, GUMBALL_F32, 2, WIDTH);
    strided.stride = WIDTH - 1;
    REFUSED(gumball_head_logits(head, &strided, logits), GUMBALL_OUT_OF_RANGE,
            "stride is 34, but must be at least 35, inside memory");
    strided.memory = GUMBALL_DEVICE;
    FAILS(gumball_head_logits(head, &strided, logits), GUMBALL_OUT_OF_RANGE, "memory");
    hidden.matrix.width = WIDTH;
    SIZED(gumball_counts, counts);
    FAILS(gumball_head_counts(head, &counts), GUMBALL_OUT_OF_RANGE, "head");
    // Padding's hidden state is not read, and nothing has moved.
    OK(take_step(pool, &hidden, &padding, 1, outputs));
    CHECK(view_of(outputs).tokens[0] == -1 && state_of(pool, slot).output_len == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    bell(weights, VOCAB * WIDTH, 1);
    bell(bias, VOCAB, 2);
    bell(states, ROWS * WIDTH, 3);
    bell(centroids, CLUSTERS * WIDTH, 4);
    for (uint32_t id = 0; id < VOCAB; id++) {
        ids[id] = id * 11 % VOCAB;
    }
    what_is_known_of_a_head();
    calls_take_hidden_states(head_of(without_screen()));
    calls_take_hidden_states(head_of(config_of(GUMBALL_HEAD_AUTO)));
    calls_probe_clusters(head_of(given()));
    maps_are_padded();
    clusters_are_built();
    rows_are_permuted_in_place();
    reasons();
    what_is_refused_of_heads();
    what_is_refused_of_calls();
    files(argv[1]);
    return verdict("heads");
}
