// Programs with older and newer headers: every sized struct, in every function that takes it, as an older program knows it, as
// this header does, and as newer ones will, whose further fields are zero or are not. Each lies in memory of exactly its size, so that
// what reads beyond it is seen by the address sanitizer and by valgrind.

#include <stddef.h>

#include "check.h"
#include "rows.h"

enum { VOCAB = 40, ROWS = 2, WIDTH = 7 };

// The structs that have a size, their values here, and the last field that each had when the ABI's version began.
#define STRUCTS(each) \
    each(gumball_sampler_config, sampler_config, keep_ids); \
    each(gumball_pool_config, pool_config, level); \
    each(gumball_device_pool_config, device_pool_config, keep_histories); \
    each(gumball_operators_config, operators_config, level); \
    each(gumball_dist_config, dist_config, is_modulo); \
    each(gumball_head_config, head_config, file); \
    each(gumball_clustered_options, clustered_options, is_in_place); \
    each(gumball_state, state, mu); \
    each(gumball_logits, logits, dtype); \
    each(gumball_hidden, hidden, dtype); \
    each(gumball_step_options, options, hook_rows); \
    each(gumball_drafts, drafts, threshold_acc); \
    each(gumball_draft_rows, draft_rows, mode); \
    each(gumball_scored, scored, start); \
    each(gumball_rows_out, out, dtype); \
    each(gumball_row_params, row_params, min_p); \
    each(gumball_draws, draws, position); \
    each(gumball_pool_slots, pool_slots, offsets); \
    each(gumball_draft_trees, trees, threshold_acc); \
    each(gumball_dist_shape, shape, is_data_parallel); \
    each(gumball_dist_decision, plan, batch); \
    each(gumball_device_input, input, dtype); \
    each(gumball_device_drafts, device_drafts, bits); \
    each(gumball_device_ints, ints, bits); \
    each(gumball_graph_work, work, column); \
    each(gumball_layout, layout, id_ranks); \
    each(gumball_head_info, info, most_rows); \
    each(gumball_head_counts, counts, screen_reads)

#define DECLARED(type, value, last) static type value
#define SIZE_SET(type, value, last) value.struct_size = sizeof value
#define LEAST(type, value, last) enum { least_##value = offsetof(type, last) + sizeof(((type *)0)->last) }

STRUCTS(DECLARED);
STRUCTS(LEAST);

static float rows[ROWS * VOCAB], written[ROWS * VOCAB], weights[VOCAB * WIDTH], states[ROWS * WIDTH], chances[ROWS];
static int32_t slots[ROWS], device_slots[ROWS], dist_slots[ROWS], drafted[ROWS], tokens[2 * ROWS];
static const uint32_t no_drafts[ROWS] = {0, 0}, ids[] = {1, 2, 3};
static int64_t draft_batch;
static gumball_sampler *sampler;
static gumball_pool *pool, *device_pool;
static gumball_dist *dist;
static gumball_operators *operators;
static gumball_outputs *outputs;
static gumball_verification *verification;
static gumball_params *params;
static gumball_head *head;
static gumball_device *device;

// A struct as this header knows it, and its least size.
typedef struct {
    const char *name, *where;
    const void *known;
    size_t size, least;
} sized;

// Calls a function with a struct; returns whether it did what it says.
typedef int (*use)(void *given);

// Makes a struct of another size, in memory of its own: what is known, then zeros.
static unsigned char *of_size(const sized *it, size_t size) {
    unsigned char *given = (unsigned char *)calloc(1, size);
    memcpy(given, it->known, size < it->size ? size : it->size);
    memcpy(given, &size, sizeof size);
    return given;
}

static void expect(const sized *it, size_t size, int ok, int wanted) {
    if (ok != wanted) {
        fprintf(stderr, "%s of %zu bytes (known: %zu) in %s: %s; last error: %s\n", it->name, size, it->size, it->where,
                ok ? "taken" : "refused", gumball_error_message());
        failures += 1;
    }
}

