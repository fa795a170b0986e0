// The golden draws through the C ABI: golden CASES WHERE [EVERY], where WHERE is sampler, pool or a device.
//
// A case is a line: the kind of row, the number of tokens, the tokens, and the parameters as JSON. Each step draws once
// under draw index 1, which the sequence does not follow, and once under 0, which it does. EVERY takes one case of so
// many.

#include "check.h"
#include "rows.h"

enum { STEPS = 8, TOKENS = 2 * STEPS };

static const struct {
    size_t vocab;
    gumball_dtype dtype;
} kinds[] = {{1000, GUMBALL_F32}, {4099, GUMBALL_F32}, {8192, GUMBALL_BF16}, {777, GUMBALL_F16}, {513, GUMBALL_F32}};

static const uint32_t prompt[] = {3, 1, 4, 1, 5};
static const uint64_t seed = UINT64_C(0x00677562616C6C21);

static float row[8192];
static uint16_t halves[8192];

// Makes a row and returns where it lies in its type.
static const void *make_row(int kind, uint64_t step) {
    size_t vocab = kinds[kind].vocab;
    switch (kind) {
    case 0:
        bell(row, vocab, step);
        return row;
    case 1:
        model_like(row, vocab, 100 + step);
        return row;
    case 2:
        model_like(row, vocab, 200 + step);
        to_bf16(row, halves, vocab);
        return halves;
    case 3:
        grid(row, vocab, step);
        to_f16(row, halves, vocab);
        return halves;
    default:
        for (size_t id = 0; id < vocab; id++) {
            row[id] = -1.5f;
        }
        return row;
    }
}

static void by_sampler(int kind, const gumball_params *params, int32_t *drawn) {
    SIZED(gumball_sampler_config, config);
    config.vocab = kinds[kind].vocab;
    gumball_sampler *sampler = gumball_sampler_new(params, &config, NULL);
    OK(gumball_sampler_reset(sampler, prompt, 5));
    for (int step = 0; step < STEPS; step++) {
        const void *logits = make_row(kind, (uint64_t)step);
        gumball_sampler *other = gumball_sampler_fork(sampler, 1);
        gumball_sampler *both[] = {other, sampler};
        for (int i = 0; i < 2; i++) {
            gumball_token token;
            token.id = -2;
            OK(sample(both[i], logits, kinds[kind].dtype, config.vocab, NULL, &token));
            drawn[2 * step + i] = token.id;
        }
        gumball_sampler_free(other);
    }
    gumball_sampler_free(sampler);
}

static void by_pool(gumball_pool *pool, int kind, const gumball_params *params, int32_t *drawn) {
    gumball_outputs *outputs = gumball_outputs_new();
    int32_t slots[2] = {-1, -1};
    OK(gumball_pool_admit(pool, params, prompt, 5, &slots[1]));
    const uint32_t lines[] = {0, 0};
    gumball_batch options = batch_of(slots, 2);
    options.row_indices = lines;
    for (int step = 0; step < STEPS; step++) {
        gumball_rows logits = rows_of(make_row(kind, (uint64_t)step), kinds[kind].dtype, 1, kinds[kind].vocab);
        OK(gumball_pool_fork(pool, slots[1], 1, &slots[0]));
        OK(gumball_pool_step(pool, &logits, &options, outputs));
        OK(gumball_pool_release(pool, slots[0]));
        if (view_of(outputs).rows == 2) {
            memcpy(drawn + 2 * step, view_of(outputs).tokens, 2 * sizeof *drawn);
        }
    }
    OK(gumball_pool_release(pool, slots[1]));
    gumball_outputs_free(outputs);
}

int main(int count, char **arguments) {
    if (count < 3) {
        return EXIT_FAILURE;
    }
    FILE *cases = fopen(arguments[1], "r");
    const char *where = arguments[2];
    int every = count > 3 ? atoi(arguments[3]) : 1;
    gumball_device *device = NULL;
    if (strcmp(where, "sampler") != 0 && strcmp(where, "pool") != 0) {
        device = gumball_device_open(where);
        CHECK(device != NULL);
    }
    gumball_pool *pools[5] = {NULL, NULL, NULL, NULL, NULL};
    int kind, length, taken = 0;
    for (int number = 0; cases && fscanf(cases, "%d %d", &kind, &length) == 2; number++) {
        int32_t pinned[TOKENS], drawn[TOKENS] = {0};
        char json[512];
        CHECK(length == TOKENS);
        for (int i = 0; i < length && i < TOKENS; i++) {
            CHECK(fscanf(cases, "%d", &pinned[i]) == 1);
        }
        CHECK(fgets(json, sizeof json, cases) != NULL);
        if (number % every != 0) {
            continue;
        }
        gumball_params *params = gumball_params_from_json(json);
        OK(gumball_params_set_seed(params, seed));
        if (strcmp(where, "sampler") == 0) {
            by_sampler(kind, params, drawn);
        } else {
            if (!pools[kind]) {
                pools[kind] = device ? device_pool_of(device, kinds[kind].vocab) : pool_of(kinds[kind].vocab, 2);
            }
            by_pool(pools[kind], kind, params, drawn);
        }
        check(memcmp(pinned, drawn, sizeof drawn) == 0, json, arguments[1], number + 1);
        gumball_params_free(params);
        taken += 1;
    }
    CHECK(taken >= 100 / every);
    gumball_device_free(device);
    if (cases) {
        fclose(cases);
    }
    return verdict(where);
}
