// Pools over several processes: what comes out is that of one process, under every layout; the codes of what goes wrong.
//
// The program starts the other processes itself, before it calls the library.

// Compilers of C++ set it themselves.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "rows.h"

enum { VOCAB = 700, WORLD = 3, REQUESTS = 4, STEPS = 2, DRAFTS = 2, ROWS = REQUESTS * (DRAFTS + 1) };

static const char *const kinds[REQUESTS] = {
    "{\"seed\": 1}",
    "{\"seed\": 2, \"temperature\": 0}",
    "{\"seed\": 3, \"top_k\": 20, \"top_p\": 0.9}",
    "{\"seed\": 4, \"top_p\": 0.8, \"repetition_penalty\": 1.3, \"logprobs\": {\"mode\": \"raw\"}}",
};

static char folder[] = "/tmp/gumball-c-XXXXXX";
static char places[WORLD][64];
static const char *addresses[WORLD];
static float whole[ROWS * VOCAB], part[ROWS * VOCAB];

static gumball_dist *joined(size_t rank, const char *group, const char *layouts, const char *layout) {
    for (size_t i = 0; i < WORLD; i++) {
        snprintf(places[i], sizeof places[i], "unix:%s/%s%zu", folder, group, i);
        addresses[i] = places[i];
    }
    static const size_t split[WORLD] = {100, 37, VOCAB - 137};
    SIZED(gumball_dist_config, config);
    config.vocab = VOCAB;
    config.rank = rank;
    config.world = WORLD;
    config.addresses = addresses;
    config.split = split;
    config.slots = 8;
    config.threads = 1;
    config.layouts = layouts;
    config.layout = layout;
    config.swap_min_requests = 1;
    config.survey_min_vocab = 1;
    config.timeout_ms = 20000;
    config.is_modulo = 1;
    return gumball_dist_new(&config);
}

// Copies what a process has of some rows, and describes it.
static gumball_logits own_rows(gumball_dist *pool, int64_t layout, size_t rows, size_t rows_per_request) {
    size_t first = 0, end = 0, count = 0;
    OK(gumball_dist_ids(pool, &first, &end));
    if (layout == GUMBALL_REPLICATED) {
        for (size_t row = 0; row < rows; row++) {
            size_t owner = WORLD;
            OK(gumball_dist_owner(pool, rows / rows_per_request, row / rows_per_request, &owner));
            if (owner == gumball_dist_rank(pool)) {
                memcpy(part + count++ * VOCAB, whole + row * VOCAB, VOCAB * sizeof *part);
            }
        }
        return logits_of(part, GUMBALL_F32, count, VOCAB);
    }
    for (size_t row = 0; row < rows; row++) {
        memcpy(part + row * (end - first), whole + row * VOCAB + first, (end - first) * sizeof *part);
    }
    return logits_of(part, GUMBALL_F32, rows, end - first);
}

