// Drafts: arguments and results of verifications and drafts, in every form; refusals.

#include "check.h"
#include "rows.h"

enum { VOCAB = 300 };

static const char *const greedy = "{\"temperature\": 0}";
static float rows[9 * VOCAB];

// Two requests, a chain whose last draft is wrong and a tree, with padding between them.
static void rows_and_tokens_are_those_of_the_path(gumball_pool *pool) {
    const int32_t slots[] = {admit(pool, greedy, NULL, 0), -1, admit(pool, greedy, NULL, 0)};
    const uint32_t counts[] = {2, 0, 3};
    const int32_t ids[] = {5, 6, 20, 21, 22}, parents[] = {-1, 0, -1, -1, 1};
    const int likely[] = {5, 7, 0, 0, 21, 1, 22, 3};
    const int32_t first[] = {5, 7}, last[] = {21, 22, 3}, all[] = {5, 7, -1, -1, 21, 22, 3, -1};
    const uint32_t first_rows[] = {0, 1}, last_rows[] = {4, 6, 7};
    const gumball_rows logits = sure_of(rows, VOCAB, likely, 8);
    gumball_batch batch = batch_of(slots, 3);
    batch.counts = counts;
    SIZED(gumball_drafts, drafts);
    drafts.ids = ints_of(ids, 5);
    drafts.parents = ints_of(parents, 5);
    gumball_outputs *outputs = outputs_of();
    for (int turn = 0; turn < 2; turn++) {
        batch.mode = turn == 0 ? GUMBALL_COUPLED : GUMBALL_GREEDY;
        OK(gumball_pool_verify(pool, &logits, &batch, &drafts, outputs));
        CHECK(emits(outputs, 0, first, first_rows, 2) && emits(outputs, 1, NULL, NULL, 0));
        CHECK(emits(outputs, 2, last, last_rows, 3) && emitted_of(outputs, 2).first_place == 4);
        const gumball_outputs_view view = view_of(outputs);
        CHECK(view.requests == 3 && view.accepted[0] == 1 && view.accepted[2] == 2);
        CHECK(view.rows == 8 && memcmp(view.tokens, all, sizeof all) == 0);
        const uint32_t path[] = {0, 1, UINT32_MAX, UINT32_MAX, 4, 6, 7, UINT32_MAX};
        CHECK(memcmp(view.path, path, sizeof path) == 0);
        size_t len = 0;
        CHECK(gumball_outputs_kept(outputs, 4, &len) != NULL && len > 0);
    }
    gumball_emitted emitted;
    REFUSED(gumball_outputs_request(outputs, 3, &emitted), GUMBALL_OUT_OF_RANGE,
            "request is 3, but must be a request in 0..3");
    // The last token is taken away again.
    const size_t one = 1;
    OK(gumball_pool_shorten(pool, slots, &one, 1));
    const gumball_state state = state_of(pool, slots[0]);
    CHECK(state.output_len == 3 && state.output[2] == 5);
}

// Trees as links between rows are those of parents; a request without drafts has one row.
static void trees_may_be_held_as_links(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slots[] = {admit(pool, greedy, NULL, 0), admit(pool, greedy, NULL, 0), admit(pool, greedy, NULL, 0)};
    const uint32_t counts[] = {2, 0, 4};
    const int32_t ids[] = {5, 6, 20, 21, 22, 23};
    // The first request is a chain. In the last the history has the drafts 20 and 21 behind it, and 21 has 22 and 23.
    const int32_t children[] = {1, 2, -1, -1, 1, -1, 3, -1, -1}, siblings[] = {-1, -1, -1, -1, -1, 2, -1, 4, -1};
    const int likely[] = {5, 7, 0, 9, 21, 1, 23, 2, 3};
    const gumball_rows logits = sure_of(rows, VOCAB, likely, 9);
    gumball_batch batch = batch_of(slots, 3);
    batch.counts = counts;
    SIZED(gumball_drafts, drafts);
    drafts.ids = ints_of(ids, 6);
    drafts.first_child = ints_of(children, 9);
    drafts.next_sibling = ints_of(siblings, 9);
    gumball_outputs *outputs = outputs_of();
#define VERIFY() gumball_pool_verify(pool, &logits, &batch, &drafts, outputs)
    OK(VERIFY());
    const int32_t first[] = {5, 7}, nine[] = {9}, last[] = {21, 23, 3};
    const uint32_t first_rows[] = {0, 1}, alone[] = {3}, last_rows[] = {4, 6, 8};
    CHECK(emits(outputs, 0, first, first_rows, 2) && emits(outputs, 1, nine, alone, 1));
    CHECK(emits(outputs, 2, last, last_rows, 3));
    drafts.first_child.rows = 8;
    FAILS(VERIFY(), GUMBALL_LENGTH, "first_child");
    drafts.first_child = ints_of(NULL, 0);
    FAILS(VERIFY(), GUMBALL_OUT_OF_RANGE, "first_child");
    drafts.first_child = ints_of(children, 9);
    drafts.next_sibling = ints_of(NULL, 0);
    FAILS(VERIFY(), GUMBALL_OUT_OF_RANGE, "next_sibling");
    drafts.next_sibling = ints_of(siblings, 9);
    drafts.parents = ints_of(ids, 6);
    FAILS(VERIFY(), GUMBALL_CONFLICT, "parents");
}

