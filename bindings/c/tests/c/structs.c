// Programs with older and newer headers: every sized struct, in every function that takes it, as an older program knows it, as
// this header does, and as newer ones will, whose further fields are zero or are not. Each lies in memory of exactly its size, so that
// what reads beyond it is seen by the address sanitizer and by valgrind.

#include <stddef.h>

#include "check.h"
#include "rows.h"

enum { VOCAB = 40, ROWS = 2, WIDTH = 7 };

// A struct as this header knows it, and where its last field ended when the ABI's version began.
typedef struct {
    const char *name;
    const void *known;
    size_t size;
    size_t least;
} sized;

#define END(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define SIZED_STRUCT(type, value, last) {#type, &(value), sizeof(type), END(type, last)}

// Calls a function with a struct; returns whether it did what it says.
typedef int (*use)(void *given);

static float rows[ROWS * VOCAB], written[ROWS * VOCAB];
static gumball_sampler *sampler;
static gumball_pool *pool, *device_pool;
static gumball_operators *operators;
static gumball_outputs *outputs;
static gumball_params *params;
static gumball_device *device;
static gumball_buffer *buffer;
static int32_t slots[ROWS], device_slots[ROWS];

static gumball_logits logits;
static gumball_rows_out out;
static gumball_row_params row_params;
static gumball_draws draws;
static gumball_draft_chains chains;
static gumball_drafts drafts;
static gumball_draft_rows draft_rows;
static int32_t drafted[ROWS];
static int64_t draft_batch;
static float chances[ROWS];
static gumball_verification *verification;
static gumball_step_options options;
static gumball_scored scored;
static gumball_state state;
static gumball_device_input input;
static gumball_device_drafts device_drafts;
static gumball_dist *dist;
static int32_t dist_slots[ROWS];

// Makes a struct of another size, in memory of its own: what is known, then zeros.
static void *of_size(const sized *it, size_t size) {
    unsigned char *given = (unsigned char *)calloc(1, size);
    memcpy(given, it->known, size < it->size ? size : it->size);
    memcpy(given, &size, sizeof size);
    return given;
}

static void expect(const sized *it, const char *where, size_t size, int ok, int wanted) {
    if (ok != wanted) {
        fprintf(stderr, "%s of %zu bytes (known: %zu) in %s: %s; last error: %s\n", it->name, size, it->size, where,
                ok ? "taken" : "refused", gumball_error_message());
        failures += 1;
    }
}

// Struct that is read.
static void read_by(const sized *it, const char *where, use call) {
    const size_t taken[] = {it->least, it->size, it->size + 1, it->size + 8, it->size + 64, 4096};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        void *given = of_size(it, taken[i]);
        expect(it, where, taken[i], call(given), 1);
        free(given);
    }
    // A field that this library does not know is set: the first byte beyond, one in the middle, the last.
    const size_t newer[] = {it->size + 1, it->size + 64, 4096};
    for (size_t i = 0; i < 3; i++) {
        const size_t places[] = {it->size, (it->size + newer[i]) / 2, newer[i] - 1};
        for (size_t place = 0; place < 3; place++) {
            unsigned char *given = (unsigned char *)of_size(it, newer[i]);
            given[places[place]] = 1;
            expect(it, where, newer[i], call(given), 0);
            CHECK(gumball_error_code() == GUMBALL_OUT_OF_RANGE);
            CHECK(strstr(gumball_error_message(), "the header is newer than the library") != NULL);
            free(given);
        }
    }
    const size_t wrong[] = {0, 1, it->least - 1, 4097, (size_t)-1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *given = of_size(it, it->size);
        memcpy(given, &wrong[i], sizeof wrong[i]);
        expect(it, where, wrong[i], call(given), 0);
        CHECK(gumball_error_code() == GUMBALL_OUT_OF_RANGE && strstr(gumball_error_message(), "struct_size") != NULL);
        free(given);
    }
}

