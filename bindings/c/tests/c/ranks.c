// `ranks [DEVICE]`: pools over several processes draw the tokens of one process under every layout, and each failure
// has its error code.
//
// The program starts the other processes itself, before it calls the library. Ranks on devices are threads.

// Compilers of C++ set it themselves.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "rows.h"

enum { VOCAB = 700, WORLD = 3, REQUESTS = 4, STEPS = 2, DRAFTS = 5, ROWS = REQUESTS * (DRAFTS + 1) };

static const char *const kinds[REQUESTS] = {
    "{\"seed\": 1}",
    "{\"seed\": 2, \"temperature\": 0}",
    "{\"seed\": 3, \"top_k\": 20, \"top_p\": 0.9}",
    "{\"seed\": 4, \"top_p\": 0.8, \"repetition_penalty\": 1.3, \"logprobs\": {\"mode\": \"raw\"}}",
};

static const char *device_name;
static char folder[] = "/tmp/gumball-c-XXXXXX";
static __thread float whole[ROWS * VOCAB], part[ROWS * VOCAB];

static gumball_pool *joined(size_t rank, gumball_device *device, const char *group, const char *layouts,
                            const char *layout) {
    char places[WORLD][64];
    const char *addresses[WORLD];
    for (size_t i = 0; i < WORLD; i++) {
        snprintf(places[i], sizeof places[i], "unix:%s/%s%zu", folder, group, i);
        addresses[i] = places[i];
    }
    static const size_t split[WORLD] = {100, 37, VOCAB - 137};
    SIZED(gumball_ranks, ranks);
    ranks.rank = rank;
    ranks.world = WORLD;
    ranks.addresses = addresses;
    ranks.split = split;
    ranks.layouts = layouts;
    ranks.layout = layout;
    ranks.timeout_ms = 20000;
    ranks.is_modulo = 1;
    SIZED(gumball_pool_config, config);
    config.vocab = VOCAB;
    config.slots = 8;
    config.device = device;
    config.threads = device == NULL;
    config.top_n = 3;
    config.ids = 2;
    config.ranks = &ranks;
    return gumball_pool_new(&config);
}

// Copies what a process has of some rows, and describes it.
static gumball_rows own_rows(gumball_pool *pool, const gumball_plan *plan, size_t rows_per_request) {
    const gumball_pool_info info = pool_info_of(pool);
    const size_t rows = plan->requests * rows_per_request, own = info.end_id - info.first_id;
    size_t count = 0;
    if (plan->layout == GUMBALL_REPLICATED) {
        for (size_t row = 0; row < rows; row++) {
            size_t owner = WORLD;
            OK(gumball_pool_owner(pool, plan, row / rows_per_request, &owner));
            if (owner == info.rank) {
                memcpy(part + count++ * VOCAB, whole + row * VOCAB, VOCAB * sizeof *part);
            }
        }
        return rows_of(part, GUMBALL_F32, count, VOCAB);
    }
    for (size_t row = 0; row < rows; row++) {
        memcpy(part + row * own, whole + row * VOCAB + info.first_id, own * sizeof *part);
    }
    return rows_of(part, GUMBALL_F32, rows, own);
}