// Drafts that the target gives all of its probability are accepted by every mode, others by none.
static void modes_judge_by_probabilities(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slot = admit(pool, "{\"seed\": 1}", NULL, 0);
    const uint32_t count = 2, from[] = {0, 1, 2};
    const int32_t ids[] = {5, 6}, all[] = {5, 6, 7}, one[] = {5, 8};
    const int all_right[] = {5, 6, 7}, one_right[] = {5, 8, 7};
    const gumball_verify_mode modes[] = {GUMBALL_REJECTION, GUMBALL_BLOCK, GUMBALL_THRESHOLD};
    static float probs[3 * VOCAB];
    probs[5] = probs[VOCAB + 6] = 1.0f;
    gumball_rows weights = rows_of(rows, GUMBALL_F32, 3, VOCAB);
    weights.what = GUMBALL_PROBABILITIES;
    gumball_batch batch = batch_of(&slot, 1);
    batch.counts = &count;
    SIZED(gumball_drafts, drafts);
    drafts.ids = ints_of(ids, 2);
    gumball_outputs *outputs = outputs_of();
    for (int i = 0; i < 3; i++) {
        batch.mode = modes[i];
        batch.threshold_single = batch.threshold_acc = i == 2 ? 1.0f : 0.0f;
        drafts.probs = matrix_of(i == 2 ? NULL : probs, GUMBALL_F32, i == 2 ? 0 : 3, VOCAB);
        sure_of(rows, VOCAB, all_right, 3);
        OK(gumball_pool_verify(pool, &weights, &batch, &drafts, outputs));
        CHECK(emits(outputs, 0, all, from, 3));
        sure_of(rows, VOCAB, one_right, 3);
        OK(gumball_pool_verify(pool, &weights, &batch, &drafts, outputs));
        CHECK(emits(outputs, 0, one, from, 2));
    }
}

// Drafts of two rows, with siblings, after the tokens of their paths; the sequence does not change.
static void drafts_are_drawn(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slot = admit(pool, "{\"temperature\": 0, \"presence_penalty\": 20}", NULL, 0);
    const int likely[] = {5, 5};
    const gumball_rows logits = sure_of(rows, VOCAB, likely, 2);
    rows[7] = rows[VOCAB + 7] = 8.0f;
    float probs[2 * VOCAB];
    int32_t siblings[2 * 3];
    const int32_t twice[] = {slot, slot}, path = 5, slots[] = {slot, -1}, beyond = VOCAB;
    const uint32_t behind_one[] = {1, 0};
    gumball_batch batch = batch_of(twice, 2);
    batch.counts = behind_one;
    gumball_proposals to = {1, siblings, probs};
#define DRAFT(paths, drafts) gumball_pool_draft(pool, &logits, &batch, paths, drafts)
    OK(DRAFT(&path, &to));
    CHECK(siblings[0] == 7 && siblings[1] == 5 && probs[7] == 1.0f && probs[VOCAB + 5] == 1.0f);
    batch = batch_of(slots, 2);
    to.siblings = 3;
    to.probs = NULL;
    OK(DRAFT(NULL, &to));
    CHECK(siblings[0] == 5 && siblings[1] != 5 && siblings[1] != siblings[2] && siblings[3] == -1 && siblings[5] == -1);
    CHECK(state_of(pool, slot).output_len == 0);
    to.ids = NULL;
    FAILS(DRAFT(NULL, &to), GUMBALL_OUT_OF_RANGE, "ids");
    FAILS(DRAFT(NULL, NULL), GUMBALL_OUT_OF_RANGE, "drafts");
    to.ids = siblings;
    batch.counts = behind_one;
    FAILS(DRAFT(NULL, &to), GUMBALL_OUT_OF_RANGE, "paths");
    REFUSED(DRAFT(&beyond, &to), GUMBALL_OUT_OF_RANGE, "ids is 300, but must be an id in 0..300");
}