// Struct that is written: what the program knows beyond is zero then.
static void written_by(const sized *it, const char *where, use call) {
    const size_t taken[] = {it->least, it->size, it->size + 1, it->size + 64, 4096};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        unsigned char *given = (unsigned char *)malloc(taken[i]);
        memset(given, 0xA5, taken[i]);
        memcpy(given, &taken[i], sizeof taken[i]);
        expect(it, where, taken[i], call(given), 1);
        size_t size;
        memcpy(&size, given, sizeof size);
        CHECK(size == taken[i]);
        for (size_t place = it->size; place < taken[i]; place++) {
            CHECK(given[place] == 0);
        }
        free(given);
    }
    const size_t wrong[] = {0, it->least - 1, 4097, (size_t)-1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char *given = (unsigned char *)of_size(it, it->size);
        memcpy(given, &wrong[i], sizeof wrong[i]);
        expect(it, where, wrong[i], call(given), 0);
        free(given);
    }
}

#define READ(it, call) read_by(&(it), #call, call)
#define WRITTEN(it, call) written_by(&(it), #call, call)

static int sampler_new(void *given) {
    gumball_sampler *made = gumball_sampler_new(params, (const gumball_sampler_config *)given);
    gumball_sampler_free(made);
    return made != NULL;
}

static gumball_sampler_config sampler_config;

static int sampler_resume_config(void *given) {
    gumball_sampler *made = gumball_sampler_resume(params, (const gumball_sampler_config *)given, &state);
    gumball_sampler_free(made);
    return made != NULL;
}

static int sampler_resume_state(void *given) {
    gumball_sampler *made = gumball_sampler_resume(params, &sampler_config, (const gumball_state *)given);
    gumball_sampler_free(made);
    return made != NULL;
}

static int pool_new(void *given) {
    gumball_pool *made = gumball_pool_new((const gumball_pool_config *)given);
    gumball_pool_free(made);
    return made != NULL;
}

static int pool_new_on_device(void *given) {
    gumball_pool *made = gumball_pool_new_on_device(device, (const gumball_device_pool_config *)given);
    gumball_pool_free(made);
    return made != NULL;
}

static int dist_new(void *given) {
    gumball_dist *made = gumball_dist_new((const gumball_dist_config *)given);
    gumball_dist_free(made);
    return made != NULL;
}

static int dist_shape(void *given) {
    SIZED(gumball_dist_decision, plan);
    return gumball_dist_plan(dist, dist_slots, ROWS, (const gumball_dist_shape *)given, &plan) == GUMBALL_OK;
}

static int dist_planned(void *given) {
    return gumball_dist_plan(dist, dist_slots, ROWS, NULL, (gumball_dist_decision *)given) == GUMBALL_OK;
}

static int dist_step_by(const gumball_dist_decision *plan, const gumball_logits *all,
                        const gumball_step_options *with) {
    return gumball_dist_step(dist, plan, all, dist_slots, ROWS, with, outputs) == GUMBALL_OK;
}

static int dist_step_plan(void *given) { return dist_step_by((const gumball_dist_decision *)given, &logits, NULL); }

static int dist_step_logits(void *given) { return dist_step_by(NULL, (const gumball_logits *)given, NULL); }

static int dist_step_options(void *given) { return dist_step_by(NULL, &logits, (const gumball_step_options *)given); }

static int dist_verify_drafts(void *given) {
    return gumball_dist_verify(dist, NULL, &logits, dist_slots, ROWS, (const gumball_drafts *)given, NULL,
                               verification) == GUMBALL_OK;
}

static int dist_state(void *given) {
    return gumball_dist_state(dist, dist_slots[0], (gumball_state *)given) == GUMBALL_OK;
}

static int operators_new(void *given) {
    gumball_operators *made = gumball_operators_new((const gumball_operators_config *)given);
    gumball_operators_free(made);
    return made != NULL;
}

static int pool_resume(void *given) {
    int32_t slot = -1;
    int ok = gumball_pool_resume(pool, params, (const gumball_state *)given, &slot) == GUMBALL_OK;
    if (ok) {
        OK(gumball_pool_release(pool, slot));
    }
    return ok;
}

static int sampler_sample(void *given) {
    gumball_token token;
    return gumball_sampler_sample(sampler, rows, GUMBALL_F32, VOCAB, (const gumball_step_options *)given, &token) == 0;
}

static float weights[VOCAB * WIDTH], states[ROWS * WIDTH];
static gumball_head *head;
static gumball_hidden hidden;

static int head_new(void *given) {
    gumball_head *made = gumball_head_new((const gumball_head_config *)given);
    gumball_head_free(made);
    return made != NULL;
}

static const gumball_head_config *of_clusters;

