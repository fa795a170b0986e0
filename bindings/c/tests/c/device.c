// Pools on a device beside one on the host: device NAME, as cuda.

#include "check.h"
#include "rows.h"

enum { VOCAB = 1000, WORDS = (VOCAB + 31) / 32, ROWS = 4 };

static const uint32_t prompt[] = {7, 8, 7};
static float rows[ROWS][VOCAB];

static const char *const requests[ROWS] = {
    "{\"seed\": 11}",
    "{\"seed\": 12, \"temperature\": 0}",
    "{\"seed\": 13, \"temperature\": 0.7, \"top_p\": 0.9, \"repetition_penalty\": 1.2,"
    " \"logprobs\": {\"top_n\": 3, \"ids\": [1, 2]}}",
    "{\"seed\": 14, \"mirostat\": {\"tau\": 4.0, \"eta\": 0.2}}",
};

static void same(const gumball_outputs *wanted, const gumball_outputs *seen) {
    SIZED(gumball_layout, layout);
    OK(gumball_outputs_layout(wanted, &layout));
    CHECK(gumball_outputs_rows(seen) == layout.rows);
    const uint32_t *a = gumball_outputs_words(wanted), *b = gumball_outputs_words(seen);
    CHECK(a && b && memcmp(a, b, layout.words * sizeof *a) == 0);
}

