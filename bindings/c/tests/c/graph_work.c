// Graphs of several kinds of work: a replay drafts, verifies and advances, as the same calls one by one do; what is refused.

#include "check.h"
#include "rows.h"

enum { VOCAB = 300, REQUESTS = 3, DEPTH = 3, ROWS = REQUESTS * (DEPTH + 1), TURNS = 5 };

static float target[ROWS * VOCAB], drafting[DEPTH][REQUESTS * VOCAB];

// What one of two pools has for its drafts, all in the device's memory.
typedef struct {
    gumball_pool *pool;
    int64_t batches[DEPTH];
    // A chain for each request: the paths of its drafts, and then the drafts that are verified.
    gumball_buffer *chains, *taken;
    gumball_device_ints columns, counts;
    gumball_device_drafts drafts;
} drafter;

static gumball_device_input input_of(gumball_buffer *buffer, size_t rows) {
    SIZED(gumball_device_input, input);
    input.logits = gumball_buffer_address(buffer);
    input.rows = rows;
    input.vocab = VOCAB;
    return input;
}

static drafter drafter_of(gumball_device *device) {
    drafter made;
    memset(&made, 0, sizeof made);
    int64_t chains[REQUESTS * DEPTH];
    memset(chains, -1, sizeof chains);
    const int32_t one_of_the_last[REQUESTS] = {0, 0, 1};
    const uint32_t counts[REQUESTS] = {DEPTH, DEPTH, DEPTH}, prompt[] = {4, 9};
    static const char *const requests[REQUESTS] = {"{\"seed\": 1}", "{\"temperature\": 0, \"repetition_penalty\": 1.1}",
                                                   "{\"seed\": 2, \"top_k\": 20}"};
    SIZED(gumball_device_pool_config, config);
    config.vocab = VOCAB;
    config.slots = REQUESTS;
    config.rows = ROWS;
    config.keep_histories = 1;
    made.pool = gumball_pool_new_on_device(device, &config);
    int32_t slots[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        slots[i] = admit(made.pool, requests[i], prompt, 2);
    }
    for (uint32_t depth = 0; depth < DEPTH; depth++) {
        const uint32_t before[REQUESTS] = {depth, depth, depth};
        OK(gumball_pool_add_draft_batch(made.pool, REQUESTS, 1, 0, &made.batches[depth]));
        OK(gumball_pool_assign_draft(made.pool, made.batches[depth], slots, before, REQUESTS, GUMBALL_COUPLED, NULL));
    }
    OK(gumball_pool_assign_drafts(made.pool, slots, counts, REQUESTS, GUMBALL_COUPLED, NULL));
    made.chains = copied_up(device, chains, sizeof chains);
    made.taken = copied_up(device, one_of_the_last, sizeof one_of_the_last);
    made.columns.struct_size = sizeof made.columns;
    made.columns.data = gumball_buffer_address(made.chains);
    made.columns.rows = REQUESTS;
    made.columns.width = DEPTH;
    made.columns.bits = 64;
    made.counts.struct_size = sizeof made.counts;
    made.counts.data = gumball_buffer_address(made.taken);
    made.counts.rows = REQUESTS;
    made.drafts.struct_size = sizeof made.drafts;
    made.drafts.ids = gumball_buffer_address(made.chains);
    made.drafts.len = REQUESTS * DEPTH;
    made.drafts.bits = 64;
    return made;
}

