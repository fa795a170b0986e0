// Clustered heads: calls with all clusters probed, whose results are the exact head's; clusters that are given, built and read; refusals.

#include "heads.h"
#include "rows.h"

enum { VOCAB = 504, WIDTH = 35, CAPACITY = 7, CLUSTERS = VOCAB / CAPACITY, ROWS = 2 * REQUESTS };

static float weights[VOCAB * WIDTH], bias[VOCAB], centroids[CLUSTERS * WIDTH];
static float states[ROWS * WIDTH], logits[ROWS * VOCAB];
static uint32_t ids[VOCAB];
static const uint32_t special[] = {500, 3, 3, 77};

static gumball_head_config config_of(int32_t kind) { return head_config_of(weights, bias, VOCAB, WIDTH, kind); }

static gumball_clustered_options options_of(size_t probes) {
    SIZED(gumball_clustered_options, options);
    options.probes = probes;
    options.special_ids = special;
    options.special_ids_len = 4;
    return options;
}

static gumball_head *given(size_t probes) {
    const gumball_head_config config = config_of(GUMBALL_HEAD_CLUSTERED);
    const gumball_clustered_options options = options_of(probes);
    gumball_head *head = gumball_head_clustered_new(&config, &options, ids, CLUSTERS, CAPACITY, centroids);
    CHECK(head != NULL);
    return head;
}

static gumball_head_info info_of(const gumball_head *head) {
    SIZED(gumball_head_info, info);
    OK(gumball_head_describe(head, &info));
    return info;
}

// With all of its clusters probed a head is the exact one; with few, few logits are computed.
static void calls_probe_clusters(gumball_head *head) {
    const gumball_hidden hidden = hidden_states_of(states, ROWS, WIDTH);
    const gumball_head_info info = info_of(head);
    gumball_pool *pool = pool_of(VOCAB, 1);
    gumball_outputs *outputs = gumball_outputs_new(0);
    const int32_t slot = admit(pool, requests[0], NULL, 0);
    const gumball_hidden one = hidden_states_of(states, 1, WIDTH);
    OK(gumball_pool_step_hidden(pool, head, &one, &slot, 1, NULL, outputs));
    SIZED(gumball_head_counts, counts);
    OK(gumball_pool_head_counts(pool, &counts));
    CHECK(counts.clustered_rows == 1 && counts.clustered_logits >= info.probes * info.capacity);
    CHECK(counts.clustered_logits <= info.probes * info.capacity + 3);
    OK(gumball_head_set_probes(head, info.clusters));
    OK(gumball_head_logits(head, &hidden, logits));
    calls_are_those_of_the_logits(head, states, WIDTH, logits, VOCAB, 1);
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
}