static void refuses_other_sizes(const sized *it, use call) {
    const size_t wrong[] = {0, 1, it->least - 1, 4097, (size_t)-1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char *given = of_size(it, it->size);
        memcpy(given, &wrong[i], sizeof wrong[i]);
        expect(it, wrong[i], call(given), 0);
        CHECK(gumball_error_code() == GUMBALL_OUT_OF_RANGE && strstr(gumball_error_message(), "struct_size") != NULL);
        free(given);
    }
}

// Struct that is read.
static void read_by(sized it, use call) {
    const size_t taken[] = {it.least, it.size, it.size + 1, it.size + 8, it.size + 64, 4096};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        unsigned char *given = of_size(&it, taken[i]);
        expect(&it, taken[i], call(given), 1);
        free(given);
    }
    // A field that this library does not know is set: the first byte beyond, one in the middle, the last.
    const size_t newer[] = {it.size + 1, it.size + 64, 4096};
    for (size_t i = 0; i < 9; i++) {
        const size_t size = newer[i / 3], places[] = {it.size, (it.size + size) / 2, size - 1};
        unsigned char *given = of_size(&it, size);
        given[places[i % 3]] = 1;
        expect(&it, size, call(given), 0);
        CHECK(gumball_error_code() == GUMBALL_OUT_OF_RANGE);
        CHECK(strstr(gumball_error_message(), "the header is newer than the library") != NULL);
        free(given);
    }
    refuses_other_sizes(&it, call);
}

// Struct that is written: what the program knows beyond is zero then.
static void written_by(sized it, use call) {
    const size_t taken[] = {it.least, it.size, it.size + 1, it.size + 64, 4096};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        unsigned char *given = (unsigned char *)malloc(taken[i]);
        memset(given, 0xA5, taken[i]);
        memcpy(given, &taken[i], sizeof taken[i]);
        expect(&it, taken[i], call(given), 1);
        CHECK(memcmp(given, &taken[i], sizeof taken[i]) == 0);
        for (size_t place = it.size; place < taken[i]; place++) {
            CHECK(given[place] == 0);
        }
        free(given);
    }
    refuses_other_sizes(&it, call);
}

static sized sized_of(const char *name, const char *where, const void *known, size_t size, size_t least) {
    sized it = {name, where, known, size, least};
    return it;
}

#define OF(value, call) sized_of(#value, #call, &value, sizeof value, least_##value), call
#define READ(value, call) read_by(OF(value, call))
#define WRITTEN(value, call) written_by(OF(value, call))

// A call that says whether it succeeded, and one that makes something. `it` is the struct.
#define CALL(name, type, call) \
    static int name(void *given) { \
        type *it = (type *)given; \
        return (call) == GUMBALL_OK; \
    }
#define MAKES(name, type, made, call) \
    static int name(void *given) { \
        type *it = (type *)given; \
        made *result = call; \
        made##_free(result); \
        return result != NULL; \
    }

MAKES(sampler_new, gumball_sampler_config, gumball_sampler, gumball_sampler_new(params, it))
MAKES(resume_config, gumball_sampler_config, gumball_sampler, gumball_sampler_resume(params, it, &state))
MAKES(resume_state, gumball_state, gumball_sampler, gumball_sampler_resume(params, &sampler_config, it))
MAKES(pool_new, gumball_pool_config, gumball_pool, gumball_pool_new(it))
MAKES(pool_new_there, gumball_device_pool_config, gumball_pool, gumball_pool_new_on_device(device, it))
MAKES(dist_new, gumball_dist_config, gumball_dist, gumball_dist_new(it))
MAKES(operators_new, gumball_operators_config, gumball_operators, gumball_operators_new(it))
MAKES(head_new, gumball_head_config, gumball_head, gumball_head_new(it))
MAKES(build, gumball_head_config, gumball_head, gumball_head_clustered_build(it, NULL, 8, 1, NULL, NULL))
MAKES(build_with, gumball_clustered_options, gumball_head,
      gumball_head_clustered_build(&head_config, it, 8, 1, NULL, NULL))

