// Clustered heads: what they make of hidden states is what pools make of rows that have the probed logits alone; where clusters come from; what is
// refused.

#include "check.h"
#include "rows.h"

enum { VOCAB = 504, WIDTH = 35, CAPACITY = 7, CLUSTERS = VOCAB / CAPACITY, ROWS = 4, STEPS = 8 };

static float weights[VOCAB * WIDTH], bias[VOCAB], centroids[CLUSTERS * WIDTH];
static float states[2 * ROWS * WIDTH], whole[2 * ROWS * VOCAB], rows[2 * ROWS * VOCAB];
static uint32_t ids[VOCAB];
static const uint32_t special[] = {500, 3, 3, 77};

static const char *const requests[ROWS] = {
    "{\"seed\": 1}",
    "{\"temperature\": 0, \"repetition_penalty\": 1.2}",
    "{\"seed\": 2, \"top_k\": 20, \"top_p\": 0.9, \"logprobs\": {\"mode\": \"processed\", \"top_n\": 2}}",
    "{\"seed\": 3, \"top_p\": 0.8, \"frequency_penalty\": 0.3, \"logprobs\": {\"mode\": \"raw\", \"top_n\": 3}}",
};

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

static gumball_hidden hidden_of(size_t count) { return hidden_states_of(states, count, WIDTH); }

// Writes the rows of the hidden states by the definition: the logits of the clusters with the largest scores, ties to the smaller number, and of the
// special ids; -INFINITY elsewhere.
static gumball_logits rows_of(const gumball_head *head, size_t count) {
    static float scores[2 * ROWS * VOCAB];
    const gumball_hidden hidden = hidden_of(count);
    const gumball_head_info info = info_of(head);
    size_t len;
    SIZED(gumball_head_config, config);
    config.weights = gumball_head_centroids(head, &len);
    // Those that bf16 holds are read as such.
    size_t each = 2;
    for (size_t i = 0; i < len; i++) {
        uint32_t bits;
        memcpy(&bits, (const float *)config.weights + i, sizeof bits);
        each = bits & 0xFFFF ? sizeof(float) : each;
    }
    CHECK(len == info.clusters * WIDTH && info.centroid_bytes == len * each);
    config.vocab = info.clusters;
    config.width = WIDTH;
    gumball_head *of_centroids = gumball_head_new(&config);
    OK(gumball_head_logits(of_centroids, &hidden, scores));
    gumball_head_free(of_centroids);
    OK(gumball_head_logits(head, &hidden, whole));
    const uint32_t *order = gumball_head_cluster_ids(head, &len);
    CHECK(len == VOCAB);
    const uint32_t *always = gumball_head_special_ids(head, &len);
    for (size_t row = 0; row < count; row++) {
        const float *of_row = scores + row * info.clusters, *logits = whole + row * VOCAB;
        for (size_t id = 0; id < VOCAB; id++) {
            rows[row * VOCAB + id] = -INFINITY;
        }
        for (size_t cluster = 0; cluster < info.clusters; cluster++) {
            size_t ahead = 0;
            for (size_t other = 0; other < info.clusters; other++) {
                ahead += of_row[other] > of_row[cluster] || (of_row[other] == of_row[cluster] && other < cluster);
            }
            size_t end = (cluster + 1) * info.capacity;
            for (size_t place = cluster * info.capacity; ahead < info.probes && place < end && place < VOCAB; place++) {
                rows[row * VOCAB + order[place]] = logits[order[place]];
            }
        }
        for (size_t i = 0; i < len; i++) {
            rows[row * VOCAB + always[i]] = logits[always[i]];
        }
    }
    return logits_of(rows, GUMBALL_F32, count, VOCAB);
}