// Operators over what lies on the device come to what they come to on the host.
static void operators_of(gumball_device *device, gumball_buffer *logits) {
    enum { N = 2, CHAINS = 1 };
    static float wanted[ROWS][VOCAB], seen[ROWS][VOCAB];
    gumball_operators *host = gumball_operators_new(NULL), *there = gumball_operators_new_on_device(device);
    CHECK(host && there);
    const float temperatures[ROWS] = {0.7f, 1.0f, 0.0f, 2.0f};
    const uint64_t seeds[ROWS] = {5, 6, 7, 8};
    const int64_t top_ks[ROWS] = {5, 0, 40, 3};
    uint32_t told[ROWS], statuses[ROWS];
    gumball_buffer *probs = gumball_buffer_new(device, sizeof wanted), *small = gumball_buffer_new(device, 4096);
    OK(gumball_buffer_write(small, 0, temperatures, sizeof temperatures));
    OK(gumball_buffer_write(small, 256, seeds, sizeof seeds));
    OK(gumball_buffer_write(small, 512, top_ks, sizeof top_ks));
    char *at = (char *)gumball_buffer_address(small);

    gumball_logits here = logits_of(rows, GUMBALL_F32, ROWS, VOCAB);
    gumball_logits from = logits_of(gumball_buffer_address(logits), GUMBALL_F32, ROWS, VOCAB);
    SIZED(gumball_rows_out, out);
    out.rows = ROWS;
    out.vocab = VOCAB;
    out.data = wanted;
    OK(gumball_operators_softmax(host, &here, 0.0f, temperatures, &out, told));
    out.data = gumball_buffer_address(probs);
    OK(gumball_operators_softmax(there, &from, 0.0f, (const float *)at, &out, (uint32_t *)(at + 1024)));
    OK(gumball_buffer_read(probs, 0, seen, sizeof seen));
    OK(gumball_buffer_read(small, 1024, statuses, sizeof statuses));
    CHECK(memcmp(wanted, seen, sizeof seen) == 0 && memcmp(told, statuses, sizeof told) == 0);

    int32_t tokens[ROWS], drawn[ROWS];
    SIZED(gumball_row_params, params);
    SIZED(gumball_draws, draws);
    draws.outputs = ROWS;
    params.temperature = temperatures;
    params.top_k = top_ks;
    draws.seeds = seeds;
    OK(gumball_operators_sample(host, &here, &params, &draws, tokens, NULL));
    params.temperature = (const float *)at;
    params.top_k = (const int64_t *)(at + 512);
    draws.seeds = (const uint64_t *)(at + 256);
    OK(gumball_operators_sample(there, &from, &params, &draws, (int32_t *)(at + 1024), NULL));
    OK(gumball_buffer_read(small, 1024, drawn, sizeof drawn));
    CHECK(memcmp(tokens, drawn, sizeof drawn) == 0);

    // The lists as pools, of which every row reads another element.
    const uint32_t slots[ROWS] = {2, 0, 3, 3};
    int64_t offsets[ROWS];
    for (int slot = 0; slot < ROWS; slot++) {
        offsets[slot] = (int64_t)(slot + 5) << 32 | (UINT32_MAX - (uint32_t)slot);
    }
    SIZED(gumball_pool_slots, pools);
    pools.slots = slots;
    pools.size = ROWS;
    pools.offsets = offsets;
    OK(gumball_buffer_write(small, 2048, slots, sizeof slots));
    OK(gumball_buffer_write(small, 3072, offsets, sizeof offsets));
    gumball_row_params held = params;
    gumball_draws keys_held = draws;
    held.temperature = temperatures;
    held.top_k = top_ks;
    keys_held.seeds = seeds;
    OK(gumball_operators_sample_from_pools(host, &here, &pools, &held, &keys_held, tokens, NULL));
    pools.slots = (const uint32_t *)(at + 2048);
    pools.offsets = (const int64_t *)(at + 3072);
    OK(gumball_operators_sample_from_pools(there, &from, &pools, &params, &draws, (int32_t *)(at + 1024), NULL));
    OK(gumball_buffer_read(small, 1024, drawn, sizeof drawn));
    CHECK(memcmp(tokens, drawn, sizeof drawn) == 0);

    static float kept[ROWS][VOCAB];
    params.temperature = temperatures;
    params.top_k = top_ks;
    out.data = kept;
    OK(gumball_operators_mask_logits(host, &here, &params, &out, NULL));
    params.temperature = (const float *)at;
    params.top_k = (const int64_t *)(at + 512);
    gumball_buffer *masked = gumball_buffer_new(device, sizeof seen);
    out.data = gumball_buffer_address(masked);
    OK(gumball_operators_mask_logits(there, &from, &params, &out, NULL));
    OK(gumball_buffer_read(masked, 0, seen, sizeof seen));
    CHECK(memcmp(kept, seen, sizeof seen) == 0);
    gumball_buffer_free(masked);

    // A chain of two drafts: the probabilities just made are the target's, and those of the first rows the drafter's.
    const int32_t ids[N] = {tokens[0], 9};
    uint32_t counts[3][CHAINS], seen_counts[3][CHAINS];
    int32_t emitted[N + 1];
    SIZED(gumball_draft_chains, chains);
    chains.chains = CHAINS;
    chains.drafts = N;
    chains.vocab = VOCAB;
    chains.draft_probs = chains.target_probs = wanted[0];
    chains.draft_token_ids = ids;
    SIZED(gumball_draws, keys);
    keys.outputs = CHAINS;
    keys.seed = 4;
    OK(gumball_operators_chain_speculative_sampling(host, &chains, &keys, emitted, counts[0], counts[1], counts[2]));
    OK(gumball_buffer_write(small, 2048, ids, sizeof ids));
    chains.draft_probs = chains.target_probs = (const float *)gumball_buffer_address(probs);
    chains.draft_token_ids = (const int32_t *)(at + 2048);
    uint32_t *words = (uint32_t *)(at + 1024);
    OK(gumball_operators_chain_speculative_sampling(there, &chains, &keys, (int32_t *)(at + 3072), words, words + 1,
                                                    words + 2));
    OK(gumball_buffer_read(small, 1024, seen_counts, sizeof seen_counts));
    OK(gumball_buffer_read(small, 3072, drawn, sizeof emitted));
    CHECK(memcmp(counts, seen_counts, sizeof counts) == 0 && memcmp(emitted, drawn, sizeof emitted) == 0);

    // The two drafts as siblings of a tree; then the logprobs and ranks of four tokens.
    const int32_t parents[N] = {-1, -1}, selected[ROWS] = {3, -1, 999, 7};
    int32_t from_rows[2][N + 1];
    float logprobs[2][ROWS];
    uint32_t ranks[2][ROWS];
    OK(gumball_buffer_write(small, 2048 + 512, parents, sizeof parents));
    OK(gumball_buffer_write(small, 2048 + 768, selected, sizeof selected));
    SIZED(gumball_draft_trees, trees);
    trees.trees = CHAINS;
    trees.drafts = N;
    trees.vocab = VOCAB;
    trees.mode = GUMBALL_REJECTION;
    trees.target_probs = wanted[0];
    trees.draft_token_ids = ids;
    trees.parents = parents;
    OK(gumball_operators_tree_speculative_sampling(host, &trees, &keys, emitted, from_rows[0], counts[0], NULL));
    trees.target_probs = (const float *)gumball_buffer_address(probs);
    trees.draft_token_ids = (const int32_t *)(at + 2048);
    trees.parents = (const int32_t *)(at + 2048 + 512);
    OK(gumball_operators_tree_speculative_sampling(there, &trees, &keys, (int32_t *)(at + 3072),
                                                   (int32_t *)(at + 3072 + 256), (uint32_t *)(at + 3072 + 512), NULL));
    OK(gumball_buffer_read(small, 3072, drawn, sizeof emitted));
    OK(gumball_buffer_read(small, 3072 + 256, from_rows[1], sizeof from_rows[1]));
    OK(gumball_buffer_read(small, 3072 + 512, seen_counts[0], sizeof seen_counts[0]));
    CHECK(memcmp(emitted, drawn, sizeof emitted) == 0 && counts[0][0] == seen_counts[0][0]);
    CHECK(memcmp(from_rows[0], from_rows[1], sizeof from_rows[0]) == 0);
    OK(gumball_operators_selected_logprobs(host, &here, selected, logprobs[0], ranks[0], NULL));
    OK(gumball_operators_selected_logprobs(there, &from, (const int32_t *)(at + 2048 + 768), (float *)(at + 3072),
                                           (uint32_t *)(at + 3072 + 256), NULL));
    OK(gumball_buffer_read(small, 3072, logprobs[1], sizeof logprobs[1]));
    OK(gumball_buffer_read(small, 3072 + 256, ranks[1], sizeof ranks[1]));
    CHECK(memcmp(logprobs[0], logprobs[1], sizeof logprobs[0]) == 0 &&
          memcmp(ranks[0], ranks[1], sizeof ranks[0]) == 0);

    gumball_buffer_free(probs);
    gumball_buffer_free(small);
    gumball_operators_free(host);
    gumball_operators_free(there);
}