static int pool_resume(void *given) {
    int32_t slot = -1;
    int ok = gumball_pool_resume(pool, params, (const gumball_state *)given, &slot) == GUMBALL_OK;
    if (ok) {
        OK(gumball_pool_release(pool, slot));
    }
    return ok;
}

static gumball_token token;
CALL(sample, gumball_step_options, gumball_sampler_sample(sampler, rows, GUMBALL_F32, VOCAB, it, &token))
CALL(sampler_state, gumball_state, gumball_sampler_state(sampler, it))
CALL(pool_state, gumball_state, gumball_pool_state(pool, slots[0], it))
CALL(layout_of, gumball_layout, gumball_layout_of(3, 2, 1, it))
CALL(outputs_layout, gumball_layout, gumball_outputs_layout(outputs, it))
CALL(step, gumball_logits, gumball_pool_step(pool, it, slots, ROWS, NULL, outputs))
CALL(step_with, gumball_step_options, gumball_pool_step(pool, &logits, slots, ROWS, it, outputs))
CALL(verify, gumball_logits, gumball_pool_verify(pool, it, slots, ROWS, &drafts, NULL, verification))
CALL(verify_drafts, gumball_drafts, gumball_pool_verify(pool, &logits, slots, ROWS, it, NULL, verification))
CALL(verify_with, gumball_step_options, gumball_pool_verify(pool, &logits, slots, ROWS, &drafts, it, verification))
CALL(draft, gumball_draft_rows, gumball_pool_draft(pool, &logits, slots, ROWS, it, NULL, drafted, NULL))
CALL(score, gumball_logits, gumball_pool_score(pool, it, &scored, ROWS, NULL, outputs))
CALL(score_known, gumball_scored, gumball_pool_score(pool, &logits, it, ROWS, NULL, outputs))
CALL(score_with, gumball_step_options, gumball_pool_score(pool, &logits, &scored, ROWS, it, outputs))

CALL(softmax, gumball_logits, gumball_operators_softmax(operators, it, 1.0f, NULL, &out, NULL))
CALL(softmax_out, gumball_rows_out, gumball_operators_softmax(operators, &logits, 1.0f, NULL, it, NULL))
CALL(probabilities, gumball_logits, gumball_operators_probabilities(operators, it, &row_params, &out, NULL))
CALL(probabilities_by, gumball_row_params, gumball_operators_probabilities(operators, &logits, it, &out, NULL))
CALL(probabilities_out, gumball_rows_out, gumball_operators_probabilities(operators, &logits, &row_params, it, NULL))
CALL(mask, gumball_logits, gumball_operators_mask_logits(operators, it, &row_params, &out, NULL))
CALL(mask_by, gumball_row_params, gumball_operators_mask_logits(operators, &logits, it, &out, NULL))
CALL(mask_out, gumball_rows_out, gumball_operators_mask_logits(operators, &logits, &row_params, it, NULL))
CALL(draw, gumball_logits, gumball_operators_sample(operators, it, &row_params, &draws, tokens, NULL))
CALL(draw_by, gumball_row_params, gumball_operators_sample(operators, &logits, it, &draws, tokens, NULL))
CALL(draw_which, gumball_draws, gumball_operators_sample(operators, &logits, &row_params, it, tokens, NULL))
CALL(draw_from_pools, gumball_pool_slots,
     gumball_operators_sample_from_pools(operators, &logits, it, NULL, &draws, tokens, NULL))
CALL(judge, gumball_draft_trees, gumball_operators_judge(operators, it, &draws, tokens, NULL, NULL, NULL, NULL))
CALL(selected, gumball_logits, gumball_operators_selected_logprobs(operators, it, drafted, chances, NULL, NULL))