// Takes steps and a verification on a process, beside a pool of its own that has the whole rows.
static void draws_what_one_process_draws(size_t rank, gumball_device *device, const char *layouts, const char *layout,
                                         gumball_row_layout served) {
    gumball_pool *pools[2] = {joined(rank, device, layouts, layouts, layout), pool_of(VOCAB, 1)};
    const gumball_pool_info info = pool_info_of(pools[0]);
    CHECK(info.rank == rank && info.world == WORLD && info.most_ids == VOCAB - 137);
    CHECK(strcmp(info.transport, device == NULL ? "unix" : "onesided") == 0);
    int32_t slots[REQUESTS];
    const uint32_t prompt[] = {3, 7};
    for (size_t i = 0; i < REQUESTS; i++) {
        slots[i] = admit(pools[0], kinds[i], prompt, 2);
        CHECK(admit(pools[1], kinds[i], prompt, 2) == slots[i]);
    }
    gumball_outputs *seen = outputs_of(), *wanted = outputs_of();
    gumball_batch batch = batch_of(slots, REQUESTS);
    gumball_plan plan;
    for (uint64_t turn = 0; turn < STEPS; turn++) {
        bell(whole, REQUESTS * VOCAB, 1 + turn);
        OK(plan_of(pools[0], slots, REQUESTS, &plan));
        CHECK(plan.layout == served && plan.requests == REQUESTS && plan.batch == REQUESTS);
        const gumball_rows own = own_rows(pools[0], &plan, 1), all = rows_of(whole, GUMBALL_F32, REQUESTS, VOCAB);
        // The pool decides as the plan does.
        batch.plan = turn == 0 ? &plan : NULL;
        OK(gumball_pool_step(pools[0], &own, &batch, seen));
        OK(take_step(pools[1], &all, slots, REQUESTS, wanted));
        CHECK(same_outputs(wanted, seen));
    }

    const uint32_t counts[REQUESTS] = {DRAFTS, DRAFTS, DRAFTS, DRAFTS};
    int32_t ids[REQUESTS * DRAFTS];
    bell(whole, ROWS * VOCAB, 90);
    for (size_t i = 0; i < REQUESTS * DRAFTS; i++) {
        const float *row = whole + (i / DRAFTS * (DRAFTS + 1) + i % DRAFTS) * VOCAB;
        ids[i] = 0;
        for (int32_t id = 1; id < VOCAB; id++) {
            ids[i] = row[id] > row[ids[i]] ? id : ids[i];
        }
    }
    SIZED(gumball_drafts, drafts);
    drafts.ids = ints_of(ids, REQUESTS * DRAFTS);
    batch.counts = counts;
    OK(gumball_pool_plan(pools[0], &batch, GUMBALL_VERIFY, 0, 0, &plan));
    const gumball_rows own = own_rows(pools[0], &plan, DRAFTS + 1), all = rows_of(whole, GUMBALL_F32, ROWS, VOCAB);
    batch.plan = &plan;
    OK(gumball_pool_verify(pools[0], &own, &batch, &drafts, seen));
    batch.plan = NULL;
    OK(gumball_pool_verify(pools[1], &all, &batch, &drafts, wanted));
    CHECK(same_outputs(wanted, seen));
    for (size_t i = 0; i < REQUESTS; i++) {
        const gumball_state state = state_of(pools[0], slots[i]), other = state_of(pools[1], slots[i]);
        CHECK(state.output_len == other.output_len);
        CHECK(memcmp(state.output, other.output, state.output_len * sizeof(uint32_t)) == 0);
    }
    const gumball_counts counted = counts_of(pools[0]);
    CHECK(counted.layout_steps[served] >= STEPS && (device != NULL || counted.sent_bytes > 0));
    gumball_pool_free(pools[0]);
}

static void *on_a_device(void *given) {
    gumball_device *device = gumball_device_open(device_name);
    draws_what_one_process_draws((size_t)given, device, "swap", "swap", GUMBALL_SWAP);
    gumball_device_free(device);
    return NULL;
}

static void says_what_is_wrong_with_others(size_t rank) {
    // Made with other layouts.
    NOTHING(joined(rank, NULL, "differs", rank == 1 ? "swap" : "survey", NULL), GUMBALL_DISAGREE, "layouts");
    // Other requests.
    gumball_pool *pool = joined(rank, NULL, "other", "", NULL);
    int32_t slot = admit(pool, rank == 1 ? "{\"seed\": 5}" : "{\"seed\": 6}", NULL, 0);
    gumball_outputs *outputs = outputs_of();
    gumball_plan gather;
    OK(plan_of(pool, &slot, 1, &gather));
    const gumball_rows own = own_rows(pool, &gather, 1);
    CHECK(take_step(pool, &own, &slot, 1, outputs) == GUMBALL_DISAGREE);
    CHECK(take_step(pool, &own, &slot, 1, outputs) == GUMBALL_BROKEN);
    CHECK(state_of(pool, slot).output_len == 0);
    gumball_pool_free(pool);
    // A process that ended.
    pool = joined(rank, NULL, "ended", "", NULL);
    CHECK(pool != NULL);
    if (rank == 0) {
        slot = admit(pool, "{\"seed\": 5}", NULL, 0);
        FAILS(take_step(pool, &own, &slot, 1, outputs), GUMBALL_LOST, "rank");
    }
    gumball_pool_free(pool);
}

