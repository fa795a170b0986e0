// Graphs of several kinds of work: drafts, their copies, a verification and tokens that are taken away; refusals.

#include "check.h"

enum { VOCAB = 300, DEPTH = 2 };

// What the drafts of one request need, all in the device's memory.
typedef struct {
    gumball_pool *pool;
    int64_t batches[DEPTH];
    // The chain of drafts: the paths that they are drawn behind, and then the drafts that are verified.
    gumball_buffer *chain, *taken, *rows;
    gumball_device_ints columns, counts;
    gumball_device_drafts drafts;
    // The row of each draft, and those of the target.
    gumball_device_input drafting[DEPTH], target;
} drafter;

static gumball_device_input input_of(const gumball_buffer *rows, size_t first, size_t count) {
    SIZED(gumball_device_input, input);
    input.logits = (const float *)gumball_buffer_address(rows) + first * VOCAB;
    input.rows = count;
    input.vocab = VOCAB;
    return input;
}

static drafter drafter_of(gumball_device *device) {
    // Likely ids: two rows of a draft model, in the second of which 5 is banned behind 5, and three of the target.
    static const int likely[] = {5, 5, 5, 6, 9};
    static float rows[5 * VOCAB];
    for (int row = 0; row < 5; row++) {
        rows[row * VOCAB + likely[row]] = 9.0f;
    }
    rows[VOCAB + 6] = 8.0f;
    drafter made;
    memset(&made, 0, sizeof made);
    const int64_t chain[DEPTH] = {-1, -1};
    const int32_t one = 1;
    const uint32_t count = DEPTH, prompt = 4;
    SIZED(gumball_device_pool_config, config);
    config.vocab = VOCAB;
    config.slots = 1;
    config.rows = DEPTH + 1;
    config.keep_histories = 1;
    made.pool = gumball_pool_new_on_device(device, &config);
    const int32_t slot = admit(made.pool, "{\"temperature\": 0, \"bad_words\": [[5, 5]]}", &prompt, 1);
    for (uint32_t depth = 0; depth < DEPTH; depth++) {
        OK(gumball_pool_add_draft_batch(made.pool, 1, 1, 0, &made.batches[depth]));
        OK(gumball_pool_assign_draft(made.pool, made.batches[depth], &slot, &depth, 1, GUMBALL_COUPLED, NULL));
    }
    OK(gumball_pool_assign_drafts(made.pool, &slot, &count, 1, GUMBALL_COUPLED, NULL));
    made.chain = copied_up(device, chain, sizeof chain);
    made.taken = copied_up(device, &one, sizeof one);
    made.rows = copied_up(device, rows, sizeof rows);
    made.columns.struct_size = sizeof made.columns;
    made.columns.data = gumball_buffer_address(made.chain);
    made.columns.rows = 1;
    made.columns.width = DEPTH;
    made.columns.bits = 64;
    made.counts.struct_size = sizeof made.counts;
    made.counts.data = gumball_buffer_address(made.taken);
    made.counts.rows = 1;
    made.drafts.struct_size = sizeof made.drafts;
    made.drafts.ids = made.columns.data;
    made.drafts.len = DEPTH;
    made.drafts.bits = 64;
    made.drafting[0] = input_of(made.rows, 0, 1);
    made.drafting[1] = input_of(made.rows, 1, 1);
    made.target = input_of(made.rows, DEPTH, DEPTH + 1);
    return made;
}

static void end(drafter it) {
    gumball_pool_free(it.pool);
    gumball_buffer_free(it.chain);
    gumball_buffer_free(it.taken);
    gumball_buffer_free(it.rows);
}

static void a_replay_drafts_verifies_and_advances(gumball_device *device) {
    drafter it = drafter_of(device);
    gumball_graph_work work[2 * DEPTH + 2];
    const gumball_graph_work *pieces[2 * DEPTH + 2];
    memset(work, 0, sizeof work);
    for (int i = 0; i < 2 * DEPTH + 2; i++) {
        work[i].struct_size = sizeof *work;
        pieces[i] = &work[i];
    }
    for (size_t depth = 0; depth < DEPTH; depth++) {
        gumball_graph_work *draft = &work[2 * depth], *copy = draft + 1;
        draft->kind = GUMBALL_WORK_DRAFT;
        draft->input = &it.drafting[depth];
        copy->kind = GUMBALL_WORK_COPY_DRAFTS;
        copy->column = depth;
        draft->batch = copy->batch = it.batches[depth];
        draft->ints = copy->ints = &it.columns;
    }
    work[2 * DEPTH].kind = GUMBALL_WORK_VERIFY;
    work[2 * DEPTH].input = &it.target;
    work[2 * DEPTH].drafts = &it.drafts;
    work[2 * DEPTH + 1].kind = GUMBALL_WORK_SHORTEN;
    work[2 * DEPTH + 1].ints = &it.counts;
    gumball_graph *graph = gumball_pool_capture_work(it.pool, pieces, 2 * DEPTH + 2);
    CHECK(graph != NULL && gumball_graph_steps(graph) == 1);
    gumball_verification *seen = gumball_verification_new(0);
    const int32_t wanted[] = {5, 6, 9};
    int64_t chain[DEPTH];
    for (size_t turn = 1; turn < 3; turn++) {
        OK(gumball_pool_replay(it.pool, graph));
        OK(gumball_pool_fetch_verification(it.pool, seen));
        OK(gumball_buffer_read(it.chain, 0, chain, sizeof chain));
        CHECK(chain[0] == 5 && chain[1] == 6 && gumball_verification_accepted(seen)[0] == DEPTH);
        CHECK(memcmp(gumball_outputs_tokens(gumball_verification_outputs(seen)), wanted, sizeof wanted) == 0);
        // The last token was taken away.
        SIZED(gumball_state, state);
        OK(gumball_pool_state(it.pool, 0, &state));
        CHECK(state.output_len == DEPTH * turn && state.output[state.output_len - 1] == 6);
    }
    // A draft and its copy by themselves, to the other column.
    OK(gumball_pool_enqueue_draft(it.pool, it.batches[0], &it.drafting[0], NULL, 0, 0, 64, NULL));
    OK(gumball_pool_enqueue_copy_drafts(it.pool, it.batches[0], &it.columns, 1));
    OK(gumball_buffer_read(it.chain, 0, chain, sizeof chain));
    CHECK(chain[0] == 5 && chain[1] == 5);
    gumball_graph_free(graph);
    gumball_verification_free(seen);
    end(it);
}

static void what_is_refused(gumball_device *device) {
    drafter it = drafter_of(device);
    const gumball_device_input input = it.target;
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
         "width is 2, but must be 0 or 1: one number for each assigned slot");
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
    end(it);
}

int main(int argc, char **argv) {
    gumball_device *device = gumball_device_open(argc > 1 ? argv[1] : "cuda");
    CHECK(device != NULL);
    a_replay_drafts_verifies_and_advances(device);
    what_is_refused(device);
    gumball_device_free(device);
    return verdict("graph_work");
}
