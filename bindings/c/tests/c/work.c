// Work in order: enqueued, captured, replayed and fetched, with drafts that lie on a device; refusals.

#include "check.h"
#include "rows.h"

enum { VOCAB = 300 };

static const char *const greedy = "{\"temperature\": 0}";
static float rows[5 * VOCAB];

static void work_on_the_host_is_done_on_return(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slot = admit(pool, greedy, NULL, 0), ids[] = {6, 9}, gone[] = {1};
    const uint32_t count = 2, from[] = {0, 1};
    const int likely[] = {5, 6, 8, 7};
    sure_of(rows, VOCAB, likely, 4);
    gumball_outputs *outputs = outputs_of();
    const gumball_rows first = rows_of(rows, GUMBALL_F32, 1, VOCAB);
    const gumball_rows others = rows_of(rows + VOCAB, GUMBALL_F32, 3, VOCAB);
    CHECK(enqueue(pool, &first) == GUMBALL_CONFLICT);
    OK(assign(pool, &slot, 1));
    OK(enqueue(pool, &first));
    OK(gumball_pool_fetch(pool, outputs));
    CHECK(view_of(outputs).tokens[0] == 5);
    SIZED(gumball_drafts, drafts);
    drafts.ids = ints_of(ids, 2);
    gumball_work work[2] = {work_of(GUMBALL_WORK_VERIFY, &others), work_of(GUMBALL_WORK_SHORTEN, &others)};
    memset(&work[1].rows, 0, sizeof work[1].rows);
    work[0].drafts = &drafts;
    work[1].ints = ints_of(gone, 1);
    gumball_batch batch = batch_of(&slot, 1);
    batch.counts = &count;
    OK(gumball_pool_assign(pool, &batch));
    OK(gumball_pool_enqueue(pool, work, 2));
    OK(gumball_pool_fetch(pool, outputs));
    const int32_t emitted[] = {6, 8};
    CHECK(emits(outputs, 0, emitted, from, 2));
    const gumball_state state = state_of(pool, slot);
    CHECK(state.output_len == 2 && state.output[1] == 6);

    const char *const there = "graphs and memory of a device in a pool of the host";
    NOTHING(gumball_pool_capture(pool, work, 1), GUMBALL_UNAVAILABLE, there);
    NOTHING(gumball_pool_record(pool, GUMBALL_FULL, work, 1), GUMBALL_UNAVAILABLE, there);
    CHECK(gumball_pool_before_replay(pool, NULL, 0) == GUMBALL_UNAVAILABLE);
    int64_t number = 7;
    CHECK(gumball_pool_add_draft_batch(pool, 1, 1, 0, &number) == GUMBALL_UNAVAILABLE && number == 7);
    batch.draft_batch = 1;
    CHECK(gumball_pool_assign(pool, &batch) == GUMBALL_UNAVAILABLE);
    SIZED(gumball_outputs_view, view);
    CHECK(gumball_pool_outputs(pool, &view) == GUMBALL_UNAVAILABLE);
    // An array of structs of one size.
    struct {
        gumball_work known;
        size_t added;
    } newer[2];
    memset(newer, 0, sizeof newer);
    for (int i = 0; i < 2; i++) {
        newer[i].known = work[1];
        newer[i].known.struct_size = sizeof newer[i];
    }
    OK(gumball_pool_enqueue(pool, &newer[0].known, 2));
    newer[1].known.struct_size = sizeof newer[1].known;
    CHECK(gumball_pool_enqueue(pool, &newer[0].known, 2) == GUMBALL_OUT_OF_RANGE);
    CHECK(strstr(gumball_error_message(), "as in the first of the array") != NULL);
    FAILS(gumball_pool_enqueue(pool, NULL, 1), GUMBALL_OUT_OF_RANGE, "work");
    OK(gumball_pool_enqueue(pool, NULL, 0));
}