static int head_clustered_build(void *given) {
    gumball_head *made = gumball_head_clustered_build((const gumball_head_config *)given, NULL, 8, 1, NULL, NULL);
    gumball_head_free(made);
    return made != NULL;
}

static int head_clustered_options(void *given) {
    const gumball_clustered_options *with = (const gumball_clustered_options *)given;
    gumball_head *made = gumball_head_clustered_build(of_clusters, with, 8, 1, NULL, NULL);
    gumball_head_free(made);
    return made != NULL;
}

static int head_info(void *given) { return gumball_head_describe(head, (gumball_head_info *)given) == GUMBALL_OK; }

static int head_logits(void *given) {
    return gumball_head_logits(head, (const gumball_hidden *)given, written) == GUMBALL_OK;
}

static int step_hidden(void *given) {
    const gumball_hidden *all = (const gumball_hidden *)given;
    return gumball_pool_step_hidden(pool, head, all, slots, ROWS, NULL, outputs) == GUMBALL_OK;
}

static int step_hidden_options(void *given) {
    const gumball_step_options *with = (const gumball_step_options *)given;
    return gumball_pool_step_hidden(pool, head, &hidden, slots, ROWS, with, outputs) == GUMBALL_OK;
}

static int verify_hidden(void *given) {
    const gumball_hidden *all = (const gumball_hidden *)given;
    return gumball_pool_verify_hidden(pool, head, all, slots, ROWS, &drafts, NULL, verification) == GUMBALL_OK;
}

static int verify_hidden_drafts(void *given) {
    const gumball_drafts *all = (const gumball_drafts *)given;
    return gumball_pool_verify_hidden(pool, head, &hidden, slots, ROWS, all, NULL, verification) == GUMBALL_OK;
}

static int draft_hidden(void *given) {
    const gumball_hidden *all = (const gumball_hidden *)given;
    return gumball_pool_draft_hidden(pool, head, all, slots, ROWS, &draft_rows, NULL, drafted, NULL) == GUMBALL_OK;
}

static int draft_hidden_from(void *given) {
    const gumball_draft_rows *from = (const gumball_draft_rows *)given;
    return gumball_pool_draft_hidden(pool, head, &hidden, slots, ROWS, from, NULL, drafted, NULL) == GUMBALL_OK;
}

static int score_hidden(void *given) {
    const gumball_hidden *all = (const gumball_hidden *)given;
    return gumball_pool_score_hidden(pool, head, all, &scored, 1, NULL, outputs) == GUMBALL_OK;
}

static int score_hidden_scored(void *given) {
    const gumball_scored *known = (const gumball_scored *)given;
    return gumball_pool_score_hidden(pool, head, &hidden, known, 1, NULL, outputs) == GUMBALL_OK;
}

static int head_counts(void *given) {
    return gumball_pool_head_counts(pool, (gumball_head_counts *)given) == GUMBALL_OK;
}

static int step_logits(void *given) {
    return gumball_pool_step(pool, (const gumball_logits *)given, slots, ROWS, NULL, outputs) == GUMBALL_OK;
}

static int step_options(void *given) {
    return gumball_pool_step(pool, &logits, slots, ROWS, (const gumball_step_options *)given, outputs) == GUMBALL_OK;
}

static int verify_logits(void *given) {
    const gumball_logits *all = (const gumball_logits *)given;
    return gumball_pool_verify(pool, all, slots, ROWS, &drafts, NULL, verification) == GUMBALL_OK;
}

static int verify_drafts(void *given) {
    const gumball_drafts *all = (const gumball_drafts *)given;
    return gumball_pool_verify(pool, &logits, slots, ROWS, all, NULL, verification) == GUMBALL_OK;
}

static int verify_options(void *given) {
    const gumball_step_options *with = (const gumball_step_options *)given;
    return gumball_pool_verify(pool, &logits, slots, ROWS, &drafts, with, verification) == GUMBALL_OK;
}

static int draft_from(void *given) {
    const gumball_draft_rows *from = (const gumball_draft_rows *)given;
    return gumball_pool_draft(pool, &logits, slots, ROWS, from, NULL, drafted, NULL) == GUMBALL_OK;
}

static int score_logits(void *given) {
    return gumball_pool_score(pool, (const gumball_logits *)given, &scored, ROWS, NULL, outputs) == GUMBALL_OK;
}

