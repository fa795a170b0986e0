// Programs with older and newer headers: every sized struct as an older program knows it, as this header does, and as
// newer ones will, whose further fields are zero or are not. Each lies in memory of exactly its size, so that what
// reads beyond it is seen by the address sanitizer and by valgrind.

#include <stddef.h>

#include "check.h"
#include "rows.h"

enum { VOCAB = 40, ROWS = 2, WIDTH = 7 };

// The structs that have a size, their values here, and the last field that each had when the ABI's version began.
#define STRUCTS(each) \
    each(gumball_sampler_config, sampler_config, kept); \
    each(gumball_pool_config, pool_config, history_growth); \
    each(gumball_ranks, ranks, communicator); \
    each(gumball_head_config, head_config, is_in_place); \
    each(gumball_state, state, mu); \
    each(gumball_batch, batch, draft_batch); \
    each(gumball_drafts, drafts, probs); \
    each(gumball_scored, scored, chunk_rows); \
    each(gumball_row_params, row_params, min_p); \
    each(gumball_draws, draws, offsets); \
    each(gumball_work, work, kind); \
    each(gumball_outputs_view, view, is_approximate); \
    each(gumball_pool_info, info, sends_rows); \
    each(gumball_head_info, head_info, special_ids_len); \
    each(gumball_counts, counts, received_bytes)

#define DECLARED(type, value, last) static type value
#define SIZE_SET(type, value, last) value.struct_size = sizeof value
#define LEAST(type, value, last) enum { least_##value = offsetof(type, last) + sizeof(((type *)0)->last) }

STRUCTS(DECLARED);
STRUCTS(LEAST);

static float rows[ROWS * VOCAB], written[ROWS * VOCAB], weights[VOCAB * WIDTH];
static int32_t slots[ROWS], tokens[2 * ROWS];
static const uint32_t no_drafts[ROWS] = {0, 0}, ids[] = {1, 2, 3};
static gumball_rows logits;
static gumball_matrix out;
static gumball_sampler *sampler;
static gumball_pool *pool;
static gumball_operators *operators;
static gumball_outputs *outputs;
static gumball_params *params;
static gumball_head *head;

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
        CHECK(gumball_error(NULL) == GUMBALL_OUT_OF_RANGE && strstr(gumball_error_message(), "struct_size") != NULL);
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
        CHECK(gumball_error(NULL) == GUMBALL_OUT_OF_RANGE);
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

MAKES(sampler_new, gumball_sampler_config, gumball_sampler, gumball_sampler_new(params, it, NULL))
MAKES(resume, gumball_state, gumball_sampler, gumball_sampler_new(params, &sampler_config, it))
MAKES(pool_new, gumball_pool_config, gumball_pool, gumball_pool_new(it))
MAKES(head_new, gumball_head_config, gumball_head, gumball_head_new(it))
MAKES(join, gumball_ranks, gumball_pool, (pool_config.ranks = it, gumball_pool_new(&pool_config)))

CALL(step, gumball_batch, gumball_pool_step(pool, &logits, it, outputs))
CALL(score_with, gumball_batch, gumball_pool_score(pool, &logits, it, &scored, outputs))
CALL(verify, gumball_drafts, gumball_pool_verify(pool, &logits, &batch, it, outputs))
CALL(score, gumball_scored, gumball_pool_score(pool, &logits, NULL, it, outputs))
CALL(enqueue_work, gumball_work, gumball_pool_enqueue(pool, it, 1))
CALL(probabilities, gumball_row_params, gumball_operators_probabilities(operators, &logits, it, &out, NULL))
CALL(draw, gumball_draws, gumball_operators_sample(operators, &logits, NULL, it, tokens, NULL))
CALL(sampler_state, gumball_state, gumball_sampler_state(sampler, it))
CALL(pool_state, gumball_state, gumball_pool_state(pool, slots[0], it))
CALL(read_outputs, gumball_outputs_view, gumball_outputs_read(outputs, it))
CALL(describe, gumball_pool_info, gumball_pool_describe(pool, it))
CALL(describe_head, gumball_head_info, gumball_head_describe(head, it))
CALL(count, gumball_counts, gumball_pool_counts(pool, it))

int main(void) {
    bell(rows, ROWS * VOCAB, 1);
    bell(weights, VOCAB * WIDTH, 3);
    STRUCTS(SIZE_SET);
    const char *const address = "unix:./structs-socket";
    sampler_config.vocab = pool_config.vocab = VOCAB;
    pool_config.threads = ranks.world = 1;
    ranks.addresses = &address;
    head_config.weights = matrix_of(weights, GUMBALL_F32, VOCAB, WIDTH);
    logits = rows_of(rows, GUMBALL_F32, ROWS, VOCAB);
    out = matrix_of(written, GUMBALL_F32, ROWS, VOCAB);
    draws.outputs = batch.len = ROWS;
    batch.slots = slots;
    scored.ids = state.prompt = ids;
    scored.ids_len = 3;
    scored.prompt_len = scored.start = 1;
    state.prompt_len = 2;
    scored.params = params = params_of("{\"seed\": 1}");
    sampler = sampler_of("{\"seed\": 1}", VOCAB, NULL, 0);
    pool = pool_of(VOCAB, 1);
    operators = gumball_operators_new(NULL, 1, NULL);
    outputs = outputs_of();
    head = keep_head(gumball_head_new(&head_config));
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(pool, "{\"seed\": 2}", NULL, 0);
    }

    READ(sampler_config, sampler_new);
    READ(state, resume);
    READ(pool_config, pool_new);
    READ(ranks, join);
    READ(head_config, head_new);
    READ(batch, step);
    READ(scored, score);
    OK(gumball_pool_assign(pool, &batch));
    work.rows = logits;
    READ(work, enqueue_work);
    batch.counts = no_drafts;
    READ(drafts, verify);
    memset(&batch, 0, sizeof batch);
    batch.struct_size = sizeof batch;
    READ(batch, score_with);
    READ(row_params, probabilities);
    READ(draws, draw);
    WRITTEN(state, sampler_state);
    WRITTEN(state, pool_state);
    WRITTEN(view, read_outputs);
    WRITTEN(info, describe);
    WRITTEN(head_info, describe_head);
    WRITTEN(counts, count);
    gumball_operators_free(operators);
    return verdict("structs");
}