static void what_is_known_of_a_head(void) {
    gumball_head *head = given(5);
    gumball_head_info info = info_of(head);
    CHECK(info.vocab == VOCAB && info.width == WIDTH && info.dtype == GUMBALL_F32 && info.screen_bytes == 0);
    CHECK(info.kind == GUMBALL_HEAD_CLUSTERED && info.is_approximate == 1 && info.most_rows == SIZE_MAX);
    CHECK(info.clusters == CLUSTERS && info.capacity == CAPACITY && info.probes == 5);
    CHECK(info.centroid_bytes == sizeof centroids);
    size_t len;
    const float *found = gumball_head_centroids(head, &len);
    CHECK(len == CLUSTERS * WIDTH && memcmp(found, centroids, sizeof centroids) == 0);
    const uint32_t *order = gumball_head_cluster_ids(head, &len);
    CHECK(len == VOCAB && memcmp(order, ids, sizeof ids) == 0);
    const uint32_t *places = gumball_head_places(head, &len);
    CHECK(len == VOCAB);
    for (uint32_t id = 0; id < VOCAB; id++) {
        CHECK(order[places[id]] == id);
    }
    const uint32_t *always = gumball_head_special_ids(head, &len);
    CHECK(len == 3 && always[0] == 3 && always[1] == 77 && always[2] == 500);
    CHECK(gumball_head_unscreened(head, &len) == NULL && len == 0);
    OK(gumball_head_set_probes(head, 13));
    info = info_of(head);
    CHECK(info.probes == 13 && info.most_rows == 16);
    REFUSED(gumball_head_set_probes(head, 0), GUMBALL_OUT_OF_RANGE,
            "probes is 0, but must be in 1..=72, the number of clusters");
    CHECK(gumball_head_set_probes(head, CLUSTERS + 1) == GUMBALL_OUT_OF_RANGE && info_of(head).probes == 13);
    gumball_head_free(head);

    const gumball_head_config config = config_of(GUMBALL_HEAD_EXACT);
    head = gumball_head_new(&config);
    info = info_of(head);
    CHECK(info.is_approximate == 0 && info.clusters == 0 && info.probes == 0 && info.centroid_bytes == 0);
    CHECK(gumball_head_cluster_ids(head, &len) == NULL && len == 0);
    CHECK(gumball_head_centroids(head, &len) == NULL && gumball_head_places(head, &len) == NULL && len == 0);
    REFUSED(gumball_head_set_probes(head, 1), GUMBALL_OUT_OF_RANGE,
            "head is GUMBALL_HEAD_EXACT, but must be of kind GUMBALL_HEAD_CLUSTERED, which has probes");
    gumball_head_free(head);
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
    const gumball_head_config config = config_of(GUMBALL_HEAD_CLUSTERED);
    const gumball_clustered_options options = options_of(6);
    listener heard = {0, 0, 0};
    gumball_head *head = gumball_head_clustered_build(&config, &options, 10, 3, listen, &heard);
    CHECK(head != NULL && heard.calls >= 3);
    const gumball_head_info info = info_of(head);
    // 50 clusters of 10 ids, and one of 4.
    CHECK(info.clusters == 51 && info.capacity == 10 && info.probes == 6);
    gumball_head *again = gumball_head_clustered_build(&config, &options, 10, 3, NULL, NULL);
    size_t len;
    const uint32_t *a = gumball_head_cluster_ids(head, &len), *b = gumball_head_cluster_ids(again, &len);
    CHECK(memcmp(a, b, len * sizeof *a) == 0);
    gumball_head_free(again);
    calls_probe_clusters(head);
    gumball_head_free(head);
    // 32 clusters of 16, of which an eighth is probed.
    head = gumball_head_clustered_build(&config, NULL, 0, 0, NULL, NULL);
    CHECK(info_of(head).capacity == 16 && info_of(head).clusters == 32 && info_of(head).probes == 4);
    gumball_head_free(head);
    heard.calls = heard.last = 0;
    heard.stop_at = 2;
    NONE(gumball_head_clustered_build(&config, &options, 10, 3, listen, &heard), GUMBALL_UNAVAILABLE,
         "no clusters: the caller stopped the build");
    CHECK(heard.calls == 2);
}

static void rows_are_permuted_in_place(void) {
    static float moved[VOCAB * WIDTH];
    memcpy(moved, weights, sizeof moved);
    gumball_head_config config = config_of(GUMBALL_HEAD_CLUSTERED);
    config.weights = moved;
    gumball_clustered_options options = options_of(5);
    options.is_in_place = 1;
    gumball_head *head = gumball_head_clustered_new(&config, &options, ids, CLUSTERS, CAPACITY, centroids);
    gumball_head *copied = given(5);
    for (size_t place = 0; place < VOCAB; place++) {
        CHECK(memcmp(moved + place * WIDTH, weights + ids[place] * WIDTH, WIDTH * sizeof *moved) == 0);
    }
    const gumball_hidden hidden = hidden_states_of(states, REQUESTS, WIDTH);
    same_tokens(head, copied, VOCAB, &hidden);
    gumball_head_free(copied);
    gumball_head_free(head);
    // Nothing moves where something is wrong.
    memcpy(moved, weights, sizeof moved);
    options.probes = CLUSTERS + 1;
    CHECK(gumball_head_clustered_new(&config, &options, ids, CLUSTERS, CAPACITY, centroids) == NULL);
    CHECK(memcmp(moved, weights, sizeof moved) == 0);
    options.is_in_place = 2;
    NONE(gumball_head_clustered_new(&config, &options, ids, CLUSTERS, CAPACITY, centroids), GUMBALL_OUT_OF_RANGE,
         "is_in_place is 2, but must be 0 or 1");
}