// Drafts in the device's memory, which each replay reads; one request advances by what it emitted before the other.
static void drafts_on_a_device_are_read_when_they_are_verified(gumball_device *device) {
    gumball_pool *pool = device_pool_of(device, VOCAB);
    gumball_outputs *outputs = outputs_of();
    const int likely[] = {5, 6, 8, 9};
    sure_of(rows, VOCAB, likely, 4);
    const uint32_t counts[] = {2, 0}, both[] = {0, 1, 2}, path[] = {0, 2};
    const int32_t slots[] = {admit(pool, greedy, NULL, 0), admit(pool, greedy, NULL, 0)};
    const int64_t ids[] = {5, 6}, others[] = {7, 5}, chain[] = {-1, 0}, siblings[] = {-1, -1}, none[] = {1, 0};
    const int32_t all[] = {5, 6, 8}, some[] = {5, 8}, five[] = {5};
    gumball_buffer *logits = copied_up(device, rows, 4 * VOCAB * sizeof *rows);
    gumball_buffer *drafted = copied_up(device, ids, sizeof ids), *parents = copied_up(device, chain, sizeof chain);
    const gumball_rows there = rows_there(logits, 4, VOCAB);
    SIZED(gumball_drafts, drafts);
    drafts.ids = ints_there(drafted, GUMBALL_I64, 2);
    drafts.parents = ints_there(parents, GUMBALL_I64, 2);
    gumball_work work = work_of(GUMBALL_WORK_VERIFY, &there);
    work.drafts = &drafts;
    gumball_batch batch = batch_of(slots, 2);
    batch.counts = counts;
#define VERIFIES(call, tokens, from, count) \
    OK(call); \
    OK(gumball_pool_fetch(pool, outputs)); \
    CHECK(emits(outputs, 0, tokens, from, count))
#define ENQUEUE() gumball_pool_enqueue(pool, &work, 1)
    OK(gumball_pool_assign(pool, &batch));
    gumball_graph *graph = keep_graph(gumball_pool_capture(pool, &work, 1));
    VERIFIES(ENQUEUE(), all, both, 3);
    OK(gumball_buffer_write(drafted, 0, others, sizeof others));
    OK(gumball_buffer_write(parents, 0, siblings, sizeof siblings));
    VERIFIES(gumball_pool_replay(pool, graph), some, path, 2);
    OK(gumball_buffer_write(parents, 0, none, sizeof none));
    VERIFIES(gumball_pool_replay(pool, graph), five, both, 1);
    CHECK(view_of(outputs).statuses[0] == GUMBALL_STATUS_NO_TREE);
    SIZED(gumball_outputs_view, view);
    OK(gumball_pool_outputs(pool, &view));
    CHECK(view.rows == 4 && (const void *)view.tokens == view.words && view.path == view.words + view.words_len);
    CHECK(view.accepted == view.path + 4);
    // The last two tokens of the first request go.
    const int64_t gone[] = {2, 0};
    gumball_buffer *taken = copied_up(device, gone, sizeof gone);
    SIZED(gumball_work, shorten);
    shorten.kind = GUMBALL_WORK_SHORTEN;
    shorten.ints = ints_there(taken, GUMBALL_I64, 2);
    OK(gumball_pool_enqueue(pool, &shorten, 1));
    CHECK(state_of(pool, slots[0]).output_len == 4 && state_of(pool, slots[0]).position == 4);
    shorten.ints.rows = 1;
    CHECK(gumball_pool_enqueue(pool, &shorten, 1) == GUMBALL_LENGTH);
    shorten.ints.width = 2;
    REFUSED(gumball_pool_enqueue(pool, &shorten, 1), GUMBALL_OUT_OF_RANGE,
            "width is 2, but must be 0 or 1: ints is a list");
    memset(&shorten.ints.dtype, 0x7F, sizeof shorten.ints.dtype);
    FAILS(gumball_pool_enqueue(pool, &shorten, 1), GUMBALL_OUT_OF_RANGE, "dtype");

    // Judged by probabilities, with those of a drafter.
    static float halves[4 * VOCAB];
    for (size_t i = 0; i < 4 * VOCAB; i++) {
        halves[i] = 0.5f;
    }
    gumball_buffer *probs = copied_up(device, halves, sizeof halves);
    OK(gumball_buffer_write(drafted, 0, ids, sizeof ids));
    OK(gumball_buffer_write(parents, 0, chain, sizeof chain));
    drafts.probs = rows_there(probs, 4, VOCAB).matrix;
    batch.mode = GUMBALL_BLOCK;
    OK(gumball_pool_assign(pool, &batch));
    VERIFIES(ENQUEUE(), all, both, 3);
    drafts.probs.rows = 3;
    REFUSED(ENQUEUE(), GUMBALL_OUT_OF_RANGE, "probs is [3, 300], but must be [4, 300], a row for each row of the step");

    // The same chain as links of the four rows.
    const int64_t children[] = {1, 2, -1, -1}, no_siblings[] = {-1, -1, -1, -1};
    memset(&drafts.probs, 0, sizeof drafts.probs);
    memset(&drafts.parents, 0, sizeof drafts.parents);
    drafts.first_child = ints_there(copied_up(device, children, sizeof children), GUMBALL_I64, 4);
    drafts.next_sibling = ints_there(copied_up(device, no_siblings, sizeof no_siblings), GUMBALL_I64, 4);
    batch.mode = GUMBALL_COUPLED;
    OK(gumball_pool_assign(pool, &batch));
    VERIFIES(ENQUEUE(), all, both, 3);
}