CALL(head_info, gumball_head_info, gumball_head_describe(head, it))
CALL(head_counts, gumball_head_counts, gumball_pool_head_counts(pool, it))
CALL(head_logits, gumball_hidden, gumball_head_logits(head, it, written))
CALL(hidden_step, gumball_hidden, gumball_pool_step_hidden(pool, head, it, slots, ROWS, NULL, outputs))
CALL(hidden_step_with, gumball_step_options, gumball_pool_step_hidden(pool, head, &hidden, slots, ROWS, it, outputs))
CALL(hidden_verify, gumball_hidden,
     gumball_pool_verify_hidden(pool, head, it, slots, ROWS, &drafts, NULL, verification))
CALL(hidden_verify_drafts, gumball_drafts,
     gumball_pool_verify_hidden(pool, head, &hidden, slots, ROWS, it, NULL, verification))
CALL(hidden_draft, gumball_hidden,
     gumball_pool_draft_hidden(pool, head, it, slots, ROWS, &draft_rows, NULL, drafted, NULL))
CALL(hidden_draft_from, gumball_draft_rows,
     gumball_pool_draft_hidden(pool, head, &hidden, slots, ROWS, it, NULL, drafted, NULL))
CALL(hidden_score, gumball_hidden, gumball_pool_score_hidden(pool, head, it, &scored, 1, NULL, outputs))
CALL(hidden_score_known, gumball_scored, gumball_pool_score_hidden(pool, head, &hidden, it, 1, NULL, outputs))

CALL(dist_plan, gumball_dist_shape, gumball_dist_plan(dist, dist_slots, ROWS, it, &plan))
CALL(dist_planned, gumball_dist_decision, gumball_dist_plan(dist, dist_slots, ROWS, NULL, it))
CALL(dist_step_plan, gumball_dist_decision, gumball_dist_step(dist, it, &logits, dist_slots, ROWS, NULL, outputs))
CALL(dist_step, gumball_logits, gumball_dist_step(dist, NULL, it, dist_slots, ROWS, NULL, outputs))
CALL(dist_step_with, gumball_step_options, gumball_dist_step(dist, NULL, &logits, dist_slots, ROWS, it, outputs))
CALL(dist_verify, gumball_drafts, gumball_dist_verify(dist, NULL, &logits, dist_slots, ROWS, it, NULL, verification))
CALL(dist_state, gumball_state, gumball_dist_state(dist, dist_slots[0], it))

CALL(pool_outputs_layout, gumball_layout, gumball_pool_outputs_layout(device_pool, it))
CALL(assign, gumball_step_options, gumball_pool_assign(device_pool, device_slots, ROWS, it))
CALL(assign_drafts, gumball_step_options,
     gumball_pool_assign_drafts(device_pool, device_slots, no_drafts, ROWS, GUMBALL_COUPLED, it))
CALL(assign_draft, gumball_step_options,
     gumball_pool_assign_draft(device_pool, draft_batch, device_slots, NULL, ROWS, GUMBALL_COUPLED, it))
CALL(enqueue, gumball_device_input, gumball_pool_enqueue(device_pool, it))
CALL(enqueue_draft, gumball_device_input,
     gumball_pool_enqueue_draft(device_pool, draft_batch, it, NULL, 0, 0, 32, NULL))
CALL(enqueue_verify, gumball_device_input, gumball_pool_enqueue_verify(device_pool, it, &device_drafts, NULL))
CALL(enqueue_verify_drafts, gumball_device_drafts, gumball_pool_enqueue_verify(device_pool, &input, it, NULL))
CALL(copy_drafts, gumball_device_ints, gumball_pool_enqueue_copy_drafts(device_pool, draft_batch, it, 0))
MAKES(capture_verify, gumball_device_input, gumball_graph, gumball_pool_capture_verify(device_pool, it, &device_drafts))
MAKES(capture_verify_drafts, gumball_device_drafts, gumball_graph, gumball_pool_capture_verify(device_pool, &input, it))