// Rows of probabilities: renormalised, masked and drawn from as on the host, in place too.
static void probabilities_of(gumball_device *device, const float (*weights)[VOCAB], gumball_buffer *buffer) {
    static float wanted[ROWS][VOCAB], seen[ROWS][VOCAB];
    gumball_operators *host = gumball_operators_new(NULL), *there = gumball_operators_new_on_device(device);
    const int64_t top_ks[ROWS] = {5, 0, 40, 3};
    const float top_ps[ROWS] = {1.0f, 0.8f, 0.9f, 0.5f};
    uint32_t told[ROWS], statuses[ROWS];
    int32_t tokens[ROWS], drawn[ROWS];
    gumball_buffer *result = gumball_buffer_new(device, sizeof wanted), *small = gumball_buffer_new(device, 4096);
    OK(gumball_buffer_write(small, 0, top_ks, sizeof top_ks));
    OK(gumball_buffer_write(small, 256, top_ps, sizeof top_ps));
    char *at = (char *)gumball_buffer_address(small);
    gumball_logits here = logits_of(weights, GUMBALL_F32, ROWS, VOCAB);
    gumball_logits from = logits_of(gumball_buffer_address(buffer), GUMBALL_F32, ROWS, VOCAB);
    here.kind = from.kind = GUMBALL_PROBABILITIES;
    SIZED(gumball_rows_out, out);
    out.rows = ROWS;
    out.vocab = VOCAB;
    SIZED(gumball_row_params, lists);
    lists.top_k = top_ks;
    lists.top_p = top_ps;
    gumball_row_params far = lists;
    far.top_k = (const int64_t *)at;
    far.top_p = (const float *)(at + 256);
    SIZED(gumball_draws, draws);
    draws.outputs = ROWS;
    draws.seed = 9;
    for (int masks = 0; masks < 2; masks++) {
        out.data = wanted;
        OK(masks ? gumball_operators_mask_logits(host, &here, &lists, &out, told)
                 : gumball_operators_probabilities(host, &here, &lists, &out, told));
        out.data = gumball_buffer_address(result);
        uint32_t *words = (uint32_t *)(at + 1024);
        OK(masks ? gumball_operators_mask_logits(there, &from, &far, &out, words)
                 : gumball_operators_probabilities(there, &from, &far, &out, words));
        OK(gumball_buffer_read(result, 0, seen, sizeof seen));
        OK(gumball_buffer_read(small, 1024, statuses, sizeof statuses));
        CHECK(memcmp(wanted, seen, sizeof seen) == 0 && memcmp(told, statuses, sizeof told) == 0);
    }
    OK(gumball_operators_sample(host, &here, &lists, &draws, tokens, NULL));
    OK(gumball_operators_sample(there, &from, &far, &draws, (int32_t *)(at + 1024), NULL));
    OK(gumball_buffer_read(small, 1024, drawn, sizeof drawn));
    CHECK(memcmp(tokens, drawn, sizeof drawn) == 0);

    OK(gumball_buffer_write(result, 0, weights, sizeof seen));
    from.data = out.data;
    OK(gumball_operators_probabilities(there, &from, &far, &out, NULL));
    OK(gumball_buffer_read(result, 0, seen, sizeof seen));
    out.data = wanted;
    OK(gumball_operators_probabilities(host, &here, &lists, &out, NULL));
    CHECK(memcmp(wanted, seen, sizeof seen) == 0);
    out.data = gumball_buffer_address(result);
    CHECK(gumball_operators_softmax(there, &from, 1.0f, NULL, &out, NULL) == GUMBALL_OUT_OF_RANGE);
    far.temperature = (const float *)(at + 256);
    CHECK(gumball_operators_probabilities(there, &from, &far, &out, NULL) == GUMBALL_OUT_OF_RANGE);
    from.kind = 2;
    CHECK(gumball_operators_sample(there, &from, &far, &draws, (int32_t *)(at + 1024), NULL) == GUMBALL_OUT_OF_RANGE);

    gumball_buffer_free(result);
    gumball_buffer_free(small);
    gumball_operators_free(host);
    gumball_operators_free(there);
}