static void files(const char *path) {
    const gumball_clustered_options options = options_of(5);
    gumball_head *made = given(5);
    OK(gumball_head_save(made, path, NULL));
    gumball_head_config config = config_of(GUMBALL_HEAD_CLUSTERED);
    NONE(gumball_head_clustered_open(&config, &options), GUMBALL_OUT_OF_RANGE,
         "file is NULL, but must be a pointer to something");
    config.file = path;
    gumball_head *opened = gumball_head_clustered_open(&config, &options);
    CHECK(opened != NULL);
    const gumball_hidden hidden = hidden_states_of(states, REQUESTS, WIDTH);
    same_tokens(made, opened, VOCAB, &hidden);
    gumball_head_free(opened);
    gumball_head_free(made);
    CHECK(gumball_head_clustered_build(&config, &options, 0, 0, NULL, NULL) == NULL);
    CHECK(gumball_error_code() == GUMBALL_CONFLICT && strcmp(gumball_error_parameter(), "file") == 0);
    config.bias = NULL;
    CHECK(gumball_head_clustered_open(&config, &options) == NULL && gumball_error_code() == GUMBALL_OUT_OF_RANGE);
    CHECK(strstr(gumball_error_message(), "the bias it was built from") != NULL);
    config.bias = bias;

    // The file of another program.
    static int64_t wide[VOCAB];
    char header[512];
    snprintf(header, sizeof header,
             "{\"clusters.ids\": {\"dtype\": \"I64\", \"shape\": [%d, %d], \"data_offsets\": [0, %zu]}, "
             "\"clusters.centroids\": {\"dtype\": \"F32\", \"shape\": [%d, %d], \"data_offsets\": [%zu, %zu]}}",
             CLUSTERS, CAPACITY, sizeof wide, CLUSTERS, WIDTH, sizeof wide, sizeof wide + sizeof centroids);
    const uint64_t length = strlen(header);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < VOCAB; i++) {
            wide[i] = ids[i];
        }
        wide[0] = pass == 0 ? wide[0] : wide[1];
        FILE *file = fopen(path, "wb");
        CHECK(file != NULL && fwrite(&length, 8, 1, file) == 1 && fwrite(header, length, 1, file) == 1);
        CHECK(fwrite(wide, sizeof wide, 1, file) == 1 && fwrite(centroids, sizeof centroids, 1, file) == 1);
        CHECK(fclose(file) == 0);
        opened = gumball_head_clustered_open(&config, &options);
        CHECK((opened != NULL) == (pass == 0));
        if (opened != NULL) {
            size_t len;
            CHECK(memcmp(gumball_head_cluster_ids(opened, &len), ids, sizeof ids) == 0);
        }
        gumball_head_free(opened);
    }
    CHECK(strstr(gumball_error_message(), "and lacks") != NULL);
    remove(path);
    CHECK(gumball_head_clustered_open(&config, &options) == NULL && gumball_error_code() == GUMBALL_UNAVAILABLE);
}