static int score_scored(void *given) {
    return gumball_pool_score(pool, &logits, (const gumball_scored *)given, ROWS, NULL, outputs) == GUMBALL_OK;
}

static int score_options(void *given) {
    const gumball_step_options *with = (const gumball_step_options *)given;
    return gumball_pool_score(pool, &logits, &scored, ROWS, with, outputs) == GUMBALL_OK;
}

static int softmax_logits(void *given) {
    return gumball_operators_softmax(operators, (const gumball_logits *)given, 1.0f, NULL, &out, NULL) == GUMBALL_OK;
}

static int softmax_out(void *given) {
    return gumball_operators_softmax(operators, &logits, 1.0f, NULL, (const gumball_rows_out *)given, NULL) ==
           GUMBALL_OK;
}

static int probabilities_rows(void *given) {
    return gumball_operators_probabilities(operators, (const gumball_logits *)given, &row_params, &out, NULL) == 0;
}

static int probabilities_params(void *given) {
    return gumball_operators_probabilities(operators, &logits, (const gumball_row_params *)given, &out, NULL) == 0;
}

static int probabilities_out(void *given) {
    return gumball_operators_probabilities(operators, &logits, &row_params, (const gumball_rows_out *)given, NULL) == 0;
}

static int mask_rows(void *given) {
    return gumball_operators_mask_logits(operators, (const gumball_logits *)given, &row_params, &out, NULL) == 0;
}

static int mask_params(void *given) {
    return gumball_operators_mask_logits(operators, &logits, (const gumball_row_params *)given, &out, NULL) == 0;
}

static int mask_out(void *given) {
    return gumball_operators_mask_logits(operators, &logits, &row_params, (const gumball_rows_out *)given, NULL) == 0;
}

static int32_t tokens[2 * ROWS];

static int sample_rows(void *given) {
    const gumball_logits *from = (const gumball_logits *)given;
    return gumball_operators_sample(operators, from, &row_params, &draws, tokens, NULL) == GUMBALL_OK;
}

static int sample_params(void *given) {
    const gumball_row_params *by = (const gumball_row_params *)given;
    return gumball_operators_sample(operators, &logits, by, &draws, tokens, NULL) == GUMBALL_OK;
}

static int sample_draws(void *given) {
    const gumball_draws *which = (const gumball_draws *)given;
    return gumball_operators_sample(operators, &logits, &row_params, which, tokens, NULL) == GUMBALL_OK;
}

static int sample_pools(void *given) {
    const gumball_pool_slots *from = (const gumball_pool_slots *)given;
    gumball_draws keys = draws;
    keys.seeds = NULL;
    keys.positions = keys.draws = keys.row_indices = NULL;
    keys.outputs = ROWS;
    return gumball_operators_sample_from_pools(operators, &logits, from, NULL, &keys, tokens, NULL) == GUMBALL_OK;
}

static int verify(void *given) {
    const gumball_draft_chains *all = (const gumball_draft_chains *)given;
    gumball_draws keys = draws;
    keys.outputs = 1;
    return gumball_operators_chain_speculative_sampling(operators, all, &keys, tokens, NULL, NULL, NULL) == GUMBALL_OK;
}

static int judge(void *given) {
    const gumball_draft_trees *all = (const gumball_draft_trees *)given;
    gumball_draws keys = draws;
    keys.outputs = 1;
    return gumball_operators_tree_speculative_sampling(operators, all, &keys, tokens, NULL, NULL, NULL) == GUMBALL_OK;
}

static int selected_logits(void *given) {
    const gumball_logits *all = (const gumball_logits *)given;
    return gumball_operators_selected_logprobs(operators, all, drafted, chances, NULL, NULL) == GUMBALL_OK;
}

static int sampler_state(void *given) { return gumball_sampler_state(sampler, (gumball_state *)given) == GUMBALL_OK; }

static int pool_state(void *given) { return gumball_pool_state(pool, slots[0], (gumball_state *)given) == GUMBALL_OK; }

static int layout_of(void *given) { return gumball_layout_of(3, 2, 1, (gumball_layout *)given) == GUMBALL_OK; }

static int outputs_layout(void *given) {
    return gumball_outputs_layout(outputs, (gumball_layout *)given) == GUMBALL_OK;
}