// Steps over probabilities, in turn with logits: copied up, enqueued and captured.
static void steps_over_probabilities(gumball_device *device) {
    static const char *const drawn[ROWS] = {"{\"seed\": 21}", "{\"seed\": 22, \"temperature\": 0}",
                                            "{\"seed\": 23, \"top_p\": 0.8, \"logprobs\": {\"top_n\": 2}}",
                                            "{\"seed\": 24, \"top_k\": 9, \"min_p\": 0.1}"};
    static float weights[ROWS][VOCAB];
    for (int i = 0; i < ROWS * VOCAB; i++) {
        weights[i / VOCAB][i % VOCAB] = (float)exp((double)rows[i / VOCAB][i % VOCAB]);
    }
    gumball_pool *host = pool_of(VOCAB, 1), *pool = device_pool_of(device, VOCAB);
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0);
    gumball_buffer *buffer = gumball_buffer_new(device, sizeof weights),
                   *plain = gumball_buffer_new(device, sizeof rows);
    OK(gumball_buffer_write(buffer, 0, weights, sizeof weights));
    OK(gumball_buffer_write(plain, 0, rows, sizeof rows));
    int32_t slots[ROWS];
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(host, drawn[i], prompt, 3);
        CHECK(admit(pool, drawn[i], prompt, 3) == slots[i]);
    }
    gumball_logits here = logits_of(weights, GUMBALL_F32, ROWS, VOCAB),
                   others = logits_of(rows, GUMBALL_F32, ROWS, VOCAB);
    here.kind = GUMBALL_PROBABILITIES;
    OK(gumball_pool_step(host, &here, slots, ROWS, NULL, wanted));
    OK(gumball_pool_step(pool, &here, slots, ROWS, NULL, seen));
    same(wanted, seen);

    SIZED(gumball_device_input, input);
    input.logits = gumball_buffer_address(buffer);
    input.rows = ROWS;
    input.vocab = VOCAB;
    input.dtype = GUMBALL_F32;
    input.kind = GUMBALL_PROBABILITIES;
    // A program with the older header says nothing of kinds, and means logits.
    gumball_device_input older = input;
    older.struct_size = offsetof(gumball_device_input, kind);
    older.logits = gumball_buffer_address(plain);
    OK(gumball_pool_assign(pool, slots, ROWS, NULL));
    OK(gumball_pool_enqueue(pool, &input));
    OK(gumball_pool_enqueue(pool, &older));
    OK(gumball_pool_fetch(pool, seen));
    OK(gumball_pool_step(host, &here, slots, ROWS, NULL, wanted));
    OK(gumball_pool_step(host, &others, slots, ROWS, NULL, wanted));
    same(wanted, seen);
    const gumball_device_input *inputs[] = {&older, &input};
    gumball_graph *graph = gumball_pool_capture(pool, inputs, 2);
    OK(gumball_pool_replay(pool, graph));
    OK(gumball_pool_fetch(pool, seen));
    OK(gumball_pool_step(host, &others, slots, ROWS, NULL, wanted));
    OK(gumball_pool_step(host, &here, slots, ROWS, NULL, wanted));
    same(wanted, seen);
    gumball_graph_free(graph);

    input.kind = 2;
    REFUSED(gumball_pool_enqueue(pool, &input), GUMBALL_OUT_OF_RANGE,
            "kind is 2, but must be GUMBALL_LOGITS or GUMBALL_PROBABILITIES");
    SIZED(gumball_step_options, options);
    options.kind = GUMBALL_PROBABILITIES;
    CHECK(gumball_pool_assign(pool, slots, ROWS, &options) == GUMBALL_CONFLICT);
    probabilities_of(device, (const float (*)[VOCAB])weights, buffer);
    gumball_buffer_free(buffer);
    gumball_buffer_free(plain);
    gumball_outputs_free(wanted);
    gumball_outputs_free(seen);
    gumball_pool_free(host);
    gumball_pool_free(pool);
}