// Takes steps and a verification on a process, beside a pool of its own that has the whole rows.
static void draws_what_one_process_draws(size_t rank, const char *layouts, const char *layout,
                                         gumball_dist_layout served) {
    gumball_dist *pool = joined(rank, layouts, layouts, layout);
    CHECK(pool != NULL && gumball_dist_rank(pool) == rank && gumball_dist_world(pool) == WORLD);
    CHECK(gumball_dist_width(pool) == VOCAB - 137 && strcmp(gumball_dist_transport(pool), "unix") == 0);
    gumball_pool *alone = pool_of(VOCAB, 1);
    int32_t slots[REQUESTS], alone_slots[REQUESTS];
    const uint32_t prompt[] = {3, 7};
    for (size_t i = 0; i < REQUESTS; i++) {
        gumball_params *params = params_of(kinds[i]);
        OK(gumball_dist_admit(pool, params, prompt, 2, &slots[i]));
        OK(gumball_pool_admit(alone, params, prompt, 2, &alone_slots[i]));
        gumball_params_free(params);
    }
    gumball_outputs *seen = gumball_outputs_new(0), *wanted = gumball_outputs_new(0);
    for (uint64_t step = 0; step < STEPS; step++) {
        bell(whole, REQUESTS * VOCAB, 1 + step);
        SIZED(gumball_dist_decision, plan);
        OK(gumball_dist_plan(pool, slots, REQUESTS, NULL, &plan));
        CHECK(plan.layout == (int64_t)served && plan.requests == REQUESTS && plan.batch == REQUESTS);
        gumball_logits own = own_rows(pool, plan.layout, REQUESTS, 1);
        gumball_logits all = logits_of(whole, GUMBALL_F32, REQUESTS, VOCAB);
        OK(gumball_dist_step(pool, &plan, &own, slots, REQUESTS, NULL, seen));
        OK(gumball_pool_step(alone, &all, alone_slots, REQUESTS, NULL, wanted));
        CHECK(memcmp(gumball_outputs_tokens(seen), gumball_outputs_tokens(wanted), REQUESTS * sizeof(int32_t)) == 0);
        CHECK(memcmp(gumball_outputs_logprobs(seen), gumball_outputs_logprobs(wanted), REQUESTS * sizeof(float)) == 0);
    }
    CHECK(gumball_dist_served(pool, served) == STEPS);

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
    drafts.counts = counts;
    drafts.ids = ids;
    SIZED(gumball_dist_shape, shape);
    shape.drafts = DRAFTS;
    shape.kind = GUMBALL_VERIFY;
    SIZED(gumball_dist_decision, plan);
    OK(gumball_dist_plan(pool, slots, REQUESTS, &shape, &plan));
    gumball_verification *verified = gumball_verification_new(0), *as_wanted = gumball_verification_new(0);
    gumball_logits own = own_rows(pool, plan.layout, ROWS, DRAFTS + 1);
    gumball_logits all = logits_of(whole, GUMBALL_F32, ROWS, VOCAB);
    OK(gumball_dist_verify(pool, &plan, &own, slots, REQUESTS, &drafts, NULL, verified));
    OK(gumball_pool_verify(alone, &all, alone_slots, REQUESTS, &drafts, NULL, as_wanted));
    const size_t taken[REQUESTS] = {1, 0, 1, 0};
    OK(gumball_dist_shorten(pool, slots, taken, REQUESTS));
    OK(gumball_pool_shorten(alone, alone_slots, taken, REQUESTS));
    for (size_t i = 0; i < REQUESTS; i++) {
        SIZED(gumball_state, state);
        SIZED(gumball_state, other);
        OK(gumball_dist_state(pool, slots[i], &state));
        OK(gumball_pool_state(alone, alone_slots[i], &other));
        CHECK(state.output_len == other.output_len && state.position == other.position);
        CHECK(memcmp(state.output, other.output, state.output_len * sizeof(uint32_t)) == 0);
    }
    uint64_t sent = 0, received = 0;
    OK(gumball_dist_traffic(pool, &sent, &received));
    CHECK(sent > 0 && received > 0);
    gumball_verification_free(verified);
    gumball_verification_free(as_wanted);
    gumball_outputs_free(seen);
    gumball_outputs_free(wanted);
    gumball_pool_free(alone);
    gumball_dist_free(pool);
}

static void says_what_is_wrong_with_others(size_t rank) {
    // Made with other layouts.
    CHECK(joined(rank, "differs", rank == 1 ? "swap" : "survey", NULL) == NULL);
    CHECK(gumball_error_code() == GUMBALL_DISAGREE && strcmp(gumball_error_parameter(), "layouts") == 0);
    // Other requests.
    gumball_dist *pool = joined(rank, "other", "", NULL);
    gumball_params *params = params_of(rank == 1 ? "{\"seed\": 5}" : "{\"seed\": 6}");
    int32_t slot = -1;
    OK(gumball_dist_admit(pool, params, NULL, 0, &slot));
    gumball_params_free(params);
    gumball_outputs *outputs = gumball_outputs_new(0);
    gumball_logits own = own_rows(pool, GUMBALL_GATHER, 1, 1);
    CHECK(gumball_dist_step(pool, NULL, &own, &slot, 1, NULL, outputs) == GUMBALL_DISAGREE);
    CHECK(gumball_dist_step(pool, NULL, &own, &slot, 1, NULL, outputs) == GUMBALL_BROKEN);
    SIZED(gumball_state, state);
    OK(gumball_dist_state(pool, slot, &state));
    CHECK(state.output_len == 0);
    gumball_dist_free(pool);
    // A process that ended.
    pool = joined(rank, "ended", "", NULL);
    CHECK(pool != NULL);
    if (rank == 0) {
        params = params_of("{\"seed\": 5}");
        OK(gumball_dist_admit(pool, params, NULL, 0, &slot));
        gumball_params_free(params);
        CHECK(gumball_dist_step(pool, NULL, &own, &slot, 1, NULL, outputs) == GUMBALL_LOST);
        CHECK(strcmp(gumball_error_parameter(), "rank") == 0);
    }
    gumball_outputs_free(outputs);
    gumball_dist_free(pool);
}

