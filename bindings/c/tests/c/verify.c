// Drafts: arguments and results of verifications and drafts, on the host and on a device; refusals.

#include "check.h"
#include "rows.h"

enum { VOCAB = 300 };

static float rows[9 * VOCAB];

// Rows in each of which one id is likely.
static void sure(const int *ids, size_t count) {
    memset(rows, 0, sizeof rows);
    for (size_t row = 0; row < count; row++) {
        rows[row * VOCAB + (size_t)ids[row]] = 9.0f;
    }
}

static int tokens_are(const gumball_verification *verification, size_t request, const int32_t *wanted, size_t count) {
    size_t len = 99;
    const int32_t *seen = gumball_verification_tokens(verification, request, &len);
    return len == count && (count == 0 ? seen == NULL : memcmp(seen, wanted, count * sizeof *seen) == 0);
}

static int rows_are(const gumball_verification *verification, size_t request, const uint32_t *wanted, size_t count) {
    size_t len = 99;
    const uint32_t *seen = gumball_verification_rows(verification, request, &len);
    return len == count && (count == 0 ? seen == NULL : memcmp(seen, wanted, count * sizeof *seen) == 0);
}

// Two requests, a chain whose last draft is wrong and a tree, with padding between them.
static void rows_and_tokens_are_those_of_the_path(gumball_pool *pool) {
    const char *json = "{\"temperature\": 0}";
    const int32_t slots[] = {admit(pool, json, NULL, 0), -1, admit(pool, json, NULL, 0)};
    const uint32_t counts[] = {2, 0, 3};
    const int32_t ids[] = {5, 6, 20, 21, 22}, parents[] = {-1, 0, -1, -1, 1};
    const int likely[] = {5, 7, 0, 0, 21, 1, 22, 3};
    sure(likely, 8);
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 8, VOCAB);
    SIZED(gumball_drafts, drafts);
    drafts.counts = counts;
    drafts.ids = ids;
    drafts.parents = parents;
    gumball_verification *verification = gumball_verification_new(1);
    for (drafts.mode = GUMBALL_COUPLED; drafts.mode <= GUMBALL_GREEDY; drafts.mode++) {
        OK(gumball_pool_verify(pool, &logits, slots, 3, &drafts, NULL, verification));
        const int32_t first[] = {5, 7}, last[] = {21, 22, 3};
        const uint32_t first_rows[] = {0, 1}, last_rows[] = {4, 6, 7};
        CHECK(tokens_are(verification, 0, first, 2) && rows_are(verification, 0, first_rows, 2));
        CHECK(tokens_are(verification, 1, NULL, 0) && rows_are(verification, 1, NULL, 0));
        CHECK(tokens_are(verification, 2, last, 3) && rows_are(verification, 2, last_rows, 3));
        const int32_t all[] = {5, 7, -1, -1, 21, 22, 3, -1};
        const gumball_outputs *outputs = gumball_verification_outputs(verification);
        CHECK(memcmp(gumball_outputs_tokens(outputs), all, sizeof all) == 0);
        size_t len = 0;
        CHECK(gumball_outputs_kept(outputs, 4, &len) != NULL && len > 0);
    }
    // Rows may be named; what comes out counts the rows as they are read.
    const uint32_t named[] = {0, 1, 2, 3, 5, 4, 7, 6}, beyond[] = {0, 1, 2, 3, 4, 5, 6, 8};
    const int swapped[] = {5, 7, 0, 0, 1, 21, 3, 22};
    SIZED(gumball_step_options, options);
    sure(swapped, 8);
    options.row_indices = named;
    drafts.mode = GUMBALL_COUPLED;
    OK(gumball_pool_verify(pool, &logits, slots, 3, &drafts, &options, verification));
    const int32_t last[] = {21, 22, 3};
    const uint32_t last_rows[] = {4, 6, 7};
    CHECK(tokens_are(verification, 2, last, 3) && rows_are(verification, 2, last_rows, 3));
    options.row_indices = beyond;
    REFUSED(gumball_pool_verify(pool, &logits, slots, 3, &drafts, &options, verification), GUMBALL_OUT_OF_RANGE,
            "row_indices is 8, but must be a row in 0..8");
    size_t len;
    NONE(gumball_verification_tokens(verification, 3, &len), GUMBALL_OUT_OF_RANGE,
         "request is 3, but must be a request in 0..3");
    // The last token is taken away again.
    const size_t one = 1;
    OK(gumball_pool_shorten(pool, slots, &one, 1));
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, slots[0], &state));
    CHECK(state.output_len == 5 && state.output[4] == 5);
    gumball_verification_free(verification);
    gumball_pool_free(pool);
}