static uint64_t served(gumball_pool *pool, const char *variant) {
    uint64_t steps = 0;
    OK(gumball_pool_variant_steps(pool, variant, &steps));
    return steps;
}

// A program that captures a step names its variant, and is refused where that does not serve a row.
static void variants_of(gumball_device *device, const gumball_device_input *input) {
    static const char *const names[] = {"no_filter", "min_p", "top_k", "top_k_top_p", "top_p", "edits", "full"};
    for (size_t i = 0; i < 7; i++) {
        CHECK(strcmp(gumball_variant_name(i), names[i]) == 0 && gumball_variant_serves(names[i]) != NULL);
    }
    CHECK(gumball_variant_name(7) == NULL && gumball_variant_serves("greedy") == NULL);
    CHECK(gumball_error_code() == GUMBALL_UNKNOWN);
    gumball_pool *pool = device_pool_of(device, VOCAB), *host = pool_of(VOCAB, 1);
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0);
    static const char *const two[] = {"{\"seed\": 3, \"temperature\": 0}", "{\"seed\": 4, \"top_p\": 0.9}"};
    const int32_t none[] = {-1, -1, -1, -1};
    int32_t slots[] = {-1, -1, -1, -1};
    for (int i = 0; i < 2; i++) {
        slots[1 + i] = admit(pool, two[i], prompt, 3);
        CHECK(admit(host, two[i], prompt, 3) == slots[1 + i]);
    }
    OK(gumball_pool_assign(pool, none, ROWS, NULL));
    CHECK(strcmp(gumball_pool_needed_variant(pool), "no_filter") == 0);
    OK(gumball_pool_enqueue_variant(pool, input, "no_filter"));
    OK(gumball_pool_assign(pool, slots, ROWS, NULL));
    CHECK(strcmp(gumball_pool_needed_variant(pool), "top_p") == 0);
    REFUSED(gumball_pool_enqueue_variant(pool, input, "no_filter"), GUMBALL_OUT_OF_RANGE,
            "variant is no_filter, but must be top_p or edits or full, for the request of row 2 in slot 1");
    REFUSED(gumball_pool_reserve_replays(pool, 1, "top_k"), GUMBALL_OUT_OF_RANGE,
            "variant is top_k, but must be top_p or edits or full, for the request of row 2 in slot 1");
    CHECK(gumball_pool_reserve_replays(pool, 1, "graph") == GUMBALL_UNKNOWN);
    OK(gumball_pool_enqueue_variant(pool, input, "edits"));
    OK(gumball_pool_fetch(pool, seen));
    gumball_logits logits = logits_of(rows, GUMBALL_F32, ROWS, VOCAB);
    OK(gumball_pool_step(host, &logits, slots, ROWS, NULL, wanted));
    same(wanted, seen);
    OK(gumball_pool_enqueue(pool, input));
    OK(gumball_pool_enqueue_variant(pool, input, NULL));
    OK(gumball_pool_reserve_replays(pool, 3, NULL));
    CHECK(served(pool, "no_filter") == 1 && served(pool, "edits") == 1 && served(pool, "top_p") == 1);
    CHECK(served(pool, "full") == 4 && served(pool, "top_k") == 0);
    CHECK(gumball_pool_needed_variant(host) == NULL && gumball_error_code() == GUMBALL_UNAVAILABLE);
    gumball_outputs_free(wanted);
    gumball_outputs_free(seen);
    gumball_pool_free(host);
    gumball_pool_free(pool);
}