static int pool_outputs_layout(void *given) {
    return gumball_pool_outputs_layout(device_pool, (gumball_layout *)given) == GUMBALL_OK;
}

static int pool_assign(void *given) {
    return gumball_pool_assign(device_pool, device_slots, ROWS, (const gumball_step_options *)given) == GUMBALL_OK;
}

static int pool_enqueue(void *given) {
    return gumball_pool_enqueue(device_pool, (const gumball_device_input *)given) == GUMBALL_OK;
}

static int pool_capture(void *given) {
    const gumball_device_input *const inputs[] = {(const gumball_device_input *)given};
    gumball_graph *graph = gumball_pool_capture(device_pool, inputs, 1);
    gumball_graph_free(graph);
    return graph != NULL;
}

static int copy_drafts_to(void *given) {
    return gumball_pool_enqueue_copy_drafts(device_pool, draft_batch, (const gumball_device_ints *)given, 0) ==
           GUMBALL_OK;
}

static int capture_work(void *given) {
    const gumball_graph_work *const work[] = {(const gumball_graph_work *)given};
    gumball_graph *graph = gumball_pool_capture_work(device_pool, work, 1);
    gumball_graph_free(graph);
    return graph != NULL;
}

static int pool_assign_drafts(void *given) {
    const gumball_step_options *with = (const gumball_step_options *)given;
    return gumball_pool_assign_drafts(device_pool, device_slots, drafts.counts, ROWS, GUMBALL_COUPLED, with) ==
           GUMBALL_OK;
}

static int pool_assign_draft(void *given) {
    const gumball_step_options *with = (const gumball_step_options *)given;
    return gumball_pool_assign_draft(device_pool, draft_batch, device_slots, NULL, ROWS, GUMBALL_COUPLED, with) ==
           GUMBALL_OK;
}

static int enqueue_draft_input(void *given) {
    const gumball_device_input *all = (const gumball_device_input *)given;
    return gumball_pool_enqueue_draft(device_pool, draft_batch, all, NULL, 0, 0, 32, NULL) == GUMBALL_OK;
}

static int enqueue_verify_input(void *given) {
    const gumball_device_input *all = (const gumball_device_input *)given;
    return gumball_pool_enqueue_verify(device_pool, all, &device_drafts, NULL) == GUMBALL_OK;
}

static int enqueue_verify_drafts(void *given) {
    const gumball_device_drafts *all = (const gumball_device_drafts *)given;
    return gumball_pool_enqueue_verify(device_pool, &input, all, NULL) == GUMBALL_OK;
}

static int capture_verify(const gumball_device_input *all, const gumball_device_drafts *with) {
    gumball_graph *graph = gumball_pool_capture_verify(device_pool, all, with);
    gumball_graph_free(graph);
    return graph != NULL;
}

static int capture_verify_input(void *given) {
    return capture_verify((const gumball_device_input *)given, &device_drafts);
}

static int capture_verify_drafts(void *given) { return capture_verify(&input, (const gumball_device_drafts *)given); }

static void *first_of(const gumball_buffer *memory, size_t floats) {
    return (char *)gumball_buffer_address(memory) + floats * sizeof(float);
}

// Structs whose rows lie where the operators work. Rows are read apart from where they are written, and in their place.
static void by_operators(float *from, float *to, const float *probabilities, int32_t *ids) {
    logits = logits_of(from, GUMBALL_F32, ROWS, VOCAB);
    out.data = to;
    chains.draft_probs = probabilities;
    chains.target_probs = probabilities;
    chains.draft_token_ids = ids;
    const sized a_logits = SIZED_STRUCT(gumball_logits, logits, dtype);
    const sized a_rows_out = SIZED_STRUCT(gumball_rows_out, out, dtype);
    const sized a_row_params = SIZED_STRUCT(gumball_row_params, row_params, min_p);
    READ(a_logits, softmax_logits);
    READ(a_rows_out, softmax_out);
    READ(a_logits, probabilities_rows);
    READ(a_row_params, probabilities_params);
    READ(a_rows_out, probabilities_out);
    READ(a_logits, mask_rows);
    READ(a_row_params, mask_params);
    READ(a_rows_out, mask_out);
    out.data = from;
    READ(a_logits, mask_rows);
    READ(a_rows_out, mask_out);
    READ(a_logits, softmax_logits);
    out.data = to;
}