// Trees as links between rows are those of parents; a request without drafts has one row.
static void trees_may_be_held_as_links(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const char *json = "{\"temperature\": 0}";
    const int32_t slots[] = {admit(pool, json, NULL, 0), admit(pool, json, NULL, 0), admit(pool, json, NULL, 0)};
    const uint32_t counts[] = {2, 0, 4};
    const int32_t ids[] = {5, 6, 20, 21, 22, 23};
    // The first request is a chain. In the last the history has the drafts 20 and 21 behind it, and 21 has 22 and 23.
    const int32_t children[] = {1, 2, -1, -1, 1, -1, 3, -1, -1}, siblings[] = {-1, -1, -1, -1, -1, 2, -1, 4, -1};
    const int likely[] = {5, 7, 0, 9, 21, 1, 23, 2, 3};
    sure(likely, 9);
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 9, VOCAB);
    SIZED(gumball_drafts, drafts);
    drafts.counts = counts;
    drafts.ids = ids;
    drafts.first_child = children;
    drafts.next_sibling = siblings;
    gumball_verification *verification = gumball_verification_new(0);
#define VERIFY_LINKS() gumball_pool_verify(pool, &logits, slots, 3, &drafts, NULL, verification)
    OK(VERIFY_LINKS());
    const int32_t first[] = {5, 7}, nine[] = {9}, last[] = {21, 23, 3};
    const uint32_t first_rows[] = {0, 1}, alone[] = {3}, last_rows[] = {4, 6, 8};
    CHECK(tokens_are(verification, 0, first, 2) && rows_are(verification, 0, first_rows, 2));
    CHECK(tokens_are(verification, 1, nine, 1) && rows_are(verification, 1, alone, 1));
    CHECK(tokens_are(verification, 2, last, 3) && rows_are(verification, 2, last_rows, 3));
    // A program with the header before there were links has a shorter struct, whatever lies behind it.
    drafts.struct_size = offsetof(gumball_drafts, first_child);
    OK(VERIFY_LINKS());
    drafts.struct_size = sizeof drafts;
    const int32_t cycle[] = {1, 2, 0, -1, 1, -1, 3, -1, -1}, orphan[] = {1, -1, -1, -1, 1, -1, 3, -1, -1};
    drafts.first_child = cycle;
    REFUSED(VERIFY_LINKS(), GUMBALL_OUT_OF_RANGE,
            "first_child is 0 for row 2 of request 0, but must be in 3..3, or -1");
    drafts.first_child = orphan;
    REFUSED(VERIFY_LINKS(), GUMBALL_OUT_OF_RANGE,
            "first_child and next_sibling is none to row 2 of request 0, but must be a link to each draft");
    drafts.first_child = NULL;
    CHECK(VERIFY_LINKS() == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "first_child") == 0);
    drafts.first_child = children;
    drafts.next_sibling = NULL;
    CHECK(VERIFY_LINKS() == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "next_sibling") == 0);
    drafts.next_sibling = siblings;
    drafts.parents = ids;
    CHECK(VERIFY_LINKS() == GUMBALL_CONFLICT && strcmp(gumball_error_parameter(), "parents") == 0);
    gumball_verification_free(verification);
    gumball_pool_free(pool);
}