static int capture(void *given) {
    const gumball_device_input *const inputs[] = {(const gumball_device_input *)given};
    gumball_graph *graph = gumball_pool_capture(device_pool, inputs, 1);
    gumball_graph_free(graph);
    return graph != NULL;
}

static int capture_work(void *given) {
    const gumball_graph_work *const pieces[] = {(const gumball_graph_work *)given};
    gumball_graph *graph = gumball_pool_capture_work(device_pool, pieces, 1);
    gumball_graph_free(graph);
    return graph != NULL;
}

// Structs whose rows lie where the operators work. Rows are read apart from where they are written, and in their place.
static void by_operators(float *from, float *to) {
    logits.data = from;
    out.data = to;
    READ(logits, softmax);
    READ(out, softmax_out);
    READ(logits, probabilities);
    READ(row_params, probabilities_by);
    READ(out, probabilities_out);
    READ(logits, mask);
    READ(row_params, mask_by);
    READ(out, mask_out);
    out.data = from;
    READ(logits, mask);
    READ(out, mask_out);
    READ(logits, softmax);
}

static void on_the_host(void) {
    READ(sampler_config, sampler_new);
    READ(sampler_config, resume_config);
    READ(state, resume_state);
    READ(pool_config, pool_new);
    READ(operators_config, operators_new);
    READ(state, pool_resume);
    READ(options, sample);
    READ(logits, step);
    READ(options, step_with);
    READ(logits, verify);
    READ(drafts, verify_drafts);
    READ(options, verify_with);
    READ(draft_rows, draft);
    READ(logits, score);
    READ(scored, score_known);
    READ(options, score_with);
    int32_t draft_ids[ROWS] = {3, 5};
    by_operators(rows, written);
    READ(logits, draw);
    READ(row_params, draw_by);
    READ(draws, draw_which);
    READ(pool_slots, draw_from_pools);
    READ(logits, selected);
    draws.outputs = 1;
    trees.draft_token_ids = draft_ids;
    trees.target_probs = written;
    READ(trees, judge);
    WRITTEN(state, sampler_state);
    WRITTEN(state, pool_state);
    WRITTEN(layout, layout_of);
    WRITTEN(layout, outputs_layout);
    CHECK(gumball_layout_of((size_t)1 << 62, 1, 1, &layout) == GUMBALL_OUT_OF_RANGE);
}

static void from_hidden_states(void) {
    head = gumball_head_new(&head_config);
    READ(head_config, head_new);
    READ(hidden, head_logits);
    READ(hidden, hidden_step);
    READ(options, hidden_step_with);
    READ(hidden, hidden_verify);
    READ(drafts, hidden_verify_drafts);
    READ(hidden, hidden_draft);
    READ(draft_rows, hidden_draft_from);
    READ(hidden, hidden_score);
    READ(scored, hidden_score_known);
    WRITTEN(info, head_info);
    WRITTEN(counts, head_counts);
    head_config.kind = GUMBALL_HEAD_CLUSTERED;
    READ(head_config, build);
    READ(clustered_options, build_with);
    gumball_head_free(head);
}

// A group of one process.
static void over_processes(void) {
    const char *const address = "tcp:127.0.0.1:0";
    dist_config.addresses = &address;
    dist = gumball_dist_new(&dist_config);
    for (int i = 0; i < ROWS; i++) {
        OK(gumball_dist_admit(dist, params, NULL, 0, &dist_slots[i]));
    }
    OK(gumball_dist_plan(dist, dist_slots, ROWS, NULL, &plan));
    READ(dist_config, dist_new);
    READ(shape, dist_plan);
    WRITTEN(plan, dist_planned);
    READ(plan, dist_step_plan);
    READ(logits, dist_step);
    READ(options, dist_step_with);
    READ(drafts, dist_verify);
    WRITTEN(state, dist_state);
    gumball_dist_free(dist);
}