// One process is a group, too.
static void mistakes_are_named(void) {
    char place[64];
    snprintf(place, sizeof place, "unix:%s/alone", folder);
    const char *const addresses[] = {place};
    SIZED(gumball_ranks, ranks);
    SIZED(gumball_pool_config, config);
    config.vocab = VOCAB;
    ranks.world = 1;
    ranks.addresses = addresses;
    ranks.transport = "unix";
#define WRONG(set, code, parameter) \
    { \
        gumball_ranks wrong = ranks; \
        set; \
        config.ranks = &wrong; \
        NOTHING(gumball_pool_new(&config), code, parameter); \
    }
    WRONG(wrong.world = 0, GUMBALL_OUT_OF_RANGE, "world")
    WRONG(wrong.addresses = NULL, GUMBALL_OUT_OF_RANGE, "addresses")
    WRONG(wrong.layouts = "swap, half", GUMBALL_UNKNOWN, "layout")
    WRONG(wrong.transport = "ucx", GUMBALL_UNKNOWN, "transport")
    WRONG(wrong.rank = 1, GUMBALL_OUT_OF_RANGE, "rank")
    config.ranks = &ranks;
    gumball_pool *pool = gumball_pool_new(&config);
    CHECK(pool != NULL);
    gumball_params *params = params_of("{}");
    int32_t slot = -1;
    REFUSED(gumball_pool_admit(pool, params, NULL, 0, &slot), GUMBALL_OUT_OF_RANGE,
            "seed is absent, but must be given, so that all ranks have the same");
    slot = admit(pool, "{\"seed\": 1}", NULL, 0);
    gumball_plan plan;
    gumball_batch batch = batch_of(&slot, 1);
    gumball_step_kind kind;
    memset(&kind, 0x7F, sizeof kind);
    FAILS(gumball_pool_plan(pool, &batch, kind, 0, 0, &plan), GUMBALL_OUT_OF_RANGE, "kind");
    FAILS(gumball_pool_plan(pool, NULL, GUMBALL_DECODE, 0, 0, &plan), GUMBALL_OUT_OF_RANGE, "batch");
    OK(plan_of(pool, &slot, 1, &plan));
    gumball_outputs *outputs = outputs_of();
    const gumball_rows all = rows_of(whole, GUMBALL_F32, 1, VOCAB);
    batch.plan = &plan;
    memset(&plan.layout, 0x7F, sizeof plan.layout);
    FAILS(gumball_pool_step(pool, &all, &batch, outputs), GUMBALL_OUT_OF_RANGE, "layout");
    plan.layout = GUMBALL_REPLICATED;
    CHECK(gumball_pool_step(pool, &all, &batch, outputs) == GUMBALL_OUT_OF_RANGE);
    plan.layout = GUMBALL_GATHER;
    plan.requests = 2;
    REFUSED(gumball_pool_step(pool, &all, &batch, outputs), GUMBALL_LENGTH,
            "slots has length 1, but must have 2, as many as were planned for");
    size_t rank = 9;
    REFUSED(gumball_pool_owner(pool, &plan, 2, &rank), GUMBALL_OUT_OF_RANGE,
            "request is 2, but must be a request in 0..2");
    OK(take_step(pool, &all, &slot, 1, outputs));

    // Ranks of the host have no graphs, and one process has no plans.
    const gumball_work work = work_of(GUMBALL_WORK_STEP, &all);
    CHECK(gumball_pool_capture(pool, &work, 1) == NULL);
    gumball_pool *alone = pool_of(VOCAB, 1);
    CHECK(plan_of(alone, NULL, 0, &plan) == GUMBALL_UNAVAILABLE);
    batch.plan = &plan;
    FAILS(gumball_pool_step(alone, &all, &batch, outputs), GUMBALL_CONFLICT, "plan");
    gumball_pool_free(pool);
}

int main(int argc, char **argv) {
    if (mkdtemp(folder) == NULL) {
        return EXIT_FAILURE;
    }
    pid_t others[WORLD];
    size_t rank = 0;
    for (size_t i = 1; i < WORLD && rank == 0; i++) {
        others[i] = fork();
        rank = others[i] == 0 ? i : 0;
    }
    draws_what_one_process_draws(rank, NULL, "swap", "swap", GUMBALL_SWAP);
    draws_what_one_process_draws(rank, NULL, "survey", "survey", GUMBALL_SURVEY);
    draws_what_one_process_draws(rank, NULL, "replicated", "replicated", GUMBALL_REPLICATED);
    says_what_is_wrong_with_others(rank);
    if (rank > 0) {
        return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    mistakes_are_named();
    if (argc > 1) {
        device_name = argv[1];
        pthread_t threads[WORLD];
        for (size_t i = 0; i < WORLD; i++) {
            CHECK(pthread_create(&threads[i], NULL, on_a_device, (void *)i) == 0);
        }
        for (size_t i = 0; i < WORLD; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
        }
    }
    for (size_t i = 1; i < WORLD; i++) {
        int status = -1;
        CHECK(waitpid(others[i], &status, 0) == others[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(rmdir(folder) == 0);
    return verdict("ranks");
}