// Drafts from rows and paths in device memory equal the drafts of a direct call from host memory; the addresses of
// batches of drafts.
static void drafts_on_a_device_are_those_of_a_direct_call(gumball_device *device) {
    enum { SIBLINGS = 3, DRAFTED = 4 };
    gumball_pool *pool = device_pool_of(device, VOCAB);
    static const char *const kinds[] = {"{\"seed\": 5}", "{\"seed\": 6, \"top_p\": 0.9, \"repetition_penalty\": 1.3}"};
    int32_t slots[DRAFTED] = {-1, -1, -1, -1};
    for (int i = 0; i < 2; i++) {
        const uint32_t prompt[] = {7, 8, 7};
        slots[i] = admit(pool, kinds[i], prompt, 3);
    }
    slots[3] = slots[0];
    for (int row = 0; row < DRAFTED; row++) {
        model_like(rows + row * VOCAB, VOCAB, (uint64_t)row);
    }
    const gumball_rows logits = rows_of(rows, GUMBALL_F32, DRAFTED, VOCAB);
    const uint32_t counts[DRAFTED] = {2, 1, 0, 0};
    const int32_t ids[] = {9, 4, 7};
    static float probs[2][DRAFTED * VOCAB];
    int32_t drafts[2][DRAFTED * SIBLINGS], first[DRAFTED];
    gumball_batch batch = batch_of(slots, DRAFTED);
    batch.counts = counts;
    const gumball_proposals to[] = {{SIBLINGS, drafts[0], probs[0]}, {SIBLINGS, drafts[1], probs[1]}, {1, first, NULL}};
    OK(gumball_pool_draft(pool, &logits, &batch, ids, &to[0]));

    // The rows and the paths lie on the device. A path is a line of three ids, of which no row has all in front of it.
    int64_t lines[DRAFTED * 3] = {9, 4, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1};
    gumball_buffer *copied = copied_up(device, rows, DRAFTED * VOCAB * sizeof *rows);
    gumball_buffer *paths = copied_up(device, lines, sizeof lines);
    const gumball_rows there = rows_there(copied, DRAFTED, VOCAB);
    gumball_work work = work_of(GUMBALL_WORK_DRAFT, &there);
    work.ints = ints_there(paths, GUMBALL_I64, DRAFTED);
    work.ints.width = 3;
    int64_t batches[2];
    OK(gumball_pool_add_draft_batch(pool, DRAFTED, 1, 0, &batches[0]));
    OK(gumball_pool_add_draft_batch(pool, DRAFTED, SIBLINGS, 1, &batches[1]));
    for (int i = 0; i < 2; i++) {
        batch.draft_batch = work.draft_batch = batches[i];
        OK(gumball_pool_assign(pool, &batch));
        OK(gumball_pool_enqueue(pool, &work, 1));
    }
    OK(gumball_pool_fetch_drafts(pool, batches[0], &to[2]));
    OK(gumball_pool_fetch_drafts(pool, batches[1], &to[1]));
    CHECK(memcmp(drafts[0], drafts[1], sizeof drafts[0]) == 0 && memcmp(probs[0], probs[1], sizeof probs[0]) == 0);
    // Copied into the last column of the paths.
    SIZED(gumball_work, copy);
    copy.kind = GUMBALL_WORK_COPY_DRAFTS;
    copy.draft_batch = work.draft_batch = batches[0];
    copy.ints = work.ints;
    copy.column = 2;
    OK(gumball_pool_enqueue(pool, &copy, 1));
    OK(gumball_buffer_read(paths, 0, lines, sizeof lines));
    for (int row = 0; row < DRAFTED; row++) {
        CHECK(first[row] == drafts[0][row * SIBLINGS] && first[row] == lines[3 * row + 2]);
    }
    gumball_ints lie;
    gumball_matrix drawn_from;
    OK(gumball_pool_drafts(pool, batches[1], &lie, &drawn_from));
    CHECK(lie.data != NULL && lie.rows == DRAFTED && lie.width == SIBLINGS && lie.memory == GUMBALL_DEVICE);
    CHECK(drawn_from.data != NULL && drawn_from.rows == DRAFTED && drawn_from.stride >= VOCAB);
    OK(gumball_pool_drafts(pool, batches[0], &lie, &drawn_from));
    CHECK(lie.width == 1 && drawn_from.data == NULL && drawn_from.rows == 0);

    // Pieces of work, each with one thing wrong.
#define REFUSES(piece, set, code, parameter) \
    { \
        gumball_work wrong = piece; \
        set; \
        NOTHING(gumball_pool_capture(pool, &wrong, 1), code, parameter); \
    }
    const uint32_t word = 1;
    const uint8_t present = 1;
    REFUSES(copy, memset(&wrong.kind, 0x7F, sizeof wrong.kind), GUMBALL_OUT_OF_RANGE, "kind")
    REFUSES(copy, wrong.rows = there, GUMBALL_CONFLICT, "rows")
    REFUSES(copy, wrong.draft_batch = 9, GUMBALL_OUT_OF_RANGE, "draft_batch")
    REFUSES(copy, wrong.draft_batch = INT64_MIN, GUMBALL_OUT_OF_RANGE, "draft_batch")
    REFUSES(copy, wrong.column = 3, GUMBALL_OUT_OF_RANGE, "ints")
    REFUSES(copy, wrong.ints.memory = GUMBALL_HOST, GUMBALL_OUT_OF_RANGE, "memory")
    REFUSES(work, wrong.masks = masks_of(&word, 1, 1), GUMBALL_OUT_OF_RANGE, "masks.memory")
    REFUSES(work,
            (wrong.masks = masks_of(&word, 1, 1), wrong.masks.memory = GUMBALL_DEVICE, wrong.masks.present = &present),
            GUMBALL_CONFLICT, "masks.present")
    memset(&work.ints, 0, sizeof work.ints);
    CHECK(gumball_pool_enqueue(pool, &work, 1) == GUMBALL_LENGTH);
    gumball_graph *empty = keep_graph(gumball_pool_capture(pool, NULL, 0));
    CHECK(gumball_pool_capture(NULL, &work, 1) == NULL);
    OK(gumball_pool_replay(pool, empty));
    FAILS(gumball_pool_fetch_drafts(pool, batches[0], &to[1]), GUMBALL_OUT_OF_RANGE, "siblings");
    batch.draft_batch = 7;
    FAILS(gumball_pool_assign(pool, &batch), GUMBALL_OUT_OF_RANGE, "draft_batch");
    CHECK(gumball_pool_add_draft_batch(pool, 0, 1, 0, &batches[1]) == GUMBALL_OUT_OF_RANGE);
    OK(gumball_pool_remove_draft_batch(pool, batches[0]));
    CHECK(gumball_pool_remove_draft_batch(pool, batches[0]) == GUMBALL_OUT_OF_RANGE);
}

int main(int argc, char **argv) {
    work_on_the_host_is_done_on_return();
    if (argc > 1) {
        gumball_device *device = gumball_device_open(argv[1]);
        CHECK(device != NULL);
        drafts_on_a_device_are_read_when_they_are_verified(device);
        drafts_on_a_device_are_those_of_a_direct_call(device);
        gumball_device_free(device);
    }
    return verdict("work");
}