static void on_the_host(void) {
    sampler_config.struct_size = sizeof sampler_config;
    sampler_config.vocab = VOCAB;
    SIZED(gumball_pool_config, pool_config);
    pool_config.vocab = VOCAB;
    pool_config.threads = 1;
    SIZED(gumball_operators_config, operators_config);
    operators_config.threads = 1;
    const sized a_sampler_config = SIZED_STRUCT(gumball_sampler_config, sampler_config, keep_ids);
    const sized a_pool_config = SIZED_STRUCT(gumball_pool_config, pool_config, level);
    const sized an_operators_config = SIZED_STRUCT(gumball_operators_config, operators_config, level);
    const sized a_state = SIZED_STRUCT(gumball_state, state, mu);
    const sized a_logits = SIZED_STRUCT(gumball_logits, logits, dtype);
    const sized some_options = SIZED_STRUCT(gumball_step_options, options, hook_rows);
    const sized a_scored = SIZED_STRUCT(gumball_scored, scored, start);
    const sized a_row_params = SIZED_STRUCT(gumball_row_params, row_params, min_p);
    const sized some_draws = SIZED_STRUCT(gumball_draws, draws, position);
    const uint32_t one[ROWS] = {0};
    SIZED(gumball_pool_slots, pools);
    pools.slots = one;
    pools.size = 1;
    const sized some_slots = SIZED_STRUCT(gumball_pool_slots, pools, offsets);
    const sized some_drafts = SIZED_STRUCT(gumball_drafts, drafts, threshold_acc);
    const sized some_draft_rows = SIZED_STRUCT(gumball_draft_rows, draft_rows, mode);
    const sized some_chains = SIZED_STRUCT(gumball_draft_chains, chains, target_probs);
    SIZED(gumball_layout, layout);
    const sized a_layout = SIZED_STRUCT(gumball_layout, layout, id_ranks);
    READ(a_sampler_config, sampler_new);
    READ(a_sampler_config, sampler_resume_config);
    READ(a_state, sampler_resume_state);
    READ(a_pool_config, pool_new);
    READ(an_operators_config, operators_new);
    READ(a_state, pool_resume);
    READ(some_options, sampler_sample);
    READ(a_logits, step_logits);
    READ(some_options, step_options);
    READ(a_logits, verify_logits);
    READ(some_drafts, verify_drafts);
    READ(some_draft_rows, draft_from);
    READ(some_slots, sample_pools);
    READ(some_options, verify_options);
    READ(a_logits, score_logits);
    READ(a_scored, score_scored);
    READ(some_options, score_options);
    int32_t ids[ROWS] = {3, 5};
    by_operators(rows, written, written, ids);
    READ(a_logits, sample_rows);
    READ(a_row_params, sample_params);
    READ(some_draws, sample_draws);
    READ(some_chains, verify);
    SIZED(gumball_draft_trees, trees);
    trees.trees = 1;
    trees.drafts = 1;
    trees.vocab = VOCAB;
    trees.draft_token_ids = ids;
    trees.target_probs = written;
    trees.mode = GUMBALL_REJECTION;
    const sized some_trees = SIZED_STRUCT(gumball_draft_trees, trees, threshold_acc);
    READ(some_trees, judge);
    READ(a_logits, selected_logits);
    WRITTEN(a_state, sampler_state);
    WRITTEN(a_state, pool_state);
    WRITTEN(a_layout, layout_of);
    WRITTEN(a_layout, outputs_layout);
    CHECK(gumball_layout_of((size_t)1 << 62, 1, 1, &layout) == GUMBALL_OUT_OF_RANGE);
}

