// Pools on a device beside one on the host: device NAME, as cuda.

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

// What operators read and write, in one piece of memory, so that it is the same on the host and on a device.
typedef struct {
    float logits[ROWS][VOCAB], weights[ROWS][VOCAB], in_place[ROWS][VOCAB];
    float temperatures[ROWS], top_ps[ROWS];
    uint64_t seeds[ROWS];
    uint32_t positions[ROWS];
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
static void operate(gumball_operators *operators, operands *at, gumball_memory memory) {
    gumball_rows logits = rows_of(at->logits, GUMBALL_F32, ROWS, VOCAB);
    logits.matrix.memory = memory;
    gumball_rows weights = logits, in_place = logits;
    weights.what = in_place.what = GUMBALL_PROBABILITIES;
    weights.matrix.data = at->weights;
    in_place.matrix.data = at->in_place;
    gumball_matrix out = logits.matrix;
    out.data = at->written.softmax;
    OK(gumball_operators_softmax(operators, &logits, 0.0f, at->temperatures, &out, at->written.statuses[0]));

    SIZED(gumball_row_params, params);
    params.temperature = at->temperatures;
    params.top_k = at->top_ks;
    SIZED(gumball_draws, draws);
    draws.outputs = ROWS;
    draws.seeds = at->seeds;
    draws.positions = at->positions;
    OK(gumball_operators_sample(operators, &logits, &params, &draws, at->written.drawn[0], NULL));
    // The lists as pools, of which every row reads another element.
    gumball_draws pools = draws;
    pools.slots = at->slots;
    pools.size = ROWS;
    pools.offsets = at->offsets;
    pools.positions = NULL;
    OK(gumball_operators_sample(operators, &logits, &params, &pools, at->written.drawn[1], NULL));
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
    in_place.matrix.memory = memory == GUMBALL_HOST ? GUMBALL_DEVICE : GUMBALL_HOST;
    FAILS(gumball_operators_probabilities(operators, &in_place, &params, &out, NULL), GUMBALL_OUT_OF_RANGE, "memory");

    // Two drafts, as a chain whose target and drafter have the probabilities just made, and as siblings of a tree.
    gumball_rows target = logits;
    target.what = GUMBALL_PROBABILITIES;
    target.matrix.data = at->written.softmax;
    target.matrix.rows = DRAFTS + 1;
    SIZED(gumball_drafts, drafts);
    drafts.ids = ints_of(at->ids, DRAFTS);
    drafts.ids.memory = memory;
    drafts.probs = target.matrix;
    drafts.probs.rows = DRAFTS;
    draws.outputs = 1;
    const uint64_t seed = 4;
    const uint32_t position = 2;
    draws.seeds = NULL;
    draws.positions = NULL;
    draws.seed = &seed;
    draws.position = &position;
    uint32_t *counts = at->written.counts;
    const gumball_judged chain = {at->written.chain, NULL, counts, counts + 1, counts + 2};
    const gumball_judged tree = {at->written.tree, at->written.tree_rows, &at->written.accepted, NULL, NULL};
    OK(gumball_operators_judge(operators, &target, &drafts, &draws, GUMBALL_REJECTION, 0, 0, &chain));
    memset(&drafts.probs, 0, sizeof drafts.probs);
    drafts.parents = drafts.ids;
    drafts.parents.data = at->parents;
    OK(gumball_operators_judge(operators, &target, &drafts, &draws, GUMBALL_REJECTION, 0, 0, &tree));
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
    gumball_operators *host = gumball_operators_new(NULL, 0, NULL);
    gumball_operators *there = gumball_operators_new(device, 0, NULL);
    gumball_buffer *buffer = copied_up(device, &here, sizeof here);
    operate(host, &here, GUMBALL_HOST);
    operate(there, (operands *)gumball_buffer_address(buffer), GUMBALL_DEVICE);
    OK(gumball_buffer_read(buffer, 0, &seen, sizeof seen));
    CHECK(memcmp(&here, &seen, sizeof here) == 0);
    const int32_t *drawn = seen.written.drawn[0];
    CHECK(drawn[0] >= 0 && drawn[1] != drawn[2] && seen.written.ranks[0] > 0 && seen.written.ranks[1] == 0);
    gumball_operators_free(host);
    gumball_operators_free(there);
}

static gumball_variant needed(gumball_pool *pool) {
    gumball_variant variant = GUMBALL_FULL;
    OK(gumball_pool_needed_variant(pool, &variant));
    return variant;
}

// A program that captures a step names its variant, and is refused where that does not serve a row.
static void variants_of(gumball_device *device, const gumball_rows *there) {
    gumball_pool *pool = device_pool_of(device, VOCAB), *host = pool_of(VOCAB, 1);
    static const char *const two[] = {"{\"seed\": 3, \"temperature\": 0}", "{\"seed\": 4, \"top_p\": 0.9}"};
    const int32_t none[] = {-1, -1, -1, -1};
    int32_t slots[] = {-1, -1, -1, -1};
    for (int i = 0; i < 2; i++) {
        slots[1 + i] = admit(pool, two[i], prompt, 3);
    }
    const gumball_work work = work_of(GUMBALL_WORK_STEP, there);
    OK(assign(pool, none, ROWS));
    CHECK(needed(pool) == GUMBALL_NO_FILTER);
    gumball_recorded *few = gumball_pool_record(pool, GUMBALL_NO_FILTER, &work, 1);
    CHECK(few);
    OK(assign(pool, slots, ROWS));
    CHECK(needed(pool) == GUMBALL_TOP_P);
    const char *const message =
        "variant is no_filter, but must be top_p or edits or full, for the request of row 2 in slot 1";
    NOTHING(gumball_pool_record(pool, GUMBALL_NO_FILTER, &work, 1), GUMBALL_OUT_OF_RANGE, "variant");
    const gumball_recorded *replays[] = {few, NULL};
    REFUSED(gumball_pool_before_replay(pool, replays, 1), GUMBALL_OUT_OF_RANGE, message);
    FAILS(gumball_pool_before_replay(pool, replays, 2), GUMBALL_OUT_OF_RANGE, "recorded");
    gumball_variant beyond;
    memset(&beyond, 0x7F, sizeof beyond);
    NOTHING(gumball_pool_record(pool, beyond, &work, 1), GUMBALL_OUT_OF_RANGE, "variant");
    gumball_recorded *full = gumball_pool_record(pool, GUMBALL_FULL, &work, 1);
    replays[0] = replays[1] = full;
    OK(gumball_pool_before_replay(pool, replays, 2));
    gumball_recorded_free(few);
    gumball_recorded_free(full);
    const gumball_counts counts = counts_of(pool);
    CHECK(counts.variant_steps[GUMBALL_NO_FILTER] == 1 && counts.variant_steps[GUMBALL_FULL] == 3);
    FAILS(gumball_pool_needed_variant(host, &beyond), GUMBALL_UNAVAILABLE,
          "graphs and memory of a device in a pool of the host");
}

// Fields of a pool's config that only a device reads, and values that it refuses.
static void configs_of(gumball_device *device) {
    SIZED(gumball_pool_config, config);
    config.vocab = VOCAB;
    config.route = "probabilities";
    config.device = device;
    gumball_pool *pool = gumball_pool_new(&config);
    gumball_params *edited = params_of("{\"repetition_penalty\": 1.2}");
    int32_t slot;
    FAILS(gumball_pool_admit(pool, edited, NULL, 0, &slot), GUMBALL_CONFLICT, "repetition_penalty");
    gumball_pool_free(pool);
    config.route = "oracle";
    CHECK(gumball_pool_new(&config) == NULL && gumball_error(NULL) == GUMBALL_UNAVAILABLE);
    config.route = NULL;
    config.ids = (size_t)1 << 62;
    NOTHING(gumball_pool_new(&config), GUMBALL_OUT_OF_RANGE, "ids");
    config.ids = 1 << 20;
    config.slots = 2147483647;
    CHECK(gumball_pool_new(&config) == NULL && gumball_error(NULL) == GUMBALL_UNAVAILABLE);
    CHECK(gumball_buffer_new(device, SIZE_MAX) == NULL && gumball_error(NULL) == GUMBALL_UNAVAILABLE);
    config.threads = 1;
    NONE(gumball_pool_new(&config), GUMBALL_CONFLICT,
         "threads cannot be combined with device: only a pool on the host reads it; leave it zero");
}

// Both pools of one request after another, whatever is called.
static void a_pool_on_a_device_is_one_on_the_host(gumball_device *device) {
    gumball_pool *host = pool_of(VOCAB, 1), *pool = device_pool_of(device, VOCAB);
    gumball_outputs *wanted = outputs_of(), *seen = outputs_of(), *kept = outputs_of();
    int32_t slots[ROWS];
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(host, requests[i], prompt, 3);
        CHECK(admit(pool, requests[i], prompt, 3) == slots[i]);
    }
    const gumball_rows logits = rows_of(rows, GUMBALL_F32, ROWS, VOCAB);
    OK(take_step(host, &logits, slots, ROWS, wanted));
    OK(take_step(pool, &logits, slots, ROWS, seen));
    CHECK(same_outputs(wanted, seen));

    // Logits and bitmasks of the device, in a step and in a graph of three.
    uint32_t masks[ROWS][WORDS];
    memset(masks, 0x5A, sizeof masks);
    gumball_buffer *buffer = copied_up(device, rows, sizeof rows), *words = copied_up(device, masks, sizeof masks);
    const gumball_rows plain = rows_there(buffer, ROWS, VOCAB);
    gumball_work work[3] = {work_of(GUMBALL_WORK_STEP, &plain), work_of(GUMBALL_WORK_STEP, &plain),
                            work_of(GUMBALL_WORK_STEP, &plain)};
    work[1].masks = masks_of((const uint32_t *)gumball_buffer_address(words), ROWS, WORDS);
    work[1].masks.memory = GUMBALL_DEVICE;
    OK(assign(pool, slots, ROWS));
    OK(gumball_pool_enqueue(pool, &work[1], 1));
    OK(gumball_pool_fetch(pool, kept));
    gumball_batch masked = batch_of(slots, ROWS);
    masked.masks = masks_of(masks[0], ROWS, WORDS);
    OK(gumball_pool_step(host, &logits, &masked, wanted));
    CHECK(same_outputs(wanted, kept));
    size_t len = 0;
    CHECK(gumball_outputs_kept(kept, 1, &len) != NULL && len == 1);
    SIZED(gumball_outputs_view, view);
    OK(gumball_pool_outputs(pool, &view));
    CHECK(view.kept != NULL && view.kept_words >= WORDS && view_of(kept).kept == NULL);

    variants_of(device, &plain);
    configs_of(device);

    gumball_graph *graph = keep_graph(gumball_pool_capture(pool, work, 3));
    for (int replay = 0; replay < 2; replay++) {
        OK(gumball_pool_replay(pool, graph));
        OK(gumball_pool_fetch(pool, seen));
        for (int i = 0; i < 3; i++) {
            OK(i == 1 ? gumball_pool_step(host, &logits, &masked, wanted)
                      : take_step(host, &logits, slots, ROWS, wanted));
        }
        CHECK(same_outputs(wanted, seen));
    }
    gumball_pool *other = device_pool_of(device, VOCAB);
    REFUSED(gumball_pool_replay(other, graph), GUMBALL_OUT_OF_RANGE,
            "graph is that of another pool, but must be one that this pool captured");

    // A device keeps no history that edits do not read. A direct call reads rows in the device's memory where they lie.
    SIZED(gumball_state, state);
    CHECK(gumball_pool_state(pool, slots[0], &state) == GUMBALL_UNAVAILABLE);
    gumball_rows weights = logits, weights_there = plain;
    weights.what = weights_there.what = GUMBALL_PROBABILITIES;
    weights.matrix.rows = weights_there.matrix.rows = 1;
    OK(take_step(host, &weights, slots, 1, wanted));
    OK(take_step(pool, &weights_there, slots, 1, seen));
    CHECK(same_outputs(wanted, seen));

    // What is wrong is refused before anything is enqueued. After a direct call nothing is assigned.
    FAILS(enqueue(pool, &plain), GUMBALL_CONFLICT, "work");
    OK(assign(pool, slots, ROWS));
#define WRONG(set, code, parameter) \
    { \
        gumball_rows wrong = plain; \
        set; \
        FAILS(enqueue(pool, &wrong), code, parameter); \
    }
    WRONG(wrong.matrix.data = (const char *)plain.matrix.data + 1, GUMBALL_OUT_OF_RANGE, "logits")
    WRONG(wrong.matrix.data = NULL, GUMBALL_OUT_OF_RANGE, "logits")
    WRONG(wrong.matrix.rows = 3, GUMBALL_LENGTH, "logits")
    WRONG(memset(&wrong.matrix.dtype, 0x7F, sizeof wrong.matrix.dtype), GUMBALL_OUT_OF_RANGE, "dtype")
    WRONG(memset(&wrong.what, 0x7F, sizeof wrong.what), GUMBALL_OUT_OF_RANGE, "what")
    WRONG(memset(&wrong.matrix.memory, 0x7F, sizeof wrong.matrix.memory), GUMBALL_OUT_OF_RANGE, "memory")
    FAILS(enqueue(host, &plain), GUMBALL_CONFLICT, "work");
    CHECK(take_step(host, &plain, slots, ROWS, wanted) == GUMBALL_OUT_OF_RANGE);
    CHECK(gumball_buffer_write(buffer, sizeof rows, rows, 4) == GUMBALL_LENGTH);
    float back[VOCAB];
    OK(gumball_buffer_read(buffer, sizeof rows[0], back, sizeof back));
    CHECK(memcmp(back, rows[1], sizeof back) == 0);

    gumball_device_free(device);
}

int main(int count, char **arguments) {
    gumball_device *device = gumball_device_open(count > 1 ? arguments[1] : "cuda");
    CHECK(device != NULL);
    for (int i = 0; i < ROWS; i++) {
        bell(rows[i], VOCAB, (uint64_t)i);
    }
    operators_read_and_write_the_devices_memory(device);
    a_pool_on_a_device_is_one_on_the_host(device);
    return verdict("device");
}