// Drafts that the target gives all of its probability are accepted by every mode, others by none.
static void modes_judge_by_probabilities(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slot = admit(pool, "{\"seed\": 1}", NULL, 0);
    const uint32_t count = 2;
    const int32_t ids[] = {5, 6};
    float probs[3 * VOCAB] = {0};
    probs[5] = probs[VOCAB + 6] = 1.0f;
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 3, VOCAB);
    logits.kind = GUMBALL_PROBABILITIES;
    SIZED(gumball_drafts, drafts);
    drafts.counts = &count;
    drafts.ids = ids;
    drafts.threshold_single = drafts.threshold_acc = 1.0f;
    gumball_verification *verification = gumball_verification_new(0);
    for (drafts.mode = GUMBALL_REJECTION; drafts.mode <= GUMBALL_THRESHOLD; drafts.mode++) {
        drafts.probs = drafts.mode == GUMBALL_THRESHOLD ? NULL : probs;
        const int all_right[] = {5, 6, 7}, one_right[] = {5, 8, 7};
        const int32_t all[] = {5, 6, 7}, one[] = {5, 8};
        sure(all_right, 3);
        OK(gumball_pool_verify(pool, &logits, &slot, 1, &drafts, NULL, verification));
        CHECK(tokens_are(verification, 0, all, 3));
        sure(one_right, 3);
        OK(gumball_pool_verify(pool, &logits, &slot, 1, &drafts, NULL, verification));
        CHECK(tokens_are(verification, 0, one, 2));
    }
    // A drafter of the target's own probabilities is always right, which drafts without them are not.
    for (size_t i = 0; i < 3 * VOCAB; i++) {
        rows[i] = probs[i] = i % VOCAB < 4 ? 0.25f : 0.0f;
    }
    const int32_t few[] = {1, 2};
    drafts.ids = few;
    drafts.probs = probs;
    for (int turn = 0; turn < 40; turn++) {
        drafts.mode = turn % 2 == 0 ? GUMBALL_REJECTION : GUMBALL_BLOCK;
        OK(gumball_pool_verify(pool, &logits, &slot, 1, &drafts, NULL, verification));
        CHECK(gumball_verification_accepted(verification)[0] == 2);
    }
    gumball_verification_free(verification);
    gumball_pool_free(pool);
}

// Drafts of two rows, with siblings, after the tokens of their paths; the sequence does not change.
static void drafts_are_drawn(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slot = admit(pool, "{\"temperature\": 0, \"presence_penalty\": 20}", NULL, 0);
    const int likely[] = {5, 5};
    sure(likely, 2);
    rows[7] = rows[VOCAB + 7] = 8.0f;
    float probs[2 * VOCAB];
    int32_t siblings[2 * 3];
    const int32_t twice[] = {slot, slot}, path = 5, slots[] = {slot, -1};
    const uint32_t behind_one[] = {1, 0};
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 2, VOCAB);
    SIZED(gumball_draft_rows, from);
    from.siblings = 1;
    from.counts = behind_one;
    from.ids = &path;
    OK(gumball_pool_draft(pool, &logits, twice, 2, &from, NULL, siblings, probs));
    CHECK(siblings[0] == 7 && siblings[1] == 5 && probs[7] == 1.0f && probs[VOCAB + 5] == 1.0f);
    from.counts = NULL;
    from.ids = NULL;
    from.siblings = 3;
    OK(gumball_pool_draft(pool, &logits, slots, 2, &from, NULL, siblings, NULL));
    CHECK(siblings[0] == 5 && siblings[1] != 5 && siblings[1] != siblings[2] && siblings[3] == -1 && siblings[5] == -1);
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, slot, &state));
    CHECK(state.output_len == 0);