// Steps, drafts, verifications and scores of a clustered head are those of its rows.
static void results_are_those_of_the_probed_rows(gumball_head *head) {
    gumball_pool *of_rows = pool_of(VOCAB, 1), *of_states = pool_of(VOCAB, 2);
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0);
    gumball_verification *expected = gumball_verification_new(0), *verified = gumball_verification_new(0);
    const uint32_t prompt[] = {4, 9, 4};
    int32_t slots[ROWS];
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(of_rows, requests[i], prompt, 3);
        CHECK(admit(of_states, requests[i], prompt, 3) == slots[i]);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        bell(states, ROWS * WIDTH, 100 + step);
        const gumball_hidden hidden = hidden_of(ROWS);
        const gumball_logits probed = rows_of(head, ROWS);
        OK(gumball_pool_step(of_rows, &probed, slots, ROWS, NULL, wanted));
        OK(gumball_pool_step_hidden(of_states, head, &hidden, slots, ROWS, NULL, seen));
        CHECK(same_outputs(wanted, seen));
        CHECK(gumball_outputs_is_approximate(seen) == 1 && gumball_outputs_is_approximate(wanted) == 0);
    }
    for (uint64_t pass = 0; pass < STEPS; pass++) {
        int32_t drawn[ROWS], others[ROWS];
        SIZED(gumball_draft_rows, from);
        from.siblings = 1;
        bell(states, ROWS * WIDTH, 200 + pass);
        gumball_hidden hidden = hidden_of(ROWS);
        gumball_logits probed = rows_of(head, ROWS);
        OK(gumball_pool_draft(of_rows, &probed, slots, ROWS, &from, NULL, drawn, NULL));
        OK(gumball_pool_draft_hidden(of_states, head, &hidden, slots, ROWS, &from, NULL, others, NULL));
        CHECK(memcmp(drawn, others, sizeof drawn) == 0);
        for (int i = ROWS; i-- > 0;) {
            memmove(states + 2 * i * WIDTH, states + i * WIDTH, WIDTH * sizeof *states);
            bell(states + (2 * i + 1) * WIDTH, WIDTH, 300 + pass * ROWS + (uint64_t)i);
        }
        hidden = hidden_of(2 * ROWS);
        probed = rows_of(head, 2 * ROWS);
        const uint32_t counts[ROWS] = {1, 1, 1, 1};
        SIZED(gumball_drafts, drafts);
        drafts.counts = counts;
        drafts.ids = drawn;
        drafts.mode = pass % 3 == 2 ? GUMBALL_REJECTION : GUMBALL_COUPLED;
        OK(gumball_pool_verify(of_rows, &probed, slots, ROWS, &drafts, NULL, expected));
        OK(gumball_pool_verify_hidden(of_states, head, &hidden, slots, ROWS, &drafts, NULL, verified));
        const gumball_outputs *outputs = gumball_verification_outputs(verified);
        CHECK(same_outputs(gumball_verification_outputs(expected), outputs) && gumball_outputs_is_approximate(outputs));
        CHECK(memcmp(gumball_verification_accepted(verified), gumball_verification_accepted(expected), sizeof counts) ==
              0);
    }
    const uint32_t known[] = {4, 9, 4, 7, 30, 2, 11, 499, 5};
    gumball_params *params = params_of("{\"logprobs\": {\"mode\": \"raw\", \"top_n\": 2}}");
    SIZED(gumball_scored, scored);
    scored.params = params;
    scored.ids = known;
    scored.ids_len = 9;
    scored.prompt_len = 3;
    scored.start = 1;
    bell(states, 2 * ROWS * WIDTH, 400);
    const gumball_hidden hidden = hidden_of(2 * ROWS);
    const gumball_logits probed = rows_of(head, 2 * ROWS);
    OK(gumball_pool_score(of_rows, &probed, &scored, 2 * ROWS, NULL, wanted));
    for (size_t chunk_rows = 1; chunk_rows < 10; chunk_rows += 2) {
        OK(gumball_pool_score_hidden(of_states, head, &hidden, &scored, chunk_rows, NULL, seen));
        CHECK(same_outputs(wanted, seen) && gumball_outputs_is_approximate(seen));
    }
    SIZED(gumball_head_counts, counts);
    OK(gumball_pool_head_counts(of_states, &counts));
    CHECK(counts.clustered_rows > 0 && counts.clustered_logits > counts.clustered_rows && counts.centroid_reads > 0);
    CHECK(counts.certified_rows == 0 && counts.screen_reads == 0);
    gumball_params_free(params);
    gumball_verification_free(expected);
    gumball_verification_free(verified);
    gumball_outputs_free(wanted);
    gumball_outputs_free(seen);
    gumball_pool_free(of_rows);
    gumball_pool_free(of_states);
}

// Whether two heads draw the same tokens.
static void same_tokens(gumball_head *a, gumball_head *b) {
    gumball_pool *pools[] = {pool_of(VOCAB, 1), pool_of(VOCAB, 1)};
    gumball_outputs *outputs[] = {gumball_outputs_new(0), gumball_outputs_new(0)};
    gumball_head *heads[] = {a, b};
    int32_t slots[ROWS];
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(pools[0], requests[i], NULL, 0);
        CHECK(admit(pools[1], requests[i], NULL, 0) == slots[i]);
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        bell(states, ROWS * WIDTH, 700 + step);
        const gumball_hidden hidden = hidden_of(ROWS);
        for (int i = 0; i < 2; i++) {
            OK(gumball_pool_step_hidden(pools[i], heads[i], &hidden, slots, ROWS, NULL, outputs[i]));
        }
        CHECK(same_outputs(outputs[0], outputs[1]));
    }
    for (int i = 0; i < 2; i++) {
        gumball_pool_free(pools[i]);
        gumball_outputs_free(outputs[i]);
    }
}

static void what_is_known_of_a_head(void) {
    gumball_head *head = given(5);
    gumball_head_info info = info_of(head);
    CHECK(info.vocab == VOCAB && info.width == WIDTH && info.dtype == GUMBALL_F32 && info.screen_bytes == 0);
    CHECK(info.kind == GUMBALL_HEAD_CLUSTERED && info.is_approximate == 1 && info.most_rows == SIZE_MAX);
    CHECK(info.clusters == CLUSTERS && info.capacity == CAPACITY && info.probes == 5);
    size_t len;
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

static void with_all_clusters_probed_it_is_the_exact_head(void) {
    const gumball_head_config config = config_of(GUMBALL_HEAD_EXACT);
    gumball_head *exact = gumball_head_new(&config), *all = given(CLUSTERS);
    same_tokens(exact, all);
    gumball_head_free(exact);
    gumball_head_free(all);
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
    results_are_those_of_the_probed_rows(head);
    gumball_head *again = gumball_head_clustered_build(&config, &options, 10, 3, NULL, NULL);
    size_t len;
    const uint32_t *a = gumball_head_cluster_ids(head, &len), *b = gumball_head_cluster_ids(again, &len);
    CHECK(memcmp(a, b, len * sizeof *a) == 0);
    gumball_head_free(again);
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
    same_tokens(head, copied);
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
    same_tokens(made, opened);
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
    gumball_head *head = given(5);
    results_are_those_of_the_probed_rows(head);
    gumball_head_free(head);
    with_all_clusters_probed_it_is_the_exact_head();
    clusters_are_built();
    rows_are_permuted_in_place();
    files(argv[1]);
    what_is_refused();
    return verdict("clustered");
}
