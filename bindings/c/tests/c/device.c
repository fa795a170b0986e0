// Pools on a device beside one on the host: device NAME, as cuda.

#include <stddef.h>

#include "check.h"
#include "rows.h"

enum { VOCAB = 1000, WORDS = (VOCAB + 31) / 32, ROWS = 4, DRAFTS = 2 };

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

// What operators read and write, in one piece of memory, so that it is the same on the host and on a device.
typedef struct {
    float logits[ROWS][VOCAB], weights[ROWS][VOCAB], in_place[ROWS][VOCAB];
    float temperatures[ROWS], top_ps[ROWS];
    uint64_t seeds[ROWS];
    int64_t top_ks[ROWS], offsets[ROWS];
    uint32_t slots[ROWS];
    int32_t ids[DRAFTS], parents[DRAFTS], selected[ROWS];
    struct {
        float softmax[ROWS][VOCAB], masked[ROWS][VOCAB], kept[ROWS][VOCAB], probabilities[ROWS][VOCAB], logprobs[ROWS];
        uint32_t statuses[2][ROWS], ranks[ROWS], counts[3], accepted;
        int32_t drawn[3][ROWS], chain[DRAFTS + 1], tree[DRAFTS + 1], tree_rows[DRAFTS + 1];
    } written;
} operands;

// Calls every operator. `at` is where the operands lie for the operators, which here may be no place to read.
static void operate(gumball_operators *operators, operands *at) {
    const gumball_logits logits = logits_of(at->logits, GUMBALL_F32, ROWS, VOCAB);
    gumball_logits weights = logits_of(at->weights, GUMBALL_F32, ROWS, VOCAB);
    weights.kind = GUMBALL_PROBABILITIES;
    gumball_logits in_place = weights;
    in_place.data = at->in_place;
    SIZED(gumball_rows_out, out);
    out.rows = ROWS;
    out.vocab = VOCAB;
    out.data = at->written.softmax;
    OK(gumball_operators_softmax(operators, &logits, 0.0f, at->temperatures, &out, at->written.statuses[0]));

    SIZED(gumball_row_params, params);
    params.temperature = at->temperatures;
    params.top_k = at->top_ks;
    SIZED(gumball_draws, draws);
    draws.outputs = ROWS;
    draws.seeds = at->seeds;
    OK(gumball_operators_sample(operators, &logits, &params, &draws, at->written.drawn[0], NULL));
    // The lists as pools, of which every row reads another element.
    SIZED(gumball_pool_slots, pools);
    pools.slots = at->slots;
    pools.size = ROWS;
    pools.offsets = at->offsets;
    OK(gumball_operators_sample_from_pools(operators, &logits, &pools, &params, &draws, at->written.drawn[1], NULL));
    out.data = at->written.masked;
    OK(gumball_operators_mask_logits(operators, &logits, &params, &out, NULL));

    params.temperature = NULL;
    params.top_p = at->top_ps;
    out.data = at->written.probabilities;
    OK(gumball_operators_probabilities(operators, &weights, &params, &out, at->written.statuses[1]));
    out.data = at->written.kept;
    OK(gumball_operators_mask_logits(operators, &weights, &params, &out, NULL));
    OK(gumball_operators_sample(operators, &weights, &params, &draws, at->written.drawn[2], NULL));
    out.data = at->in_place;
    OK(gumball_operators_probabilities(operators, &in_place, &params, &out, NULL));
    CHECK(gumball_operators_softmax(operators, &in_place, 1.0f, NULL, &out, NULL) == GUMBALL_OUT_OF_RANGE);

    // Two drafts, as a chain whose target and drafter have the probabilities just made, and as siblings of a tree.
    SIZED(gumball_draft_trees, trees);
    trees.trees = 1;
    trees.drafts = trees.draft_rows = DRAFTS;
    trees.vocab = VOCAB;
    trees.mode = GUMBALL_REJECTION;
    trees.draft_probs = trees.target_probs = at->written.softmax[0];
    trees.draft_token_ids = at->ids;
    draws.outputs = 1;
    draws.seeds = NULL;
    draws.seed = 4;
    uint32_t *counts = at->written.counts;
    OK(gumball_operators_judge(operators, &trees, &draws, at->written.chain, NULL, counts, counts + 1, counts + 2));
    trees.draft_probs = NULL;
    trees.parents = at->parents;
    OK(gumball_operators_judge(operators, &trees, &draws, at->written.tree, at->written.tree_rows,
                               &at->written.accepted, NULL, NULL));
    OK(gumball_operators_selected_logprobs(operators, &logits, at->selected, at->written.logprobs, at->written.ranks,
                                           NULL));
}