#define DRAFT(to) gumball_pool_draft(pool, &logits, slots, 2, &from, NULL, to, NULL)
    CHECK(DRAFT(NULL) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "drafts") == 0);
    from.mode = 9;
    CHECK(DRAFT(siblings) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "mode") == 0);
    from.mode = GUMBALL_COUPLED;
    const uint32_t counts[] = {1, 0};
    const int32_t beyond = VOCAB;
    from.counts = counts;
    CHECK(DRAFT(siblings) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "ids") == 0);
    from.ids = &beyond;
    REFUSED(DRAFT(siblings), GUMBALL_OUT_OF_RANGE, "ids is 300, but must be an id in 0..300");
    gumball_pool_free(pool);
}

static void refusals(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slots[] = {admit(pool, "{\"seed\": 1}", NULL, 0), 7};
    uint32_t count = 2;
    const int32_t ids[] = {5, 6}, cycle[] = {1, 0}, tree[] = {-1, -1}, forced[] = {3, -1, -1};
    gumball_logits logits = logits_of(rows, GUMBALL_F32, 3, VOCAB);
    gumball_verification *verification = gumball_verification_new(0);
    SIZED(gumball_drafts, drafts);
    SIZED(gumball_step_options, options);
    options.forced = forced;
#define VERIFY(with) gumball_pool_verify(pool, &logits, slots, 1, &drafts, with, verification)
    CHECK(VERIFY(NULL) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "counts") == 0);
    drafts.counts = &count;
    CHECK(VERIFY(NULL) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "ids") == 0);
    drafts.ids = ids;
    CHECK(gumball_pool_verify(NULL, &logits, slots, 1, &drafts, NULL, verification) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_verify(pool, &logits, slots, 1, NULL, NULL, verification) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_verify(pool, &logits, slots, 1, &drafts, NULL, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_verify(pool, &logits, slots + 1, 1, &drafts, NULL, verification) == GUMBALL_OUT_OF_RANGE);
    logits.rows = 2;
    REFUSED(VERIFY(NULL), GUMBALL_LENGTH,
            "logits has length 2, but must have 3 rows, one per request and one per draft");
    logits.rows = 3;
    drafts.parents = cycle;
    REFUSED(VERIFY(NULL), GUMBALL_OUT_OF_RANGE,
            "parents is 1 for node 0 of request 0, but must be in -1..0, a node before it");
    drafts.parents = tree;
    drafts.mode = GUMBALL_BLOCK;
    REFUSED(VERIFY(NULL), GUMBALL_OUT_OF_RANGE, "parents is -1 for node 1 of request 0, but must be 0 in a chain");
    drafts.parents = NULL;
    CHECK(VERIFY(&options) == GUMBALL_CONFLICT && strcmp(gumball_error_parameter(), "forced") == 0);
    drafts.mode = GUMBALL_THRESHOLD;
    drafts.threshold_acc = 1.5f;
    REFUSED(VERIFY(NULL), GUMBALL_OUT_OF_RANGE, "threshold_acc is 1.5, but must be in 0..=1");
    drafts.mode = 5;
    CHECK(VERIFY(NULL) == GUMBALL_OUT_OF_RANGE && strcmp(gumball_error_parameter(), "mode") == 0);
    const size_t one = 1;
    REFUSED(gumball_pool_shorten(pool, slots, &one, 1), GUMBALL_OUT_OF_RANGE,
            "counts is 1 of slot 0, but must be in 0..=0, its output tokens");
    CHECK(gumball_pool_shorten(pool, slots, NULL, 1) == GUMBALL_OUT_OF_RANGE);
    OK(gumball_pool_shorten(pool, NULL, NULL, 0));
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, slots[0], &state));
    CHECK(state.output_len == 0);
    size_t len;
    CHECK(gumball_verification_accepted(verification) == NULL);
    CHECK(gumball_verification_tokens(verification, 0, &len) == NULL && gumball_error_code() == GUMBALL_OUT_OF_RANGE);
    gumball_verification_free(verification);
    gumball_verification_free(NULL);
    gumball_pool_free(pool);
}