static void on_a_device(const char *name) {
    device = gumball_device_open(name);
    CHECK(device != NULL);
    device_pool = gumball_pool_new_on_device(device, &device_pool_config);
    CHECK(device_pool != NULL);
    for (int i = 0; i < ROWS; i++) {
        device_slots[i] = admit(device_pool, "{\"seed\": 3}", NULL, 0);
    }
    gumball_buffer *buffer = gumball_buffer_new(device, 3 * sizeof rows);
    OK(gumball_buffer_write(buffer, 0, rows, sizeof rows));
    float *from = (float *)gumball_buffer_address(buffer), *to = from + ROWS * VOCAB;
    input.logits = from;
    ints.data = to;
    READ(device_pool_config, pool_new_there);
    READ(options, assign);
    READ(input, enqueue);
    READ(input, capture);
    OK(gumball_pool_add_draft_batch(device_pool, ROWS, 1, 0, &draft_batch));
    READ(options, assign_draft);
    READ(input, enqueue_draft);
    READ(ints, copy_drafts);
    work.batch = draft_batch;
    work.ints = &ints;
    READ(work, capture_work);
    READ(options, assign_drafts);
    READ(input, enqueue_verify);
    READ(device_drafts, enqueue_verify_drafts);
    READ(input, capture_verify);
    READ(device_drafts, capture_verify_drafts);
    WRITTEN(layout, pool_outputs_layout);
    gumball_operators_free(operators);
    operators = gumball_operators_new_on_device(device);
    by_operators(from, to);
    gumball_buffer_free(buffer);
    gumball_pool_free(device_pool);
    gumball_device_free(device);
}

int main(int argc, char **argv) {
    bell(rows, ROWS * VOCAB, 1);
    bell(weights, VOCAB * WIDTH, 3);
    bell(states, ROWS * WIDTH, 4);
    STRUCTS(SIZE_SET);
    sampler_config.vocab = pool_config.vocab = dist_config.vocab = device_pool_config.vocab = head_config.vocab = VOCAB;
    logits.vocab = out.vocab = trees.vocab = input.vocab = VOCAB;
    logits.rows = out.rows = hidden.rows = input.rows = ints.rows = draws.outputs = ROWS;
    pool_config.threads = operators_config.threads = dist_config.threads = 1;
    device_pool_config.slots = device_pool_config.rows = ROWS;
    device_pool_config.history_growth = 4096;
    dist_config.world = pool_slots.size = trees.trees = trees.drafts = 1;
    head_config.weights = weights;
    head_config.width = hidden.width = WIDTH;
    head_config.kind = GUMBALL_HEAD_CERTIFIED;
    clustered_options.probes = 2;
    hidden.data = states;
    logits.data = rows;
    out.data = written;
    pool_slots.slots = drafts.counts = no_drafts;
    trees.mode = GUMBALL_REJECTION;
    work.kind = GUMBALL_WORK_COPY_DRAFTS;
    scored.ids = state.prompt = ids;
    scored.ids_len = 3;
    scored.prompt_len = scored.start = 1;
    state.prompt_len = 2;
    scored.params = params = params_of("{\"seed\": 1}");
    sampler = sampler_of("{\"seed\": 1}", VOCAB, NULL, 0);
    pool = pool_of(VOCAB, 1);
    operators = gumball_operators_new(&operators_config);
    outputs = gumball_outputs_new(0);
    verification = gumball_verification_new(0);
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(pool, "{\"seed\": 2}", NULL, 0);
    }
    on_the_host();
    from_hidden_states();
    over_processes();
    if (argc > 1) {
        on_a_device(argv[1]);
    }
    gumball_verification_free(verification);
    gumball_outputs_free(outputs);
    gumball_operators_free(operators);
    gumball_pool_free(pool);
    gumball_sampler_free(sampler);
    gumball_params_free(params);
    return verdict("structs");
}