// From hidden states.
static void by_heads(void) {
    bell(weights, VOCAB * WIDTH, 3);
    bell(states, ROWS * WIDTH, 4);
    SIZED(gumball_head_config, config);
    config.weights = weights;
    config.vocab = VOCAB;
    config.width = WIDTH;
    config.kind = GUMBALL_HEAD_CERTIFIED;
    head = gumball_head_new(&config);
    draft_rows.struct_size = sizeof draft_rows;
    hidden.struct_size = sizeof hidden;
    hidden.data = states;
    hidden.rows = ROWS;
    hidden.width = WIDTH;
    SIZED(gumball_head_info, info);
    SIZED(gumball_head_counts, counts);
    const sized a_head_config = SIZED_STRUCT(gumball_head_config, config, file);
    const sized an_info = SIZED_STRUCT(gumball_head_info, info, most_rows);
    const sized some_hidden = SIZED_STRUCT(gumball_hidden, hidden, dtype);
    const sized some_counts = SIZED_STRUCT(gumball_head_counts, counts, screen_reads);
    const sized some_options = SIZED_STRUCT(gumball_step_options, options, hook_rows);
    const sized a_scored = SIZED_STRUCT(gumball_scored, scored, start);
    const sized some_drafts = SIZED_STRUCT(gumball_drafts, drafts, threshold_acc);
    const sized some_draft_rows = SIZED_STRUCT(gumball_draft_rows, draft_rows, mode);
    gumball_head_config clustered = config;
    clustered.kind = GUMBALL_HEAD_CLUSTERED;
    of_clusters = &clustered;
    SIZED(gumball_clustered_options, clustered_options);
    clustered_options.probes = 2;
    const sized a_clustered_config = SIZED_STRUCT(gumball_head_config, clustered, file);
    const sized some_clustered_options = SIZED_STRUCT(gumball_clustered_options, clustered_options, is_in_place);
    READ(a_head_config, head_new);
    READ(a_clustered_config, head_clustered_build);
    READ(some_clustered_options, head_clustered_options);
    READ(some_hidden, head_logits);
    READ(some_hidden, step_hidden);
    READ(some_options, step_hidden_options);
    READ(some_hidden, verify_hidden);
    READ(some_drafts, verify_hidden_drafts);
    READ(some_hidden, draft_hidden);
    READ(some_draft_rows, draft_hidden_from);
    READ(some_hidden, score_hidden);
    READ(a_scored, score_hidden_scored);
    WRITTEN(an_info, head_info);
    WRITTEN(some_counts, head_counts);
    gumball_head_free(head);
}

// A group of one process.
static void over_processes(void) {
    const char *const address = "tcp:127.0.0.1:0";
    SIZED(gumball_dist_config, config);
    config.vocab = VOCAB;
    config.world = 1;
    config.addresses = &address;
    config.threads = 1;
    dist = gumball_dist_new(&config);
    for (int i = 0; i < ROWS; i++) {
        OK(gumball_dist_admit(dist, params, NULL, 0, &dist_slots[i]));
    }
    SIZED(gumball_dist_shape, shape);
    SIZED(gumball_dist_decision, plan);
    OK(gumball_dist_plan(dist, dist_slots, ROWS, NULL, &plan));
    const sized a_dist_config = SIZED_STRUCT(gumball_dist_config, config, is_modulo);
    const sized a_shape = SIZED_STRUCT(gumball_dist_shape, shape, is_data_parallel);
    const sized a_plan = SIZED_STRUCT(gumball_dist_decision, plan, batch);
    const sized a_logits = SIZED_STRUCT(gumball_logits, logits, dtype);
    const sized some_options = SIZED_STRUCT(gumball_step_options, options, hook_rows);
    const sized some_drafts = SIZED_STRUCT(gumball_drafts, drafts, threshold_acc);
    const sized a_state = SIZED_STRUCT(gumball_state, state, mu);
    READ(a_dist_config, dist_new);
    READ(a_shape, dist_shape);
    WRITTEN(a_plan, dist_planned);
    READ(a_plan, dist_step_plan);
    READ(a_logits, dist_step_logits);
    READ(some_options, dist_step_options);
    READ(some_drafts, dist_verify_drafts);
    WRITTEN(a_state, dist_state);
    gumball_dist_free(dist);
}