// Drafts in the device's memory, which each replay reads; one request advances by what it emitted before the other.
static void drafts_on_a_device_are_read_when_they_are_verified(const char *name) {
    gumball_device *device = gumball_device_open(name);
    gumball_pool *pool = device_pool_of(device, VOCAB);
    gumball_verification *verification = gumball_verification_new(0);
    const int likely[] = {5, 6, 8, 9};
    sure(likely, 4);
    const uint32_t counts[] = {2, 0}, both[] = {0, 1, 2}, path[] = {0, 2};
    const int32_t slots[] = {admit(pool, "{\"temperature\": 0}", NULL, 0),
                             admit(pool, "{\"temperature\": 0}", NULL, 0)};
    const int64_t ids[] = {5, 6}, others[] = {7, 5};
    const int64_t chain[] = {-1, 0}, siblings[] = {-1, -1}, none[] = {1, 0};
    const int32_t all[] = {5, 6, 8}, some[] = {5, 8}, five[] = {5};
    gumball_buffer *logits = copied_up(device, rows, 4 * VOCAB * sizeof *rows);
    gumball_buffer *drafted = copied_up(device, ids, sizeof ids), *parents = copied_up(device, chain, sizeof chain);
    SIZED(gumball_device_input, input);
    input.logits = gumball_buffer_address(logits);
    input.rows = 4;
    input.vocab = VOCAB;
    SIZED(gumball_device_drafts, drafts);
    drafts.ids = gumball_buffer_address(drafted);
    drafts.parents = gumball_buffer_address(parents);
    drafts.len = 2;
    drafts.bits = 64;
    OK(gumball_pool_assign_drafts(pool, slots, counts, 2, GUMBALL_COUPLED, NULL));
    gumball_graph *graph = gumball_pool_capture_verify(pool, &input, &drafts);
    CHECK(graph != NULL && gumball_graph_steps(graph) == 1);
    OK(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL));
    OK(gumball_pool_fetch_verification(pool, verification));
    CHECK(tokens_are(verification, 0, all, 3) && rows_are(verification, 0, both, 3));
    OK(gumball_buffer_write(drafted, 0, others, sizeof others));
    OK(gumball_buffer_write(parents, 0, siblings, sizeof siblings));
    OK(gumball_pool_replay(pool, graph));
    OK(gumball_pool_fetch_verification(pool, verification));
    CHECK(tokens_are(verification, 0, some, 2) && rows_are(verification, 0, path, 2));
    OK(gumball_buffer_write(parents, 0, none, sizeof none));
    OK(gumball_pool_replay(pool, graph));
    OK(gumball_pool_fetch_verification(pool, verification));
    CHECK(tokens_are(verification, 0, five, 1));
    CHECK(gumball_outputs_statuses(gumball_verification_outputs(verification))[0] == GUMBALL_STATUS_NO_TREE);
    CHECK((const char *)gumball_pool_walks_address(pool) > (const char *)gumball_pool_outputs_address(pool));
    SIZED(gumball_state, state);
    OK(gumball_pool_state(pool, slots[0], &state));
    CHECK(state.output_len == 6 && state.output[5] == 5);
    // The last two tokens of the first request go, and one more comes.
    const int64_t gone[] = {2, 0}, one_of[] = {1};
    gumball_buffer *taken = copied_up(device, gone, sizeof gone);
    OK(gumball_pool_enqueue_shorten(pool, gumball_buffer_address(taken), 2, 64));
    OK(gumball_pool_state(pool, slots[0], &state));
    CHECK(state.output_len == 4 && state.position == 4);
    OK(gumball_buffer_write(taken, 0, one_of, sizeof one_of));
    OK(gumball_pool_replay(pool, graph));
    OK(gumball_pool_enqueue_shorten(pool, gumball_buffer_address(taken), 2, 64));
    OK(gumball_pool_fetch_verification(pool, verification));
    OK(gumball_pool_state(pool, slots[0], &state));
    CHECK(state.output_len == 4);
    REFUSED(gumball_pool_enqueue_shorten(pool, gumball_buffer_address(taken), 2, 8), GUMBALL_OUT_OF_RANGE,
            "bits is 8, but must be 32 or 64");
    CHECK(gumball_pool_enqueue_shorten(pool, gumball_buffer_address(taken), 1, 64) == GUMBALL_LENGTH);
    CHECK(gumball_pool_enqueue_shorten(pool, NULL, 2, 64) == GUMBALL_OUT_OF_RANGE);
    gumball_buffer_free(taken);
    drafts.bits = 16;
    REFUSED(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL), GUMBALL_OUT_OF_RANGE,
            "bits is 16, but must be 0, 32 or 64");
    drafts.bits = 64;
    drafts.len = 1;
    CHECK(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL) == GUMBALL_LENGTH);
    REFUSED(gumball_pool_assign_drafts(pool, slots, counts, 2, GUMBALL_THRESHOLD, NULL), GUMBALL_OUT_OF_RANGE,
            "mode is 4, but must be GUMBALL_COUPLED, GUMBALL_GREEDY, GUMBALL_REJECTION or GUMBALL_BLOCK; "
            "gumball_pool_assign_threshold_drafts has GUMBALL_THRESHOLD");
    // Judged by probabilities, with those of a drafter or without.
    static float halves[4 * VOCAB];
    for (size_t i = 0; i < 4 * VOCAB; i++) {
        halves[i] = 0.5f;
    }
    gumball_buffer *probs = copied_up(device, halves, sizeof halves);
    OK(gumball_buffer_write(drafted, 0, ids, sizeof ids));
    OK(gumball_buffer_write(parents, 0, chain, sizeof chain));
    drafts.len = 2;
    drafts.probs = gumball_buffer_address(probs);
    drafts.probs_rows = 4;
    OK(gumball_pool_assign_drafts(pool, slots, counts, 2, GUMBALL_BLOCK, NULL));
    OK(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL));
    OK(gumball_pool_fetch_verification(pool, verification));
    CHECK(tokens_are(verification, 0, all, 3) && rows_are(verification, 0, both, 3));
    drafts.probs_rows = 3;
    REFUSED(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL), GUMBALL_OUT_OF_RANGE,
            "probs is [3, 300], but must be [4, 300], a row for each row of the step");
    OK(gumball_pool_assign_threshold_drafts(pool, slots, counts, 2, 0.5f, 1.0f, NULL));
    REFUSED(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL), GUMBALL_CONFLICT,
            "probs cannot be combined with mode: only rejection and block read the drafter's probabilities; leave them "
            "out");
    drafts.probs = NULL;
    OK(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL));
    OK(gumball_pool_fetch_verification(pool, verification));
    CHECK(tokens_are(verification, 0, all, 3));
    REFUSED(gumball_pool_assign_threshold_drafts(pool, slots, counts, 2, 0.5f, 2.0f, NULL), GUMBALL_OUT_OF_RANGE,
            "threshold_acc is 2, but must be in 0..=1");

    // The same chain, held as first-child and next-sibling links of the four rows. Links with a cycle follow below.
    const int64_t children[] = {1, 2, -1, -1}, siblings_of_none[] = {-1, -1, -1, -1}, round[] = {1, 1, -1, -1};
    gumball_buffer *first_child = copied_up(device, children, sizeof children);
    gumball_buffer *next_sibling = copied_up(device, siblings_of_none, sizeof siblings_of_none);
    drafts.first_child = gumball_buffer_address(first_child);
    drafts.links = 4;
    OK(gumball_pool_assign_drafts(pool, slots, counts, 2, GUMBALL_COUPLED, NULL));
    REFUSED(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL), GUMBALL_OUT_OF_RANGE,
            "next_sibling is NULL, but must be a pointer to something");
    drafts.next_sibling = gumball_buffer_address(next_sibling);
    REFUSED(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL), GUMBALL_CONFLICT,
            "parents cannot be combined with first_child: a tree is held one way or the other");
    drafts.parents = NULL;
    OK(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL));
    OK(gumball_pool_fetch_verification(pool, verification));
    CHECK(tokens_are(verification, 0, all, 3) && rows_are(verification, 0, both, 3));
    OK(gumball_buffer_write(first_child, 0, round, sizeof round));
    OK(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL));
    OK(gumball_pool_fetch_verification(pool, verification));
    CHECK(tokens_are(verification, 0, five, 1));
    CHECK(gumball_outputs_statuses(gumball_verification_outputs(verification))[0] == GUMBALL_STATUS_NO_TREE);
    drafts.links = 3;
    REFUSED(gumball_pool_enqueue_verify(pool, &input, &drafts, NULL), GUMBALL_LENGTH,
            "first_child has length 3, but must have 4, one per request and one per draft");
    gumball_buffer_free(first_child);
    gumball_buffer_free(next_sibling);
    gumball_buffer_free(probs);
    gumball_graph_free(graph);
    gumball_buffer_free(logits);
    gumball_buffer_free(drafted);
    gumball_buffer_free(parents);
    gumball_verification_free(verification);
    gumball_pool_free(pool);
    gumball_device_free(device);
}