static void operators_read_and_write_the_devices_memory(gumball_device *device) {
    static operands here, seen;
    memcpy(here.logits, rows, sizeof rows);
    for (int i = 0; i < ROWS * VOCAB; i++) {
        here.weights[i / VOCAB][i % VOCAB] = (float)exp((double)rows[i / VOCAB][i % VOCAB]);
    }
    memcpy(here.in_place, here.weights, sizeof here.weights);
    const float temperatures[ROWS] = {0.7f, 1.0f, 0.0f, 2.0f}, top_ps[ROWS] = {1.0f, 0.8f, 0.9f, 0.5f};
    const int64_t top_ks[ROWS] = {5, 0, 40, 3};
    const uint32_t slots[ROWS] = {2, 0, 3, 3};
    const int32_t ids[DRAFTS] = {7, 9}, parents[DRAFTS] = {-1, -1}, selected[ROWS] = {3, -1, 999, 7};
    memcpy(here.temperatures, temperatures, sizeof temperatures);
    memcpy(here.top_ps, top_ps, sizeof top_ps);
    memcpy(here.top_ks, top_ks, sizeof top_ks);
    memcpy(here.slots, slots, sizeof slots);
    memcpy(here.ids, ids, sizeof ids);
    memcpy(here.parents, parents, sizeof parents);
    memcpy(here.selected, selected, sizeof selected);
    for (uint32_t slot = 0; slot < ROWS; slot++) {
        here.seeds[slot] = slot + 5;
        here.offsets[slot] = (int64_t)(slot + 5) << 32 | (UINT32_MAX - slot);
    }
    gumball_operators *host = gumball_operators_new(NULL), *there = gumball_operators_new_on_device(device);
    gumball_buffer *buffer = copied_up(device, &here, sizeof here);
    operate(host, &here);
    operate(there, (operands *)gumball_buffer_address(buffer));
    OK(gumball_buffer_read(buffer, 0, &seen, sizeof seen));
    CHECK(memcmp(&here, &seen, sizeof here) == 0);
    const int32_t *drawn = seen.written.drawn[0];
    CHECK(drawn[0] >= 0 && drawn[1] != drawn[2] && seen.written.ranks[0] > 0 && seen.written.ranks[1] == 0);
    gumball_buffer_free(buffer);
    gumball_operators_free(host);
    gumball_operators_free(there);
}

// A step says what its rows are made of; a program with the older header says nothing of kinds, and means logits.
static void steps_over_probabilities(gumball_device *device, const gumball_device_input *plain) {
    gumball_pool *host = pool_of(VOCAB, 1), *pool = device_pool_of(device, VOCAB);
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0);
    const int32_t slot = admit(host, "{\"seed\": 23, \"top_p\": 0.8, \"logprobs\": {\"top_n\": 2}}", prompt, 3);
    CHECK(admit(pool, "{\"seed\": 23, \"top_p\": 0.8, \"logprobs\": {\"top_n\": 2}}", prompt, 3) == slot);
    gumball_logits weights = logits_of(rows, GUMBALL_F32, 1, VOCAB), logits = weights;
    weights.kind = GUMBALL_PROBABILITIES;
    gumball_device_input input = *plain, older = *plain;
    input.rows = older.rows = 1;
    input.kind = GUMBALL_PROBABILITIES;
    older.kind = GUMBALL_PROBABILITIES;
    older.struct_size = offsetof(gumball_device_input, kind);
    OK(gumball_pool_assign(pool, &slot, 1, NULL));
    const gumball_device_input *inputs[] = {&older, &input};
    gumball_graph *graph = gumball_pool_capture(pool, inputs, 2);
    for (int i = 0; i < 2; i++) {
        OK(i == 0 ? gumball_pool_enqueue(pool, &older) : gumball_pool_replay(pool, graph));
        OK(i == 0 ? gumball_pool_enqueue(pool, &input) : GUMBALL_OK);
        OK(gumball_pool_fetch(pool, seen));
        OK(gumball_pool_step(host, &logits, &slot, 1, NULL, wanted));
        OK(gumball_pool_step(host, &weights, &slot, 1, NULL, wanted));
        same(wanted, seen);
    }
    OK(gumball_pool_step(host, &weights, &slot, 1, NULL, wanted));
    OK(gumball_pool_step(pool, &weights, &slot, 1, NULL, seen));
    same(wanted, seen);
    input.kind = 2;
    REFUSED(gumball_pool_enqueue(pool, &input), GUMBALL_OUT_OF_RANGE,
            "kind is 2, but must be GUMBALL_LOGITS or GUMBALL_PROBABILITIES");
    SIZED(gumball_step_options, options);
    options.kind = GUMBALL_PROBABILITIES;
    CHECK(gumball_pool_assign(pool, &slot, 1, &options) == GUMBALL_CONFLICT);
    gumball_graph_free(graph);
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
    const int32_t slot = admit(host, "{\"seed\": 23, \"temperature\": 1.2, \"top_k\": 40}", NULL, 0);
    CHECK(admit(pool, "{\"seed\": 23, \"temperature\": 1.2, \"top_k\": 40}", NULL, 0) == slot);
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0);
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 1, VOCAB);
    gumball_device_input one = *input;
    one.rows = 1;
    OK(gumball_pool_assign(pool, &slot, 1, NULL));
    OK(gumball_pool_step(host, &logits, &slot, 1, NULL, wanted));
    OK(gumball_pool_enqueue(pool, &one));
    OK(gumball_pool_fetch(pool, seen));
    same(wanted, seen);
    one.kind = GUMBALL_PROBABILITIES;
    CHECK(gumball_pool_enqueue(pool, &one) == GUMBALL_CONFLICT);
    int32_t other;
    gumball_params *edited = params_of("{\"repetition_penalty\": 1.2}");
    CHECK(gumball_pool_admit(pool, edited, NULL, 0, &other) == GUMBALL_CONFLICT);
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

    // Scores, and half precision.
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

    operators_read_and_write_the_devices_memory(device);
    steps_over_probabilities(device, &plain);

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