static void on_a_device(void) {
    SIZED(gumball_device_pool_config, config);
    config.vocab = VOCAB;
    config.slots = ROWS;
    config.rows = ROWS;
    config.history_growth = 4096;
    device_pool = gumball_pool_new_on_device(device, &config);
    CHECK(device_pool != NULL);
    for (int i = 0; i < ROWS; i++) {
        device_slots[i] = admit(device_pool, "{\"seed\": 3}", NULL, 0);
    }
    buffer = gumball_buffer_new(device, 3 * sizeof rows);
    OK(gumball_buffer_write(buffer, 0, rows, sizeof rows));
    input.struct_size = sizeof input;
    input.logits = gumball_buffer_address(buffer);
    input.rows = ROWS;
    input.vocab = VOCAB;
    const sized a_device_pool_config = SIZED_STRUCT(gumball_device_pool_config, config, keep_histories);
    const sized some_options = SIZED_STRUCT(gumball_step_options, options, hook_rows);
    const sized an_input = SIZED_STRUCT(gumball_device_input, input, dtype);
    SIZED(gumball_layout, layout);
    const sized a_layout = SIZED_STRUCT(gumball_layout, layout, id_ranks);
    READ(a_device_pool_config, pool_new_on_device);
    READ(some_options, pool_assign);
    READ(an_input, pool_enqueue);
    READ(an_input, pool_capture);
    device_drafts.struct_size = sizeof device_drafts;
    const sized some_device_drafts = SIZED_STRUCT(gumball_device_drafts, device_drafts, bits);
    OK(gumball_pool_add_draft_batch(device_pool, ROWS, 1, 0, &draft_batch));
    READ(some_options, pool_assign_draft);
    READ(an_input, enqueue_draft_input);
    SIZED(gumball_device_ints, ints);
    ints.data = first_of(buffer, ROWS * VOCAB);
    ints.rows = ROWS;
    const sized some_ints = SIZED_STRUCT(gumball_device_ints, ints, bits);
    READ(some_ints, copy_drafts_to);
    SIZED(gumball_graph_work, work);
    work.kind = GUMBALL_WORK_COPY_DRAFTS;
    work.batch = draft_batch;
    work.ints = &ints;
    const sized some_work = SIZED_STRUCT(gumball_graph_work, work, column);
    READ(some_work, capture_work);
    READ(some_options, pool_assign_drafts);
    READ(an_input, enqueue_verify_input);
    READ(some_device_drafts, enqueue_verify_drafts);
    READ(an_input, capture_verify_input);
    READ(some_device_drafts, capture_verify_drafts);
    WRITTEN(a_layout, pool_outputs_layout);
    gumball_operators_free(operators);
    operators = gumball_operators_new_on_device(device);
    float *from = (float *)first_of(buffer, 0), *to = (float *)first_of(buffer, ROWS * VOCAB);
    by_operators(from, to, to, (int32_t *)first_of(buffer, 2 * ROWS * VOCAB));
    gumball_buffer_free(buffer);
    gumball_pool_free(device_pool);
}

int main(int argc, char **argv) {
    bell(rows, ROWS * VOCAB, 1);
    params = params_of("{\"seed\": 1}");
    sampler = sampler_of("{\"seed\": 1}", VOCAB, NULL, 0);
    pool = pool_of(VOCAB, 1);
    SIZED(gumball_operators_config, config);
    config.threads = 1;
    operators = gumball_operators_new(&config);
    outputs = gumball_outputs_new(0);
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(pool, "{\"seed\": 2}", NULL, 0);
    }
    logits = logits_of(rows, GUMBALL_F32, ROWS, VOCAB);
    const uint32_t ids[] = {1, 2, 3};
    out.struct_size = sizeof out;
    out.data = written;
    out.rows = ROWS;
    out.vocab = VOCAB;
    row_params.struct_size = sizeof row_params;
    draws.struct_size = sizeof draws;
    draws.outputs = ROWS;
    chains.struct_size = sizeof chains;
    chains.chains = 1;
    chains.drafts = 1;
    chains.vocab = VOCAB;
    const uint32_t no_drafts[ROWS] = {0, 0};
    drafts.struct_size = sizeof drafts;
    drafts.counts = no_drafts;
    verification = gumball_verification_new(0);
    options.struct_size = sizeof options;
    scored.struct_size = sizeof scored;
    scored.params = params;
    scored.ids = ids;
    scored.ids_len = 3;
    scored.prompt_len = 1;
    scored.start = 1;
    state.struct_size = sizeof state;
    state.prompt = ids;
    state.prompt_len = 2;
    on_the_host();
    by_heads();
    over_processes();
    if (argc > 1) {
        device = gumball_device_open(argv[1]);
        CHECK(device != NULL);
        on_a_device();
        gumball_device_free(device);
    }
    gumball_verification_free(verification);
    gumball_outputs_free(outputs);
    gumball_operators_free(operators);
    gumball_pool_free(pool);
    gumball_sampler_free(sampler);
    gumball_params_free(params);
    return verdict("structs");
}