// The route probabilities: a softmax on the device, and the tokens of the host's route.
static void route_of(gumball_device *device, const gumball_device_input *input) {
    SIZED(gumball_pool_config, on_host);
    on_host.vocab = VOCAB;
    on_host.threads = 1;
    on_host.route = "probabilities";
    SIZED(gumball_device_pool_config, config);
    config.vocab = VOCAB;
    config.slots = config.rows = ROWS;
    config.route = "probabilities";
    gumball_pool *host = gumball_pool_new(&on_host), *pool = gumball_pool_new_on_device(device, &config);
    CHECK(host != NULL && pool != NULL);
    static const char *const taken[ROWS] = {
        "{\"seed\": 21, \"temperature\": 0.7}",
        "{\"seed\": 22, \"temperature\": 0}",
        "{\"seed\": 23, \"temperature\": 1.2, \"top_k\": 40, \"top_p\": 0.9}",
        "{\"seed\": 24, \"min_p\": 0.1, \"logprobs\": {\"mode\": \"processed\"}}",
    };
    int32_t slots[ROWS];
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(host, taken[i], NULL, 0);
        CHECK(admit(pool, taken[i], NULL, 0) == slots[i]);
    }
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0);
    gumball_logits logits = logits_of(rows, GUMBALL_F32, ROWS, VOCAB);
    OK(gumball_pool_assign(pool, slots, ROWS, NULL));
    for (int step = 0; step < 3; step++) {
        OK(gumball_pool_step(host, &logits, slots, ROWS, NULL, wanted));
        OK(gumball_pool_enqueue(pool, input));
        OK(gumball_pool_fetch(pool, seen));
        same(wanted, seen);
    }
    gumball_device_input probs = *input;
    probs.kind = GUMBALL_PROBABILITIES;
    CHECK(gumball_pool_enqueue(pool, &probs) == GUMBALL_CONFLICT);
    OK(gumball_pool_release(pool, slots[0]));
    gumball_params *edited = params_of("{\"repetition_penalty\": 1.2}");
    CHECK(gumball_pool_admit(pool, edited, NULL, 0, slots) == GUMBALL_CONFLICT);
    CHECK(strcmp(gumball_error_parameter(), "repetition_penalty") == 0);
    gumball_params_free(edited);
    config.route = "oracle";
    CHECK(gumball_pool_new_on_device(device, &config) == NULL && gumball_error_code() == GUMBALL_UNKNOWN);
    gumball_outputs_free(wanted);
    gumball_outputs_free(seen);
    gumball_pool_free(host);
    gumball_pool_free(pool);
}