static void refusals(void) {
    gumball_pool *pool = pool_of(VOCAB, 1);
    const int32_t slots[] = {admit(pool, "{\"seed\": 1}", NULL, 0), 7};
    const uint32_t count = 2;
    const int32_t ids[] = {5, 6}, tree[] = {-1, -1}, forced[] = {3, -1, -1};
    const gumball_rows logits = rows_of(rows, GUMBALL_F32, 3, VOCAB);
    gumball_outputs *outputs = outputs_of();
    SIZED(gumball_drafts, chain);
    gumball_batch of_two = batch_of(slots, 1);
    chain.ids = ints_of(ids, 2);
    of_two.counts = &count;
// One thing wrong.
#define WRONG(set, code, parameter) \
    { \
        gumball_drafts drafts = chain; \
        gumball_batch batch = of_two; \
        set; \
        FAILS(VERIFY(), code, parameter); \
    }
    WRONG(batch.counts = NULL, GUMBALL_LENGTH, "counts")
    WRONG(drafts.ids.data = NULL, GUMBALL_OUT_OF_RANGE, "ids")
    WRONG(drafts.ids.rows = 1, GUMBALL_LENGTH, "ids")
    WRONG(drafts.ids.dtype = GUMBALL_I64, GUMBALL_OUT_OF_RANGE, "dtype")
    WRONG(drafts.ids.width = 2, GUMBALL_OUT_OF_RANGE, "width")
    WRONG(drafts.ids.memory = GUMBALL_DEVICE, GUMBALL_OUT_OF_RANGE, "ids")
    WRONG(batch.slots = slots + 1, GUMBALL_OUT_OF_RANGE, "slots")
    WRONG((drafts.parents = ints_of(tree, 2), batch.mode = GUMBALL_BLOCK), GUMBALL_OUT_OF_RANGE, "parents")
    WRONG((batch.forced = forced, batch.mode = GUMBALL_BLOCK), GUMBALL_CONFLICT, "forced")
    WRONG((batch.threshold_acc = 1.5f, batch.mode = GUMBALL_BLOCK), GUMBALL_CONFLICT, "threshold_acc")
    WRONG((batch.threshold_acc = 1.5f, batch.mode = GUMBALL_THRESHOLD), GUMBALL_OUT_OF_RANGE, "threshold_acc")
    WRONG(memset(&batch.mode, 0x7F, sizeof batch.mode), GUMBALL_OUT_OF_RANGE, "mode")
    WRONG(batch.draft_batch = 1, GUMBALL_OUT_OF_RANGE, "draft_batch")
#define REFUSES(pool, logits, batch, drafts, outputs, parameter) \
    FAILS(gumball_pool_verify(pool, logits, batch, drafts, outputs), GUMBALL_OUT_OF_RANGE, parameter)
    REFUSES(NULL, &logits, &of_two, &chain, outputs, "pool");
    REFUSES(pool, NULL, &of_two, &chain, outputs, "rows");
    REFUSES(pool, &logits, NULL, &chain, outputs, "batch");
    REFUSES(pool, &logits, &of_two, NULL, outputs, "drafts");
    REFUSES(pool, &logits, &of_two, &chain, NULL, "outputs");
    CHECK(gumball_pool_shorten(pool, slots, NULL, 1) == GUMBALL_OUT_OF_RANGE);
    OK(gumball_pool_shorten(pool, NULL, NULL, 0));
    CHECK(state_of(pool, slots[0]).output_len == 0);
    gumball_emitted emitted;
    CHECK(view_of(outputs).accepted == NULL && gumball_outputs_request(outputs, 0, &emitted) == GUMBALL_OUT_OF_RANGE);
}

int main(int argc, char **argv) {
    rows_and_tokens_are_those_of_the_path(keeping_pool_of(VOCAB, 1));
    trees_may_be_held_as_links();
    modes_judge_by_probabilities();
    drafts_are_drawn();
    refusals();
    if (argc > 1) {
        gumball_device *device = gumball_device_open(argv[1]);
        rows_and_tokens_are_those_of_the_path(device_pool_of(device, VOCAB));
        gumball_device_free(device);
    }
    return verdict("verify");
}