static void what_is_refused(void) {
    gumball_head_config config = config_of(GUMBALL_HEAD_CLUSTERED);
    gumball_clustered_options options = options_of(5);
    NONE(gumball_head_new(&config), GUMBALL_OUT_OF_RANGE,
         "kind is 2, but must be GUMBALL_HEAD_EXACT or GUMBALL_HEAD_CERTIFIED; clustered heads have functions of their "
         "own");
#define GIVEN(clusters, capacity) gumball_head_clustered_new(&config, &options, ids, clusters, capacity, centroids)
    config.kind = GUMBALL_HEAD_EXACT;
    NONE(GIVEN(CLUSTERS, CAPACITY), GUMBALL_OUT_OF_RANGE, "kind is 0, but must be GUMBALL_HEAD_CLUSTERED");
    config.kind = GUMBALL_HEAD_CLUSTERED;
    NONE(GIVEN(CLUSTERS - 1, CAPACITY), GUMBALL_OUT_OF_RANGE,
         "clusters is 71 of 7 ids, but must be so many that their ids are 504, those of the vocabulary");
    CHECK(GIVEN(SIZE_MAX, CAPACITY) == NULL && GIVEN(0, 0) == NULL);
    NONE(gumball_head_clustered_new(&config, &options, NULL, CLUSTERS, CAPACITY, centroids), GUMBALL_OUT_OF_RANGE,
         "ids is NULL, but must be a pointer to something");
    NONE(gumball_head_clustered_new(&config, &options, ids, CLUSTERS, CAPACITY, NULL), GUMBALL_OUT_OF_RANGE,
         "centroids is NULL, but must be a pointer to something");
    const uint32_t first = ids[0];
    ids[0] = 504;
    NONE(GIVEN(CLUSTERS, CAPACITY), GUMBALL_OUT_OF_RANGE, "ids is 504 in cluster 0, but must be ids in 0..504");
    ids[0] = ids[8];
    CHECK(GIVEN(CLUSTERS, CAPACITY) == NULL &&
          strstr(gumball_error_value(), "in cluster 0 and in cluster 1, and lacks"));
    ids[0] = first;
    const float number = centroids[4];
    centroids[4] = NAN;
    CHECK(GIVEN(CLUSTERS, CAPACITY) == NULL && strcmp(gumball_error_parameter(), "centroids") == 0);
    centroids[4] = number;
    options.probes = 73;
    NONE(GIVEN(CLUSTERS, CAPACITY), GUMBALL_OUT_OF_RANGE,
         "probes is 73, but must be in 1..=72, the number of clusters");
    options.probes = 5;
    const uint32_t beyond[] = {504, 3, 9999};
    options.special_ids = beyond;
    options.special_ids_len = 3;
    NONE(GIVEN(CLUSTERS, CAPACITY), GUMBALL_OUT_OF_RANGE, "special_ids is 504, 9999, but must be ids in 0..504");
    NONE(gumball_head_clustered_build(&config, &options, 0, 0, NULL, NULL), GUMBALL_OUT_OF_RANGE,
         "special_ids is 504, 9999, but must be ids in 0..504");
    options.special_ids = NULL;
    CHECK(GIVEN(CLUSTERS, CAPACITY) == NULL && strcmp(gumball_error_parameter(), "special_ids") == 0);
    // A length beyond the number of ids is refused before ids are copied.
    options.special_ids = beyond;
    options.special_ids_len = 2147483647;
    NONE(GIVEN(CLUSTERS, CAPACITY), GUMBALL_OUT_OF_RANGE,
         "special_ids_len is 2147483647, but must be at most 504, as many as there are ids");
    NONE(gumball_head_clustered_open(&config, &options), GUMBALL_OUT_OF_RANGE,
         "special_ids_len is 2147483647, but must be at most 504, as many as there are ids");
    options = options_of(5);
    NONE(gumball_head_clustered_build(&config, NULL, 505, 1, NULL, NULL), GUMBALL_OUT_OF_RANGE,
         "capacity is 505, but must be in 1..=504, the vocabulary");
    config.weights = NULL;
    CHECK(GIVEN(CLUSTERS, CAPACITY) == NULL && strcmp(gumball_error_parameter(), "weights") == 0);
    CHECK(gumball_head_clustered_build(NULL, NULL, 0, 0, NULL, NULL) == NULL);
    CHECK(gumball_head_clustered_open(NULL, NULL) == NULL && gumball_head_set_probes(NULL, 1) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_outputs_is_approximate(NULL) == 0 && gumball_head_places(NULL, NULL) == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    bell(weights, VOCAB * WIDTH, 1);
    bell(bias, VOCAB, 2);
    // Any order of the ids, and as centroids the means of their rows.
    uint64_t word = 5;
    for (uint32_t id = 0; id < VOCAB; id++) {
        const size_t other = (size_t)(next_word(&word) % (id + 1));
        ids[id] = ids[other];
        ids[other] = id;
    }
    for (size_t place = 0; place < VOCAB; place++) {
        for (size_t i = 0; i < WIDTH; i++) {
            centroids[place / CAPACITY * WIDTH + i] += weights[ids[place] * WIDTH + i] / CAPACITY;
        }
    }
    what_is_known_of_a_head();
    bell(states, ROWS * WIDTH, 3);
    gumball_head *head = given(5);
    calls_probe_clusters(head);
    gumball_head_free(head);
    clusters_are_built();
    rows_are_permuted_in_place();
    files(argv[1]);
    what_is_refused();
    return verdict("clustered");
}