// Drafts of a chain and siblings of a tree, from rows of the host and from rows that are there, with the drafts in front of them.
static void drafts_on_a_device_are_those_of_the_host(const char *name) {
    enum { SIBLINGS = 3, DRAFTED = 4 };
    gumball_device *device = gumball_device_open(name);
    gumball_pool *host = pool_of(VOCAB, 1), *pool = device_pool_of(device, VOCAB);
    static const char *const kinds[] = {"{\"seed\": 5}", "{\"seed\": 6, \"top_p\": 0.9, \"repetition_penalty\": 1.3}"};
    int32_t slots[DRAFTED];
    for (int i = 0; i < DRAFTED; i++) {
        slots[i] = -1;
    }
    for (int i = 0; i < 2; i++) {
        const uint32_t prompt[] = {7, 8, 7};
        slots[i] = admit(host, kinds[i], prompt, 3);
        CHECK(admit(pool, kinds[i], prompt, 3) == slots[i]);
    }
    slots[3] = slots[0];
    for (int row = 0; row < DRAFTED; row++) {
        model_like(rows + row * VOCAB, VOCAB, (uint64_t)row);
    }
    gumball_logits logits = logits_of(rows, GUMBALL_F32, DRAFTED, VOCAB);
    const uint32_t counts[DRAFTED] = {2, 1, 0, 0};
    const int32_t ids[] = {9, 4, 7};
    static float probs[2][DRAFTED * VOCAB];
    int32_t drafts[2][DRAFTED * SIBLINGS];
    SIZED(gumball_draft_rows, from);
    from.counts = counts;
    from.ids = ids;
    from.siblings = SIBLINGS;
    OK(gumball_pool_draft(host, &logits, slots, DRAFTED, &from, NULL, drafts[0], probs[0]));
    OK(gumball_pool_draft(pool, &logits, slots, DRAFTED, &from, NULL, drafts[1], probs[1]));
    CHECK(memcmp(drafts[0], drafts[1], sizeof drafts[0]) == 0 && memcmp(probs[0], probs[1], sizeof probs[0]) == 0);

    // The rows and the paths lie on the device. A path is a line of three ids, of which no row has all in front of it.
    const int64_t lines[DRAFTED * 3] = {9, 4, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1};
    gumball_buffer *copied = copied_up(device, rows, DRAFTED * VOCAB * sizeof *rows),
                   *paths = copied_up(device, lines, sizeof lines);
    SIZED(gumball_device_input, input);
    input.logits = gumball_buffer_address(copied);
    input.rows = DRAFTED;
    input.vocab = VOCAB;
    int64_t chain = -1, tree = -1;
    OK(gumball_pool_add_draft_batch(pool, DRAFTED, 1, 0, &chain));
    OK(gumball_pool_add_draft_batch(pool, DRAFTED, SIBLINGS, 1, &tree));
    CHECK(chain == 0 && tree == 1);
    const int64_t batches[] = {chain, tree};
    for (int i = 0; i < 2; i++) {
        OK(gumball_pool_assign_draft(pool, batches[i], slots, counts, DRAFTED, GUMBALL_COUPLED, NULL));
        OK(gumball_pool_enqueue_draft(pool, batches[i], &input, gumball_buffer_address(paths), 3, 3, 64, NULL));
    }
    int32_t first[DRAFTED];
    OK(gumball_pool_fetch_drafts(pool, chain, first, NULL));
    OK(gumball_pool_fetch_drafts(pool, tree, drafts[1], probs[1]));
    CHECK(memcmp(drafts[0], drafts[1], sizeof drafts[0]) == 0 && memcmp(probs[0], probs[1], sizeof probs[0]) == 0);
    for (int row = 0; row < DRAFTED; row++) {
        CHECK(first[row] == drafts[0][row * SIBLINGS]);
    }
    size_t stride = 0;
    CHECK(gumball_pool_drafts_address(pool, chain) != NULL);
    CHECK(gumball_pool_draft_probs_address(pool, tree, &stride) != NULL && stride >= VOCAB);
    CHECK(gumball_pool_draft_probs_address(pool, chain, &stride) == NULL);

    CHECK(gumball_pool_enqueue_draft(pool, chain, &input, NULL, 0, 0, 32, NULL) == GUMBALL_LENGTH);
    REFUSED(gumball_pool_enqueue_draft(pool, chain, &input, gumball_buffer_address(paths), 3, 3, 8, NULL),
            GUMBALL_OUT_OF_RANGE, "bits is 8, but must be 32 or 64");
    REFUSED(gumball_pool_assign_draft(pool, 7, slots, counts, DRAFTED, GUMBALL_COUPLED, NULL), GUMBALL_OUT_OF_RANGE,
            "batch is 7, but must be a batch of drafts that this pool has");
    CHECK(gumball_pool_assign_draft(pool, chain, slots, counts, DRAFTED, 9, NULL) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_add_draft_batch(pool, 0, 1, 0, &chain) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_pool_add_draft_batch(host, 1, 1, 0, &chain) == GUMBALL_UNAVAILABLE);
    OK(gumball_pool_assign_draft(pool, chain, slots, NULL, DRAFTED, GUMBALL_GREEDY, NULL));
    OK(gumball_pool_enqueue_draft(pool, chain, &input, NULL, 0, 0, 32, "full"));
    OK(gumball_pool_fetch_drafts(pool, chain, first, NULL));
    CHECK(first[0] >= 0 && first[3] >= 0 && first[2] == -1);
    OK(gumball_pool_remove_draft_batch(pool, chain));
    CHECK(gumball_pool_remove_draft_batch(pool, chain) == GUMBALL_OUT_OF_RANGE);
    gumball_buffer_free(copied);
    gumball_buffer_free(paths);
    gumball_pool_free(host);
    gumball_pool_free(pool);
    gumball_device_free(device);
}

int main(int argc, char **argv) {
    rows_and_tokens_are_those_of_the_path(pool_of(VOCAB, 1));
    trees_may_be_held_as_links();
    modes_judge_by_probabilities();
    drafts_are_drawn();
    refusals();
    if (argc > 1) {
        gumball_device *device = gumball_device_open(argv[1]);
        rows_and_tokens_are_those_of_the_path(device_pool_of(device, VOCAB));
        gumball_device_free(device);
        drafts_on_a_device_are_read_when_they_are_verified(argv[1]);
        drafts_on_a_device_are_those_of_the_host(argv[1]);
    }
    return verdict("verify");
}