static void a_replay_does_what_the_calls_do(gumball_device *device) {
    drafter by_calls = drafter_of(device), by_graph = drafter_of(device);
    gumball_buffer *rows = gumball_buffer_new(device, sizeof target), *drafted[DEPTH];
    gumball_device_input verified = input_of(rows, ROWS), inputs[DEPTH];
    for (int depth = 0; depth < DEPTH; depth++) {
        drafted[depth] = gumball_buffer_new(device, sizeof drafting[depth]);
        inputs[depth] = input_of(drafted[depth], REQUESTS);
    }
    gumball_graph_work work[2 * DEPTH + 2];
    const gumball_graph_work *pieces[2 * DEPTH + 2];
    memset(work, 0, sizeof work);
    for (int i = 0; i < 2 * DEPTH + 2; i++) {
        work[i].struct_size = sizeof *work;
        pieces[i] = &work[i];
    }
    for (int depth = 0; depth < DEPTH; depth++) {
        gumball_graph_work *draft = &work[2 * depth], *copy = draft + 1;
        draft->kind = GUMBALL_WORK_DRAFT;
        draft->batch = by_graph.batches[depth];
        draft->input = &inputs[depth];
        draft->ints = &by_graph.columns;
        copy->kind = GUMBALL_WORK_COPY_DRAFTS;
        copy->batch = by_graph.batches[depth];
        copy->ints = &by_graph.columns;
        copy->column = (size_t)depth;
    }
    work[2 * DEPTH].kind = GUMBALL_WORK_VERIFY;
    work[2 * DEPTH].input = &verified;
    work[2 * DEPTH].drafts = &by_graph.drafts;
    work[2 * DEPTH + 1].kind = GUMBALL_WORK_SHORTEN;
    work[2 * DEPTH + 1].ints = &by_graph.counts;
    gumball_graph *graph = gumball_pool_capture_work(by_graph.pool, pieces, 2 * DEPTH + 2);
    CHECK(graph != NULL && gumball_graph_steps(graph) == 1);
    gumball_verification *wanted = gumball_verification_new(0), *seen = gumball_verification_new(0);
    uint32_t accepted = 0;
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        // The target's rows, and those of a draft model that agrees with the first of them.
        model_like(target, ROWS * VOCAB, 10 + turn);
        OK(gumball_buffer_write(rows, 0, target, sizeof target));
        for (int depth = 0; depth < DEPTH; depth++) {
            for (int i = 0; i < REQUESTS; i++) {
                float *row = drafting[depth] + i * VOCAB;
                memcpy(row, target + (i * (DEPTH + 1) + depth) * VOCAB, VOCAB * sizeof *row);
                if (depth == 2 && i == 1) {
                    bell(row, VOCAB, turn);
                }
            }
            OK(gumball_buffer_write(drafted[depth], 0, drafting[depth], sizeof drafting[depth]));
        }
        OK(gumball_pool_replay(by_graph.pool, graph));
        for (int depth = 0; depth < DEPTH; depth++) {
            const int64_t batch = by_calls.batches[depth];
            const void *paths = by_calls.columns.data;
            OK(gumball_pool_enqueue_draft(by_calls.pool, batch, &inputs[depth], paths, DEPTH, DEPTH, 64, NULL));
            OK(gumball_pool_enqueue_copy_drafts(by_calls.pool, batch, &by_calls.columns, (size_t)depth));
        }
        OK(gumball_pool_enqueue_verify(by_calls.pool, &verified, &by_calls.drafts, NULL));
        OK(gumball_pool_enqueue_shorten(by_calls.pool, by_calls.counts.data, REQUESTS, 32));
        OK(gumball_pool_fetch_verification(by_calls.pool, wanted));
        OK(gumball_pool_fetch_verification(by_graph.pool, seen));
        CHECK(same_outputs(gumball_verification_outputs(wanted), gumball_verification_outputs(seen)));
        const uint32_t *lengths = gumball_verification_accepted(seen);
        CHECK(memcmp(gumball_verification_accepted(wanted), lengths, REQUESTS * sizeof *lengths) == 0);
        accepted += lengths[0] + lengths[2];
        for (int32_t slot = 0; slot < REQUESTS; slot++) {
            SIZED(gumball_state, a);
            SIZED(gumball_state, b);
            OK(gumball_pool_state(by_calls.pool, slot, &a));
            OK(gumball_pool_state(by_graph.pool, slot, &b));
            CHECK(a.output_len == b.output_len && a.position == b.position && a.output_len > 0);
            CHECK(memcmp(a.output, b.output, a.output_len * sizeof *a.output) == 0);
        }
    }
    // Coupled drafts of the target's own rows are all accepted.
    CHECK(accepted == TURNS * 2 * DEPTH);
    gumball_graph_free(graph);
    gumball_verification_free(wanted);
    gumball_verification_free(seen);
    gumball_pool_free(by_calls.pool);
    gumball_pool_free(by_graph.pool);
    gumball_buffer *buffers[] = {by_calls.chains, by_calls.taken, by_graph.chains, by_graph.taken, rows};
    for (int i = 0; i < 5; i++) {
        gumball_buffer_free(buffers[i]);
    }
    for (int depth = 0; depth < DEPTH; depth++) {
        gumball_buffer_free(drafted[depth]);
    }
}