// One process is a group, too.
static void mistakes_are_named(void) {
    snprintf(places[0], sizeof places[0], "unix:%s/alone", folder);
    addresses[0] = places[0];
    SIZED(gumball_dist_config, config);
    config.vocab = VOCAB;
    NONE(gumball_dist_new(NULL), GUMBALL_OUT_OF_RANGE, "config is NULL, but must be a pointer to something");
    NONE(gumball_dist_new(&config), GUMBALL_OUT_OF_RANGE, "world is 0, but must be in 1..=1024");
    config.world = 1;
    NONE(gumball_dist_new(&config), GUMBALL_OUT_OF_RANGE, "addresses is NULL, but must be a pointer to something");
    config.addresses = addresses;
    config.layouts = "swap, half";
    NONE(gumball_dist_new(&config), GUMBALL_UNKNOWN,
         "layout \"half\" is not known; known are: gather, swap, survey, replicated");
    config.layouts = NULL;
    config.transport = "nccl";
    NONE(gumball_dist_new(&config), GUMBALL_UNKNOWN, "transport \"nccl\" is not known; known are: auto, unix, tcp");
    config.transport = "unix";
    config.rank = 1;
    NONE(gumball_dist_new(&config), GUMBALL_OUT_OF_RANGE, "rank is 1, but must be in 0..1");
    config.rank = 0;
    gumball_dist *pool = gumball_dist_new(&config);
    CHECK(pool != NULL);
    gumball_params *params = params_of("{}");
    int32_t slot = -1;
    REFUSED(gumball_dist_admit(pool, params, NULL, 0, &slot), GUMBALL_OUT_OF_RANGE,
            "seed is absent, but must be given, so that all ranks have the same");
    gumball_params_free(params);
    params = params_of("{\"seed\": 1}");
    OK(gumball_dist_admit(pool, params, NULL, 0, &slot));
    int32_t fork = -1;
    OK(gumball_dist_fork(pool, slot, 1, &fork));
    OK(gumball_dist_push(pool, fork, 4));
    OK(gumball_dist_truncate(pool, fork, 0));
    SIZED(gumball_state, state);
    OK(gumball_dist_state(pool, fork, &state));
    int32_t taken_up = -1;
    OK(gumball_dist_resume(pool, params, &state, &taken_up));
    OK(gumball_dist_release(pool, fork));
    CHECK(gumball_dist_release(pool, fork) == GUMBALL_OUT_OF_RANGE);
    SIZED(gumball_dist_decision, plan);
    SIZED(gumball_dist_shape, shape);
    shape.kind = 3;
    REFUSED(gumball_dist_plan(pool, &slot, 1, &shape, &plan), GUMBALL_OUT_OF_RANGE,
            "kind is 3, but must be GUMBALL_DECODE, GUMBALL_PREFILL or GUMBALL_VERIFY");
    OK(gumball_dist_plan(pool, &slot, 1, NULL, &plan));
    plan.layout = 4;
    gumball_outputs *outputs = gumball_outputs_new(0);
    gumball_logits all = logits_of(whole, GUMBALL_F32, 1, VOCAB);
    REFUSED(gumball_dist_step(pool, &plan, &all, &slot, 1, NULL, outputs), GUMBALL_OUT_OF_RANGE,
            "layout is 4, but must be GUMBALL_GATHER, GUMBALL_SWAP, GUMBALL_SURVEY or GUMBALL_REPLICATED");
    plan.layout = GUMBALL_REPLICATED;
    CHECK(gumball_dist_step(pool, &plan, &all, &slot, 1, NULL, outputs) == GUMBALL_OUT_OF_RANGE);
    plan.layout = GUMBALL_GATHER;
    plan.requests = 2;
    REFUSED(gumball_dist_step(pool, &plan, &all, &slot, 1, NULL, outputs), GUMBALL_LENGTH,
            "slots has length 1, but must have 2, as many as were planned for");
    size_t rank = 9;
    REFUSED(gumball_dist_owner(pool, 2, 2, &rank), GUMBALL_OUT_OF_RANGE, "request is 2, but must be a request in 0..2");
    OK(gumball_dist_step(pool, NULL, &all, &slot, 1, NULL, outputs));
    gumball_outputs_free(outputs);
    gumball_params_free(params);
    gumball_dist_free(pool);
    gumball_dist_free(NULL);
}

int main(void) {
    if (mkdtemp(folder) == NULL) {
        return EXIT_FAILURE;
    }
    pid_t others[WORLD];
    size_t rank = 0;
    for (size_t i = 1; i < WORLD && rank == 0; i++) {
        others[i] = fork();
        rank = others[i] == 0 ? i : 0;
    }
    draws_what_one_process_draws(rank, "swap", NULL, GUMBALL_SWAP);
    draws_what_one_process_draws(rank, "survey", NULL, GUMBALL_SURVEY);
    draws_what_one_process_draws(rank, "replicated", "replicated", GUMBALL_REPLICATED);
    says_what_is_wrong_with_others(rank);
    if (rank > 0) {
        return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    mistakes_are_named();
    for (size_t i = 1; i < WORLD; i++) {
        int status = -1;
        CHECK(waitpid(others[i], &status, 0) == others[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    CHECK(rmdir(folder) == 0);
    return verdict("dist");
}