int main(int count, char **arguments) {
    gumball_device *device = gumball_device_open(count > 1 ? arguments[1] : "cuda");
    if (!device) {
        fprintf(stderr, "%s\n", gumball_error_message());
        return EXIT_FAILURE;
    }
    printf("device: %s\n", gumball_device_name(device));
    for (int i = 0; i < ROWS; i++) {
        bell(rows[i], VOCAB, (uint64_t)i);
    }
    gumball_pool *host = pool_of(VOCAB, 1), *pool = device_pool_of(device, VOCAB);
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0), *kept = gumball_outputs_new(1);
    int32_t slots[ROWS];
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(host, requests[i], prompt, 3);
        CHECK(admit(pool, requests[i], prompt, 3) == slots[i]);
    }

    // Logits of the host.
    gumball_logits logits = logits_of(rows, GUMBALL_F32, ROWS, VOCAB);
    OK(gumball_pool_step(host, &logits, slots, ROWS, NULL, wanted));
    OK(gumball_pool_step(pool, &logits, slots, ROWS, NULL, seen));
    same(wanted, seen);

    // Logits and bitmasks of the device, in a step and in a graph of three.
    uint32_t masks[ROWS][WORDS];
    memset(masks, 0x5A, sizeof masks);
    gumball_buffer *buffer = gumball_buffer_new(device, sizeof rows);
    gumball_buffer *mask_buffer = gumball_buffer_new(device, sizeof masks);
    OK(gumball_buffer_write(buffer, 0, rows, sizeof rows));
    OK(gumball_buffer_write(mask_buffer, 0, masks, sizeof masks));
    SIZED(gumball_device_input, plain);
    plain.logits = gumball_buffer_address(buffer);
    plain.rows = ROWS;
    plain.vocab = VOCAB;
    plain.dtype = GUMBALL_F32;
    gumball_device_input masked = plain;
    masked.masks = gumball_buffer_address(mask_buffer);
    masked.mask_rows = ROWS;
    masked.mask_width = WORDS;
    OK(gumball_pool_assign(pool, slots, ROWS, NULL));
    OK(gumball_pool_enqueue(pool, &masked));
    OK(gumball_pool_fetch(pool, kept));
    SIZED(gumball_step_options, options);
    options.masks = masks[0];
    options.mask_width = WORDS;
    OK(gumball_pool_step(host, &logits, slots, ROWS, &options, wanted));
    same(wanted, kept);
    size_t len = 0;
    CHECK(gumball_outputs_kept(kept, 1, &len) != NULL && len == 1);

    variants_of(device, &plain);
    route_of(device, &plain);

    const gumball_device_input *inputs[] = {&plain, &masked, &plain};
    gumball_graph *graph = gumball_pool_capture(pool, inputs, 3);
    CHECK(gumball_graph_steps(graph) == 3);
    for (int replay = 0; replay < 2; replay++) {
        OK(gumball_pool_replay(pool, graph));
        OK(gumball_pool_fetch(pool, seen));
        for (int step = 0; step < 3; step++) {
            OK(gumball_pool_step(host, &logits, slots, ROWS, step == 1 ? &options : NULL, wanted));
        }
        same(wanted, seen);
    }
    gumball_pool *other = device_pool_of(device, VOCAB);
    REFUSED(gumball_pool_replay(other, graph), GUMBALL_OUT_OF_RANGE,
            "graph is that of another pool, but must be one that this pool captured");
    gumball_pool_free(other);

    // What a step came to lies on the device, the tokens first.
    SIZED(gumball_layout, layout);
    OK(gumball_pool_outputs_layout(pool, &layout));
    CHECK(layout.rows == ROWS && layout.tokens == 0 && gumball_pool_outputs_address(pool) != NULL);
    OK(gumball_layout_of(ROWS, 3, 2, &layout));
    CHECK(layout.words == ROWS * 16);

    // The state came along: only the request with penalties kept its history, so it alone is known after unfetched steps.
    SIZED(gumball_state, state);
    SIZED(gumball_state, host_state);
    OK(gumball_pool_state(pool, slots[2], &state));
    OK(gumball_pool_state(host, slots[2], &host_state));
    CHECK(state.output_len == 8 && host_state.output_len == 8 && state.position == host_state.position);
    CHECK(memcmp(state.output, host_state.output, 8 * sizeof *state.output) == 0);
    CHECK(gumball_pool_state(pool, slots[0], &state) == GUMBALL_UNAVAILABLE);
    OK(gumball_pool_truncate(pool, slots[2], 5));
    OK(gumball_pool_truncate(host, slots[2], 5));
    OK(gumball_pool_push(pool, slots[2], 3));
    OK(gumball_pool_push(host, slots[2], 3));
    OK(gumball_pool_step(host, &logits, slots, ROWS, NULL, wanted));
    OK(gumball_pool_step(pool, &logits, slots, ROWS, NULL, seen));
    same(wanted, seen);

    // Scores, half precision, and a sampler that draws there.
    const uint32_t ids[] = {7, 8, 7, 9};
    gumball_params *params = params_of("{\"logprobs\": {\"mode\": \"tempered\", \"top_n\": 2}, \"seed\": 5}");
    SIZED(gumball_scored, scored);
    scored.params = params;
    scored.ids = ids;
    scored.ids_len = 4;
    scored.prompt_len = 4;
    scored.start = 1;
    static uint16_t halves[3][VOCAB];
    to_bf16(rows[0], halves[0], 3 * VOCAB);
    gumball_logits brain = logits_of(halves, GUMBALL_BF16, 3, VOCAB);
    OK(gumball_pool_score(host, &brain, &scored, 3, NULL, wanted));
    OK(gumball_pool_score(pool, &brain, &scored, 3, NULL, seen));
    same(wanted, seen);
    OK(gumball_register_device_route("there", device));
    CHECK(gumball_register_device_route("there", device) == GUMBALL_OUT_OF_RANGE);
    SIZED(gumball_sampler_config, config);
    config.vocab = VOCAB;
    gumball_sampler *here = gumball_sampler_new(params, &config);
    config.route = "there";
    gumball_sampler *there = gumball_sampler_new(params, &config);
    gumball_token a, b;
    OK(gumball_sampler_sample(here, rows[0], GUMBALL_F32, VOCAB, NULL, &a));
    OK(gumball_sampler_sample(there, rows[0], GUMBALL_F32, VOCAB, NULL, &b));
    CHECK(a.id == b.id && a.logprob == b.logprob && a.rank == b.rank);

    operators_of(device, buffer);
    steps_over_probabilities(device);

    // What is wrong is refused before anything is enqueued.
    gumball_device_input wrong = plain;
    wrong.logits = (const char *)plain.logits + 1;
    CHECK(gumball_pool_enqueue(pool, &wrong) == GUMBALL_OUT_OF_RANGE);
    wrong.logits = NULL;
    CHECK(gumball_pool_enqueue(pool, &wrong) == GUMBALL_OUT_OF_RANGE);
    wrong = plain;
    wrong.rows = 3;
    CHECK(gumball_pool_enqueue(pool, &wrong) == GUMBALL_LENGTH);
    wrong = plain;
    wrong.dtype = 7;
    CHECK(gumball_pool_enqueue(pool, &wrong) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_buffer_write(buffer, sizeof rows, rows, 4) == GUMBALL_LENGTH);
    float back[VOCAB];
    OK(gumball_buffer_read(buffer, sizeof rows[0], back, sizeof back));
    CHECK(memcmp(back, rows[1], sizeof back) == 0);

    // A released request is padding in what is captured.
    OK(gumball_pool_assign(pool, slots, ROWS, NULL));
    OK(gumball_pool_release(pool, slots[0]));
    OK(gumball_pool_replay(pool, graph));
    OK(gumball_pool_fetch(pool, seen));
    CHECK(gumball_outputs_tokens(seen)[0] == -1 && gumball_outputs_tokens(seen)[1] >= 0);

    gumball_sampler_free(here);
    gumball_sampler_free(there);
    gumball_params_free(params);
    gumball_device_free(device);
    gumball_pool_free(pool);
    gumball_graph_free(graph);
    gumball_pool_free(host);
    gumball_outputs_free(wanted);
    gumball_outputs_free(seen);
    gumball_outputs_free(kept);
    gumball_buffer_free(buffer);
    gumball_buffer_free(mask_buffer);
    return verdict("device");
}