static void what_is_refused(gumball_device *device) {
    drafter it = drafter_of(device);
    gumball_buffer *rows = copied_up(device, target, sizeof target);
    const gumball_device_input input = input_of(rows, ROWS);
    SIZED(gumball_graph_work, work);
    const gumball_graph_work *const pieces[] = {&work}, *const nothing[] = {NULL};
    work.kind = 5;
    NONE(gumball_pool_capture_work(it.pool, pieces, 1), GUMBALL_OUT_OF_RANGE,
         "kind is 5, but must be a gumball_graph_work_kind, 0 to 4");
    work.kind = GUMBALL_WORK_SHORTEN;
    work.input = &input;
    CHECK(gumball_pool_capture_work(it.pool, pieces, 1) == NULL && gumball_error_code() == GUMBALL_CONFLICT);
    CHECK(strcmp(gumball_error_parameter(), "input") == 0);
    work.input = NULL;
    CHECK(gumball_pool_capture_work(it.pool, pieces, 1) == NULL && strcmp(gumball_error_parameter(), "ints") == 0);
    work.ints = &it.columns;
    NONE(gumball_pool_capture_work(it.pool, pieces, 1), GUMBALL_OUT_OF_RANGE,
         "width is 3, but must be 0 or 1: one number for each assigned slot");
    work.kind = GUMBALL_WORK_COPY_DRAFTS;
    work.batch = 9;
    NONE(gumball_pool_capture_work(it.pool, pieces, 1), GUMBALL_OUT_OF_RANGE,
         "batch is 9, but must be a batch of drafts that this pool has");
    work.batch = it.batches[0];
    work.column = DEPTH;
    CHECK(gumball_pool_capture_work(it.pool, pieces, 1) == NULL && gumball_error_code() == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_enqueue_copy_drafts(it.pool, it.batches[0], &it.columns, DEPTH) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_enqueue_copy_drafts(it.pool, 9, &it.columns, 0) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_enqueue_copy_drafts(it.pool, it.batches[0], NULL, 0) == GUMBALL_OUT_OF_RANGE);
    it.columns.bits = 16;
    REFUSED(gumball_pool_enqueue_copy_drafts(it.pool, it.batches[0], &it.columns, 0), GUMBALL_OUT_OF_RANGE,
            "bits is 16, but must be 0, 32 or 64");
    CHECK(gumball_pool_capture_work(it.pool, nothing, 1) == NULL && gumball_pool_capture_work(NULL, pieces, 1) == NULL);
    gumball_graph *empty = gumball_pool_capture_work(it.pool, NULL, 0);
    CHECK(empty != NULL && gumball_graph_steps(empty) == 0);
    OK(gumball_pool_replay(it.pool, empty));
    gumball_graph_free(empty);
    gumball_pool *host = pool_of(VOCAB, 1);
    CHECK(gumball_pool_capture_work(host, pieces, 1) == NULL && gumball_error_code() == GUMBALL_UNAVAILABLE);
    gumball_pool_free(host);
    gumball_pool_free(it.pool);
    gumball_buffer_free(it.chains);
    gumball_buffer_free(it.taken);
    gumball_buffer_free(rows);
}

int main(int argc, char **argv) {
    gumball_device *device = gumball_device_open(argc > 1 ? argv[1] : "cuda");
    CHECK(device != NULL);
    a_replay_does_what_the_calls_do(device);
    what_is_refused(device);
    gumball_device_free(device);
    return verdict("graph_work");
}
